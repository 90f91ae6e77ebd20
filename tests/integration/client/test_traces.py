"""Traces of producers and consumers: what is written, when, and that nothing suffers from it."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from brokerset_client import (
    ConsumeFromWhere,
    ConsumeStatus,
    HalfMessage,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    PushSettings,
    RequestRefused,
    TraceSettings,
    TransactionProducer,
    TransactionState,
    Verdict,
)
from brokerset_client.tracing import WAITING_MAX, Tracer
from brokerset_formats.recall_handles import RecallHandle
from brokerset_formats.records import decode_record
from brokerset_protocol.bodies.traces import (
    ConsumeOutcome,
    ConsumeTrace,
    DeliveryTrace,
    EndTrace,
    RecallTrace,
    SendTrace,
    Trace,
    TraceMessageType,
    decode_traces,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.waiting import until

from .fake_broker import Answer, FakeBroker, FakeCluster, answer, properties_of, refuse, say_nothing

SEND = RequestCode.SEND_MESSAGE_V2
TOPIC = "RMQ_SYS_TRACE_TOPIC"
MESSAGE = Message(topic="t", body=b"body", tags="A", keys=("k-1", "k-2"))
SOON = TraceSettings(flush_seconds=0.01)

T = TypeVar("T")


async def one_broker(cluster: FakeCluster, *, trace_on: bool | None = True) -> FakeBroker:
    broker = await cluster.add_broker("a")
    cluster.topics |= {"t": {"a": 1}, TOPIC: {"a": 1}}
    broker.trace_on = trace_on
    return broker


def traces(broker: FakeBroker) -> list[Trace]:
    """What the trace topic has."""
    found: list[Trace] = []
    for record in broker.log.get((TOPIC, 0), []):
        some, unreadable = decode_traces(decode_record(record).body.decode())
        assert not unreadable
        found += some
    return found


def of_kind(broker: FakeBroker, kind: type[T]) -> list[T]:
    return [trace for trace in traces(broker) if isinstance(trace, kind)]


async def test_a_send_has_a_trace(cluster: FakeCluster) -> None:
    """It says where the message went and how long that took; its keys find it."""
    broker = await one_broker(cluster)
    async with Producer("pg", namesrv=cluster.namesrv, trace=SOON) as producer:
        result = await producer.send(MESSAGE)
        before = producer.instance.clock.now_ms()
        await until(lambda: len(traces(broker)) == 1)

    (trace,) = of_kind(broker, SendTrace)
    assert (trace.region, trace.group, trace.topic) == ("here", "pg", "t")
    assert (trace.message_id, trace.tags, trace.keys) == (result.message_id, "A", "k-1 k-2")
    assert trace.store_host == broker.address
    assert trace.offset_message_id == result.offset_message_id
    assert (trace.body_length, trace.message_type, trace.success) == (4, TraceMessageType.NORMAL, True)
    assert before - 5000 < trace.time_ms <= before
    assert 0 <= trace.cost_ms < 5000
    sent = next(command for command in broker.seen(SEND) if command.ext["b"] == TOPIC)
    assert sorted(properties_of(sent)["KEYS"].split()) == sorted([result.message_id, "k-1", "k-2"])
    assert sent.ext["a"].startswith("_INNER_TRACE_PRODUCER-pg-PRODUCE-")


async def test_kinds_of_messages_are_distinguished(cluster: FakeCluster) -> None:
    """Delayed, ordered, and each message of a batch by its own id."""
    broker = await one_broker(cluster)
    async with Producer("pg", namesrv=cluster.namesrv, trace=SOON) as producer:
        await producer.send(MESSAGE, delay=1)
        await producer.send(MESSAGE, deliver_at=None, key="k")
        await producer.send(Message(topic="t", body=b"x", sharding_key="k"))
        batch = await producer.send_batch([Message(topic="t", body=b"1"), Message(topic="t", body=b"22")])
        await until(lambda: len(traces(broker)) == 5)

    found = of_kind(broker, SendTrace)
    kinds = TraceMessageType
    assert [trace.message_type for trace in found[:3]] == [kinds.DELAY, kinds.NORMAL, kinds.ORDER]
    assert [trace.message_id for trace in found[3:]] == batch.message_id.split(",")
    assert [trace.offset_message_id for trace in found[3:]] == batch.offset_message_id.split(",")
    assert [trace.body_length for trace in found[3:]] == [1, 2]


@pytest.mark.parametrize("trace_on", [False, None], ids=["off", "not said"])
async def test_brokers_decide_about_traces(cluster: FakeCluster, trace_on: bool | None) -> None:
    """`traceOn=false` in an answer, or an answer without region, means no trace; so does no wish for one."""
    broker = await one_broker(cluster, trace_on=trace_on)
    async with Producer("pg", namesrv=cluster.namesrv, trace=SOON) as producer:
        await producer.send(MESSAGE)
    broker.trace_on = True
    async with Producer("pg", namesrv=cluster.namesrv) as producer:
        await producer.send(MESSAGE)

    assert not traces(broker)


async def test_the_end_of_a_producer_sends_what_waits(cluster: FakeCluster) -> None:
    """Traces share messages of at most 20, and none waits for the five seconds when its producer closes."""
    broker = await one_broker(cluster)
    async with Producer("pg", namesrv=cluster.namesrv, trace=TraceSettings()) as producer:
        for _ in range(45):
            await producer.send(MESSAGE)
        await until(lambda: len(traces(broker)) >= 20)

    assert len(of_kind(broker, SendTrace)) == 45
    assert max(record.count(b"Pub\x01") for record in broker.log[TOPIC, 0]) == 20


async def test_lost_traces_harm_nothing(cluster: FakeCluster) -> None:
    """Without a trace topic, with a broker that refuses it, or never answers: the sends go on."""
    broker = await one_broker(cluster)
    del cluster.topics[TOPIC]
    async with Producer("pg", namesrv=cluster.namesrv, trace=SOON) as producer:
        tracer = tracer_of(producer)
        await producer.send(MESSAGE)
        await until(lambda: tracer.failed == 1)

        cluster.topics[TOPIC] = {"a": 1}
        broker.script(SEND, answer_plain(), refuse(ResponseCode.MESSAGE_ILLEGAL))
        await producer.send(MESSAGE)
        await until(lambda: tracer.failed == 2)

        broker.script(SEND, answer_plain(), say_nothing)
        await producer.send(MESSAGE)
        await until(lambda: not broker.scripts[SEND])
        await producer.send(MESSAGE)
        await until(lambda: len(traces(broker)) >= 1)
        for sending in list(producer_of(tracer)._in_flight):
            sending.deadline = 0.0  # what is silent for five seconds
        await until(lambda: tracer.failed == 3)


def answer_plain() -> Answer:
    """Take a message, and want its trace."""
    offset_id = "7F00000100002A9F0000000000000007"
    return answer(msgId=offset_id, queueId="0", queueOffset="7", MSG_REGION="here", TRACE_ON="true")


def tracer_of(producer: Producer) -> Tracer:
    tracer = producer._tracer
    assert tracer is not None
    return tracer


def producer_of(tracer: Tracer) -> Producer:
    sender = tracer._sender
    assert isinstance(sender, Producer)
    return sender


async def test_too_many_traces_are_dropped(cluster: FakeCluster) -> None:
    """The bound is the tracer's; a send does not wait for room there."""
    await one_broker(cluster)
    trace = RecallTrace(time_ms=1, region="r", group="g", topic="t", message_id="ID")
    async with Producer("pg", namesrv=cluster.namesrv, trace=SOON) as producer:
        tracer = tracer_of(producer)
        for _ in range(WAITING_MAX + 5):
            tracer.add(trace)

        assert tracer.dropped == 5
    tracer.add(trace)
    assert tracer.dropped == 6


