"""The membership task against scripted controllers, on virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_broker.member.role import Role, RoleState
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import controller as headers
from brokerset_rig.membership_bench import C0, C1, DEAD, OWN, Broker, World, running
from brokerset_runtime.disk import RealDisk

pytestmark = pytest.mark.virtual


@pytest.fixture
def world() -> World:
    return World()


async def test_a_new_broker_becomes_master_at_once(world: World, tmp_path: Path) -> None:
    """It claims an id, registers, beats, asks for an election and begins the epoch in its file."""

    async with running(Broker(world, tmp_path)) as broker:
        begun = asyncio.get_running_loop().time()

        await broker.until(lambda: broker.member.role is Role.MASTER)

        assert asyncio.get_running_loop().time() - begun < 0.1
        assert broker.steps == [
            "ReadFiles", "AskNextId", "WriteTemp", "ApplyId", "WriteIdentity", "WriteStart", "DeleteTemp",
            "Register", "FinishStart",
        ]  # fmt: skip
        assert world.beats[C0], "a broker that is not known to be alive is not elected"
        assert broker.changes == [RoleState(Role.MASTER, 1, 1, 1, OWN, frozenset({1}))]
        assert [(e.epoch, e.start_offset) for e in broker.epochs.entries()] == [(1, 700)]
        assert broker.member.diagnosis().ready
        assert world.codes[1].startswith(f"{OWN};")


async def test_a_restarted_master_serves_in_a_later_epoch_only(world: World, tmp_path: Path) -> None:
    """Its registration takes the mastership away, and it is elected again."""

    async with running(Broker(world, tmp_path)) as first:
        await first.until(lambda: first.member.role is Role.MASTER)
    async with running(Broker(world, tmp_path, seed=2)) as second:
        await second.until(lambda: second.member.role is Role.MASTER)

        assert second.member.broker_id == 1
        assert second.member.incarnation == 2
        assert [change.epoch for change in second.changes] == [3]


async def test_an_election_between_a_lost_answer_and_its_repetition_is_trusted(
    world: World, tmp_path: Path
) -> None:
    """Named master in the very epoch of the registration: this process was elected, not an earlier one."""

    async with running(Broker(world, tmp_path)) as first:
        await first.until(lambda: first.member.role is Role.MASTER)
    world.lose.append((1003, "reply"))
    async with running(Broker(world, tmp_path, seed=2)) as second:
        await second.until(lambda: world.nonce == second.member.nonce)
        world.master, world.epoch = 1, world.epoch + 1

        await second.until(lambda: second.member.role is Role.MASTER)

        assert [change.epoch for change in second.changes] == [3]
        assert world.asked.count(1002) == 1, "only the first process had to ask"


@pytest.mark.parametrize("code", [1012, 1013, 1003, 1004, 1002])
@pytest.mark.parametrize("what", ["request", "reply"])
async def test_what_is_lost_is_repeated_and_no_id_is_burned(
    world: World, tmp_path: Path, code: int, what: str
) -> None:
    """Twice in a row, but for an election that was carried out: its result is found by asking."""

    world.lose += [(code, what)] * (1 if (code, what) == (1002, "reply") else 2)
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER and not world.lose)

        assert world.next_id == 2
        assert broker.member.broker_id == 1
        assert world.incarnation == 1


async def test_an_unreachable_controller_delays_no_heartbeat(world: World, tmp_path: Path) -> None:
    """Each has a task of its own: in 10 s the others hear 20 beats."""

    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.registered)
        before = len(world.beats[C0]), len(world.beats[C1])
        await asyncio.sleep(10)

        assert [len(world.beats[C0]) - before[0], len(world.beats[C1]) - before[1]] == [20, 20]
        beat = world.beats[C0][-1]
        assert (beat.epoch, beat.max_offset, beat.confirm_offset) == (1, 700, 600)
        assert (beat.broker_id, beat.nonce) == (1, world.nonce)
        assert (beat.heartbeat_timeout_mills, beat.election_priority) == (2000, 2**31 - 1)
        assert set(broker.member.heartbeat_ages) == {C0, C1}


async def test_a_notice_makes_a_slave_a_master_without_waiting_for_a_poll(
    world: World, tmp_path: Path
) -> None:
    """And the other way round."""

    world.master, world.epoch, world.next_id = 9, 4, 1
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        assert broker.changes[-1] == RoleState(Role.SLAVE, 4, 0, 9, "10.0.0.9:10911", frozenset({9}))
        begun = asyncio.get_running_loop().time()
        broker.notice(world.notice(1, 5))
        broker.notice(world.notice(1, 4))
        world.epoch = 5
        await broker.until(lambda: broker.member.role is Role.MASTER)
        broker.notice(world.notice(9, 6))
        await broker.until(lambda: broker.member.role is Role.SLAVE)

        assert asyncio.get_running_loop().time() - begun < 0.05
        assert [change.epoch for change in broker.changes] == [4, 5, 6]
        assert [e.epoch for e in broker.epochs.entries()] == [5]


async def test_a_notice_before_the_registration_is_not_for_this_process(world: World, tmp_path: Path) -> None:
    """It may be about the mastership of an earlier one."""

    world.hang.add(1003)
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.steps[-1:] == ["DeleteTemp"])
        broker.notice(world.notice(1, 5))
        await asyncio.sleep(1)

        assert broker.changes == []


async def test_a_notice_without_a_set_is_refused(world: World, tmp_path: Path) -> None:
    """Java's broker would fail on it later."""

    from brokerset_protocol.errors import Rejected

    broker = Broker(world, tmp_path)

    with pytest.raises(Rejected):
        broker.notice(Command(1008, {"masterEpoch": "5", "masterBrokerId": "1"}))


