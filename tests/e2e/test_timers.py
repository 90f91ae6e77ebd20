"""Timer messages over the death of masters: real processes, in both kinds of groups."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_client import ConsumeFromWhere, Message, MessageView, Producer, PushConsumer
from brokerset_client.errors import ClientError
from brokerset_rig.local_servers import Client, connected
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.stack import free_port, our_broker
from brokerset_rig.store_reading import read_commit_log
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection

pytestmark = pytest.mark.long

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {{name: orders}}
spec:
  replicas: 3
  replication: {{mode: {mode}}}
  config: {{mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}}
"""

MESSAGES = 120
TOPIC = "later"


@pytest.fixture(params=["controller", "dledger"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalSet]:
    """Three brokers in one group."""
    with local_set(tmp_path, MANIFEST.format(mode=request.param)) as started:
        started.until_healthy()
        yield started


def master_of(running: LocalSet) -> str:
    """The process that leads the group."""
    view = running.until_healthy()
    group = (view.get("dledgerGroups") or view["groups"])[0]
    members = group.get("members") or group["replicas"]
    ids = [each for each in members if each["brokerId"] == group["masterId"]]
    return str(ids[0]["process"])


async def test_every_timer_message_comes_after_its_time_and_once_more_per_crash_at_most(
    running: LocalSet,
) -> None:
    """The master is killed while messages wait, are due, and are taken: none is lost, none is early."""
    places: dict[str, set[tuple[int, int]]] = defaultdict(set)
    early: list[str] = []
    due: dict[str, float] = {}
    namesrv = running.state()["namesrv"]

    async def listener(message: MessageView) -> None:
        body = message.body.decode()
        places[body].add((message.queue_id, message.queue_offset))
        if time.time() < due[body]:
            early.append(body)

    async def send(producer: Producer, number: int) -> None:
        body, delay = f"m{number}", 3.0 + number % 40 / 4
        while True:
            due[body] = time.time() + delay
            try:
                await producer.send(Message(topic=TOPIC, body=body.encode(), delay_ms=int(delay * 1000)))
            except ClientError:
                await asyncio.sleep(0.05)
                continue
            return

    async with Producer("p", namesrv=namesrv) as producer:
        await send(producer, 0)
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer = PushConsumer("c", listener=listener, namesrv=namesrv, consume_from=first)
        consumer.subscribe(TOPIC)
        async with consumer:
            for number in range(1, MESSAGES // 2):
                await send(producer, number)
            await until(lambda: len(places) > 5)
            await asyncio.to_thread(running.kill, master_of(running))
            for number in range(MESSAGES // 2, MESSAGES):
                await send(producer, number)
            await until(lambda: len(places) == MESSAGES, 60)

    assert early == []
    assert {body: found for body, found in places.items() if len(found) > 2} == {}


async def test_a_broker_without_a_group_that_is_killed_delivers_what_waits(tmp_path: Path) -> None:
    """Killed while messages are taken, and while they are due: none is lost or early, few come twice."""
    port, count, due_ms = free_port(), 400, {}
    broker = our_broker(tmp_path, port, "").start()
    try:
        async with connected(port) as connection:
            client = Client(connection)
            await client.create_topic(TOPIC, queues=1)
            for number in range(count):
                delay = 2_000 + number * 10
                due_ms[str(number)] = time.time_ns() // 1_000_000 + delay
                properties = {"TIMER_DELAY_MS": str(delay), "UNIQ_KEY": f"U{number}"}
                assert (await client.send(TOPIC, str(number).encode(), properties=properties)).code == 0
        for _ in range(2):
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            async with connected(port) as connection:
                await until_stored(connection, min(count, await ends(connection) + count // 4))
        async with connected(port) as connection:
            await until_stored(connection, count)
            while await waiting(connection):  # noqa: ASYNC110  # what comes twice
                await asyncio.sleep(0.02)
    finally:
        await asyncio.to_thread(broker.stop)

    times: dict[str, list[int]] = defaultdict(list)
    for each in read_commit_log(tmp_path / "broker-0" / "store"):
        if each.record.topic == TOPIC:
            times[each.record.body.decode()].append(each.record.store_timestamp)
    assert set(times) == set(due_ms)
    assert [body for body, found in times.items() if min(found) < due_ms[body]] == []
    assert max(map(len, times.values())) <= 3


async def ends(connection: Connection) -> int:
    """Messages of the topic's queue."""
    reply = await Client(connection).call(30, topic=TOPIC, queueId=0)
    return int(reply.ext.get("offset", 0))


async def until_stored(connection: Connection, count: int) -> None:
    """Wait for messages in the topic."""
    while await ends(connection) < count:  # noqa: ASYNC110  # a broker tells nobody
        await asyncio.sleep(0.02)


async def waiting(connection: Connection) -> int:
    """Messages in the wheel."""
    reply = await Client(connection).call(28)
    return int(json.loads(reply.body)["table"]["timerCongestNum"])
