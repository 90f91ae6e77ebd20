"""Leases, fences and switchovers over real sockets, as brokers and administrators ask for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import RequestRefused
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.headers.controller import ElectMaster
from brokerset_rig.controller_group import CLUSTER, GROUP, brokers, controllers
from brokerset_rig.waiting import until


async def test_only_the_leader_gives_leases_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Followers answer at once without; slaves hear whether they are fenced."""

    async with controllers(tmp_path, 3) as group, brokers(group, 2, ours=True) as (master, slave):
        leader = await group.leader()
        await master.beat(group)
        await slave.beat(group)

        epoch = master.answers[group.address(leader)].lease_epoch
        given = {address: answer.lease_ms for address, answer in master.answers.items()}
        assert given == {group.address(i): 3_000 if i == leader else None for i in sorted(group.running)}
        answer = slave.answers[group.address(leader)]
        assert (answer.lease_ms, answer.fenced) == (None, False)
        await group.stop(leader)
        next_leader = await group.leader()
        await master.beat(group)
        assert master.answers[group.address(next_leader)].lease_epoch == epoch


async def test_an_administrator_fences_and_unfences_a_replica(tmp_path: Path) -> None:
    """It leaves the in-sync set at once, is told so, and survives a restart of the controllers."""

    async with (
        controllers(tmp_path, 1) as group,
        brokers(group, 3, ours=True) as (master, slave, third),
        ControllerAdmin([group.address(0)]) as admin,
    ):
        await admin.fence(GROUP, 3)
        (state,) = await admin.groups([GROUP])

        assert (state.fenced, state.sync_state_set) == ((3,), (1, 2))
        await third.beat(group)
        assert third.answers[group.address(0)].fenced is True
        with pytest.raises(RequestRefused, match="switchover"):
            await admin.fence(GROUP, 1)
        with pytest.raises(RequestRefused, match="would stay in sync"):
            await admin.fence(GROUP, 2)
        await admin.fence(GROUP, 2, force=True)
        await admin.fence(GROUP, 2, fenced=False)
        await group.stop(0)
        await group.start(0)
        await group.leader()
        (state,) = await admin.groups([GROUP])
        assert (state.fenced, state.sync_state_set) == ((3,), (1,))
        for broker in (master, slave, third):
            await broker.beat(group, fresh=True)
        await admin.fence(GROUP, 3, fenced=False)
        await third.beat(group)
        assert third.answers[group.address(0)].fenced is False


async def test_a_master_hands_over_to_the_one_it_names(tmp_path: Path) -> None:
    """The successor hears of it, and gets the next lease."""

    async with controllers(tmp_path, 1) as group, brokers(group, 3, ours=True) as (master, _, third):
        await master.beat(group)
        epoch = master.answers[group.address(0)].lease_epoch
        header = ElectMaster(
            cluster_name=CLUSTER, broker_name=GROUP, broker_id=3, designate_elect=True,
            handover_epoch=epoch, nonce=master.nonce,
        )  # fmt: skip

        answer = await master.ask_leader(group, RequestCode.CONTROLLER_ELECT_MASTER, header)

        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await until(lambda: third.notices and third.notices[-1].master_broker_id == 3)
        await third.beat(group)
        assert third.answers[group.address(0)].lease_epoch == third.notices[-1].master_epoch
        await master.beat(group)
        assert master.answers[group.address(0)].lease_ms is None


async def test_a_switch_over_is_asked_of_the_living_master(tmp_path: Path) -> None:
    """The controllers say who that is; without one the request is refused with the reason."""

    async with (
        controllers(tmp_path, 1) as group,
        brokers(group, 2, ours=True) as (master, slave),
        ControllerAdmin([group.address(0)]) as admin,
    ):
        answer = await admin.switch_over(GROUP, 2, timeout=3.0)

        assert (answer.master_broker_id, answer.master_epoch, answer.pause_ms) == (2, 9, 12)
        (asked,) = master.switch_overs
        assert (asked.broker_name, asked.to_broker_id, asked.timeout_ms) == (GROUP, 2, 3_000)
        assert slave.switch_overs == []
        with pytest.raises(RequestRefused, match="nowhere is unknown"):
            await admin.switch_over("nowhere")
        await master.kill()
        await slave.kill()
        for attempt in range(100):
            (state,) = await admin.groups([GROUP])
            if all(replica.standing == "dead" for replica in state.replicas):
                break
            await asyncio.sleep(0.05 if attempt else 0)
        with pytest.raises(RequestRefused, match="no living master"):
            await admin.switch_over(GROUP)
