"""Index files for themselves: header, order of their units, and whether every unit can be found from its
slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.index_file import HEADER
from brokerset_formats.index_file import UNIT as UNIT_STRUCT
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.units import INDEX_UNIT

BLOCK: Final = 262_144
"""Units that are read at once."""

SAID_MAX: Final = 200
"""Units with the same fault that are reported for one file."""

HEADER_SIZE: Final = HEADER.size
UNIT_SIZE: Final = UNIT_STRUCT.size
SLOT_SIZE: Final = 4


def read_units(folder: StoreFolder, path: str, slots: int, first: int, count: int) -> NDArray[np.void]:
    """Units `[first, first + count)` of a file, fewer at its end."""
    found = np.zeros(count, INDEX_UNIT)
    position = HEADER_SIZE + slots * SLOT_SIZE + first * UNIT_SIZE
    got = folder.read_into(path, position, found.view(np.uint8).data)
    return found[: got // UNIT_SIZE]


def count_slots(folder: StoreFolder, path: str, size: int) -> int | None:
    """How many slots a file has: RocketMQ writes it nowhere.

    Four units to a slot is the usual setting; else the place of the first unit decides, which has the offset
    of the header. None if neither does.
    """
    head = bytearray(HEADER_SIZE)
    if folder.read_into(path, 0, memoryview(head)) < HEADER_SIZE:
        return None
    begin_time, _, begin_offset, _, _, next_unit = HEADER.unpack(head)
    body = size - HEADER_SIZE
    if next_unit <= 1:
        return body // 84 if body % 84 == 0 else None
    if body % 84 == 0 and _first_fits(folder, path, body // 84, begin_offset):
        return body // 84
    for slots in _candidates(folder, path, body, begin_offset):
        if _first_fits(folder, path, slots, begin_offset):
            return slots
    return body // 84 if body % 84 == 0 and begin_time == 0 else None


def _first_fits(folder: StoreFolder, path: str, slots: int, begin_offset: int) -> bool:
    units = read_units(folder, path, slots, 0, 2)
    if len(units) < 2 or units[0].tobytes().strip(b"\x00"):
        return False
    return (
        int(units[1]["offset"]) == begin_offset
        and int(units[1]["hash"]) >= 0
        and int(units[1]["previous"]) == 0
    )


def _candidates(folder: StoreFolder, path: str, body: int, begin_offset: int) -> Iterator[int]:
    wanted = int(begin_offset).to_bytes(8, "big")
    piece, position = bytearray(1 << 20), HEADER_SIZE
    while position < HEADER_SIZE + body:
        count = folder.read_into(path, position, memoryview(piece))
        at = piece.find(wanted, 0, count)
        while at >= 0:
            slots_bytes = position + at - 4 - UNIT_SIZE - HEADER_SIZE
            if slots_bytes > 0 and slots_bytes % SLOT_SIZE == 0 and (body - slots_bytes) % UNIT_SIZE == 0:
                yield slots_bytes // SLOT_SIZE
            at = piece.find(wanted, at + 1, count)
        if count < len(piece):
            return
        position += count - 8


def check_index_file(row: Row) -> Iterator[Result]:
    """A task: one index file `path` of `size` bytes with `slots` slots; `end` is the log's end, `first`
    its first.

    Gives findings, and a row of facts that the comparison with the log needs: number of units, and those
    that are out of order.
    """
    folder = open_folder(row["url"])
    try:
        yield from _check(folder, row)
    finally:
        folder.close()


def _check(folder: StoreFolder, row: Row) -> Iterator[Result]:
    path, slots, size = row["path"], int(row["slots"]), int(row["size"])
    head = bytearray(HEADER_SIZE)
    folder.read_into(path, 0, memoryview(head))
    begin_time, _end_time, _begin_offset, _end_offset, _used, next_unit = HEADER.unpack(head)
    next_unit = max(1, next_unit)
    capacity = (size - HEADER_SIZE - slots * SLOT_SIZE) // UNIT_SIZE
    if not 1 <= next_unit <= capacity:
        yield finding("index-header", f"it says that unit {next_unit} is next, of {capacity}", path, 36)
        next_unit = _count_units(folder, path, slots, capacity)
    newest = np.zeros(slots, np.int64)
    bad: list[int] = []
    said: dict[str, int] = {}
    slots_used, before, first_offset, last_offset = 0, -1, -1, -1
    last_seconds = 0
    for first in range(1, next_unit, BLOCK):
        units = read_units(folder, path, slots, first, min(BLOCK, next_unit - first))
        numbers = np.arange(first, first + len(units), dtype=np.int64)
        offset = units["offset"].astype(np.int64)
        if first == 1 and len(units):
            first_offset = int(offset[0])
        for number in _disorder(offset, before).tolist():
            bad.append(first + number)
            if said.setdefault("index-order", 0) < SAID_MAX:
                said["index-order"] += 1
                text = (
                    f"unit {first + number} has offset {int(offset[number])}, out of order "
                    f"with its neighbours"
                )
                yield finding("index-order", text, path, _place(slots, first + number))
        good = np.setdiff1d(
            np.arange(len(offset)), np.array([n - first for n in bad if n >= first], np.int64)
        )
        if len(good):
            before = last_offset = int(offset[good[-1]])
            last_seconds = int(units["seconds"][good[-1]])
        hashes = units["hash"].astype(np.int64)
        slot = np.where(hashes >= 0, hashes % slots, -1)
        order = np.argsort(slot, kind="stable")
        sorted_slots = slot[order]
        leader = np.ones(len(order), np.bool_)
        leader[1:] = sorted_slots[1:] != sorted_slots[:-1]
        expected = np.zeros(len(order), np.int64)
        expected[order[1:]] = numbers[order[:-1]]
        expected[order[leader]] = newest[np.maximum(sorted_slots[leader], 0)]
        slots_used += int((expected[order[leader & (sorted_slots >= 0)]] == 0).sum())
        wrong = (units["previous"] != expected) | (slot < 0)
        for number in np.flatnonzero(wrong).tolist():
            if said.setdefault("index-chain", 0) < SAID_MAX:
                said["index-chain"] += 1
                text = (
                    f"unit {first + number} leads to unit {int(units['previous'][number])} "
                    f"instead of {int(expected[number])}"
                )
                yield finding("index-chain", text, path, _place(slots, first + number))
        tail = np.ones(len(order), np.bool_)
        tail[:-1] = leader[1:]
        ends = order[tail & (sorted_slots >= 0)]
        newest[slot[ends]] = numbers[ends]
    yield from _check_slots(folder, path, slots, newest, next_unit, said)
    yield from _check_header(path, head, first_offset, last_offset, slots_used, last_seconds, next_unit)
    yield Result(
        {
            "kind": "index-file",
            "path": path,
            "slots": slots,
            "next": next_unit,
            "beginTime": begin_time,
            "begin": first_offset,
            "end": last_offset,
            "bad": bad[:SAID_MAX],
            "bytes": HEADER_SIZE + slots * SLOT_SIZE + next_unit * UNIT_SIZE,
        }
    )


def _place(slots: int, unit: int) -> int:
    return HEADER_SIZE + slots * SLOT_SIZE + unit * UNIT_SIZE


def _count_units(folder: StoreFolder, path: str, slots: int, capacity: int) -> int:
    """The next unit, when the header does not say: behind the last one that is not zero."""
    found = 1
    for first in range(1, capacity, BLOCK):
        units = read_units(folder, path, slots, first, min(BLOCK, capacity - first))
        used = np.flatnonzero((units["offset"] != 0) | (units["hash"] != 0))
        if len(used) == 0:
            break
        found = first + int(used[-1]) + 1
    return found


def _disorder(offset: NDArray[np.int64], before: int) -> NDArray[np.int64]:
    """Numbers of the units that stand out of a growing row: a spike is one, and not all that follow it."""
    whole = np.concatenate([np.array([before], np.int64), offset])
    bad = []
    at = 1
    for at in (np.flatnonzero(np.diff(whole) < 0) + 1).tolist():
        spike = at >= 2 and ((at == 2 and before < 0) or whole[at] >= whole[at - 2])
        bad.append(at - 2 if spike else at - 1)
    return np.array(sorted(set(bad)), np.int64)


def _check_slots(
    folder: StoreFolder,
    path: str,
    slots: int,
    newest: NDArray[np.int64],
    next_unit: int,
    said: dict[str, int],
) -> Iterator[Result]:
    for first in range(0, slots, BLOCK):
        count = min(BLOCK, slots - first)
        stored = np.zeros(count, ">i4")
        folder.read_into(path, HEADER_SIZE + first * SLOT_SIZE, stored.view(np.uint8).data)
        wrong = stored != newest[first : first + count]
        for number in np.flatnonzero(wrong).tolist():
            if int(stored[number]) >= next_unit and _leads_to(
                folder, path, slots, int(stored[number]), next_unit, int(newest[first + number])
            ):
                continue  # units were written, and the process died before the header was
            if said.setdefault("index-slot", 0) < SAID_MAX:
                said["index-slot"] += 1
                text = (
                    f"slot {first + number} leads to unit {int(stored[number])} instead of "
                    f"{int(newest[first + number])}"
                )
                yield finding("index-chain", text, path, HEADER_SIZE + (first + number) * SLOT_SIZE)


def _leads_to(folder: StoreFolder, path: str, slots: int, unit: int, next_unit: int, wanted: int) -> bool:
    for _ in range(10_000):
        if unit < next_unit:
            break
        units = read_units(folder, path, slots, unit, 1)
        if len(units) == 0 or int(units[0]["previous"]) >= unit:
            return False
        unit = int(units[0]["previous"])
    return unit == wanted


def _check_header(
    path: str,
    head: bytearray,
    first_offset: int,
    last_offset: int,
    slots_used: int,
    last_seconds: int,
    next_unit: int,
) -> Iterator[Result]:
    begin_time, end_time, begin_offset, end_offset, used, _ = HEADER.unpack(head)
    if next_unit <= 1:
        return
    problems = []
    if begin_offset != first_offset:
        problems.append((16, f"it begins at offset {begin_offset}, its first unit at {first_offset}"))
    if end_offset != last_offset:
        problems.append((24, f"it ends at offset {end_offset}, its last unit at {last_offset}"))
    if used != slots_used:
        problems.append((32, f"it counts {used} used slots, there are {slots_used}"))
    if end_time < begin_time or begin_time < 0:
        problems.append((0, f"its times go from {begin_time} to {end_time}"))
    elif abs((end_time - begin_time) // 1000 - last_seconds) > 1 and last_seconds < 2**31 - 1:
        problems.append(
            (0, f"its times are {end_time - begin_time} ms apart, its last unit says {last_seconds} s")
        )
    for place, text in problems:
        yield finding("index-header", text, path, place)
