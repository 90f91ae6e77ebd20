"""A living master asks for its successor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.decide_election import decide_elect
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.election import HANDED_OVER
from brokerset_controller.replicas.events import MasterElected
from brokerset_controller.replicas.state import Group
from brokerset_protocol.headers.controller import ElectMaster
from brokerset_sim.replica_groups import NAME, group_of, live, view_of

GROUP = group_of(1, 2, 3, 4, master=1, epoch=4, in_sync=(1, 2, 3), set_epoch=6)
LOGS = {1: (4, 30), 2: (4, 10), 3: (4, 20), 4: (4, 30)}
ALIVE = view_of(1, 2, 3, 4, logs=LOGS)


def hand_over(
    group: Group | None, view: LiveView, to: int = -1, *, epoch: int = 4, nonce: str | None = "n1"
) -> Decision:
    header = ElectMaster(
        broker_name=NAME, broker_id=to, designate_elect=True, handover_epoch=epoch, nonce=nonce
    )
    return decide_elect(group, header, view, unclean_allowed=True)


def test_the_furthest_in_sync_replica_takes_over() -> None:
    """Past a living master; the in-sync set becomes the new one, and nothing is lost."""
    decision = hand_over(GROUP, ALIVE)

    assert decision.event == MasterElected(NAME, 3, 5, 4, 6, False, HANDED_OVER, None, "n3")
    assert decision.code == 0


def test_the_master_may_name_its_successor() -> None:
    """One that is in sync."""
    event = hand_over(GROUP, ALIVE, 2).event

    assert isinstance(event, MasterElected)
    assert event.master_id == 2


def test_no_lease_holds_up_a_hand_over() -> None:
    """Who hands over has stopped serving."""
    alone = view_of(1, 2, 3, logs=LOGS, lease_seconds=5.0, r1=live(1, 4, 30, all_ack=False))

    assert hand_over(GROUP, alone).code == 0


@pytest.mark.parametrize(
    ("group", "view", "epoch", "nonce", "code", "text"),
    [
        (None, ALIVE, 4, "n1", 2010, "is unknown here"),
        (GROUP, ALIVE, 3, "n1", 2000, "replica 1 is master, in epoch 4"),
        (GROUP, ALIVE, 5, "n1", 2000, "the master of epoch 5 cannot hand over"),
        (replace(GROUP, master_id=None), ALIVE, 4, "n1", 2000, "nobody is master"),
        (GROUP, ALIVE, 4, "older", 2002, "another process is master"),
        (GROUP, view_of(2, 3, dead=(1,)), 4, "n1", 2012, "heartbeats do not arrive; it is dead"),
        (GROUP, view_of(2, 3), 4, "n1", 2012, "it is unknown"),
    ],
)
def test_only_the_living_master_of_that_epoch_hands_over(
    group: Group | None, view: LiveView, epoch: int, nonce: str, code: int, text: str
) -> None:
    """A request that comes late changes nothing."""
    decision = hand_over(group, view, epoch=epoch, nonce=nonce)

    assert (decision.code, decision.event) == (code, None)
    assert text in (decision.remark or "")


@pytest.mark.parametrize(
    ("group", "view", "to", "text"),
    [
        (GROUP, ALIVE, 9, "not registered; able to take over: 2, 3"),
        (GROUP, ALIVE, 1, "the master itself"),
        (GROUP, ALIVE, 4, "not in sync; able to take over: 2, 3"),
        (GROUP, view_of(1, 3, dead=(2,)), 2, "is dead, not alive; able to take over: 3"),
        (GROUP, view_of(1, 2, 3, r2=live(2, 4, 10, stuck=True)), 2, "takes nothing any more"),
        (replace(GROUP, suspects=frozenset((2,))), ALIVE, 2, "not in sync"),
        (replace(GROUP, fenced=frozenset((4,))), ALIVE, 4, "replica 4 of a is fenced"),
        (group_of(1, 2, master=1, epoch=4, in_sync=(1,)), ALIVE, -1, "no other replica of a is in sync"),
        (GROUP, view_of(1, dead=(2, 3)), -1, "no other replica of a is in sync"),
    ],
)
def test_who_cannot_take_over(group: Group, view: LiveView, to: int, text: str) -> None:
    """2012: the master stays, and may serve on."""
    decision = hand_over(group, view, to)

    assert (decision.code, decision.event) == (2012, None)
    assert text in (decision.remark or "")


def test_a_stuck_master_may_hand_over() -> None:
    """Its log takes nothing, but what is in it is in sync."""
    view = view_of(1, 2, 3, logs=LOGS, r1=live(1, 4, 30, stuck=True))

    assert hand_over(GROUP, view).code == 0
