"""The steps of a change of role, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_broker.ha.role_switch import Step, plan_switch
from brokerset_broker.membership.role import Role, RoleChange

NONE = RoleChange()
MASTER = RoleChange(Role.MASTER, 5, 9, 1, "a", frozenset((1,)))
SLAVE = RoleChange(Role.SLAVE, 5, 9, 2, "b", frozenset((2,)))


def names(before: RoleChange, after: RoleChange) -> str:
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
        "HoldWrites StopServices CloseReplicas StopFollowing FinishReceived BeginEpoch ApplyMetadata TakeRole"
        " TakeInSync AcceptReplicas WriteSnapshot StartServices Serve TellNameServers"
    )


def test_to_slave() -> None:
    """A master that becomes slave answers who waits; a slave finishes what it received."""
    assert names(replace(MASTER, epoch=4), SLAVE) == (
        "HoldWrites StopServices CloseReplicas AnswerWaiters StopFollowing TakeRole Follow Serve"
        " TellNameServers"
    )
    assert names(NONE, SLAVE) == (
        "HoldWrites StopFollowing FinishReceived TakeRole Follow Serve TellNameServers"
    )


def test_only_what_belongs_to_the_role() -> None:
    """Another in-sync set or address in the same epoch interrupts nothing."""
    assert names(MASTER, replace(MASTER, set_epoch=10)) == "TakeRole TakeInSync"
    assert names(SLAVE, replace(SLAVE, set_epoch=10)) == "TakeRole Follow Serve"


def test_to_no_role() -> None:
    """Without a master nobody is followed, and a mastership ends all the same."""
    assert names(MASTER, RoleChange(epoch=6)) == (
        "HoldWrites StopServices CloseReplicas AnswerWaiters StopFollowing TakeRole Serve TellNameServers"
    )
    assert Step.FOLLOW not in plan_switch(SLAVE, replace(SLAVE, epoch=6, master_id=None))


@pytest.mark.parametrize("before", [NONE, SLAVE, replace(MASTER, epoch=4)])
def test_the_epoch_is_on_disk_before_anything_is_appended(before: RoleChange) -> None:
    """Nothing is received or appended between the end of the following and the beginning of the epoch, and
    the snapshot comes before anything else in the epoch."""
    steps = plan_switch(before, MASTER)

    order = [Step.HOLD_WRITES, Step.STOP_FOLLOWING, Step.FINISH_RECEIVED, Step.BEGIN_EPOCH, Step.TAKE_ROLE]
    order += [Step.ACCEPT_REPLICAS, Step.WRITE_SNAPSHOT, Step.START_SERVICES, Step.SERVE]
    assert [step for step in steps if step in order] == order
