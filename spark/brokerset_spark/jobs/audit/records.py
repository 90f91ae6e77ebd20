"""Reading what differs, or could not be compared, again by record: the first one that differs is named.

Where the stores are at hand they are read at once. Where only their maps are, a reduce that finds a
difference says what each replica is to be asked (`Query`): first the records of a stretch, then what stands
at one offset. An `Answer` is one line of JSON of less than a megabyte, which a further reduce takes with the
maps. Nothing is asked for while all digests agree.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import orjson
import xxhash
from pydantic import PlainSerializer, PlainValidator

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.errors import FormatError
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import SysFlag, decode_record
from brokerset_spark.jobs.audit.comparison import PairBytes
from brokerset_spark.jobs.audit.digests import Interval, pack_columns, union, unpack_columns
from brokerset_spark.jobs.audit.replica import ReplicaMap
from brokerset_spark.jobs.audit.scan import free_bytes
from brokerset_spark.jobs.running import Progress, Result, Row, Runner, quiet
from brokerset_spark.json_values import CAMEL, read_versioned, to_value
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.folder import StoreFolder, read_bytes
from brokerset_spark.stores.layout import LogFile, look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Outcome, Range, Throttle, read_range

LIST_TASK: Final = "brokerset_spark.jobs.audit.records:list_records"
SHOW_TASK: Final = "brokerset_spark.jobs.audit.records:show_record"

BACK: Final = 4 << 20
"""How far before a stretch a record is looked for from which a walk leads into it."""

STRETCHES_MAX: Final = 8
"""Differing stretches of a pair that are read again."""

BYTES_MAX: Final = 1 << 30
"""Bytes of a pair that are read again because they have no common digest."""

SHOWN_BYTES_MAX: Final = 1 << 20
"""Bytes of a record that are compared to name the first byte."""

ANSWER_VERSION: Final = 1

RECORDS_MAX: Final = 100_000
"""Records that one answer lists: those of a segment of 16 MiB from 170 bytes each on."""

SHOWN_MAX: Final = 128 << 10
"""Bytes of one record in an answer; a difference behind them is told without its field."""

SHOWS_MAX: Final = 4
"""Offsets of one replica that are shown."""

REPLICAS_MAX: Final = 16
"""Replicas that are asked; more queries than that do not fit into a reduce's summary."""

LISTED: Final = np.dtype([("offset", "<i8"), ("hash", "<u8")])
"""A record in a list: where it begins, and a hash of its bytes."""

_PACKED: Final = np.dtype([("offset", "<i8"), ("hash", "<u4")])
_HASH_MASK: Final = np.uint64(0xFFFF_FFFF)
"""Half of each hash travels; in one of four thousand million cases the record that differs is passed over."""


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What stands at an offset of one replica."""

    problem: str
    """Why it is no sound record; empty if it is one."""

    size: int = 0
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    store_timestamp: int = 0
    key: str = ""
    """Its unique key."""


Shown = tuple[RecordFacts, bytes]


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two replicas begin to differ."""

    offset: int
    """Of the record; in a DLedger of its entry."""

    one: RecordFacts
    other: RecordFacts
    byte: int
    """The first byte in it that differs, -1 if it lies behind what is compared."""

    field: str
    """The field that this byte belongs to."""


@dataclass(frozen=True, slots=True)
class PairRecords:
    """What reading by record has shown of a pair."""

    one: int
    other: int
    first: FirstDifference | None
    records: int
    """How many records differ in what was read again."""

    covered: tuple[Interval, ...]
    """What was read again."""


# -- the tasks -------------------------------------------------------------------------------------------


def list_records(row: Row) -> Iterator[Result]:
    """Offset and hash of every record that begins in a stretch and ends before the bound."""
    with closing(open_folder(row["url"])) as folder:
        throttle = Throttle(int(row["rate"]))
        found: list[tuple[int, int]] = []
        for log, entries in look(folder).logs:
            for file in log.files:
                if file.end > row["start"] and file.base < min(row["end"], row["bound"]):
                    found += _listed(folder, file, entries, row, throttle)
        place = {"number": row["number"], "start": row["start"], "end": row["end"]}
        yield Result(place, np.array(found, LISTED).tobytes())


