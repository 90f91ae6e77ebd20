"""A commit log of the simulation: real bytes in small files, a page cache that a power failure takes.

Records are not RocketMQ's; they say how long they are, where they stand, which message they hold, its number
in the (only) queue, and a sum over all of it. Records of metadata have bytes instead of a message, and
besides a number in a queue of their own. What replication does with a log (`ReplicaLog`) is the same for all.
"""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from brokerset_broker.store.replica_log import LogSource, ReplicaLogFailed

SEGMENT_BYTES = 2_048
"""Of one file; small, so that runs have many."""

RECORD = struct.Struct(">IIqqq")
"""Size, CRC of what follows (and of the size), offset, message, queue offset; then filling."""

REST = struct.Struct(">qqq")
CRC_BEGIN = 8
"""Where in a record begins what its sum is over."""

BLANK_MESSAGE = -1
"""The message of a record that only fills a file."""

METADATA_MESSAGE = -2
"""The message of a record that holds metadata."""

METADATA_NUMBER = struct.Struct(">q")
"""Before the bytes of a record of metadata: its number among such."""

METADATA_BYTES_MAX = SEGMENT_BYTES - 2 * RECORD.size - METADATA_NUMBER.size
"""A file has room for one record of metadata with so many bytes, and for the next filling."""

SLICE_RECORDS = 20
"""Records that are dispatched in one turn of the loop."""

FLUSH_SECONDS_MAX = 5.0
"""After so long who waits for the disk is told that it takes too long."""


@dataclass(slots=True)
class Volume:
    """What a log has on its disk and in the page cache of its host; outlives processes."""

    start: int = 0
    data: bytearray = None  # type: ignore[assignment]  # made below
    synced: int = 0
    """Everything below is on the disk."""

    confirmed: int = 0
    """Of the checkpoint, as last written."""

    def __post_init__(self) -> None:
        if self.data is None:
            self.data = bytearray()

    @property
    def end(self) -> int:
        """Behind the last byte."""
        return self.start + len(self.data)

    def bytes_between(self, begin: int, end: int) -> bytes:
        """What there is of a range."""
        return bytes(self.data[max(0, begin - self.start) : max(0, end - self.start)])

    def copy(self, *, durable: bool = False) -> Volume:
        """Another volume with the same content; `durable`: only what a power failure would leave for sure."""
        size = max(0, (self.synced if durable else self.end) - self.start)
        return Volume(self.start, bytearray(self.data[:size]), min(self.synced, self.end), self.confirmed)

    def lose_power(self, dice: random.Random) -> None:
        """Of what was not synced a part stays, torn or with holes."""
        kept = max(0, self.synced - self.start)
        tail = bytearray(self.data[kept:])
        cut = dice.choice((0, len(tail), dice.randint(0, len(tail))))
        del tail[cut:]
        if tail and dice.random() < 0.5:
            hole = dice.randrange(len(tail))
            tail[hole : hole + 64] = bytes(len(tail[hole : hole + 64]))
        self.data[kept:] = tail
        self.confirmed = min(self.confirmed, self.end)


@dataclass(frozen=True, slots=True)
class SimRecord:
    """One whole record."""

    offset: int
    size: int
    message: int
    number: int
    """Its queue offset."""

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class MetadataUnit:
    """Where a record of metadata is."""

    number: int
    """Among records of metadata."""

    offset: int
    size: int


def encode_record(offset: int, size: int, message: int, number: int, payload: bytes = b"") -> bytes:
    """A record of `size` bytes, at least the size of its head and of `payload`."""
    rest = REST.pack(offset, message, number) + payload + bytes(size - RECORD.size - len(payload))
    return struct.pack(">II", size, zlib.crc32(rest, size)) + rest


def read_record(data: bytes | bytearray | memoryview, position: int, offset: int) -> SimRecord | None:
    """The whole record at a position; None if there is none, or not all of it."""
    if position + RECORD.size > len(data):
        return None
    size, crc, there, message, number = RECORD.unpack_from(data, position)
    if size < RECORD.size or position + size > len(data) or there != offset:
        return None
    if zlib.crc32(data[position + CRC_BEGIN : position + size], size) != crc:
        return None
    return SimRecord(offset, size, message, number)