async def test_a_delivery_has_traces_before_and_after(cluster: FakeCluster) -> None:
    """The second names the first by its request id and says how the listener ended."""
    broker = await one_broker(cluster)
    properties = b"UNIQ_KEY\x01%b\x02KEYS\x01k\x02MSG_REGION\x01here\x02"
    for name in (b"done", b"later", b"raises", b"slow"):
        broker.put("t", 0, name, properties % name)
    broker.put("t", 0, b"off", properties % b"off" + b"TRACE_ON\x01false\x02")
    broker.put("t", 0, b"old", b"UNIQ_KEY\x01old\x02")
    seen: list[bytes] = []

    async def listen(message: MessageView) -> Verdict:
        seen.append(message.body)
        match message.body:
            case b"later":
                return ConsumeStatus.RECONSUME_LATER
            case b"raises":
                raise RuntimeError
            case b"slow":
                await asyncio.Event().wait()
        return None

    consumer = PushConsumer(
        "cg",
        namesrv=cluster.namesrv,
        listener=listen,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        settings=PushSettings(listener_timeout=0.05),
        trace=SOON,
    )
    consumer.subscribe("t")
    async with consumer:
        await until(lambda: len(seen) == 6 and len(of_kind(broker, ConsumeTrace)) == 4)

    before = {trace.message_id: trace for trace in of_kind(broker, DeliveryTrace)}
    after = {trace.message_id: trace for trace in of_kind(broker, ConsumeTrace)}
    assert set(before) == set(after) == {"done", "later", "raises", "slow"}
    assert {name: (trace.success, trace.outcome) for name, trace in after.items()} == {
        "done": (True, ConsumeOutcome.SUCCESS),
        "later": (False, ConsumeOutcome.FAILED),
        "raises": (False, ConsumeOutcome.EXCEPTION),
        "slow": (False, ConsumeOutcome.TIME_OUT),
    }
    assert all(after[name].request_id == before[name].request_id for name in after)
    assert len({trace.request_id for trace in after.values()}) == 4
    assert {trace.group for trace in before.values()} == {trace.group for trace in after.values()} == {"cg"}
    assert before["done"].keys == after["done"].keys == "k"
    assert before["done"].region == "here"


