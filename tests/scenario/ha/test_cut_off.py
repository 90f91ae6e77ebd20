"""A master and its slaves that do not hear each other, though nobody else is cut off."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_broker.store.errors import PutStatus
from brokerset_rig.fake_group import Group, answered, group_of
from brokerset_rig.waiting import until
from brokerset_sim.loop import run

pytestmark = pytest.mark.virtual

LAG_MS = 2_000
"""`haMaxTimeSlaveNotCatchup`."""


async def cut_off(group: Group) -> None:
    """All are in sync, and then the master is silent."""
    await group.elect(1)
    await group.in_sync(1, 2, 3)
    assert await answered(group[1].send("before")[1]) is PutStatus.PUT_OK
    group.network.silence("1")


async def test_a_master_that_hears_no_slave_asks_to_be_relieved_before_it_makes_the_set_too_small() -> None:
    """The successor must be in the set. After a second without one the set is made small as ever."""
    async with group_of(3, min_in_sync_replicas=2, ha_max_time_slave_not_catchup=LAG_MS) as group:
        await cut_off(group)
        await asyncio.sleep(LAG_MS / 1000 + 0.7)

        assert set(group[1].group.reliefs) == {(1, 2)}
        assert len(group.controllers.sync_state_set) >= 2

        await until(lambda: group.controllers.sync_state_set == {1})


@pytest.mark.parametrize(("minimum", "all_ack"), [(1, True), (2, False)])
def test_a_master_that_can_confirm_without_its_slaves_goes_on_alone(minimum: int, all_ack: bool) -> None:
    """It makes the set smaller at once, and is not relieved."""

    async def main() -> None:
        async with group_of(
            3,
            min_in_sync_replicas=minimum,
            all_ack_in_sync_state_set=all_ack,
            in_sync_replicas=1,
            ha_max_time_slave_not_catchup=LAG_MS,
        ) as group:
            await cut_off(group)

            await until(lambda: group.controllers.sync_state_set == {1})
            assert group[1].group.reliefs == []

    run(main())


async def test_slaves_that_are_gone_relieve_nobody() -> None:
    """Their connections have ended: the set is made smaller at once."""
    async with group_of(3, min_in_sync_replicas=2, ha_max_time_slave_not_catchup=LAG_MS) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3)
        group.network.isolate("1")
        await asyncio.sleep(0.3)

        assert group.controllers.sync_state_set == {1}
        assert group[1].group.reliefs == []


async def test_sends_are_acknowledged_again_within_a_second_when_the_network_is_mended() -> None:
    """Slaves do not wait until the kernel sends once more what was lost: they connect again."""
    async with group_of(3, min_in_sync_replicas=2, ha_max_time_slave_not_catchup=LAG_MS) as group:
        await cut_off(group)
        await asyncio.sleep(9.7)
        group.network.silent.clear()
        await asyncio.sleep(1.0)

        _, answer = group[1].send("after")
        async with asyncio.timeout(0.1):
            assert await answer is PutStatus.PUT_OK
