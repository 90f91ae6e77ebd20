"""POP of one broker when something goes wrong, or is changed, while messages are out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.requests.pop.acks import BATCH_MAX
from brokerset_broker.requests.pop.log import Popped
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.results import Appended, GetResult, GetStatus
from brokerset_broker.tables.metadata.journal import Journal
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.pop.handles import Handle
from brokerset_formats.pop.records import Acks, revive_properties
from brokerset_formats.properties import Property, encode_properties
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_rig.local_servers import Setup
from brokerset_rig.pop_requests import (
    RETRY,
    ack,
    ack_batch,
    append,
    bodies,
    change,
    handles,
    pop,
    pop_in_order,
    running,
)
from brokerset_rig.transaction_client import TransactionClient, transaction_client
from brokerset_rig.waiting import until


async def prepare(broker: Broker, client: TransactionClient, *messages: str) -> None:
    await client.create_topic("t")
    broker.groups.put(SubscriptionGroupConfig("g"))
    await until(lambda: broker.pop_log.is_known)
    append(broker, *messages)


async def test_a_batch_of_acks_that_is_refused_in_part_says_so(setup: Setup) -> None:
    """What can be acked is acked; the code is not 0, so that a client asks for the messages one by one."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"012")
        first, *_ = handles(await pop(client))
        append(broker, "3")  # nobody has popped it

        answer = await ack_batch(client, (first, (0, 1)), (replace(first, start_offset=3), (3,)))
        again = await ack_batch(client, (first, (0, 1)))
        far = await ack_batch(client, (first, (0, 7)))
        too_many = await ack_batch(client, (first, tuple(range(BATCH_MAX + 1))))

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert answer.remark.startswith("1 of 3 messages are not acked")
        assert broker.pop_log.in_flight("t", "g", 0) == 1
        assert [again.code, far.code, too_many.code] == [
            0, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER,
        ]  # fmt: skip


async def test_a_batch_of_acks_of_ordered_pops_that_is_refused_in_part_says_so(setup: Setup) -> None:
    """The rest is acked: the queue is free."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"012")
        first, *_ = handles(await pop_in_order(client, "a", maxMsgNums=2))

        answer = await ack_batch(client, (first, (0, 1, 2)))

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert bodies(await pop_in_order(client, "b")) == ["2"]


async def test_acks_wake_who_waits_because_too_many_messages_are_out(setup: Setup) -> None:
    """popInflightMessageThreshold: a pop waits for acks, not for its deadline; a notification says no."""
    changes = {"enable_pop_message_threshold": True, "pop_inflight_message_threshold": 1}
    async with running(setup, **changes) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"01234")
        found = handles(await pop(client, maxMsgNums=3))
        waits = asyncio.ensure_future(pop(client, pollTime=9_000))
        await until(lambda: len(broker.pop_requests.pops) == 1)
        asked = await client.call(
            RequestCode.NOTIFICATION, consumerGroup="g", topic="t", queueId="-1", pollTime="0", bornTime="0"
        )
        assert asked.ext["hasMsg"] == "false"

        assert await ack(client, found[0]) == 0
        assert len(broker.pop_requests.pops) == 1
        assert await ack(client, found[1]) == 0

        assert bodies(await waits) == ["3", "4"]


async def test_the_progress_goes_on_while_offsets_are_committed_without_a_pause(setup: Setup) -> None:
    """At any moment some offset has no record yet; each batch writes those from before it."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"012345")
        journal = broker.offsets.journal = Journal()

        def progress() -> int:
            journal.take_offsets({})
            journal.batches += 1
            journal.offset_changed("other@g", 0)
            places = [
                broker.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", broker.pop_log.topic, queue_id) or 0
                for queue_id in broker.pop_log.points.queues
            ]
            return sum(places)

        async def work() -> None:
            while True:
                for handle in handles(await pop(client, maxMsgNums=1)):
                    await ack(client, handle)
                append(broker, "more")

        working = asyncio.ensure_future(work())
        await until(lambda: progress() > 40)
        working.cancel()
        await asyncio.wait((working,))
        assert (broker.offsets.query("g", "t", 0) or 0) > 10
        broker.offsets.journal = None


