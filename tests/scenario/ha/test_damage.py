"""A replica whose log is damaged, and a broker that was elected and cannot lead."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokerset_broker.member.ha.repairs import REPAIRS_AT_ONE_PLACE_MAX
from brokerset_broker.member.role import GivenBack, Role, RoleState
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.replica_log import ReplicaLogFailed
from brokerset_rig.fake_group import Group, answered, group_of
from brokerset_rig.fake_ha import FakeBroker
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

DAMAGE = "commitlog/0 at byte 16 (offset 16 of the log): wrong CRC"


def damage(broker: FakeBroker, *, for_good: bool = False) -> int:
    """The log's third record is wrong, as the store finds it; returns the offset. A cut takes it away, or it
    comes again with what the master sends."""
    log = broker.log
    place = log.ends()[1]
    dispatch, cut = log._dispatch, log.truncate

    def find() -> None:
        log.broken, log._whole = DAMAGE, place

    def dispatch_sound() -> None:
        if for_good and log.received_end > place:
            find()
        if log.broken is None:
            dispatch()

    async def truncate_damage(offset: int, *, keep_copy: bool) -> None:
        await cut(offset, keep_copy=keep_copy)
        log.broken = None

    log._dispatch = dispatch_sound  # type: ignore[method-assign]  # a disk goes wrong
    log.truncate = truncate_damage  # type: ignore[method-assign]
    find()
    return place


async def filled(group: Group) -> None:
    """A group in sync whose replicas have ten messages."""
    await group.elect(1)
    await group.in_sync(*group.brokers)
    for number in range(10):
        group[1].send(f"message {number}")
    await group.same(*group.brokers)


async def test_a_damaged_replica_rebuilds_itself() -> None:
    """It leaves the set by a committed event, cuts what is damaged, keeps a copy, gets it again, and is in
    sync again; the master serves on."""
    async with group_of(3) as group:
        await filled(group)
        sets = []
        adopt = group[2].replication.adopt

        def noted(sync_state_set: frozenset[int], set_epoch: int, epoch: int) -> None:
            sets.append(sync_state_set)
            adopt(sync_state_set, set_epoch, epoch)

        group[2].replication.adopt = noted  # type: ignore[method-assign]
        end = group[2].log.received_end
        offset = damage(group[2])
        _, answer = group[1].send("the group goes on")

        assert await answered(answer) is PutStatus.PUT_OK
        await until(lambda: bool(group[2].log.removed))
        assert frozenset((1, 3)) in sets
        [(cut_at, cut_end, copy)] = group[2].log.removed
        assert (cut_at, copy) == (offset, True)
        assert cut_end >= end
        await group.in_sync(1, 2, 3)
        await group.same(2)
        await until(lambda: not group[2].epochs.incomplete)
        status = group[2].replication.status()
        assert (status.repairs, status.incomplete) == (1, "")
        assert status.truncated_bytes >= end - offset


async def test_damage_is_named_and_the_last_in_sync_throws_nothing_away() -> None:
    """While the controllers count on a replica, or do not answer, it keeps everything and says what to do."""
    async with group_of(2) as group:
        await filled(group)
        group.controllers.silent = True
        before = bytes(group[2].log.data)
        damage(group[2])
        await until(lambda: group[2].replication.status().follower.state == "refused")
        await asyncio.sleep(5)

        status = group[2].replication.status()
        assert DAMAGE in status.follower.problem
        assert "acceptDamagedStore" in status.follower.advice
        assert status.incomplete == DAMAGE
        assert group[2].epochs.incomplete == DAMAGE
        assert bytes(group[2].log.data[: len(before)]) == before
        assert not group[2].log.removed


async def test_a_word_from_before_the_damage_proves_nothing() -> None:
    """The set may have changed since: the controllers are asked again."""
    async with group_of(2) as group:
        await filled(group)
        group.controllers.silent = True
        damage(group[2])
        group[2].replication._in_force = replace(
            group[2].replication._in_force, sync_state_set=frozenset((1,)), set_epoch=99
        )
        await until(lambda: group[2].replication.status().follower.state == "refused")
        await asyncio.sleep(3)

        assert not group[2].log.removed


async def test_who_gets_the_same_damage_again_and_again_stops() -> None:
    """After some tries the replica says that the master's own copy is wrong, and tries no more."""
    async with group_of(3) as group:
        await filled(group)
        damage(group[2], for_good=True)
        group[1].send("the group goes on")
        await until(lambda: "its own copy" in group[2].replication.status().follower.problem, 60)
        await asyncio.sleep(30)

        assert len(group[2].log.removed) == REPAIRS_AT_ONE_PLACE_MAX
        assert "brokerset switchover" in group[2].replication.status().follower.advice
        await group.in_sync(1, 3)