def _listed(
    folder: StoreFolder, file: LogFile, entries: bool, row: Row, throttle: Throttle
) -> Iterator[tuple[int, int]]:
    start, end, bound = int(row["start"]), int(row["end"]), int(row["bound"])
    head = ENTRY_HEAD_SIZE if entries else 0
    begin = max(file.base, start - BACK)
    wanted = Range(file.path, file.base, file.size, begin, min(file.end, bound), entries, bound)
    drop = bool(row["dropCache"])
    while wanted.start < wanted.end:
        outcome = Outcome(wanted.start, wanted.start)
        for chunk in read_range(folder, wanted, outcome, resync=True, throttle=throttle, drop_cache=drop):
            view = chunk.data.data
            low, high = np.searchsorted(chunk.starts - head + chunk.base, [start, end]).tolist()
            for at, size in zip(chunk.starts[low:high].tolist(), chunk.sizes[low:high].tolist(), strict=True):
                yield chunk.base + at - head, xxhash.xxh3_64_intdigest(view[at - head : at + size])
            if chunk.end >= end:
                break
        free = free_bytes(folder, wanted, outcome.end) if outcome.stop is Stop.BLANK else 0
        if not free:
            return
        wanted = replace(wanted, start=outcome.end + free, exact_start=True)


def show_record(row: Row) -> Iterator[Result]:
    """What stands at an offset, and its bytes: as many as a sound record has, else as are asked for."""
    with closing(open_folder(row["url"])) as folder:
        offset = int(row["offset"])
        for log, entries in reversed(look(folder).logs):
            file = log.at(offset)
            if file is not None:
                facts, raw = _shown_at(folder, file, entries, offset, int(row["bound"]))
                head = ENTRY_HEAD_SIZE if entries else 0
                count = head + facts.size if facts.size else int(row["size"])
                yield Result(asdict(facts), raw[: min(SHOWN_BYTES_MAX, count)])
                return
        yield Result(asdict(RecordFacts("the log has no such offset")))


def _shown_at(folder: StoreFolder, file: LogFile, entries: bool, offset: int, bound: int) -> Shown:
    head = ENTRY_HEAD_SIZE if entries else 0
    room = min(file.end, bound) - offset
    raw = read_bytes(folder, file.path, offset - file.base, min(SHOWN_BYTES_MAX, room))
    size = int.from_bytes(raw[head : head + 4], "big")
    if 0 < size <= room - head and size + head > len(raw):
        raw = read_bytes(folder, file.path, offset - file.base, size + head)
    problem = ""
    for verify in (True, False):
        try:
            record = decode_record(raw, head, verify_crc=verify)
        except FormatError as error:
            problem = problem or error.reason
            continue
        key = decode_properties(record.properties).get("UNIQ_KEY", "")
        place = record.topic, record.queue_id, record.queue_offset
        return RecordFacts(problem, record.size, *place, record.store_timestamp, key), raw
    return RecordFacts(problem), raw


def _list(runner: Runner, rows: Sequence[Row], progress: Progress = quiet) -> dict[int, Any]:
    """The records of each replica, by its number, sorted."""
    done, total = 0, sum(row["end"] - row["start"] for row in rows)
    progress("reading what differs by record", done, total)
    listed = defaultdict(list)
    for result in runner.run(LIST_TASK, rows):
        listed[result.row["number"]].append(np.frombuffer(result.data, LISTED))
        done += result.row["end"] - result.row["start"]
        progress("reading what differs by record", done, total)
    return {number: np.sort(np.concatenate(parts), order="offset") for number, parts in listed.items()}


def _show(runner: Runner, url: str, bound: int, offset: int, size: int) -> Shown:
    (result,) = runner.run(SHOW_TASK, [{"url": url, "bound": bound, "offset": offset, "size": size}])
    return RecordFacts(**result.row), result.data


# -- where the stores are at hand ------------------------------------------------------------------------


def wanted_stretches(pair: PairBytes) -> list[Interval]:
    """What of a pair is read again: everything without a common digest, and the first that differ."""
    found, total = list(pair.differing[:STRETCHES_MAX]), 0
    for start, end in pair.uncovered:
        end = min(end, start + BYTES_MAX - total)
        if end > start:
            found.append((start, end))
            total += end - start
    return union(found)


def read_again(
    runner: Runner,
    maps: Sequence[ReplicaMap],
    pairs: Sequence[PairBytes],
    *,
    rate: int = 0,
    drop_cache: bool = True,
    progress: Progress = quiet,
) -> list[PairRecords]:
    """Read what needs it again, from the stores the maps came from. OSError if they cannot be read."""
    wanted = {(pair.one, pair.other): wanted_stretches(pair) for pair in pairs}
    common = {"rate": rate, "dropCache": drop_cache}
    rows: list[Row] = [
        {"url": each.url, "number": number, "start": start, "end": end, "bound": each.bound, **common}
        for number, each in enumerate(maps)
        for start, end in union(every for pair, found in wanted.items() if number in pair for every in found)
    ]
    records = _list(runner, rows, progress)
    found = []
    for (one, other), stretches in wanted.items():
        if stretches:
            differing = differing_offsets(records.get(one), records.get(other), stretches)
            first = _first(runner, maps[one], maps[other], differing[0]) if differing else None
            found.append(PairRecords(one, other, first, len(differing), tuple(stretches)))
    return found


