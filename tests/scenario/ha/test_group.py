"""A master and two slaves over links in memory: what is acknowledged, confirmed, cut and refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import groupby

import pytest

from brokerset_broker.member.group_link import ProposalResult
from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.store.errors import PutStatus
from brokerset_protocol.ha_packets import Ack, PeerIdentity, SlaveHandshake
from brokerset_rig.fake_group import answered, group_of
from brokerset_rig.fake_ha import CLUSTER, GROUP, SEGMENT_BYTES
from brokerset_rig.waiting import until
from brokerset_sim.loop import run

pytestmark = pytest.mark.virtual


async def test_a_master_alone_answers_at_once() -> None:
    """A master that is alone in sync confirms with the append and answers in the same call."""
    async with group_of(1) as group:
        await group.elect(1)

        end, answer = group[1].send("a")

        assert answer.done()
        assert answer.result() is PutStatus.PUT_OK
        assert group[1].log.confirmed_offset == end


async def test_slaves_join_and_have_everything() -> None:
    """Slaves receive the log and its epochs, join the in-sync set, and their consumers may read at once."""
    async with group_of(3) as group:
        await group.elect(1)
        for number in range(50):
            group[1].send(f"before {number}")
        await group.in_sync(1, 2, 3)

        end, answer = group[1].send("after")

        assert not answer.done(), "no answer before all in-sync members have it"
        assert await answered(answer) is PutStatus.PUT_OK
        assert group[2].log.received_end == group[3].log.received_end == end
        await group.same(2, 3)
        status = group[1].replication.status()
        assert [view.broker_id for view in status.replicas] == [2, 3]
        assert all(view.in_sync and view.is_ours and view.lag_bytes == 0 for view in status.replicas)
        assert status.expansions == 2
        assert group[2].replication.status().follower.state == "transfer"


async def test_slaves_join_while_messages_keep_coming() -> None:
    """A steady stream of messages does not keep slaves from joining."""
    async with group_of(3) as group:
        await group.elect(1, followers=())
        answers = []

        async def produce() -> None:
            for number in range(20_000):
                if group[1].log.max_offset and group.controllers.sync_state_set == {1, 2, 3}:
                    return
                answers.append(group[1].send(f"message {number}")[1])
                await asyncio.sleep(0.0001)

        producer = asyncio.create_task(produce())
        await asyncio.sleep(0.2)
        await group[2].obey(group.controllers.change())
        await group[3].obey(group.controllers.change())
        await group.in_sync(1, 2, 3)
        await producer

        assert {await answered(answer) for answer in answers} == {PutStatus.PUT_OK}


async def test_the_loss_of_a_slave_shrinks_the_set_at_once() -> None:
    """A slave whose connection closes leaves the set; waiting sends are answered when that is committed."""
    async with group_of(3) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3)

        await group[3].stop()
        began = asyncio.get_running_loop().time()
        _, answer = group[1].send("a")

        assert await answered(answer) is PutStatus.PUT_OK
        assert asyncio.get_running_loop().time() - began < 0.1
        assert group.controllers.sync_state_set == {1, 2}


async def test_two_losses_at_once_are_one_proposal() -> None:
    """When two connections close together, one proposal takes both out."""
    async with group_of(4) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3, 4)
        before = len(group.controllers.proposals)

        for slave in ("3", "4"):
            group.network.between("1", slave)[0].close("gone")
        await until(lambda: len(group.controllers.proposals) > before)

        assert group.controllers.proposals[before][0] == {1, 2}


async def test_a_hung_slave_is_dropped_without_any_write() -> None:
    """A slave that stops answering heartbeats is out of the set after `haMaxTimeSlaveNotCatchup`."""
    async with group_of(3) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3)

        group.network.between("1", "3")[0].acks_held = True
        began = asyncio.get_running_loop().time()
        await group.in_sync(1, 2)

        assert 1.0 < asyncio.get_running_loop().time() - began < 3.0


async def test_an_idle_group_stays_in_sync() -> None:
    """Without messages, heartbeats and their acknowledgements keep everybody in the set."""
    async with group_of(3) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3)
        proposals = len(group.controllers.proposals)

        await asyncio.sleep(120)

        assert len(group.controllers.proposals) == proposals
        assert len(group.network.between("1", "2")) == 1


async def test_a_lost_reply_of_an_expansion_does_not_lose_messages() -> None:
    """When the answer to 1001 is lost, what the proposed member lacks is not confirmed or acknowledged."""
    async with group_of(2) as group:
        group.controllers.lose_replies = 1
        await group.elect(1)
        await until(lambda: group.controllers.sync_state_set == {1, 2})
        group.controllers.silent = True  # and 1004 is not answered

        group.network.isolate("2")
        _, answer = group[1].send("lost?")
        assert await answered(answer) is PutStatus.FLUSH_SLAVE_TIMEOUT

        status = group[1].replication.status()
        assert status.pending_sets, "pending after any time-out"
        assert status.confirmed_offset < status.max_offset


async def test_a_lost_request_is_settled_by_the_same_proposal() -> None:
    """A proposal that never arrived is made again, and then the set is known."""
    async with group_of(2) as group:
        group.controllers.lose_requests = 2
        await group.elect(1)

        await group.in_sync(1, 2)

        assert [wanted for wanted, _ in group.controllers.proposals] == [{1, 2}] * 3


async def test_a_refused_replica_keeps_nobody_from_leaving() -> None:
    """While the controllers refuse one replica, another that dies leaves the set all the same."""
    async with group_of(3) as group:
        await group.elect(1, followers=(2,))
        await group.in_sync(1, 2)
        group.controllers.refuse_joins = {3}
        await group[3].obey(group.controllers.change())
        await until(lambda: any(3 in wanted for wanted, _ in group.controllers.proposals))

        await group[2].stop()

        await until(lambda: group.controllers.sync_state_set == {1})


async def test_too_few_in_sync_is_told_and_nothing_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below `minInSyncReplicas` the service is told to stop, and what slips through is not confirmed."""
    async with group_of(2, min_in_sync_replicas=2) as group:
        changes: list[bool] = []
        replication = group[1].replication
        monkeypatch.setattr(group[1], "on_service_change", lambda: changes.append(replication.enough_in_sync))
        await group.elect(1)
        assert not replication.enough_in_sync
        await group.in_sync(1, 2)
        await until(lambda: replication.enough_in_sync)

        await group[2].stop()
        await until(lambda: not replication.enough_in_sync)
        confirmed = group[1].log.confirmed_offset
        _, answer = group[1].send("a")

        assert await answered(answer) is PutStatus.FLUSH_SLAVE_TIMEOUT
        assert group[1].log.confirmed_offset == confirmed
        assert [enough for enough, _ in groupby(changes)] == [False, True, False]


