"""The table of registered SQL92 filters: versions, members that leave and come, expiry, limits, the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from brokerset_broker.filters import FilterError
from brokerset_broker.tables import consumer_filters
from brokerset_broker.tables.consumer_filters import ConsumerFilters, RetryFilter
from brokerset_formats.properties import encode_properties
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

HOUR_MS = 3_600_000


def sql(expression: str, version: int = 1, topic: str = "t") -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def filters(tmp_path: Path, clock: ManualClock) -> ConsumerFilters:
    return ConsumerFilters(BrokerSettings(store_path_root_dir=tmp_path), clock)


def expression(filters: ConsumerFilters, topic: str = "t") -> str | None:
    """What the group `g` has registered, and whether it is compiled."""
    entry = filters.get(topic, "g")
    if entry is None:
        return None
    assert entry.compiled is not None
    assert entry.compiled.expression == entry.data.expression
    return entry.data.expression


def test_while_the_group_is_there_only_a_higher_version_replaces_its_filter(filters: ConsumerFilters) -> None:
    filters.register("g", [sql("a = 5", 5)])
    filters.register("g", [sql("a = 4", 4)])
    filters.register("g", [sql("a = 6", 5)])
    assert expression(filters) == "a = 5"
    filters.register("g", [sql("a = 6", 6)])
    assert expression(filters) == "a = 6"


def test_the_same_expression_with_a_higher_version_is_the_same_filter(filters: ConsumerFilters) -> None:
    """A parked pull compares them, to know whether what it waits for has changed."""
    filters.register("g", [sql("a = 5", 5)])
    entry = filters.get("t", "g")
    filters.register("g", [sql("a = 5", 9)])

    assert entry is not None
    assert filters.get("t", "g") is entry
    assert entry.data.client_version == 9


def test_a_group_that_left_begins_again_with_what_its_next_member_wants(
    filters: ConsumerFilters, clock: ManualClock
) -> None:
    filters.register("g", [sql("a = 5", 5)])
    filters.left("g")
    entry = filters.get("t", "g")
    assert entry is not None
    assert entry.data.is_dead
    filters.register("g", [sql("a = 5", 5)])
    assert not entry.data.is_dead
    clock.advance(1)
    filters.left("g")
    filters.register("g", [sql("a = 1", 1)])
    assert expression(filters) == "a = 1"


def test_a_bad_expression_leaves_no_filter_and_is_logged(filters: ConsumerFilters) -> None:
    """Otherwise consumers would get messages by what they wanted before."""
    filters.register("g", [sql("a = 5", 5)])
    with capture_logs() as logs:
        filters.register("g", [sql("a = ", 6)])
    assert expression(filters) is None
    assert len(filters) == 0
    assert [(line["event"], line["group"], line["topic"]) for line in logs] == [
        ("filter not registered", "g", "t")
    ]


def test_topics_that_a_group_drops_are_left_and_those_by_tags_have_no_filter(
    filters: ConsumerFilters,
) -> None:
    filters.register("g", [sql("a = 1"), sql("a = 2", topic="u"), sql("a = 3", topic="v")])
    filters.register("g", [sql("a = 1"), SubscriptionData("v", "A")])
    entry = filters.get("u", "g")
    assert entry is not None
    assert entry.data.is_dead
    assert expression(filters) == "a = 1"
    assert expression(filters, "v") is None
    assert len(filters) == 2


def test_filters_expire_a_day_after_their_group_left(filters: ConsumerFilters, clock: ManualClock) -> None:
    filters.register("g", [sql("a = 1")])
    filters.register("h", [sql("a = 1")])
    filters.left("g")
    clock.advance(24 * HOUR_MS - 1)
    filters.expire(lambda _topic, _group: True)
    assert len(filters) == 2
    clock.advance(1)
    filters.expire(lambda _topic, _group: True)
    assert filters.get("t", "g") is None
    assert len(filters) == 1


def test_a_filter_without_its_topic_or_group_goes_when_nobody_is_connected(filters: ConsumerFilters) -> None:
    filters.register("g", [sql("a = 1")])
    asked: list[tuple[str, str]] = []

    def exists(topic: str, group: str) -> bool:
        asked.append((topic, group))
        return False

    filters.expire(exists)
    assert len(filters) == 1
    filters.left("g")
    filters.expire(exists)
    assert (len(filters), asked) == (0, [("t", "g")])


def test_above_the_limit_nothing_is_registered(
    filters: ConsumerFilters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_filters, "FILTERS_MAX", 1)
    filters.register("g", [sql("a = 1"), sql("a = 1", topic="u")])
    assert (len(filters), expression(filters), expression(filters, "u")) == (1, "a = 1", None)
    filters.register("g", [sql("a = 2", 2), sql("a = 1", topic="u")])
    assert expression(filters) == "a = 2"


def test_compiled_expressions_are_kept_up_to_a_limit(
    filters: ConsumerFilters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_filters, "COMPILED_MAX", 3)
    monkeypatch.setattr(consumer_filters, "COMPILED_SIZE_MAX", 100)
    first = filters.compile("a = 0")
    assert filters.compile("a = 0") is first
    for number in range(1, 10):
        filters.compile(f"a = {number}")
        assert len(filters._compiled) <= 3
    long = "a = 1" + " " * 60
    kept = filters.compile(long)
    assert filters.compile(long) is kept
    filters.compile(long + " ")
    assert len(filters._compiled) == 1
    assert filters.compile(long) is not kept
    with pytest.raises(FilterError):
        filters.compile("a = ")


def test_a_failed_evaluation_is_no_match_and_is_logged_once_a_minute(
    filters: ConsumerFilters, clock: ManualClock
) -> None:
    compiled = filters.compile("a > 3")
    with capture_logs() as logs:
        for _ in range(100):
            assert not compiled.matches(encode_properties({"a": "word"}))
        assert len(logs) == 1
        clock.advance(60_000)
        assert not compiled.matches(encode_properties({"a": "word"}))
        assert len(logs) == 2
    assert compiled.matches(encode_properties({"a": "4"}))
    assert not compiled.matches(b"")


def test_retries_are_examined_by_the_filter_of_their_topic(filters: ConsumerFilters) -> None:
    filters.register("g", [sql("a > 3")])
    retries = RetryFilter(filters, "g")

    assert retries.matches(encode_properties({"a": "4", "RETRY_TOPIC": "t"}))
    assert not retries.matches(encode_properties({"a": "3", "RETRY_TOPIC": "t"}))
    assert retries.matches(encode_properties({"a": "3", "RETRY_TOPIC": "u"}))
    assert retries.matches(encode_properties({"a": "3"}))
    assert RetryFilter(filters, "h").matches(encode_properties({"a": "3", "RETRY_TOPIC": "t"}))


def test_saved_filters_are_read_and_one_that_cannot_be_compiled_is_dropped(
    filters: ConsumerFilters, tmp_path: Path, clock: ManualClock
) -> None:
    """It is compiled when it is needed; the next heartbeat registers the group's expression again."""
    filters.register("g", [sql("a = 1", 7), sql("a = 2", 7, topic="u")])
    asyncio.run(filters.saved())
    path = tmp_path / "config" / consumer_filters.FILE_NAME
    path.write_text(path.read_text().replace("a = 2", "a = "))

    again = ConsumerFilters(BrokerSettings(store_path_root_dir=tmp_path), clock)
    again.load()

    assert len(again) == 2
    entry = again.get("t", "g")
    assert entry is not None
    assert (entry.data.is_dead, entry.data.client_version) == (True, 7)
    assert expression(again) == "a = 1"
    assert expression(again, "u") is None
    again.register("g", [sql("a = 1", 7), sql("a = 2", 7, topic="u")])
    assert expression(again, "u") == "a = 2"
    assert not entry.data.is_dead
