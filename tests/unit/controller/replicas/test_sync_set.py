"""1001: the order of RocketMQ's checks."""

from __future__ import annotations

import pytest

from brokerset_controller.replicas.decide_sync_set import decide_alter_sync_state_set
from brokerset_controller.replicas.events import SyncStateSetAltered
from brokerset_controller.replicas.state import Group
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.headers.controller import AlterSyncStateSet, AlterSyncStateSetResponse
from brokerset_sim.replica_groups import NAME, group_of, view_of

GROUP = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6, suspects=(3,))
VIEW = view_of(1, 3, dead=(2,))


@pytest.mark.parametrize(
    ("group", "master", "epoch", "set_epoch", "wanted", "code"),
    [
        (None, 1, 4, 6, (1,), 2013),
        (group_of(next_id=4), 1, 4, 6, (1,), 2013),
        (GROUP, 9, 9, 9, (1, 2), 2013),
        (GROUP, 2, 9, 9, (8,), 2002),
        (group_of(1, 2, epoch=4, in_sync=(1, 2), set_epoch=6), 1, 4, 6, (1,), 2002),
        (GROUP, 1, 9, 9, (8,), 2000),
        (GROUP, 1, 4, 9, (8,), 2001),
        (GROUP, 1, 4, 6, (1, 3, 8), 2003),
        (GROUP, 1, 4, 6, (1, 2, 3), 2006),
        (GROUP, 1, 4, 6, (3,), 2013),
        (GROUP, 1, 4, 6, (), 2013),
    ],
)
def test_the_first_check_that_fails_gives_the_code(
    group: Group | None, master: int, epoch: int, set_epoch: int, wanted: tuple[int, ...], code: int
) -> None:
    """Refusals carry a header with set epoch 0 and propose nothing."""
    decision = decide_alter_sync_state_set(
        group,
        AlterSyncStateSet(broker_name=NAME, master_broker_id=master, master_epoch=epoch),
        SyncStateSet(frozenset(wanted), set_epoch),
        VIEW,
    )

    assert (decision.code, decision.event, decision.body) == (code, None, None)
    assert decision.header == AlterSyncStateSetResponse(new_sync_state_set_epoch=0)
    assert decision.remark


def test_success_answers_the_new_set_and_its_epoch() -> None:
    """A suspect that has caught up may join like any other."""
    decision = decide_alter_sync_state_set(
        GROUP,
        AlterSyncStateSet(broker_name=NAME, master_broker_id=1, master_epoch=4),
        SyncStateSet(frozenset((1, 3)), 6),
        VIEW,
    )

    assert decision.header == AlterSyncStateSetResponse(new_sync_state_set_epoch=7)
    assert decision.body == SyncStateSet(frozenset((1, 3)), 7)
    assert decision.event == SyncStateSetAltered(NAME, 1, 4, 6, frozenset((1, 3)))
