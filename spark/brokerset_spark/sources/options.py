"""Options of the data sources: read once, checked all at once.

Spark hands options over as text and without regard to case. The names are those of the Java connector and of
Spark's Kafka source where these have the same thing.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar, cast

from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.columns import (
    DAMAGE,
    MESSAGE_COLUMNS,
    Column,
    with_text_properties,
)
from brokerset_spark.stores.places import check_store, is_stream
from brokerset_spark.stores.tail import TAIL_BOUNDS, TailBound

T = TypeVar("T")
S = TypeVar("S")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What all sources of this package take."""

    paths: tuple[str, ...]
    broker_name: str | None = None
    columns: tuple[str, ...] = ()
    replicas: Replicas = "one"
    """Of several replicas of one group: the one that reaches furthest, all, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(StoreOptions):
    """Options of `rocketmq-consumequeue`."""

    wanted: Filter = field(default_factory=Filter)
    split_size: int = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions(StoreOptions):
    """Options of `rocketmq-index`."""

    hash_slots: int = 0
    """Of each file; 0: a file has four times as many units as slots, as brokers make them if not told
    otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions(StoreOptions):
    """Options of `rocketmq-store`."""

    layout: Layout = "auto"
    wanted: Filter = field(default_factory=Filter)
    starting_offsets: QueueOffsets | int = EARLIEST
    ending_offsets: QueueOffsets | int = LATEST
    text_properties: bool = False
    decompress: bool = False
    split_size: int = 128 << 20
    batch_bytes: int = 4 << 20
    verify_crc: bool = False
    on_corrupt: OnCorrupt = "fail"
    damage_rows: bool = False
    fail_on_data_loss: bool = True
    tail_bound: TailBound = "auto"
    confirmed_offset: int | None = None
    bytes_per_trigger: int = 0
    bytes_per_second: int = 0
    drop_cache: bool = True

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """Columns that there are with these options."""
        columns = with_text_properties(MESSAGE_COLUMNS) if self.text_properties else MESSAGE_COLUMNS
        return (*columns, DAMAGE) if self.damage_rows else tuple(columns)