def differing_offsets(one: Any, other: Any, stretches: Sequence[Interval]) -> list[int]:
    """Offsets of records that are not the same in both, within these stretches."""
    found: list[int] = []
    both = [np.empty(0, LISTED) if each is None else each for each in (one, other)]
    for stretch in stretches:
        mine, theirs = (each[slice(*np.searchsorted(each["offset"], stretch))].view("V16") for each in both)
        found += np.unique(np.setxor1d(mine, theirs).view(LISTED)["offset"]).tolist()
    return found


def _first(runner: Runner, one: ReplicaMap, other: ReplicaMap, offset: int) -> FirstDifference:
    shown = [_show(runner, each.url, each.bound, offset, 256) for each in (one, other)]
    size = next((facts.size for facts, _ in shown if facts.size), 0)
    head = ENTRY_HEAD_SIZE if one.is_ledger else 0
    if size:  # show as much of what is no record as of the other
        shown = [
            each if each[0].size else _show(runner, replica.url, replica.bound, offset, size + head)
            for each, replica in zip(shown, (one, other), strict=True)
        ]
    return first_difference(offset, *shown, entries=one.is_ledger)


def first_difference(offset: int, one: Shown, other: Shown, *, entries: bool) -> FirstDifference:
    """Compare what two replicas show of an offset."""
    (mine, raw), (theirs, other_raw) = one, other
    byte = first_byte(raw, other_raw)
    whole = other_raw if mine.problem and not theirs.problem else raw
    return FirstDifference(offset, mine, theirs, byte, field_at(whole, byte, entries=entries))


def first_byte(one: bytes, other: bytes) -> int:
    """Number of the first byte that differs; -1 if there is none."""
    shortest = min(len(one), len(other))
    a, b = np.frombuffer(one[:shortest], np.uint8), np.frombuffer(other[:shortest], np.uint8)
    odd = np.flatnonzero(a != b)
    if len(odd):
        return int(odd[0])
    return shortest if len(one) != len(other) else -1


def field_at(raw: bytes, byte: int, *, entries: bool = False) -> str:
    """Name of the field of a record that has this byte; of an entry's head `entry`."""
    if entries and byte >= 0:
        byte, raw = byte - ENTRY_HEAD_SIZE, raw[ENTRY_HEAD_SIZE:]
        if byte < 0:
            return "entry"
    if byte < 0:
        return ""
    flags = int.from_bytes(raw[36:40], "big")
    born, store = 20 if flags & SysFlag.BORN_HOST_V6 else 8, 20 if flags & SysFlag.STORE_HOST_V6 else 8
    at = 0
    for name, size in (
        ("size", 4), ("magic", 4), ("bodyCRC", 4), ("queueId", 4), ("flag", 4), ("queueOffset", 8),
        ("physicalOffset", 8), ("sysFlag", 4), ("bornTimestamp", 8), ("bornHost", born),
        ("storeTimestamp", 8), ("storeHost", store),
        ("reconsumeTimes", 4), ("preparedTransactionOffset", 8), ("bodyLength", 4),
    ):  # fmt: skip
        at += size
        if byte < at:
            return name
    body = int.from_bytes(raw[at - 4 : at], "big")
    return "body" if byte < at + body else "topic or properties"


# -- where only the maps are -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """What one replica is asked."""

    url: str
    bound: int
    """The replica was mapped up to here."""

    lists: tuple[Interval, ...] = ()
    """Stretches whose records are listed."""

    shows: tuple[tuple[int, int], ...] = ()
    """Offsets, and how many bytes are shown where no record stands there."""


def _packed(records: Any) -> str:
    table = np.empty(len(records), _PACKED)
    table["offset"], table["hash"] = np.diff(records["offset"], prepend=0), records["hash"]
    return pack_columns(table)


def _unpacked(text: str) -> Any:
    found = unpack_columns(text, _PACKED, "list of records").astype(LISTED)
    found["offset"] = np.cumsum(found["offset"])
    return found


def _shown_values(shown: Mapping[int, Shown]) -> list[dict[str, Any]]:
    return [
        {"offset": at, "facts": asdict(facts), "bytes": base64.b85encode(raw).decode()}
        for at, (facts, raw) in sorted(shown.items())
    ]


