"""The member machine: the steps of a change of role, news, failures, leases, and what is served."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest

from brokerset_broker.member.core import (
    OWN_STEPS,
    Action,
    Ask,
    CarryOut,
    Circumstances,
    LeaseChanged,
    Member,
    Refusal,
    RoleTaken,
    Serve,
    Step,
    SwitchEnded,
    plan_switch,
)
from brokerset_broker.member.role import GroupNews, Role, RoleState
from brokerset_broker.member.service_mode import ModeKind

NONE = RoleState()
MASTER = RoleState(Role.MASTER, 5, 9, 1, "a", frozenset((1,)))
SLAVE = RoleState(Role.SLAVE, 5, 9, 2, "b", frozenset((2,)))


def names(before: RoleState, after: RoleState) -> str:
    return " ".join(plan_switch(before, after))


def test_to_master() -> None:
    """A new master first ends everything else, and serves last."""
    assert names(NONE, MASTER) == names(SLAVE, MASTER)
    assert names(SLAVE, MASTER) == (
        "HoldWrites StopFollowing FinishReceived BeginEpoch ApplyMetadata TakeRole TakeInSync AcceptReplicas"
        " WriteSnapshot StartServices Serve TellNameServers"
    )


def test_to_master_of_another_epoch() -> None:
    """A master that is elected again leaves its old mastership first; sends go on waiting."""
    assert names(replace(MASTER, epoch=4), MASTER) == (
        "HoldWrites StopServices StopMetadata CloseReplicas StopFollowing FinishReceived BeginEpoch"
        " ApplyMetadata TakeRole TakeInSync AcceptReplicas WriteSnapshot StartServices Serve TellNameServers"
    )


def test_to_slave() -> None:
    """A master that becomes slave answers who waits; a slave finishes what it received."""
    assert names(replace(MASTER, epoch=4), SLAVE) == (
        "HoldWrites StopServices StopMetadata CloseReplicas AnswerWaiters StopFollowing TakeRole"
        " Follow FollowMetadata Serve TellNameServers"
    )
    assert names(NONE, SLAVE) == (
        "HoldWrites StopFollowing FinishReceived TakeRole Follow FollowMetadata Serve TellNameServers"
    )


def test_only_what_belongs_to_the_role() -> None:
    """Another in-sync set or address in the same epoch interrupts nothing."""
    assert names(MASTER, replace(MASTER, set_epoch=10)) == "TakeRole TakeInSync"
    assert names(SLAVE, replace(SLAVE, set_epoch=10)) == "TakeRole Follow FollowMetadata Serve"


def test_to_no_role() -> None:
    """Without a master nobody is followed, and a mastership ends all the same."""
    assert names(MASTER, RoleState(epoch=6)) == (
        "HoldWrites StopServices StopMetadata CloseReplicas AnswerWaiters StopFollowing"
        " TakeRole FollowMetadata Serve TellNameServers"
    )
    assert Step.FOLLOW not in plan_switch(SLAVE, replace(SLAVE, epoch=6, master_id=None))


@pytest.mark.parametrize("before", [NONE, SLAVE, replace(MASTER, epoch=4)])
def test_the_epoch_is_on_disk_before_anything_is_appended(before: RoleState) -> None:
    """Nothing is received or appended between the end of the following and the beginning of the epoch, and
    the snapshot comes before anything else in the epoch."""
    steps = plan_switch(before, MASTER)

    order = [Step.HOLD_WRITES, Step.STOP_FOLLOWING, Step.FINISH_RECEIVED, Step.BEGIN_EPOCH, Step.TAKE_ROLE]
    order += [Step.ACCEPT_REPLICAS, Step.WRITE_SNAPSHOT, Step.START_SERVICES, Step.SERVE]
    assert [step for step in steps if step in order] == order


# -- the machine ------------------------------------------------------------------------------------------

OWN = 1


def machine(*, leases: bool = True) -> Member:
    """A member whose start the controllers know."""
    member = Member("nonce", poll_seconds=1.0, heartbeat_seconds=0.5)
    member.observe(100.0, Circumstances())
    member.registered(OWN, 0 if leases else None)
    member.take_actions()
    return member


def lead(epoch: int) -> GroupNews:
    return GroupNews(epoch, OWN, "a:1", epoch, frozenset((OWN, 2)))


def follow(epoch: int, set_epoch: int | None = None) -> GroupNews:
    return GroupNews(epoch, 2, "b:1", epoch if set_epoch is None else set_epoch, frozenset((OWN, 2)))


def carry_out(member: Member, fails: Step | None = None) -> list[Action]:
    """Let every step be done but one; everything that happened."""
    seen: list[Action] = []
    while actions := member.take_actions():
        seen += actions
        steps = [action for action in actions if isinstance(action, CarryOut)]
        assert len(steps) <= 1, "one step at a time"
        for given in steps:
            member.step_ended("it cannot be done" if given.step is fails else "")
    return seen


def steps_of(seen: list[Action]) -> list[str]:
    return [action.step.value for action in seen if isinstance(action, CarryOut)]


def test_a_master_switch_holds_first_and_serves_last() -> None:
    """From the news to service, in the order of the plan; the role shows in the middle."""
    member = machine(leases=False)
    member.in_sync_changed(enough=True, epoch_confirmed=True)
    member.take_actions()

    member.received(lead(3))
    seen = carry_out(member)

    kinds = [
        action.modes.writes.kind.value if isinstance(action, Serve) else type(action).__name__
        for action in seen
        if isinstance(action, Serve | RoleTaken | SwitchEnded)
    ]
    assert [kind for kind, _ in groupby(kinds)] == ["hold", "RoleTaken", "hold", "serve", "SwitchEnded"]
    assert member.role.role is Role.MASTER
    assert steps_of(seen)[:2] == ["StopFollowing", "FinishReceived"]


def test_news_that_come_during_a_switch_wait_and_only_the_newest_counts() -> None:
    """What was said in between is history."""
    member = machine()
    member.received(lead(3))

    member.received(follow(4))
    member.received(follow(6))
    member.received(follow(5))
    seen = carry_out(member)

    taken = [(a.after.role, a.after.epoch) for a in seen if isinstance(a, RoleTaken)]
    assert taken == [(Role.MASTER, 3), (Role.SLAVE, 6)]


def test_an_election_is_asked_for_when_the_switch_that_the_news_began_is_over() -> None:
    """A slave that hears that there is no master leaves the old one first."""
    member = machine()
    member.received(follow(3))
    carry_out(member)

    member.received(GroupNews(4), may_elect=True)
    seen = carry_out(member)

    assert seen.index(Ask.ELECTION) > max(i for i, a in enumerate(seen) if isinstance(a, CarryOut))
    assert member.role.master_id is None


def test_who_lost_its_identity_serves_nothing_and_hears_nothing_until_it_registers() -> None:
    """Also in the middle of a switch: that one ends first."""
    member = machine()
    member.received(follow(2))
    carry_out(member)
    member.received(lead(3))
    begun = member.take_actions()
    member.lost_identity()
    assert member.take_actions() == (), "the step that is on its way ends first"
    assert [type(action) for action in begun].count(CarryOut) == 1
    member.step_ended()
    seen = carry_out(member)

    member.received(lead(5))

    assert [a.after.role for a in seen if isinstance(a, RoleTaken)] == [Role.MASTER, Role.NONE]
    assert carry_out(member) == []
    member.registered(OWN, 5)
    member.received(lead(6))
    carry_out(member)
    assert member.role.role is Role.MASTER


@pytest.mark.parametrize("fails", [step for step in plan_switch(NONE, MASTER) if step not in OWN_STEPS])
def test_a_step_that_fails_leaves_no_role_and_no_service(fails: Step) -> None:
    """Whichever it is; and the same news make a master of it when the reason is gone."""
    member = machine(leases=False)
    member.in_sync_changed(enough=True, epoch_confirmed=True)
    member.received(lead(3))
    seen = carry_out(member, fails)

    served = [action for action in seen if isinstance(action, Serve)][-1]
    assert member.role == RoleState(epoch=3, set_epoch=3)
    assert served.modes.writes.kind is ModeKind.REFUSE
    assert served.refusal is not None
    assert not member.holds_writes
    member.received(lead(3))
    carry_out(member)
    assert member.role.role is Role.MASTER


def test_what_time_alone_changes_has_one_deadline_for_all_classes() -> None:
    """No client sees one class of requests end before another: one action ends them together."""
    member = machine()
    member.in_sync_changed(enough=True, epoch_confirmed=True)
    member.received(lead(3))
    carry_out(member)
    member.observe(100.0, Circumstances(acknowledges_alone=True))
    member.lease_granted(100.0, 2_000, 3)
    carry_out(member)
    deadline = member.deadline()
    assert deadline == 102.0

    member.observe(deadline, Circumstances(acknowledges_alone=True))
    member.tick()
    held = [action for action in carry_out(member) if isinstance(action, Serve)][-1]
    then = member.deadline()
    assert then is not None
    assert then == pytest.approx(103.0)
    member.observe(then, Circumstances(acknowledges_alone=True))
    member.tick()
    over = [action for action in carry_out(member) if isinstance(action, Serve)][-1]

    assert (held.modes.writes.kind, held.modes.commits.kind) == (ModeKind.HOLD, ModeKind.HOLD)
    assert (over.modes.writes.kind, over.modes.commits.kind) == (ModeKind.REFUSE, ModeKind.REFUSE)
    assert member.deadline() is None


def test_a_lease_that_ended_is_noticed_whenever_somebody_asks() -> None:
    """A process that was stopped wakes up with all its timers late."""
    member = machine()
    member.received(lead(3))
    carry_out(member)
    member.lease_granted(100.0, 2_000, 3)
    carry_out(member)

    assert member.may_serve(101.9)
    assert not member.may_serve(102.0)
    assert not member.lease_missing(102.5)
    member.observe(102.5, Circumstances())
    member.tick()
    assert LeaseChanged(serves=False) in carry_out(member)
    assert member.lease_missing(103.5)


def test_while_a_successor_is_asked_for_no_lease_counts() -> None:
    """The request may be repeated: a heartbeat between two tries is older than the second one."""
    member = machine()
    member.received(lead(3))
    carry_out(member)
    member.lease_granted(100.0, 5_000, 3)

    member.give_up_lease(asking=True)
    member.lease_granted(100.5, 5_000, 3)
    meanwhile = member.may_serve(100.6)
    member.observe(101.0, Circumstances())
    member.give_up_lease()
    member.lease_granted(100.9, 5_000, 3)
    older = member.may_serve(101.1)
    member.lease_granted(101.0, 5_000, 3)

    assert (meanwhile, older, member.may_serve(101.1)) == (False, False, True)


def test_a_lease_is_over_when_a_controller_knows_of_a_newer_epoch() -> None:
    """Its own epoch, or an older one that a lagging node knows, says nothing."""
    member = machine()
    member.received(lead(3))
    carry_out(member)
    member.lease_granted(100.0, 5_000, 3)
    member.epoch_known(2)
    member.epoch_known(3)
    before = member.may_serve(100.1)

    member.epoch_known(4)
    late = carry_out(member)
    member.lease_granted(100.2, 5_000, 3)

    assert before
    assert LeaseChanged(serves=False) in late
    assert not member.may_serve(100.3)


def test_sends_that_passed_the_gateway_are_refused_as_the_role_says() -> None:
    """A slave with Java's words; a master with the reason; nobody while it serves."""
    member = machine(leases=False)
    member.received(follow(3))
    slave = [action for action in carry_out(member) if isinstance(action, Serve)][-1]
    member.received(lead(4))
    few = [action for action in carry_out(member) if isinstance(action, Serve)][-1]
    member.in_sync_changed(enough=True, epoch_confirmed=False)
    enough = [action for action in carry_out(member) if isinstance(action, Serve)][-1]

    assert slave.refusal == Refusal(2, "")
    assert few.refusal is not None
    assert "in-sync replicas not enough" in few.refusal.remark
    assert (enough.refusal, enough.knows_ends) == (None, False)


def test_a_closed_machine_has_no_deadline() -> None:
    """Or its timer would come at once, and again, for as long as the broker drains."""
    member = machine(leases=False)
    member.observe(10.0, Circumstances())
    member.received(follow(3))
    carry_out(member)
    member.received(GroupNews(4, None, None, 4, frozenset((2,))))
    carry_out(member)
    assert member.deadline() is not None

    member.close()

    assert member.deadline() is None


def test_nothing_is_served_anew_after_the_end_has_begun() -> None:
    """The gateway refuses everything by then."""
    member = machine()
    member.close()

    member.tick()

    assert member.take_actions() == ()
