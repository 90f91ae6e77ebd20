"""The push consumer against brokers that restart, redirect, move offsets, refuse, and take locks away."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from brokerset_client import (
    ConsumeFromWhere,
    ConsumeStatus,
    Later,
    MessageModel,
    MessageQueue,
    MessageView,
    PushConsumer,
    PushSettings,
    RequestRefused,
    Verdict,
    WindowLimits,
)
from brokerset_formats.properties import encode_properties
from brokerset_protocol import headers
from brokerset_protocol.bodies.connections import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from brokerset_protocol.bodies.heartbeat import HeartbeatData
from brokerset_protocol.bodies.queues import GetConsumerStatusBody, ResetOffsetBody
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.waiting import until

from .fake_broker import FakeBroker, FakeCluster, answer, bodies, properties_of, refuse

PULL = RequestCode.PULL_MESSAGE
QUICK = PushSettings(commit_seconds=0.05, rebalance_seconds=0.5, lock_seconds=0.1, lock_valid_seconds=1.0)


class Recorder:
    """A listener that remembers what it got, and answers as told."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.got: list[MessageView] = []
        self.verdicts = list(verdicts)

    async def __call__(self, message: MessageView) -> Verdict:
        self.got.append(message)
        return self.verdicts.pop(0) if self.verdicts else ConsumeStatus.SUCCESS

    def has(self, count: int) -> bool:
        """Whether it got so many messages."""
        return len(self.got) == count

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


def consumer(cluster: FakeCluster, listener: Recorder, **options: object) -> PushConsumer:
    options = {
        "settings": QUICK,
        "consume_from": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        **options,
    }
    made = PushConsumer("g", namesrv=cluster.namesrv, listener=listener, **options)  # type: ignore[arg-type]  # test options
    made.subscribe("t")
    return made


async def one_broker(cluster: FakeCluster, queues: int = 2, messages: int = 0) -> FakeBroker:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": queues}
    for number in range(messages):
        broker.put("t", number % queues, b"%d" % number)
    return broker


async def test_everything_is_consumed_once_and_offsets_are_stored(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=2, messages=100)
    listener = Recorder()

    async with consumer(cluster, listener):
        await until(lambda: len(listener.got) >= 100)

    assert sorted(listener.bodies) == sorted(b"%d" % n for n in range(100))
    assert broker.offsets["g", "t", 0] == broker.offsets["g", "t", 1] == 50


@pytest.mark.parametrize(
    ("where", "first"),
    [
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, b"0"),
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, b"new"),
    ],
)
async def test_a_new_group_starts_where_it_is_told(
    cluster: FakeCluster, where: ConsumeFromWhere, first: bytes
) -> None:
    broker = await one_broker(cluster, queues=1, messages=3)
    listener = Recorder()
    async with consumer(cluster, listener, consume_from=where) as member:
        await member.wait_assigned()
        await until(lambda: bool(broker.seen(PULL)))

        broker.put("t", 0, b"new")
        await until(lambda: b"new" in listener.bodies)

    assert listener.bodies[0] == first


@pytest.mark.parametrize(
    ("where", "first"),
    [
        (None, b"0"),
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, b"0"),
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, b"new"),
    ],
)
async def test_in_a_young_queue_a_wish_where_to_begin_goes_before_the_brokers_rule(
    cluster: FakeCluster, where: ConsumeFromWhere | None, first: bytes
) -> None:
    """Without a wish the rule holds that users of RocketMQ rely on: nothing of a young topic is missed."""

    broker = await one_broker(cluster, queues=1, messages=3)
    broker.is_young = True
    listener = Recorder()
    async with consumer(cluster, listener, consume_from=where) as member:
        await member.wait_assigned()
        await until(lambda: bool(broker.seen(PULL)))

        broker.put("t", 0, b"new")
        await until(lambda: b"new" in listener.bodies)

    assert listener.bodies[0] == first


async def test_a_wish_to_begin_at_the_end_skips_nothing_of_queues_that_come_later(
    cluster: FakeCluster,
) -> None:
    """They may have messages before the consumer hears of them."""

    broker = await one_broker(cluster, queues=1, messages=3)
    broker.is_young = True
    listener = Recorder()
    latest = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    async with consumer(cluster, listener, consume_from=latest) as member:
        await member.wait_assigned()

        broker.put("t", 1, b"in a new queue")
        cluster.topics["t"] = {"a": 2}
        member.instance.refresh_soon("t")
        await until(lambda: bool(listener.got))

    assert listener.bodies == [b"in a new queue"]


async def test_redeliveries_that_came_before_their_queue_was_taken_are_not_skipped(
    cluster: FakeCluster,
) -> None:
    """Also not by a group that begins at a time, as with Java."""

    broker = await one_broker(cluster, queues=1)
    broker.put("%RETRY%g", 0, b"again")
    listener = Recorder()
    at_a_time = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    broker.script(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, answer(offset="0"))
    async with consumer(cluster, listener, consume_from=at_a_time):
        await until(lambda: bool(listener.got))

    assert listener.bodies == [b"again"]