async def test_a_diverged_master_cuts_what_nobody_else_has() -> None:
    """An old master that wrote on alone cuts that off, keeps no confirmed message less, and follows."""
    async with group_of(3) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3)
        for number in range(10):
            group[1].send(f"common {number}")
        await group.same(2, 3)
        group.network.isolate("1")
        _, lonely = group[1].send("nobody else has this")

        await group.elect(2, followers=(3,))
        group[2].send("the group goes on")
        group.network.unreachable.clear()
        await group[1].obey(group.controllers.change())

        assert await answered(lonely) is PutStatus.SERVICE_NOT_AVAILABLE
        await group.in_sync(1, 2, 3)
        await group.same(1, 3)
        assert b"nobody else has this" not in group[1].log.texts()
        assert [copy for _, _, copy in group[1].log.removed] == [False]
        assert group[1].replication.status().truncated_bytes > 0


async def test_confirmed_messages_are_cut_only_with_proof() -> None:
    """After an unclean election a replica that has confirmed more cuts only when it is known to be out of
    sync, and keeps a copy."""
    async with group_of(3) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3)
        group[1].send("common")
        await group.same(2, 3)
        await group[3].stop()
        await group.in_sync(1, 2)
        for number in range(10):
            group[1].send(f"confirmed {number}")
        await group.same(2)
        await group[1].stop()
        change = group.controllers.elect(3)  # unclean: 3 lacks ten messages
        group[3].start()
        await group[3].lead(change)

        group.controllers.silent = True
        await group[2].obey(replace(change, sync_state_set=frozenset()))
        await asyncio.sleep(5)
        assert not group[2].log.removed, "without the controllers' word nothing goes"
        assert "not said that it is out of sync" in group[2].replication.status().follower.problem
        group.controllers.silent = False
        await group.in_sync(2, 3)

        await group.same(2)
        assert [copy for _, _, copy in group[2].log.removed] == [True]


