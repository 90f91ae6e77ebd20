"""Popped messages of one broker: acks, changes, what comes back, and what a restart knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from brokerset_broker.app import Broker
from brokerset_broker.pop.check_points import EarlyKey
from brokerset_broker.requests.pop.log import Popped
from brokerset_broker.store.errors import PutStatus
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.pop.handles import Handle
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import decode_record
from brokerset_protocol.bodies import BatchAck, BatchAckMessages
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.local_servers import Setup
from brokerset_rig.transaction_client import TransactionClient, transaction_client

RETRY = "%RETRY%g_t"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  # several parts of a broker change what is asked for
            await asyncio.sleep(0.01)


def running(setup: Setup, **changes: Any) -> AbstractAsyncContextManager[Broker]:
    return setup.broker(pop_clock_skew_ms=0, **changes)


async def prepare(broker: Broker, client: TransactionClient, count: int) -> None:
    await client.create_topic("t")
    broker.groups.put(SubscriptionGroupConfig("g"))
    append(broker, count)
    await until(lambda: broker.pop_log.is_known)


def append(broker: Broker, count: int) -> None:
    for number in range(count):
        broker.store.append(
            "t", 0, b"%d" % number, b"TAGS\x01a\x02", flag=3, sys_flag=0, born_timestamp=5,
            born_host=bytes(8),
        )  # fmt: skip


def pop(broker: Broker, count: int, invisible_ms: int = 60_000, start: int = 0) -> Handle:
    """Give out messages as a pop does; the handle of the first one."""
    now = broker.clock.now_ms()
    offsets = tuple(range(start, start + count))
    broker.pop_log.pop([Popped("t", "g", 0, start, offsets, start + count, now, invisible_ms, 1, "broker-a")])
    return Handle(start, now, invisible_ms, 1, 0, "broker-a", 0, start)


async def ack(client: TransactionClient, handle: Handle, offset: int, topic: str = "t") -> int:
    answer = await client.call(
        RequestCode.ACK_MESSAGE, consumerGroup="g", topic=topic, queueId="0", extraInfo=handle.encode(),
        offset=str(offset),
    )  # fmt: skip
    return answer.code


async def change(client: TransactionClient, handle: Handle, offset: int, invisible_ms: int) -> Handle | int:
    answer = await client.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, consumerGroup="g", topic="t", queueId="0",
        extraInfo=handle.encode(), offset=str(offset), invisibleTime=str(invisible_ms),
    )  # fmt: skip
    if answer.code:
        return answer.code
    ext = answer.ext
    return Handle(
        offset,
        int(ext["popTime"]),
        int(ext["invisibleTime"]),
        int(ext["reviveQid"]),
        0,
        "broker-a",
        0,
        offset,
    )


def revived(broker: Broker) -> list[bytes]:
    found = broker.store.get(RETRY, 0, 0, 100, 1 << 20)
    bodies = []
    for part in found.parts:
        position = 0
        while position < len(part):
            record = decode_record(part[position:])
            bodies.append(record.body)
            position += int.from_bytes(part[position : position + 4], "big")
    return bodies


async def test_what_is_not_acked_comes_back_once_and_what_is_acked_does_not(setup: Setup) -> None:
    """The record in the retry topic is Java's: reconsumeTimes, 1ST_POP_TIME, ORIGIN_GROUP, RETRY_TOPIC."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 3)
        handle = pop(broker, 3, invisible_ms=700)

        assert await ack(client, handle, 1) == 0
        await until(lambda: broker.pop_revival.revived == 2)

        assert revived(broker) == [b"0", b"2"]
        unit = broker.store.unit(RETRY, 0, 0)
        assert unit is not None
        data = broker.store.read(unit[0])
        assert data is not None
        record = decode_record(data)
        assert (record.reconsume_times, record.flag, record.born_timestamp) == (1, 3, 5)
        assert decode_properties(record.properties) == {
            "TAGS": "a", "ORIGIN_GROUP": "g", "RETRY_TOPIC": "t", "1ST_POP_TIME": str(handle.pop_time),
        }  # fmt: skip
        assert (broker.pop_log.points.count, broker.pop_log.points.in_flight) == (0, 0)
        assert await ack(client, handle, 0) == 13


async def test_acks_are_answered_truthfully(setup: Setup) -> None:
    """An ack again is 0; of a message that was never popped, or of a pop that never was, it is 13."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 4)
        handle = pop(broker, 2)

        assert [await ack(client, handle, 0), await ack(client, handle, 0)] == [0, 0]
        assert await ack(client, handle, 3) == 13
        assert await ack(client, Handle(2, handle.pop_time, 60_000, 1, 0, "broker-a", 0, 2), 2) == 13
        assert await ack(client, handle, 9) == 208
        assert await ack(client, handle, 0, topic="nowhere") == 17
        assert broker.pop_log.in_flight("t", "g", 0) == 1


async def test_an_ack_again_waits_until_the_first_one_is_safe(setup: Setup) -> None:
    """0 says that the ack is as safe as a message: also when another request has asked for it before."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 1)
        handle = pop(broker, 1)
        waiting: list[Callable[[PutStatus], None]] = []
        broker.pop_log.commits.stop()  # positions wait for the same
        broker.admission.when_durable = lambda _end, answer: waiting.append(answer)

        asking = [asyncio.create_task(ack(client, handle, 0))]
        await until(lambda: len(waiting) == 1)
        asking.append(asyncio.create_task(ack(client, handle, 0)))
        await until(lambda: len(waiting) == 2 or asking[1].done())

        assert not asking[1].done()
        waiting[0](PutStatus.PUT_OK)
        waiting[1](PutStatus.FLUSH_SLAVE_TIMEOUT)
        assert await asyncio.gather(*asking) == [0, 12]


