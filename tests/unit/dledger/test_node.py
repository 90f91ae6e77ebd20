"""The core of one member: appends, commit, roles, transfer, preferred leaders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_dledger.following import NEVER
from brokerset_dledger.ledger import LedgerRefused
from brokerset_dledger.node import Role
from brokerset_protocol.bodies.dledger import (
    OWN_VERSION,
    DLedgerBody,
    DLedgerCode,
    HeartbeatRequest,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    PushRequest,
    PushResponse,
)
from brokerset_sim.dledger_net import DLedgerNet, Sent


def group(size: int = 3, **settings: Any) -> DLedgerNet:
    """A group that n0 leads; all have its first record, committed."""
    net = DLedgerNet(size, **settings)
    net.elect("n0")
    net.advance(200)
    return net


def transfer_request(net: DLedgerNet, **values: Any) -> LeadershipTransferRequest:
    """An administrator's request to n0: n1 shall lead."""
    usual: dict[str, Any] = {
        "group": "g",
        "remote_id": "n0",
        "transfer_id": "n0",
        "transferee_id": "n1",
        "term": net["n0"].node.term,
        "brokerset": OWN_VERSION,
    }
    return LeadershipTransferRequest(**(usual | values))


def transfer_codes(net: DLedgerNet, name: str = "n0") -> list[int]:
    """The answers to transfers that a member gave."""
    return [each.code for each in net[name].log if isinstance(each, LeadershipTransferResponse)]


def test_leader_begins_its_term_with_a_record() -> None:
    """It serves from the commit of that record on."""
    net = group()

    assert net["n0"].node.begin_index == 0
    assert net["n0"].ledger.entry(0).term == net["n0"].node.term
    assert net["n0"].node.may_serve(net.now)
    assert all(member.ledger.committed_index == 0 for member in net.members.values())


def test_followers_learn_where_clients_find_the_leader() -> None:
    """By its heartbeats; who follows nobody knows no address."""
    net = group()
    assert {member.node.leader_address for member in net.members.values()} == {"n0.example:10911"}

    net["n2"].draws.first = True
    net.cut_off("n0")
    assert net.advance(400, lambda: net["n1"].node.role is Role.CANDIDATE)

    assert net["n1"].node.leader_address is None
    net.elect("n2")
    assert net["n1"].node.leader_address == "n2.example:10911"


def test_members_of_java_get_no_address() -> None:
    """What they send and hear is what Java's members send and hear; nor do we believe one of theirs."""
    net = DLedgerNet(alone=False)
    heartbeats: list[HeartbeatRequest] = []

    def see(sent: Sent) -> bool:
        if isinstance(sent.request, HeartbeatRequest):
            heartbeats.append(sent.request)
        return False

    net.holds = see
    net.elect("n0")

    assert {each.address for each in heartbeats} == {None}
    net.receive("n1", replace(heartbeats[0], remote_id="n1", address="n9.example:1"))
    assert net["n1"].node.leader_address is None


def test_leader_says_until_when_it_serves() -> None:
    """Until its lease ends, as of the last heartbeats that a quorum has answered."""
    net = group()
    node = net["n0"].node
    net.cut_off("n0")
    until = node.serves_until()

    assert net.now < until <= net.now + node.config.lease
    assert node.may_serve(until - 1)
    assert not node.may_serve(until)
    assert net["n1"].node.serves_until() < net.now


@pytest.mark.parametrize("settings", [{"size": 1}, {"alone": False}])
def test_leader_without_a_lease_serves_until_it_hears_something(settings: dict[str, Any]) -> None:
    """A group of one has nobody to elect; in a mixed group, nobody promises silence."""
    net = group(**settings)

    assert net["n0"].node.serves_until() >= NEVER


def test_entries_that_the_store_has_put_itself() -> None:
    """They are pushed and committed as if the core had appended them."""
    net = group()
    node, ledger = net["n0"].node, net["n0"].ledger
    node.require_appendable(2)
    ledger.append_body(node.term, b"one")
    ledger.append_body(node.term, b"two")

    node.appended(net.now)
    net.settle("n0")

    assert ledger.committed_index == ledger.end_index == 2
    assert net["n1"].ledger.end_index == 2


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7])
def test_commit_needs_more_than_half(size: int) -> None:
    """With one member less than a quorum nothing is committed."""
    net = group(size)
    needed = net["n0"].config.quorum
    for number in range(needed, size):
        net.cut_off("n0", f"n{number}")
    if needed > 1:
        net.cut_off("n0", f"n{needed - 1}")
        (entry,) = net.append("n0", b"body")
        assert net["n0"].ledger.committed_index < entry.index
        net.cut.discard(frozenset(("n0", f"n{needed - 1}")))
    (entry,) = net.append("n0", b"body")

    assert net.advance(2_000, lambda: entry.index in net.acked)


