"""Orders of events that random seeds rarely find: promises hold, and break where one rule is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokerset_dledger import node as node_module
from brokerset_dledger.following import Follower
from brokerset_dledger.node import Node, Role
from brokerset_formats.dledger import LedgerEntry, decode_entry
from brokerset_protocol.bodies.dledger import (
    OWN_VERSION,
    DLedgerBody,
    HeartbeatRequest,
    PushRequest,
    PushResponse,
    PushRunRequest,
    PushType,
    VoteRequest,
)
from brokerset_sim.dledger_cluster import SafetyViolated, SimLedger
from brokerset_sim.dledger_net import DLedgerNet, Sent

LONG_AGO = -1_000_000


def pushes(sent: Sent, *types: PushType) -> bool:
    """Whether a call is a push of one of these types, or of any."""
    return isinstance(sent.request, PushRequest) and (not types or sent.request.type in types)


def push(net: DLedgerNet, leader: str, target: str, term: int, **fields: Any) -> None:
    """A push of a leader that the test plays."""
    request = PushRequest(group="g", remote_id=target, local_id=leader, leader_id=leader, term=term, **fields)
    net.receive(target, replace(request, brokerset=OWN_VERSION if net[target].config.alone else None))


def group(size: int = 3, **settings: Any) -> DLedgerNet:
    """A group that n0 leads; all have its first record, committed."""
    net = DLedgerNet(size, **settings)
    net.elect("n0")
    net.advance(200)
    return net


def replaced_in_silence(net: DLedgerNet, successor: str, *, within: int = 600) -> None:
    """If this member can be elected, n0 hears nothing of it, and its successor acknowledges something."""
    if net.advance(within, lambda: net.leads(successor)):
        net.cut_off("n0")
        net.append(successor, b"new")
        assert net.acked, "the successor commits what it appends"
    net.read("n0")


# Figure 8.


class CountsOlderTerms(Node):
    """Commits whatever a quorum has."""

    def _may_count(self, index: int) -> bool:
        return True


def figure_8(node_class: type[Node]) -> None:
    """An entry of an older term is on a quorum, and is replaced all the same."""
    net = group(5, node_class=node_class, push_bytes_max=1)
    for other in ("n2", "n3", "n4"):
        net.cut_off("n0", other)
    (entry,) = net.append("n0", b"older term")
    net.stop("n0")
    net.cut_off("n1")
    net.holds = lambda sent: pushes(sent)
    net.elect("n4")
    net.stop("n4")
    net.cut.clear()
    net.cut_off("n1")
    net.holds = lambda sent: pushes(sent, PushType.APPEND)
    net.start("n0")
    net.elect("n0")
    net.cut.clear()
    net.advance(700)
    net.deliver([sent for sent in net.held if sent.target == "n2" and _has(sent, entry)][-1])
    net.stop("n0")
    net.stop("n1")
    net.start("n4")
    net.holds = lambda sent: False
    net.elect("n4")
    net.advance(500)
    assert net["n4"].ledger.committed_index > entry.index


def _has(sent: Sent, entry: LedgerEntry) -> bool:
    return isinstance(sent.request, PushRequest) and entry in sent.request.entries


# Leases.


class VotesNextToItsLeader(Node):
    """Votes whatever leader it hears."""

    def _hears_leader(self, now: int) -> bool:
        return False


def vote_within_a_lease(node_class: type[Node]) -> None:
    """A member that hears no leader asks one that does."""
    net = group(node_class=node_class)
    net["n2"].draws.first = True
    net.cut_off("n0", "n2")

    replaced_in_silence(net, "n2")


class BelievesItsConnection(Node):
    """Takes the end of a connection for the end of the leader's process."""

    def _hears_leader(self, now: int) -> bool:
        return not self._leader_gone and super()._hears_leader(now)

    def _leader_lost_at(self) -> int:
        return LONG_AGO if self._leader_gone else super()._leader_lost_at()


def connections_end_within_a_lease(node_class: type[Node]) -> None:
    """The leader's connections to all others end, but clients still reach it."""
    net = group(node_class=node_class)
    net["n1"].draws.first = True
    net.cut_off("n0")
    net.lose_leader("n1")
    net.lose_leader("n2")

    replaced_in_silence(net, "n1", within=250)


