"""The simulation of DLedger's core sees the classic mistakes: each is made on purpose and must be found."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from brokerset_dledger import node as node_module
from brokerset_dledger.election import Ballot, Verdict
from brokerset_dledger.following import Follower
from brokerset_dledger.node import Node, Ready, Role
from brokerset_dledger.pushing import Push, Pusher
from brokerset_formats.dledger import CurrentTerm, LedgerEntry, RunUnits
from brokerset_protocol.bodies.dledger import (
    DLedgerBody,
    DLedgerCode,
    PushRequest,
    PushResponse,
    PushType,
    VoteRequest,
    VoteResult,
)
from brokerset_sim.dledger_cluster import DLedgerCluster, Faults, NoProgress, SafetyViolated

RUN_MS = 6_000

BAD = Faults(
    loss=0.05,
    delay_max=30,
    late=0.01,
    kill=0.01,
    power=0.015,
    down_max=300,
    crash_at_vote=0.1,
    crash_at_ack=0.004,
    cut=0.05,
    cut_max=2_000,
    sync_max=100,
    pause=0.02,
    pause_max=1_000,
    drift=0.02,
    transfer=0.03,
    retention=0.005,
    broken=0.02,
)


POWER = Faults(loss=0.02, delay_max=10, power=0.08, down_max=500, sync_max=400, cut=0.05, cut_max=600)
DISKS = Faults(
    loss=0.02,
    delay_max=20,
    wipe=0.15,
    down_max=300,
    kill=0.05,
    cut=0.3,
    cut_max=1_500,
    sync_max=20,
    late=0.02,
)
RESTARTS = Faults(loss=0.02, delay_max=30, kill=0.15, down_max=10, cut=0.15, cut_max=1_500)


class VoteForgotten(Node):
    """Hands out its term for the disk, but not its vote."""

    def take_ready(self) -> Ready:
        ready = super().take_ready()
        return replace(ready, current_term=ready.current_term and CurrentTerm(ready.current_term.term, None))


class TermForgotten(Node):
    """Writes neither term nor vote."""

    def take_ready(self) -> Ready:
        return replace(super().take_ready(), current_term=None)


class LeaderCountsUnsynced(Node):
    """Counts what its own disk does not have."""

    def _own_watermark(self) -> int:
        return self.ledger.end_index


class AcknowledgesUnsynced(Node):
    """A follower acknowledges what its disk does not have."""

    def _collect_push_answers(self) -> None:
        for answer in self._follower.take_answers():
            self._answer_push(answer)


class AnyLogElected(Node):
    """Votes for whoever asks first, whatever its log lacks."""

    def _vote(self, now: int, request: VoteRequest) -> tuple[VoteResult, int]:
        return super()._vote(now, replace(request, ledger_end_term=1 << 40))


class LongestLogElected(Node):
    """Compares lengths of logs only."""

    def _vote(self, now: int, request: VoteRequest) -> tuple[VoteResult, int]:
        return super()._vote(now, replace(request, ledger_end_term=self.ledger.end_term))


class NoLease(Node):
    """Serves reads as long as it believes that it leads."""

    def may_serve(self, now: int) -> bool:
        return self.role is Role.LEADER and self.ledger.committed_index >= (self.begin_index or 0)


class ServesBeforeItsRecord(Node):
    """Serves reads before anything of its term is committed."""

    def may_serve(self, now: int) -> bool:
        begun, self._begin_index = self._begin_index, -1 if self._begin_index is not None else None
        served = super().may_serve(now)
        self._begin_index = begun
        return served


class TakesAnyEntry(Follower):
    """Appends without a look at what it has already."""

    def _has(self, entry: LedgerEntry) -> bool:
        return True


class AcknowledgesRunsThatWait(Follower):
    """Says yes to a run although the one before is missing."""

    def _append(self, request_id: int, request: PushRequest, units: RunUnits | None, now: int) -> None:
        if units is not None and (request.first_index or 0) > self._ledger.end_index + 1:
            self._answer(request_id, request, DLedgerCode.SUCCESS)
        else:
            super()._append(request_id, request, units, now)


class CountsBeyondTheRun(Pusher):
    """Takes the acknowledgement of a run for one of everything that the leader has."""

    def _appended(self, push: Push, answer: PushResponse | None, now: int) -> None:
        super()._appended(push, answer, now)
        if answer is not None and answer.succeeded:
            self.watermark = self._ledger.end_index


class NothingPushedAgain(Pusher):
    """A push that was lost is lost."""

    def _append(self, now: int) -> Push | None:
        for first, (last, _) in self._in_flight.items():
            self._in_flight[first] = last, now
        return super()._append(now)


class TruncatesOneTooLate(Pusher):
    """Where the logs agree, it starts one entry later, so one of the follower's own may stay."""

    def _compared(self, index: int, answer: PushResponse | None, now: int) -> None:
        if answer is not None and answer.succeeded and answer.end_index > index:
            self._start_appending(min(index + 1, self._ledger.end_index))
        else:
            super()._compared(index, answer, now)