async def test_a_group_goes_on_where_it_was(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=5)
    broker.offsets["g", "t", 0] = 3
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: len(listener.got) >= 2)

    assert listener.bodies == [b"3", b"4"]


async def test_only_what_is_below_the_lowest_unfinished_is_stored(cluster: FakeCluster) -> None:
    """A message that takes long holds the offset back, whatever is finished behind it."""

    broker = await one_broker(cluster, queues=1, messages=10)
    go = asyncio.Event()
    finished: list[bytes] = []

    async def listen(message: MessageView) -> None:
        if message.body == b"4":
            await go.wait()
        finished.append(message.body)

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listen,
        settings=QUICK,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: len(finished) == 9)
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 4)
        go.set()
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 10)


async def test_fetching_pauses_at_the_limits_of_a_queue(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=200)
    go = asyncio.Event()
    listener = Recorder()

    async def listen(message: MessageView) -> None:
        await go.wait()
        await listener(message)

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listen,
        settings=PushSettings(queue_limits=WindowLimits(messages_max=64), workers=2),
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: len(broker.seen(PULL)) >= 3)
        await asyncio.sleep(0.1)  # time for a pull too many
        pulls = [command for command in broker.seen(PULL) if command.ext["topic"] == "t"]
        assert len(pulls) == 2
        go.set()
        await until(lambda: len(listener.got) == 200)


async def test_a_batch_listener_gets_messages_of_one_queue_together(cluster: FakeCluster) -> None:
    await one_broker(cluster, queues=2, messages=100)
    batches: list[list[MessageView]] = []

    async def listen(messages: object) -> None:
        assert isinstance(messages, list)
        batches.append(messages)

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        batch_listener=listen,
        settings=PushSettings(batch_max=10),
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: sum(map(len, batches)) == 100)

    assert max(map(len, batches)) == 10
    assert all(len({message.queue_id for message in batch}) == 1 for batch in batches)


async def test_tags_are_filtered_by_name_because_brokers_compare_hashes(cluster: FakeCluster) -> None:
    """`Aa` and `BB` have one hash: the broker gives both, the listener gets what was subscribed."""

    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    for tag in ("Aa", "BB", "Aa"):
        broker.put("t", 0, tag.encode(), encode_properties({"TAGS": tag}))
    listener = Recorder()
    member = consumer(cluster, listener)
    member.subscribe("t", "Aa || C")
    async with member:
        await until(lambda: len(listener.got) == 2)
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 3)

    assert listener.bodies == [b"Aa", b"Aa"]
    heartbeat = HeartbeatData.from_json(broker.seen(RequestCode.HEART_BEAT)[-1].body)
    subscription = next(
        data for data in heartbeat.consumer_data_set[0].subscription_data_set if data.topic == "t"
    )
    assert subscription.tags_set == {"Aa", "C"}


async def test_pulls_go_where_the_broker_suggests_and_carry_no_offset_there(cluster: FakeCluster) -> None:
    """A slave that serves pulls must not store offsets: the master does."""

    master = await one_broker(cluster, queues=1, messages=1)
    slave = await cluster.add_broker("a", 1)
    master.suggest_broker_id = slave.suggest_broker_id = 1
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: bool(slave.seen(PULL)))
        slave.put("t", 0, b"from the slave")
        await until(lambda: b"from the slave" in listener.bodies)

    assert all(int(command.ext["sysFlag"]) & 1 == 0 for command in slave.seen(PULL))
    assert not slave.seen(RequestCode.UPDATE_CONSUMER_OFFSET)


async def test_two_members_share_the_queues_and_the_last_one_gets_all(cluster: FakeCluster) -> None:
    """The broker tells about joining and leaving, so that nobody waits for the regular turn."""

    await one_broker(cluster, queues=4)
    slow = PushSettings(rebalance_seconds=60.0)
    first, second = (consumer(cluster, Recorder(), settings=slow) for _ in range(2))

    def counts() -> list[int]:
        return [sum(queue.topic == "t" for queue in member.assigned) for member in (first, second)]

    async with first:
        await until(lambda: counts() == [4, 0])
        async with second:
            await until(lambda: counts() == [2, 2])
            assert not set(first.assigned) & set(second.assigned)
        await until(lambda: counts() == [4, 0])


async def test_a_failed_message_goes_back_to_its_broker(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=2)
    listener = Recorder(Later(delay_level=2), ConsumeStatus.RECONSUME_LATER)
    async with consumer(cluster, listener):
        await until(lambda: len(broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2)
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 2)

    backs = [
        headers.ConsumerSendMsgBack.from_ext(command.ext)
        for command in broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
    ]
    assert sorted((back.offset, back.delay_level) for back in backs) == [(0, 2), (1000, 0)]
    assert {(back.group, back.origin_topic, back.max_reconsume_times) for back in backs} == {("g", "t", 16)}