class ForgetsItsPromise(Node):
    """Starts as if it had promised nothing."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._leader_heard_at = LONG_AGO


def restart_within_a_lease(node_class: type[Node]) -> None:
    """The member whose answers make the lease starts again, and is asked for its vote."""
    net = group(node_class=node_class)
    net["n2"].draws.first = True
    net.cut_off("n0", "n2")
    net.advance(500)
    net.restart("n1")

    replaced_in_silence(net, "n2", within=250)


class ServesDuringTransfer(Node):
    """Keeps the lease while another member campaigns on its behalf."""

    def may_serve(self, now: int) -> bool:
        transferee, self.transferee = self.transferee, None
        serves = super().may_serve(now)
        self.transferee = transferee
        return serves


def transfer_in_silence(node_class: type[Node]) -> None:
    """The next leader is elected before the last one hears of its votes."""
    net = group(node_class=node_class)
    net.holds = lambda sent: isinstance(sent.request, VoteRequest)
    net["n0"].node.transfer(net.now, "n1")
    net.settle("n0")
    net.cut_off("n0")
    net.deliver(next(sent for sent in net.held if sent.target == "n2"))

    replaced_in_silence(net, "n1", within=10)


class ResumesAfterCampaign(Node):
    """Takes a failed transfer for one that has not begun."""

    def _transfer_answered(self, now: int, handover: Any, response: DLedgerBody | None) -> None:
        self.transferee = None


def campaign_after_a_failed_transfer(node_class: type[Node]) -> None:
    """The transferee says that it failed; a vote for it is still on its way."""
    net = group(node_class=node_class)
    net.holds = lambda sent: (
        isinstance(sent.request, VoteRequest)
        or (isinstance(sent.request, HeartbeatRequest | PushRequest) and sent.target == "n1")
    )
    net["n0"].node.transfer(net.now, "n1")
    net.settle("n0")
    net.advance(210)
    vote = next(each for each in net.held if isinstance(each.request, VoteRequest) and each.target == "n2")
    net.holds = lambda sent: "n0" in (sent.source, sent.target)
    net.deliver(vote)

    replaced_in_silence(net, "n1", within=10)


# Truncation.


class TakesLateTruncations(Follower):
    """Truncates whenever it is told to."""

    def receive(self, request_id: int, request: PushRequest, now: int) -> None:
        super().receive(request_id, replace(request, sequence=None), now)


def late_truncation(node_class: type[Node], *, silence: bool = False) -> None:
    """A truncation is on its way for so long that the leader has truncated again, and appended."""
    net = group(node_class=node_class)
    net.holds = lambda sent: pushes(sent)
    net.append("n0", b"on n0 alone")
    net.cut_off("n0")
    net.elect("n1")
    net.cut.clear()
    net.holds = lambda sent: pushes(sent, PushType.TRUNCATE) or (pushes(sent) and sent.target == "n2")
    assert net.advance(1_000, lambda: any(pushes(each, PushType.TRUNCATE) for each in net.held))
    truncation = next(each for each in net.held if pushes(each, PushType.TRUNCATE))
    net.holds = lambda sent: pushes(sent, PushType.COMMIT) or (pushes(sent) and sent.target == "n2")
    (entry,) = net.append("n1", b"acknowledged")
    assert net.advance(1_000, lambda: entry.index in net.acked)
    if silence:
        net.holds = lambda sent: pushes(sent) or sent.target == "n0"
        net.advance(500, lambda: net["n0"].node.role is Role.CANDIDATE)
        net.holds = lambda sent: pushes(sent)
        net.advance(200, lambda: net["n0"].node.role is Role.FOLLOWER)
    net.cut_off("n1", "n2")
    net.deliver(truncation)
    net.stop("n1")
    net.holds = lambda sent: False
    net.elect("n0" if net["n0"].ledger.has(entry.index) else "n2")


def late_truncation_after_silence(node_class: type[Node]) -> None:
    """The same, and the follower has lost its leader in between and found it again."""
    late_truncation(node_class, silence=True)


class ForgetsWhomItFollowed(Node):
    """Takes a leader that it has lost and found again for a new one."""

    def _become_follower(self, now: int, leader_id: str) -> None:
        self._followed = None
        super()._become_follower(now, leader_id)


class AcknowledgesWhatIsGone(Node):
    """Acknowledges what was truncated once its place is synced."""

    def _withdraw_acks(self) -> None:
        pass


def acknowledged_in_its_place(node_class: type[Node]) -> None:
    """An entry waits for the disk; it is truncated, and another one takes its place."""
    net = group(node_class=node_class)
    net["n1"].disk = False
    (entry,) = net.append("n0", b"of n0")
    term, begun = net["n0"].node.term, net["n1"].ledger.entry(0)
    net.cut_off("n0")
    push(net, "n2", "n1", term + 1, type=PushType.TRUNCATE, entry=begun, sequence=1)
    other = replace(entry, term=term + 1)
    push(net, "n2", "n1", term + 1, type=PushType.APPEND, entry=other, sequence=2)
    net["n1"].disk = True
    net.settle("n1")
    answers = [each for each in net["n1"].log if isinstance(each, PushResponse) and each.term == term]
    if any(each.succeeded and each.index == entry.index for each in answers):
        raise SafetyViolated("n1 acknowledges an entry that it does not have")


class CommitsWhatItHas(Follower):
    """Takes all entries of its log for the leader's."""

    def _commit(self, request: PushRequest) -> None:
        self._ledger.commit(request.commit_index)


