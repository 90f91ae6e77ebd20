"""What a broker that begins to lead knows of transactions, read from its store.

Half messages and op records that the saved progress has not passed are read by their queues; of a half that
an op record names only whether it is a copy, which is five times as fast as reading it. Final records
that no op record names are found in the log itself, behind the oldest half that is still open: a pass of
checks appends open halves again, at the latest ten minutes later, so that is how far back it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Protocol

import structlog

from brokerset_broker.requests.transaction_log import LogEnds
from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.transactions.resolved import Resolved
from brokerset_formats.errors import FormatError
from brokerset_formats.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from brokerset_formats.properties import NAME_END, Property
from brokerset_formats.records import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    SYS_FLAG_POSITION,
    Record,
    SysFlag,
    decode_record,
)
from brokerset_formats.transactions import (
    HALF_QUEUE_ID,
    check_times_of,
    decode_op_offsets,
    is_final,
    is_op,
    is_superseding,
    origin_of,
    superseded_offsets,
    target_of,
    unique_key_of,
)

log = structlog.get_logger(__name__)

_BEGIN: Final = struct.Struct(f">II{SYS_FLAG_POSITION - 8}xi")
"""Size, magic and sysFlag of a record; other fields than these say nothing here."""

_MARKS: Final = tuple(
    f"{name}{NAME_END}".encode()
    for name in (Property.TRAN_PREPARED_QUEUE_OFFSET, Property.TRANSACTION_CHECK_TIMES)
)
"""What the properties of a copy have."""

PAUSE_RECORDS: Final = 64
"""Halves or op records that are read between two looks at the time."""

PAUSE_SCANNED: Final = 512
"""Records of the log that are passed over between two."""


class SavedOffsets(Protocol):
    """Where the group of transactions is."""

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The saved offset, None if there is none."""