async def test_a_message_that_is_not_taken_back_is_sent_anew(cluster: FakeCluster) -> None:
    """The copy counts the failure and names its topic, as the broker would have done it."""

    broker = await one_broker(cluster, queues=1, messages=1)
    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, refuse(ResponseCode.SYSTEM_ERROR))
    listener = Recorder(ConsumeStatus.RECONSUME_LATER)
    async with consumer(cluster, listener):
        await until(lambda: bool(broker.seen(RequestCode.SEND_MESSAGE_V2)))
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 1)

    (copy,) = broker.seen(RequestCode.SEND_MESSAGE_V2)
    assert (copy.ext["b"], copy.ext["j"], copy.ext["l"]) == ("%RETRY%g", "1", "16")
    properties = properties_of(copy)
    assert (properties["RETRY_TOPIC"], properties["DELAY"]) == ("t", "3")
    assert properties["ORIGIN_MESSAGE_ID"] == listener.got[0].offset_message_id
    assert "RECONSUME_TIME" not in properties
    assert bodies(broker, "%RETRY%g") == [b"0"]


async def test_a_message_that_nobody_takes_back_is_tried_again_here(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=1)
    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, refuse(ResponseCode.NO_PERMISSION))
    broker.script(RequestCode.SEND_MESSAGE_V2, refuse(ResponseCode.MESSAGE_ILLEGAL))
    listener = Recorder(ConsumeStatus.RECONSUME_LATER)
    settings = PushSettings(commit_seconds=0.05, retry_locally_seconds=0.05)
    async with consumer(cluster, listener, settings=settings):
        await until(lambda: len(listener.got) == 2)
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 1)

    assert listener.got[1].reconsume_times == 1


async def test_an_exception_in_the_listener_counts_as_failure(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=1)

    async def listen(_: MessageView) -> None:
        raise RuntimeError("no database")

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listen,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: bool(broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)))


async def test_a_listener_that_takes_too_long_counts_as_failure(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=1)

    async def listen(_: MessageView) -> None:
        await asyncio.Event().wait()

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listen,
        settings=PushSettings(listener_timeout=0.05),
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: bool(broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)))


async def test_a_redelivered_message_shows_its_own_topic(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1)
    broker.put("%RETRY%g", 0, b"again", encode_properties({"RETRY_TOPIC": "t"}), reconsume_times=1)
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: len(listener.got) == 1)

    (message,) = listener.got
    assert (message.topic, message.stored_topic, message.reconsume_times) == ("t", "%RETRY%g", 1)


async def test_an_offset_that_the_broker_moves_is_followed_and_stored(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=5)
    broker.offsets["g", "t", 0] = 9
    broker.moved_to = 3
    listener = Recorder()
    member = consumer(cluster, listener)
    cluster.topics["%RETRY%g"] = {}  # its pulls would take the scripted answer
    async with member:
        await until(lambda: listener.bodies == [b"3", b"4"])

    assert broker.offsets["g", "t", 0] == 5


async def test_a_restarted_broker_gets_a_heartbeat_and_consuming_goes_on(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=1)
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: len(listener.got) == 1)
        await broker.stop()
        broker.members.clear()
        await broker.start()

        broker.put("t", 0, b"after")
        await until(lambda: len(listener.got) == 2)
        await until(lambda: bool(broker.members.get("g")))

    assert listener.bodies == [b"0", b"after"]


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
async def test_a_broker_that_does_not_know_us_gets_a_heartbeat_at_once(
    cluster: FakeCluster, code: int
) -> None:
    broker = await one_broker(cluster, queues=1, messages=1)
    broker.script(PULL, refuse(code))
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: len(listener.got) == 1)
        await until(lambda: len(broker.seen(RequestCode.HEART_BEAT)) >= 2)


async def test_a_topic_may_be_created_after_the_consumer_started(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: cluster.asked["t"] >= 2)
        cluster.topics["t"] = {"a": 1}
        broker.put("t", 0, b"x")
        await until(lambda: listener.bodies == [b"x"])


async def test_subscribing_and_unsubscribing_while_it_runs(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1)
    cluster.topics["u"] = {"a": 1}
    broker.put("u", 0, b"of u")
    listener = Recorder()
    async with consumer(cluster, listener) as member:
        await until(lambda: {queue.topic for queue in member.assigned} == {"t", "%RETRY%g"})
        member.subscribe("u")
        await until(lambda: listener.bodies == [b"of u"])
        member.unsubscribe("t")
        await until(lambda: {queue.topic for queue in member.assigned} == {"u", "%RETRY%g"})


# -- closing ------------------------------------------------------------------------------------------------


