"""Elections past stuck masters, and those that wait for the end of a lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import LiveView, Standing
from brokerset_controller.replicas.decide_election import decide_elect, decide_failover
from brokerset_controller.replicas.describe import advice, describe_group
from brokerset_controller.replicas.election import BEST_IN_SYNC, STUCK_MASTER
from brokerset_controller.replicas.events import MasterElected
from brokerset_controller.replicas.state import Group
from brokerset_protocol.headers.controller import ElectMaster
from brokerset_sim.replica_groups import NAME, group_of, live, view_of

GROUP = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6)
ALONE = live(2, 4, 10, all_ack=False)


def failover(group: Group, view: LiveView, *, unclean: bool = False) -> MasterElected | None:
    decision = decide_failover(group, view, unclean_allowed=unclean)
    if decision is None:
        return None
    assert isinstance(decision.event, MasterElected)
    return decision.event


def test_a_stuck_master_is_replaced_and_the_reason_recorded() -> None:
    """It is alive, but counts as dead for elections, and people see why."""
    view = view_of(1, 2, r1=live(1, 4, 10, stuck=True))
    event = failover(GROUP, view)

    assert event is not None
    assert (event.master_id, event.reason) == (2, STUCK_MASTER)
    assert view.standing(1) is Standing.ALIVE
    assert view.election_standing(1) is Standing.DEAD
    state = describe_group(GROUP, view, 0.0)
    assert [replica.stuck for replica in state.replicas] == [True, False, False]
    assert "about to be elected" in (state.advice or "")


def test_a_stuck_replica_is_never_elected() -> None:
    """Not even when nobody else is left; the advice names it."""
    view = view_of(2, dead=(1,), r2=live(2, 4, 10, stuck=True))

    assert failover(GROUP, view) is None
    assert failover(GROUP, view, unclean=True) is None
    assert "2 at h2:1 (its log takes nothing any more)" in (advice(GROUP, view) or "")
    named = ElectMaster(broker_name=NAME, broker_id=2, designate_elect=True)
    refused = decide_elect(GROUP, named, view, unclean_allowed=False)
    assert "look at its disk" in (refused.remark or "")


def test_a_clean_election_does_not_wait_for_a_lease() -> None:
    """Where all in-sync replicas acknowledge, the old master acknowledges nothing without them."""
    event = failover(GROUP, view_of(2, dead=(1,), lease_seconds=5.0))

    assert event is not None
    assert event.reason == BEST_IN_SYNC


def test_where_the_master_alone_acknowledges_elections_wait_for_the_lease() -> None:
    """What it took until then would be lost; the advice says how long."""
    waiting = view_of(2, dead=(1,), lease_seconds=2.5, r2=ALONE)

    assert failover(GROUP, waiting) is None
    assert "may serve for 2.5 s more" in (advice(GROUP, waiting) or "")
    assert failover(GROUP, replace(waiting, lease_seconds=0.0)) is not None


def test_an_unclean_election_waits_for_the_lease() -> None:
    """Also one that an administrator asks for."""
    waiting = view_of(3, dead=(1, 2), lease_seconds=2.5)
    named = ElectMaster(broker_name=NAME, broker_id=3, designate_elect=True, unclean=True)

    assert failover(GROUP, waiting, unclean=True) is None
    assert decide_elect(GROUP, named, waiting, unclean_allowed=False).code == 2012
    over = replace(waiting, lease_seconds=0.0)
    assert failover(GROUP, over, unclean=True) is not None
    assert decide_elect(GROUP, named, over, unclean_allowed=False).code == 0


@pytest.mark.parametrize("unclean", [True, False])
def test_a_master_that_is_surely_dead_holds_up_nothing(unclean: bool) -> None:
    """A refused connection, or another process at its address, proves more than silence."""
    gone = live(1, 4, 10, surely_dead=True, all_ack=False)
    alive = 3 if unclean else 2
    view = view_of(alive, dead=(1, 2) if unclean else (1,), lease_seconds=5.0, r1=gone)

    assert failover(GROUP, view, unclean=unclean) is not None


def test_a_lost_mastership_may_leave_a_lease_behind() -> None:
    """The process before the last start of the master may run on without being heard."""
    group = replace(GROUP, master_id=None, master_epoch=5)
    waiting = view_of(1, 2, lease_seconds=1.0, r2=ALONE)

    assert failover(group, waiting) is None
    assert failover(group, replace(waiting, lease_seconds=0.0)) is not None


def test_an_unclean_election_of_a_group_without_a_master_waits_for_the_lease_of_the_last_one() -> None:
    """It takes whoever is there, so nobody may still acknowledge what that one lacks."""
    group = replace(GROUP, master_id=None, master_epoch=5)
    waiting = view_of(3, dead=(1, 2), lease_seconds=1.0)

    assert failover(group, waiting, unclean=True) is None
    assert failover(group, replace(waiting, lease_seconds=0.0), unclean=True) is not None


def test_brokers_without_leases_are_not_waited_for() -> None:
    """Java's have no nonce; and a group without an earlier master has nobody with a lease."""
    java = group_of(1, 2, master=1, epoch=4, in_sync=(1, 2), nonces=False)
    view = view_of(2, dead=(1,), lease_seconds=5.0, r2=ALONE)
    new = group_of(1, 2, expected=2)
    reported = view_of(1, 2, lease_seconds=5.0, r1=live(1, -1, 0), r2=replace(ALONE, max_offset=0))

    assert failover(java, view) is not None
    assert failover(new, reported) is not None


def test_a_named_successor_waits_for_the_lease_of_a_living_master() -> None:
    """Where the master alone acknowledges; a switchover needs no waiting."""
    named = ElectMaster(broker_name=NAME, broker_id=2, designate_elect=True)
    view = view_of(1, 2, lease_seconds=5.0, r2=ALONE)

    refused = decide_elect(GROUP, named, view, unclean_allowed=False)

    assert refused.code == 2012
    assert "`brokerset switchover a`" in (refused.remark or "")
    all_ack = view_of(1, 2, lease_seconds=5.0)
    assert decide_elect(GROUP, named, all_ack, unclean_allowed=False).code == 0
