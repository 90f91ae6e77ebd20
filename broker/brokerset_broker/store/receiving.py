"""From bytes that a master sent to queues and index: checked, and put in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.dispatch import Arrivals, Dispatcher, derived, has_unit
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.plain_records import QueueRun, put_runs, take_plain
from brokerset_broker.store.recovery import scan
from brokerset_broker.store.segments import MappedFile
from brokerset_formats.dledger import BLANK as LEDGER_BLANK
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, MAGIC_NORMAL
from brokerset_formats.dledger import MAGIC_BLANK as LEDGER_BLANK_MAGIC
from brokerset_formats.hashing import crc31
from brokerset_formats.hosts import HOST_SIZE_V4, HOST_SIZE_V6
from brokerset_formats.light_queues import PROPERTIES_MARK, QUEUE_ID, dispatched_queues
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.queue_units import units_struct
from brokerset_formats.records import (
    BLANK,
    BLANK_SIZE_MIN,
    FIXED,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_SIZE,
    RECORD_SIZE_MIN,
    Buffer,
    RecordHead,
    RecordProblem,
    SysFlag,
    ends_with_property_crc,
    fixed_struct,
    property_crc_of,
)

log = structlog.get_logger(__name__)

SLICE_RECORDS = 400
"""Records that one step puts; about 1.5 ms."""

SLICE_BYTES = 2 * 1024 * 1024
"""Bytes after which a step ends: reading them for their CRC takes about 1 ms."""

NATIVE_SLICE_RECORDS = 4_000
"""The same when the native core checks and parses them; about 1 ms."""

TOPICS_MAX = 4_096
"""Names of topics that are remembered; the table is cleared when it is full."""

_MAGICS = (MAGIC_V1, MAGIC_V2)
_HEAD_SIZE = FIXED.size
_HOSTS_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_HEADS_V6 = {
    SysFlag.BORN_HOST_V6: fixed_struct(HOST_SIZE_V6, HOST_SIZE_V4),
    SysFlag.STORE_HOST_V6: fixed_struct(HOST_SIZE_V4, HOST_SIZE_V6),
    _HOSTS_V6: fixed_struct(HOST_SIZE_V6, HOST_SIZE_V6),
}
_IN_NO_QUEUE = SysFlag.TRANSACTION_PREPARED  # this bit is in rolled back records, too
_IN_NO_INDEX = SysFlag.TRANSACTION_ROLLBACK
_SCHEDULE = SCHEDULE_TOPIC.encode()
_LIGHT = PROPERTIES_MARK

ADVICE = (
    "the disk of the master or of this replica is damaged; check both, then have the damaged one "
    "replaced (brokerset replica replace)"
)


class Step(Enum):
    """How a step ended."""

    MORE = "MORE"
    """There is more to put."""

    WAITING = "WAITING"
    """Everything whole is put."""

    NO_ROOM = "NO_ROOM"
    """A queue has no room on the disk; the same step may work later."""

    FAILED = "FAILED"
    """What follows is no record of this log."""


class _Wrong(Exception):
    """A whole record that cannot be right; the text says why."""


@dataclass(slots=True, eq=False)
class _Run:
    """New units of one queue, and what they have in common."""

    topic: str
    queue: ConsumeQueue
    next_offset: int
    units: list[int]
    last_end: int = 0

    def packed(self) -> QueueRun:
        """The run as it is put; it must have units."""
        codes = self.units[2::3]
        code = codes[0] if codes.count(codes[0]) == len(codes) else None
        return QueueRun(self.queue, units_struct(len(codes)).pack(*self.units), self.last_end, code)


class ReceivedRecords:
    """Puts records behind the end of the log into their queues, and moves the end. No step waits."""

    _entry_head = 0
    """Bytes before each record."""

    def __init__(
        self, log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher, arrivals: Arrivals
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._arrivals = arrivals
        self._topics: dict[bytes, str] = {}
        self.problem: str | None = None
        """Why the last step ended with `NO_ROOM` or `FAILED`, with advice."""

    def step(self, received_end: int) -> Step:
        """Put some of what lies between the end of the log and `received_end`."""
        log = self._log
        file = log.files.find(log.max_offset)
        if file is None or log.max_offset >= received_end:
            return Step.WAITING
        self.problem = None
        limit = min(received_end, file.end) - file.start
        try:
            return Step.MORE if self._take_plain(file, limit) else self._step(file, limit)
        except _Wrong as wrong:
            offset = log.max_offset
            self.problem = (
                f"{file.path} at byte {offset - file.start} (offset {offset} of the log): {wrong}; {ADVICE}"
            )
            return Step.FAILED
        except StoreRefused as refusal:
            self.problem = refusal.reason
            return Step.NO_ROOM

    def _take_plain(self, file: MappedFile, limit: int) -> bool:
        """Put the plain records that follow, if the native core can; else nothing has been done."""
        log, dispatcher = self._log, self._dispatcher
        position = log.max_offset - file.start
        taken = take_plain(
            file,
            position,
            self._queues,
            stop=min(limit, position + SLICE_BYTES),
            limit=limit,
            records_max=NATIVE_SLICE_RECORDS,
            entry_head=self._entry_head,
            units=True,
            index=dispatcher.has_index,
        )
        if taken is None:
            return False
        self._put_runs(taken.runs)
        dispatcher.put_index_entries(taken.index_entries)
        log.max_offset = file.start + taken.end
        log.store_timestamp = max(log.store_timestamp, taken.store_timestamp)
        return True

    def _step(self, file: MappedFile, limit: int) -> Step:
        """One pass over usual records; an unusual one is put by itself, in a step of its own."""
        log, view, data, start = self._log, file.view, file.map, file.start
        begin = position = log.max_offset - start
        stop = min(limit, position + SLICE_BYTES)
        runs: dict[tuple[bytes, int], _Run] = {}
        indexed: list[tuple[str, bytes | None, bytes | None, int, int]] = []
        has_index = self._dispatcher.has_index
        newest_ms = log.store_timestamp
        left = SLICE_RECORDS
        unpack, entry_head = FIXED.unpack_from, self._entry_head
        while position < stop and left:
            begins = position + entry_head
            body = begins + _HEAD_SIZE
            if body > limit:
                break
            size, magic, crc, queue_id, _, queue_offset, offset, flags, _, _, stored_ms, _, _, _, length = (
                unpack(view, begins)
            )
            if flags & _HOSTS_V6:
                head = _HEADS_V6[flags & _HOSTS_V6]
                body = begins + head.size
                if body > limit:
                    break
                stored_ms, *_, length = head.unpack_from(view, begins)[10:]
            end = begins + size
            body_end = body + length
            if (
                magic != MAGIC_V1
                or end > limit
                or not body <= body_end <= end - 3
                or offset != start + begins
                or queue_offset * RECORD_SIZE_MIN > offset
                or (entry_head and not self._is_head_of(view, position, size))
            ):
                break
            tail = data[body_end:end]
            topic_end = tail[0] + 1
            if topic_end + 2 + int.from_bytes(tail[topic_end : topic_end + 2], "big") != len(tail):
                break
            topic_bytes = tail[1:topic_end]
            properties = tail[topic_end + 2 :]
            if ends_with_property_crc(properties):  # it covers the body, too
                if tail[-PROPERTY_CRC_SIZE:] != property_crc_of(view[begins : end - PROPERTY_CRC_SIZE]):
                    break
                properties = properties[:-PROPERTY_CRC_SIZE]
            elif crc31(view[body:body_end]) != crc:
                break
            tags_code, uniq_key, keys = derived(properties)
            if not flags & _IN_NO_QUEUE:
                run = runs.get((topic_bytes, queue_id))
                if run is None:
                    run = self._begin_run(topic_bytes, queue_id, offset)
                    if run is None:
                        break
                    runs[topic_bytes, queue_id] = run
                if queue_offset != run.next_offset:
                    break
                lights: Sequence[_Run] = ()
                if _LIGHT in properties:
                    found = self._light_runs(runs, topic_bytes, properties, offset)
                    if found is None:
                        break
                    lights = found
                run.next_offset = queue_offset + 1
                run.last_end = start + end
                code = (
                    tags_code
                    if topic_bytes != _SCHEDULE
                    else self._dispatcher.tags_code(run.topic, properties, stored_ms)
                )
                run.units += (offset, size, code)
                for light in lights:
                    light.next_offset += 1
                    light.last_end = start + end
                    light.units += (offset, size, code)
                topic = run.topic
            else:
                topic = self._topic(topic_bytes) or ""
            if has_index and (uniq_key or keys) and flags & _IN_NO_INDEX != _IN_NO_INDEX:
                indexed.append((topic, uniq_key, keys, offset, stored_ms))
            if stored_ms > newest_ms:
                newest_ms = stored_ms
            position = end
            left -= 1
        if position == begin:
            return self._put_single(file, position, limit)
        self._put_runs([run.packed() for run in runs.values() if run.units])
        if indexed:
            self._dispatcher.put_index_run(indexed)
        log.max_offset = start + position
        log.store_timestamp = newest_ms
        return Step.MORE

    def _begin_run(self, topic_bytes: bytes, queue_id: int, offset: int) -> _Run | None:
        """None if the record must be examined: a queue that cannot be, or that has the record."""
        topic = self._topic(topic_bytes)
        if topic is None:
            return None
        queue = self._queues.table.get((topic, queue_id))
        if queue is None:
            if _wrong_queue(topic_bytes, queue_id) is not None:
                return None
            queue = self._queues.open(topic, queue_id)
        if queue.last_end > offset:
            return None
        return _Run(topic, queue, queue.next_offset, [])

    def _light_runs(
        self, runs: dict[tuple[bytes, int], _Run], topic: bytes, properties: bytes, offset: int
    ) -> list[_Run] | None:
        """The runs of the light queues of a record; None if the record is not the next in one of them."""
        found = []
        for name, queue_offset in dispatched_queues(topic, properties):
            key = name.encode(), QUEUE_ID
            run = runs.get(key) or self._begin_run(*key, offset)
            if run is None or run.next_offset != queue_offset or run.queue.last_end > offset:
                return None
            runs[key] = run
            found.append(run)
        return found

    def _topic(self, topic_bytes: bytes) -> str | None:
        """The name as text; None if it is not UTF-8."""
        topic = self._topics.get(topic_bytes)
        if topic is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            try:
                topic = self._topics[topic_bytes] = topic_bytes.decode()
            except UnicodeDecodeError:
                return None
        return topic

    def _put_runs(self, runs: list[QueueRun]) -> None:
        """All runs or, when the disk has no room, none: StoreRefused."""
        put_runs(runs)
        for run in runs:
            self._arrivals.note(run.queue, run.tags_code)

    def _put_single(self, file: MappedFile, position: int, limit: int) -> Step:
        """Examine what begins at `position`: put it, wait for its rest, or say what is wrong."""
        room = limit - position
        rest = file.size - position
        if room < BLANK.size:
            if rest < BLANK.size:
                raise _Wrong(f"{rest} bytes at the end of a file have no room for a record")
            return Step.WAITING
        size, magic = BLANK.unpack_from(file.view, position)
        if magic == MAGIC_BLANK:
            if size != rest:
                raise _Wrong(f"a blank record of {size} bytes, though the file has {rest} left")
            if room < rest:
                return Step.WAITING
            self._log.max_offset = file.end
            return Step.MORE
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise _Wrong(f"unknown magic {magic:#010x} where a record should begin")
        if not RECORD_SIZE_MIN <= size <= rest - BLANK_SIZE_MIN:
            raise _Wrong(f"a record of {size} bytes, though the file has {rest} left")
        if size > room:
            return Step.WAITING
        self._put_record(file, position, limit)
        return Step.MORE

    def _put_record(self, file: MappedFile, position: int, limit: int) -> None:
        """Put one record by itself, whatever is unusual about it."""
        head = next(scan(file.view[:limit], file.start, position, verify_crc=True))
        if isinstance(head, RecordProblem):
            raise _Wrong(head.reason)
        if not isinstance(head, RecordHead):
            raise _Wrong("a blank record where a record should be")
        reason = _wrong_queue(head.topic, head.queue_id) if has_unit(head.sys_flag) else None
        if reason is None and head.queue_offset < 0:
            reason = f"queue offset {head.queue_offset} is negative"
        if reason is not None:
            raise _Wrong(reason)
        for queue in self._dispatcher.put(head, from_master=True):
            self._arrivals.note(queue, None)
        self._log.max_offset = head.offset + head.size
        self._log.store_timestamp = max(self._log.store_timestamp, head.store_timestamp)

    @staticmethod
    def _is_head_of(view: memoryview, position: int, size: int) -> bool:
        """Whether what stands before a record belongs to it."""
        return True


class CommittedEntries(ReceivedRecords):
    """Puts the records of a DLedger's committed entries into their queues, and moves the end of what is
    dispatched. An entry that holds no record is in no queue; Java's brokers skip it, too."""

    _entry_head = ENTRY_HEAD_SIZE

    def _put_single(self, file: MappedFile, position: int, limit: int) -> Step:
        if limit - position < LEDGER_BLANK.size:
            raise _Wrong(f"{limit - position} bytes have no room for an entry")
        magic, size = LEDGER_BLANK.unpack_from(file.view, position)
        if magic == LEDGER_BLANK_MAGIC:
            self._log.max_offset = file.end
            return Step.MORE
        if magic != MAGIC_NORMAL or not ENTRY_HEAD_SIZE <= size <= limit - position:
            raise _Wrong(f"no entry begins there: magic {magic}, {size} bytes")
        record = position + ENTRY_HEAD_SIZE
        if holds_record(file.view[record : position + size]):
            self._put_record(file, record, position + size)
        else:
            log.warning("an entry holds no message", offset=file.start + position, bytes=size)
        self._log.max_offset = file.start + position + size
        return Step.MORE

    @staticmethod
    def _is_head_of(view: memoryview, position: int, size: int) -> bool:
        return LEDGER_BLANK.unpack_from(view, position) == (MAGIC_NORMAL, ENTRY_HEAD_SIZE + size)


def holds_record(body: Buffer) -> bool:
    """Whether the body of an entry is meant to be a record."""
    return len(body) >= RECORD_SIZE_MIN and int.from_bytes(body[4:8], "big") in _MAGICS


def _wrong_queue(topic: bytes, queue_id: int) -> str | None:
    """Why there cannot be a folder for such a queue."""
    if queue_id < 0:
        return f"queue id {queue_id} is negative"
    if not topic or b"/" in topic or b"\0" in topic or topic in (b".", b".."):
        return f"{topic!r} cannot be the name of a topic"
    return None