async def test_closing_lets_the_running_listener_finish_and_stores_its_offset(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=3)
    started, go = asyncio.Event(), asyncio.Event()
    finished: list[bytes] = []

    async def listen(message: MessageView) -> None:
        started.set()
        await go.wait()
        finished.append(message.body)

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listen,
        settings=PushSettings(workers=1),
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    await member.start()
    await started.wait()
    closing = asyncio.create_task(member.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    go.set()
    await closing

    assert finished == [b"0"]
    assert broker.offsets["g", "t", 0] == 1
    assert not broker.members["g"]


async def test_closing_cancels_a_listener_that_never_ends(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=1)
    started = asyncio.Event()

    async def listen(_: MessageView) -> None:
        started.set()
        await asyncio.Event().wait()

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listen,
        settings=PushSettings(close_timeout=0.05),
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    async with member:
        await started.wait()

    assert broker.offsets.get(("g", "t", 0), 0) == 0


# -- orderly ------------------------------------------------------------------------------------------------


async def test_orderly_messages_come_in_order_and_a_failed_one_comes_again_first(
    cluster: FakeCluster,
) -> None:
    broker = await one_broker(cluster, queues=2, messages=40)
    listener = Recorder()
    failed: set[bytes] = set()

    async def listen(message: MessageView) -> Verdict:
        if message.body.endswith(b"5") and message.body not in failed:
            failed.add(message.body)
            return Later(suspend_ms=10)
        return await listener(message)

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listen,
        orderly=True,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: len(listener.got) == 40)

    for queue_id in range(2):
        mine = [int(message.body) for message in listener.got if message.queue_id == queue_id]
        assert mine == list(range(queue_id, 40, 2))
    assert len(failed) == 4
    assert not broker.locks
    assert broker.offsets["g", "t", 0] == broker.offsets["g", "t", 1] == 20


async def test_orderly_messages_that_failed_too_often_are_sent_to_the_dead_letters(
    cluster: FakeCluster,
) -> None:
    broker = await one_broker(cluster, queues=1, messages=2)
    listener = Recorder(*[Later(suspend_ms=10)] * 3)
    settings = PushSettings(max_reconsume_times=2)
    async with consumer(cluster, listener, orderly=True, settings=settings):
        await until(lambda: b"1" in listener.bodies)

    # The copy in the retry topic stands for what a real broker would have put to the dead letters.
    assert [m.body for m in listener.got if m.stored_topic == "t"] == [b"0", b"0", b"0", b"1"]
    (copy,) = broker.seen(RequestCode.SEND_MESSAGE_V2)
    assert (copy.ext["b"], copy.ext["j"], copy.ext["l"]) == ("%RETRY%g", "2", "2")


async def test_a_lost_lock_stops_the_queue_until_it_is_won_again(cluster: FakeCluster) -> None:
    """Whoever had the lock meanwhile may have gone on, so we go on at the offset that it stored."""

    broker = await one_broker(cluster, queues=1, messages=2)
    queue = MessageQueue("t", "a", 0)
    listener = Recorder()
    async with consumer(cluster, listener, orderly=True) as member:
        await until(lambda: len(listener.got) == 2)
        broker.locks["g", queue] = "somebody else"
        await until(lambda: queue not in member.assigned)
        for number in range(2, 6):
            broker.put("t", 0, b"%d" % number)
        await asyncio.sleep(0.1)  # time for a message too many
        assert len(listener.got) == 2

        broker.offsets["g", "t", 0] = 4
        del broker.locks["g", queue]
        await until(lambda: len(listener.got) == 4)

    assert listener.bodies == [b"0", b"1", b"4", b"5"]


async def test_a_lock_that_cannot_be_renewed_expires(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=1)
    listener = Recorder()
    settings = PushSettings(lock_seconds=0.05, lock_valid_seconds=0.2)
    async with consumer(cluster, listener, orderly=True, settings=settings):
        await until(lambda: len(listener.got) == 1)
        broker.script(RequestCode.LOCK_BATCH_MQ, *[refuse(ResponseCode.SYSTEM_ERROR)] * 3)
        await asyncio.sleep(0.3)
        renewals = len(broker.seen(RequestCode.LOCK_BATCH_MQ))

        broker.put("t", 0, b"late")
        await until(lambda: listener.bodies[-1] == b"late")

    assert len(broker.seen(RequestCode.LOCK_BATCH_MQ)) > renewals


