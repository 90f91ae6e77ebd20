"""Members that may lack what they have acknowledged: when their votes count, and for how long."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from brokerset_dledger.election import Ballot, Verdict
from brokerset_dledger.node import Role
from brokerset_formats.dledger import CurrentTerm
from brokerset_protocol.bodies.dledger import PushRequest, VoteRequest, VoteResponse, VoteResult
from brokerset_sim.dledger_net import DLedgerNet, Sent

ACCEPTS = VoteResponse(term=1, vote_result=VoteResult.ACCEPT)
RECOVERS = replace(ACCEPTS, recovering=7)
HAS_MORE = VoteResponse(term=1, vote_result=VoteResult.REJECT_SMALL_LEDGER_END_INDEX)


@pytest.mark.parametrize(
    ("answers", "expired", "verdict"),
    [
        ((ACCEPTS, RECOVERS), False, Verdict.OPEN),
        ((ACCEPTS, RECOVERS), True, Verdict.TOO_FEW),
        ((ACCEPTS, RECOVERS, None), False, Verdict.TOO_FEW),
        ((ACCEPTS, RECOVERS, ACCEPTS), False, Verdict.ELECTED),
        ((ACCEPTS, ACCEPTS), False, Verdict.ELECTED),
        ((RECOVERS, RECOVERS, RECOVERS), False, Verdict.ELECTED),
        ((RECOVERS, RECOVERS, HAS_MORE), False, Verdict.TOO_FEW),
    ],
)
def test_the_vote_of_a_recovering_member_counts_only_when_all_vote_so(
    answers: tuple[VoteResponse | None, ...], *, expired: bool, verdict: Verdict
) -> None:
    ballot = Ballot(1, 2, 3, 0, answers={f"n{number}": each for number, each in enumerate(answers)})

    assert ballot.judge(expired=expired) is verdict


def led_by_n0(size: int = 3) -> DLedgerNet:
    """A group in which n0 leads; everybody has its first record."""
    net = DLedgerNet(size)
    net.elect("n0")
    net.advance(200)
    return net


def test_a_replaced_disk_elects_nobody_who_lacks_what_it_had_acknowledged() -> None:
    """n0 and n1 have the entry; n1 loses its disk, then n0 is gone: n2, which lacks the entry, must wait."""
    net = led_by_n0()
    net.cut_off("n2")
    (entry,) = net.append("n0", b"acknowledged")
    assert entry.index in net.acked

    net.stop("n0")
    net.replace_disk("n1")
    net.cut.clear()
    assert not net.advance(5_000, lambda: net.leads("n1") or net.leads("n2"))

    net.start("n0")
    assert net.advance(3_000, lambda: net["n2"].ledger.committed_index > entry.index)
    assert not any(member.node.recovering for member in net.members.values())


def test_a_member_on_a_new_disk_is_as_others_once_it_has_what_is_committed() -> None:
    """Then its vote counts again, so the group bears the loss of another one."""
    net = led_by_n0()
    net.append("n0", *[b"entry"] * 50)

    net.replace_disk("n1")
    assert net["n1"].node.recovering
    assert net.advance(1_000, lambda: not net["n1"].node.recovering)

    assert net["n1"].ledger.committed_index == net["n0"].ledger.committed_index
    assert net["n1"].current_term == CurrentTerm(net["n0"].node.term, "n0"), "a vote of before is forgotten"
    net.stop("n0")
    assert net.advance(3_000, lambda: net.leads("n1") or net.leads("n2"))


def test_all_members_of_a_new_group_elect_one_of_them() -> None:
    """None of them knows that the group is new, but all of them have nothing."""
    net = DLedgerNet()
    for name in net.members:
        net.replace_disk(name)

    assert net.advance(3_000, lambda: any(map(net.leads, net.members)))
    assert net.advance(500, lambda: not any(each.node.recovering for each in net.members.values()))


@pytest.mark.parametrize(("term", "recovering"), [(CurrentTerm(), False), (CurrentTerm(1, "n0"), True)])
def test_who_has_voted_does_not_believe_that_its_group_is_new(term: CurrentTerm, *, recovering: bool) -> None:
    """n1 had an entry of n0 in its memory alone, and asks n2, which had none: an old log is on all disks."""
    net = DLedgerNet()
    net.replace_disk("n1")
    net["n1"].current_term = term
    net.restart("n1")

    net["n1"].node.begin_group()

    assert net["n1"].node.recovering is recovering


def test_a_new_group_waits_for_its_last_member() -> None:
    """It might be the one that has everything."""
    net = DLedgerNet()
    for name in net.members:
        net.replace_disk(name)
    net.stop("n2")
    assert not net.advance(5_000, lambda: any(map(net.leads, net.members)))

    net.start("n2")

    assert net.advance(3_000, lambda: any(map(net.leads, net.members)))


def test_pushes_from_before_the_start_end_no_recovery() -> None:
    """What the leader had committed then may be less than what was acknowledged since."""
    net = led_by_n0()
    net.holds = lambda sent: isinstance(sent.request, PushRequest) and sent.target == "n1"
    net.append("n0", b"held")
    old = list(net.held)
    net.replace_disk("n1")
    assert old

    for sent in old:
        net.deliver(sent)
    assert net["n1"].node.recovering

    net.holds = lambda sent: False
    assert net.advance(2_000, lambda: not net["n1"].node.recovering)


def test_what_a_lost_disk_had_acknowledged_is_counted_no_more() -> None:
    """n1 alone of the followers has the entry, and loses it: later, one more copy is no quorum of five."""
    net = led_by_n0(5)
    net.cut_off("n2")
    net.cut_off("n3")
    net.cut_off("n4")
    net.append("n0", b"on two of five")
    index = net["n0"].ledger.end_index
    assert net["n0"].node.watermarks()["n1"] == index

    net.holds = lambda sent: isinstance(sent.request, PushRequest) and sent.target == "n1"
    net.replace_disk("n1")
    net.cut.clear()
    net.cut_off("n3")
    net.cut_off("n4")
    net.advance(200)
    held = [sent for sent in net.held if sent.target == "n1"]

    assert net["n0"].node.watermarks()["n2"] == index
    assert net["n0"].node.watermarks()["n1"] == -1
    assert net["n0"].ledger.committed_index < index
    assert held


def led_twice() -> DLedgerNet:
    """n0, cut off, leads the term 1 still; n1 leads the term 2 by the vote of n2."""
    net = DLedgerNet(3, promise_heartbeats=2, heartbeats_missed_max=15)
    net.elect("n0")
    net.advance(200)
    net["n1"].draws.first = True
    net.cut_off("n0")
    net.lose_leader("n1")
    assert net.advance(1_000, lambda: net.leads("n1"))
    assert net.leads("n0")
    return net


def test_a_leader_that_has_been_replaced_ends_no_recovery() -> None:
    """n2 loses its disk, and with it the newer term and an entry of it, and hears only the older leader."""
    net = led_twice()
    (entry,) = net.append("n1", b"acknowledged")
    assert entry.index in net.acked
    net.cut.clear()
    net.cut_off("n1")
    net.replace_disk("n2")
    net.append("n0", b"of the older term")

    for _ in range(160):
        net.advance(10)
        net.read("n0")
        assert net["n2"].node.recovering
    assert not net.leads("n0")

    net.cut.clear()
    assert net.advance(3_000, lambda: not net["n2"].node.recovering)
    assert net["n2"].ledger.has(entry.index)


def test_a_recovering_member_counts_once_its_leader_is_confirmed() -> None:
    """Then it bears the loss of another one, though it has not copied all yet."""
    net = led_by_n0()
    net.append("n0", *[b"entry"] * 50)
    net.holds = lambda sent: isinstance(sent.request, PushRequest) and sent.target == "n1"
    net.replace_disk("n1")
    net.advance(200)
    net.stop("n2")
    net.holds = lambda sent: False

    assert net["n1"].node.recovering
    (entry,) = net.append("n0", b"on n0 and n1")

    assert net.advance(1_000, lambda: entry.index in net.acked)
    assert not net["n1"].node.recovering


def test_a_leader_that_was_elected_recovering_is_so_until_it_has_committed() -> None:
    """It has everything, for it was elected; its own term shows it."""
    net = DLedgerNet(1)

    net.replace_disk("n0")

    assert net.advance(3_000, lambda: net.leads("n0"))
    assert not net["n0"].node.recovering


def test_members_of_a_mixed_group_know_no_recovery() -> None:
    """Java's would count the votes; what such a group does not promise is written down."""
    net = DLedgerNet(alone=False)
    seen: list[VoteRequest] = []

    def see(sent: Sent) -> bool:
        if isinstance(sent.request, VoteRequest):
            seen.append(sent.request)
        return False

    net.holds = see
    net.replace_disk("n0")
    assert not net["n0"].node.recovering
    net.elect("n0")
    assert {each.recovering for each in seen} == {None}


def test_a_recovering_member_draws_another_number_at_each_start() -> None:
    """A leader tells apart what it knows of an earlier one."""
    net = led_by_n0()
    net.cut_off("n1")
    numbers: list[int | None] = []
    for _ in range(3):
        net.replace_disk("n1")
        net.receive("n1", VoteRequest(group="g", remote_id="n1", leader_id="n2", term=1, brokerset=1))
        numbers.append(net["n1"].log[-1].recovering)

    assert None not in numbers
    assert all(earlier != later for earlier, later in pairwise(numbers))
    assert net["n1"].node.role is Role.CANDIDATE
