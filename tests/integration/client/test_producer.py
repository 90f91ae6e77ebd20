"""The producer against brokers that refuse, die, stay silent, or are not there."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

import pytest

from brokerset_client import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientClosed,
    ClientInstance,
    Message,
    MessageInvalid,
    MessageQueue,
    NameServerUnavailable,
    NoQueue,
    Producer,
    RequestRefused,
    SendFailed,
    SendLimits,
    SendResult,
    SendRetry,
    SendStatus,
    TopicNotFound,
    instance,
)
from brokerset_client.retry import RETRIABLE_CODES
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection

from .fake_broker import FakeCluster, bodies, hang_up, properties_of, refuse, say_nothing

SEND = RequestCode.SEND_MESSAGE_V2


async def two_brokers(cluster: FakeCluster) -> None:
    await cluster.add_broker("a")
    await cluster.add_broker("b")
    cluster.topics["t"] = {"a": 2, "b": 2}


def producer(cluster: FakeCluster, **options: object) -> Producer:
    return Producer("pg", namesrv=cluster.namesrv, **options)  # type: ignore[arg-type]  # test options


@pytest.mark.parametrize("code", sorted(RETRIABLE_CODES))
async def test_a_retriable_answer_leads_to_another_broker(cluster: FakeCluster, code: int) -> None:
    """The answers that Java retries are retried, at a broker that has not failed yet."""

    await two_brokers(cluster)
    for broker in cluster.brokers.values():
        broker.script(SEND, refuse(code))
    async with producer(cluster) as sender:
        first = await sender.instance.route("t")
        cluster.brokers["b", 0].scripts.clear()

        result = await sender.send(
            Message(topic="t", body=b"x"), choose=_first_then_any(first.publish_queues)
        )

    assert result.queue.broker_name == "b"
    assert len(cluster.brokers["a", 0].seen(SEND)) == 1


def _first_then_any(
    queues: tuple[MessageQueue, ...],
) -> Callable[[Sequence[MessageQueue]], MessageQueue]:
    order = iter([queues[0], queues[-1], queues[-1]])
    return lambda _: next(order)


async def test_the_ring_goes_around_the_broker_that_failed(cluster: FakeCluster) -> None:
    """Without a chosen queue the next attempt takes another broker by itself."""

    await two_brokers(cluster)
    cluster.brokers["a", 0].script(SEND, *[refuse(ResponseCode.SYSTEM_BUSY)] * 100)
    async with producer(cluster) as sender:
        results = [await sender.send(Message(topic="t", body=b"x")) for _ in range(8)]

    assert {result.queue.broker_name for result in results} == {"b"}


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER])
async def test_an_answer_that_no_retry_can_mend_is_raised_at_once(cluster: FakeCluster, code: int) -> None:
    await two_brokers(cluster)
    for broker in cluster.brokers.values():
        broker.script(SEND, refuse(code, "too large"))
    async with producer(cluster) as sender:
        with pytest.raises(RequestRefused, match="too large") as caught:
            await sender.send(Message(topic="t", body=b"x"))

    assert caught.value.code == code
    assert sum(len(broker.seen(SEND)) for broker in cluster.brokers.values()) == 1


async def test_attempts_end_after_two_retries_and_tell_what_happened(cluster: FakeCluster) -> None:
    await two_brokers(cluster)
    for broker in cluster.brokers.values():
        broker.script(SEND, *[refuse(ResponseCode.SYSTEM_ERROR, "no luck")] * 5)
    async with producer(cluster) as sender:
        with pytest.raises(SendFailed, match="after 3 attempts") as caught:
            await sender.send(Message(topic="t", body=b"x"))

    assert len(caught.value.attempts) == 3
    assert isinstance(caught.value.__cause__, RequestRefused)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
async def test_a_message_that_is_stored_less_safely_is_a_result(
    cluster: FakeCluster, code: int, status: SendStatus
) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    broker.script(
        SEND,
        lambda _, command: command.reply(code, ext={"msgId": "ID", "queueId": "0", "queueOffset": "7"}),
    )
    async with producer(cluster) as sender:
        result = await sender.send(Message(topic="t", body=b"x"))

    assert (result.status, result.queue_offset) == (status, 7)


async def test_a_connection_that_breaks_leads_to_another_broker(cluster: FakeCluster) -> None:
    """A lost connection is a failed attempt: the message may then be stored twice, but never not at all."""

    await two_brokers(cluster)
    cluster.brokers["a", 0].script(SEND, hang_up)
    async with producer(cluster) as sender:
        results = await asyncio.gather(
            *[await sender.send_async(Message(topic="t", body=b"%d" % n)) for n in range(20)]
        )

    stored = bodies(cluster.brokers["a", 0], "t") + bodies(cluster.brokers["b", 0], "t")
    assert len(results) == 20
    assert {b"%d" % n for n in range(20)} <= set(stored)


async def test_a_new_master_is_used_at_once(cluster: FakeCluster) -> None:
    """When the master dies the route is read again at once, not at the next regular turn."""

    old = await cluster.add_broker("a", 0)
    cluster.topics["t"] = {"a": 1}
    async with producer(cluster, timeout=5.0, retry=SendRetry(retries=50)) as sender:
        await sender.send(Message(topic="t", body=b"before"))
        await old.stop()
        new = await cluster.add_broker("a", 0)

        result = await sender.send(Message(topic="t", body=b"after"))

    assert result.status is SendStatus.SEND_OK
    assert bodies(new, "t") == [b"before", b"after"]


async def test_a_failover_longer_than_some_attempts_fails_no_send(cluster: FakeCluster) -> None:
    """The default retry goes on while the old master refuses connections and the route still names it."""

    old = await cluster.add_broker("a", 0)
    cluster.topics["t"] = {"a": 1}
    async with producer(cluster) as sender:
        await sender.send(Message(topic="t", body=b"before"))
        await old.stop()
        sending = await sender.send_async(Message(topic="t", body=b"during"))
        asked = cluster.asked["t"]
        await until(lambda: cluster.asked["t"] >= asked + 5)
        new = await cluster.add_broker("a", 0)

        result = await sending

    assert result.status is SendStatus.SEND_OK
    assert bodies(new, "t") == [b"before", b"during"]


async def test_without_a_master_sending_waits_for_one(cluster: FakeCluster) -> None:
    await cluster.add_broker("a", 0)
    cluster.topics["t"] = {"a": 1}
    cluster.hidden.add(("a", 0))
    async with producer(cluster, timeout=5.0, retry=SendRetry(retries=100)) as sender:
        with pytest.raises(NoQueue):
            await producer_once(sender)
        sending = await sender.send_async(Message(topic="t", body=b"x"))
        await until(lambda: cluster.asked["t"] >= 3)
        cluster.hidden.clear()

        result = await sending

    assert result.status is SendStatus.SEND_OK


async def producer_once(sender: Producer) -> None:
    """One attempt only."""
    single = Producer("once", instance=sender.instance, retry=SendRetry(retries=0))
    await single.start()
    try:
        await single.send(Message(topic="t", body=b"x"))
    finally:
        await single.close()


async def test_an_unknown_topic_is_created_by_its_first_message(cluster: FakeCluster) -> None:
    """The template's route serves with at most four queues; after the send the topic's own route is read."""

    await cluster.add_broker()
    cluster.topics["TBW102"] = {"a": 8}
    async with producer(cluster) as sender:
        queues = await sender.queues("new")
        await sender.send(Message(topic="new", body=b"x"))
        await until(lambda: cluster.asked["new"] >= 2)
        route = await sender.instance.route("new")

    assert len(queues) == 4
    assert not route.created_on_send


async def test_an_unknown_topic_that_nobody_creates_is_reported_at_once(cluster: FakeCluster) -> None:
    await cluster.add_broker()
    async with producer(cluster) as sender:
        with pytest.raises(TopicNotFound, match="create it"):
            await sender.send(Message(topic="new", body=b"x"))
        with pytest.raises(TopicNotFound):
            await sender.send_oneway(Message(topic="new", body=b"x"))


async def test_a_silent_broker_costs_the_timeout_and_no_more(cluster: FakeCluster) -> None:
    """A time-out says that the message may be stored, and gives its room in the window back."""

    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    broker.script(SEND, say_nothing, say_nothing)
    async with producer(cluster, limits=SendLimits(messages_max=1)) as sender:
        started = asyncio.get_running_loop().time()
        with pytest.raises(AnswerTimeout, match="may be stored"):
            await sender.send(Message(topic="t", body=b"x"), timeout=0.2)
        took = asyncio.get_running_loop().time() - started
        abandoned = await sender.send_async(Message(topic="t", body=b"x"), timeout=10)
        abandoned.cancel()
        result = await sender.send(Message(topic="t", body=b"x"))

    assert 0.2 <= took < 1.0
    assert result.status is SendStatus.SEND_OK


async def test_a_connection_that_stays_silent_is_given_up(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is gone without a word is behind it: a new connection may lead to another one."""

    monkeypatch.setattr(instance, "SILENT_SECONDS", 0.1)
    heard: list[Connection] = []

    def listen(connection: Connection, _: Command) -> Command | None:
        heard.append(connection)
        return None

    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    async with producer(cluster) as sender:
        await sender.send(Message(topic="t", body=b"x"))
        await until(lambda: bool(broker.seen(RequestCode.HEART_BEAT)))
        await sender.send(Message(topic="t", body=b"x"))  # it is answered after the heartbeat
        broker.script(SEND, listen)
        with pytest.raises(AnswerTimeout):
            await sender.send(Message(topic="t", body=b"x"), timeout=0.2)
        await until(lambda: not heard[0].is_open)
        assert (await sender.send(Message(topic="t", body=b"x"))).status is SendStatus.SEND_OK

        broker.script(RequestCode.GET_MAX_OFFSET, listen)
        request = Command(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"})
        with pytest.raises(AnswerTimeout):
            await sender.instance.call(broker.address, request, 0.2)
        await until(lambda: not heard[1].is_open)


async def test_a_connection_on_which_others_are_answered_stays(cluster: FakeCluster) -> None:
    """One request that takes long is no sign that the peer is gone."""

    heard: list[Connection] = []

    def listen(connection: Connection, _: Command) -> Command | None:
        heard.append(connection)
        return None

    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    broker.script(SEND, listen)
    async with producer(cluster) as sender:
        slow = asyncio.create_task(sender.send(Message(topic="t", body=b"x"), timeout=2.3))
        await until(lambda: bool(heard))
        while not slow.done():
            await sender.send(Message(topic="t", body=b"y"))
            await asyncio.sleep(0.1)
        with pytest.raises(AnswerTimeout):
            await slow
        assert heard[0].is_open


async def test_the_window_lets_senders_wait(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    broker.script(SEND, say_nothing)
    async with producer(cluster, limits=SendLimits(messages_max=1)) as sender:
        first = await sender.send_async(Message(topic="t", body=b"1"), timeout=0.3)
        waiting = asyncio.create_task(sender.send(Message(topic="t", body=b"2")))
        await until(lambda: len(broker.seen(SEND)) == 1)
        assert not waiting.done()

        with pytest.raises(AnswerTimeout):
            await first
        await waiting

    assert bodies(broker, "t") == [b"2"]


async def test_messages_to_one_queue_arrive_in_the_order_of_the_calls(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 4}
    async with producer(cluster) as sender:
        sent = [await sender.send_async(Message(topic="t", body=b"%03d" % n), key="same") for n in range(200)]
        results = await asyncio.gather(*sent)

    assert len({result.queue for result in results}) == 1
    assert bodies(broker, "t") == [b"%03d" % n for n in range(200)]


async def test_a_batch_arrives_whole(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 2}
    messages = [Message(topic="t", body=b"%d" % n, keys=("k",)) for n in range(10)]
    async with producer(cluster) as sender:
        result = await sender.send_batch(messages)

    assert result.queue_offset == 0
    assert len(result.message_id.split(",")) == len(result.offset_message_id.split(",")) == 10
    assert bodies(broker, "t") == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "empty"),
        ([Message(topic="t"), Message(topic="u")], "one topic"),
        ([Message(topic="t", delay_level=1)], "delayed"),
        ([Message(topic="%RETRY%g")], "retry topic"),
        ([Message(topic="t", body=bytes(1 << 20))] * 5, "split it"),
    ],
)
async def test_a_batch_that_no_broker_would_take_is_refused(
    cluster: FakeCluster, messages: list[Message], problem: str
) -> None:
    await cluster.add_broker()
    cluster.topics["t"] = {"a": 2}
    async with producer(cluster) as sender:
        with pytest.raises(MessageInvalid, match=problem):
            await sender.send_batch(messages)