async def test_an_unknown_log_is_refused() -> None:
    """A log that has nothing in common with the master's, and is not older than all of it, is kept, and the
    problem names the way out."""
    async with group_of(2) as group:
        await group.elect(1, followers=())
        group[1].send("ours")
        await group[2].lead(RoleState(Role.MASTER, 3, 3, 2, "2", frozenset((2,))))
        group[2].send("of another group")
        group.controllers.epoch = 4
        await group.elect(1, followers=())
        group[1].send("ours, too")

        await group[2].obey(group.controllers.change())
        await until(lambda: group[2].replication.status().follower.state == "refused")

        view = group[2].replication.status().follower
        assert "no epoch in common" in view.problem
        assert "brokerset replica replace" in view.advice
        assert group[2].log.texts() == [b"of another group"]


async def test_an_old_master_is_not_followed() -> None:
    """A slave that knows a higher epoch neither connects to nor acknowledges the master of an older one."""
    async with group_of(3) as group:
        old = await group.elect(1)
        await group.in_sync(1, 2, 3)
        await group.elect(2, followers=(3,))
        await group.in_sync(2, 3)

        await group[3].obey(old)
        await asyncio.sleep(1)

        assert not group.network.between("1", "3")
        assert "is an old one" in group[3].replication.status().follower.problem


async def test_news_of_another_master_ends_acknowledgements() -> None:
    """From the moment a higher epoch is known the old master gets no acknowledgement any more."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        pair = group.network.between("1", "2")[0]

        group[2].replication.adopt(frozenset((2,)), 9, 2)
        acks = len(pair.slave_end.acks)
        group[1].send("too late")
        await asyncio.sleep(1)

        assert len(pair.slave_end.acks) == acks


async def test_a_slave_far_behind_begins_anew() -> None:
    """A slave that ends before the master's first byte starts from scratch there."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        group[1].send("old")
        await group.same(2)
        await group[2].stop()
        await group.in_sync(1)
        for number in range(600):
            group[1].send(f"message number {number}")
        group[1].log.drop_before(SEGMENT_BYTES)

        group[2].start()
        await group[2].obey(group.controllers.change())
        await group.in_sync(1, 2)

        await group.same(2)
        assert group[2].log.min_offset == SEGMENT_BYTES


async def test_an_empty_slave_may_begin_with_the_last_file() -> None:
    """With `syncFromLastFile` an empty slave takes the master's last file only."""
    async with group_of(2, sync_from_last_file=True) as group:
        await group.elect(1, followers=())
        for number in range(600):
            group[1].send(f"message number {number}")

        await group[2].obey(group.controllers.change())
        await group.in_sync(1, 2)

        expected = group[1].log.max_offset // SEGMENT_BYTES * SEGMENT_BYTES
        assert group[2].log.min_offset == expected > 0
        assert group[2].log.texts() == group[1].log.texts()[-len(group[2].log.texts()) :]


async def test_switches_without_messages_leave_no_trouble() -> None:
    """Masters that wrote nothing leave no epoch behind that keeps others from following."""
    async with group_of(3) as group:
        for master in (1, 2, 3, 1, 1, 2):
            await group.elect(master)
            await group.in_sync(1, 2, 3)
        group[2].send("the first message")

        await group.same(1, 3)
        assert len(group[1].epochs.entries()) == 1


