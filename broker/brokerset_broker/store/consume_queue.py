"""The queue of one topic and queue id: where in the commit log its messages are."""

from __future__ import annotations

import mmap
from concurrent.futures import Executor
from pathlib import Path

from brokerset_broker.store import mapping
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_formats.cursors import QueueCursor
from brokerset_formats.queue_units import (
    BLANK_SIZE,
    BLANK_UNIT,
    UNIT,
    UNIT_SIZE,
    count_before,
    first_that,
    units_struct,
)
from brokerset_formats.records import magic_for, topic_field

RESERVE_STEP_BYTES = 64 * 1024
"""Disk blocks are taken in steps: most queues are small, so a whole file for each would waste the disk."""

PREPARE_AT = 0.75
"""Part of a file that is written when the next one is made, in a thread: 75,000 messages ahead of its use.

Recovery finds no unit in a file that was made ahead, and deletes it.
"""

READ_AHEAD_BYTES = 64 * 1024
"""How far ahead of a reader units are asked for (3,276 of them), see `ConsumeQueue.read_ahead`."""

NO_LIMIT = 2**63 - 1

LAST_UNITS = 16
"""Units that are read at once when the end of what is readable is searched: it is mostly among the last."""

_pack_unit = UNIT.pack_into
_unpack_unit = UNIT.unpack_from


