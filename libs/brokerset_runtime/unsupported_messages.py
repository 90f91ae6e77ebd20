"""What a store has that brokers of ours do not deliver, by its queues and by what was consumed of them.

Sources: RocketMQ's `PopAckConstants` and `KeyBuilder` (names), `ConsumeQueue` (sizes).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from brokerset_formats import fastjson, names
from brokerset_formats.errors import FormatError

POP_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
POP_MARKS: Final = "_+"
"""Between group and topic in the name of a topic with POP's retries: until 5.2, and since."""

UNIT_BYTES: Final = 20


def unsupported_in(store: Path) -> tuple[str, ...]:
    """By the queues that have something, as far as nothing says that it was delivered. Raises `OSError`."""
    topics = _topics(store)
    offsets = _table(store, "consumerOffset.json", "offsetTable")
    found = []
    revive = [each for each in topics if each.startswith(names.REVIVE_PREFIX)]
    if taken := sum(_waiting(store, each, POP_GROUP, offsets) for each in revive):
        found.append(
            f"{taken} check points of messages that POP consumers took, and may not have acknowledged"
        )
    groups = _table(store, "subscriptionGroup.json", "subscriptionGroupTable")
    for topic in sorted(topics):
        group = _group_of_pop(topic, topics, groups)
        if group is not None and (retries := _waiting(store, topic, group, offsets)):
            found.append(f"{retries} POP retries ({topic})")
    return tuple(found)


def _topics(store: Path) -> set[str]:
    """Topics that have queues."""
    folder = store / "consumequeue"
    return {each.name for each in folder.iterdir()} if folder.is_dir() else set()


def _group_of_pop(name: str, topics: Collection[str], groups: Collection[str]) -> str | None:
    """The group of a topic with POP's retries; None for others.

    Groups and topics may have the mark in their names, so both must be known.
    """
    if not name.startswith(names.RETRY_PREFIX):
        return None
    rest = name.removeprefix(names.RETRY_PREFIX)
    for at, character in enumerate(rest):
        if character in POP_MARKS and rest[:at] in groups and rest[at + 1 :] in topics:
            return rest[:at]
    return None


def _waiting(store: Path, topic: str, group: str, offsets: Mapping[str, Any]) -> int:
    """Messages of a topic that a group has not consumed."""
    queues = store / "consumequeue" / topic
    numbers = [each.name for each in queues.iterdir() if each.name.isdigit()] if queues.is_dir() else []
    consumed = offsets.get(f"{topic}@{group}")
    return sum(max(0, _queue_end(store, topic, each) - _offset(consumed, each)) for each in numbers)


def _offset(consumed: object, queue: str) -> int:
    found = consumed.get(queue) if isinstance(consumed, dict) else None
    return found if isinstance(found, int) else 0


def _queue_end(store: Path, topic: str, queue: str) -> int:
    """Messages that a queue ever had, by its last file that has a unit; zeros follow the last one."""
    folder = store / "consumequeue" / topic / queue
    files = sorted(each for each in folder.iterdir() if each.name.isdigit()) if folder.is_dir() else []
    for file in reversed(files):
        with file.open("rb") as stream:
            descriptor = stream.fileno()
            units = os.fstat(descriptor).st_size // UNIT_BYTES
            used = bisect_left(
                range(units), True, key=lambda n: not any(os.pread(descriptor, UNIT_BYTES, n * UNIT_BYTES))
            )
        if used:
            return int(file.name) // UNIT_BYTES + used
    return int(files[0].name) // UNIT_BYTES if files else 0


def _table(store: Path, file: str, key: str) -> Mapping[str, Any]:
    """A table of a settings file; empty when there is none."""
    try:
        found: object = fastjson.loads((store / "config" / file).read_bytes())[key]
    except (FileNotFoundError, FormatError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