async def test_a_message_that_cannot_be_read_yet_is_not_given_up(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back when the store gives it: what is in the log of a DLedger may not be applied yet."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, "0")
        unit = broker.store.unit("t", 0, 0)
        assert unit is not None
        asked: list[int] = []
        read = broker.store.read

        def refuse(offset: int, size: int | None = None) -> memoryview | None:
            if offset != unit[0]:
                return read(offset, size)
            asked.append(offset)
            return None

        await pop(client, invisibleTime=100)
        with monkeypatch.context() as patched:
            patched.setattr(broker.store, "read", refuse)
            await until(lambda: bool(asked))
            assert broker.pop_log.in_flight("t", "g", 0) == 1
        again = await pop(client, pollTime=9_000)

        assert bodies(again) == ["0"]
        assert broker.pop_revival.revived == 1


async def test_messages_that_the_store_does_not_take_again_come_later(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: pops and acks are refused, nothing that was out is lost, and nobody gets it twice."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"01")
        (first, _) = handles(await pop(client, invisibleTime=300))

        def refuse(*_: Any, **_more: Any) -> None:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(broker.store, "append", refuse)
            refused = await ack(client, first)
            await until(lambda: broker.pop_log.points.next_due() is not None)
            append_failed = await pop(client, consumerGroup="h")
            assert broker.pop_log.in_flight("t", "g", 0) == 2
        found: list[str] = []
        while len(found) < 2:
            answer = await pop(client, pollTime=9_000)
            assert answer.code == 0
            found += bodies(answer)

        assert refused == append_failed.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert sorted(found) == ["0", "1"]
        assert broker.pop_revival.revived == 2


async def test_a_topic_that_was_deleted_and_made_again_begins_from_the_start(setup: Setup) -> None:
    """Check points from before give out nothing that was not popped with them, also after a restart."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"012")
        await pop(client, invisibleTime=2_000)
        answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        assert answer.code == 0
        await client.create_topic("t")
        append(broker, *"34")
        first = await pop(client, maxMsgNums=1)

    async with running(setup) as broker, transaction_client(broker.port) as client:
        await until(lambda: broker.pop_log.is_known)
        second = await pop(client)
        await until(lambda: broker.pop_log.points.in_flight <= 2)

        assert (bodies(first), bodies(second)) == (["3"], ["4"])
        assert broker.pop_revival.revived == 0


async def test_who_waits_is_answered_when_the_broker_leads_no_more(setup: Setup) -> None:
    """At once, not at its deadline: clients then find who leads."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        waits = [asyncio.ensure_future(pop(client, pollTime=19_000)) for _ in range(3)]
        waits.append(asyncio.ensure_future(pop_in_order(client, "a", pollTime=19_000)))
        await until(lambda: len(broker.pop_requests.pops) == 4)

        async with asyncio.timeout(5):
            await broker.services.stop()
            answers = await asyncio.gather(*waits)

        assert {answer.code for answer in answers} == {ResponseCode.POLLING_TIMEOUT}


async def test_what_is_out_of_a_queue_that_the_topic_has_no_more_can_be_acked(setup: Setup) -> None:
    """The number of queues was reduced meanwhile."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0", queue_id=3)
        (handle,) = handles(await pop(client))
        config = broker.topics.get("t")
        assert config is not None
        broker.topics.put(replace(config, read_queue_nums=1, write_queue_nums=1))

        assert await ack(client, handle) == 0
        assert await ack(client, handle) == ResponseCode.MESSAGE_ILLEGAL


async def test_a_group_that_wants_what_is_new_gets_all_of_its_retry_topic(setup: Setup) -> None:
    """initMode 1 is about the topic: what is in the group's retry topic is the group's."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"0123")
        await pop(client, maxMsgNums=4, invisibleTime=100)
        await until(lambda: broker.pop_revival.revived == 4)

        again = await pop(client, initMode=1)

        assert sorted(bodies(again)) == list("0123")


async def test_each_queue_may_have_a_retry_queue_of_its_own(setup: Setup) -> None:
    """useSeparateRetryQueue: the retry topic has as many queues as the topic, and keeps their numbers."""
    async with (
        running(setup, use_separate_retry_queue=True) as broker,
        transaction_client(broker.port) as client,
    ):
        await prepare(broker, client)
        append(broker, "0", queue_id=2)
        await pop(client, invisibleTime=100)
        await until(lambda: broker.pop_revival.revived == 1)

        config, topic = broker.topics.get(RETRY), broker.topics.get("t")
        assert config is not None
        assert topic is not None
        assert config.read_queue_nums == topic.write_queue_nums > 2
        assert broker.store.queue_end(RETRY, 2) == 1
        assert bodies(await pop(client)) == ["0"]


async def go_back(broker: Broker, client: TransactionClient) -> list[Handle]:
    """Ten messages are out, the group goes back to the third, and pops two; the handles of the ten."""
    await prepare(broker, client, *"0123456789")
    found = handles(await pop(client, queueId=0))
    await broker.store.flush()
    broker.pop_log.commit_positions()
    broker.offsets.commit("g", "t", 0, 2)
    assert bodies(await pop(client, maxMsgNums=2, queueId=0)) == ["2", "3"]
    return found


async def lead_again(broker: Broker) -> None:
    """What is out is read from the log, as by a new master."""
    broker.pop_revival.stop()
    broker.pop_revival.start()
    await until(lambda: broker.pop_log.is_known)


@pytest.mark.parametrize("queues_before", [0, 5])
async def test_a_new_master_goes_on_where_a_group_is_that_went_back(setup: Setup, queues_before: int) -> None:
    """In whichever queues of the revive topic its pops are, before and after it went back; and what it got
    then is out, though the record of its going back has the same start and pop time."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        for _ in range(queues_before):
            broker.pop_log.next_revive_queue()
        await go_back(broker, client)

        await lead_again(broker)

        assert broker.pop_log.in_flight("t", "g", 0) == 12
        assert bodies(await pop(client, maxMsgNums=2, queueId=0)) == ["4", "5"]


@pytest.mark.parametrize(("by_timers", "code"), [(True, 0), (False, ResponseCode.MESSAGE_ILLEGAL)])
async def test_what_a_java_master_has_popped_can_be_acked_before_its_check_point_comes(
    setup: Setup, by_timers: bool, code: int
) -> None:
    """Its records come by way of timers; then the group's offset alone says that a message was popped. After
    a master of ours there would be a check point, so such a handle is of nobody."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"01")
        now = broker.clock.now_ms()
        known = Acks(topic="t", group="g", queue_id=0, start_offset=9, pop_time=5, broker="b", offsets=(9,))
        properties = revive_properties(known.tag, now)
        if by_timers:
            properties += encode_properties({Property.TIMER_ENQUEUE_MS: "5"})
        broker.store.append(
            broker.pop_log.topic, 0, known.encode(), properties, flag=0, sys_flag=0, born_timestamp=5,
            born_host=bytes(8),
        )  # fmt: skip
        broker.offsets.commit("g", "t", 0, 1)
        await lead_again(broker)
        assert broker.pop_log.java_popped is by_timers

        popped = Handle(0, now - 1_000, 60_000, 0, 0, "broker-a", 0, 0)  # before this mastership

        assert await ack(client, popped) == code
        assert await ack(client, replace(popped, queue_offset=1)) == ResponseCode.MESSAGE_ILLEGAL
        assert broker.pop_log.points.early_count == int(by_timers)
        assert bodies(await pop(client)) == ["1"]


async def test_changes_and_copies_of_older_pops_do_not_move_a_group_that_went_back(setup: Setup) -> None:
    """They come behind it in the log, with messages from before it."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        older = await go_back(broker, client)
        assert await change(client, older[9], 90_000) == 0
        points = broker.pop_log.points
        point = points.find(points.source("t", "g", 0), 0, older[0].pop_time)
        assert point is not None
        broker.pop_log.copy(point)

        await lead_again(broker)

        assert broker.pop_log.in_flight("t", "g", 0) == 12
        assert bodies(await pop(client, maxMsgNums=2, queueId=0)) == ["4", "5"]


@pytest.mark.parametrize("order", ["false", "true"])
async def test_a_pop_that_wants_little_takes_no_long_turn_of_the_loop(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """When its time is over, the first read in vain ends the turn; later turns find what is wanted."""
    monkeypatch.setattr("brokerset_broker.requests.pop.pops.READ_SECONDS", 0.0)
    monkeypatch.setattr("brokerset_broker.requests.pop.polls.TURN_SECONDS", -1.0)
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        for queue_id in range(4):
            append(broker, *["x"] * 1_000, queue_id=queue_id, tags="b")
        append(broker, "wanted", queue_id=2)
        get, in_turn, most, reads = broker.store.get, 0, 0, 0

        def turn_ends() -> None:
            nonlocal in_turn
            in_turn = 0

        def counted(*args: Any, **named: Any) -> GetResult:
            nonlocal in_turn, most, reads
            found = get(*args, **named)
            if found.status is GetStatus.NO_MATCHED_MESSAGE:
                if not in_turn:
                    asyncio.get_running_loop().call_soon(turn_ends)
                in_turn, reads = in_turn + 1, reads + 1
                most = max(most, in_turn)
            return found

        monkeypatch.setattr(broker.store, "get", counted)

        answer = await pop(client, exp="a", pollTime=9_000, order=order)

        assert bodies(answer) == ["wanted"]
        assert most == 1
        assert reads >= 2


async def test_an_error_that_nobody_expected_loses_no_message(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was about to be given out again is tried again later, and others meanwhile."""
    monkeypatch.setattr("brokerset_broker.services.pop.revive.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("brokerset_broker.services.pop.revive.FINAL_RETRY_SECONDS", 0.05)
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"01")
        store, failed = broker.store.append, 0

        def append_later(topic: str, *args: Any, **named: Any) -> Appended:
            nonlocal failed
            if topic == RETRY and failed < 2:
                failed += 1
                raise ValueError("something that nobody expected")
            return store(topic, *args, **named)

        monkeypatch.setattr(broker.store, "append", append_later)
        for _ in "01":
            await pop(client, maxMsgNums=1, invisibleTime=100)

        await until(lambda: broker.pop_revival.revived == 2)

        assert failed == 2


async def test_a_retry_topic_that_cannot_be_made_does_not_stop_revival(setup: Setup) -> None:
    """The broker has as many topics as it may have: that is no trouble of the store, for which all would
    wait; other groups get their messages again."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"0123")
        broker.groups.put(SubscriptionGroupConfig("other"))
        broker.topics.create_own("%RETRY%other_t")
        broker.topics.topics_max = len(broker.topics.items)
        revived = broker.pop_log.counts.revived
        for _ in range(2):
            await pop(client, maxMsgNums=1, invisibleTime=100)
        await until(lambda: sum(count for key, count in revived.items() if key[0] == "g") == 2)
        assert broker.pop_revival.waits_since is None
        await pop(client, consumerGroup="other", invisibleTime=100)

        await until(lambda: broker.pop_revival.revived == 4)

        assert broker.pop_log.in_flight("t", "g", 0) == 2


async def test_deleted_groups_and_topics_leave_nothing_in_memory(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither their queues nor their counts, when nothing of them is out; a group that comes back begins
    afresh, also with a new master."""
    monkeypatch.setattr("brokerset_broker.services.pop.forgetting.PAUSE_SECONDS", 0.0)
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, *"01")
        sources, counts = broker.pop_log.points.sources, broker.pop_log.counts
        (first, second) = handles(await pop(client, queueId=0))
        await ack(client, first)
        await ack(client, second)
        answer = await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset="true")
        assert answer.code == 0
        await until(lambda: not sources and not counts.stored)
        broker.groups.put(SubscriptionGroupConfig("g"))
        await lead_again(broker)
        again = await pop(client, queueId=0, invisibleTime=300)
        assert bodies(again) == ["0", "1"]

        assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0
        await until(lambda: not broker.pop_log.points.sources and not counts.stored)

        assert broker.pop_log.points.count == 0