async def test_each_chunk_lies_in_one_file_and_one_epoch() -> None:
    """A slave that gets a log of several masters receives no packet across a file or an epoch."""
    async with group_of(3, ha_transfer_batch_size=1_024) as group:
        for master in (1, 2, 1):
            await group.elect(master, followers=(1, 2))
            await group.in_sync(1, 2)
            for number in range(150):
                group[master].send(f"message {number} of a master")
            await group.same(1, 2)

        await group[3].obey(group.controllers.change())
        await group.in_sync(1, 2, 3)

        await group.same(3)
        starts = [entry.start_offset for entry in group[1].epochs.entries()]
        headers = [h for p in group.network.pairs if p.names == ("1", "3") for h in p.slave_end.headers]
        bodies = [h for h in headers if h.size]
        assert len(starts) == 3
        assert len(bodies) >= 4
        for header in bodies:
            end = header.offset + header.size
            assert header.offset // SEGMENT_BYTES == (end - 1) // SEGMENT_BYTES
            assert not any(header.offset < start < end for start in starts)
            assert header.epoch_start == max(s for s in starts if s <= header.offset)


async def test_with_synchronous_flush_only_what_is_on_disks_counts() -> None:
    """With SYNC_FLUSH a send is answered when both disks have it."""
    async with group_of(2, flush_disk_type="SYNC_FLUSH") as group:
        await group.elect(1)
        await group.in_sync(1, 2)

        end, _ = group[1].send("on the disk of the master first")
        group[1].log.flush()
        await until(lambda: group[2].log.received_end == end)
        await asyncio.sleep(0.1)
        assert group[1].log.confirmed_offset < end
        group[2].log.flush()
        await until(lambda: group[1].log.confirmed_offset == end)

        end, answer = group[1].send("on the disk of the slave first")
        await until(lambda: group[2].log.received_end == end)
        await asyncio.sleep(0.1)
        assert group[1].log.confirmed_offset < end
        group[2].log.flush()
        await asyncio.sleep(0.1)
        assert group[1].log.confirmed_offset < end
        assert not answer.done()
        group[1].log.flush()
        for _, callback in group[1].flush_waiters:
            callback(True)

        assert await answered(answer) is PutStatus.PUT_OK
        assert group[1].log.confirmed_offset == end


async def test_a_number_of_replicas_may_be_enough() -> None:
    """Without `allAckInSyncStateSet` a send is answered when `inSyncReplicas` members have it, strangers and
    learners not counted; consumers wait for all."""
    async with group_of(3, all_ack_in_sync_state_set=False, in_sync_replicas=2) as group:
        group[3].settings = replace(group[3].settings, async_learner=True)
        await group.elect(1)
        await group.in_sync(1, 2)

        group.network.between("1", "2")[0].acks_held = True
        end, answer = group[1].send("a")
        await until(lambda: group[3].log.received_end == end)
        await asyncio.sleep(0.5)
        assert not answer.done(), "the learner does not count"
        group.network.between("1", "2")[0].acks_held = False

        assert await answered(answer) is PutStatus.PUT_OK


async def test_a_damaged_record_stops_the_following() -> None:
    """A log that found a wrong record acknowledges nothing more and says so, while its damage stays."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)

        acks = group.network.between("1", "2")[0].slave_end.acks
        before = len(acks)
        group[2].log.broken = "record at 16: wrong CRC"
        group[1].send("a")
        await until(lambda: group[2].replication.status().follower.state == "refused")

        assert len(acks) == before
        assert "wrong CRC" in group[2].replication.status().follower.problem
        await group.in_sync(1)


async def test_a_newer_connection_replaces_the_older() -> None:
    """One connection for each id: the older one is closed, and the set stays as it is."""
    async with group_of(1) as group:
        await group.elect(1)
        port = group.network.network("9")
        older = await port.connect("1", 1.0)
        await older.shake_hands(SlaveHandshake(9))
        older.send_ack(Ack(0))
        await group.in_sync(1, 9)
        proposals = len(group.controllers.proposals)

        newer = await port.connect("1", 1.0)
        await newer.shake_hands(SlaveHandshake(9))
        newer.send_ack(Ack(0))

        assert "connected again" in await older.closed()
        await asyncio.sleep(1)
        assert len(group.controllers.proposals) == proposals
        assert newer.pair.reason is None


async def test_stop_following_ends_acknowledgements() -> None:
    """When `stop_following` returns, nothing is received and no acknowledgement leaves any more."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        pair = group.network.between("1", "2")[0]
        group[1].send("a")

        await group[2].replication.stop_following()
        acks, end = len(pair.slave_end.acks), group[2].log.received_end
        await asyncio.sleep(1)

        assert len(pair.slave_end.acks) == acks
        assert group[2].log.received_end == end
        assert group[2].replication.status().follower.state == "off"


