"""Options of the data sources of stores: read once, checked all at once.

The names are those of the Java connector and of
Spark's Kafka source where these have the same thing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

from brokerset_spark.sources import option_values as values
from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.columns import (
    DAMAGE,
    MESSAGE_COLUMNS,
    Column,
    arrow_schema,
    problems_of,
    with_text_properties,
)
from brokerset_spark.sources.option_values import Given, Option, OptionsError
from brokerset_spark.stores.places import check_store, is_stream
from brokerset_spark.stores.tail import TAIL_BOUNDS, TailBound

EARLIEST: Final = -2
LATEST: Final = -1
_SPLIT_MIN: Final = 1 << 10
_BATCH_MIN: Final = 1 << 10
_BATCH_MAX: Final = 1 << 30

Layout = Literal["auto", "commitlog", "dledger"]
OnCorrupt = Literal["fail", "skip", "stop"]
ReadBy = Literal["auto", "log"]
Replicas = Literal["one", "all", "fail"]
REPLICAS: Final[tuple[Replicas, ...]] = ("one", "all", "fail")
QueueOffsets = dict[str, dict[str, dict[int, int]]]
"""topic -> broker -> queue -> offset, as the Java connector has them; -2 earliest, -1 latest."""


def _stores(text: str) -> tuple[str, ...]:
    return tuple(check_store(each) for each in values.names(text))


def _column_names(columns: Sequence[Column]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = values.names(text)
        known = {each.name.lower() for each in columns}
        wrong = [name for name in names if name.lower() not in known]
        if wrong:
            there = ", ".join(each.name for each in columns)
            extra = (
                "; damage needs damagedRanges=rows" if "damage" in [each.lower() for each in wrong] else ""
            )
            raise ValueError(f"no column {', '.join(wrong)}; there are {there}{extra}")
        if len({name.lower() for name in names}) < len(names):
            raise ValueError("a column is named twice")
        return names

    return parse


def _offsets(text: str) -> QueueOffsets | int:
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    try:
        return _queue_offsets(json.loads(text))
    except (json.JSONDecodeError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            'must be earliest, latest, or JSON like {"topic": {"broker-a": {"0": 12, "1": -2}}}, '
            f"-2 for the earliest and -1 for the latest ({error})"
        ) from error


def _queue_offsets(value: Any) -> QueueOffsets:
    found: QueueOffsets = {}
    for topic, brokers in value.items():
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
                    raise ValueError(f"{topic}, {broker}, {queue}: {offset!r} is no offset")
                found.setdefault(topic, {}).setdefault(broker, {})[values.number(str(queue))] = offset
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What all sources of this package take."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] = ()
    broker_name: Annotated[str | None, Option("brokerName", values.text)] = None
    replicas: Annotated[Replicas, Option("replicas", values.choice(*REPLICAS))] = "one"
    """Of several replicas of one group: the one that reaches furthest, all, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(StoreOptions):
    """Options of `rocketmq-consumequeue`."""

    wanted: Filter = field(default_factory=Filter)
    split_size: Annotated[int, Option("splitSize", values.size(_SPLIT_MIN))] = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions(StoreOptions):
    """Options of `rocketmq-index`."""

    hash_slots: Annotated[int, Option("hashSlots", values.number)] = 0
    """Of each file; 0: a file has four times as many units as slots, as brokers make them if not told
    otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions(StoreOptions):
    """Options of `rocketmq-store`."""

    layout: Annotated[Layout, Option("layout", values.choice("auto", "commitlog", "dledger"))] = "auto"
    wanted: Filter = field(default_factory=Filter)
    starting_offsets: Annotated[QueueOffsets | int, Option("startingOffsets", _offsets)] = EARLIEST
    ending_offsets: Annotated[QueueOffsets | int, Option("endingOffsets", _offsets)] = LATEST
    text_properties: Annotated[bool, Option("propertiesFormat", values.second("map", "string"))] = False
    decompress: Annotated[bool, Option("decompress", values.truth)] = False
    split_size: Annotated[int, Option("splitSize", values.size(_SPLIT_MIN))] = 128 << 20
    batch_bytes: Annotated[int, Option("batchBytes", values.size(_BATCH_MIN, _BATCH_MAX))] = 4 << 20
    verify_crc: Annotated[bool, Option("verifyCrc", values.truth)] = False
    on_corrupt: Annotated[OnCorrupt, Option("onCorrupt", values.choice("fail", "skip", "stop"))] = "fail"
    damage_rows: Annotated[bool, Option("damagedRanges", values.second("drop", "rows"))] = False
    fail_on_data_loss: Annotated[bool, Option("failOnDataLoss", values.truth)] = True
    tail_bound: Annotated[TailBound, Option("tailBound", values.choice(*TAIL_BOUNDS))] = "auto"
    confirmed_offset: Annotated[int | None, Option("confirmedOffset", values.number)] = None
    bytes_per_trigger: Annotated[int, Option("maxBytesPerTrigger", values.size(1))] = 0
    bytes_per_second: Annotated[int, Option("maxBytesPerSecond", values.size(1))] = 0
    drop_cache: Annotated[bool, Option("dropCache", values.truth)] = True
    read_by: Annotated[ReadBy, Option("readBy", values.choice("auto", "log"))] = "auto"
    """Whether messages of topics that are named may be found by the units of their queues."""

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """Columns that there are with these options."""
        columns = with_text_properties(MESSAGE_COLUMNS) if self.text_properties else MESSAGE_COLUMNS
        return (*columns, DAMAGE) if self.damage_rows else tuple(columns)


_TOPICS: Final[Mapping[str, Option]] = {
    "topics": Option("topic", values.names),
    "topic_pattern": Option("topicPattern", values.pattern),
    "queue_ids": Option("queueId", values.numbers),
    "system_topics": Option("includeSystemTopics", values.truth),
}
_RANGES: Final[Mapping[str, Option]] = {
    "start_offset": Option("startingCommitLogOffset", values.number),
    "end_offset": Option("endingCommitLogOffset", values.number),
    "start_ms": Option("startingTimestamp", values.time_ms),
    "end_ms": Option("endingTimestamp", values.time_ms),
}
"""Options that make a `Filter`, by its fields."""


def _take_fields(given: Given, kind: type[StoreOptions], columns: Sequence[Column]) -> dict[str, Any]:
    """What options say of the fields that are options, and of paths and columns."""
    if not given.has("path"):
        given.problems.append("path: missing; give the store's folder, as in .load('/data/rocketmq/store')")
    paths = given.take(Option("path", _stores), ())
    named = given.take(Option("columns", _column_names(columns)), ())
    return {"paths": paths, "columns": named, **given.take_fields(kind)}


def _take_filter(given: Given, *options: Mapping[str, Option]) -> Filter:
    taken = {field: given.take(option) for each in options for field, option in each.items()}
    found = Filter(**{field: value for field, value in taken.items() if value is not None})
    if found.topics and found.topic_pattern:
        given.problems.append("topic and topicPattern: give one of them")
    return found


Kind = TypeVar("Kind", bound=StoreOptions)


def read_options(
    kind: type[Kind], source: str, options: Mapping[str, str], columns: Sequence[Column]
) -> Kind:
    """Options of the sources for what is not messages; OptionsError with all problems."""
    given = Given(options)
    found = _take_fields(given, kind, columns)
    if issubclass(kind, QueueOptions):
        found["wanted"] = _take_filter(given, _TOPICS)
    given.finish(source)
    return kind(**found)


def read_message_options(source: str, options: Mapping[str, str]) -> MessageOptions:
    """Options of `rocketmq-store`; OptionsError with all problems."""
    given = Given(options)
    said = {name.lower(): str(value).strip().lower() for name, value in options.items()}
    rows = said.get("damagedranges") == "rows"
    columns = (*MESSAGE_COLUMNS, DAMAGE) if rows else MESSAGE_COLUMNS
    fields_read = _take_fields(given, MessageOptions, columns)
    if rows and fields_read["on_corrupt"] == "fail" != said.get("oncorrupt"):
        fields_read["on_corrupt"] = "skip"
    found = MessageOptions(**fields_read, wanted=_take_filter(given, _TOPICS, _RANGES))
    confirmed = found.confirmed_offset is not None
    for wrong, problem in (
        (rows and found.on_corrupt == "fail", "damagedRanges=rows needs onCorrupt=skip or stop"),
        (
            found.wanted.start_offset > found.wanted.end_offset,
            "startingCommitLogOffset lies behind endingCommitLogOffset",
        ),
        (found.wanted.start_ms > found.wanted.end_ms, "startingTimestamp lies behind endingTimestamp"),
        (
            found.tail_bound == "confirm" and not confirmed and not all(map(is_stream, found.paths)),
            "tailBound=confirm needs confirmedOffset, the broker's confirmed offset",
        ),
        (
            confirmed and len(found.paths) > 1,
            "confirmedOffset belongs to one store; load the stores one by one and unite them",
        ),
        (found.ending_offsets == EARLIEST, "endingOffsets=earliest would read nothing"),
    ):
        given.problems += [problem] if wrong else []
    given.finish(source)
    return found


def checked_schema(source: str, schema: StructType, columns: Sequence[Column]) -> pa.Schema:
    """The schema for batches; OptionsError if a user's asks for what there is not."""
    problems = problems_of(schema, columns)
    if problems:
        raise OptionsError(f"{source}, schema", problems)
    return arrow_schema(schema)