async def test_an_orderly_queue_changes_hands_only_when_its_message_is_done(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=2, messages=2)
    started, go = asyncio.Event(), asyncio.Event()
    order: list[tuple[str, bytes]] = []

    async def slow(message: MessageView) -> None:
        if message.queue_id == 1:
            started.set()
            await go.wait()
        order.append(("first", message.body))

    async def quick(message: MessageView) -> None:
        order.append(("second", message.body))

    members = [
        PushConsumer(
            "g",
            namesrv=cluster.namesrv,
            listener=listener,
            orderly=True,
            settings=QUICK,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        for listener in (slow, quick)
    ]
    for member in members:
        member.subscribe("t")
    async with members[0]:
        await started.wait()
        # The other member sorts behind the first, so that queue 1 goes to it.
        members[1].instance.client_id = members[0].instance.client_id + "z"
        async with members[1]:
            broker.put("t", 1, b"next")
            await until(lambda: len(members[0].assigned) == 2)
            assert ("second", b"next") not in order
            go.set()
            await until(lambda: ("second", b"next") in order)

    assert order.index(("first", b"1")) < order.index(("second", b"next"))
    assert order.count(("second", b"1")) == 0


# -- broadcasting
# ---------------------------------------------------------------------------------------------


async def test_broadcasting_members_get_everything_and_keep_their_own_offsets(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    broker = await one_broker(cluster, queues=2, messages=10)
    settings = PushSettings(offsets_folder=tmp_path, commit_seconds=0.05)
    listeners = [Recorder(ConsumeStatus.RECONSUME_LATER), Recorder()]
    members = [
        consumer(cluster, listener, model=MessageModel.BROADCASTING, settings=settings)
        for listener in listeners
    ]
    for number, member in enumerate(members):
        member.instance.client_id = f"member@{number}"
    async with members[0], members[1]:
        await until(lambda: all(len(listener.got) == 10 for listener in listeners))
    again = Recorder()
    member = consumer(cluster, again, model=MessageModel.BROADCASTING, settings=settings)
    member.instance.client_id = "member@0"
    async with member:
        await until(lambda: len(member.assigned) == 2)
        broker.put("t", 0, b"new")
        await until(lambda: bool(again.got))

    assert again.bodies == [b"new"]
    assert not broker.offsets
    assert not broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
    text = (tmp_path / "member@1" / "g" / "offsets.json").read_text()
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)  # Java's form has objects as keys
    stored = ResetOffsetBody.from_json(text.encode()).offset_table
    assert stored == {MessageQueue("t", "a", 0): 5, MessageQueue("t", "a", 1): 5}


# -- what brokers ask ---------------------------------------------------------------------------------------


async def ask(broker: FakeBroker, code: RequestCode, header: headers.Header, body: bytes = b"") -> Command:
    (connection,) = broker.members["g"].values()
    return await connection.call(Command(code, header.to_ext(), body), 5.0)


async def test_an_administrator_can_move_a_running_consumer(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=5)
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 5)
        body = ResetOffsetBody({MessageQueue("t", "a", 0): 3}).to_json()
        header = headers.ResetOffset(group="g", topic="t", timestamp=0)
        answer = await ask(broker, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
        assert answer.code == 0
        await until(lambda: len(listener.got) == 7)

    assert listener.bodies[5:] == [b"3", b"4"]


async def test_a_running_consumer_tells_its_state(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, queues=1, messages=5)
    listener = Recorder()
    async with consumer(cluster, listener) as member:
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 5)
        client_id = member.instance.client_id
        status = await ask(
            broker,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            headers.GetConsumerStatus(topic="t", group="g"),
        )
        info = await ask(
            broker,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            headers.GetConsumerRunningInfo(consumer_group="g", client_id=client_id),
        )
        unknown = await ask(
            broker,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            headers.GetConsumerRunningInfo(consumer_group="h", client_id=client_id),
        )

    assert GetConsumerStatusBody.from_json(status.body).message_queue_table == {MessageQueue("t", "a", 0): 5}
    state = ConsumerRunningInfo.from_json(info.body)
    assert state.mq_table[MessageQueue("t", "a", 0)].commit_offset == 5
    assert state.properties["PROP_CONSUMEORDERLY"] == "false"
    assert {data.topic for data in state.subscription_set} == {"t", "%RETRY%g"}
    assert unknown.code == ResponseCode.SYSTEM_ERROR
    assert "<h> not exist" in str(unknown.remark)


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (ConsumeStatus.SUCCESS, ConsumeResult.CR_SUCCESS),
        (ConsumeStatus.RECONSUME_LATER, ConsumeResult.CR_LATER),
    ],
)
async def test_a_message_can_be_consumed_directly(
    cluster: FakeCluster, verdict: Verdict, result: ConsumeResult
) -> None:
    broker = await one_broker(cluster, queues=1)
    listener = Recorder(verdict)
    async with consumer(cluster, listener):
        broker.put("elsewhere", 0, b"direct")
        answer = await ask(
            broker,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            headers.ConsumeMessageDirectlyResult(consumer_group="g", broker_name="a"),
            broker.log["elsewhere", 0][0],
        )

    assert ConsumeMessageDirectlyResult.from_json(answer.body).consume_result is result
    assert listener.bodies == [b"direct"]


