"""Locks of ordered pops of one broker: acks, changes, repeated attempts, what a restart knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson

from brokerset_broker.app import Broker
from brokerset_broker.store.errors import PutStatus
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.pop.handles import Handle
from brokerset_formats.pop.names import ORDER_REVIVE_QUEUE
from brokerset_protocol.bodies import BatchAck, BatchAckMessages
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Setup
from brokerset_rig.transaction_client import TransactionClient, transaction_client

PLACE = "t", "g", 0


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  # several parts of a broker change what is asked for
            await asyncio.sleep(0.01)


def running(setup: Setup, **changes: Any) -> AbstractAsyncContextManager[Broker]:
    return setup.broker(pop_clock_skew_ms=0, **changes)


async def prepare(broker: Broker, client: TransactionClient, count: int = 4) -> None:
    await client.create_topic("t")
    broker.groups.put(SubscriptionGroupConfig("g"))
    for number in range(count):
        broker.store.append(
            "t", 0, b"%d" % number, b"", flag=0, sys_flag=0, born_timestamp=5, born_host=bytes(8)
        )
    await until(lambda: broker.pop_log.is_known)


def admits(broker: Broker, attempt: str | None) -> bool:
    return broker.ordered_pops.admit(*PLACE, attempt)


async def pop(
    broker: Broker, attempt: str, offsets: list[int], invisible_ms: int = 60_000
) -> tuple[Handle, str]:
    """Give out messages in order as a pop does, and wait until the lock is safe."""
    assert admits(broker, attempt)
    now = broker.clock.now_ms()
    counts = broker.ordered_pops.give(
        *PLACE, attempt_id=attempt, pop_time=now, invisible_ms=invisible_ms, start=offsets[0],
        queue_offsets=offsets,
    )  # fmt: skip
    stored: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    broker.ordered_pops.when_stored(stored.set_result)
    assert await stored is PutStatus.PUT_OK
    return Handle(offsets[0], now, invisible_ms, ORDER_REVIVE_QUEUE, 0, "broker-a", 0, offsets[0]), counts


async def ack(client: TransactionClient, handle: Handle, offset: int) -> int:
    answer = await client.call(
        RequestCode.ACK_MESSAGE, consumerGroup="g", topic="t", queueId="0", extraInfo=handle.encode(),
        offset=str(offset),
    )  # fmt: skip
    return answer.code


async def change(client: TransactionClient, handle: Handle, offset: int, invisible_ms: int) -> Command:
    return await client.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, consumerGroup="g", topic="t", queueId="0",
        extraInfo=handle.encode(), offset=str(offset), invisibleTime=str(invisible_ms),
    )  # fmt: skip


async def test_the_queue_is_locked_until_all_is_acked_then_waiting_pops_are_woken(setup: Setup) -> None:
    """Acks in any order; the group goes on at the first message that is not acked."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        woken: list[tuple[str, str]] = []
        broker.ordered_pops.on_free = lambda topic, group: woken.append((topic, group))
        handle, counts = await pop(broker, "a", [0, 1])
        assert counts == "0 0 0"
        assert not admits(broker, "b")
        assert admits(broker, "a")

        assert [await ack(client, handle, 1), await ack(client, handle, 1)] == [0, 0]
        assert broker.pop_log.position(*PLACE) in (None, 0)
        assert not admits(broker, "b")
        assert await ack(client, handle, 0) == 0

        assert woken == [("t", "g")]
        assert admits(broker, "b")
        assert broker.pop_log.position(*PLACE) == 2
        assert await ack(client, handle, 0) == 0
        assert await ack(client, handle, 2) == 13