def _shown_from(value: list[dict[str, Any]]) -> dict[int, Shown]:
    return {
        int(each["offset"]): (RecordFacts(**each["facts"]), base64.b85decode(each["bytes"])) for each in value
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one replica has answered."""

    __pydantic_config__: ClassVar = CAMEL

    url: str
    covered: tuple[Interval, ...] = ()
    """What was listed of the stretches: less than was asked for where there are very many records."""

    records: Annotated[Any, PlainValidator(_unpacked), PlainSerializer(_packed)] = field(
        default_factory=lambda: np.empty(0, LISTED)
    )
    """Offset and hash of each record in there, by offset."""

    shown: Annotated[Mapping[int, Shown], PlainValidator(_shown_from), PlainSerializer(_shown_values)] = (
        field(default_factory=dict)
    )

    def to_json(self) -> bytes:
        """One line."""
        return orjson.dumps({"lookVersion": ANSWER_VERSION, **to_value(self)})

    @classmethod
    def from_json(cls, text: bytes) -> Answer:
        """Read what `to_json` wrote; FormatError for anything else."""
        return read_versioned(cls, text, "lookVersion", ANSWER_VERSION, "answer of a replica")


def answer(runner: Runner, query: Query, *, rate: int = 0, drop_cache: bool = True) -> Answer:
    """Read what is asked for. NoInput, OSError as from the store."""
    common = {"url": query.url, "number": 0, "bound": query.bound, "rate": rate, "dropCache": drop_cache}
    stretches = union(query.lists)
    listed = _list(runner, [{**common, "start": start, "end": end} for start, end in stretches])
    records = listed.get(0, np.empty(0, LISTED))
    records["hash"] &= _HASH_MASK
    if len(records) > RECORDS_MAX:
        behind = int(records["offset"][RECORDS_MAX])
        stretches = [(start, min(end, behind)) for start, end in stretches if start < behind]
        records = records[:RECORDS_MAX]
    shown: dict[int, Shown] = {}
    for offset, size in query.shows[:SHOWS_MAX]:
        facts, raw = _show(runner, query.url, query.bound, offset, min(size, SHOWN_MAX))
        shown[offset] = facts, raw[:SHOWN_MAX]
    return Answer(url=query.url, covered=tuple(stretches), records=records, shown=shown)


def join(
    maps: Sequence[ReplicaMap], pairs: Sequence[PairBytes], answers: Iterable[Answer] = ()
) -> tuple[list[PairRecords], list[Query]]:
    """What the answers show of pairs that differ, and what is to be asked next; nothing when all is named.

    Only the first stretch of a pair that differs is read: its first record is the one to be named.
    """
    by_url: dict[str, list[Answer]] = defaultdict(list)
    for each in answers:
        by_url[each.url].append(each)
    found: list[PairRecords] = []
    lists: dict[int, list[Interval]] = defaultdict(list)
    shows: dict[int, dict[int, int]] = defaultdict(dict)
    for pair in pairs:
        if not pair.differing:
            continue
        stretch, sides = pair.differing[0], (pair.one, pair.other)
        given = [by_url[maps[number].url] for number in sides]
        listings = [listing for each in given if (listing := _listing(each, stretch)) is not None]
        if len(listings) < 2:
            for number in sides:
                lists[number].append(stretch)
            continue
        (mine, end), (theirs, other_end) = listings
        read = stretch[0], min(end, other_end)
        offsets = differing_offsets(mine, theirs, [read])
        if not offsets:
            found += [PairRecords(*sides, None, 0, (read,))] if read == stretch else []
            continue
        one, other = (_shown(each, offsets[0]) for each in given)
        if one is None or other is None:
            for number in sides:
                shows[number][offsets[0]] = _size_at(mine, theirs, offsets[0])
            continue
        first = first_difference(offsets[0], one, other, entries=maps[pair.one].is_ledger)
        found.append(PairRecords(*sides, first, len(offsets), (read,)))
    queries = [
        Query(
            maps[number].url,
            maps[number].bound,
            tuple(union(lists[number])),
            tuple(sorted(shows[number].items()))[:SHOWS_MAX],
        )
        for number in sorted({*lists, *shows})[:REPLICAS_MAX]
    ]
    return found, queries


def _listing(answers: Iterable[Answer], stretch: Interval) -> tuple[Any, int] | None:
    """The records of an answer that lists the stretch, or its beginning, and how far it does."""
    for each in answers:
        for start, end in each.covered:
            if start <= stretch[0] < end:
                return each.records, min(end, stretch[1])
    return None


def _shown(answers: Iterable[Answer], offset: int) -> Shown | None:
    return next((each.shown[offset] for each in answers if offset in each.shown), None)


def _size_at(one: Any, other: Any, offset: int) -> int:
    """Bytes up to the next record that either replica has."""
    behind = [each["offset"][each["offset"] > offset] for each in (one, other)]
    return min(max((int(each[0]) - offset for each in behind if len(each)), default=256), SHOWN_MAX)
