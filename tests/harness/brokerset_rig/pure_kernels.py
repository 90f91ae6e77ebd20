"""The kernels in plain Python and numpy: what the compiled ones are compared with."""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD, ENTRY_HEAD_SIZE, MAGIC_NORMAL
from brokerset_formats.dledger import MAGIC_BLANK as LEDGER_BLANK
from brokerset_formats.hashing import crc31 as _crc31
from brokerset_formats.records import (
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OFFSET_POSITION,
    PROPERTY_CRC_NAME,
    PROPERTY_CRC_SIZE,
    RECORD_SIZE_MIN,
    SYS_FLAG_POSITION,
    property_crc_of,
)
from brokerset_rig.pure_text_kernels import TextKernels
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import (
    CONFIRMATIONS,
    ENTRY_MAX,
    INDEX_MAX,
    MAGIC_LEDGER_MAX,
    Bools,
    Bytes,
    Entries,
    Heads,
    Int32s,
    Int64s,
    Packed,
    Stop,
    Walked,
)
from brokerset_spark.kernels.limits import check_offsets, check_range, misfit

_SIZE_AND_MAGIC: Final = struct.Struct(">iI")

_TWO_INTS: Final = struct.Struct(">ii")

_INT: Final = struct.Struct(">i")

_SHORT: Final = struct.Struct(">h")

_LONG: Final = struct.Struct(">q")

_SIMPLE_HEAD: Final = struct.Struct(">iIi16xqi44xi")

"""Size, magic, body CRC, offset, sysFlag, body size of a record with hosts of IPv4."""

_BODY: Final = _SIMPLE_HEAD.size

_ENTRY_START: Final = struct.Struct(">iiqqq")

_HEAD_SIZE: Final = 84

"""Up to the body's length, with hosts of IPv4."""

_V6_EXTRA: Final = 12

_PREPARED_BEFORE_BODY: Final = 12

_OFFSET_END: Final = OFFSET_POSITION + 8

_MAGICS: Final = (struct.pack(">I", MAGIC_V1), struct.pack(">I", MAGIC_V2))

_RECORD_MAGIC: Final = re.compile(b"|".join(map(re.escape, _MAGICS)))

_ENTRY_MAGIC: Final = re.compile(b"\0\0\0[\1-" + bytes([MAGIC_LEDGER_MAX]) + b"]")

_FOLLOWING: Final = (Stop.SHORT, Stop.BLANK, Stop.EMPTY)

"""What may stand behind the last record."""


def _check(
    view: memoryview, position: int, limit: int, base: int, final: bool, crc: bool
) -> tuple[int, Stop]:
    """Size of the record at `position`, or 0 and what is there instead."""
    room = limit - position
    if room < BLANK_SIZE_MIN:
        return 0, Stop.EMPTY if final else Stop.SHORT
    size, magic = _SIZE_AND_MAGIC.unpack_from(view, position)
    if magic == MAGIC_BLANK:
        return 0, Stop.BLANK
    if magic not in (MAGIC_V1, MAGIC_V2):
        return 0, Stop.EMPTY if size == 0 and magic == 0 else Stop.BAD_MAGIC
    if size < RECORD_SIZE_MIN:
        return 0, Stop.BAD_SIZE
    if size > room:
        return 0, Stop.BAD_SIZE if final else Stop.SHORT
    (sys_flag,) = _INT.unpack_from(view, position + SYS_FLAG_POSITION)
    head = _HEAD_SIZE + _V6_EXTRA * (bool(sys_flag & 0x10) + bool(sys_flag & 0x20))
    end = position + size
    body = position + head + 4
    wide = magic == MAGIC_V2
    if body + 3 + wide > end:
        return 0, Stop.BAD_SIZE
    (body_size,) = _INT.unpack_from(view, position + head)
    body_end = body + body_size
    if body_size < 0 or body_end + 3 + wide > end:
        return 0, Stop.BAD_LENGTHS
    topic = body_end + 1 + wide
    topic_end = topic + int.from_bytes(view[body_end:topic], "big", signed=True)
    if not topic <= topic_end <= end - 2:
        return 0, Stop.BAD_LENGTHS
    (properties_size,) = _SHORT.unpack_from(view, topic_end)
    if properties_size < 0 or topic_end + 2 + properties_size != end:
        return 0, Stop.BAD_LENGTHS
    (offset,) = _LONG.unpack_from(view, position + OFFSET_POSITION)
    if offset != base + position:
        return 0, Stop.BAD_OFFSET
    if crc and not _is_right(view, position, body, body_end, topic_end + 2, end):
        return 0, Stop.BAD_CRC
    return size, Stop.RANGE_END


