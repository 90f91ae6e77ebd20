"""Timer messages over the death of masters: real processes, in both kinds of groups."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_client import ConsumeFromWhere, Message, MessageView, Producer, PushConsumer
from brokerset_client.errors import ClientError
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.waiting import until

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