class CountsAnyAnswer(Node):
    """Takes a refused append for an acknowledgement."""

    def _push_answered(self, now: int, push: Push, peer: str, response: DLedgerBody | None) -> None:
        if isinstance(response, PushResponse) and push.type is PushType.APPEND:
            response = replace(response, code=200)
        super()._push_answered(now, push, peer, response)


class CountsRecoveringVotes(Ballot):
    """Takes the vote of a member that has lost its disk for any other."""

    def judge(self, *, expired: bool) -> Verdict:
        for peer, answer in self.answers.items():
            self.answers[peer] = answer and replace(answer, recovering=None)
        return super().judge(expired=expired)


class RecoversAtTheFirstPush(Node):
    """Believes that it has everything as soon as a leader pushes anything."""

    def _check_recovery(self) -> None:
        self._recovery = None


@dataclass(frozen=True)
class Variant:
    """A mistake: a class in place of the node's, or of a part of it."""

    broken: type[Node | Follower | Pusher | Ballot]
    seeds_max: int = 60
    alone: bool = True
    """False: the lease would hide it, which groups with members of Java lack."""

    faults: Faults = BAD


VARIANTS = (
    Variant(VoteForgotten, alone=False),
    Variant(TermForgotten),
    Variant(LeaderCountsUnsynced, 200, alone=False, faults=POWER),
    Variant(AcknowledgesUnsynced),
    Variant(AnyLogElected),
    Variant(LongestLogElected, faults=RESTARTS),
    Variant(NoLease),
    Variant(ServesBeforeItsRecord),
    Variant(CountsAnyAnswer),
    Variant(TakesAnyEntry),
    Variant(AcknowledgesRunsThatWait),
    Variant(CountsBeyondTheRun),
    Variant(NothingPushedAgain),
    Variant(TruncatesOneTooLate),
    Variant(CountsRecoveringVotes, faults=DISKS),
    Variant(RecoversAtTheFirstPush, faults=DISKS),
)
"""Mistakes that need one order of events among very many are made in `tests/scenario/dledger`."""


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.broken.__name__)
def test_mistake_is_found(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few seeds a promise is broken, or the group does not recover."""
    for part in (Follower, Pusher, Ballot):
        if issubclass(variant.broken, part):
            monkeypatch.setattr(node_module, part.__name__, variant.broken)
    for seed in range(variant.seeds_max):
        found = failure(variant, seed)
        if found is not None:
            print(f"found with seed {seed}: {found}")
            return
    pytest.fail(f"it was not found in {variant.seeds_max} seeds")


def failure(variant: Variant, seed: int) -> AssertionError | None:
    """What a run with the mistake ends with."""
    cluster = DLedgerCluster(
        seed,
        size=3 if seed % 3 else 5,
        alone=variant.alone,
        faults=variant.faults,
        node_class=variant.broken if issubclass(variant.broken, Node) else Node,
        sync_before_ack=True,
    )
    try:
        cluster.run(RUN_MS)
        cluster.heal()
    except (SafetyViolated, NoProgress, AssertionError) as error:
        return error
    return None