def _is_right(view: memoryview, start: int, body: int, body_end: int, properties: int, end: int) -> bool:
    """Whether a record matches the CRC at the end of its properties or, without one, the body its own."""
    at = end - PROPERTY_CRC_SIZE
    if (
        at >= properties
        and view[at : at + len(PROPERTY_CRC_NAME)] == PROPERTY_CRC_NAME
        and (at == properties or view[at - 1] == 2)
    ):
        return view[at:end] == property_crc_of(view[start:at])
    return bool(_crc31(view[body:body_end]) == _INT.unpack_from(view, start + 8)[0])


def _is_simple(view: memoryview, position: int, limit: int, base: int, crc: bool) -> int:
    """Size of a whole record of version 1 with hosts of IPv4, as most are; 0 for others and for problems."""
    if limit - position < RECORD_SIZE_MIN:
        return 0
    size: int
    size, magic, _, offset, sys_flag, body_size = _SIMPLE_HEAD.unpack_from(view, position)
    end = position + size
    body_end = position + _BODY + body_size
    if magic != MAGIC_V1 or sys_flag & 0x30 or body_size < 0 or not body_end + 3 <= end <= limit:
        return 0
    topic_end = body_end + 1 + view[body_end]
    if view[body_end] > 127 or topic_end + 2 > end or offset != base + position:
        return 0
    if topic_end + 2 + _SHORT.unpack_from(view, topic_end)[0] != end:
        return 0
    if crc and not _is_right(view, position, position + _BODY, body_end, topic_end + 2, end):
        return 0
    return size


def _check_entry(
    view: memoryview, position: int, limit: int, base: int, index: int, final: bool, crc: bool
) -> tuple[int, Stop, int, int, bool]:
    """Size, stop, index, term of the entry at `position`, and whether it holds a record."""
    room = limit - position
    if room < BLANK_SIZE_MIN:
        return 0, Stop.EMPTY if final else Stop.SHORT, 0, 0, False
    magic, size = _TWO_INTS.unpack_from(view, position)
    if magic == LEDGER_BLANK:
        return 0, Stop.BLANK, 0, 0, False
    if not MAGIC_NORMAL <= magic <= MAGIC_LEDGER_MAX:
        return 0, Stop.EMPTY if magic == 0 and size == 0 else Stop.BAD_MAGIC, 0, 0, False
    if size < ENTRY_HEAD_SIZE:
        return 0, Stop.BAD_SIZE, 0, 0, False
    if size > room:
        return 0, Stop.BAD_SIZE if final else Stop.SHORT, 0, 0, False
    _, _, found, term, place = _ENTRY_START.unpack_from(view, position)
    body_size = size - ENTRY_HEAD_SIZE
    if _INT.unpack_from(view, position + 44)[0] != body_size:
        return 0, Stop.BAD_LENGTHS, 0, 0, False
    if place != base + position:
        return 0, Stop.BAD_OFFSET, 0, 0, False
    if not 0 <= found <= INDEX_MAX or term < 0 or (index >= 0 and found != index):
        return 0, Stop.BAD_INDEX, 0, 0, False
    inside = position + ENTRY_HEAD_SIZE
    if magic == MAGIC_NORMAL and body_size > 0:
        record, stop = _check(view, inside, position + size, base, True, crc)
        if record == 0:
            return 0, Stop.BAD_MAGIC if stop in (Stop.BLANK, Stop.EMPTY) else stop, 0, 0, False
        if record != body_size:
            return 0, Stop.BAD_SIZE, 0, 0, False
        return size, Stop.RANGE_END, found, term, True
    if body_size >= RECORD_SIZE_MIN and view[inside + 4 : inside + 8] in _MAGICS:
        return 0, Stop.BAD_MAGIC, 0, 0, False
    return size, Stop.RANGE_END, found, term, False


