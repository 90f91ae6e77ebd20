"""Reading messages of one queue for a consumer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.results import GetResult, GetStatus
from brokerset_formats import native, records
from brokerset_formats.queue_units import UNIT, UNIT_SIZE, sizes_struct, units_struct

if TYPE_CHECKING:
    from brokerset_native import FilterProgram

FILTER_UNITS_MIN = 800
"""Units that one `get` examines, at least, when most of them have other tags (16,000 bytes in RocketMQ)."""

UNITS_MAX = 8_192
"""Units that one `get` examines, at most."""

NATIVE_CODES_MAX: Final = 1_024
"""Tags codes that the native core compares with; it searches them one by one, and Python does not."""

BYTES_MAX = 128 * 1024 * 1024
"""Bytes that one `get` returns, at most, whatever is asked for."""


class ReadLimits(NamedTuple):
    """What one `get` returns at most; the first message is returned whatever its size.

    No frozen dataclass, because one is made for each pull.
    """

    messages: int
    bytes: int


class PropertyFilter(Protocol):
    """What a consumer wants of messages, by their properties."""

    units_max: int
    """Messages that one `get` examines at most, 1 or more: each is read from the log."""

    properties_max: int
    """Bytes of properties behind which it examines no further message."""

    native_units_max: int
    """As `units_max`, where the native core examines messages, by `program`."""

    native_properties_max: int
    """As `properties_max`, there."""

    program: FilterProgram | None
    """What the native core can examine messages by; None for what only `matches` can."""

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these raw properties is wanted."""


def no_queue() -> GetResult:
    """The answer for a queue that does not exist."""
    return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0, 0)


def not_yet_readable(queue: ConsumeQueue, queue_offset: int, maximum: int) -> GetResult:
    """The answer for a number that has a message, or gets the next one, but is behind what is on disk."""
    return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, queue.min_offset, maximum, [], 0, 0)


def read_messages(
    log: CommitLog,
    queue: ConsumeQueue,
    queue_offset: int,
    maximum: int,
    limits: ReadLimits,
    codes: frozenset[int] | None,
    wanted_only: PropertyFilter | None = None,
) -> GetResult:
    """Messages of `queue` from `queue_offset` on, below `maximum`, by the rules of `getMessage` of Java.

    `codes` are the tags codes that the consumer wants, None for all; `wanted_only` examines their properties.
    """
    minimum = queue.min_offset
    if maximum == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, 0, [], 0, 0)
    if queue_offset < minimum:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum, [], 0, 0)
    if queue_offset >= maximum:
        status = GetStatus.OFFSET_OVERFLOW_ONE if queue_offset == maximum else GetStatus.OFFSET_OVERFLOW_BADLY
        return GetResult(status, maximum, minimum, maximum, [], 0, 0)
    position = queue_offset * UNIT_SIZE
    file = queue.files.find(position)
    if file is None:
        following = (queue_offset // (queue.files.segment_bytes // UNIT_SIZE) + 1) * (
            queue.files.segment_bytes // UNIT_SIZE
        )
        return GetResult(GetStatus.OFFSET_FOUND_NULL, min(following, maximum), minimum, maximum, [], 0, 0)
    in_file = (file.end - position) // UNIT_SIZE
    wanted = min(max(limits.messages, 1), UNITS_MAX)
    if wanted_only is not None:
        wanted = wanted_only.units_max if wanted_only.program is None else wanted_only.native_units_max
    elif codes is not None:
        wanted = max(wanted, FILTER_UNITS_MIN)
    count = min(wanted, maximum - queue_offset, in_file)
    begin = position - file.start
    queue.read_ahead(file, begin, count * UNIT_SIZE)
    if codes is None and wanted_only is None:
        sizes = sizes_struct(count).unpack_from(file.view, begin)
        size = sum(sizes)
        if size <= limits.bytes:
            parts = _plain_parts(log, file.view, begin, sizes, size)
            if parts is not None:
                return GetResult(GetStatus.FOUND, queue_offset + count, minimum, maximum, parts, count, size)
    selected = _NONE_SELECTED
    if native.core is not None and (codes is not None or wanted_only is not None):
        selected = _select_natively(log, file.view, begin, count, limits, codes, wanted_only)
        if selected.full:
            count = selected.examined
        elif wanted_only is not None:  # the rest costs what it costs in Python
            count = min(count, selected.examined + wanted_only.units_max)
    units = UNIT.iter_unpack(file.view[begin + selected.examined * UNIT_SIZE : begin + count * UNIT_SIZE])
    return _select(log, units, queue_offset, minimum, maximum, limits, codes, wanted_only, selected)


PlainSource = tuple[memoryview, int, int, memoryview, int, int, int, int]
"""File of the queue, position of the first unit in it, units; file of the log, its first offset, the offset
up to which records may be read there; smallest and largest number of the queue."""


