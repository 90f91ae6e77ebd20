"""A follower's side of the pushes: in which order they are taken, and what is answered.

Source: `DLedgerEntryPusher.EntryHandler` of DLedger 0.3.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brokerset_dledger.config import NodeConfig
from brokerset_dledger.ledger import Ledger, LedgerRefused
from brokerset_formats.dledger import LedgerEntry, RunUnits
from brokerset_formats.errors import FormatError
from brokerset_protocol.bodies.dledger import DLedgerCode, PushRequest, PushRunRequest, PushType

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class PushAnswer:
    """What is answered to a push; a success counts once the log is synced up to `needs_synced`."""

    request_id: int
    request: PushRequest
    code: DLedgerCode
    needs_synced: int = -1


@dataclass(frozen=True, slots=True)
class _Waiting:
    request_id: int
    request: PushRequest
    deadline: int
    units: RunUnits | None
    """Of a run."""


class Follower:
    """The pushes of one leader in one term; another leader, or another term, is another `Follower`."""

    def __init__(self, config: NodeConfig, ledger: Ledger) -> None:
        self._config = config
        self._ledger = ledger
        self._matched = -1
        """The last index that this log is known to have as the leader has it."""

        self._sequence = -1
        """The highest of all pushes so far."""

        self._waiting: dict[int, _Waiting] = {}
        """By first index: appends that came before those that precede them."""

        self._answers: list[PushAnswer] = []

    @property
    def matched_index(self) -> int:
        """The last index that this log is known to have as the leader has it."""
        return self._matched

    def take_answers(self) -> list[PushAnswer]:
        """What is to be answered, each once."""
        answers, self._answers = self._answers, []
        return answers

    def deadline(self) -> int:
        """When a push has waited long enough for those that precede it."""
        return min((each.deadline for each in self._waiting.values()), default=NEVER)

    def tick(self, now: int) -> None:
        """Refuse what has waited too long: the leader compares then."""
        for first in [first for first, each in self._waiting.items() if now >= each.deadline]:
            waiting = self._waiting.pop(first)
            self._answer(waiting.request_id, waiting.request, DLedgerCode.INCONSISTENT_STATE)

    def stop(self, code: DLedgerCode) -> None:
        """The leader is another one now: answer what waits."""
        for waiting in self._waiting.values():
            self._answer(waiting.request_id, waiting.request, code)
        self._waiting.clear()

    def receive(self, request_id: int, request: PushRequest, now: int) -> None:
        """Take a push of this leader."""
        units = None
        if isinstance(request, PushRunRequest):
            units = _checked(request)
            sound = units is not None
        else:
            sound = _is_sound(request)
        if not sound:
            self._answer(request_id, request, DLedgerCode.UNEXPECTED_ARGUMENT)
            return
        late = request.sequence is not None and request.sequence < self._sequence
        self._sequence = max(self._sequence, -1 if request.sequence is None else request.sequence)
        match request.type:
            case PushType.APPEND:
                self._append(request_id, request, units, now)
            case PushType.COMPARE:
                self.stop(DLedgerCode.INCONSISTENT_STATE)
                self._compare(request_id, request)
            case PushType.TRUNCATE if late:  # what was acknowledged since must stay
                self._answer(request_id, request, DLedgerCode.INCONSISTENT_STATE)
            case PushType.TRUNCATE:
                self.stop(DLedgerCode.INCONSISTENT_STATE)
                self._truncate(request_id, request)
            case PushType.COMMIT:
                self._commit(request)
                known = request.commit_index <= self._matched  # not so after a start: compare again
                code = DLedgerCode.SUCCESS if known else DLedgerCode.INCONSISTENT_STATE
                self._answer(request_id, request, code)

    def _append(self, request_id: int, request: PushRequest, units: RunUnits | None, now: int) -> None:
        first = request.first_index
        assert first is not None, "an append has entries"
        if first > self._ledger.end_index + 1:
            if first in self._waiting:
                self._answer(request_id, request, DLedgerCode.REPEATED_PUSH)
            elif len(self._waiting) >= self._config.waiting_pushes_max:
                self._answer(request_id, request, DLedgerCode.PUSH_REQUEST_IS_FULL)
            else:
                deadline = now + self._config.push_timeout
                self._waiting[first] = _Waiting(request_id, request, deadline, units)
            return
        self._take(request_id, request, units)
        while waiting := self._waiting.pop(self._ledger.end_index + 1, None):
            self._take(waiting.request_id, waiting.request, waiting.units)

    def _take(self, request_id: int, request: PushRequest, units: RunUnits | None) -> None:
        if isinstance(request, PushRunRequest) and request.first_index > self._ledger.end_index:
            assert units is not None, "runs are checked as they come"
            self._take_run(request_id, request, units)
        else:  # entries, or a run of which some are here: an acknowledgement was lost
            self._take_entries(request_id, request)

    def _take_run(self, request_id: int, request: PushRunRequest, units: RunUnits) -> None:
        """A run that begins behind the last entry."""
        try:
            if units.first_term < self._ledger.end_term:
                raise LedgerRefused(DLedgerCode.INCONSISTENT_STATE, "a run of an older term than this log's")
            self._ledger.append_run(request.run, units)
        except LedgerRefused as refused:
            full = refused.code is DLedgerCode.DISK_FULL
            self._answer(request_id, request, refused.code if full else DLedgerCode.INCONSISTENT_STATE)
            return
        self._succeed(request_id, request, request.run.last_index)

    def _take_entries(self, request_id: int, request: PushRequest) -> None:
        """Entries that are here already are compared, the others appended."""
        entries = request.entries
        end = self._ledger.end_index
        if any(not self._has(entry) for entry in entries if entry.index <= end):
            self._answer(request_id, request, DLedgerCode.INCONSISTENT_STATE)
            return
        try:
            for entry in entries:
                if entry.index > end:
                    self._ledger.append(entry)
        except LedgerRefused as refused:
            # Java answers 406 to everything, and a leader of Java knows no other refusal.
            full = refused.code is DLedgerCode.DISK_FULL and self._config.alone
            self._answer(request_id, request, refused.code if full else DLedgerCode.INCONSISTENT_STATE)
            return
        self._succeed(request_id, request, entries[-1].index)

    def _compare(self, request_id: int, request: PushRequest) -> None:
        if self._has(request.entries[0]):
            self._succeed(request_id, request, request.entries[0].index)
        else:
            self._answer(request_id, request, DLedgerCode.INCONSISTENT_STATE)

    def _truncate(self, request_id: int, request: PushRequest) -> None:
        entry = request.entries[0]
        if not self._may_truncate(entry):
            self._answer(request_id, request, DLedgerCode.INCONSISTENT_STATE)
            return
        committed = self._ledger.committed_index
        try:
            self._ledger.truncate(entry)
        except LedgerRefused as refused:
            self._answer(request_id, request, refused.code)
            return
        self._matched = entry.index
        if self._ledger.committed_index < committed:  # that it fell is seen before it rises again
            request = replace(request, commit_index=-1)
        self._succeed(request_id, request, entry.index)

    def _may_truncate(self, entry: LedgerEntry) -> bool:
        """In a group of ours nothing committed is ever truncated; a leader of Java may ask for it."""
        committed = self._ledger.committed_index
        if not self._config.alone or entry.index > committed:
            return True
        return entry.index == committed and self._has(entry)

    def _has(self, entry: LedgerEntry) -> bool:
        try:
            return self._ledger.entry(entry.index) == entry
        except LedgerRefused:
            return False

    def _succeed(self, request_id: int, request: PushRequest, last_index: int) -> None:
        self._matched = max(self._matched, last_index)
        if request.type is not PushType.COMPARE:  # as in Java
            self._commit(request)
        self._answer(request_id, request, DLedgerCode.SUCCESS, needs_synced=last_index)

    def _commit(self, request: PushRequest) -> None:
        """What the leader has committed is so here only as far as this log is known to be the leader's."""
        index = min(request.commit_index, self._matched)
        if index > self._ledger.committed_index:
            self._ledger.commit(index)

    def _answer(
        self, request_id: int, request: PushRequest, code: DLedgerCode, needs_synced: int = -1
    ) -> None:
        if isinstance(request, PushRunRequest):  # it may wait for the disk for long
            request = request.without_data()
        self._answers.append(PushAnswer(request_id, request, code, needs_synced))


def _checked(request: PushRunRequest) -> RunUnits | None:
    """What the heads of a run say, if each is right and none is of a newer term than the leader's."""
    try:
        units = request.run.check()
    except FormatError:
        return None
    return units if units.last_term <= request.term else None


def _is_sound(request: PushRequest) -> bool:
    entries = request.entries
    if request.type is PushType.COMMIT:
        return True
    if not entries or (request.type is not PushType.APPEND and len(entries) > 1):
        return False
    return all(entry.index == entries[0].index + number for number, entry in enumerate(entries))
