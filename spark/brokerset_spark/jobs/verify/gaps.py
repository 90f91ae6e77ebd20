"""Gaps: what lies between records that could be read. Each damaged record is named, whole ones between are
kept."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from brokerset_formats.records import OFFSET_POSITION, PROPERTY_CRC_SIZE, ends_with_property_crc
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.findings import OF_STOP, finding
from brokerset_spark.jobs.verify.scan import Collector, proper_blank
from brokerset_spark.kernels import Stop
from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import RECORD_MAX, Range, Throttle, walk_chunk
from brokerset_spark.stores.searching import find_whole

WINDOW: Final = 8 << 20
"""Bytes of a gap in memory at once, unless a record needs more."""


def examine_gap(row: Row) -> Iterator[Result]:
    """A task: bytes `[start, end)` of one file, where a record must begin at `start`, and one (or the file's
    or the log's end) is at `end`.

    Gives the same rows as `scan.scan_range`, and a finding for each stretch that is no record.
    """
    folder = open_folder(row["url"])
    collector = Collector(folder, row)
    try:
        yield from _examine(folder, row, collector)
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


def _examine(folder: StoreFolder, row: Row, collector: Collector) -> Iterator[Result]:
    at, size = int(row["start"]), WINDOW
    throttle = Throttle(row["rate"])
    while at < row["end"]:
        data = _window(folder, row, at, size, throttle)
        if len(data) == 0:
            break
        whole = at + len(data) >= row["end"] or len(data) < size
        chunk, position, stop, _ = walk_chunk(data, len(data), at, row["entries"], -1, False, True)
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
        behind = _next_whole(folder, row, at, stop, throttle)
        yield _name(folder, row, at, behind, stop)
        at = behind


def _next_whole(folder: StoreFolder, row: Row, damaged: int, stop: Stop, throttle: Throttle) -> int:
    """Offset of the next whole record behind a damaged one, or the gap's end."""
    entries = bool(row["entries"])
    at = damaged + 1
    if stop is Stop.BAD_CRC:  # its lengths and its place are right, so its size is
        head = bytearray(8)
        folder.read_into(row["path"], damaged - row["base"], memoryview(head))
        (size,) = struct.unpack_from(">i", head, 4 if entries else 0)
        return min(damaged + int(size), int(row["end"]))
    wanted = Range(row["path"], row["base"], row["size"], at, row["end"], entries, row["end"])
    return find_whole(folder, wanted, at, took=throttle.took)[0]


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