async def test_caught_up_waits_for_a_replica() -> None:
    """`caught_up` tells when a replica has everything up to an offset, or that it was not in time."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        end, _ = group[1].send("a")

        assert await group[1].replication.caught_up(2, end, 1.0)
        assert not await group[1].replication.caught_up(2, end + 100, 1.0)
        assert not await group[2].replication.caught_up(1, 0, 1.0)


async def test_a_silent_master_is_left() -> None:
    """After `haHousekeepingInterval` without a packet the slave closes the connection and looks again."""
    async with group_of(2, ha_housekeeping_interval=1_000) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        older = group.network.between("1", "2")[0]

        older.stalled = True
        await until(lambda: older.reason is not None, 30)

        await until(lambda: bool(group.network.between("1", "2")), 30)
        assert "nothing heard" in (older.reason or "")


async def test_a_slave_that_lost_its_tail_is_believed() -> None:
    """A replica that comes back with less counts with what it has now; the confirmed offset stays."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        for number in range(5):
            group[1].send(f"message {number}")
        await group.same(2)
        confirmed = group[1].log.confirmed_offset
        await group[2].stop()
        keep = group[2].log.ends()[1]
        del group[2].log.data[keep:]
        group[2].log._whole = group[2].log._confirmed = keep

        group[2].start()
        await group[2].obey(group.controllers.change())
        await group.in_sync(1, 2)

        await group.same(2)
        assert group[1].log.confirmed_history == sorted(group[1].log.confirmed_history)
        assert group[1].log.confirmed_offset == confirmed


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_lost_shrink_is_settled(lost: str) -> None:
    """A shrink whose end is unknown is settled, and the replica joins again."""

    async def main() -> None:
        async with group_of(2, min_in_sync_replicas=1) as group:
            await group.elect(1)
            await group.in_sync(1, 2)
            if lost == "reply":
                group.controllers.lose_replies = 1
            else:
                group.controllers.lose_requests = 1
            group.network.between("1", "2")[0].close("a short interruption")
            await until(lambda: bool(group[1].replication.status().pending_sets))

            await group.in_sync(1, 2)

    run(main())


async def test_a_proposal_counts_before_it_leaves() -> None:
    """What is appended when a proposal leaves is not confirmed without the proposed member."""
    async with group_of(2) as group:
        seen: list[bool] = []
        propose = group.controllers.propose

        async def watched(wanted: frozenset[int], set_epoch: int, master_epoch: int) -> ProposalResult:
            end = group[1].log.append(b"in between")
            seen.append(group[1].log.confirmed_offset < end)
            return await propose(wanted, set_epoch, master_epoch)

        group.controllers.propose = watched  # type: ignore[method-assign]  # stands between
        await group.elect(1)
        await group.in_sync(1, 2)

        assert seen == [True]


async def test_strangers_are_refused() -> None:
    """A slave of another group, one with the master's id, and one that knows a newer epoch are refused."""
    async with group_of(1) as group:
        await group.elect(1)
        port = group.network.network("9")
        whole = PeerIdentity(CLUSTER, GROUP, 9, "n", 1, 0)
        for broker_id, identity in (
            (9, replace(whole, broker_name="another")),
            (9, replace(whole, cluster_name="another")),
            (9, replace(whole, broker_id=8)),
            (9, replace(whole, epoch=2)),
            (1, None),
            (0, None),
        ):
            link = await port.connect("1", 1.0)
            with pytest.raises(LinkClosed):
                await link.shake_hands(SlaveHandshake(broker_id, identity=identity))

        assert group[1].replication.status().connections_refused == 6
        link = await port.connect("1", 1.0)
        assert (await link.shake_hands(SlaveHandshake(9, identity=whole))).identity is not None


