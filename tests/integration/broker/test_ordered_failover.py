"""Ordered subjects over changes of the master: what was answered holds, all else may be gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_broker.tables.locks import SESSION_LOCK_SECONDS
from brokerset_broker.tables.ordered.values import ProducersPart, ProducersPut, ProducerState
from brokerset_protocol.bodies.queues import LockBatchRequest, LockBatchResponse, MessageQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_rig.ordered_broker import (
    GROUP,
    SUBJECT,
    Brokers,
    OrderedBroker,
    batch,
    bodies,
    owner,
    pull_fields,
    send_fields,
    send_one,
)
from brokerset_rig.shared_sessions import Session, numbers, shared

STALE = ResponseCode.BROKERSET_STALE_EPOCH


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Makes brokers of one group, whose stores are let go at the end."""
    made = Brokers(tmp_path)
    yield made
    made.crash()


async def group(brokers: Brokers) -> tuple[OrderedBroker, OrderedBroker]:
    """A master with an open queue, and a slave that has everything."""
    master, slave = await brokers.master(), brokers.make("slave")
    await slave.metadata.start_following()
    await master.copy_to(slave)
    return master, slave


async def fail_over(master: OrderedBroker, slave: OrderedBroker, epoch: int = 2) -> None:
    """The master is gone; the slave leads with what it has."""
    master.crash()
    await slave.lead(epoch)


async def test_a_message_that_was_stored_and_not_confirmed_is_stored_once(brokers: Brokers) -> None:
    """The master dies between append and confirmation: the new one has the message or not, and sent again it
    is in the log once, in order (statements 25, 74)."""
    for copied in (True, False):
        group_of = Brokers(brokers.folder / str(copied))
        master, slave = await group(group_of)
        await master.call(310, b"0", **send_one(sequence=0))
        await master.copy_to(slave)
        lost = await master.start(320, batch("p", 1, [1, 2]), **send_fields(m="true"))
        if copied:
            await master.copy_to(slave)
        await fail_over(master, slave)
        again = await slave.start(320, batch("p", 1, [1, 2]), **send_fields(m="true"))
        early = [lost.code, again.code]  # the new master has confirmed nothing of what it took over
        await slave.confirm()
        following = await slave.call(310, b"3", **send_one(sequence=3))

        assert early == [None, None]
        assert (again.code, following.code) == (0, 0)
        assert bodies(slave) == [b"0", b"1", b"2", b"3"]
        group_of.crash()


async def test_older_epochs_of_producers_stay_fenced(brokers: Brokers) -> None:
    """A new master knows the producers by the last record and the messages behind it (statements 26, 74)."""
    master, slave = await group(brokers)
    await master.call(310, b"a", **send_one("old", 5, 0))
    master.metadata.flush_producers()
    await master.call(310, b"b", **send_one("young", 7, 0))
    await master.copy_to(slave)
    await fail_over(master, slave)
    calls = [
        await slave.call(310, b"x", **send_one("old", 4, 0)),
        await slave.call(310, b"x", **send_one("young", 6, 0)),
        await slave.call(310, b"x", **send_one("young", 7, 2)),
        await slave.call(310, b"c", **send_one("young", 7, 1)),
        await slave.call(310, b"d", **send_one("old", 5, 1)),
    ]

    fenced, gap = ResponseCode.BROKERSET_PRODUCER_FENCED, ResponseCode.BROKERSET_SEQUENCE_GAP
    assert [call.code for call in calls] == [fenced, fenced, gap, 0, 0]
    assert bodies(slave) == [b"a", b"b", b"c", b"d"]


async def test_a_fence_survives_a_restart_and_a_failover(brokers: Brokers) -> None:
    """A lower epoch is refused after the broker was started again, and by the next master
    (statements 54, 74)."""
    master, slave = await group(brokers)
    await master.send(2)
    await master.claim(7, "s7")
    await master.copy_to(slave)
    await master.tables.saved()
    await master.metadata.write_stamp()
    master.crash()
    restarted = brokers.make()
    await restarted.lead(2)
    refused = [
        (await restarted.claim(6, "s6")).code,
        (await restarted.pull(0, 6, "s6")).code,
        (await restarted.ack(0, 0, 6, "s6")).code,
    ]
    restarted.crash()
    await slave.lead(3)
    refused += [(await slave.claim(6, "s6")).code, (await slave.pull(0, 6, "s6")).code]

    assert refused == [STALE] * 5


