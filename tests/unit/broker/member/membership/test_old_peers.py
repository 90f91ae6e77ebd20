"""Our broker next to controllers and masters of RocketMQ 5.0 and 5.1.0, which know brokers by address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_broker.member.ha.following import CannotFollow
from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.member.membership.diagnosis import ProblemKind
from brokerset_broker.member.role import Role, RoleState
from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache
from brokerset_protocol.codes import Language
from brokerset_protocol.commands import Command
from brokerset_rig.membership_bench import Broker, World, running

pytestmark = pytest.mark.virtual

NOT_SERVED = (3, " request type 1012 not supported")
SLAVE = RoleState(Role.SLAVE, 3, 1, 1, "m:10911", frozenset({1, 2}))


@pytest.mark.parametrize("known", [False, True], ids=["new", "with an id"])
async def test_nothing_is_registered_with_controllers_that_know_no_ids(tmp_path: Path, known: bool) -> None:
    """They would take 1003 for their own, enter the broker by its address, and make it master."""

    world = World()
    if known:
        async with running(Broker(world, tmp_path)) as before:
            await before.until(lambda: before.member.role is Role.MASTER)
    world.asked.clear()
    world.refuse = {1012: NOT_SERVED}
    async with running(Broker(world, tmp_path, seed=2)) as broker:
        await asyncio.sleep(60)

        assert set(world.asked) == {1012}
        assert 12 <= len(world.asked) <= 25, "it asks calmly, and goes on asking"
        assert broker.member.role is Role.NONE


async def test_the_broker_says_that_the_controllers_are_too_old_and_the_way_out(tmp_path: Path) -> None:
    """At /readyz, in 1007 and in the log, which all show this."""

    world = World()
    world.refuse = {1012: NOT_SERVED}
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.problem is not None)

        found = broker.member.diagnosis()
        problem = broker.member.problem
        assert problem is not None
        assert problem.kind is ProblemKind.CONTROLLERS_OLD
        assert not found.ready
        assert "too old" in (found.problem or "")
        assert "5.0 or 5.1.0" in (found.problem or "")
        assert "`brokerset upgrade identity`" in (found.advice or "")
        assert broker.epoch_cache()[0].problem == "controllers_too_old"


async def test_it_registers_when_the_controllers_are_replaced(tmp_path: Path) -> None:
    """By itself, within the longest pause between two tries."""

    world = World()
    world.refuse = {1012: NOT_SERVED}
    async with running(Broker(world, tmp_path)) as broker:
        await asyncio.sleep(60)
        world.refuse = {}

        await broker.until(lambda: broker.member.role is Role.MASTER, 6)

        assert broker.member.problem is None


async def test_a_broker_in_service_does_not_register_with_old_controllers_either(tmp_path: Path) -> None:
    """Which have come to the place of those that knew it: they do not know the group (2008)."""

    world = World()
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)
        registered = len(world.registrations)
        world.refuse = {1004: (2008, "Broker metadata is not existed"), 1012: NOT_SERVED}

        await asyncio.sleep(30)

        assert len(world.registrations) == registered
        assert broker.member.problem is not None
        assert broker.member.problem.kind is ProblemKind.CONTROLLERS_OLD
        assert not broker.member.diagnosis().ready, "they will not take it in again"


async def test_a_new_broker_asks_for_an_id_once(tmp_path: Path) -> None:
    """The question that tells the age of controllers is the one that it asks anyway."""

    world = World()
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)

        assert world.asked[:3] == [1012, 1013, 1003]


@pytest.mark.parametrize(("version", "release"), [(413, "5.0.0"), (433, "5.1.0")])
def test_a_master_that_knows_slaves_by_address_is_not_followed(
    tmp_path: Path, version: int, release: str
) -> None:
    """It would answer our handshake as if it were its own, and misread what we acknowledge."""
    with pytest.raises(CannotFollow, match=f"RocketMQ {release}") as raised:
        find(tmp_path, version)

    assert "`brokerset upgrade identity`" in raised.value.advice


def test_a_master_of_5_1_1_is_followed(tmp_path: Path) -> None:
    """The first release with ids."""
    assert find(tmp_path, 435) == "m:10912"


def find(tmp_path: Path, version: int) -> str:
    """Where slaves connect to a Java master of this release."""

    async def scenario() -> str:
        world = World()
        body = EpochEntryCache("c", "b", 0, (EpochEntry(3, 0, 2**63 - 1),), 100)
        reply = Command(0, {}, body.to_json(), language=Language.JAVA, version=version)
        world.elsewhere["m:10911"] = lambda _: reply
        try:
            return (await Broker(world, tmp_path).member.find_master(SLAVE)).ha_address
        except LinkClosed as closed:
            return str(closed)

    return asyncio.run(scenario())