async def test_a_listener_that_fails_with_a_direct_message_says_why(cluster: FakeCluster) -> None:
    """The administrator gets the exception, as from Java's clients; a damaged message reaches no listener."""
    broker = await one_broker(cluster, queues=1)
    asked: list[bytes] = []

    async def listener(message: MessageView) -> None:
        asked.append(message.body)
        raise LookupError("no such order")

    header = headers.ConsumeMessageDirectlyResult(consumer_group="g", broker_name="a")
    async with PushConsumer("g", namesrv=cluster.namesrv, listener=listener, settings=QUICK) as member:
        member.subscribe("t")
        await member.wait_assigned()
        broker.put("elsewhere", 0, b"direct")
        good = broker.log["elsewhere", 0][0]
        answer = await ask(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, good)
        damaged = [
            await ask(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, bad)
            for bad in (b"", good[:40], good[:-1], b"x" * 200)
        ]

    result = ConsumeMessageDirectlyResult.from_json(answer.body)
    assert result.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert result.remark == "LookupError: no such order"
    assert {refused.code for refused in damaged} == {ResponseCode.SYSTEM_ERROR}
    assert asked == [b"direct"]


async def test_running_info_has_rates_and_what_the_tasks_do(cluster: FakeCluster) -> None:
    """Of each topic what was pulled, done and failed; with the flag of a jstack the place of every task."""
    broker = await one_broker(cluster, queues=1, messages=6)
    listener = Recorder(ConsumeStatus.RECONSUME_LATER)
    async with consumer(cluster, listener) as member:
        await until(lambda: len(listener.got) == 6)
        await until(lambda: member.listener.failed + member.listener.succeeded == 6)
        header = headers.GetConsumerRunningInfo(
            consumer_group="g", client_id=member.instance.client_id, jstack_enable=True
        )
        info = await ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, header)

    state = ConsumerRunningInfo.from_json(info.body)
    rates = state.status_table["t"]
    assert rates.consume_failed_msgs == 1
    assert rates.consume_ok_tps == pytest.approx(5 / 60)
    assert rates.consume_failed_tps == pytest.approx(1 / 60)
    assert rates.pull_tps == pytest.approx(6 / 60)
    assert state.jstack is not None
    assert "fetch t/0" in state.jstack
    assert "thread MainThread" in state.jstack