async def test_ends_and_checks_have_traces(cluster: FakeCluster) -> None:
    """The half message as such, then its end, by the producer or after a check."""
    broker = await one_broker(cluster)

    async def check(_: MessageView) -> TransactionState:
        return TransactionState.ROLLBACK

    async def local(_: HalfMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer("pg", namesrv=cluster.namesrv, check=check, trace=SOON) as producer:
        result = await producer.send_in_transaction(MESSAGE, local)
        await until(lambda: "pg" in broker.producers)
        broker.ask_for(next(command for command in broker.seen(SEND) if command.ext["b"] == "t"))
        await until(lambda: len(of_kind(broker, EndTrace)) == 2)

    (half,) = of_kind(broker, SendTrace)
    end, checked = of_kind(broker, EndTrace)
    assert half.message_type is TraceMessageType.TRANSACTION_HALF
    assert half.message_id == end.message_id == checked.message_id == result.transaction_id
    assert end.transaction_id == checked.transaction_id == result.transaction_id
    assert (end.state, end.from_check) == ("UNKNOW", False)
    assert (checked.state, checked.from_check) == ("ROLLBACK_MESSAGE", True)
    assert end.store_host == checked.store_host == broker.address
    assert (end.topic, end.tags, end.keys) == (checked.topic, checked.tags, checked.keys)


async def test_recalls_have_traces(cluster: FakeCluster) -> None:
    """If the broker said its region; one that was refused has none."""
    broker = await one_broker(cluster)
    handle = RecallHandle("t", "a", 1_700_000_060_001, "UNIQ").encode()
    broker.script(RequestCode.RECALL_MESSAGE, answer(msgId="UNIQ", MSG_REGION="here"), refuse(604))
    async with Producer("pg", namesrv=cluster.namesrv, trace=SOON) as producer:
        await producer.recall("t", handle)
        with pytest.raises(RequestRefused):
            await producer.recall("t", handle)

    (trace,) = of_kind(broker, RecallTrace)
    assert (trace.region, trace.group, trace.topic, trace.message_id) == ("here", "pg", "t", "UNIQ")