def _is_sure(view: memoryview, first: int, base: int) -> bool | None:
    """Whether records follow from `first`; None if the data end inside the first one."""
    position, limit = first, len(view)
    for _ in range(CONFIRMATIONS + 1):
        size, stop = _check(view, position, limit, base, False, False)
        if size == 0:
            if position > first:
                return stop in _FOLLOWING
            if stop is not Stop.SHORT:
                return False
            fits = limit - first < 36 or _LONG.unpack_from(view, first + OFFSET_POSITION)[0] == base + first
            return None if fits else False
        position += size
    return True


def _is_sure_entry(view: memoryview, first: int, base: int) -> bool | None:
    """`_is_sure` for entries."""
    position, limit, index = first, len(view), -1
    if limit - first < 32:
        return None
    if _LONG.unpack_from(view, first + 24)[0] != base + first:
        return False
    for _ in range(CONFIRMATIONS + 1):
        size, stop, index, _, _ = _check_entry(view, position, limit, base, index, False, False)
        if size == 0:
            if position > first:
                return stop in _FOLLOWING
            return None if stop is Stop.SHORT else False
        position, index = position + size, index + 1
    return True


class PureKernels(TextKernels):
    """Each function does what `brokerset_spark.kernels.compiled.Kernels` says of it."""

    def walk(self, data: Bytes, start: int, end: int, base: int, *, final: bool, crc: bool) -> Walked:
        """Records that begin in `[start, end)`, up to the first that is not whole and consistent.

        With `final` the file ends where the data end, and what does not fit is a problem, not `SHORT`. With
        `crc` records are checked against the CRC at the end of their properties, or bodies against theirs.
        Everything else that can be checked is: magic, size, lengths, physicalOffset == base + position.
        """
        check_range(start, end)
        view, limit = data.data, len(data)
        starts: list[int] = []
        sizes: list[int] = []
        position, stop = start, Stop.RANGE_END
        while position < end:
            size = _is_simple(view, position, limit, base, crc)
            if size == 0:
                size, stop = _check(view, position, limit, base, final, crc)
                if size == 0:
                    break
            starts.append(position)
            sizes.append(size)
            position += size
        return Walked(np.array(starts, np.int64), np.array(sizes, np.int32), position, stop)

    def walk_entries(
        self, data: Bytes, start: int, end: int, base: int, *, index: int, final: bool, crc: bool
    ) -> Entries:
        """The same for the entries of a DLedger; `index` is what the first one must have, -1 for any.

        An entry of magic 1 with a body must hold one whole record: a message whose magic is damaged is a
        problem, and no entry without message.
        """
        check_range(start, end)
        view, limit = data.data, len(data)
        rows: list[tuple[int, int, int, int, bool]] = []
        position, stop = start, Stop.RANGE_END
        while position < end:
            size, stop, found, term, is_record = _check_entry(view, position, limit, base, index, final, crc)
            if size == 0:
                break
            rows.append((position, size, found, term, is_record))
            position += size
            index = found + 1
        columns = list(zip(*rows, strict=True)) or [(), (), (), (), ()]
        return Entries(
            np.array(columns[0], np.int64),
            np.array(columns[1], np.int32),
            np.array(columns[2], np.int64),
            np.array(columns[3], np.int64),
            np.array(columns[4], np.bool_),
            position,
            stop,
        )

    def resync(self, data: Bytes, start: int, end: int, base: int) -> int:
        """Position of the first record in `[start, end)` that is surely one, or a negative number.

        Sure is what gives itself the right offset and is followed by `CONFIRMATIONS` more, or by fewer (but
        one) and a blank record, zeros, or the end of the data. -1: there is none; `-2 - p`: none either, but
        the data end inside what begins at `p`, and more of them may show a record there. The last 7 bytes are
        too few to tell: whoever reads on keeps them.
        """
        check_range(start, end)
        view, partial = data.data, -1
        for found in _RECORD_MAGIC.finditer(view, start + 4, max(end + 7, 0)):
            candidate = found.start() - 4
            sure = _is_sure(view, candidate, base)
            if sure:
                return candidate
            if sure is None and partial == -1:
                partial = -2 - candidate
        return partial

    def resync_entries(self, data: Bytes, start: int, end: int, base: int) -> int:
        """The same for entries."""
        check_range(start, end)
        view, partial = data.data, -1
        for found in _ENTRY_MAGIC.finditer(view, start, end + 3):
            candidate = found.start()
            sure = _is_sure_entry(view, candidate, base)
            if sure:
                return candidate
            if sure is None and partial == -1:
                partial = -2 - candidate
        return partial

    def heads(self, data: Bytes, starts: Int64s) -> Heads:
        """Fixed fields of records that `walk` found. ValueError if a record leaves the data."""

        def column(at: Int64s, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            """Numbers of `size` bytes at these positions."""
            wrong = (at < 0) | (at > len(data) - size)
            if wrong.any():
                raise misfit(int(wrong.argmax()), starts)
            if len(at) == 0:
                return np.empty(0, np.int64)
            everywhere = np.ndarray((len(data) - size + 1,), f">i{size}", data, strides=(1,))
            return everywhere[at].astype(np.int64)

        outside = starts < 0
        if outside.any():
            raise misfit(int(outside.argmax()), starts)
        sys_flag = column(starts + 36, 4).astype(np.int32)
        born = starts + 48
        extra = np.where(sys_flag & 0x10, _V6_EXTRA, 0)
        store_time = starts + 56 + extra
        store = store_time + 8
        rest = store + 8 + np.where(sys_flag & 0x20, _V6_EXTRA, 0)
        body_size = column(rest + 12, 4).astype(np.int32)
        body = rest + 16
        topic_size_at = body + body_size
        wide = column(starts + 4, 4) == np.int32(np.uint32(MAGIC_V2).view(np.int32))
        topic = topic_size_at + np.where(wide, 2, 1)
        narrow_size = column(topic_size_at, 1)
        wide_size = column(topic_size_at, 2)
        topic_size = np.where(wide, wide_size, narrow_size).astype(np.int32)
        properties = topic + topic_size + 2
        properties_size = column(properties - 2, 2).astype(np.int32)
        wrong = (body_size < 0) | (topic_size < 0) | (properties_size < 0)
        wrong |= properties + properties_size > len(data)
        if wrong.any():
            raise misfit(int(wrong.argmax()), starts)
        return Heads(
            body_crc=column(starts + 8, 4).astype(np.int32),
            queue_id=column(starts + 12, 4).astype(np.int32),
            flag=column(starts + 16, 4).astype(np.int32),
            queue_offset=column(starts + 20, 8).astype(np.int64),
            offset=column(starts + 28, 8).astype(np.int64),
            sys_flag=sys_flag,
            born_timestamp=column(starts + 40, 8).astype(np.int64),
            store_timestamp=column(store_time, 8).astype(np.int64),
            reconsume_times=column(rest, 4).astype(np.int32),
            prepared_transaction_offset=column(rest + 4, 8).astype(np.int64),
            born_host=born,
            store_host=store,
            body=body,
            body_size=body_size,
            topic=topic,
            topic_size=topic_size,
            properties=properties,
            properties_size=properties_size,
        )

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
        source, target = data.data, out.data
        rows = zip(starts.tolist(), sizes.tolist(), positions.tolist(), strict=True)
        for number, (start, size, position) in enumerate(rows):
            inside = position + ENTRY_HEAD_SIZE
            if not _OFFSET_END <= size <= ENTRY_MAX - ENTRY_HEAD_SIZE or not 0 <= start <= len(source) - size:
                raise misfit(number, starts)
            if not 0 <= position <= len(target) - size - ENTRY_HEAD_SIZE:
                raise misfit(number, starts)
            ENTRY_HEAD.pack_into(
                target, position,
                MAGIC_NORMAL, size + ENTRY_HEAD_SIZE, first_index + number, term, out_base + position,
                0, 0, 0, size,
            )  # fmt: skip
            target[inside : inside + size] = source[start : start + size]
            _LONG.pack_into(target, inside + OFFSET_POSITION, out_base + inside)

    def to_records(
        self, data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, positions: Int64s, out_base: int
    ) -> None:
        """Write records to these positions of `out`; physicalOffset becomes `out_base` + position.

        ValueError as `to_entries`.
        """
        check_offsets(starts, sizes, positions, out, out_base)
        source, target = data.data, out.data
        rows = zip(starts.tolist(), sizes.tolist(), positions.tolist(), strict=True)
        for number, (start, size, position) in enumerate(rows):
            if size < _OFFSET_END or not 0 <= start <= len(source) - size:
                raise misfit(number, starts)
            if not 0 <= position <= len(target) - size:
                raise misfit(number, starts)
            target[position : position + size] = source[start : start + size]
            _LONG.pack_into(target, position + OFFSET_POSITION, out_base + position)

    def sum_groups(self, groups: Int64s, wanted: Bools, sizes: Int32s, heads: Heads, sums: Int64s) -> int:
        """Add the wanted records to the rows of their groups, see `GROUP_SUMS`; how many there were."""
        rows = np.flatnonzero(wanted)
        at = groups[rows]
        np.add.at(sums[:, 0], at, 1)
        for column, values in ((1, sizes), (2, heads.body_crc), (3, heads.queue_offset)):
            np.add.at(sums[:, column], at, values[rows].astype(np.int64))
        np.minimum.at(sums[:, 4], at, heads.queue_offset[rows])
        np.maximum.at(sums[:, 5], at, heads.queue_offset[rows])
        np.maximum.at(sums[:, 6], at, heads.offset[rows])
        return len(rows)

    def find_crcs(self, data: Bytes, starts: Int64s, sizes: Int32s) -> Int64s:
        """Numbers of the records that end with a CRC over the whole record. ValueError as `to_records`."""
        wrong = (starts < 0) | (sizes < 0) | (starts > len(data) - sizes.astype(np.int64))
        if wrong.any():
            raise misfit(int(wrong.argmax()), starts)
        ends = starts + sizes
        rows = np.flatnonzero(sizes > PROPERTY_CRC_SIZE)
        rows = rows[data[ends[rows] - 1] == 2]
        names = data[(ends[rows] - PROPERTY_CRC_SIZE)[:, None] + np.arange(len(PROPERTY_CRC_NAME))]
        found: Int64s = rows[(names == np.frombuffer(PROPERTY_CRC_NAME, np.uint8)).all(axis=1)]
        return found

    def pack(self, data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, total: int) -> Packed:
        """Copy records one behind the other, with zeros for what a migration changes.

        These are the offset of a half message, and the CRC over the whole record; physicalOffset becomes
        `total` + the position in `out`. ValueError as `to_records`.
        """
        ends = np.cumsum(sizes, dtype=np.int64)
        positions = ends - sizes
        self.to_records(data, starts, sizes, out, positions, total)
        fields = self.heads(data, starts)
        named = np.flatnonzero(fields.prepared_transaction_offset)
        at = fields.body[named] - starts[named] + positions[named] - _PREPARED_BEFORE_BODY
        out[at[:, None] + np.arange(8)] = 0
        crcs = self.find_crcs(data, starts, sizes)
        out[(ends[crcs] - 11)[:, None] + np.arange(10)] = 0
        return Packed(int(ends[-1]) if len(ends) else 0, len(named), len(crcs))


def use_pure_kernels() -> None:
    """Use them in this process, which lives for a moment: numba would take most of it to load."""
    for name in dir(PureKernels):
        if not name.startswith("_"):
            setattr(KERNELS, name, getattr(PureKernels(), name))
