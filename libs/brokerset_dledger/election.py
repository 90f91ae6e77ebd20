"""Votes: how a member answers a candidate, and what a candidate makes of the answers.

Source: `DLedgerLeaderElector.handleVote` and `maintainAsCandidate` of DLedger 0.3.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from brokerset_protocol.bodies.dledger import VoteResponse, VoteResult

_LONGER_LOG = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
_HIGHER_TERM = (VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER)


class Verdict(Enum):
    """What became of a ballot."""

    OPEN = auto()
    """More answers may decide it."""

    ELECTED = auto()
    HIGHER_TERM = auto()
    """Somebody has a higher term."""

    HAS_LEADER = auto()
    """Somebody follows a leader."""

    TOO_FEW = auto()
    """Less than a quorum answered, or too many of it are recovering: vote again in the same term."""

    LONGER_LOGS = auto()
    """Others have more: let them be elected first."""

    NOT_READY = auto()
    """Members raise their terms first (Java): vote again at once."""

    LOST = auto()
    """Vote again in the next term."""


@dataclass
class Ballot:
    """The votes of one election, or of the question whether one would be won."""

    term: int
    quorum: int
    members: int
    deadline: int
    pre: bool = False
    transfer: bool = False
    answers: dict[str, VoteResponse | None] = field(default_factory=dict[str, VoteResponse | None])
    """By member; None for one that could not be asked."""

    @property
    def term_max(self) -> int:
        """The highest term that a refusal shows."""
        return max((each.term for each in self._valid if each.vote_result in _HIGHER_TERM), default=-1)

    @property
    def _valid(self) -> list[VoteResponse]:
        return [
            each
            for each in self.answers.values()
            if each is not None and each.vote_result is not VoteResult.UNKNOWN
        ]

    def judge(self, *, expired: bool) -> Verdict:
        """What the answers so far mean; with `expired`, or when all have answered, it is never `OPEN`.

        Who is recovering may lack what a quorum has: its vote counts only where all members vote so.
        """
        results = [each.vote_result for each in self._valid]
        accepted = results.count(VoteResult.ACCEPT)
        counted = sum(
            each.vote_result is VoteResult.ACCEPT and each.recovering is None for each in self._valid
        )
        longer = sum(map(results.count, _LONGER_LOG))
        not_ready = results.count(VoteResult.REJECT_TERM_NOT_READY)
        if counted >= self.quorum or accepted == self.members:
            return Verdict.ELECTED
        if self.term_max > (self.term - 1 if self.pre else self.term):
            return Verdict.HIGHER_TERM
        if VoteResult.REJECT_ALREADY_HAS_LEADER in results:
            return Verdict.HAS_LEADER
        if not_ready and accepted + not_ready >= self.quorum:
            return Verdict.NOT_READY
        if not expired and len(self.answers) < self.members:
            return Verdict.OPEN
        if len(results) < self.quorum or accepted >= self.quorum:
            return Verdict.TOO_FEW
        if len(results) - longer < self.quorum:
            return Verdict.LONGER_LOGS
        return Verdict.LOST
