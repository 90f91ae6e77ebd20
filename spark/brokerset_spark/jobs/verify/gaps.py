"""Gaps: what lies between records that could be read. Each damaged record is named, whole ones between are
kept."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from brokerset_formats.dledger import MAGIC_BLANK as LEDGER_BLANK
from brokerset_formats.dledger import MAGIC_NORMAL
from brokerset_formats.records import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OFFSET_POSITION,
    PROPERTY_CRC_SIZE,
    ends_with_property_crc,
)
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.codes import OF_STOP
from brokerset_spark.jobs.verify.found import finding
from brokerset_spark.jobs.verify.scan import Collector, proper_blank, walked_chunk
from brokerset_spark.kernels import Kernels, Stop, chosen
from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.stores.folder import StoreFolder, open_folder
from brokerset_spark.stores.reading import RECORD_MAX, Throttle

WINDOW: Final = 8 << 20
"""Bytes of a gap in memory at once, unless a record needs more."""

_RECORD_MARKS: Final = tuple(struct.pack(">I", magic) for magic in (MAGIC_V1, MAGIC_V2))
_ENTRY_MARK: Final = struct.pack(">i", MAGIC_NORMAL)
_MARK_POSITION: Final = {False: 4, True: 0}


def examine_gap(row: Row) -> Iterator[Result]:
    """A task: bytes `[start, end)` of one file, where a record must begin at `start`, and one (or the file's
    or the log's end) is at `end`.

    Tells the same rows as `scan.scan_range`, and a finding for each stretch that is no record.
    """
    folder = open_folder(row["url"])
    collector = Collector(folder, row, chosen(row["kernels"]))
    try:
        yield from _examine(folder, row, collector, chosen(row["kernels"]))
        yield from collector.end_section()
    except FileNotFoundError:
        text = "the file is gone: if the broker runs, it has expired; start the job again"
        yield finding("file-unreadable", text, row["path"], row["start"], row["end"])
    finally:
        collector.close()
        folder.close()


def _window(folder: StoreFolder, row: Row, at: int, size: int, throttle: Throttle) -> Bytes:
    data = np.empty(max(0, min(size, row["end"] - at)), np.uint8)
    count = folder.read_into(row["path"], at - row["base"], data.data) if len(data) else 0
    throttle.took(count)
    return data[:count]


def _examine(folder: StoreFolder, row: Row, collector: Collector, kernels: Kernels) -> Iterator[Result]:
    at, size = int(row["start"]), WINDOW
    throttle = Throttle(row["rate"])
    while at < row["end"]:
        data = _window(folder, row, at, size, throttle)
        if len(data) == 0:
            break
        whole = at + len(data) >= row["end"] or len(data) < size
        chunk, position, stop = walked_chunk(kernels, data, at, row["entries"], False)
        if len(chunk.starts) or chunk.end > chunk.begin:
            yield from collector.take(chunk)
        at += position
        if at >= row["end"]:
            break
        if stop in (Stop.SHORT, Stop.RANGE_END) and not whole and size < RECORD_MAX:
            size = size if position else size * 2
            continue
        size = WINDOW
        position = at - row["base"]
        if stop is Stop.BLANK and row["size"] - position == proper_blank(
            folder, row["path"], position, row["size"], row["entries"]
        ):
            yield from collector.end_section()
            yield Result(
                {"kind": "blank", "begin": at, "end": row["base"] + row["size"], "path": row["path"]}
            )
            break
        behind = _next_whole(folder, row, at, stop, kernels, throttle)
        yield _name(folder, row, at, behind, stop)
        at = behind


def _next_whole(
    folder: StoreFolder, row: Row, damaged: int, stop: Stop, kernels: Kernels, throttle: Throttle
) -> int:
    """Offset of the next whole record behind a damaged one, or the gap's end."""
    entries = bool(row["entries"])
    at = damaged + 1
    if stop is Stop.BAD_CRC:  # its lengths and its place are right, so its size is
        head = bytearray(8)
        folder.read_into(row["path"], damaged - row["base"], memoryview(head))
        (size,) = struct.unpack_from(">i", head, 4 if entries else 0)
        return min(damaged + int(size), int(row["end"]))
    while at < row["end"]:
        data = _window(folder, row, at, WINDOW, throttle)
        whole = at + len(data) >= row["end"] or len(data) < WINDOW
        blank = _blank(data, at, row)
        for position in _candidates(data, at, entries):
            if 0 <= blank < position:
                break
            if _is_whole(folder, row, data, at, position, kernels, throttle):
                return at + position
        if blank >= 0:
            return at + blank
        if whole:
            break
        at += len(data) - 64  # a head may lie across the edge
    return int(row["end"])


def _blank(data: Bytes, base: int, row: Row) -> int:
    """Position of the blank record that closes the file, -1 if it is not in these data."""
    raw, end = data.tobytes(), row["base"] + row["size"]
    mark = struct.pack(">i", LEDGER_BLANK) if row["entries"] else struct.pack(">I", MAGIC_BLANK)
    at = raw.find(mark)
    while at >= 0:
        start, size_at = (at, at + 4) if row["entries"] else (at - 4, at - 4)
        inside = start >= 0 and size_at + 4 <= len(raw)
        if inside and struct.unpack_from(">i", raw, size_at)[0] == end - base - start:
            return start
        at = raw.find(mark, at + 1)
    return -1


def _candidates(data: Bytes, base: int, entries: bool) -> Iterator[int]:
    """Positions that have the magic of a record and give themselves the right offset."""
    raw = data.tobytes()
    shift = _MARK_POSITION[entries]
    place = 24 if entries else OFFSET_POSITION
    marks = (_ENTRY_MARK,) if entries else _RECORD_MARKS
    found: list[int] = []
    for mark in marks:
        at = raw.find(mark)
        while at >= 0:
            start = at - shift
            if start >= 0 and start + place + 8 <= len(raw):
                (said,) = struct.unpack_from(">q", raw, start + place)
                if said == base + start:
                    found.append(start)
            at = raw.find(mark, at + 1)
    yield from sorted(found)


def _is_whole(
    folder: StoreFolder, row: Row, data: Bytes, base: int, position: int, kernels: Kernels, throttle: Throttle
) -> bool:
    """Whether a record with the right CRC begins there."""
    entries = bool(row["entries"])
    shift = 4 if entries else 0
    (size,) = struct.unpack_from(">i", data[position + shift : position + shift + 4].tobytes())
    if not 0 < size <= RECORD_MAX or base + position + size > row["end"]:
        return False
    piece = data[position : position + size]
    if len(piece) < size:
        piece = _window(folder, row, base + position, size, throttle)
    chunk, end, _ = walked_chunk(kernels, piece, base + position, entries, True)
    return end == size and chunk.end > chunk.begin


def _name(folder: StoreFolder, row: Row, begin: int, end: int, stop: Stop) -> Result:
    head = bytearray(96)
    count = folder.read_into(row["path"], begin - row["base"], memoryview(head))
    code = OF_STOP[stop]
    if stop is Stop.BAD_CRC:
        last = bytearray(PROPERTY_CRC_SIZE + 1)
        folder.read_into(row["path"], end - len(last) - row["base"], memoryview(last))
        code = "property-crc" if ends_with_property_crc(bytes(last)) else code
    size, magic = struct.unpack_from(">iI", head)
    (said,) = struct.unpack_from(">q", head, 24 if row["entries"] else OFFSET_POSITION)
    closes = row["base"] + row["size"] == end
    if stop is Stop.EMPTY and closes and end - begin < 64:
        code = "blank-missing"
    text = {
        "record-magic": f"magic {magic:#010x} instead of a record's",
        "record-size": f"a size of {size} bytes does not fit",
        "record-lengths": f"the lengths inside do not add up to {size} bytes",
        "record-offset": (
            f"it says that it belongs at {said}; is the file another one's, or copied to a wrong place?"
        ),
        "crc-mismatch": "the body differs from what its CRC was made of",
        "property-crc": "the record differs from what its property CRC was made of",
        "entry-index": "its index does not follow on the one before",
        "chain-gap": "zeros instead of records",
        "blank-size": (
            f"a blank record of {size} bytes, where {row['base'] + row['size'] - begin} are left of the file"
        ),
        "blank-missing": "the file does not end with a blank record",
    }[code]
    lost = f"; {end - begin} bytes cannot be read" if code != "blank-missing" else ""
    tail = stop in (Stop.EMPTY, Stop.SHORT, Stop.RANGE_END) or count < len(head)
    done = finding(code, f"{text}{lost}", row["path"], begin, end)
    return Result({**done.row, "kind": "gap", "empty": tail, "code": code})
