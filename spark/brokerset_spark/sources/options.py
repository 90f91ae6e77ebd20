"""Options of the data sources: read once, checked all at once.

Spark hands options over as text and without regard to case. The names are those of the Java connector and of
Spark's Kafka source where these have the same thing.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_type_hints

import pyarrow as pa
from pyspark.sql.types import StructType

from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.columns import (
    DAMAGE,
    MESSAGE_COLUMNS,
    Column,
    arrow_schema,
    problems_of,
    with_text_properties,
)
from brokerset_spark.stores.places import check_store, is_stream
from brokerset_spark.stores.tail import TAIL_BOUNDS, TailBound

EARLIEST: Final = -2
LATEST: Final = -1
_SIZE: Final = re.compile(r"(\d{1,12})\s*([kmgt]?)b?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SPLIT_MIN: Final = 1 << 10
_BATCH_MIN: Final = 1 << 10
_BATCH_MAX: Final = 1 << 30
_INT64_MAX: Final = 2**63 - 1

Layout = Literal["auto", "commitlog", "dledger"]
OnCorrupt = Literal["fail", "skip", "stop"]
Replicas = Literal["one", "all", "fail"]
REPLICAS: Final[tuple[Replicas, ...]] = ("one", "all", "fail")
QueueOffsets = dict[str, dict[str, dict[int, int]]]
"""topic -> broker -> queue -> offset, as the Java connector has them; -2 earliest, -1 latest."""


class OptionsError(ValueError):
    """Options that cannot be: `problems` has a sentence for each."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"options of {source}:{lines}")
        self.problems = tuple(problems)


def _stores(text: str) -> tuple[str, ...]:
    return tuple(check_store(each) for each in _names(text))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("must name at least one, several divided by commas")
    return names


def _name(text: str) -> str | None:
    if not text:
        raise ValueError("must not be empty")
    return text


def _column_names(columns: Sequence[Column]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = _names(text)
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


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _INT64_MAX):
        raise ValueError("must be a whole number from 0")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part) for part in _names(text))


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text.lower()

    return parse


def _second(first: str, second: str) -> Callable[[str], bool]:
    """Whether the second of two is asked for."""
    return lambda text: _choice(first, second)(text) == second


def _size(minimum: int, maximum: int = 1 << 50) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError("must be a number of bytes, as 4194304, 4m or 1g")
        value = int(match[1]) * _FACTORS[match[2].lower()]
        if not minimum <= value <= maximum:
            raise ValueError(f"must be from {minimum} to {maximum} bytes")
        return value

    return parse


def _time(text: str) -> int:
    if text.removeprefix("-").isdigit():
        if len(text) > 18:
            raise ValueError("must be milliseconds since 1970")
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("must be milliseconds since 1970, or like 2026-11-22T10:00:00Z") from error
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


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
                found.setdefault(topic, {}).setdefault(broker, {})[_number(str(queue))] = offset
    return found


class Option(NamedTuple):
    """What fills a field of options."""

    name: str
    parse: Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What all sources of this package take."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] = ()
    broker_name: Annotated[str | None, Option("brokerName", _name)] = None
    replicas: Annotated[Replicas, Option("replicas", _choice(*REPLICAS))] = "one"
    """Of several replicas of one group: the one that reaches furthest, all, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(StoreOptions):
    """Options of `rocketmq-consumequeue`."""

    wanted: Filter = field(default_factory=Filter)
    split_size: Annotated[int, Option("splitSize", _size(_SPLIT_MIN))] = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions(StoreOptions):
    """Options of `rocketmq-index`."""

    hash_slots: Annotated[int, Option("hashSlots", _number)] = 0
    """Of each file; 0: a file has four times as many units as slots, as brokers make them if not told
    otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions(StoreOptions):
    """Options of `rocketmq-store`."""

    layout: Annotated[Layout, Option("layout", _choice("auto", "commitlog", "dledger"))] = "auto"
    wanted: Filter = field(default_factory=Filter)
    starting_offsets: Annotated[QueueOffsets | int, Option("startingOffsets", _offsets)] = EARLIEST
    ending_offsets: Annotated[QueueOffsets | int, Option("endingOffsets", _offsets)] = LATEST
    text_properties: Annotated[bool, Option("propertiesFormat", _second("map", "string"))] = False
    decompress: Annotated[bool, Option("decompress", _truth)] = False
    split_size: Annotated[int, Option("splitSize", _size(_SPLIT_MIN))] = 128 << 20
    batch_bytes: Annotated[int, Option("batchBytes", _size(_BATCH_MIN, _BATCH_MAX))] = 4 << 20
    verify_crc: Annotated[bool, Option("verifyCrc", _truth)] = False
    on_corrupt: Annotated[OnCorrupt, Option("onCorrupt", _choice("fail", "skip", "stop"))] = "fail"
    damage_rows: Annotated[bool, Option("damagedRanges", _second("drop", "rows"))] = False
    fail_on_data_loss: Annotated[bool, Option("failOnDataLoss", _truth)] = True
    tail_bound: Annotated[TailBound, Option("tailBound", _choice(*TAIL_BOUNDS))] = "auto"
    confirmed_offset: Annotated[int | None, Option("confirmedOffset", _number)] = None
    bytes_per_trigger: Annotated[int, Option("maxBytesPerTrigger", _size(1))] = 0
    bytes_per_second: Annotated[int, Option("maxBytesPerSecond", _size(1))] = 0
    drop_cache: Annotated[bool, Option("dropCache", _truth)] = True

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """Columns that there are with these options."""
        columns = with_text_properties(MESSAGE_COLUMNS) if self.text_properties else MESSAGE_COLUMNS
        return (*columns, DAMAGE) if self.damage_rows else tuple(columns)