async def test_a_follower_that_lags_does_not_unseat_a_broker(world: World, tmp_path: Path) -> None:
    """It refuses a nonce that it has not heard of; the leader knows better."""

    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)
        world.follower_answers = 2100
        before = len(world.registrations)
        await broker.until(lambda: len(world.registrations) > before)
        world.follower_answers = 0
        await asyncio.sleep(5)

        assert len(broker.changes) == 1
        assert broker.member.diagnosis().ready


async def test_an_overtaken_broker_serves_nothing_any_more(world: World, tmp_path: Path) -> None:
    """Another process has its identity: role none, and the reason; back only when the controllers agree."""

    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)
        own, world.nonce = world.nonce, "of-the-copy"
        await broker.until(lambda: broker.member.role is Role.NONE, 2)
        found = broker.member.diagnosis()
        broker.notice(world.notice(1, 99))
        await asyncio.sleep(3)

        assert not found.ready
        assert "another process or copy of this folder" in (found.problem or "")
        assert "this folder is a copy" in (found.problem or "")
        assert broker.member.role is Role.NONE
        world.nonce = own
        await broker.until(lambda: broker.member.role is Role.MASTER)


async def test_controllers_that_forgot_a_master_do_not_stop_it(world: World, tmp_path: Path) -> None:
    """Its data path does not depend on them; the problem is shown."""

    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)
        world.refuse = {1004: (2008, "unknown group"), 1003: (2010, "unknown id")}
        await broker.until(lambda: broker.member.problem is not None)

        assert broker.member.role is Role.MASTER
        assert "do not know broker 1 of group b" in (broker.member.diagnosis().problem or "")
        world.refuse = {}
        await broker.until(lambda: broker.member.problem is None)


async def test_a_master_learns_that_its_mastership_is_gone(world: World, tmp_path: Path) -> None:
    """From a higher epoch without a master: it stands down, and asks for an election."""

    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)
        world.master, world.epoch = None, 2
        await broker.until(lambda: len(broker.changes) == 3)

        assert [(c.role, c.epoch) for c in broker.changes] == [
            (Role.MASTER, 1), (Role.NONE, 2), (Role.MASTER, 3),
        ]  # fmt: skip


async def test_no_master_can_be_elected(world: World, tmp_path: Path) -> None:
    """The controllers' reason is shown, and asked again until there is one."""

    world.refuse[1002] = (2012, "2 of 3 expected brokers are alive")
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.problem is not None)
        found = broker.member.diagnosis()

        assert not found.ready
        assert found.problem == "the group b has no master: 2 of 3 expected brokers are alive"
        del world.refuse[1002]
        await broker.until(lambda: broker.member.role is Role.MASTER)
        assert broker.member.diagnosis().problem is None


async def test_silent_controllers_are_named(world: World, tmp_path: Path) -> None:
    """And what to check."""

    async with running(Broker(world, tmp_path, controller_addr=DEAD)) as broker:
        await broker.until(lambda: broker.member.problem is not None)
        found = broker.member.diagnosis()

        assert not found.ready
        assert f"no controller at {DEAD} could do what was asked" in (found.problem or "")
        assert "check controllerAddr" in (found.advice or "")


async def test_an_epoch_that_the_log_has_passed_is_not_served(world: World, tmp_path: Path) -> None:
    """The controllers' data is older than the broker's."""

    RealDisk(tmp_path).write("epochFileCheckpoint", b"1\n0\n9-0\n")
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.problem is not None)
        await asyncio.sleep(3)

        assert broker.member.role is Role.NONE
        assert "its log has epoch 9 already" in (broker.member.diagnosis().problem or "")


async def test_a_damaged_identity_is_named_until_it_is_repaired(world: World, tmp_path: Path) -> None:
    """The process stays, out of service."""

    disk = RealDisk(tmp_path)
    disk.write("brokerIdentity", b"")
    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.problem is not None)
        found = broker.member.diagnosis()

        assert f"{tmp_path}/brokerIdentity cannot be read" in (found.problem or "")
        assert "empty the folder to join as a new replica" in (found.advice or "")
        assert broker.epoch_cache()[0].replica_id is None
        disk.write("brokerIdentity", b"c#b#1")
        await broker.until(lambda: broker.member.role is Role.MASTER)


