"""Options of the data sources."""

from __future__ import annotations

import pytest

from brokerset_spark.sources.columns import EPOCH_COLUMNS, MESSAGE_COLUMNS, problems_of, schema_of
from brokerset_spark.sources.option_values import OptionsError, time_ms
from brokerset_spark.sources.options import (
    IndexOptions,
    MessageOptions,
    StoreOptions,
    read_message_options,
    read_options,
)


def read(**options: str) -> MessageOptions:
    return read_message_options("rocketmq-store", {"path": "/store", **options})


def problems(**options: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as caught:
        read(**options)
    return caught.value.problems


def test_defaults_and_names() -> None:
    """Options are taken without regard to case, and what is not given has its default."""
    found = read(TOPIC="a, b", splitsize="2m", maxBytesPerSecond="10MB")

    assert found.wanted.topics == ("a", "b")
    assert (found.split_size, found.bytes_per_second) == (2 << 20, 10 << 20)
    assert (found.on_corrupt, found.tail_bound, found.drop_cache) == ("fail", "auto", True)
    assert not found.wanted.system_topics


def test_all_problems_at_once() -> None:
    """Every wrong option is named with what it should be, and misspelled ones with what was meant."""
    found = problems(
        splitSize="12q",
        onCorrupt="x",
        topik="a",
        queueId="-1",
        startingTimestamp="soon",
        columns="topic,nobody",
        startingOffsets='{"t": {"b": {"0": -3}}}',
        verifyCrc="yes",
        topicPattern="(",
    )

    for part in (
        "splitSize=12q: must be a number of bytes",
        "onCorrupt=x: must be one of fail, skip, stop",
        "topik: no such option; did you mean topic?",
        "queueId=-1: must be a whole number from 0",
        "startingTimestamp=soon",
        "no column nobody",
        "startingOffsets",
        "verifyCrc=yes: must be true or false",
        "topicPattern=(: not a regular expression",
    ):
        assert sum(part in each for each in found) == 1, (part, found)
    assert len(found) == 9


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": "a", "topicPattern": "b"}, "topic and topicPattern"),
        ({"startingCommitLogOffset": "5", "endingCommitLogOffset": "4"}, "lies behind endingCommitLogOffset"),
        ({"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"}, "lies behind endingTimestamp"),
        ({"tailBound": "confirm"}, "needs confirmedOffset"),
        ({"tailBound": "confirm", "path": "http://a:1/store,/b"}, "needs confirmedOffset"),
        ({"damagedRanges": "rows", "onCorrupt": "fail"}, "needs onCorrupt=skip or stop"),
        ({"columns": "damage"}, "damage needs damagedRanges=rows"),
        ({"columns": "topic,TOPIC"}, "named twice"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"path": "/a,/b", "confirmedOffset": "1"}, "belongs to one store"),
        ({"batchBytes": "2g"}, "must be from 1024 to"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, str], told: str) -> None:
    """What cannot be together is told."""
    assert any(told in each for each in problems(**options))


def test_a_stream_tells_what_is_confirmed() -> None:
    """`tailBound=confirm` needs no offset when brokers give the stores out."""
    found = read(path="http://a:1/store,https://b:1/store", tailBound="confirm")

    assert (found.tail_bound, found.confirmed_offset) == ("confirm", None)


def test_missing_path() -> None:
    """Without a path the error says how to give one."""
    with pytest.raises(OptionsError, match=r"path: missing; .*\.load\("):
        read_options(StoreOptions, "rocketmq-epochs", {}, EPOCH_COLUMNS)


def test_offsets_times_and_sizes() -> None:
    """Offsets are those of the Java connector; times are milliseconds or dates."""
    found = read(
        startingOffsets='{"t": {"broker-a": {"0": 12, "1": -2, "2": -1}}}',
        startingTimestamp="1795000000000",
        endingTimestamp="2026-11-22T10:00:00+02:00",
    )

    assert found.starting_offsets == {"t": {"broker-a": {0: 12, 1: -2, 2: -1}}}
    assert (found.wanted.start_ms, found.wanted.end_ms) == (1795000000000, 1795334400000)
    assert read(endingOffsets="Latest").ending_offsets == -1
    given = {"path": "/s", "hashSlots": "10"}
    assert read_options(IndexOptions, "rocketmq-index", given, MESSAGE_COLUMNS).hash_slots == 10


def test_rows_of_damage_pass_it_over() -> None:
    """Asking for damage as rows passes it over, and adds the column."""
    found = read(damagedRanges="rows")

    assert found.on_corrupt == "skip"
    assert [each.name for each in found.all_columns][-1] == "damage"
    assert read(damagedRanges="rows", onCorrupt="stop").on_corrupt == "stop"


def test_schemas_of_users() -> None:
    """A schema may have any columns in any order, with their types."""
    schema = schema_of(MESSAGE_COLUMNS, ["queueId", "Body"])

    assert schema.fieldNames() == ["queueId", "body"]
    assert problems_of(schema, MESSAGE_COLUMNS) == []
    wrong = problems_of(schema_of(EPOCH_COLUMNS, ["epoch", "store"]), MESSAGE_COLUMNS)
    assert len(wrong) == 1
    assert wrong[0].startswith("there is no column store")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2038-08-22T16:08:43.437Z", 2166106123437),
        ("2038-08-22T18:08:43.437+02:00", 2166106123437),
        ("1970-01-02", 86_400_000),
        ("-5", -5),
    ],
)
def test_times_are_exact(text: str, milliseconds: int) -> None:
    """To the millisecond: an end that is one less would leave messages out."""
    assert time_ms(text) == milliseconds