def test_leader_counts_what_is_on_its_disk() -> None:
    """Its own entry is like any other's."""
    net = group()
    net.cut_off("n0", "n2")
    net["n0"].disk = False
    (entry,) = net.append("n0", b"body")
    assert net["n0"].node.watermarks() == {"n0": 0, "n1": 1, "n2": 0}
    assert entry.index not in net.acked

    net["n0"].disk = True
    net.settle("n0")

    assert entry.index in net.acked


def test_follower_acknowledges_what_is_on_its_disk() -> None:
    """And not what it has only written."""
    net = group()
    net["n1"].disk = net["n2"].disk = False
    (entry,) = net.append("n0", b"body")
    assert net["n1"].ledger.end_index == entry.index
    assert entry.index not in net.acked

    net["n1"].disk = True
    net.settle("n1")

    assert entry.index in net.acked


def test_entries_count_in_the_page_cache_where_that_is_wanted() -> None:
    """As in Java."""
    net = group(sync_before_ack=False)
    for member in net.members.values():
        member.disk = False

    (entry,) = net.append("n0", b"body")

    assert entry.index in net.acked


def test_append_to_a_member_that_does_not_lead() -> None:
    """404, with the name of the leader."""
    net = group()

    with pytest.raises(LedgerRefused, match="n0 leads g") as refused:
        net.append("n1", b"body")

    assert refused.value.code is DLedgerCode.NOT_LEADER


def test_append_during_a_transfer() -> None:
    """506, until the outcome is known."""
    net = group()
    net.holds = lambda sent: isinstance(sent.request, LeadershipTransferRequest)
    net["n0"].node.transfer(net.now, "n1")

    with pytest.raises(LedgerRefused) as refused:
        net.append("n0", b"body")

    assert refused.value.code is DLedgerCode.LEADER_TRANSFERRING
    assert not net["n0"].node.may_serve(net.now)


@pytest.mark.parametrize(("count", "refused"), [(1, False), (2, True)])
def test_append_when_too_many_wait(count: int, refused: bool) -> None:
    """503 beyond `uncommitted_max`; nothing of the refused batch is appended."""
    net = group(uncommitted_max=3)
    net.cut_off("n0")
    net.append("n0", b"body", b"body")

    if not refused:
        net.append("n0", *[b"body"] * count)
        return
    with pytest.raises(LedgerRefused) as error:
        net.append("n0", *[b"body"] * count)

    assert error.value.code is DLedgerCode.LEADER_PENDING_FULL
    assert net["n0"].ledger.end_index == 2


def test_one_large_batch_is_taken() -> None:
    """When nothing waits, even more than `uncommitted_max` at once."""
    net = group(uncommitted_max=3)

    assert len(net.append("n0", *[b"body"] * 5)) == 5


def test_full_disk_at_an_append() -> None:
    """415, and the leader goes on leading."""
    net = group()
    net["n0"].ledger.full = True

    with pytest.raises(LedgerRefused) as refused:
        net.append("n0", b"body")

    assert refused.value.code is DLedgerCode.DISK_FULL
    assert net.leads("n0")


def test_full_disk_at_an_election() -> None:
    """Who cannot write its first record does not lead."""
    net = DLedgerNet()
    net["n0"].ledger.full = True
    net["n0"].draws.first = True

    net.advance(3_000, lambda: net.leads("n1") or net.leads("n2"))

    assert not net.leads("n0")
    assert net.leads("n1") or net.leads("n2")


def test_transfer() -> None:
    """The administrator hears of the success; the new leader is in the next term."""
    net = group()
    term = net["n0"].node.term

    net.receive("n0", transfer_request(net))

    assert transfer_codes(net) == [DLedgerCode.SUCCESS]
    assert net.leads("n1")
    assert net["n1"].node.term == term + 1
    assert net["n0"].node.role is not Role.LEADER


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"term": 0}, DLedgerCode.INCONSISTENT_TERM),
        ({"transferee_id": "n9"}, DLedgerCode.UNKNOWN_MEMBER),
        ({"transferee_id": "n0"}, DLedgerCode.UNKNOWN_MEMBER),
        ({"transfer_id": "n2"}, DLedgerCode.UNEXPECTED_ARGUMENT),
    ],
)
def test_transfer_that_is_refused(values: dict[str, Any], code: DLedgerCode) -> None:
    """With the code of the first rule that applies."""
    net = group()

    net.receive("n0", transfer_request(net, **values))

    assert transfer_codes(net) == [code]
    assert net.leads("n0")


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"transfer_id": "n1"}, DLedgerCode.NOT_LEADER),
        ({"transfer_id": "n2"}, DLedgerCode.INCONSISTENT_LEADER),
    ],
)
def test_transfer_at_a_follower(values: dict[str, Any], code: DLedgerCode) -> None:
    """It neither hands over what it does not have, nor takes it from others than its leader."""
    net = group()

    net.receive("n1", transfer_request(net, remote_id="n1", **values))

    assert transfer_codes(net, "n1") == [code]