class TransactionLoading:
    """One reading of the store: `steps` does some of it with each value that it gives."""

    def __init__(self, store: MessageStore, offsets: SavedOffsets, ends: LogEnds) -> None:
        """`ends`: where reading ends."""
        self._store = store
        self._ends = ends
        half = self._begin(offsets, HALF_TOPIC, ends.half)
        op = self._begin(offsets, OP_HALF_TOPIC, ends.op)
        self.resolved = Resolved(half, op)
        """What is known so far."""
        self.topics: dict[int, str] = {}
        """What the halves that were read are for, by queue offset."""
        self._half, self._op = half, op
        self._named_by: list[tuple[int, tuple[int, ...], bool]] = []
        self._named: set[int] = set()
        self._unsettled: set[int] = set()
        self._all = False

    def _begin(self, offsets: SavedOffsets, topic: str, end: int) -> int:
        """The saved progress, inside of the queue: behind its end it would pass halves to come."""
        saved = offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE_ID)
        first = self._store.queue_min(topic, HALF_QUEUE_ID)
        begin = min(max(first, 0 if saved is None else saved), end)
        if saved is not None and saved != begin:
            log.warning(
                "records of transactions are not in the store any more",
                topic=topic,
                progress=saved,
                first=first,
                end=end,
            )
        return begin

    def steps(self) -> Iterator[None]:
        """Read everything; the caller lets others have their turn when a value comes."""
        yield from self._op_records()
        yield from self._copies()
        yield from self._halves()
        for number, named, superseded in self._named_by:
            self.resolved.op_stored(number, named, superseded=superseded)
            if number % PAUSE_RECORDS == 0:
                yield
        start = self.resolved.finals_scan_start()
        if start is not None:
            yield from self._finals(start)

    def _copies(self) -> Iterator[None]:
        """Which halves have to be read although op records name them: copies, and those that have some."""
        for number in range(self._half, self._ends.half):
            unit = self._store.unit(HALF_TOPIC, HALF_QUEUE_ID, number)
            data = None if unit is None else self._store.read(unit[0], unit[1])
            if data is not None and any([mark in bytes(data) for mark in _MARKS]):
                self._note_copy(number)
            if number % PAUSE_RECORDS == 0:
                yield

    def _note_copy(self, number: int) -> None:
        record = self._record(HALF_TOPIC, number)
        if record is None:
            return
        origin = origin_of(record)
        self._unsettled |= {number, origin}
        if origin == number and check_times_of(record):
            self._all = True  # Java's copies do not say of what

    def _halves(self) -> Iterator[None]:
        named = set[int]() if self._all else self._named - self._unsettled
        for number in range(self._half, self._ends.half):
            if number in named:
                self.resolved.settled_stored(number)
                if number % PAUSE_RECORDS == 0:
                    yield
                continue
            record = self._record(HALF_TOPIC, number)
            if record is not None:
                self.resolved.half_stored(record)
                with suppress(FormatError):  # a pass of checks gives it up, and says so
                    self.topics[number], _ = target_of(record)
            if number % PAUSE_RECORDS == 0:
                yield

    def _op_records(self) -> Iterator[None]:
        for number in range(self._op, self._ends.op):
            record = self._record(OP_HALF_TOPIC, number)
            named: tuple[int, ...] = ()
            superseded = record is not None and is_superseding(record.properties)
            if record is not None and is_op(record.properties):
                try:
                    named = (superseded_offsets if superseded else decode_op_offsets)(record.body)
                except FormatError as error:
                    log.error("an op record is unreadable", queue_offset=number, reason=error.reason)
            self._named_by.append((number, named, superseded))
            if not superseded:
                self._named.update(named)
            if number % PAUSE_RECORDS == 0:
                yield

    def _record(self, topic: str, queue_offset: int) -> Record | None:
        unit = self._store.unit(topic, HALF_QUEUE_ID, queue_offset)
        data = None if unit is None else self._store.read(unit[0], unit[1])
        try:
            record = None if data is None else decode_record(data)
        except FormatError:
            record = None
        if record is None or record.topic != topic or record.queue_offset != queue_offset:
            log.error("a record of a transaction cannot be read", topic=topic, queue_offset=queue_offset)
            return None
        return record

    def _finals(self, start: int) -> Iterator[None]:
        start = max(start, self._store.min_offset)
        plain = type(self._store.log) is CommitLog
        offsets = self._finals_of_log(start) if plain else self._finals_of_ledger(start)
        for offset in offsets:
            if offset is None:
                yield
                continue
            data = self._store.read(offset)
            if data is None:
                self._unreadable(offset, "there is no record")
                yield
                continue
            try:
                record = decode_record(data)
            except FormatError as error:
                self._unreadable(offset, error.reason)
                continue
            self.resolved.final_stored(record.prepared_transaction_offset, unique_key_of(record))

    @staticmethod
    def _unreadable(offset: int, reason: str) -> None:
        """A commit may be among what is there, whose transaction is then taken for open."""
        log.error(
            "the log cannot be read, so a transaction that was committed there may be committed once more",
            offset=offset,
            reason=reason,
        )

    def _finals_of_log(self, start: int) -> Iterator[int | None]:
        """Offsets of final records, and None now and then; only sizes and flags of records are read."""
        files, end = self._store.log.files, self._ends.offset
        unpack, mask, commit = _BEGIN.unpack_from, SysFlag.TRANSACTION_MASK, SysFlag.TRANSACTION_COMMIT
        while start < end:
            file = files.find(start)
            if file is None:
                self._unreadable(start, "there is no file")
                return
            view, begin = file.view, file.start
            position, limit = start - begin, min(end - begin, len(view)) - _BEGIN.size
            count = 0
            while position <= limit:
                size, magic, sys_flag = unpack(view, position)
                if magic == MAGIC_BLANK:
                    break
                if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN:
                    self._unreadable(
                        begin + position, "no record begins there; the rest of its file is passed"
                    )
                    break
                if sys_flag & mask == commit:
                    yield begin + position
                position += size
                count += 1
                if count % PAUSE_SCANNED == 0:
                    yield None
            start = file.end
            yield None

    def _finals_of_ledger(self, start: int) -> Iterator[int | None]:
        """The same for a log whose records are entries of a DLedger."""
        for count, head in enumerate(self._store.log.records(start)):
            if head.offset >= self._ends.offset:
                return
            if is_final(head.sys_flag):
                yield head.offset
            if count % PAUSE_SCANNED == 0:
                yield None
