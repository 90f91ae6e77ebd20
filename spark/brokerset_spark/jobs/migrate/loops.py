"""The loops of a migration, compiled by numba: `plain` has the same functions without it.

ImportError as from `kernels.compiling`. Positions and sizes are those of records that a kernel has walked,
and are compared with the buffers all the same.
"""

from __future__ import annotations

from typing import Final

from brokerset_formats.records import RECORD_SIZE_MIN
from brokerset_spark.kernels.compiling import (
    BOOL,
    BYTES,
    INT,
    INT32S,
    INT64S,
    OUT,
    OUT_BOOLS,
    OUT_INT32S,
    OUT_INT64S,
    TABLE_INT64S,
    address_of,
    compiled,
    copy_bytes,
    load8,
    load32,
    load64,
    several,
    store32,
    store64,
)
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s

_RECORD_MIN: Final = RECORD_SIZE_MIN
_MIX: Final = 0x165667B19E3779F9
_CRC_NAME: Final = int.from_bytes(b"__CRC32#", "big")
_CRC_SIZE: Final = 20
_NONE: Final = 2**63 - 1


@compiled(INT, INT, INT, INT)
def hash_name(address: int, size: int, queue_id: int) -> int:
    """A number for a name and a queue id; equal ones have the same."""
    value = queue_id * _MIX + size
    at, end = address, address + size
    while end - at >= 8:
        value = (value ^ load64(at)) * _MIX
        value ^= value >> 29
        at += 8
    while at < end:
        value = (value ^ load8(at)) * _MIX
        at += 1
    return value ^ value >> 32


@compiled(INT, BYTES, INT, INT, INT)
def hash_of(names: Bytes, start: int, size: int, queue_id: int) -> int:
    """The same for a name that is kept."""
    return hash_name(address_of(names) + start, size, queue_id)


@compiled(BOOL, INT, INT, INT)
def same_name(one: int, other: int, size: int) -> bool:
    """Whether two names of one size are equal."""
    at = 0
    while size - at >= 8:
        if load64(one + at) != load64(other + at):
            return False
        at += 8
    while at < size:
        if load8(one + at) != load8(other + at):
            return False
        at += 1
    return True


@compiled(
    several(3),
    BYTES,
    INT64S,
    INT32S,
    INT32S,
    INT,
    OUT_INT64S,
    OUT_INT32S,
    OUT_INT64S,
    OUT_INT64S,
    OUT_INT32S,
    OUT,
    INT,
    INT,
)
def number_groups(
    data: Bytes,
    topics: Int64s,
    topic_sizes: Int32s,
    queue_ids: Int32s,
    first: int,
    groups: Int64s,
    table: Int32s,
    queues: Int64s,
    name_starts: Int64s,
    name_sizes: Int32s,
    names: Bytes,
    count: int,
    used: int,
) -> tuple[int, int, int]:
    """Write the number of its group (topic and queue id) for each record from `first` on.

    `table` has a power of two of places, more than groups can be; a place holds the number of a group and
    one, or 0. Known groups (`count`) have their queue ids in `queues` and their names in `names`, of which
    `used` bytes are taken. Gives the record at which there was no room for another group (else the number of
    records), groups, and used bytes; -1 instead of the record if a name leaves the data.
    """
    address, kept = address_of(data), address_of(names)
    mask = len(table) - 1
    for row in range(first, len(topics)):
        start, size, queue = topics[row], topic_sizes[row], queue_ids[row]
        if start < 0 or size < 0 or start > len(data) - size:
            return -1, count, used
        place = hash_name(address + start, size, queue) & mask
        while True:
            group = table[place] - 1
            if group < 0:
                if count >= len(queues) or used > len(names) - size:
                    return row, count, used
                copy_bytes(kept + used, address + start, size)
                queues[count], name_starts[count], name_sizes[count] = queue, used, size
                used += size
                group = count
                count += 1
                table[place] = count
                break
            if (
                queues[group] == queue
                and name_sizes[group] == size
                and same_name(kept + name_starts[group], address + start, size)
            ):
                break
            place = (place + 1) & mask
        groups[row] = group
    return len(topics), count, used


@compiled(INT, INT64S, OUT_BOOLS, INT32S, INT32S, INT64S, INT64S, TABLE_INT64S)
def sum_groups(
    groups: Int64s,
    wanted: Bools,
    sizes: Int32s,
    crcs: Int32s,
    queue_offsets: Int64s,
    offsets: Int64s,
    sums: Int64s,
) -> int:
    """Add the wanted records to the rows of their groups: see `SUMS`. Tells how many there were."""
    count = 0
    for row in range(len(groups)):
        if not wanted[row]:
            continue
        count += 1
        group, queue_offset = groups[row], queue_offsets[row]
        sums[group, 0] += 1
        sums[group, 1] += sizes[row]
        sums[group, 2] += crcs[row]
        sums[group, 3] += queue_offset
        sums[group, 4] = min(sums[group, 4], queue_offset)
        sums[group, 5] = max(sums[group, 5], queue_offset)
        sums[group, 6] = max(sums[group, 6], offsets[row])
    return count


@compiled(BOOL, INT, INT)
def ends_with_crc(address: int, size: int) -> bool:
    """Whether a record's last property is a CRC over the whole record."""
    at = address + size - _CRC_SIZE
    return (
        size > _CRC_SIZE and load64(at) == _CRC_NAME and load8(at + 8) == 1 and load8(address + size - 1) == 2
    )


@compiled(INT, BYTES, INT64S, INT32S, OUT_INT64S)
def find_crcs(data: Bytes, starts: Int64s, sizes: Int32s, found: Int64s) -> int:
    """Numbers of the records that end with a CRC over the whole record; their count, -1 for a misfit."""
    address, count = address_of(data), 0
    for row in range(len(starts)):
        start, size = starts[row], sizes[row]
        if start < 0 or size < 0 or start > len(data) - size:
            return -1
        if ends_with_crc(address + start, size):
            found[count] = row
            count += 1
    return count


@compiled(several(3), BYTES, INT64S, INT32S, OUT, INT)
def pack(data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, total: int) -> tuple[int, int, int]:
    """Copy records one behind the other, without what a migration changes: see `selecting.ContentDigest`.

    physicalOffset becomes `total` and the position in `out`. Gives bytes, records that name a half message,
    and records with a CRC over all of them; -1 bytes for a record that does not fit.
    """
    source, target = address_of(data), address_of(out)
    position, named, crcs = 0, 0, 0
    for row in range(len(starts)):
        start, size = starts[row], sizes[row]
        if start < 0 or size < _RECORD_MIN or start > len(data) - size or position > len(out) - size:
            return -1, named, crcs
        at = target + position
        copy_bytes(at, source + start, size)
        sys_flag = load32(at + 36)
        prepared = at + 76 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
        if prepared > at + size - 8:
            return -1, named, crcs
        if ends_with_crc(at, size):
            store64(at + size - 11, 0)
            store32(at + size - 5, 0)
            crcs += 1
        store64(at + 28, total + position)
        if load64(prepared) != 0:
            store64(prepared, 0)
            named += 1
        position += size
    return position, named, crcs