async def test_an_ack_with_a_handle_that_was_given_up_does_not_claim_success(setup: Setup) -> None:
    """Its message came back, as its time was shortened: its old time says nothing."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 2)
        handle = pop(broker, 2)
        assert isinstance(await change(client, handle, 0, 0), Handle)
        await until(lambda: broker.pop_revival.revived == 1)

        assert await ack(client, handle, 0) == 13
        assert await ack(client, handle, 1) == 0
        assert await ack(client, handle, 0) == 13


async def test_a_changed_invisible_time_has_a_new_handle(setup: Setup) -> None:
    """The old handle is nobody's any more; a message that is given back at once comes back at once."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 2)
        handle = pop(broker, 2)

        longer = await change(client, handle, 0, 90_000)
        assert isinstance(longer, Handle)
        assert await ack(client, handle, 0) == 13
        assert await change(client, handle, 0, 1) == 13
        assert await ack(client, longer, 0) == 0
        assert await change(client, longer, 0, 1) == 13
        assert isinstance(await change(client, handle, 1, 0), Handle)
        await until(lambda: broker.pop_revival.revived == 1)
        assert revived(broker) == [b"1"]


async def test_a_batch_of_acks_is_one_record_for_each_check_point(setup: Setup) -> None:
    """Bits name messages from the start of the check point on."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 4)
        handle = pop(broker, 4)
        before = broker.store.queue_end(broker.pop_log.topic, 1)
        body = BatchAckMessages(
            "broker-a",
            (BatchAck("g", "t", 0, 0, 1, handle.pop_time, 60_000, BatchAck.bits_of(0, (0, 2, 3))),),
        )

        answer = await client.call(RequestCode.BATCH_ACK_MESSAGE, body=body.to_json())

        assert answer.code == 0
        assert broker.store.queue_end(broker.pop_log.topic, 1) == before + 1
        assert broker.pop_log.in_flight("t", "g", 0) == 1
        again = await client.call(RequestCode.BATCH_ACK_MESSAGE)
        assert again.code == 208


async def test_a_restart_knows_what_is_out_and_what_was_acked(setup: Setup) -> None:
    """The position goes on behind what was popped; an acked message does not come back, others do."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 3)
        handle = pop(broker, 3, invisible_ms=1_500)
        assert await ack(client, handle, 1) == 0
        longer = await change(client, handle, 0, 60_000)
        assert isinstance(longer, Handle)

    async with running(setup) as broker, transaction_client(broker.port) as client:
        await until(lambda: broker.pop_log.is_known)
        assert broker.pop_log.position("t", "g", 0) == 3
        assert broker.pop_log.in_flight("t", "g", 0) == 2
        assert await ack(client, handle, 0) == 13
        assert await ack(client, longer, 0) == 0
        await until(lambda: broker.pop_revival.revived == 1)
        assert revived(broker) == [b"2"]


async def test_the_progress_passes_what_is_done_and_old_check_points_are_copied(setup: Setup) -> None:
    """A long invisible time does not keep the progress back, nor what a new master has to read."""
    changes = {"pop_check_point_copy_distance": 64}
    async with running(setup, **changes) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 1)
        handle = pop(broker, 1)
        append(broker, 200)
        for number in range(1, 100):
            later = pop(broker, 1, start=number)
            assert await ack(client, later, number) == 0

        def progress() -> int:
            return broker.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", broker.pop_log.topic, 1) or 0

        await until(lambda: progress() > 100)
        assert broker.pop_revival.copied > 0
        assert broker.offsets.query("g", "t", 0) == 100

    async with running(setup) as broker, transaction_client(broker.port) as client:
        await until(lambda: broker.pop_log.is_known)
        assert broker.pop_log.points.in_flight == 1
        assert await ack(client, handle, 0) == 0
        assert broker.pop_log.points.in_flight == 0


async def test_acks_of_what_a_java_master_popped_are_recorded(setup: Setup) -> None:
    """Its check points are in the timer wheel still: that they were popped is known by the group's offset."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 3)
        broker.offsets.commit("g", "t", 0, 2, "127.0.0.1")
        handle = Handle(0, broker.clock.now_ms() - 1000, 60_000, 1, 0, "broker-a", 0, 0)

        assert await ack(client, handle, 1) == 0
        assert broker.pop_log.points.is_early_acked(EarlyKey("t", "g", 0, 0, handle.pop_time), 1)
        assert await ack(client, handle, 2) == ResponseCode.MESSAGE_ILLEGAL, "the group has not come so far"


async def test_an_orderly_end_writes_how_far_pops_have_come(setup: Setup) -> None:
    """Also if the log was not flushed for a while: a Java broker that goes on there knows no other place."""
    async with running(setup, flush_interval_commit_log=60_000) as broker:
        broker.groups.put(SubscriptionGroupConfig("g"))
        append(broker, 3)
        await until(lambda: broker.pop_log.is_known)
        pop(broker, 3)
    async with running(setup) as broker:
        assert broker.offsets.query("g", "t", 0) == 3
