"""What the core asks of the log that it replicates; the store implements it on mapped files."""

from __future__ import annotations

from typing import Protocol

from brokerset_formats.dledger import LedgerEntry, LedgerRun, RunUnits
from brokerset_protocol.bodies.dledger import DLedgerCode


class LedgerRefused(Exception):
    """The log cannot take or give an entry; `code` says why in the words of the protocol."""

    def __init__(self, code: DLedgerCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Ledger(Protocol):
    """The log of one member: entries from `begin_index` to `end_index`, both -1 when it is empty.

    Every call but `truncate` returns at once: what is written is in the page cache, `synced_index` follows.
    """

    @property
    def begin_index(self) -> int:
        """Index of the first entry; retention raises it."""

    @property
    def end_index(self) -> int:
        """Index of the last entry."""

    @property
    def end_term(self) -> int:
        """Term of the last entry; -1 when there is none."""

    @property
    def synced_index(self) -> int:
        """The last index that a power failure leaves, and everything before it."""

    @property
    def committed_index(self) -> int:
        """The last index known to be committed. Nothing above it may be read or dispatched."""

    def entry(self, index: int) -> LedgerEntry:
        """The entry at an index. Raises `LedgerRefused` when it is not there (any more)."""

    def position(self, index: int) -> int:
        """Where the entry at an index begins. Raises `LedgerRefused` when it is not there (any more)."""

    def run(self, first: int, last: int, bytes_max: int) -> LedgerRun:
        """Entries from `first` on, at most up to `last`, that stand together in one file, as bytes.

        As many as have `bytes_max` together, at least one. Raises `LedgerRefused` when one is not there.
        """

    def append_run(self, run: LedgerRun, units: RunUnits) -> None:
        """Append a run of the leader's that was checked, and follows the last entry: all of it or nothing.

        Raises `LedgerRefused` when its position is not this log's end, or its end not in the same file.
        """

    def append(self, entry: LedgerEntry) -> None:
        """Append the leader's next entry. Raises `LedgerRefused` when its position is not this log's end."""

    def append_body(self, term: int, body: bytes) -> LedgerEntry:
        """Append a record of this member's own, as leader of the term. Raises `LedgerRefused` (disk full)."""

    def begin_term(self, term: int) -> LedgerEntry:
        """Append the record with which a leader begins its term. Raises `LedgerRefused`."""

    def truncate(self, entry: LedgerEntry) -> None:
        """Drop everything behind this entry.

        Where this log has another entry at its index, or none, this entry takes the place. It is the leader's
        first then, so what precedes it was not compared: the log begins there, unless everything before is
        committed and ends at its position. `committed_index` falls where committed entries are replaced.
        """

    def commit(self, index: int) -> None:
        """Everything up to the index is committed: it may be read. Never exceeds the end."""
