"""The loops of `compiled` over groups of records (topic and queue id), and over whole records.

Positions and sizes are those of records that were walked, and are compared with the buffers all the same.
"""

from __future__ import annotations

from typing import Final

from brokerset_formats.records import PROPERTY_CRC_NAME, PROPERTY_CRC_SIZE, RECORD_SIZE_MIN
from brokerset_spark.kernels.compiling import (
    OutBytes,
    OutInt32s,
    OutInt64s,
    TableInt64s,
    address_of,
    compiled,
    copy_bytes,
    load8,
    load32,
    load64,
    store32,
    store64,
)
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s
from brokerset_spark.kernels.copy_loops import ODD, mixed
from brokerset_spark.kernels.text_loops import same_bytes

_CRC_NAME: Final = int.from_bytes(PROPERTY_CRC_NAME[:8], "big")


@compiled
def group_place(address: int, size: int, queue_id: int) -> int:
    """A hash of a name and a queue id; its lower bits are good."""
    return (mixed(address, size) + queue_id * ODD) >> 32 & 0xFFFFFFFF


@compiled
def place_groups(
    names: Bytes, starts: Int64s, sizes: Int32s, queues: Int64s, count: int, table: OutInt32s
) -> None:
    """Fill an empty table with the groups that are known; see `number_groups`."""
    mask = len(table) - 1
    for group in range(count):
        place = group_place(address_of(names) + starts[group], sizes[group], queues[group]) & mask
        while table[place] != 0:
            place = (place + 1) & mask
        table[place] = group + 1


@compiled
def number_groups(
    data: Bytes, topics: Int64s, topic_sizes: Int32s, queue_ids: Int32s, first: int, groups: OutInt64s,
    table: OutInt32s, queues: OutInt64s, name_starts: OutInt64s, name_sizes: OutInt32s, names: OutBytes,
    count: int, used: int
) -> tuple[int, int, int]:  # fmt: skip
    """Write the number of its group (topic and queue id) for each record from `first` on.

    `table` has a power of two of places, more than groups can be; a place holds the number of a group and
    one, or 0. Known groups (`count`) have their queue ids in `queues` and their names in `names`, of which
    `used` bytes are taken. Gives the record at which there was no room for another group (else the number of
    records), groups, and used bytes; `-1 - number` instead if a name leaves the data.
    """
    address, kept = address_of(data), address_of(names)
    mask = len(table) - 1
    for row in range(first, len(topics)):
        start, size, queue = topics[row], topic_sizes[row], queue_ids[row]
        if start < 0 or size < 0 or start > len(data) - size:
            return -1 - row, count, used
        place = group_place(address + start, size, queue) & mask
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
                and same_bytes(kept + name_starts[group], address + start, size)
            ):
                break
            place = (place + 1) & mask
        groups[row] = group
    return len(topics), count, used


@compiled
def sum_groups(
    groups: Int64s, wanted: Bools, sizes: Int32s, crcs: Int32s, queue_offsets: Int64s, offsets: Int64s, sums:
    TableInt64s
) -> int:  # fmt: skip
    """See `Kernels.sum_groups`."""
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


@compiled
def ends_with_crc(address: int, size: int) -> bool:
    """Whether a record's last property is a CRC over the whole record."""
    at = address + size - PROPERTY_CRC_SIZE
    return (
        size > PROPERTY_CRC_SIZE
        and load64(at) == _CRC_NAME
        and load8(at + 8) == 1
        and load8(address + size - 1) == 2
    )


@compiled
def find_crcs(data: Bytes, starts: Int64s, sizes: Int32s, found: OutInt64s) -> int:
    """See `Kernels.find_crcs`; their count, `-1 - number` for a record that leaves the data."""
    address, count = address_of(data), 0
    for row in range(len(starts)):
        start, size = starts[row], sizes[row]
        if start < 0 or size < 0 or start > len(data) - size:
            return -1 - row
        if ends_with_crc(address + start, size):
            found[count] = row
            count += 1
    return count


@compiled
def pack_records(
    data: Bytes, starts: Int64s, sizes: Int32s, out: OutBytes, total: int
) -> tuple[int, int, int]:
    """See `Kernels.pack`; `-1 - number` bytes for a record that does not fit."""
    source, target = address_of(data), address_of(out)
    position, named, crcs = 0, 0, 0
    for row in range(len(starts)):
        start, size = starts[row], sizes[row]
        if start < 0 or size < RECORD_SIZE_MIN or start > len(data) - size or position > len(out) - size:
            return -1 - row, named, crcs
        at = target + position
        copy_bytes(at, source + start, size)
        sys_flag = load32(at + 36)
        prepared = at + 76 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
        if prepared > at + size - 8:
            return -1 - row, named, crcs
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