async def test_offsets_in_the_form_for_cpp_are_read_too(cluster: FakeCluster) -> None:
    """Java's brokers send it to all clients when the administrator's tool is in C++."""
    broker = await one_broker(cluster, queues=1, messages=5)
    listener = Recorder()
    async with consumer(cluster, listener):
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 5)
        body = b'{"offsetTable":[{"topic":"t","brokerName":"a","queueId":0,"offset":4}]}'
        header = headers.ResetOffset(group="g", topic="t", timestamp=0)
        answer = await ask(broker, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
        assert answer.code == 0
        await until(lambda: len(listener.got) == 6)
        bad = [
            await ask(broker, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
            for body in (b"", b"{", b"[]", b'{"offsetTable":[1]}', b'{"offsetTable":{"x":1}}')
        ]

    assert listener.bodies[5:] == [b"4"]
    assert {refused.code for refused in bad} == {ResponseCode.SYSTEM_ERROR}


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_suspended_consumer_gets_nothing_until_it_is_resumed(
    cluster: FakeCluster, orderly: bool
) -> None:
    """It keeps its queues, and what it had fetched comes first; nothing is lost or doubled."""
    broker = await one_broker(cluster, queues=2, messages=40)
    listener = Recorder()
    member = consumer(cluster, listener, orderly=orderly)
    await member.suspend()
    async with member:
        await member.wait_assigned()
        member.resume()
        await until(lambda: len(listener.got) >= 10)
        await member.suspend()
        assert member.suspended
        seen = len(listener.got)
        for number in range(40, 60):
            broker.put("t", number % 2, b"%d" % number)
        info = await ask(
            broker,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            headers.GetConsumerRunningInfo(consumer_group="g", client_id=member.instance.client_id),
        )
        assert ConsumerRunningInfo.from_json(info.body).properties["suspended"] == "true"
        assert len(member.assigned) >= 2
        assert len(listener.got) == seen

        member.resume()
        await until(lambda: len(listener.got) >= 60)

    assert sorted(listener.bodies, key=int) == [b"%d" % number for number in range(60)]
    if orderly:
        for queue in range(2):
            mine = [int(body) for body in listener.bodies if int(body) % 2 == queue]
            assert mine == sorted(mine)


async def test_an_orderly_consumer_that_fails_can_be_suspended_and_moved_on(cluster: FakeCluster) -> None:
    """Its message is not tried again meanwhile; a reset takes it past that message, and it goes on."""
    broker = await one_broker(cluster, queues=1, messages=3)
    listener = Recorder(*[Later(suspend_ms=10)] * 1000)
    async with consumer(cluster, listener, orderly=True) as member:
        await until(lambda: len(listener.got) > 2)
        await member.suspend()
        tries = len(listener.got)
        listener.verdicts = []
        body = ResetOffsetBody({MessageQueue("t", "a", 0): 1}).to_json()
        header = headers.ResetOffset(group="g", topic="t", timestamp=0)
        assert (await ask(broker, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)).code == 0
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 1)
        assert len(listener.got) == tries

        member.resume()
        await until(lambda: b"2" in listener.bodies)

    assert listener.bodies[tries:] == [b"1", b"2"]


async def test_a_suspended_consumer_can_be_closed(cluster: FakeCluster) -> None:
    """What it had fetched and not handed out comes to the next one."""
    await one_broker(cluster, queues=1, messages=20)
    member = consumer(cluster, Recorder())
    async with member:
        await member.wait_assigned()
        await member.suspend()
    again = Recorder()
    first = member.listener.succeeded
    async with consumer(cluster, again):
        await until(lambda: first + len(again.got) >= 20)

    assert first + len(again.got) == 20


async def test_whoever_suspends_waits_no_more_when_somebody_resumes(cluster: FakeCluster) -> None:
    """The listener runs on then, and with several workers it may never stand still again."""
    await one_broker(cluster, queues=1, messages=1)
    gate, entered = asyncio.Event(), asyncio.Event()

    async def slow(_: MessageView) -> None:
        entered.set()
        await gate.wait()

    member = PushConsumer(
        "g", namesrv=cluster.namesrv, listener=slow, settings=QUICK,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )  # fmt: skip
    member.subscribe("t")
    async with member:
        await entered.wait()
        suspending = asyncio.create_task(member.suspend())
        await until(lambda: member.suspended)
        assert not suspending.done()
        member.resume()
        async with asyncio.timeout(5.0):
            await suspending
        gate.set()


async def test_a_listener_can_suspend_its_own_consumer(cluster: FakeCluster) -> None:
    """It does not wait for its own end."""
    await one_broker(cluster, queues=1, messages=5)
    got: list[bytes] = []

    async def listener(message: MessageView) -> None:
        got.append(message.body)
        await member.suspend()

    member = PushConsumer(
        "g", namesrv=cluster.namesrv, listener=listener, settings=PushSettings(workers=1),
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )  # fmt: skip
    member.subscribe("t")
    async with member:
        await until(lambda: member.suspended and member.listener.succeeded == 1)
        member.resume()
        await until(lambda: member.listener.succeeded == 2)

    assert got == [b"0", b"1"]


async def test_one_instance_has_one_consumer_of_a_group(cluster: FakeCluster) -> None:
    await one_broker(cluster)
    async with consumer(cluster, Recorder()) as member:
        twin = PushConsumer("g", instance=member.instance, listener=Recorder())
        with pytest.raises(ValueError, match="instance of its own"):
            await twin.start()
        assert member.instance.members["g"] is member


async def test_a_broker_that_cannot_filter_by_sql_says_so_at_start(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster)
    broker.script(RequestCode.CHECK_CLIENT_CONFIG, refuse(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "i >"))
    member = consumer(cluster, Recorder())
    member.subscribe("t", "i > ", expression_type="SQL92")

    with pytest.raises(RequestRefused, match="i >"):
        await member.start()


async def test_a_listener_that_awaits_something_cancelled_has_failed_and_others_go_on(
    cluster: FakeCluster,
) -> None:
    """Nobody cancelled the consumer: its worker must live."""

    broker = await one_broker(cluster, queues=1, messages=3)
    seen: list[bytes] = []

    async def listener(message: MessageView) -> None:
        seen.append(message.body)
        if message.body == b"0":
            lost = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost

    settings = PushSettings(workers=1, commit_seconds=0.05)
    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listener,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        settings=settings,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: len(seen) == 3)

    assert len(broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
    assert broker.offsets["g", "t", 0] == 3


async def test_an_orderly_queue_that_is_moved_waits_for_the_message_that_runs(cluster: FakeCluster) -> None:
    """Two listeners must never handle one queue side by side, also not both in this process."""

    broker = await one_broker(cluster, queues=1, messages=3)
    gate = asyncio.Event()
    running = most = 0
    seen: list[bytes] = []

    async def listener(message: MessageView) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append(message.body)
        if message.body == b"0":
            await gate.wait()
        running -= 1

    member = PushConsumer(
        "g",
        namesrv=cluster.namesrv,
        listener=listener,
        orderly=True,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        settings=QUICK,
    )
    member.subscribe("t")
    async with member:
        await until(lambda: seen == [b"0"])

        member.reset_offsets("t", {MessageQueue("t", "a", 0): 1})
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 1)
        await asyncio.sleep(0.1)
        assert seen == [b"0"]
        gate.set()
        await until(lambda: len(seen) == 3)

    assert most == 1
    assert seen == [b"0", b"1", b"2"]


