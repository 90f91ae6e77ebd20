"""A classic master is made read-only, and gets back what it allowed before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_cli.takeover.steps import StepState
from brokerset_cli.takeover.upgrade_facts import (
    Origin,
    SetPermission,
)
from brokerset_cli.takeover.upgrade_plan import plan_upgrade
from brokerset_cli.takeover.upgrade_starting import bearer_of
from brokerset_formats.identity import BrokerIdentity
from brokerset_rig.upgrade_worlds import (
    M_ADDRESS,
    MASTER,
    SLAVE,
    group,
    joined,
    note,
    now,
    prepared,
    running,
    store,
    words,
    world,
)


def test_a_classic_master_is_made_read_only_before_anything_stops() -> None:
    """Then its slaves get the rest; what it allowed before is part of the act."""
    stores = (store(MASTER, locked=7, note=note(master=True)), store(SLAVE, locked=8, note=note()))
    running_world = world(Origin.CLASSIC, stores=stores, brokers=running(), comparisons={})
    behind = replace(
        running_world,
        brokers=(replace(running()[0], permission=4, closed=True), replace(running()[1], end=300)),
    )
    whole = replace(running_world, brokers=running(permission=4, closed=True))
    again = replace(running_world, brokers=running(permission=4))

    noted = (replace(stores[0], note=note(master=True, permission=6)), stores[1])
    over = plan_upgrade(replace(again, stores=noted))

    assert plan_upgrade(running_world).act == SetPermission(M_ADDRESS, 4, 6, MASTER, closes=True)
    assert over.act == SetPermission(M_ADDRESS, 4, None, MASTER, closes=True), "the time for that is over"
    assert now(plan_upgrade(behind)) == ("read-only", StepState.WAITING)
    assert "behind: 10.0.0.2:10911 by 200 bytes" in words(plan_upgrade(behind))
    assert now(plan_upgrade(whole)) == ("slaves-stopped", StepState.YOURS)


@pytest.mark.parametrize(("before", "closed"), [(4, 4), (6, 4), (7, 5), (2, 0), (0, 0)])
def test_whatever_a_master_allowed_is_written_down_before_it_is_closed(before: int, closed: int) -> None:
    """Also that it was read-only by its settings: only the right to write goes, and sends are turned away."""
    stores = (store(MASTER, locked=7, note=note(master=True)), store(SLAVE, locked=8, note=note()))
    seen = world(Origin.CLASSIC, stores=stores, brokers=running(permission=before), comparisons={})

    assert plan_upgrade(seen).act == SetPermission(M_ADDRESS, closed, before, MASTER, closes=True)


def test_the_permission_is_noted_with_the_store_of_the_broker_that_has_it() -> None:
    """Another store may be the one that is to lead: its broker would get the permission back instead."""
    stores = (store(MASTER, locked=7, note=note(master=True)), store(SLAVE, locked=8, note=note()))
    seen = world(Origin.CLASSIC, stores=stores, brokers=running(), comparisons={}, wanted_master=SLAVE)
    far = replace(seen, stores=(stores[1],))

    assert plan_upgrade(seen).act == SetPermission(M_ADDRESS, 4, 6, MASTER, closes=True)
    assert now(plan_upgrade(far)) == ("read-only", StepState.YOURS)


def test_a_classic_master_gets_back_what_it_allowed() -> None:
    """A Java broker keeps brokerPermission in its file, and may have been started with that file."""
    stores = tuple(
        replace(
            each, store=replace(each.store, locked_by=7, identity=BrokerIdentity("c", "broker-a", number))
        )
        for number, each in enumerate(prepared(), 1)
    )
    stores = (replace(stores[0], note=note(master=True, prepared=True, permission=6)), stores[1])
    shut = world(Origin.CLASSIC, stores=stores, replicas=group(), master_permission=4, comparisons={})

    assert plan_upgrade(shut).act == SetPermission(M_ADDRESS, 6, None, MASTER, closes=False)
    assert plan_upgrade(replace(shut, master_permission=6)).done
    assert not plan_upgrade(replace(shut, master_permission=6, master_closed=True)).done
    assert now(plan_upgrade(replace(shut, master_permission=None))) == ("writable", StepState.WAITING)


@pytest.mark.parametrize("closed", [False, True])
def test_a_master_that_was_read_only_by_its_settings_is_so_again(closed: bool) -> None:
    """brokerPermission=4 from before comes back, not 6; and that it turned every send away ends."""
    seen = world(
        Origin.CLASSIC, stores=joined(permission=4), replicas=group(), comparisons={}, master_closed=closed
    )
    back = SetPermission(M_ADDRESS, 4, None, MASTER, closes=False)

    assert plan_upgrade(replace(seen, master_permission=6)).act == back
    as_it_was = plan_upgrade(replace(seen, master_permission=4))
    assert as_it_was.done is not closed
    assert as_it_was.act == (back if closed else None)
    if not closed:
        assert "brokerPermission=4, as before; a broker of brokerset" in as_it_was.steps[-1].detail


def test_the_permission_comes_back_where_it_was_taken_whoever_leads_by_now() -> None:
    """The other broker has its own; nobody made that one read-only."""
    seen = world(
        Origin.CLASSIC, stores=joined(permission=6), replicas=group(master=2), master_permission=4,
        comparisons={},
    )  # fmt: skip

    there = replace(seen.stores[0], store=replace(seen.stores[0].store, identity=None), here=False)
    elsewhere = replace(seen, stores=(there, seen.stores[1]))

    assert plan_upgrade(seen).act == SetPermission(M_ADDRESS, 6, None, MASTER, closes=False)
    bearer = bearer_of(elsewhere.stores, elsewhere.replicas)
    assert bearer is not None
    assert bearer.address == M_ADDRESS, "its id is not known here, its address is"


def test_a_permission_that_nobody_changed_is_left_as_it_is() -> None:
    """Without a manifest that says so it was the person who made the master read-only."""
    seen = world(Origin.CLASSIC, stores=joined(), replicas=group(), master_permission=4, comparisons={})
    closed = plan_upgrade(replace(seen, master_closed=True))

    assert plan_upgrade(seen).done
    assert "brokerPermission=4; nothing was changed from here" in plan_upgrade(seen).steps[-1].detail
    assert now(closed) == ("writable", StepState.YOURS)
    assert "what it allowed before is not known here" in words(closed)