async def test_a_restart_without_files_reads_the_fence_from_the_log(brokers: Brokers) -> None:
    """The log alone is enough (statement 54)."""
    master = await brokers.master()
    await master.claim(7, "s7")
    master.crash()
    restarted = brokers.make()
    await restarted.lead(2)

    assert (await restarted.claim(6, "s6")).code == STALE


async def test_a_snapshot_has_subjects_fences_and_producers(brokers: Brokers) -> None:
    """A replica that begins with a snapshot has what the records before it said (statements 54, 74)."""
    master, slave = await group(brokers)
    await master.send(3)
    await master.claim(7, "s7")
    await master.put_queues((0, 100, "Sealed"), version=2)
    assert await master.metadata.write_snapshot()
    await master.confirm()
    await master.copy_to(slave)
    slave.log.confirm(master.log.max_offset)
    applier = slave.metadata._applier
    assert applier.restore_newest(master.log.max_offset)
    await slave.metadata.start_following()

    assert slave.metadata.status().exact
    assert slave.tables.state().ordered == master.tables.state().ordered
    assert slave.ordered.state.fence(SUBJECT, GROUP, 0) == (7, "s7", False)
    assert slave.ordered.state.producers[SUBJECT][0].producers["p"].next_sequence == 3


async def test_a_session_claims_again_from_the_next_master(brokers: Brokers) -> None:
    """After a change of the master a session claims again, with what it was given; acks on their way are not
    lost for that (statements 55, 66, 74)."""
    master, slave = await group(brokers)
    await master.send(5)
    await master.claim()
    await master.pull(0)
    await master.ack(0, 1)
    await master.copy_to(slave)
    await fail_over(master, slave)
    unclaimed = [
        await slave.start(11, **pull_fields(5)),
        await slave.start(21_033, **owner(), first=2, last=3),
    ]
    claimed = await slave.claim(pulled_to=5)
    acked = await slave.ack(2, 4)

    assert {call.code for call in unclaimed} == {ResponseCode.BROKERSET_NOT_CLAIMED}
    assert (claimed.code, claimed.ext["position"]) == (0, "2")
    assert (acked.code, acked.ext["position"]) == (0, "5")