async def test_orderly_queues_are_taken_though_another_broker_cannot_lock(cluster: FakeCluster) -> None:
    first, second = await cluster.add_broker("a"), await cluster.add_broker("b")
    cluster.topics["t"] = {"a": 1, "b": 1}
    first.put("t", 0, b"from a")
    second.put("t", 0, b"from b")
    first.script(RequestCode.LOCK_BATCH_MQ, *[refuse(1)] * 1000)
    listener = Recorder()
    async with consumer(cluster, listener, orderly=True):
        await until(lambda: bool(listener.got))

    assert listener.bodies == [b"from b"]


async def test_messages_that_a_broker_sends_twice_are_handled_once(cluster: FakeCluster) -> None:
    """A pull may bring messages that come before those that were asked for."""

    broker = await one_broker(cluster, queues=1, messages=3)
    listener = Recorder()

    async with consumer(cluster, listener):
        await until(lambda: len(listener.got) == 3)
        # Else the pull of the retry topic may get the answer that is for the other one.
        await until(lambda: {"t", "%RETRY%g"} <= {pull.ext["topic"] for pull in broker.seen(PULL)})
        old = b"".join(broker.log["t", 0])
        page = headers.PullMessageResponse(
            suggest_which_broker_id=0, next_begin_offset=3, min_offset=0, max_offset=3
        ).to_ext()
        broker.script(PULL, answer(old, **page))
        broker.put("t", 0, b"3")
        await until(lambda: not broker.scripts[PULL])
        broker.put("t", 0, b"4")
        await until(lambda: len(listener.got) == 5)

    assert listener.bodies == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_queue_whose_offset_cannot_be_stored_is_let_go_nevertheless(cluster: FakeCluster) -> None:
    """Its lock is given back, and the room that its messages took."""

    broker = await one_broker(cluster, queues=1, messages=1)
    listener = Recorder()
    async with consumer(cluster, listener, orderly=True) as member:
        await until(lambda: bool(listener.got))
        broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, *[refuse(1)] * 1000)

        member.unsubscribe("t")
        await until(lambda: bool(broker.seen(RequestCode.UNLOCK_BATCH_MQ)))


async def test_offsets_are_stored_at_close_by_the_master_that_is_elected_meanwhile(
    cluster: FakeCluster,
) -> None:
    """The old master is dead, its slave refuses until it is elected: the group gets no message again."""
    old = await one_broker(cluster, queues=1, messages=10)
    new = await cluster.add_broker(broker_id=1)
    listener = Recorder()
    settings = PushSettings(commit_seconds=60.0, rebalance_seconds=0.5)
    member = consumer(cluster, listener, settings=settings)
    await member.start()
    await until(lambda: len(listener.got) == 10)

    await old.stop()
    cluster.hidden.add(("a", 0))
    new.script(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        *[refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "no master is known")] * 3,
    )
    await member.close()

    assert new.offsets["g", "t", 0] == 10
    assert len(new.seen(RequestCode.UPDATE_CONSUMER_OFFSET)) >= 4


async def test_close_gives_up_offsets_that_no_broker_can_store(cluster: FakeCluster) -> None:
    """After `commit_timeout`, or at once when no later answer can be another one."""
    broker = await one_broker(cluster, queues=1, messages=3)
    settings = PushSettings(commit_seconds=60.0, commit_timeout=0.2)
    loop = asyncio.get_running_loop()
    for code, tries in ((ResponseCode.SYSTEM_BUSY, 2), (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, 1)):
        listener = Recorder()
        member = consumer(cluster, listener, settings=settings)
        await member.start()
        await until(partial(listener.has, 3))
        broker.offsets.clear()
        broker.requests.clear()
        broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, *[refuse(code)] * 20)

        began = loop.time()
        await member.close()

        asked = [c for c in broker.seen(RequestCode.UPDATE_CONSUMER_OFFSET) if c.ext["topic"] == "t"]
        assert len(asked) >= tries
        assert tries > 1 or len(asked) == 1
        assert loop.time() - began < 5
        assert ("g", "t", 0) not in broker.offsets
        broker.scripts.clear()


async def test_nothing_is_consumed_from_a_new_offset_before_it_is_stored(cluster: FakeCluster) -> None:
    """A reset that the master has told and not yet stored as taken comes again after its death."""
    broker = await one_broker(cluster, queues=1, messages=4)
    listener = Recorder()
    async with consumer(cluster, listener) as member:
        await until(lambda: len(listener.got) == 4)
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 4)
        broker.requests.clear()
        broker.script(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            *[refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "no master is known")] * 5,
        )

        member.reset_offsets("t", {MessageQueue("t", "a", 0): 1})
        await until(lambda: len(listener.got) == 7)

    codes = [command.code for command in broker.requests if command.ext.get("topic") == "t"]
    first_pull = codes.index(PULL)
    assert codes[:first_pull].count(RequestCode.UPDATE_CONSUMER_OFFSET) == 6