async def test_a_pop_that_is_refused_halfway_keeps_no_messages(setup: Setup) -> None:
    """One queue was popped at the same place this millisecond: what was stored for the others comes back at
    once."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, "0")
        append(broker, "1", queue_id=1)
        now = broker.pop_log.leads_since_ms

        def popped(queue_id: int) -> Popped:
            return Popped(
                topic="t", group="g", queue_id=queue_id, start_offset=0, queue_offsets=(0,), next_offset=1,
                pop_time=now, invisible_ms=60_000, revive_queue=1, broker="broker-a",
            )  # fmt: skip

        broker.pop_log.pop([popped(0)])
        with pytest.raises(Rejected, match="popped at the same place"):
            broker.pop_log.pop([popped(1), popped(0)])

        assert bodies(await pop(client, pollTime=9_000)) == ["1"]
        assert broker.pop_log.in_flight("t", "g", 0) == 1


async def test_changed_invisible_times_have_a_limit_too(setup: Setup) -> None:
    """Twice that of pops: a change that needs one more check point is refused, one that replaces its own is
    not; what is refused is with its consumer still."""
    async with (
        running(setup, pop_check_points_max=1) as broker,
        transaction_client(broker.port) as client,
    ):
        await prepare(broker, client, *"0123")
        found = handles(await pop(client))
        assert await change(client, found[0], 60_000) == 0
        assert broker.pop_log.points.count == 2

        assert await change(client, found[1], 60_000) == ResponseCode.SYSTEM_BUSY
        assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT

        assert [await ack(client, found[number]) for number in (1, 2)] == [0, 0]
        assert await change(client, found[3], 60_000) == 0
        assert broker.pop_log.points.count == 2