async def test_a_wrong_acknowledgement_closes_the_connection() -> None:
    """A slave that acknowledges what the log does not have is cut off, and counts for nothing."""
    async with group_of(1) as group:
        await group.elect(1)
        link = await group.network.network("9").connect("1", 1.0)
        await link.shake_hands(SlaveHandshake(9))

        link.send_ack(Ack(10))

        assert "behind the end" in await link.closed()


async def test_a_java_slave_may_be_silent_while_nothing_happens() -> None:
    """A slave of Java acknowledges each 5 s only; it stays in sync all the same, and is told nothing that
    Java does not know."""
    async with group_of(1) as group:
        await group.elect(1)
        link = await group.network.network("9").connect("1", 1.0)
        answer = await link.shake_hands(SlaveHandshake(9))
        assert answer.identity is None
        link.send_ack(Ack(0))
        await group.in_sync(1, 9)

        for _ in range(4):
            await asyncio.sleep(5)
            link.send_ack(Ack(0))

        assert group.controllers.sync_state_set == {1, 9}
        group[1].send("a")
        await group.in_sync(1)


async def test_a_silent_slave_is_left() -> None:
    """After `haHousekeepingInterval` without an acknowledgement the master closes the connection."""
    async with group_of(1) as group:
        await group.elect(1)
        link = await group.network.network("9").connect("1", 1.0)
        await link.shake_hands(SlaveHandshake(9))
        link.send_ack(Ack(0))

        async with asyncio.timeout(30):
            assert "nothing heard for 20 s" in await link.closed()


async def test_confirmed_offsets_are_pushed() -> None:
    """A slave's consumers may read a message within milliseconds of its confirmation."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        await asyncio.sleep(0.1)

        end, answer = group[1].send("a")
        await answered(answer)
        await asyncio.sleep(0.01)

        assert group[2].log.confirmed_offset == end


async def test_a_switch_waits_for_work_on_the_disk() -> None:
    """`stop_following` returns when a cut that was begun is done, and not before."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        group[1].send("common")
        await group.same(2)
        group.network.isolate("1")
        group[1].log.append(b"nobody else has this")
        await group.elect(2, followers=())
        group.network.unreachable.clear()
        cut, begun = group[1].log.truncate, asyncio.Event()

        async def slow_cut(offset: int, *, keep_copy: bool) -> None:
            begun.set()
            await asyncio.sleep(3)
            await cut(offset, keep_copy=keep_copy)

        group[1].log.truncate = slow_cut  # type: ignore[method-assign]  # a slow disk
        await group[1].obey(group.controllers.change())
        await begun.wait()
        await group[1].replication.stop_following()

        assert group[1].log.texts() == [b"common"]
        assert group[1].epochs.history.last_epoch == 1


async def test_an_old_masters_epochs_are_cut_with_its_log() -> None:
    """An epoch in which a master wrote alone is gone from its file when it follows another."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        group[1].send("common")
        await group.same(2)
        group.network.isolate("1")
        await group.elect(1, followers=())
        group[1].send("nobody else has this")
        await group.elect(2, followers=())  # unclean
        group.network.unreachable.clear()
        await group[1].obey(group.controllers.change())
        await until(lambda: bool(group[1].log.removed))
        await group[1].replication.stop_following()

        assert group[1].log.texts() == [b"common"]
        assert [entry.epoch for entry in group[1].epochs.entries()] in ([1], [1, 3])
        assert [copy for _, _, copy in group[1].log.removed] == [True], "it was confirmed there"


async def test_a_hole_in_the_stream_closes_the_connection() -> None:
    """A packet that does not begin at the log's end is never taken for a new beginning of the log."""
    async with group_of(2) as group:
        group[2].settings = replace(group[2].settings, async_learner=True)
        await group.elect(1)
        for number in range(300):
            group[1].send(f"message {number}")
        await group.same(2)
        pair = group.network.between("1", "2")[0]

        pair.lose_packets = 2  # the second one ends with its file
        group[1].send("lost on the way")
        await asyncio.sleep(0.0001)
        for number in range(600):
            group[1].send(f"message {number}")
        await group.same(2)

        assert pair.reason is not None
        assert not group[2].log.removed
        assert group[2].log.min_offset == 0