def commit_before_the_comparison(node_class: type[Node]) -> None:
    """A leader says what is committed before it has compared the logs."""
    net = group(node_class=node_class)
    net.holds = lambda sent: pushes(sent)
    net.append("n0", b"on n0 alone")
    net.cut_off("n0")
    net.elect("n1")
    net.holds = lambda sent: False
    net.advance(1_000)
    committed = net["n1"].ledger.committed_index
    push(net, "n1", "n0", net["n1"].node.term, type=PushType.COMMIT, commit_index=committed, sequence=1)


# Runs.


class ReadsTheFirstHead(Follower):
    """Believes that a run is right when it begins right."""

    def receive(self, request_id: int, request: PushRequest, now: int) -> None:
        if isinstance(request, PushRunRequest):
            entries, start = [], 0
            while start < len(request.run.data):
                entry = decode_entry(request.run.data, start)
                assert isinstance(entry, LedgerEntry)
                entries.append(entry)
                start += entry.size
            self._ledger.entries += entries  # type: ignore[attr-defined]  # it is the simulated one
            self._succeed(request_id, request, entries[-1].index)
        else:
            super().receive(request_id, request, now)


def damaged_run(node_class: type[Node]) -> None:
    """The head of a run's second entry arrives with another term than the leader wrote."""
    net = group(node_class=node_class)
    net.cut_off("n0", "n2")
    net.holds = lambda sent: isinstance(sent.request, PushRunRequest)
    net.append("n0", b"one", b"two")
    sent = next(each for each in net.held if each.target == "n1")
    request = sent.request
    assert isinstance(request, PushRunRequest)
    data = bytearray(request.run.data)
    start = len(data) // 2
    data[start + 16 : start + 24] = (net["n0"].node.term + 1).to_bytes(8, "big")
    damaged = replace(request, run=replace(request.run, data=bytes(data)))
    net.holds = lambda sent: False
    sent.call = replace(sent.call, request=damaged)

    net.deliver(sent)

    assert net.advance(1_000, lambda: net["n1"].ledger.committed_index == 2)


# Quorums.


class LeadsAlone(Node):
    """Leads without a quorum."""

    def _tick_leader(self, now: int) -> None:
        self._quorum_heard_at = now
        super()._tick_leader(now)


def leader_without_a_quorum(node_class: type[Node]) -> None:
    """The leader hears of nobody."""
    net = group(node_class=node_class)
    net.cut_off("n0")
    net.advance(net["n0"].config.silence_max + 10)
    if net.leads("n0"):
        raise SafetyViolated("n0 takes appends that cannot be committed")


