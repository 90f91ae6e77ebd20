"""Timer messages and their recall, between our producer and brokers that answer, refuse, or change places."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from brokerset_client import (
    AnswerTimeout,
    ClientClosed,
    Message,
    MessageInvalid,
    NoQueue,
    Producer,
    RequestRefused,
)
from brokerset_formats.recall_handles import RecallHandle
from brokerset_protocol.codes import RequestCode, ResponseCode

from .fake_broker import FakeCluster, answer, hang_up, properties_of, refuse, say_nothing

SEND = RequestCode.SEND_MESSAGE_V2
RECALL = RequestCode.RECALL_MESSAGE
HANDLE = RecallHandle("t", "b", 1_700_000_060_001, "UNIQ").encode()
MESSAGE = Message(topic="t", body=b"x")


def producer(cluster: FakeCluster, timeout: float = 3.0) -> Producer:
    return Producer("pg", namesrv=cluster.namesrv, timeout=timeout)


async def two_brokers(cluster: FakeCluster) -> None:
    for name in ("a", "b"):
        await cluster.add_broker(name)
    cluster.topics["t"] = {"a": 1, "b": 1}


async def test_a_timer_message_and_its_handle(cluster: FakeCluster) -> None:
    """The property goes out, the answer's handle is in the result."""
    broker = await cluster.add_broker("b")
    cluster.topics["t"] = {"b": 1}
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    stored = answer(
        msgId="7F00000100002A9F0000000000000007", queueId="0", queueOffset="7", recallHandle=HANDLE
    )
    broker.script(SEND, stored, stored)
    async with producer(cluster) as sender:
        first = await sender.send(MESSAGE, delay=timedelta(minutes=2))
        second = await (await sender.send_async(MESSAGE, deliver_at=moment))
        plain = await sender.send(MESSAGE)

    assert first.recall_handle == second.recall_handle == HANDLE
    assert plain.recall_handle is None
    properties = [properties_of(command) for command in broker.seen(SEND)]
    assert properties[0]["TIMER_DELAY_MS"] == "120000"
    assert properties[1]["TIMER_DELIVER_MS"] == str(int(moment.timestamp() * 1000))
    assert not any("TIMER" in name for name in properties[2])


async def test_a_recall_goes_to_the_broker_of_the_handle(cluster: FakeCluster) -> None:
    """It names group, topic and handle, and gives the message's id back."""
    await two_brokers(cluster)
    broker = cluster.brokers["b", 0]
    broker.script(RECALL, answer(msgId="UNIQ"))
    async with producer(cluster) as sender:
        assert await sender.recall("t", HANDLE) == "UNIQ"

    (request,) = broker.seen(RECALL)
    assert request.ext == {"producerGroup": "pg", "topic": "t", "recallHandle": HANDLE, "bname": "b"}
    assert not cluster.brokers["a", 0].seen(RECALL)


async def test_a_recall_finds_the_new_master(cluster: FakeCluster) -> None:
    """A lost answer and a demoted broker are tried again until the time is over: twice is as good as once."""
    await two_brokers(cluster)
    old, new = cluster.brokers["b", 0], await cluster.add_broker("b", 1)
    async with producer(cluster) as sender:
        await sender.instance.route("t")
        cluster.brokers |= {("b", 0): new, ("b", 1): old}
        old.script(RECALL, hang_up)
        new.script(RECALL, refuse(ResponseCode.SERVICE_NOT_AVAILABLE), answer(msgId="UNIQ"))

        assert await sender.recall("t", HANDLE) == "UNIQ"

    assert (len(old.seen(RECALL)), len(new.seen(RECALL))) == (1, 2)


async def test_what_ends_a_recall(cluster: FakeCluster) -> None:
    """A refusal, a missing master, silence, a bad handle, a closed producer: each an error that says so."""
    await two_brokers(cluster)
    broker = cluster.brokers["b", 0]
    broker.script(RECALL, refuse(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"))
    async with producer(cluster, timeout=0.2) as sender:
        with pytest.raises(RequestRefused, match="operation is forbidden"):
            await sender.recall("t", HANDLE)
        with pytest.raises(MessageInvalid, match="recall handle is invalid"):
            await sender.recall("t", "x" * 2000)
        broker.script(RECALL, *[say_nothing] * 100)
        with pytest.raises(AnswerTimeout, match="did not answer"):
            await sender.recall("t", HANDLE)
        cluster.hidden.add(("b", 0))
        await sender.instance.route("t", fresh=True)
        with pytest.raises(NoQueue, match="broker b, which has the message, has no master now"):
            await sender.recall("t", HANDLE)
    with pytest.raises(ClientClosed):
        await sender.recall("t", HANDLE)