async def test_who_asks_who_is_here_gets_the_truth(world: World, tmp_path: Path) -> None:
    """Before the registration, too: the controllers judge by the nonce."""

    broker = Broker(world, tmp_path, owner_uid="uid", expected_replicas=3)
    header, body = broker.epoch_cache()
    assert (header.replica_id, body.broker_id) == (None, -1)
    assert header.registration == "registers with the controllers"
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.MASTER)
        header, body = broker.epoch_cache()

        assert header == headers.BrokerIdentityAnswer(
            replica_id=1, nonce=world.nonce, incarnation=1, check_code=world.codes[1], owner_uid="uid",
            expected_replicas=3, next_broker_id=2, group_epoch=1, log_epoch=1, log_offset=700,
            registration="registered, master", ha_address="10.0.0.1:10912", master_epoch=1,
        )  # fmt: skip
        assert (body.broker_id, body.max_offset) == (0, 700)
        assert [(e.epoch, e.start_offset, e.end_offset) for e in body.epoch_list] == [(1, 700, 2**63 - 1)]


async def test_a_lost_page_cache_is_told_to_everybody_until_a_master_is_known(
    world: World, tmp_path: Path
) -> None:
    """In heartbeats and to who asks, by the next process, too; an elected master writes that it is over."""

    async with running(Broker(world, tmp_path)) as first:
        await first.until(lambda: first.member.role is Role.MASTER)
        assert world.beats[C0][-1].lost_cache is None
        assert first.epoch_cache()[0].lost_cache is None
    world.master = None  # nobody is, and nobody is elected
    world.refuse[1002] = (2012, "others have not reported")
    for seed, boot_id, cleanly in ((2, "next", False), (3, "next", True)):
        async with running(
            Broker(world, tmp_path, seed=seed, boot_id=boot_id, closed_cleanly=cleanly)
        ) as again:
            await again.until(lambda: again.member.registered and bool(world.beats[C0]))
            await again.until(lambda: world.beats[C0][-1].nonce == again.member.nonce)
            assert world.registrations[-1].lost_cache is True
            assert world.beats[C0][-1].lost_cache is True
            assert again.epoch_cache()[0].lost_cache is True
    del world.refuse[1002]
    async with running(Broker(world, tmp_path, seed=4, boot_id="next")) as last:
        await last.until(lambda: last.member.role is Role.MASTER)
        await last.until(lambda: last.epoch_cache()[0].lost_cache is None, seconds=1)
    async with running(Broker(world, tmp_path, seed=5, boot_id="next", closed_cleanly=False)) as sound:
        await sound.until(lambda: sound.member.registered)
        assert world.registrations[-1].lost_cache is False


async def test_a_start_file_that_cannot_be_written_keeps_the_loss_told(world: World, tmp_path: Path) -> None:
    """It is tried again; until it has succeeded the next process would say it, so this one does."""

    async with running(Broker(world, tmp_path)) as first:
        await first.until(lambda: first.member.role is Role.MASTER)
    world.master = None
    world.refuse[1002] = (2012, "others have not reported")
    async with running(Broker(world, tmp_path, seed=2, boot_id="next", closed_cleanly=False)) as lost:
        await lost.until(lambda: lost.member.registered)
        blocked = tmp_path / "brokerIdentity-start.tmp"
        blocked.mkdir()
        del world.refuse[1002]
        await lost.until(lambda: lost.member.role is Role.MASTER)
        await asyncio.sleep(10)
        assert lost.epoch_cache()[0].lost_cache is True
        blocked.rmdir()
        await lost.until(lambda: lost.epoch_cache()[0].lost_cache is None)


async def test_with_controllers_of_java(world: World, tmp_path: Path) -> None:
    """They send no extra fields, and a restarted master goes on in its epoch."""

    world.java = True
    async with running(Broker(world, tmp_path)) as first:
        await first.until(lambda: first.member.role is Role.MASTER)
    async with running(Broker(world, tmp_path, seed=2)) as second:
        await second.until(lambda: second.member.role is Role.MASTER)

        assert (second.member.broker_id, second.member.incarnation) == (1, None)
        assert [change.epoch for change in second.changes] == [1]
        assert world.registrations[-1].adopt is None


async def test_another_set_of_the_same_epoch_is_told(world: World, tmp_path: Path) -> None:
    """The poll finds it."""

    async with running(Broker(world, tmp_path)) as broker:
        await broker.until(lambda: broker.member.role is Role.MASTER)
        world.set_epoch = 8
        await broker.until(lambda: broker.member.now.set_epoch == 8)

        assert broker.changes[-1].role is Role.MASTER
