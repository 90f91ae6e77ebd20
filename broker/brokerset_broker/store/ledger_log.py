"""The log of a DLedger as a commit log: a record stands 48 bytes behind the beginning of its entry.

What `CommitLog` calls its end is here the end of what is dispatched. Entries behind it are in the files and
may still be truncated; nobody but the DLedger reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.ledger import FileLedger
from brokerset_broker.store.old_log import JoinedFiles
from brokerset_broker.store.receiving import holds_record
from brokerset_broker.store.recovery import scan
from brokerset_broker.store.segments import MappedFile
from brokerset_dledger.ledger import LedgerRefused
from brokerset_formats.dledger import BLANK, ENTRY_HEAD, ENTRY_HEAD_SIZE, MAGIC_BLANK, MAGIC_NORMAL
from brokerset_formats.records import RecordHead, check_record
from brokerset_protocol.bodies.dledger import DLedgerCode

PUT_STATUS = {
    DLedgerCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
    DLedgerCode.UNEXPECTED_ARGUMENT: PutStatus.MESSAGE_ILLEGAL,
}
"""What a refusal of the DLedger is for who sends; anything else: the service is not available."""


class LedgerLog(CommitLog):
    """See above. Room is made by the DLedger, at its end; `put` completes the entry."""

    __slots__ = ("_joined", "_ledger", "leads")

    def __init__(
        self, ledger: FileLedger, executor: Executor | None = None, joined: JoinedFiles | None = None
    ) -> None:
        """`joined` are the files of an old commit log and behind them the DLedger's."""
        super().__init__(ledger.files.folder, ledger.files.segment_bytes, executor)
        self.files = ledger.files if joined is None else joined
        self._joined = joined
        self._ledger = ledger
        self.leads: Callable[[int], int] | None = None
        """Gives the term in which so many records may be appended, or raises `LedgerRefused`."""

    def make_room(self, size: int) -> int:
        """Make room for one entry; returns the offset of its record. StoreRefused if none may be appended."""
        try:
            self._lead(1)
            file, position = self._ledger.prepare(size)
        except LedgerRefused as refused:
            raise _refusal(refused) from refused
        if file is not self._file:
            self._file = file
            self.map = memoryview(file.map)
            self.map_start = file.start
        return position + ENTRY_HEAD_SIZE

    def require(self, count: int, total: int) -> None:
        """Make sure that so many records of `total` bytes can be appended. StoreRefused if not."""
        try:
            self._lead(count)
            self._ledger.reserve(count, total)
        except LedgerRefused as refused:
            raise _refusal(refused) from refused

    def _lead(self, count: int) -> int:
        if self.leads is None:
            raise LedgerRefused(DLedgerCode.NOT_LEADER, "this member does not lead")
        return self.leads(count)

    def put(self, offset: int, records: bytes, store_timestamp: int) -> None:
        """Make one record an entry of the DLedger."""
        size = len(records)
        begin = offset - self.map_start
        self.map[begin : begin + size] = records
        self._ledger.complete(self._lead(0), offset - ENTRY_HEAD_SIZE, size)
        self.store_timestamp = store_timestamp

    def records(self, offset: int) -> Iterator[RecordHead]:
        """All records from `offset`, where a record or its entry begins, to the end of what is dispatched."""
        if self._joined is not None and offset < self._joined.divide:
            yield from self._old_records(offset, self._joined.divide)
            offset = self._joined.divide
        offset = self.entry_at(offset)
        while offset < self.max_offset:
            file = self.files.find(offset)
            if file is None:
                return
            position = offset - file.start
            magic, size = BLANK.unpack_from(file.view, position)
            if magic == MAGIC_BLANK:
                offset = file.end
                continue
            head = check_record(file.view, position + ENTRY_HEAD_SIZE, position + size, verify_crc=False)
            if isinstance(head, RecordHead):
                yield head
            offset += size

    def _old_records(self, offset: int, divide: int) -> Iterator[RecordHead]:
        while offset < divide:
            file = self.files.find(offset)
            if file is None:  # deleted
                return
            for head in scan(file.view, file.start, offset - file.start, verify_crc=False):
                if isinstance(head, RecordHead):
                    yield head
            offset = file.end

    @property
    def divide(self) -> int:
        """Offset from which on records are those of the DLedger."""
        return 0 if self._joined is None else self._joined.divide

    def forget_old_files(self) -> None:
        """Delete the old log: the DLedger's begins somewhere behind it."""
        while self._joined is not None and (file := self._joined.detach_old()) is not None:
            file.unlink()

    def read_record(self, offset: int) -> memoryview | None:
        """The record at `offset`, or in the entry that begins there, as one does where the log begins."""
        if (begin := self.read(offset, BLANK.size)) is not None:
            magic, size = BLANK.unpack(begin)
            if magic == MAGIC_NORMAL:  # no record is that small
                record = self.read(offset + ENTRY_HEAD_SIZE, size - ENTRY_HEAD_SIZE)
                return record if record is not None and holds_record(record) else None
        return super().read_record(offset)

    def entry_at(self, offset: int) -> int:
        """The position of an entry, given it or the offset of its record. Offsets of the old log stay."""
        if offset < self.divide:
            return offset
        file = self.files.find(offset)
        if file is None or offset - file.start + ENTRY_HEAD_SIZE > file.size:
            return offset
        magic, _, _, _, place, _, _, _, _ = ENTRY_HEAD.unpack_from(file.view, offset - file.start)
        if (magic == MAGIC_NORMAL and place == offset) or magic == MAGIC_BLANK or not offset - file.start:
            return offset
        return offset - ENTRY_HEAD_SIZE if offset < self._ledger.write_position else offset

    def detach_first(self) -> MappedFile:
        """Take the oldest file out of the log; whoever asked deletes it. The DLedger loses none before all of
        the old log is gone."""
        old = None if self._joined is None else self._joined.detach_old()
        return self._ledger.detach_first() if old is None else old


def _refusal(refused: LedgerRefused) -> StoreRefused:
    return StoreRefused(PUT_STATUS.get(refused.code, PutStatus.SERVICE_NOT_AVAILABLE), str(refused))
