"""1001: the order of RocketMQ's checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.replicas.decide_sync_set import decide_alter_sync_state_set
from brokerset_controller.replicas.events import SyncStateSetAltered
from brokerset_controller.replicas.state import Group
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.headers.controller import AlterSyncStateSet, AlterSyncStateSetResponse
from brokerset_sim.replica_groups import NAME, group_of, view_of

GROUP = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6, suspects=(3,))
JAVA = replace(GROUP, replicas={key: replace(each, nonce=None) for key, each in GROUP.replicas.items()})
"""The same with brokers of RocketMQ."""

VIEW = view_of(1, 3, dead=(2,))


@pytest.mark.parametrize(
    ("group", "master", "epoch", "set_epoch", "wanted", "code"),
    [
        (None, 1, 4, 6, (1,), 2013),
        (group_of(next_id=4), 1, 4, 6, (1,), 2013),
        (JAVA, 9, 9, 9, (1, 2), 2013),
        (GROUP, 9, 9, 9, (1, 2), 2002),
        (GROUP, 2, 9, 9, (8,), 2002),
        (group_of(1, 2, epoch=4, in_sync=(1, 2), set_epoch=6), 1, 4, 6, (1,), 2002),
        (GROUP, 1, 9, 9, (8,), 2000),
        (GROUP, 1, 4, 9, (8,), 2001),
        (GROUP, 1, 4, 6, (1, 3, 8), 2003),
        (JAVA, 1, 4, 6, (1, 2, 3), 2006),
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
        AlterSyncStateSet(
            broker_name=NAME, master_broker_id=1, master_epoch=4, member_nonces=f"3:{GROUP.replicas[3].nonce}"
        ),
        SyncStateSet(frozenset((1, 3)), 6),
        VIEW,
    )

    assert decision.header == AlterSyncStateSetResponse(new_sync_state_set_epoch=7)
    assert decision.body == SyncStateSet(frozenset((1, 3)), 7)
    assert decision.event == SyncStateSetAltered(NAME, 1, 4, 6, frozenset((1, 3)))


def test_a_new_member_must_be_alive_an_old_one_need_not_be_heard() -> None:
    """Nobody comes in unheard; but a silent member must not keep another one from leaving or joining."""
    header = AlterSyncStateSet(
        broker_name=NAME, master_broker_id=1, master_epoch=4, member_nonces=f"3:{GROUP.replicas[3].nonce}"
    )
    silent = view_of(1, dead=(2,))

    joins = decide_alter_sync_state_set(GROUP, header, SyncStateSet(frozenset((1, 2, 3)), 6), silent)
    stays = decide_alter_sync_state_set(GROUP, header, SyncStateSet(frozenset((1, 2, 3)), 6), VIEW)

    assert (joins.code, stays.code) == (2006, 0)


def test_the_set_in_force_may_be_proposed_again_by_our_masters() -> None:
    """They learn by the new set epoch that no earlier proposal can take effect any more."""
    header = AlterSyncStateSet(broker_name=NAME, master_broker_id=1, master_epoch=4)
    same = SyncStateSet(frozenset((1, 2)), 6)

    ours = decide_alter_sync_state_set(GROUP, header, same, VIEW)
    javas = decide_alter_sync_state_set(JAVA, header, same, VIEW)

    assert ours.event == SyncStateSetAltered(NAME, 1, 4, 6, frozenset((1, 2)))
    assert ours.body == SyncStateSet(frozenset((1, 2)), 7)
    assert (javas.code, javas.event) == (2013, None)


def test_a_process_that_was_replaced_brings_nobody_into_the_set() -> None:
    """The master names the starts that acknowledged to it; a later start of such a replica may have less.

    RocketMQ's masters name none, and ours none of RocketMQ's slaves, whose volume may have been one of ours.
    """

    def proposed(nonces: str | None) -> int:
        header = AlterSyncStateSet(broker_name=NAME, master_broker_id=1, master_epoch=4, member_nonces=nonces)
        return decide_alter_sync_state_set(GROUP, header, SyncStateSet(frozenset((1, 2, 3)), 6), VIEW).code

    now = GROUP.replicas[3].nonce
    assert (proposed(f"2:x;3:{now}"), proposed("2:x"), proposed(None)) == (0, 0, 0)
    assert (proposed("3:older"), proposed("3")) == (2003, 2003)
