"""What the native way of sends knows of a topic ends with what the broker knows of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_formats import native
from brokerset_protocol.codes import ResponseCode
from brokerset_rig.local_servers import Client, Setup

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")


async def send_natively(broker: Broker, client: Client, topic: str, queue_id: int) -> None:
    """Send until the lane serves this queue: the first send to it shows it the way."""
    for number in range(2):
        answer = await client.send(topic, queue_id=queue_id, properties={"UNIQ_KEY": f"K{queue_id}{number}"})
        assert answer.code == 0
    assert broker.send_lane is not None
    assert broker.send_lane.served > 0


async def test_a_queue_that_a_topic_lost_takes_no_messages(setup: Setup) -> None:
    """The topic is changed to fewer queues: the next send to a later one is refused, as ever."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t", 4)
        await send_natively(broker, client, "t", 3)

        await client.create_topic("t", 2)
        answer = await client.send("t", queue_id=3, properties={"UNIQ_KEY": "K9"})

        assert answer.code == 29  # INVALID_PARAMETER
        assert "queueId[3]" in (answer.remark or "")
        assert broker.store.queue_max("t", 3) == 2


async def test_a_topic_that_was_made_again_begins_from_scratch(setup: Setup) -> None:
    """It is deleted and made again: its first message has the number 0, and can be pulled."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t", 1)
        await send_natively(broker, client, "t", 0)
        assert (await client.call(215, topic="t")).code == 0
        await client.create_topic("t", 1)

        answer = await client.send("t", b"new", properties={"UNIQ_KEY": "K9"})

        assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
        assert setup.bodies(await client.pull("t", 0)) == [b"new"]


class Told:
    """A native lane, and the queues that it was told of."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane
        self.queues: list[tuple[str, int]] = []

    def learn_queue(self, topic: str, queue_id: int, *queue: object) -> None:
        self.queues.append((topic, queue_id))
        self._lane.learn_queue(topic, queue_id, *queue)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)


async def test_a_queue_is_learnt_once_until_its_topic_changes(setup: Setup) -> None:
    """Sends that go the Python way, as those with binary headers do, tell the lane nothing that it knows."""
    async with setup.pair() as (broker, client):
        lane = broker.send_lane
        assert lane is not None
        told = lane._lane = Told(lane._lane)
        await client.create_topic("t", 2)
        for queue_id in (0, 0, 1, 1, 0):
            assert (await client.send("t", queue_id=queue_id, binary=True)).code == 0
        assert (lane.served, told.queues) == (0, [("t", 0), ("t", 1)])

        await client.create_topic("t", 3)
        for _ in range(2):
            assert (await client.send("t", queue_id=1, binary=True)).code == 0

        assert told.queues[2:] == [("t", 1)]
        assert (await client.send("t", queue_id=1, properties={"UNIQ_KEY": "K1"})).code == 0
        assert lane.served == 1


async def test_a_broker_without_permission_to_write_stores_nothing(setup: Setup) -> None:
    """It is taken away while clients send."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t", 1)
        await send_natively(broker, client, "t", 0)
        broker.admission.refuse_writes()

        answer = await client.send("t", properties={"UNIQ_KEY": "K9"})

        assert answer.code != 0
        assert broker.store.queue_max("t", 0) == 2


async def test_a_disk_that_does_not_take_the_log_stops_the_store(setup: Setup) -> None:
    """Nothing of the chunk is stored, its senders hear why, and nothing is stored later."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t", 1)
        await send_natively(broker, client, "t", 0)
        end = broker.store.max_offset
        broker.store.log.write_to("/dev/full")

        first = await client.send("t", properties={"UNIQ_KEY": "K8"})
        second = await client.send("t", properties={"UNIQ_KEY": "K9"})

        assert first.code == second.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the disk does not take the commit log" in (first.remark or "")
        assert (broker.store.max_offset, broker.store.queue_max("t", 0)) == (end, 2)


async def test_one_unusual_send_does_not_end_the_native_way_of_those_behind_it(setup: Setup) -> None:
    """All come in one chunk: their places in the queue are in the order in which they were sent."""
    async with setup.pair() as (broker, client):
        await client.create_topic("t", 1)
        await send_natively(broker, client, "t", 0)
        assert broker.send_lane is not None
        before = broker.send_lane.served

        ids: tuple[dict[str, str], ...] = ({"UNIQ_KEY": "K1"}, {}, {"UNIQ_KEY": "K2"}, {}, {"UNIQ_KEY": "K3"})
        answers = await asyncio.gather(*(client.send("t", properties=properties) for properties in ids))

        assert [answer.ext["queueOffset"] for answer in answers] == ["2", "3", "4", "5", "6"]
        assert broker.send_lane.served == before + 3