class _Reading:
    """Takes options out of a mapping and collects what is wrong with them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left = {name.lower(): str(value) for name, value in options.items()}
        self._known: list[str] = []
        self.problems: list[str] = []

    def given(self, name: str) -> bool:
        return name.lower() in self._left

    def take(self, name: str, default: T, parse: Callable[[str], S]) -> T | S:
        self._known.append(name)
        raw = self._left.pop(name.lower(), None)
        if raw is None:
            return default
        try:
            return parse(raw.strip())
        except ValueError as error:
            self.problems.append(f"{name}={raw[:100]}: {error}")
            return default

    def finish(self, source: str) -> None:
        for name in self._left:
            close = difflib.get_close_matches(name, [each.lower() for each in self._known], 1)
            spelled = next((each for each in self._known if close and each.lower() == close[0]), None)
            hint = f"did you mean {spelled}?" if spelled else f"there are {', '.join(self._known)}"
            self.problems.append(f"{name}: no such option; {hint}")
        if self.problems:
            raise OptionsError(source, self.problems)


def read_store_options(source: str, options: Mapping[str, str], columns: Sequence[Column]) -> StoreOptions:
    """Options that all sources take; OptionsError with all problems."""
    reading = _Reading(options)
    found = _store_options(reading, columns)
    reading.finish(source)
    return StoreOptions(**found)


def read_queue_options(source: str, options: Mapping[str, str], columns: Sequence[Column]) -> QueueOptions:
    """Options of `rocketmq-consumequeue`; OptionsError with all problems."""
    reading = _Reading(options)
    found = QueueOptions(
        **_store_options(reading, columns),
        wanted=_topics(reading),
        split_size=reading.take("splitSize", 32 << 20, _size(_SPLIT_MIN)),
    )
    reading.finish(source)
    return found


def read_index_options(source: str, options: Mapping[str, str], columns: Sequence[Column]) -> IndexOptions:
    """Options of `rocketmq-index`; OptionsError with all problems."""
    reading = _Reading(options)
    found = IndexOptions(**_store_options(reading, columns), hash_slots=reading.take("hashSlots", 0, _number))
    reading.finish(source)
    return found


def _store_options(reading: _Reading, columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "paths": _paths(reading),
        "broker_name": reading.take("brokerName", None, _name),
        "columns": reading.take("columns", (), _column_names(columns)),
        "replicas": cast("Replicas", reading.take("replicas", "one", _choice(*REPLICAS))),
    }


def _topics(reading: _Reading) -> Filter:
    found = Filter(
        topics=reading.take("topic", (), _names),
        topic_pattern=reading.take("topicPattern", "", _pattern),
        queue_ids=reading.take("queueId", (), _numbers),
        system_topics=reading.take("includeSystemTopics", False, _truth),
    )
    if found.topics and found.topic_pattern:
        reading.problems.append("topic and topicPattern: give one of them")
    return found


def read_message_options(source: str, options: Mapping[str, str]) -> MessageOptions:
    """Options of `rocketmq-store`; OptionsError with all problems."""
    reading = _Reading(options)
    rows = reading.take("damagedRanges", "drop", _choice("drop", "rows")) == "rows"
    on_corrupt = reading.take("onCorrupt", "skip" if rows else "fail", _choice("fail", "skip", "stop"))
    if rows and on_corrupt == "fail":
        reading.problems.append("damagedRanges=rows needs onCorrupt=skip or stop")
    wanted = replace(
        _topics(reading),
        start_offset=reading.take("startingCommitLogOffset", 0, _number),
        end_offset=reading.take("endingCommitLogOffset", _INT64_MAX, _number),
        start_ms=reading.take("startingTimestamp", -(2**63), _time),
        end_ms=reading.take("endingTimestamp", _INT64_MAX, _time),
    )
    if wanted.start_offset > wanted.end_offset:
        reading.problems.append("startingCommitLogOffset lies behind endingCommitLogOffset")
    if wanted.start_ms > wanted.end_ms:
        reading.problems.append("startingTimestamp lies behind endingTimestamp")
    text_properties = reading.take("propertiesFormat", "map", _choice("map", "string")) == "string"
    found = MessageOptions(
        **_store_options(reading, (*MESSAGE_COLUMNS, DAMAGE) if rows else MESSAGE_COLUMNS),
        layout=cast("Layout", reading.take("layout", "auto", _choice("auto", "commitlog", "dledger"))),
        wanted=wanted,
        starting_offsets=reading.take("startingOffsets", EARLIEST, _offsets),
        ending_offsets=reading.take("endingOffsets", LATEST, _offsets),
        text_properties=text_properties,
        decompress=reading.take("decompress", False, _truth),
        split_size=reading.take("splitSize", 128 << 20, _size(_SPLIT_MIN)),
        batch_bytes=reading.take("batchBytes", 4 << 20, _size(_BATCH_MIN, _BATCH_MAX)),
        verify_crc=reading.take("verifyCrc", False, _truth),
        on_corrupt=cast("OnCorrupt", on_corrupt),
        damage_rows=rows,
        fail_on_data_loss=reading.take("failOnDataLoss", True, _truth),
        tail_bound=cast("TailBound", reading.take("tailBound", "auto", _choice(*TAIL_BOUNDS))),
        confirmed_offset=reading.take("confirmedOffset", None, _number),
        bytes_per_trigger=reading.take("maxBytesPerTrigger", 0, _size(1)),
        bytes_per_second=reading.take("maxBytesPerSecond", 0, _size(1)),
        drop_cache=reading.take("dropCache", True, _truth),
    )
    told = found.confirmed_offset is not None or all(is_stream(each) for each in found.paths)
    if found.tail_bound == "confirm" and not told:
        reading.problems.append("tailBound=confirm needs confirmedOffset, the broker's confirmed offset")
    if found.confirmed_offset is not None and len(found.paths) > 1:
        reading.problems.append(
            "confirmedOffset belongs to one store; load the stores one by one and unite them"
        )
    if found.ending_offsets == EARLIEST:
        reading.problems.append("endingOffsets=earliest would read nothing")
    reading.finish(source)
    return found


def _paths(reading: _Reading) -> tuple[str, ...]:
    if not reading.given("path"):
        reading.problems.append("path: missing; give the store's folder, as in .load('/data/rocketmq/store')")
    return reading.take("path", (), _stores)


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