async def test_an_incomplete_log_does_not_lead() -> None:
    """Before it has again what it may have acknowledged, also after a restart."""
    async with group_of(2) as group:
        await filled(group)
        await group[2].stop()
        group[2].epochs.set_incomplete(DAMAGE)
        group[2].epochs.load(group[2].log.max_offset)
        group[2].start()

        with pytest.raises(ReplicaLogFailed, match="not complete") as failure:
            await group[2].replication.begin_epoch(9)
        assert "acceptDamagedStore" in str(failure.value)

        await group[2].obey(group.controllers.change())
        await until(lambda: not group[2].epochs.incomplete)
        await group[2].replication.stop_following()
        assert await group[2].replication.begin_epoch(9)


async def test_who_is_elected_with_a_damaged_record_writes_it_down() -> None:
    """The change of role may come before the follower has done so, and the next start would take the record
    for a torn end that nobody was told about."""
    async with group_of(2) as group:
        await filled(group)
        broker = group[2]
        await broker.replication.stop_following()
        damage(broker)
        assert broker.epochs.incomplete == ""

        with pytest.raises(ReplicaLogFailed, match="not complete"):
            await broker.replication.finish_received()
        with pytest.raises(ReplicaLogFailed, match="not complete"):
            await broker.replication.begin_epoch(9)

        broker.epochs.load(broker.log.max_offset)
        assert broker.epochs.incomplete == DAMAGE


async def test_a_replica_of_before_a_new_beginning_follows_with_a_copy() -> None:
    """When the group started again at offset 0, as everything may have been lost, an older replica cuts
    all it has once it is surely out of sync, and keeps a copy."""
    async with group_of(2) as group:
        await group[2].lead(RoleState(Role.MASTER, 1, 1, 2, "2", frozenset((2,))))
        group[2].send("of before")
        group.controllers.epoch = 2
        await group.elect(1, followers=())
        group[1].send("of the new beginning")

        await group[2].obey(group.controllers.change())
        await group.in_sync(1, 2)

        await group.same(2)
        assert [(offset, copy) for offset, _, copy in group[2].log.removed] == [(0, True)]


async def test_a_master_that_ends_with_its_slaves_keeps_the_set() -> None:
    """Replicas that are stopped together stay in sync, so that each of them may lead after the next start; a
    master that stays does drop who leaves."""
    async with group_of(3) as group:
        await filled(group)
        group[1].replication.keep_set(True)
        await group[2].stop()
        await group[3].stop()
        await asyncio.sleep(5)
        assert group.controllers.sync_state_set == {1, 2, 3}

        group[1].replication.keep_set(False)
        await group.in_sync(1)


async def test_a_master_that_ends_after_its_slaves_says_that_it_does_not_know() -> None:
    """Sends wait for replicas that are gone: the next master may lack them, so nobody is told that they are
    stored, and the end does not take as long as `slaveTimeout`. Who is there may still acknowledge."""
    async with group_of(3) as group:
        await filled(group)
        group[1].replication.keep_set(True)
        await group[2].stop()
        end, answer = group[1].send("one replica is there, the other one is not")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await group[1].replication.end(0.5)

        assert await answered(answer) is PutStatus.SERVICE_NOT_AVAILABLE
        assert loop.time() - began <= 0.51
        assert group[1].log.confirmed_offset < end

    async with group_of(3) as group:
        await filled(group)
        group[1].replication.keep_set(True)
        await group[2].stop()
        await group[3].stop()
        _, answer = group[1].send("nobody is there")
        began = loop.time()
        await group[1].replication.end(0.5)

        assert await answered(answer) is PutStatus.SERVICE_NOT_AVAILABLE
        assert loop.time() == began
        assert await answered(group[1].send("too late")[1]) is PutStatus.SERVICE_NOT_AVAILABLE

    async with group_of(3) as group:
        await filled(group)
        _, answer = group[1].send("both are there")
        await group[1].replication.end(0.5)

        assert await answered(answer) is PutStatus.PUT_OK


async def test_who_gave_its_set_back_and_leads_after_all_waits_for_it() -> None:
    """The proposal of before may be in force: nothing is confirmed without those who are in that set."""
    async with group_of(2, min_in_sync_replicas=1) as group:
        change = group.controllers.elect(1)
        based_on = change.set_epoch
        broker = group[1]
        await broker.replication.begin_epoch(change.epoch)
        broker.replication.adopt(change.sync_state_set, based_on, change.epoch)
        group.controllers.silent = True
        broker.replication.accept_replicas(
            change.epoch,
            change.sync_state_set,
            based_on,
            given_back=(GivenBack(frozenset((1, 2)), based_on),),
        )
        end, answer = broker.send("a")
        await asyncio.sleep(1)
        assert not answer.done()
        assert broker.log.confirmed_offset < end

        broker.replication.close_replicas("the test ends")
        broker.replication.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)
        assert await answered(answer) is PutStatus.SERVICE_NOT_AVAILABLE
