"""The kernels, compiled by numba: 5 to 40 times as fast as Python and numpy.

The first process of a host compiles for some ten seconds, at import; later ones load what it left in numba's
cache. ImportError where that cannot be (see `compiling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.records import RECORD_SIZE_MIN
from brokerset_spark.kernels import copy_loops, loops, record_loops, text_loops
from brokerset_spark.kernels.compiling import isal_crc32
from brokerset_spark.kernels.contract import (
    OFFSET_MAX,
    Bools,
    Bytes,
    Entries,
    Heads,
    Int32s,
    Int64s,
    Laid,
    Numbered,
    Packed,
    Pairs,
    Stop,
    Texts,
    Walked,
)
from brokerset_spark.kernels.limits import (
    check_offsets,
    check_range,
    check_texts,
    check_total,
    check_units,
    misfit,
    row_misfit,
    text_misfit,
)
from brokerset_spark.kernels.table_crc import table_crc32

_CRC: Final = isal_crc32() or table_crc32()
"""Address of the function for CRCs."""

_PAIR_SIZE_MIN: Final = 4
"""Name, separator, value and terminator; the last pair of a text may lack the terminator."""

_NOWHERE: Final = -(1 << 62)
"""A base that no chunk is long enough to leave: the loops take no negative offset for a right one."""

_GROUPS_FIRST: Final = 64
_NAME_BYTES_FIRST: Final = 4096


def _base(base: int) -> int:
    """This offset, if it fits 64 bits, else one from which no record has the right one.

    A file may have any 20 digits as its name.
    """
    return base if 0 <= base <= OFFSET_MAX else _NOWHERE


def _places(data: Bytes, texts: Texts) -> tuple[Int32s, int]:
    """Where texts end up when they lie one behind the other, and the bytes of all."""
    if len(texts.starts) != len(texts.sizes):
        raise ValueError(f"{len(texts.starts)} starts, {len(texts.sizes)} sizes: must be as many")
    offsets = np.empty(len(texts.starts) + 1, np.int32)
    total = copy_loops.lay_texts(data, _longs(texts.starts), _ints(texts.sizes), offsets)
    if total < 0:
        raise text_misfit(-1 - total)
    return offsets, total


def _longs(values: Int64s) -> Int64s:
    return np.ascontiguousarray(values, np.int64)


def _ints(values: Int32s) -> Int32s:
    return np.ascontiguousarray(values, np.int32)


class Groups:
    """Numbers the groups (topic and queue id) of records in the order in which they appear.

    Names are kept once for a file, not for each chunk: small chunks, which stay in the processor's cache,
    cost no more than large ones."""

    def __init__(self) -> None:
        self._table = np.zeros(4 * _GROUPS_FIRST, np.int32)
        self._queues, self._starts = np.empty(_GROUPS_FIRST, np.int64), np.empty(_GROUPS_FIRST, np.int64)
        self._sizes, self._names = np.empty(_GROUPS_FIRST, np.int32), np.empty(_NAME_BYTES_FIRST, np.uint8)
        self._count = self._used = 0

    def number(self, data: Bytes, topics: Texts, queue_ids: Int32s) -> Int64s:
        """The group of each record. ValueError if a topic leaves the data."""
        groups, row = np.empty(len(topics.starts), np.int64), 0
        while True:
            row, self._count, self._used = record_loops.number_groups(
                data, _longs(topics.starts), _ints(topics.sizes), _ints(queue_ids), row, groups,
                self._table, self._queues, self._starts, self._sizes, self._names, self._count, self._used,
            )  # fmt: skip
            if row < 0:
                raise text_misfit(-1 - row)
            if row == len(groups):
                return groups
            self._grow(int(topics.sizes[row]))

    def group(self, number: int) -> tuple[bytes, int]:
        """Topic and queue id of a group."""
        start = int(self._starts[number])
        return self._names[start : start + int(self._sizes[number])].tobytes(), int(self._queues[number])

    def __len__(self) -> int:
        """How many groups there are."""
        return self._count

    def _grow(self, name_size: int) -> None:
        """Make room for another group: twice as much of what is short."""
        if self._count == len(self._queues):
            self._queues = np.concatenate((self._queues, self._queues))
            self._starts = np.concatenate((self._starts, self._starts))
            self._sizes = np.concatenate((self._sizes, self._sizes))
            self._table = np.zeros(2 * len(self._table), np.int32)
            record_loops.place_groups(
                self._names, self._starts, self._sizes, self._queues, self._count, self._table
            )
        if self._used + name_size > len(self._names):
            self._names = np.concatenate((self._names, np.empty(len(self._names) + name_size, np.uint8)))


class Kernels:
    """All kernels. None of them changes its input, but for `out`.

    Arrays are contiguous. No bytes are bad enough for an exception; ValueError means that positions or sizes
    that were handed in leave the buffer, or that a number does not fit its field.
    """

    def walk(self, data: Bytes, start: int, end: int, base: int, *, final: bool, crc: bool) -> Walked:
        """Records that begin in `[start, end)`, up to the first that is not whole and consistent.

        With `final` the file ends where the data end, and what does not fit is a problem, not `SHORT`. With
        `crc` records are checked against the CRC at the end of their properties, or bodies against theirs.
        Everything else that can be checked is: magic, size, lengths, physicalOffset == base + position.
        """
        check_range(start, end)
        base, end = _base(base), min(end, OFFSET_MAX)
        room = max(min(end, len(data)) - start, 0) // RECORD_SIZE_MIN + 1
        starts, sizes = np.empty(room, np.int64), np.empty(room, np.int32)
        count, position, stop = loops.walk_records(data, start, end, base, final, crc and _CRC, starts, sizes)
        return Walked(starts[:count].copy(), sizes[:count].copy(), position, Stop(stop))

    def walk_entries(
        self, data: Bytes, start: int, end: int, base: int, *, index: int, final: bool, crc: bool
    ) -> Entries:
        """The same for the entries of a DLedger; `index` is what the first one must have, -1 for any.

        An entry of magic 1 with a body must hold one whole record: a message whose magic is damaged is a
        problem, and no entry without message.
        """
        check_range(start, end)
        base, end, index = _base(base), min(end, OFFSET_MAX), max(-1, min(index, OFFSET_MAX))
        room = max(min(end, len(data)) - start, 0) // ENTRY_HEAD_SIZE + 1
        longs = [np.empty(room, np.int64) for _ in range(3)]
        sizes, are_records = np.empty(room, np.int32), np.empty(room, np.bool_)
        count, position, stop = loops.walk_ledger(
            data,
            start,
            end,
            base,
            index,
            final,
            crc and _CRC,
            longs[0],
            sizes,
            longs[1],
            longs[2],
            are_records,
        )
        starts, indexes, terms = (each[:count].copy() for each in longs)
        return Entries(
            starts, sizes[:count].copy(), indexes, terms, are_records[:count].copy(), position, Stop(stop)
        )

    def resync(self, data: Bytes, start: int, end: int, base: int) -> int:
        """Position of the first record in `[start, end)` that is surely one, or a negative number.

        Sure is what gives itself the right offset and is followed by `CONFIRMATIONS` more, or by fewer (but
        one) and a blank record, zeros, or the end of the data. -1: there is none; `-2 - p`: none either, but
        the data end inside what begins at `p`, and more of them may show a record there. The last 7 bytes are
        too few to tell: whoever reads on keeps them.
        """
        check_range(start, end)
        return loops.find_record(data, start, min(end, OFFSET_MAX), _base(base))

    def resync_entries(self, data: Bytes, start: int, end: int, base: int) -> int:
        """The same for entries."""
        check_range(start, end)
        return loops.find_entry(data, start, min(end, OFFSET_MAX), _base(base))

    def heads(self, data: Bytes, starts: Int64s) -> Heads:
        """Fixed fields of records that `walk` found. ValueError if a record leaves the data."""
        longs, ints = np.empty((10, len(starts)), np.int64), np.empty((8, len(starts)), np.int32)
        wrong = loops.take_heads(data, _longs(starts), longs, ints)
        if wrong >= 0:
            raise misfit(wrong, starts)
        return Heads(
            body_crc=ints[0],
            queue_id=ints[1],
            flag=ints[2],
            queue_offset=longs[0],
            offset=longs[1],
            sys_flag=ints[3],
            born_timestamp=longs[2],
            store_timestamp=longs[3],
            reconsume_times=ints[4],
            prepared_transaction_offset=longs[4],
            born_host=longs[5],
            store_host=longs[6],
            body=longs[7],
            body_size=ints[5],
            topic=longs[8],
            topic_size=ints[6],
            properties=longs[9],
            properties_size=ints[7],
        )

    def find_property(self, data: Bytes, heads: Heads, name: bytes) -> Texts:
        """Value of one property in each record; of several with the same name the last one, as Java's map."""
        return self.find_properties(data, heads, (name,))[0]

    def find_properties(self, data: Bytes, heads: Heads, names: Sequence[bytes]) -> list[Texts]:
        """`find_property` for several names, in one pass over the properties."""
        keys = [b"" if not name or b"\x01" in name or b"\x02" in name else name + b"\x01" for name in names]
        shape = len(keys), len(heads.properties)
        starts, sizes = np.empty(shape, np.int64), np.empty(shape, np.int32)
        wrong = text_loops.search_properties(
            data,
            _longs(heads.properties),
            _ints(heads.properties_size),
            np.frombuffer(b"".join(keys), np.uint8),
            np.cumsum([0, *map(len, keys)], dtype=np.int64),
            starts,
            sizes,
        )
        if wrong >= 0:
            raise text_misfit(wrong)
        return [Texts(*each) for each in zip(starts, sizes, strict=True)]

    def split_properties(self, data: Bytes, starts: Int64s, sizes: Int32s) -> Pairs:
        """All pairs of texts that are properties (`name 0x01 value 0x02`, repeated), in their order.

        Pairs without name or value are left out. ValueError if a text leaves the data, or for 2 GiB of texts.
        """
        room = check_texts(data, starts, sizes)
        most = (room + len(sizes)) // _PAIR_SIZE_MIN
        offsets = np.empty(len(starts) + 1, np.int32)
        names, values = np.empty(room, np.uint8), np.empty(room, np.uint8)
        name_offsets, value_offsets = np.empty(most + 1, np.int32), np.empty(most + 1, np.int32)
        count, repeated = text_loops.split_pairs(
            data, _longs(starts), _ints(sizes), offsets, names, name_offsets, values, value_offsets
        )
        name_offsets, value_offsets = name_offsets[: count + 1], value_offsets[: count + 1]
        return Pairs(
            offsets,
            names[: name_offsets[-1]],
            name_offsets,
            values[: value_offsets[-1]],
            value_offsets,
            bool(repeated),
        )

    def copy_texts(self, data: Bytes, texts: Texts) -> Laid:
        """Copies of these texts; an empty one where there is none.

        ValueError if a text leaves the data, or for 2 GiB of texts.
        """
        offsets, total = _places(data, texts)
        check_total(total)
        flat = np.empty(total, np.uint8)
        copy_loops.copy_laid(data, _longs(texts.starts), offsets, flat)
        return Laid(flat, offsets)

    def hex_texts(self, data: Bytes, heads: Texts, tails: Texts) -> Laid:
        """The bytes of each text of `heads`, and of that of `tails` behind it, as upper-case digits.

        ValueError as `copy_texts`.
        """
        if len(heads.starts) != len(tails.starts):
            raise ValueError(
                f"{len(heads.starts)} texts and {len(tails.starts)} behind them: must be as many"
            )
        (offsets, total), (tail_offsets, tail_total) = _places(data, heads), _places(data, tails)
        check_total(2 * (total + tail_total))
        flat = np.empty(2 * (total + tail_total), np.uint8)
        copy_loops.copy_digits(data, _longs(heads.starts), offsets, _longs(tails.starts), tail_offsets, flat)
        return Laid(flat, 2 * (offsets + tail_offsets))

    def number_texts(self, data: Bytes, texts: Texts) -> Numbered:
        """Number texts; where there is none it counts as an empty one. ValueError if one leaves the data."""
        count = len(texts.starts)
        if count != len(texts.sizes):
            raise ValueError(f"{count} starts, {len(texts.sizes)} sizes: must be as many")
        slots = np.zeros(1 << (2 * count).bit_length(), np.int32)
        codes, firsts = np.empty(count, np.int32), np.empty(count, np.int64)
        found = copy_loops.number_distinct(
            data, _longs(texts.starts), _ints(texts.sizes), slots, codes, firsts
        )
        if found < 0:
            raise text_misfit(-1 - found)
        return Numbered(codes, firsts[:found].copy())

    def count_fitting(
        self, units: Bytes, rows: Int64s, offsets: Int64s, sizes: Int32s, codes: Int64s, least_code: int
    ) -> int:
        """How many queue units, from the first one on, are what rows of the columns say.

        `units` are as many as `rows`, 20 bytes each; unit n must have offset, size and code of row `rows[n]`,
        and a code of at least `least_code`. ValueError if there are fewer units, or no such row.
        """
        check_units(units, rows, offsets, sizes, codes)
        found = copy_loops.fitting_units(
            units, _longs(rows), _longs(offsets), _ints(sizes), _longs(codes), least_code
        )
        if found < 0:
            raise row_misfit(-1 - found, rows)
        return found

    def java_hashes(self, data: Bytes, texts: Texts) -> Int32s:
        """`String.hashCode` of UTF-8 texts; 0 where there is none. U+FFFD for what is no UTF-8."""
        found = np.empty(len(texts.starts), np.int32)
        wrong = text_loops.hash_texts(data, _longs(texts.starts), _ints(texts.sizes), found)
        if wrong >= 0:
            raise text_misfit(wrong)
        return found

    def to_entries(
        self,
        data: Bytes,
        starts: Int64s,
        sizes: Int32s,
        out: Bytes,
        positions: Int64s,
        out_base: int,
        *,
        first_index: int,
        term: int,
    ) -> None:
        """Write records as DLedger entries to positions of `out`, whose first byte has offset `out_base`.

        physicalOffset becomes the offset of the record inside its entry. ValueError if a row does not fit;
        those before it may have been written.
        """
        check_offsets(starts, sizes, positions, out, out_base, first_index=first_index, term=term)
        wrong = loops.write_entries(
            data, _longs(starts), _ints(sizes), out, _longs(positions), out_base, first_index, term
        )
        if wrong >= 0:
            raise misfit(wrong, starts)

    def to_records(
        self, data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, positions: Int64s, out_base: int
    ) -> None:
        """Write records to these positions of `out`; physicalOffset becomes `out_base` + position.

        ValueError as `to_entries`.
        """
        check_offsets(starts, sizes, positions, out, out_base)
        wrong = loops.write_records(data, _longs(starts), _ints(sizes), out, _longs(positions), out_base)
        if wrong >= 0:
            raise misfit(wrong, starts)

    def new_groups(self) -> Groups:
        """Without any group yet."""
        return Groups()

    def sum_groups(self, groups: Int64s, wanted: Bools, sizes: Int32s, heads: Heads, sums: Int64s) -> int:
        """Add the wanted records to the rows of their groups, see `GROUP_SUMS`; how many there were."""
        fields = heads.body_crc, heads.queue_offset, heads.offset
        return record_loops.sum_groups(groups, wanted, sizes, *fields, sums)

    def find_crcs(self, data: Bytes, starts: Int64s, sizes: Int32s) -> Int64s:
        """Numbers of the records that end with a CRC over the whole record. ValueError as `to_records`."""
        found = np.empty(len(starts), np.int64)
        count = record_loops.find_crcs(data, _longs(starts), _ints(sizes), found)
        if count < 0:
            raise misfit(-1 - count, starts)
        return found[:count]

    def pack(self, data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, total: int) -> Packed:
        """Copy records one behind the other, with zeros for what a migration changes.

        These are the offset of a half message, and the CRC over the whole record; physicalOffset becomes
        `total` + the position in `out`. ValueError as `to_records`.
        """
        found = Packed(*record_loops.pack_records(data, _longs(starts), _ints(sizes), out, total))
        if found.size < 0:
            raise misfit(-1 - found.size, starts)
        return found