_TOPICS: Final[Mapping[str, Option]] = {
    "topics": Option("topic", _names),
    "topic_pattern": Option("topicPattern", _pattern),
    "queue_ids": Option("queueId", _numbers),
    "system_topics": Option("includeSystemTopics", _truth),
}
_RANGES: Final[Mapping[str, Option]] = {
    "start_offset": Option("startingCommitLogOffset", _number),
    "end_offset": Option("endingCommitLogOffset", _number),
    "start_ms": Option("startingTimestamp", _time),
    "end_ms": Option("endingTimestamp", _time),
}
"""Options that make a `Filter`, by its fields."""


class _Reading:
    """Takes options out of a mapping and collects what is wrong with them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left = {name.lower(): str(value) for name, value in options.items()}
        self._known: list[str] = []
        self.problems: list[str] = []

    def take(self, name: str, default: Any, parse: Callable[[str], Any]) -> Any:
        self._known.append(name)
        raw = self._left.pop(name.lower(), None)
        if raw is None:
            return default
        try:
            return parse(raw.strip())
        except ValueError as error:
            self.problems.append(f"{name}={raw[:100]}: {error}")
            return default

    def take_fields(self, kind: type[StoreOptions], columns: Sequence[Column]) -> dict[str, Any]:
        """What options say of the fields that are options, and of paths and columns."""
        if "path" not in self._left:
            said = "path: missing; give the store's folder, as in .load('/data/rocketmq/store')"
            self.problems.append(said)
        found = {
            "paths": self.take("path", (), _stores),
            "columns": self.take("columns", (), _column_names(columns)),
        }
        hints = get_type_hints(kind, include_extras=True)
        for each in fields(kind):
            for name, parse in getattr(hints[each.name], "__metadata__", ()):
                found[each.name] = self.take(name, each.default, parse)
        return found

    def take_filter(self, *options: Mapping[str, Option]) -> Filter:
        given = {
            field: self.take(name, None, parse) for each in options for field, (name, parse) in each.items()
        }
        found = Filter(**{field: value for field, value in given.items() if value is not None})
        if found.topics and found.topic_pattern:
            self.problems.append("topic and topicPattern: give one of them")
        return found

    def finish(self, source: str) -> None:
        for name in self._left:
            close = difflib.get_close_matches(name, [each.lower() for each in self._known], 1)
            spelled = next((each for each in self._known if close and each.lower() == close[0]), None)
            hint = f"did you mean {spelled}?" if spelled else f"there are {', '.join(self._known)}"
            self.problems.append(f"{name}: no such option; {hint}")
        if self.problems:
            raise OptionsError(source, self.problems)


Kind = TypeVar("Kind", bound=StoreOptions)


def read_options(
    kind: type[Kind], source: str, options: Mapping[str, str], columns: Sequence[Column]
) -> Kind:
    """Options of the sources for what is not messages; OptionsError with all problems."""
    reading = _Reading(options)
    found = reading.take_fields(kind, columns)
    if issubclass(kind, QueueOptions):
        found["wanted"] = reading.take_filter(_TOPICS)
    reading.finish(source)
    return kind(**found)


def read_message_options(source: str, options: Mapping[str, str]) -> MessageOptions:
    """Options of `rocketmq-store`; OptionsError with all problems."""
    reading = _Reading(options)
    given = {name.lower(): str(value).strip().lower() for name, value in options.items()}
    rows = given.get("damagedranges") == "rows"
    fields_read = reading.take_fields(MessageOptions, (*MESSAGE_COLUMNS, DAMAGE) if rows else MESSAGE_COLUMNS)
    if rows and fields_read["on_corrupt"] == "fail" != given.get("oncorrupt"):
        fields_read["on_corrupt"] = "skip"
    found = MessageOptions(**fields_read, wanted=reading.take_filter(_TOPICS, _RANGES))
    confirmed = found.confirmed_offset is not None
    for wrong, said in (
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
        reading.problems += [said] if wrong else []
    reading.finish(source)
    return found


def checked_schema(source: str, schema: StructType, columns: Sequence[Column]) -> pa.Schema:
    """The schema for batches; OptionsError if a user's asks for what there is not."""
    problems = problems_of(schema, columns)
    if problems:
        raise OptionsError(f"{source}, schema", problems)
    return arrow_schema(schema)