async def test_a_full_disk_is_tried_again() -> None:
    """A slave without room says why it does not follow, and goes on when there is some."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)

        group[2].log.full = True
        group[1].send("a")
        await until(lambda: "no space left" in group[2].replication.status().follower.problem)
        group[2].log.full = False

        await group.in_sync(1, 2)
        await group.same(2)


async def test_a_stranger_does_not_count() -> None:
    """With a number of replicas, one that is in no set that may be in force does not count."""
    async with group_of(2, all_ack_in_sync_state_set=False, in_sync_replicas=2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        group.controllers.silent = True
        await group[2].stop()  # the proposal without it stays unanswered for a while
        link = await group.network.network("3").connect("1", 1.0)
        await link.shake_hands(SlaveHandshake(3))
        link.send_ack(Ack(0))

        end, answer = group[1].send("a")
        link.send_ack(Ack(end))
        await asyncio.sleep(1)

        assert group[1].replication.status().replicas[0].acknowledged == end
        assert not answer.done()


async def test_who_lacks_metadata_follows_as_a_learner_until_it_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replica that may not join the in-sync set receives everything, is waited for by nobody, and joins as
    soon as it may."""
    async with group_of(3) as group:
        complete = False
        monkeypatch.setattr(group[3], "may_join", lambda: complete)
        await group.elect(1)
        await group.in_sync(1, 2)
        for number in range(50):
            group[1].send(f"before {number}")
        await until(lambda: group[3].log.received_end == group[1].log.max_offset)
        await asyncio.sleep(10)

        before = group[1].replication.status()
        complete = True
        await group.in_sync(1, 2, 3)
        complete = False
        await until(lambda: any(view.learner for view in group[1].replication.status().replicas))

        assert before.sync_state_set == {1, 2}
        assert [(view.broker_id, view.learner, view.lag_bytes) for view in before.replicas] == [
            (2, False, 0),
            (3, True, 0),
        ]


async def test_only_a_master_that_is_alone_lets_sends_pass_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether sends have to wait is known in the turn in which that changes: in the way of a group of one
    there is nothing, and from the proposal of a second member on each send waits."""
    async with group_of(2) as group:
        replication = group[1].replication
        seen: list[tuple[bool, bool]] = []

        def note() -> None:
            seen.append((replication.acknowledges_appends, bool(replication.status().pending_sets)))

        monkeypatch.setattr(group[1], "on_waiting_change", note)
        await group.elect(1, followers=())
        alone = replication.acknowledges_appends
        await group[2].obey(group.controllers.change())
        await group.in_sync(1, 2)
        together = replication.acknowledges_appends
        await group[2].stop()
        await group.in_sync(1)
        await until(lambda: replication.acknowledges_appends)
        replication.close_replicas("its mastership has ended")

        assert (alone, together, replication.acknowledges_appends) == (True, False, False)
        assert seen[0] == (True, False)
        assert [at_once for at_once, _ in seen] == [True, False] * (len(seen) // 2)


async def test_few_bytes_gather_while_others_are_on_their_way() -> None:
    """A message goes at once to slaves that have everything; those that follow go together, when that one is
    acknowledged or after a millisecond."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        pair = next(pair for pair in group.network.pairs if pair.names == ("1", "2"))
        before = len([header for header in pair.slave_end.headers if header.size])

        answers = []
        for number in range(20):
            answers.append(group[1].send(f"message {number}")[1])
            await asyncio.sleep(0.00002)
        assert [await answered(answer) for answer in answers] == [PutStatus.PUT_OK] * 20
        sent = [header for header in pair.slave_end.headers if header.size][before:]

        assert len(sent) == 2
        assert sent[0].size < sent[1].size
        pair.acks_held = True
        group[1].send("nobody acknowledges this")
        await asyncio.sleep(0.0002)
        end, _ = group[1].send("and this follows")
        await asyncio.sleep(0.002)
        assert group[2].log.received_end == end
        pair.acks_held = False
        group[1].send("a last one")
        await group.same(2)
