"""Retry topics that a crash has taken from the table: which are made again, and how little it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from brokerset_broker.services.pop.lost_topics import make_lost_topics


class Names(dict[str, object]):
    """A table that nobody may walk through."""

    def __iter__(self) -> Any:
        raise AssertionError("each lost topic is looked up; groups and topics are not gone through")


def made(queues: dict[str, list[int]], topics: set[str], groups: set[str]) -> list[tuple[str, int]]:
    """What is made again."""
    found: list[tuple[str, int]] = []
    store: Any = SimpleNamespace(queues=lambda: queues)
    table: Any = SimpleNamespace(
        items=Names(dict.fromkeys(topics)), create_own=lambda name, count: found.append((name, count))
    )
    make_lost_topics(store, table, SimpleNamespace(items=Names(dict.fromkeys(groups))))  # type: ignore[arg-type]
    return found


def test_retry_topics_of_groups_and_topics_that_there_are_are_made_again() -> None:
    """Of both versions, also of names with the separator in them, with all their queues; no others are."""
    queues = {
        "%RETRY%g_T": [0],
        "%RETRY%g+T": [0, 2],
        "%RETRY%my_g_my_T": [0],
        "%RETRY%g_known": [0],
        "%RETRY%g_gone": [0],
        "%RETRY%gone_T": [0],
        "%RETRY%g": [0],
        "T": [0],
    }
    topics = {"T", "my_T", "known", "%RETRY%g_known"}

    assert made(queues, topics, {"g", "my_g"}) == [
        ("%RETRY%g_T", 1),
        ("%RETRY%g+T", 3),
        ("%RETRY%my_g_my_T", 1),
    ]