def records(volume: Volume, begin: int, end: int) -> Iterator[SimRecord]:
    """Whole records from `begin`, where one must begin, below `end`, fillings left out."""
    offset = begin
    while offset < end:
        found = read_record(volume.data, offset - volume.start, offset)
        if found is None or found.end > end:
            return
        if found.message != BLANK_MESSAGE:
            yield found
        offset = found.end


class SimReplicaLog:
    """Implements `ReplicaLog` on a `Volume` for one process; opening it recovers the volume."""

    def __init__(
        self,
        volume: Volume,
        *,
        sync_flush: bool,
        slow: Callable[[Callable[[], None]], Awaitable[None]],
        alive: Callable[[], bool],
        on_confirm: Callable[[int, int], None],
        on_truncated: Callable[[int, bool], None],
        on_append: Callable[[SimRecord], None],
    ) -> None:
        """`on_confirm` gets the confirmed offset before and after; `on_truncated` where the log is cut, and
        whether all of it goes."""
        self.volume = volume
        self._sync_flush = sync_flush
        self._slow = slow
        self._alive = alive
        self._on_confirm = on_confirm
        self._on_truncated = on_truncated
        self._on_append = on_append
        self.on_removed: Callable[[int], None] = lambda offset: None
        """Told where the log was cut, or starts from scratch, once that is done."""

        self.metadata: list[MetadataUnit] = []
        """Records of metadata, their numbers without gaps."""

        self.metadata_next = 0
        """Number of the next one."""

        self._flush_waiters: list[tuple[int, float, Callable[[bool], None]]] = []
        self._leading = False
        self._confirm_all = False
        self._next = 0
        self._recover()
        self._max = volume.end
        self._received = volume.end
        self._confirmed = max(volume.start, min(volume.confirmed, self._max))
        self._wished = self._confirmed
        self._wished_partly = 0
        self._appended: Callable[[int], None] = lambda end: None
        self._confirmed_listener: list[Callable[[int], None]] = []
        self._acknowledged: Callable[[], None] = lambda: None
        self._turn = False
        self._reported = self._confirmed
        self._dispatching = False
        self._failure: str | None = None

    def _recover(self) -> None:
        volume = self.volume
        end = volume.start
        while (found := read_record(volume.data, end - volume.start, end)) is not None:
            end = found.end
            self._count(found)
        del volume.data[end - volume.start :]
        volume.synced = min(volume.synced, end)

    def _count(self, found: SimRecord) -> None:
        """A record is in its queue."""
        if found.message != BLANK_MESSAGE:
            self._next = found.number + 1
        if found.message == METADATA_MESSAGE:
            position = found.offset - self.volume.start + RECORD.size
            self._count_metadata(found, METADATA_NUMBER.unpack_from(self.volume.data, position)[0])

    def _count_metadata(self, found: SimRecord, number: int) -> None:
        self.metadata.append(MetadataUnit(number, found.offset, found.size))
        self.metadata_next = number + 1

    def _count_again(self) -> None:
        """The end of the log was cut off, and of its queue."""
        self._next = self.metadata_next = 0
        self.metadata.clear()
        for found in records(self.volume, self.volume.start, self._max):
            self._count(found)

    # -- what is there ------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.volume.start

    @property
    def max_offset(self) -> int:
        return self._max

    @property
    def received_end(self) -> int:
        return self._received

    @property
    def acknowledged_end(self) -> int:
        return min(self.volume.synced, self._received) if self._sync_flush else self._received

    @property
    def confirmed_offset(self) -> int:
        return self._confirmed

    @property
    def segment_bytes(self) -> int:
        return SEGMENT_BYTES

    @property
    def flushed_offset(self) -> int:
        """Everything below is on the disk."""
        return self.volume.synced

    def readable(self, begin: int) -> list[SimRecord]:
        """Confirmed records from `begin`, where one begins."""
        return list(records(self.volume, begin, self._confirmed))

    def metadata_bytes(self, unit: MetadataUnit) -> bytes:
        """What a record of metadata holds."""
        begin = unit.offset - self.volume.start + RECORD.size + METADATA_NUMBER.size
        return bytes(self.volume.data[begin : unit.offset - self.volume.start + unit.size])

    def metadata_byte(self, unit: MetadataUnit, position: int) -> int:
        """One byte of that."""
        begin = unit.offset - self.volume.start + RECORD.size + METADATA_NUMBER.size
        return self.volume.data[begin + position]

    @property
    def leads(self) -> bool:
        """Whether the log takes appends."""
        return self._leading and self._alive()

    def failure(self) -> str | None:
        return self._failure

    # -- confirming ---------------------------------------------------------------------------------------

    def confirm_appends(self, on: bool) -> None:
        """Whether everything appended is confirmed at once."""
        self._confirm_all = on
        if on:
            self.confirm(self._max)

    def confirm(self, offset: int, *, partial: bool = False) -> None:
        if partial:
            self._wished_partly = max(self._wished_partly, offset)
        else:
            self._wished = max(self._wished, offset)
        self._confirm_wished()

    def _confirm_wished(self) -> None:
        if not self._alive():
            return
        limit = min(self._max, self.volume.synced) if self._sync_flush else self._max
        target = self._whole_below(min(self._wished, limit)) if self._sync_flush else min(self._wished, limit)
        if self._wished_partly > target:
            target = max(target, self._whole_below(min(self._wished_partly, limit)))
        if target > self._confirmed:
            before, self._confirmed = self._confirmed, target
            self._on_confirm(before, target)
            self._schedule()

    def _whole_below(self, limit: int) -> int:
        """The last place between two records at or below `limit`."""
        offset = self._confirmed
        while offset < limit:
            found = read_record(self.volume.data, offset - self.volume.start, offset)
            if found is None or found.end > limit:
                break
            offset = found.end
        return offset

    def on_confirmed(self, listener: Callable[[int], None]) -> None:
        self._confirmed_listener.append(listener)

    def _schedule(self) -> None:
        if not self._turn:
            self._turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn = False
        if not self._alive():
            return
        if self._leading:
            self._appended(self._max)
            if self._confirm_all:
                self.confirm(self._max)
        if self._reported != self._confirmed:
            self._reported = self._confirmed
            for listener in self._confirmed_listener:
                listener(self._confirmed)

    # -- leading ------------------------------------------------------------------------------------------

    def lead(self) -> None:
        assert self._received == self._max, "everything received is finished before a log leads"
        self._leading = True

    def append_metadata(self, data: bytes) -> MetadataUnit:
        """Store metadata, at most `METADATA_BYTES_MAX`."""
        assert len(data) <= METADATA_BYTES_MAX, "pieces of metadata are small here"
        payload = METADATA_NUMBER.pack(self.metadata_next) + data
        made = self.append(METADATA_MESSAGE, RECORD.size + len(payload), payload)
        self._count_metadata(made, self.metadata_next)
        return self.metadata[-1]

    def append(self, message: int, size: int, payload: bytes = b"") -> SimRecord:
        """Store a message; the caller knows that the log leads."""
        assert self._leading
        left = SEGMENT_BYTES - self._max % SEGMENT_BYTES
        if size + RECORD.size > left:  # room for the next filling stays
            self.volume.data += encode_record(self._max, left, BLANK_MESSAGE, -1)
            self._max += left
        made = SimRecord(self._max, size, message, self._next)
        self._on_append(made)
        self.volume.data += encode_record(self._max, size, message, made.number, payload)
        self._max = self._received = made.end
        self._next += 1
        self._schedule()
        return made

    def on_appended(self, listener: Callable[[int], None]) -> None:
        self._appended = listener

    def view(self, offset: int, size: int) -> memoryview:
        end = min(offset + size, (offset // SEGMENT_BYTES + 1) * SEGMENT_BYTES, self._max)
        return memoryview(bytes(self.volume.data[offset - self.volume.start : end - self.volume.start]))

    def source(self, offset: int, size: int) -> LogSource:
        raise AssertionError("a simulated link takes views")

    # -- following ----------------------------------------------------------------------------------------

    def follow(self) -> None:
        self._leading = False
        self._confirm_all = False

    def room(self, size: int) -> memoryview:
        assert not self._leading
        left = SEGMENT_BYTES - self._received % SEGMENT_BYTES
        self._buffer = bytearray(min(size, left))
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        if self._leading or not self._alive():
            return
        position = self._received - self.volume.start
        self.volume.data[position:] = self._buffer[:size]
        self._received += size
        if not self._dispatching:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def on_acknowledged(self, listener: Callable[[], None]) -> None:
        self._acknowledged = listener

    def _dispatch(self) -> None:
        self._dispatching = False
        if not self._alive() or self._leading:
            return
        if not self._dispatch_some(SLICE_RECORDS):
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)
        self._confirm_wished()

    def _dispatch_some(self, count: int) -> bool:
        """Dispatch up to `count` records; True when nothing whole is left."""
        volume = self.volume
        for _ in range(count):
            position = self._max - volume.start
            found = read_record(volume.data, position, self._max)
            if found is None:
                if self._received - self._max >= RECORD.size:
                    size = RECORD.unpack_from(volume.data, position)[0]
                    if not RECORD.size <= size <= SEGMENT_BYTES or self._received - self._max >= size:
                        self._failure = f"the bytes at {self._max} are no record"
                return True
            self._max = found.end
            self._count(found)
        return False

    async def finish_received(self) -> int:
        while not self._dispatch_some(SLICE_RECORDS):  # noqa: ASYNC110  # others get their turn of the loop
            await asyncio.sleep(0)
        if self._failure is not None:
            raise ReplicaLogFailed(self._failure)
        await self._slow(lambda: None)
        if not self._alive():  # another process may have the volume by now
            return self._max
        del self.volume.data[self._max - self.volume.start :]
        self.volume.synced = min(self.volume.synced, self._max)
        self._received = self._max
        self._confirm_wished()
        self._forget_wishes()
        return self._max

    def _forget_wishes(self) -> None:
        """What was told about bytes behind the end came from somebody who is not followed any more."""
        self._wished, self._wished_partly = self._confirmed, 0

    async def truncate(self, offset: int, *, keep_copy: bool) -> None:
        assert not self._leading
        await self._slow(lambda: None)
        if not self._alive():
            return
        self._on_truncated(offset, False)
        volume = self.volume
        del volume.data[max(0, offset - volume.start) :]
        volume.confirmed = min(volume.confirmed, offset)
        volume.synced = volume.end
        self._received = volume.end
        self._max = min(self._max, volume.end)
        self._confirmed = min(self._confirmed, self._max)
        self._forget_wishes()
        self._count_again()
        self._failure = None
        await self._slow(lambda: None)
        self.on_removed(offset)

    async def begin_at(self, offset: int) -> None:
        assert not self._leading
        await self._slow(lambda: None)
        if not self._alive():
            return
        volume = self.volume
        if volume.data:
            self._on_truncated(volume.start, True)
        volume.start = offset
        volume.data = bytearray()
        volume.synced = volume.confirmed = offset
        self._next = self.metadata_next = 0
        self.metadata.clear()
        self._max = self._received = self._confirmed = offset
        self._forget_wishes()
        self._failure = None
        await self._slow(lambda: None)
        self.on_removed(offset)

    # -- the disk -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Everything whole is on the disk now, and the checkpoint says how far it is confirmed."""
        if not self._alive():
            return
        self.volume.synced = max(self.volume.synced, self._max)
        self.volume.confirmed = max(self.volume.confirmed, min(self._confirmed, self.volume.synced))
        self._confirm_wished()
        self._acknowledged()
        waiting, self._flush_waiters = self._flush_waiters, []
        now = asyncio.get_running_loop().time()
        for end, deadline, callback in waiting:
            if end <= self.volume.synced:
                callback(True)
            elif now >= deadline:
                callback(False)
            else:
                self._flush_waiters.append((end, deadline, callback))

    def when_flushed(self, end: int, callback: Callable[[bool], None]) -> None:
        """Call back when the log is on the disk up to `end`; with False if that takes too long."""
        if end <= self.volume.synced:
            callback(True)
        else:
            deadline = asyncio.get_running_loop().time() + FLUSH_SECONDS_MAX
            self._flush_waiters.append((end, deadline, callback))

    def delete_before(self, offset: int) -> bool:
        """Retention: forget whole files below `offset`; whether there were any."""
        volume = self.volume
        start = min(offset, self._confirmed) // SEGMENT_BYTES * SEGMENT_BYTES
        if start <= volume.start:
            return False
        del volume.data[: start - volume.start]
        volume.start = start
        self.metadata = [unit for unit in self.metadata if unit.offset >= start]
        return True