class ConsumeQueue(QueueCursor):
    """One queue. The loop's thread writes; `sync` may run in another.

    `next_offset` is the number of the next message, `position` the byte where its unit goes; while that is
    below `room_end`, the unit may be written without `make_room`.
    """

    __slots__ = (
        "_cleared_end",
        "_executor",
        "_generation",
        "files",
        "magic",
        "min_offset",
        "queue_id",
        "synced_position",
        "topic",
        "topic_field",
    )

    def __init__(
        self, folder: Path, topic: str, queue_id: int, file_bytes: int, executor: Executor | None = None
    ) -> None:
        """`executor` makes files ahead of their use; without one they are made when they are needed."""
        super().__init__()
        self._executor = executor
        # Else the kernel fills the page cache with the rest of the file at the first write to a new page:
        # 4 ms, and 6 MB of memory, for the first message of a queue.
        self.files = SegmentSequence(folder, file_bytes, RESERVE_STEP_BYTES, mmap.MADV_RANDOM)
        self.topic = topic
        self.queue_id = queue_id
        topic_bytes = topic.encode()
        self.topic_field = topic_field(topic_bytes)
        """What each record of the queue has between its body and the length of its properties."""
        self.magic = magic_for(topic_bytes)
        self.min_offset = 0
        """Number of the oldest message whose record is still there."""
        self.synced_position = 0
        self._cleared_end = 0
        self._generation = 0  # changes when units are dropped, so that a `sync` meanwhile does not count

    # -- writing ------------------------------------------------------------------------------------------

    def make_room(self, units: int) -> None:
        """Make sure that `units` more units can be written; StoreRefused if the disk has no room for them."""
        try:
            self._make_room(self.position + units * UNIT_SIZE)
        except OSError as error:
            raise StoreRefused(
                PutStatus.SERVICE_NOT_AVAILABLE,
                f"no room for the consume queue {self.files.folder}: {error.strerror}; free some disk space",
            ) from error

    def _make_room(self, end: int) -> None:
        files = self.files
        if not files.files:
            files.add(self.position - self.position % files.segment_bytes)
        while files.end < end:
            files.add()
        first = files.find(self.position)
        assert first is not None, "a queue's files reach to its end"
        for file in files.files[files.files.index(first) :]:
            if file.start < end and file.start + file.reserved < min(end, file.end):
                files.reserve(file, min(end - file.start, file.size))
        self._enter(first)
        last = files.files[-1]
        if self._executor is not None and self.position - last.start >= last.size * PREPARE_AT:
            files.prepare_next(self._executor)

    def _enter(self, file: MappedFile) -> None:
        if self.map_start != file.start or not self.map:
            self.map = memoryview(file.map)
            self.map_start = file.start
        self.room_end = file.start + file.reserved - file.reserved % UNIT_SIZE  # no unit ends behind it

    def put(self, offset: int, size: int, tags_code: int) -> None:
        """Write the unit of the next message; there must be room."""
        position = self.position
        _pack_unit(self.map, position - self.map_start, offset, size, tags_code)
        self.position = position + UNIT_SIZE
        self.next_offset += 1
        self.last_end = offset + size

    def put_many(self, units: bytes, last_end: int) -> None:
        """Write several units, packed; there must be room for all of them."""
        position, end = self.position, self.position + len(units)
        if end <= self.room_end:
            begin = position - self.map_start
            self.map[begin : begin + len(units)] = units
        else:
            self._put_over_files(units)
        self.position = end
        self.next_offset += len(units) // UNIT_SIZE
        self.last_end = last_end

    def _put_over_files(self, units: bytes) -> None:
        done = 0
        while done < len(units):
            file = self.files.find(self.position + done)
            assert file is not None, "room was made for all units"
            begin = self.position + done - file.start
            part = units[done : done + file.size - begin]
            file.map[begin : begin + len(part)] = part
            done += len(part)
            self._enter(file)

    def begin_at(self, queue_offset: int) -> None:
        """Let an empty queue begin at `queue_offset`, with blank units before it, as RocketMQ does."""
        assert self.next_offset == 0, "only an empty queue can begin somewhere"
        self.position = queue_offset * UNIT_SIZE
        self.make_room(1)
        self.next_offset = self.min_offset = queue_offset
        file = self.files.files[0]
        size = self.position - file.start
        file.map[:size] = BLANK_UNIT * (size // UNIT_SIZE)
        self.synced_position = file.start

    def begin_empty(self, queue_offset: int) -> None:
        """Let an empty queue begin at `queue_offset` though no message follows; a start finds it there.

        A file without a unit would say nothing: there is a blank one before the first message. Raises
        `StoreRefused`.
        """
        if queue_offset * UNIT_SIZE % self.files.segment_bytes:
            self.begin_at(queue_offset)
        else:
            self.begin_at(queue_offset - 1)
            self.put(0, BLANK_SIZE, 0)
            self.last_end = 0
            self.min_offset = queue_offset

    def restart(self) -> None:
        """Drop everything: the topic was deleted, and made again."""
        self._generation += 1
        self.files.remove_all()
        self.map = memoryview(bytearray())
        self.map_start = self._cleared_end = 0
        self.position = self.next_offset = self.min_offset = self.last_end = self.synced_position = 0
        self.room_end = -1

    def skip_to(self, queue_offset: int, offset: int) -> None:
        """Fill the numbers up to `queue_offset`, whose messages are lost, with units that have no message.

        They carry the `offset` of what follows, so that searches in the queue stay possible.
        """
        while self.next_offset < queue_offset:
            if self.position + UNIT_SIZE > self.room_end:
                self.make_room(1)
            self.put(offset, BLANK_SIZE, 0)

    # -- reading ------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Offset, size and tags code of one message, which must be below `next_offset`."""
        position = queue_offset * UNIT_SIZE
        file = self.files.find(position)
        if file is None:
            return 0, BLANK_SIZE, 0
        found: tuple[int, int, int] = _unpack_unit(file.view, position - file.start)
        return found

    def read_ahead(self, file: MappedFile, begin: int, size: int) -> None:
        """Ask the disk for the units that follow, because somebody is going to read `size` bytes at `begin`.

        The kernel reads single pages only of these files. Whoever reads on and on asks once in
        `READ_AHEAD_BYTES`.
        """
        if begin % READ_AHEAD_BYTES < size:
            written = self.position - file.start
            mapping.will_read(file.map, begin, min(begin + size + 2 * READ_AHEAD_BYTES, written))

    def end_below(self, offset: int) -> int:
        """The first number whose record ends behind `offset`, or `next_offset`: readable is what is below."""
        if self.last_end <= offset:
            return self.next_offset

        def ends_behind(queue_offset: int) -> bool:
            begin, size, _ = self.unit(queue_offset)
            return begin > offset if size == BLANK_SIZE else begin + size > offset

        number = self.next_offset
        count = min(LAST_UNITS, number - self.min_offset)
        position = self.position - count * UNIT_SIZE - self.map_start
        if position >= 0 and self.map and self.position <= self.room_end:
            units = units_struct(count).unpack_from(self.map, position)
            for begin, size in zip(units[-3::-3], units[-2::-3], strict=True):
                if (begin if size == BLANK_SIZE else begin + size) <= offset:
                    return number
                number -= 1
        return first_that(self.min_offset, number, ends_behind)

    # -- after a start, and when the log loses its oldest or newest part ------------------------------------

    def evict(self) -> None:
        """Read the queue from the disk; call `recover` next."""
        self.map = memoryview(bytearray())
        self.room_end = -1
        for file in self.files.files:
            file.evict()

    def recover(self, limit_offset: int = NO_LIMIT) -> None:
        """Find the end of the queue: behind the last unit in a row that points below `limit_offset`.

        What follows is dropped, because after a crash it may be garbage.
        """
        self._generation += 1
        files = self.files
        end = 0
        for file in reversed(files.files):
            count = count_before(file.view, file.size // UNIT_SIZE, limit_offset)
            if count:
                end = file.start + count * UNIT_SIZE
                break
        files.truncate(end)
        if files.files and limit_offset != NO_LIMIT:
            last = files.files[-1]
            if last.clear(end - last.start):
                self._cleared_end = last.end
        self.position = end
        self.synced_position = min(self.synced_position, end)
        self.next_offset = end // UNIT_SIZE
        self.room_end = -1
        self.map = memoryview(bytearray())
        self.last_end = 0
        if end:
            offset, size, _ = self.unit(self.next_offset - 1)
            last_end = offset if size == BLANK_SIZE else offset + size
            self.last_end = min(last_end, NO_LIMIT)  # it may be garbage
        self.min_offset = min(self.min_offset, self.next_offset)

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move `min_offset` to the first message whose record is not deleted (`correctMinOffset`)."""

        def is_there(queue_offset: int) -> bool:
            offset, size, _ = self.unit(queue_offset)
            return offset >= log_min_offset and not (offset == 0 and size == BLANK_SIZE)

        first = max(self.min_offset, self.files.start // UNIT_SIZE)
        self.min_offset = first_that(min(first, self.next_offset), self.next_offset, is_there)

    def last_unit_offsets(self) -> list[int]:
        """Commit log offset in the last written unit of each file, oldest file first."""
        ends = (min(file.end, self.position) // UNIT_SIZE for file in self.files.files)
        return [self.unit(end - 1)[0] for end in ends if end]

    def sync(self) -> bool:
        """Bring all units to the disk; blocks; raises OSError. False if nothing was to be done."""
        begin, end = self.synced_position, self.position
        generation = self._generation
        if begin >= max(end, self._cleared_end):
            return False
        self.files.sync(begin, max(end, self._cleared_end))
        if generation == self._generation:
            self.synced_position = end
            self._cleared_end = 0
        return True


class QueueTail:
    """What appends know of a queue whose messages are dispatched later: the number of the next message.

    Source: the topicQueueTable of Java.
    """

    __slots__ = ("last_end", "magic", "next_offset", "position", "room_end", "topic_field")

    def __init__(self, queue: ConsumeQueue) -> None:
        """All messages of the queue are dispatched now."""
        self.topic_field = queue.topic_field
        self.magic = queue.magic
        self.next_offset = queue.next_offset
        self.last_end = queue.last_end
        """Offset behind the last message that was appended."""
        self.position = 0
        self.room_end = 1

    def make_room(self, units: int) -> None:
        """Room is made when units are written."""
