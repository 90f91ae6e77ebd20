"""Reading what differs, or could not be compared, again by record: the first one that differs is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import xxhash

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.errors import FormatError
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import Record, SysFlag, decode_record
from brokerset_spark.jobs.audit.byte_checks import PairBytes
from brokerset_spark.jobs.audit.intervals import Interval, union
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.audit.scanning import free_bytes
from brokerset_spark.jobs.running import Progress, Result, Row, Runner, quiet
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import Log, look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Outcome, Range, Throttle, read_range

LIST_TASK: Final = "brokerset_spark.jobs.audit.drilling:list_records"
SHOW_TASK: Final = "brokerset_spark.jobs.audit.drilling:show_record"

BACK: Final = 4 << 20
"""How far before a stretch a record is looked for from which a walk leads into it."""

STRETCHES_MAX: Final = 8
"""Differing stretches of a pair that are read again."""

BYTES_MAX: Final = 1 << 30
"""Bytes of a pair that are read again because they have no common digest."""

SHOWN_BYTES_MAX: Final = 1 << 20
"""Bytes of a record that are compared to name the first byte."""

LISTED: Final = np.dtype([("offset", "<i8"), ("hash", "<u8")])
"""A record in a list: where it begins, and a hash of its bytes."""


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
class DrilledPair:
    """What reading by record has shown of a pair."""

    one: int
    other: int
    first: FirstDifference | None
    records: int
    """How many records differ in what was read again."""

    covered: tuple[Interval, ...]
    """What was read again."""


def wanted_stretches(pair: PairBytes) -> list[Interval]:
    """What of a pair is read again: everything without a common digest, and the first that differ."""
    found, total = list(pair.differing[:STRETCHES_MAX]), 0
    for start, end in pair.uncovered:
        end = min(end, start + BYTES_MAX - total)
        if end > start:
            found.append((start, end))
            total += end - start
    return union(found)


def drill(
    runner: Runner,
    maps: Sequence[ReplicaMap],
    pairs: Sequence[PairBytes],
    *,
    rate: int = 0,
    drop_cache: bool = True,
    progress: Progress = quiet,
) -> list[DrilledPair]:
    """Read what needs it again, from the stores the maps came from. OSError if they cannot be read."""
    wanted = {(pair.one, pair.other): wanted_stretches(pair) for pair in pairs}
    per_replica: dict[int, list[Interval]] = {}
    for (one, other), stretches in wanted.items():
        for number in (one, other):
            per_replica.setdefault(number, []).extend(stretches)
    rows: list[Row] = [
        {"url": maps[number].url, "number": number, "start": start, "end": end, "bound": maps[number].bound,
         "rate": rate, "dropCache": drop_cache}
        for number, stretches in sorted(per_replica.items())
        for start, end in union(stretches)
    ]  # fmt: skip
    total = sum(row["end"] - row["start"] for row in rows)
    progress("reading what differs by record", 0, total)
    listed: dict[int, list[Any]] = {}
    done = 0
    for result in runner.run(LIST_TASK, rows):
        listed.setdefault(result.row["number"], []).append(np.frombuffer(result.data, LISTED))
        done += result.row["end"] - result.row["start"]
        progress("reading what differs by record", done, total)
    records = {number: np.sort(np.concatenate(parts), order="offset") for number, parts in listed.items()}
    found = []
    for (one, other), stretches in wanted.items():
        if not stretches:
            continue
        differing = differing_offsets(records.get(one), records.get(other), stretches)
        first = _first(runner, maps, one, other, differing[0]) if differing else None
        found.append(DrilledPair(one, other, first, len(differing), tuple(stretches)))
    return found


def differing_offsets(one: Any, other: Any, stretches: Sequence[Interval]) -> list[int]:
    """Offsets of records that are not the same in both, within these stretches."""
    empty = np.empty(0, LISTED)
    parts = []
    for start, end in stretches:
        mine, theirs = (
            each[np.searchsorted(each["offset"], start) : np.searchsorted(each["offset"], end)]
            for each in (empty if one is None else one, empty if other is None else other)
        )
        odd = np.setxor1d(np.ascontiguousarray(mine).view("V16"), np.ascontiguousarray(theirs).view("V16"))
        parts.append(np.unique(odd.view(LISTED)["offset"]))
    return np.concatenate(parts).tolist() if parts else []


def list_records(row: Row) -> Iterator[Result]:
    """Offset and hash of every record that begins in a stretch and ends before the bound."""
    folder = open_folder(row["url"])
    try:
        facts = look(folder)
        throttle = Throttle(int(row["rate"]))
        found: list[tuple[int, int]] = []
        for log, entries in ((facts.commit_log, False), (facts.ledger, True)):
            found += _listed(folder, log, entries, row, throttle)
        yield Result(
            {"number": row["number"], "start": row["start"], "end": row["end"]},
            np.array(found, LISTED).tobytes(),
        )
    finally:
        folder.close()


def _listed(
    folder: StoreFolder, log: Log, entries: bool, row: Row, throttle: Throttle
) -> list[tuple[int, int]]:
    start, end, bound = int(row["start"]), int(row["end"]), int(row["bound"])
    head = ENTRY_HEAD_SIZE if entries else 0
    found: list[tuple[int, int]] = []
    for file in log.files:
        if file.end <= start or file.base >= min(end, bound):
            continue
        begin = max(file.base, start - BACK)
        wanted = Range(file.path, file.base, file.size, begin, min(file.end, bound), entries, bound)
        while wanted.start < wanted.end:
            outcome = Outcome(wanted.start, wanted.start)
            chunks = read_range(
                folder, wanted, outcome, resync=True, throttle=throttle, drop_cache=bool(row["dropCache"])
            )
            for chunk in chunks:
                view = chunk.data.data
                starts = chunk.starts - head + chunk.base
                low, high = np.searchsorted(starts, [start, end]).tolist()
                rows = zip(chunk.starts[low:high].tolist(), chunk.sizes[low:high].tolist(), strict=True)
                found += [
                    (chunk.base + at - head, xxhash.xxh3_64_intdigest(view[at - head : at + size]))
                    for at, size in rows
                ]
                if chunk.end >= end:
                    break
            if outcome.stop is not Stop.BLANK:
                break
            behind = outcome.end + free_bytes(folder, wanted, outcome.end)
            if behind <= outcome.end:
                break
            wanted = replace(wanted, start=behind, exact_start=True)
    return found


def show_record(row: Row) -> Iterator[Result]:
    """What stands at an offset, and its bytes: as many as a sound record has, else as are asked for."""
    folder = open_folder(row["url"])
    try:
        facts = look(folder)
        offset = int(row["offset"])
        file = facts.ledger.at(offset) or facts.commit_log.at(offset)
        if file is None:
            yield Result({"problem": "the log has no such offset"})
            return
        head = ENTRY_HEAD_SIZE if facts.ledger.at(offset) else 0
        room = min(file.end, int(row["bound"])) - offset
        raw = _read(folder, file.path, offset - file.base, min(SHOWN_BYTES_MAX, room))
        size = int.from_bytes(raw[head : head + 4], "big")
        if 0 < size <= room - head and size + head > len(raw):
            raw = _read(folder, file.path, offset - file.base, size + head)
        told: dict[str, Any] = {}
        try:
            record = decode_record(raw, head, verify_crc=True)
        except FormatError as error:
            told = {"problem": error.reason}
            try:
                record = decode_record(raw, head)
            except FormatError:
                record = None
        if record is not None:
            told = {"problem": "", **_told(record), **told}
        yield Result(told, raw[: min(SHOWN_BYTES_MAX, head + record.size if record else int(row["size"]))])
    finally:
        folder.close()


def _read(folder: StoreFolder, path: str, position: int, count: int) -> bytes:
    buffer = bytearray(max(0, count))
    return bytes(buffer[: folder.read_into(path, position, memoryview(buffer))])


def _told(record: Record) -> dict[str, Any]:
    return {
        "size": record.size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "storeTimestamp": record.store_timestamp,
        "key": decode_properties(record.properties).get("UNIQ_KEY", ""),
    }


def _first(runner: Runner, maps: Sequence[ReplicaMap], one: int, other: int, offset: int) -> FirstDifference:
    shown: list[tuple[RecordFacts, bytes]] = []
    size = 256
    for number in (one, other):
        row = {"url": maps[number].url, "offset": offset, "bound": maps[number].bound, "size": size}
        (result,) = runner.run(SHOW_TASK, [row])
        shown.append((facts_of(result.row), result.data))
    sizes = [facts.size for facts, _ in shown if facts.size]
    if sizes and any(
        not facts.size for facts, _ in shown
    ):  # show as much of what is no record as of the other
        head = ENTRY_HEAD_SIZE if maps[one].is_ledger else 0
        for at, number in enumerate((one, other)):
            if not shown[at][0].size:
                row = {
                    "url": maps[number].url,
                    "offset": offset,
                    "bound": maps[number].bound,
                    "size": sizes[0] + head,
                }
                (result,) = runner.run(SHOW_TASK, [row])
                shown[at] = (facts_of(result.row), result.data)
    return first_difference(offset, shown[0], shown[1], entries=maps[one].is_ledger)


def first_difference(
    offset: int, one: tuple[RecordFacts, bytes], other: tuple[RecordFacts, bytes], *, entries: bool
) -> FirstDifference:
    """Compare what two replicas show of an offset."""
    (mine, raw), (theirs, other_raw) = one, other
    byte = first_byte(raw, other_raw)
    whole = raw if not mine.problem else other_raw if not theirs.problem else raw
    return FirstDifference(offset, mine, theirs, byte, field_at(whole, byte, entries=entries))


def facts_of(row: Row) -> RecordFacts:
    """What a task that shows a record has told."""
    return RecordFacts(
        str(row.get("problem", "")),
        int(row.get("size", 0)),
        str(row.get("topic", "")),
        int(row.get("queueId", 0)),
        int(row.get("queueOffset", 0)),
        int(row.get("storeTimestamp", 0)),
        str(row.get("key", "")),
    )


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
    if byte < 0:
        return ""
    if entries:
        byte -= ENTRY_HEAD_SIZE
        raw = raw[ENTRY_HEAD_SIZE:]
        if byte < 0:
            return "entry"
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