def plain_source(
    log: CommitLog, queue: ConsumeQueue, queue_offset: int, maximum: int, messages_max: int
) -> PlainSource | None:
    """Where `read_messages` finds messages with any tag, in one file of the queue and one of the log.

    None in any other case. Whether all units name records there is left to whoever reads them.
    """
    minimum = queue.min_offset
    if not minimum <= queue_offset < maximum:
        return None
    position = queue_offset * UNIT_SIZE
    file = queue.files.find(position)
    if file is None:
        return None
    count = min(max(messages_max, 1), UNITS_MAX, maximum - queue_offset, (file.end - position) // UNIT_SIZE)
    begin = position - file.start
    queue.read_ahead(file, begin, count * UNIT_SIZE)
    units = file.view
    records = log.files.find(UNIT.unpack_from(units, begin)[0])
    if records is None:
        return None
    end = min(records.end, log.max_offset)
    return units, begin, count, records.view, records.start, end, minimum, maximum


def _plain_parts(
    log: CommitLog, units: memoryview, begin: int, sizes: tuple[int, ...], size: int
) -> list[memoryview] | None:
    """The records of the units at `begin` as views if all are in one file of the log, as is usual."""
    first = UNIT.unpack_from(units, begin)[0]
    end = UNIT.unpack_from(units, begin + (len(sizes) - 1) * UNIT_SIZE)[0] + sizes[-1]
    file = log.files.find(first)
    if file is None or end > file.end or end > log.max_offset:
        return None
    start, view = file.start, file.view
    if end - first == size:  # sizes are what they are, and offsets grow: so there is nothing in between
        return [view[first - start : end - start]]
    offsets = units_struct(len(sizes)).unpack_from(units, begin)[0::3]
    return [
        view[offset - start : offset - start + length] for offset, length in zip(offsets, sizes, strict=True)
    ]


class _Selected(NamedTuple):
    """What was found in the first units of a queue that were examined."""

    examined: int
    messages: int
    size: int
    full: bool
    """Whether a limit was reached."""

    runs: list[tuple[int, int]]
    """Begin and end of adjacent records."""


_NONE_SELECTED: Final = _Selected(0, 0, 0, full=False, runs=[])


def _select_natively(
    log: CommitLog,
    units: memoryview,
    begin: int,
    count: int,
    limits: ReadLimits,
    codes: frozenset[int] | None,
    wanted_only: PropertyFilter | None,
) -> _Selected:
    """What `_select` finds in the units at `begin`, as far as the native core can say."""
    there = log.files.find(UNIT.unpack_from(units, begin)[0])
    if native.core is None or there is None or (wanted_only is not None and wanted_only.program is None):
        return _NONE_SELECTED
    if codes is not None and (len(codes) > NATIVE_CODES_MAX or any(_as_int32(one) != one for one in codes)):
        return _NONE_SELECTED  # what a client says about its codes may be no hash at all
    found = native.core.select_units(
        units,
        begin,
        count,
        there.view,
        there.start,
        min(there.end, log.max_offset),
        None if codes is None else tuple(codes),
        None if wanted_only is None else wanted_only.program,
        limits.messages,
        min(limits.bytes, BYTES_MAX),
        BYTES_MAX if wanted_only is None else wanted_only.native_properties_max,
    )
    return _NONE_SELECTED if found is None else _Selected(*found)


def _select(
    log: CommitLog,
    units: Iterable[tuple[int, int, int]],
    queue_offset: int,
    minimum: int,
    maximum: int,
    limits: ReadLimits,
    codes: frozenset[int] | None,
    wanted_only: PropertyFilter | None,
    selected: _Selected,
) -> GetResult:
    """One unit after the other: with filters, over file boundaries, up to limits, past deleted records.

    `selected` is what was found in the units before them.
    """
    status = GetStatus.FOUND if selected.messages else GetStatus.NO_MATCHED_MESSAGE
    runs, size, messages = list(selected.runs), selected.size, selected.messages
    following = queue_offset + selected.examined
    skip_below = properties_size = 0
    bytes_max = min(limits.bytes, BYTES_MAX)
    properties_max = BYTES_MAX if wanted_only is None else wanted_only.properties_max
    for offset, length, code in units:
        if messages and (messages >= limits.messages or size + length > bytes_max):
            break
        if properties_size > properties_max:
            break
        following += 1
        if offset < skip_below or (codes is not None and _as_int32(code) not in codes):
            continue
        record = log.read(offset, length)
        if record is None:
            if not messages:
                status = GetStatus.MESSAGE_WAS_REMOVING
            skip_below = log.min_offset
            continue
        if wanted_only is not None:
            properties = records.properties_of(record)
            properties_size += len(properties)
            if not wanted_only.matches(properties):
                continue
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + length)
        else:
            runs.append((offset, offset + length))
        size += length
        messages += 1
        status = GetStatus.FOUND
    parts = [part for begin, end in runs if (part := log.read(begin, end - begin)) is not None]
    return GetResult(status, following, minimum, maximum, parts, messages, size)


def _as_int32(code: int) -> int:
    """What a filter compares: the low 32 bits, signed (units of delayed messages hold times)."""
    return ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000