async def test_an_ack_of_another_pop_is_refused(setup: Setup) -> None:
    """A message that was popped again belongs to who has it now; one that nobody popped to nobody."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        stranger = Handle(0, 5, 60_000, ORDER_REVIVE_QUEUE, 0, "broker-a", 0, 0)
        assert await ack(client, stranger, 0) == 13
        assert broker.pop_log.position(*PLACE) is None
        first, _ = await pop(broker, "a", [0, 1], invisible_ms=1)
        await until(lambda: admits(broker, "b"))

        second, counts = await pop(broker, "b", [0, 1])

        assert counts == "0 qo0%0 1;0 qo0%1 1;0 0 1"
        assert await ack(client, first, 0) == 13
        assert (await change(client, first, 0, 5)).code == 13
        assert await ack(client, second, 0) == 0


async def test_a_changed_invisible_time_keeps_the_handle(setup: Setup) -> None:
    """A message that is given back at once frees the queue when no other is out, and wakes who waits."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        handle, _ = await pop(broker, "a", [0])
        woken: list[str] = []
        broker.ordered_pops.on_free = lambda topic, _group: woken.append(topic)

        longer = await change(client, handle, 0, 90_000)
        assert (longer.code, longer.ext["popTime"]) == (0, str(handle.pop_time))
        assert int(longer.ext["invisibleTime"]) >= 90_000
        assert longer.ext["reviveQid"] == "999"
        assert not admits(broker, "b")
        assert (await change(client, handle, 0, 0)).code == 0

        assert woken == ["t"]
        assert admits(broker, "b")


async def test_the_end_of_the_invisible_time_wakes_who_waits(setup: Setup) -> None:
    """Nobody acks; the queue is free by itself."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        woken: list[str] = []
        broker.ordered_pops.on_free = lambda topic, _group: woken.append(topic)
        await pop(broker, "a", [0], invisible_ms=50)

        await until(lambda: bool(woken))

        assert admits(broker, "b")


async def test_a_batch_of_acks_is_answered_when_it_is_safe(setup: Setup) -> None:
    """Bits name messages; a batch of messages that are nobody's is refused."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        handle, _ = await pop(broker, "a", [0, 1, 2])

        def batch(pop_time: int) -> bytes:
            bits = BatchAck.bits_of(0, (0, 1, 2))
            one = BatchAck("g", "t", 0, 0, ORDER_REVIVE_QUEUE, pop_time, 60_000, bits)
            return BatchAckMessages("broker-a", (one,)).to_json()

        assert (await client.call(RequestCode.BATCH_ACK_MESSAGE, body=batch(handle.pop_time - 1))).code == 13
        assert (await client.call(RequestCode.BATCH_ACK_MESSAGE, body=batch(handle.pop_time))).code == 0
        assert broker.pop_log.position(*PLACE) == 3


async def test_a_restart_keeps_the_lock_and_the_acks(setup: Setup) -> None:
    """The file has what was answered: a second client waits, an acked message is passed by."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        handle, _ = await pop(broker, "a", [0, 1, 2])
        assert await ack(client, handle, 1) == 0
        assert await ack(client, handle, 0) == 0
        file = broker.settings.store_path_root_dir / "config" / "consumerOrderInfo.json"
        saved = orjson.loads(file.read_bytes())["table"]["t@g"]["0"]
        assert (saved["a"], saved["cm"], saved["o"]) == ("a", 3, [0, 1, 2])

    async with running(setup) as broker, transaction_client(broker.port) as client:
        await until(lambda: broker.pop_log.is_known)
        assert not admits(broker, "b")
        assert admits(broker, "a")
        assert broker.pop_log.position(*PLACE) == 2
        assert broker.ordered_pops.passed_by(*PLACE, 2) == frozenset()
        assert await ack(client, handle, 2) == 0
        assert admits(broker, "b")


async def test_locks_go_with_their_group(setup: Setup) -> None:
    """Who deletes a group and creates it again begins without locks."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        await pop(broker, "a", [0])

        answer = await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset="true")

        assert answer.code == 0
        assert broker.order_locks.get(*PLACE) is None
        assert admits(broker, "b")


async def test_a_group_that_is_set_back_by_a_commit_stays_there_after_a_restart(setup: Setup) -> None:
    """Its lock says that it is further, and ends with the commit, with what is acknowledged there."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        handle, _ = await pop(broker, "a", [0, 1, 2])
        assert [await ack(client, handle, offset) for offset in (0, 1)] == [0, 0]
        woken: list[tuple[str, str]] = []
        broker.ordered_pops.on_free = lambda topic, group: woken.append((topic, group))
        await client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId="0", commitOffset="1"
        )

        assert admits(broker, "b")
        assert woken == [("t", "g")]
        assert await ack(client, handle, 2) == 13

    async with running(setup) as broker, transaction_client(broker.port) as client:
        await until(lambda: broker.pop_log.is_known)
        assert admits(broker, "b")
        assert broker.pop_log.position(*PLACE) == 1