@pytest.mark.parametrize(
    "message",
    [
        Message(topic="t", properties={"a\x01": "b"}),
        Message(topic="t", properties={"a": "b\x02"}),
        Message(topic="t", properties={"": "x"}),
        Message(topic="t", tags="a\x02b"),
        Message(topic="a b"),
    ],
)
async def test_a_message_that_cannot_be_written_never_leaves(cluster: FakeCluster, message: Message) -> None:
    await cluster.add_broker()
    cluster.topics["t"] = {"a": 2}
    async with producer(cluster) as sender:
        for attempt in (sender.send, sender.send_oneway):
            with pytest.raises(MessageInvalid):
                await attempt(message)
        with pytest.raises(MessageInvalid):
            await sender.send_batch([message])


async def test_oneway_messages_arrive_without_an_answer(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 2}
    async with producer(cluster) as sender:
        for n in range(200):
            await sender.send_oneway(Message(topic="t", body=b"%d" % n))
        await until(lambda: len(bodies(broker, "t")) == 200)

    assert all(command.is_oneway for command in broker.seen(SEND))


async def test_large_bodies_travel_compressed_as_java_does_it(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    async with producer(cluster) as sender:
        await sender.send(Message(topic="t", body=b"x" * 4095))
        await sender.send(Message(topic="t", body=b"x" * 4096))

    small, large = broker.seen(SEND)
    assert (small.body, small.ext["f"]) == (b"x" * 4095, "0")
    assert (zlib.decompress(large.body), large.ext["f"]) == (b"x" * 4096, str(0x301))


async def test_the_request_carries_what_brokers_read(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    message = Message(
        topic="t",
        body=b"x",
        tags="A",
        keys=("k1", "k2"),
        properties={"näme": "ü"},
        flag=5,
        wait_stored=False,
        delay_level=3,
    )
    async with producer(cluster) as sender:
        result = await sender.send(message)

    (command,) = broker.seen(SEND)
    assert {name: command.ext[name] for name in "abcdehjkm"} == {
        "a": "pg",
        "b": "t",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "h": "5",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    assert properties_of(command) == {
        "TAGS": "A",
        "KEYS": "k1 k2",
        "näme": "ü",
        "WAIT": "false",
        "DELAY": "3",
        "UNIQ_KEY": result.message_id,
    }


async def test_the_second_name_server_serves_when_the_first_is_gone(cluster: FakeCluster) -> None:
    await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    async with Producer("pg", namesrv=f"127.0.0.1:{free_port()};{cluster.namesrv}") as sender:
        result = await sender.send(Message(topic="t", body=b"x"))

    assert result.status is SendStatus.SEND_OK


async def test_a_client_without_any_name_server_says_so_at_start(cluster: FakeCluster) -> None:
    instance = ClientInstance(f"127.0.0.1:{free_port()};nonsense")

    with pytest.raises(NameServerUnavailable) as caught:
        await instance.start()

    assert len(caught.value.problems) == 2
    await instance.close()
    with pytest.raises(NameServerUnavailable):
        async with Producer("pg", namesrv=f"127.0.0.1:{free_port()}"):
            pass


async def test_known_routes_go_on_when_the_name_server_dies(cluster: FakeCluster) -> None:
    await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    async with producer(cluster) as sender:
        await sender.send(Message(topic="t", body=b"1"))
        await cluster._server.close(drain_seconds=0.2)

        result = await sender.send(Message(topic="t", body=b"2"))

    assert result.queue_offset == 1


async def test_a_dead_broker_alone_is_reported_as_unreachable(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    await broker.stop()
    async with producer(cluster, retry=SendRetry(retries=0)) as sender:
        with pytest.raises(BrokerUnreachable, match=broker.address):
            await sender.send(Message(topic="t", body=b"x"))


async def test_a_closed_producer_says_so(cluster: FakeCluster) -> None:
    await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    never = producer(cluster)
    with pytest.raises(ClientClosed, match="not started"):
        await never.send(Message(topic="t", body=b"x"))
    async with producer(cluster) as sender:
        await sender.send(Message(topic="t", body=b"x"))

    with pytest.raises(ClientClosed):
        await sender.send(Message(topic="t", body=b"x"))


async def test_closing_fails_what_is_not_answered(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerset_client.producer.CLOSE_SECONDS", 0.1)

    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    broker.script(SEND, say_nothing)
    async with producer(cluster, limits=SendLimits(messages_max=1)) as sender:
        pending = await sender.send_async(Message(topic="t", body=b"x"), timeout=60)
        waiting = asyncio.create_task(sender.send(Message(topic="t", body=b"y"), timeout=60))
        await asyncio.sleep(0)

    for unanswered in (pending, waiting):
        with pytest.raises(ClientClosed):
            await unanswered


async def test_heartbeats_tell_the_masters_about_the_group(cluster: FakeCluster) -> None:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 1}
    async with producer(cluster) as sender:
        await sender.send(Message(topic="t", body=b"x"))
        await until(lambda: bool(broker.seen(RequestCode.HEART_BEAT)))

    assert b'"groupName":"pg"' in broker.seen(RequestCode.HEART_BEAT)[0].body
    assert [command.ext["producerGroup"] for command in broker.seen(RequestCode.UNREGISTER_CLIENT)] == ["pg"]


async def test_a_chooser_that_fails_harms_its_own_message_only(cluster: FakeCluster) -> None:
    await two_brokers(cluster)
    async with producer(cluster) as sender:
        bad = sender.send(Message(topic="t", body=b"bad"), choose=lambda queues: queues[1000])
        good = sender.send(Message(topic="t", body=b"good"))

        failed, result = await asyncio.gather(bad, good, return_exceptions=True)

        assert isinstance(failed, MessageInvalid)
        assert isinstance(result, SendResult)