async def test_an_ack_that_was_not_confirmed_may_be_gone_and_its_answer_says_so(brokers: Brokers) -> None:
    """An ack is answered when it is confirmed; of one that was not the client hears that it has to repeat it
    (statement 74)."""
    master, slave = await group(brokers)
    await master.send(3)
    await master.claim()
    await master.pull(0)
    await master.copy_to(slave)
    ack = await master.start(21_033, **owner(), first=0, last=1)
    waiting = ack.code
    await master.follow()
    await slave.lead(2)
    claimed = await slave.claim(pulled_to=3)

    assert (waiting, ack.code) == (None, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert claimed.ext["position"] == "0"


async def test_a_position_behind_the_end_of_the_new_masters_queue_is_an_error(brokers: Brokers) -> None:
    """A tail that no replica had is lost with its master, and who was given it hears of it (statements 66,
    74)."""
    master, slave = await group(brokers)
    await master.send(2)
    await master.claim()
    await master.copy_to(slave)
    await master.call(310, b"2", **send_one(sequence=2))
    await fail_over(master, slave)
    beyond = await slave.claim(pulled_to=3)
    resynced = await slave.claim(pulled_to=-1)

    assert (beyond.code, beyond.ext["maxOffset"]) == (ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE, "2")
    assert (resynced.code, resynced.ext["position"]) == (0, "0")


async def test_a_seal_that_was_not_confirmed_is_carried_out_or_gone_whole(brokers: Brokers) -> None:
    """The master dies before a seal is confirmed: with its record the queue is sealed at that end, without it
    the queue is open; in both cases nothing lies behind an end that was answered (statement 74)."""
    for copied in (True, False):
        group_of = Brokers(brokers.folder / str(copied))
        master, slave = await group(group_of)
        await master.send(2)
        await master.copy_to(slave)
        seal = await master.start(21_031, master.queues_body((0, 100, "Sealed"), version=2))
        early = seal.code
        if copied:
            await master.copy_to(slave)
        await fail_over(master, slave)
        send = await slave.call(310, b"2", **send_one(sequence=2))
        again = await slave.put_queues((0, 100, "Sealed"), version=2)

        assert early is None
        assert send.code == (ResponseCode.BROKERSET_QUEUE_SEALED if copied else 0)
        assert again.code == 0
        assert slave.ordered.sealed_end(SUBJECT, 0) == len(bodies(slave)) == (2 if copied else 3)
        group_of.crash()


async def test_a_seal_that_a_new_master_found_is_answered_when_it_is_confirmed(brokers: Brokers) -> None:
    """A new master applies its log to the end, confirmed or not. That a queue is sealed it says to producers
    and to controllers once the seal is confirmed: if it is lost after all, nobody heard of it
    (statement 74)."""
    master, slave = await group(brokers)
    await master.send(2)
    await master.copy_to(slave)
    await slave.metadata.write_stamp()
    await master.start(21_031, master.queues_body((0, 100, "Sealed"), version=2))
    await master.copy_to(slave)
    await fail_over(master, slave)
    send = await slave.start(310, b"2", **send_one(sequence=2))
    push = await slave.start(21_031, slave.queues_body((0, 100, "Sealed"), version=2))
    early = [send.code, push.code]
    await slave.confirm()

    assert early == [None, None]
    assert [send.code, push.code] == [ResponseCode.BROKERSET_QUEUE_SEALED, 0]
    assert send.ext["nextSequence"] == "2"


async def test_a_deposed_master_opens_again_what_it_had_only_begun_to_seal(brokers: Brokers) -> None:
    """The mark of a seal goes with the role: a master whose seal nobody got does not refuse sends for it."""
    master = await brokers.master()
    await master.send(1)
    end = master.log.max_offset
    await master.start(21_031, master.queues_body((0, 100, "Sealed"), version=2))
    await master.follow()
    await master.log.truncate(end, keep_copy=False)
    master.metadata.truncated(end)
    await master.lead(2)
    send = await master.call(310, b"1", **send_one(sequence=1))

    assert send.code == 0
    assert bodies(master) == [b"0", b"1"]


async def test_producers_are_counted_again_after_a_truncation(brokers: Brokers) -> None:
    """A master that loses its tail and leads again does not take what it lost for stored (statement 25)."""
    master = await brokers.master()
    await master.send(1)
    end = master.log.max_offset
    await master.start(310, b"lost", **send_one(sequence=1))
    await master.follow()
    await master.log.truncate(end, keep_copy=False)
    master.metadata.truncated(end)
    await master.lead(2)
    again = await master.call(310, b"1", **send_one(sequence=1))

    assert again.code == 0
    assert bodies(master) == [b"0", b"1"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_record_of_producers_that_was_not_confirmed_is_lost_with_its_messages(
    brokers: Brokers, restarted: bool
) -> None:
    """A master that wrote messages and their record, loses both and leads again before another one's
    snapshot stores the messages again, instead of answering that they are stored (statements 25, 67)."""
    master = await brokers.master()
    await master.send(1)
    master.metadata.flush_producers()
    await master.confirm()
    end = master.log.max_offset
    await master.start(320, batch("p", 1, [1, 2]), **send_fields(m="true"))
    master.metadata.flush_producers()
    await master.follow()
    if restarted:
        await master.close()
        master = brokers.make()
        await master.metadata.start_following()
    await master.log.truncate(end, keep_copy=False)
    master.metadata.truncated(end)
    await master.lead(2)
    again = await master.call(320, batch("p", 1, [1, 2]), **send_fields(m="true"))

    assert (again.code, again.ext["queueOffset"]) == (0, "1")
    assert bodies(master) == [b"0", b"1", b"2"]


async def test_a_table_of_producers_that_counts_lost_messages_is_not_believed(brokers: Brokers) -> None:
    """A queue whose table counts messages behind its end is counted from its oldest message (statement 25);
    what the table had besides is gone with the next record."""
    master = await brokers.master()
    await master.send(2)
    lost = {"p": ProducerState(1, 9, 8, 0), "other": ProducerState(1, 3, 7, 0)}
    await master.follow()
    master.ordered.apply(ProducersPut({f"{SUBJECT}@0": ProducersPart(9, lost)}))
    await master.lead(2)
    again = await master.call(310, b"2", **send_one(sequence=2))
    other = await master.call(310, b"o", **send_one("other", 1, 0))
    master.metadata.flush_producers()
    await master.confirm()
    kept = master.ordered.state.producers[SUBJECT][0]

    assert (again.code, other.code) == (0, 0)
    assert master.counters.losses["producers"] == 1
    assert bodies(master) == [b"0", b"1", b"2", b"o"]
    assert (kept.complete_to, {name: state.next_sequence for name, state in kept.producers.items()}) == (
        4, {"p": 3, "other": 1},
    )  # fmt: skip


async def test_a_claim_of_a_master_that_is_deposed_fences_nobody_afterwards(brokers: Brokers) -> None:
    """A fence that got no record goes with the role: the session with the lower epoch goes on at the next
    master (statement 54)."""
    master, slave = await group(brokers)
    await master.send(1)
    await master.claim(1)
    await master.copy_to(slave)
    claim = await master.start(21_032, **owner(2, "s2"), pulledTo=-1)
    await master.follow()
    await slave.lead(2)
    first = await slave.claim(1)

    assert claim.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert first.code == 0


async def test_acknowledged_messages_survive_the_loss_of_the_masters_disk(brokers: Brokers) -> None:
    """What was answered is on the slave, too (statement 67), and acks with it (statement 65)."""
    master, slave = await group(brokers)
    await master.claim()
    stored = await master.start(310, b"0", **send_one(sequence=0))
    early = stored.code
    await master.copy_to(slave)
    await master.confirm()
    await master.pull(0)
    await master.ack(0, 0)
    await master.copy_to(slave)
    await fail_over(master, slave)
    claimed = await slave.claim(2, "s2")

    assert (early, stored.code) == (None, 0)
    assert bodies(slave) == [b"0"]
    assert claimed.ext["position"] == "1"


async def test_a_new_master_keeps_claimed_queues_from_rocketmqs_clients_for_the_life_of_a_lock(
    brokers: Brokers,
) -> None:
    """Locks are in memory, and the session may be at work (statements 49, 53)."""
    master, slave = await group(brokers)
    await master.claim()
    await master.copy_to(slave)
    await fail_over(master, slave)
    await slave.confirm()
    body = LockBatchRequest(GROUP, "java", frozenset({MessageQueue(SUBJECT, "b", 0)})).to_json()

    async def locks() -> bool:
        call = await slave.call(41, body)
        assert call.answer is not None
        return bool(LockBatchResponse.from_json(call.answer.body).lock_ok_mq_set)

    early = await locks()
    slave.clock.advance(int(SESSION_LOCK_SECONDS * 1000) + 1)
    late = await locks()

    assert (early, late) == (False, True)


# -- Shared groups ----------------------------------------------------------------------------------------


async def test_sessions_of_a_shared_group_go_on_at_the_next_master(brokers: Brokers) -> None:
    """What two sessions have acknowledged with an answer is not given again, by the records, or by a snapshot
    and a restart; all else is, each message to one of them (statements 54, 61, 74)."""
    master, slave = await group(brokers)
    await master.send(10)
    one, two = await shared(master, "s1", "s2")
    await one.pull(4)
    await two.pull(4)
    await two.ack(0, 2)
    await one.ack(0, 0)
    await one.claim()
    await one.pull(2)
    assert (await one.ack(1, 1)).code == 0  # of 1, 2 and 3 the second; and a copy of the first
    await master.metadata.write_snapshot()
    await master.copy_to(slave)
    await fail_over(master, slave)
    await slave.confirm()
    await slave.close()
    slave = brokers.make("slave")
    await slave.lead(3)
    await slave.confirm()
    late = [await Session(slave, each.name).pull_call(each.following) for each in (one, two)]
    one, two = await shared(slave, "s1", "s2")
    got = [await one.pull(2), await two.pull()]
    acked = [await one.ack(0, 1), await two.ack(0, 1)]

    assert [call.code for call in late] == [ResponseCode.BROKERSET_NOT_CLAIMED] * 2
    assert got == [[b"3", b"7"], numbers(8, 10)]
    assert [call.ext["groupPosition"] for call in acked] == ["8", "10"]


async def test_a_master_that_led_before_has_the_acks_that_its_successor_confirmed(brokers: Brokers) -> None:
    """A deposed master had closed a gap with an ack that nobody got. When its successor moves the position,
    it learns again of what lies above, and gives none of that again when it leads at last (statement 74)."""
    master, slave = await group(brokers)
    await master.send(8)
    one, two = await shared(master, "s1", "s2")
    await one.pull(3)
    await two.pull(3)
    await two.ack(0, 2)
    await master.copy_to(slave)
    end = master.log.max_offset
    lost = await master.start(21_033, **owner(1, "s1"), first=one.start, last=one.start + 2)
    await master.follow()
    await slave.lead(2)
    await slave.confirm()
    (one,) = await shared(slave, "s1")
    await one.pull(1)
    await one.ack(0, 0)
    await master.log.truncate(end, keep_copy=False)
    master.metadata.truncated(end)
    await slave.copy_to(master)
    await fail_over(slave, master, 3)
    await master.confirm()
    (one,) = await shared(master, "s1")

    assert lost.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await one.pull() == [b"1", b"2", b"6", b"7"]