@pytest.mark.parametrize(("lag", "code"), [(2, None), (3, DLedgerCode.FALL_BEHIND_TOO_MUCH)])
def test_transfer_to_a_member_that_lags(lag: int, code: DLedgerCode | None) -> None:
    """417 when it lacks `transfer_lag_max` entries."""
    net = group(transfer_lag_max=3)
    net.cut_off("n0", "n1")
    net.append("n0", *[b"body"] * lag)

    net.receive("n0", transfer_request(net))

    assert transfer_codes(net) == ([] if code is None else [code])


def test_second_transfer() -> None:
    """506 while one is on its way."""
    net = group()
    net.holds = lambda sent: isinstance(sent.request, LeadershipTransferRequest)
    net["n0"].node.transfer(net.now, "n1")

    net.receive("n0", transfer_request(net, transferee_id="n2"))

    assert transfer_codes(net) == [DLedgerCode.LEADER_TRANSFERRING]


def test_each_request_hears_of_its_own_transfer() -> None:
    """The first one's outcome is unknown when the second begins, in a later term."""
    net = group(transfer_timeout=2_000)
    net.holds = lambda sent: isinstance(sent.request, LeadershipTransferRequest)
    net.receive("n0", transfer_request(net))
    net.cut_off("n0")
    net.cut_off("n1")
    net.advance(600, lambda: not net.leads("n0"))
    net.cut.clear()
    net.elect("n0")
    net.advance(100)
    net.receive("n0", transfer_request(net, transferee_id="n2"))
    assert transfer_codes(net) == []

    net.deliver(net.held[0])
    assert transfer_codes(net) == [DLedgerCode.INCONSISTENT_TERM]
    net.deliver(net.held[0])

    assert transfer_codes(net) == [DLedgerCode.INCONSISTENT_TERM, DLedgerCode.SUCCESS]
    assert net.leads("n2")


def test_transferee_that_cannot_catch_up() -> None:
    """It gives up in time, without a campaign, and the leader goes on."""
    net = group()
    net.holds = lambda sent: isinstance(sent.request, PushRequest)
    net.append("n0", b"body")
    net["n0"].node.transfer(net.now, "n1")

    net.advance(220)

    assert transfer_codes(net, "n1") == [DLedgerCode.TAKE_LEADERSHIP_FAILED]
    assert net.leads("n0")
    net.append("n0", b"more")


@pytest.mark.parametrize(("alone", "leads"), [(True, False), (False, True)])
def test_transfer_without_an_answer(alone: bool, leads: bool) -> None:
    """Members of ours alone: the leader steps down, for votes for its transferee heed no lease."""
    net = group(alone=alone)
    net.holds = lambda sent: isinstance(sent.request, LeadershipTransferRequest)
    net["n0"].node.transfer(net.now, "n1")
    net.settle("n0")

    net.advance(500)

    assert net.leads("n0") is leads


def test_preferred_leader_gets_the_leadership() -> None:
    """Of those that answer, the one that has most."""
    net = DLedgerNet(preferred_leaders=("n1", "n2"))
    net.elect("n0")
    net.cut_off("n0", "n1")
    net.append("n0", b"body")

    assert net.advance(1_000, lambda: net.leads("n2"))


def test_no_preferred_leader_is_heard() -> None:
    """The leader keeps the leadership."""
    net = DLedgerNet(preferred_leaders=("n2",))
    net.stop("n2")
    net.elect("n0")

    net.advance(1_000)

    assert net.leads("n0")


def test_idle_group_learns_what_is_committed() -> None:
    """Although the message that tells it is lost, and although a follower is started again."""
    net = group()
    net.holds = lambda sent: isinstance(sent.request, PushRequest) and not sent.request.entries
    (entry,) = net.append("n0", b"body")
    net.advance(300)
    net.restart("n1")
    assert net["n1"].ledger.committed_index < entry.index
    net.holds = lambda sent: False

    net.advance(400)

    assert {member.ledger.committed_index for member in net.members.values()} == {entry.index}


def test_members_of_other_make_are_not_heard() -> None:
    """A wrong setting shows at once: no vote, no answer counts."""
    net = group()
    seen: list[DLedgerBody] = []

    def hold(sent: Sent) -> bool:
        seen.append(sent.request)
        return False

    net.holds = hold
    net.append("n0", b"body")
    net.advance(100)

    assert seen
    assert all(request.brokerset == OWN_VERSION for request in seen)


def test_pushes_that_wait_for_the_disk_are_bounded() -> None:
    """A follower whose disk hangs refuses more; the leader pushes them again until it works."""
    net = group(unsynced_max=3)
    net.cut_off("n0", "n2")
    net["n1"].disk = False
    entries = [net.append("n0", b"body")[0] for _ in range(8)]
    net.advance(2_000)
    refused = [
        each
        for each in net["n1"].log
        if isinstance(each, PushResponse) and each.code == DLedgerCode.PUSH_REQUEST_IS_FULL
    ]
    assert refused
    assert len(net["n1"].node._unsynced) == 3

    net["n1"].disk = True

    assert net.advance(5_000, lambda: entries[-1].index in net.acked)
