"""A master's lease: when it may serve, and how it asks for more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_broker.member.membership.diagnosis import ProblemKind
from brokerset_broker.member.role import Role
from brokerset_rig.membership_bench import C0, C1, OWN, Broker, LoopClock, World, running

pytestmark = pytest.mark.virtual


async def test_a_master_gets_its_lease_at_once_and_keeps_it(tmp_path: Path) -> None:
    """It beats as soon as it is elected, and again before half has passed."""

    world = World()
    broker = Broker(world, tmp_path, clock=LoopClock())
    async with running(broker):
        begun = asyncio.get_running_loop().time()
        await broker.until(broker.member.may_serve)

        assert asyncio.get_running_loop().time() - begun < 0.1
        await asyncio.sleep(20)
        assert [serves for serves, _ in broker.leases] == [True]
        assert len(world.beats[C0]) < 50, "no hurry while it is renewed"


async def test_a_master_whose_lease_ends_says_so_and_asks_faster(tmp_path: Path) -> None:
    """The end is noticed within a turn of the loop, and so is the next lease."""

    world = World()
    broker = Broker(world, tmp_path, clock=LoopClock())
    async with running(broker):
        await broker.until(broker.member.may_serve)
        await asyncio.sleep(5)
        ends_at, world.lease_ms = broker.core.lease.ends_at, 0
        ends_at = broker.core.lease.ends_at
        await broker.until(lambda: not broker.member.may_serve())
        assert broker.member.problem is None, "it may come back in a moment"
        before = len(world.beats[C1])
        await asyncio.sleep(2)

        assert [serves for serves, _ in broker.leases] == [True, False]
        assert broker.leases[1][1] == pytest.approx(ends_at, abs=0.02)
        assert len(world.beats[C1]) - before >= 18, "all controllers are asked: another may lead by now"
        problem = broker.member.problem
        assert problem is not None
        assert problem.kind is ProblemKind.LEASE
        assert broker.member.diagnosis().ready
        assert "has no lease" in (broker.member.diagnosis().problem or "")
        world.lease_ms = 2_000
        await broker.until(broker.member.may_serve, 1)
        assert broker.member.problem is None


async def test_java_controllers_give_no_lease(tmp_path: Path) -> None:
    """Their answer to the registration names no group epoch: then a master serves without."""

    world = World()
    world.java = True
    async with running(Broker(world, tmp_path, clock=LoopClock())) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)

        assert broker.member.may_serve()
        assert not broker.core.lease.required


async def test_a_hand_over_needs_no_lease_and_ends_the_mastership(tmp_path: Path) -> None:
    """The answer names the successor, and the role changes without waiting for a notice."""

    world = World()
    async with running(Broker(world, tmp_path, clock=LoopClock())) as broker:
        await broker.until(broker.member.may_serve)

        told = await broker.member.hand_over(2, 1)

        assert (told.master_id, told.epoch, told.master_address) == (2, 2, "10.0.0.2:10911")
        asked = world.elections[-1]
        assert (asked.broker_id, asked.designate_elect, asked.handover_epoch) == (2, True, 1)
        assert asked.nonce == broker.member.nonce
        assert not broker.member.may_serve()
        await broker.until(lambda: broker.member.role is Role.SLAVE, 0.1)
        assert broker.member.now.master_id == 2


@pytest.mark.parametrize("what", ["refused", "lost"])
async def test_after_a_hand_over_that_failed_a_new_lease_is_needed(tmp_path: Path, what: str) -> None:
    """Refused, or nobody knows: it serves again when a later heartbeat is answered with a lease."""

    world = World()
    async with running(Broker(world, tmp_path, clock=LoopClock())) as broker:
        await broker.until(broker.member.may_serve)
        if what == "refused":
            world.refuse[1002] = (2012, "nobody is in sync")
        else:
            world.lose.append((1002, "request"))

        with pytest.raises(Exception, match="nobody is in sync" if what == "refused" else "lost"):
            await broker.member.hand_over(None, 1)

        assert not broker.member.may_serve()
        await broker.until(broker.member.may_serve, 0.5)
        assert broker.member.role is Role.MASTER


async def test_a_fenced_broker_knows_it(tmp_path: Path) -> None:
    """From the leader's answers to its heartbeats; followers say nothing."""

    world = World()
    world.master, world.epoch = 9, 1
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        assert not broker.member.fenced
        world.fenced = True
        await broker.until(lambda: broker.member.fenced)

        assert broker.epoch_cache()[0].fenced is True
        assert broker.member.problem is not None
        assert broker.member.problem.kind is ProblemKind.FENCED
        world.fenced = None
        await asyncio.sleep(2)
        assert broker.member.fenced
        world.fenced = False
        await broker.until(lambda: not broker.member.fenced)
        assert broker.epoch_cache()[0].fenced is None


async def test_heartbeats_tell_how_long_appends_wait_and_who_acknowledges(tmp_path: Path) -> None:
    """The controllers elect another master when the log hangs, and wait for leases where they must."""

    world = World()
    broker = Broker(world, tmp_path)
    broker.append_age = 1_234
    async with running(broker):
        await broker.until(lambda: bool(world.beats[C0]))
        assert (world.beats[C0][-1].append_age_ms, world.beats[C0][-1].all_ack) == (1_234, True)
        broker.acks = False
        broker.append_age = None
        await broker.until(lambda: world.beats[C0][-1].all_ack is False)
        assert world.beats[C0][-1].append_age_ms is None
        assert world.beats[C0][-1].broker_addr == OWN