class LeadsItsTermAgain(Node):
    """Campaigns after a start in the term that it has led before."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._next_term = False


def leader_started_again(node_class: type[Node]) -> None:
    """A leader loses its power and its last entry, which one follower has."""
    net = group(alone=False, node_class=node_class)
    net.cut_off("n0", "n2")
    net["n0"].disk = False
    net.holds = lambda sent: pushes(sent, PushType.COMMIT)
    net["n1"].disk = False
    net.append("n0", b"lost on n0 1", b"lost on n0 2", b"lost on n0 3")
    net["n1"].disk = True
    net.cut_off("n1")
    net.settle("n1")
    net.stop("n1")
    net.stop("n0", power=True)
    net["n0"].disk = True
    net.cut.clear()
    net.start("n0")
    net.elect("n0")
    net.append("n0", b"acknowledged")
    assert net.acked
    net.advance(500)
    net.stop("n0")
    net.start("n1")
    net.elect("n2" if net["n1"].ledger.end_term < net["n2"].ledger.end_term else "n1")
    net.advance(1_000)


class KeepsWhatWasNotCompared(SimLedger):
    """Puts the leader's first entry behind whatever is there."""

    def truncate(self, entry: LedgerEntry) -> None:
        self.committed_index, known = self.end_index, self.committed_index
        super().truncate(entry)
        self.committed_index = min(known, self.end_index)


def retention_above_the_fork(node_class: type[Node], ledger_class: type[SimLedger] = SimLedger) -> None:
    """A follower's log parts from the leader's before the leader's first entry, at equal positions."""
    net = group(node_class=node_class, ledger_class=ledger_class)
    net.holds = lambda sent: pushes(sent)
    net.append("n0", b"0001", b"0001", b"0001")
    net.stop("n0")
    net.holds = lambda sent: False
    net.elect("n1")
    net.append("n1", b"0002", b"0002", b"0002", b"0002")
    net.advance(300)
    net["n1"].ledger.drop_first(3)
    net.start("n0")
    net.advance(1_000)
    assert net["n0"].ledger.end_index == net["n0"].ledger.committed_index == net["n1"].ledger.end_index


Scene = Callable[[type[Node]], None]

MISTAKES: tuple[tuple[Scene, type[Node | Follower]], ...] = (
    (figure_8, CountsOlderTerms),
    (vote_within_a_lease, VotesNextToItsLeader),
    (connections_end_within_a_lease, BelievesItsConnection),
    (restart_within_a_lease, ForgetsItsPromise),
    (transfer_in_silence, ServesDuringTransfer),
    (campaign_after_a_failed_transfer, ResumesAfterCampaign),
    (late_truncation, TakesLateTruncations),
    (late_truncation_after_silence, ForgetsWhomItFollowed),
    (acknowledged_in_its_place, AcknowledgesWhatIsGone),
    (commit_before_the_comparison, CommitsWhatItHas),
    (damaged_run, ReadsTheFirstHead),
    (leader_without_a_quorum, LeadsAlone),
    (leader_started_again, LeadsItsTermAgain),
)


@pytest.mark.parametrize("scene", [scene for scene, _ in MISTAKES], ids=lambda scene: scene.__name__)
def test_promise_holds(scene: Scene) -> None:
    """In this order of events, no promise breaks."""
    scene(Node)


@pytest.mark.parametrize(("scene", "mistake"), MISTAKES, ids=lambda value: value.__name__)
def test_mistake_breaks_it(
    scene: Scene, mistake: type[Node | Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same order of events, a member that lacks one rule breaks its promise."""
    if issubclass(mistake, Follower):
        monkeypatch.setattr(node_module, "Follower", mistake)

    with pytest.raises(SafetyViolated):
        scene(mistake if issubclass(mistake, Node) else Node)


def test_what_was_not_compared_is_dropped() -> None:
    """Entries before the leader's first one are the leader's only if they are committed."""
    retention_above_the_fork(Node)


def test_what_was_not_compared_would_be_committed() -> None:
    """A log that kept them would take them for committed."""
    with pytest.raises(SafetyViolated):
        retention_above_the_fork(Node, KeepsWhatWasNotCompared)
