"""Ordered pops of one broker over real sockets: order, locks, repeated attempts, and who waits."""

from __future__ import annotations

import asyncio

from brokerset_broker.app import Broker
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Setup
from brokerset_rig.pop_requests import (
    ack,
    append,
    bodies,
    change,
    handles,
    pop_in_order,
    running,
)
from brokerset_rig.transaction_client import TransactionClient, transaction_client
from brokerset_rig.waiting import until


async def prepare(broker: Broker, client: TransactionClient) -> None:
    await client.create_topic("t")
    broker.groups.put(SubscriptionGroupConfig("g", consume_message_orderly=True))
    await until(lambda: broker.pop_log.is_known)


async def notify(client: TransactionClient, attempt: str, poll_ms: int = 0) -> asyncio.Future[Command]:
    return asyncio.ensure_future(
        client.call(
            RequestCode.NOTIFICATION, consumerGroup="g", topic="t", queueId="0", pollTime=str(poll_ms),
            bornTime="0", order="true", attemptId=attempt,
        )
    )  # fmt: skip


async def test_nobody_gets_more_of_a_queue_until_all_of_it_is_acked(setup: Setup) -> None:
    """The order is kept: the second client gets what follows when the first one has acked, not before."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, *"01234")

        first = await pop_in_order(client, "a", maxMsgNums=2)
        locked = await pop_in_order(client, "b")
        acked = [await ack(client, handle) for handle in handles(first)]
        rest = await pop_in_order(client, "b")

        assert (bodies(first), first.ext["reviveQid"]) == (["0", "1"], "999")
        assert first.ext["orderCountInfo"] == "0 0 0"
        assert (locked.code, bodies(locked)) == (ResponseCode.POLLING_TIMEOUT, [])
        assert acked == [0, 0]
        assert bodies(rest) == ["2", "3", "4"]


async def test_a_repeated_attempt_gets_the_same_messages(setup: Setup) -> None:
    """A client whose answer was lost asks again at once; the handles of the first answer ack no more."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, *"01")

        first = await pop_in_order(client, "a")
        await until(lambda: broker.clock.now_ms() > int(first.ext["popTime"]))
        again = await pop_in_order(client, "a")

        assert bodies(first) == bodies(again) == ["0", "1"]
        assert await ack(client, handles(first)[0]) == ResponseCode.MESSAGE_ILLEGAL
        assert await ack(client, handles(again)[0]) == 0


async def test_who_waits_for_a_locked_queue_is_woken_by_the_last_ack(setup: Setup) -> None:
    """An ack that leaves something out wakes nobody."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, *"012")
        one, two = handles(await pop_in_order(client, "a", maxMsgNums=2))
        waits = asyncio.ensure_future(pop_in_order(client, "b", pollTime=9_000))
        await until(lambda: broker.pop_requests.waiting == 1)

        assert await ack(client, two) == 0
        assert broker.pop_requests.waiting == 1
        assert await ack(client, one) == 0

        assert bodies(await waits) == ["2"]


async def test_the_end_of_the_invisible_time_gives_the_same_messages_to_who_waits(setup: Setup) -> None:
    """Nobody acks: they come again from the queue itself, in order, and say how often they came."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, *"01")
        await pop_in_order(client, "a", invisibleTime=300)

        second = await pop_in_order(client, "b", pollTime=9_000)

        assert bodies(second) == ["0", "1"]
        assert second.ext["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"
        assert broker.pop_revival.revived == 0


async def test_what_was_acked_behind_an_open_message_is_not_given_again(setup: Setup) -> None:
    """Partial acks: 0 was not acked in time, 1 was; new ones follow, and the position moves behind all."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, *"012")
        _, one, _ = handles(await pop_in_order(client, "a", invisibleTime=300))
        assert await ack(client, one) == 0
        append(broker, "3")

        second = await pop_in_order(client, "b", pollTime=9_000)

        assert bodies(second) == ["0", "2", "3"]
        assert [await ack(client, handle) for handle in handles(second)] == [0, 0, 0]
        assert broker.offsets.query("g", "t", 0) == 4
        assert (await pop_in_order(client, "b")).code == ResponseCode.POLLING_TIMEOUT


async def test_a_message_that_is_given_back_wakes_who_waits(setup: Setup) -> None:
    """A changed invisible time: longer keeps the queue, 0 frees it at once."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0")
        (handle,) = handles(await pop_in_order(client, "a", invisibleTime=5_000))
        assert await change(client, handle, 60_000) == 0
        waits = asyncio.ensure_future(pop_in_order(client, "b", pollTime=9_000))
        await until(lambda: len(broker.pop_requests.pops) == 1)

        assert await change(client, handle, 0) == 0

        assert bodies(await waits) == ["0"]


async def test_queues_are_locked_one_by_one(setup: Setup) -> None:
    """A pop of any queue takes those that are free, each in its order."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0")
        append(broker, "1", queue_id=1)
        await pop_in_order(client, "a")

        other = await pop_in_order(client, "b", queueId=-1)

        assert bodies(other) == ["1"]


async def test_a_notification_says_what_an_ordered_pop_would_find(setup: Setup) -> None:
    """Nothing of a queue that somebody has, and nothing that was acked; one that waits is woken by an ack."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, *"012")

        async def has(attempt: str) -> str:
            return (await (await notify(client, attempt))).ext["hasMsg"]

        assert await has("b") == "true"
        found = handles(await pop_in_order(client, "a", maxMsgNums=2))
        assert [await has("b"), await has("a")] == ["false", "true"]
        waits = await notify(client, "b", 9_000)
        await until(lambda: broker.pop_requests.waiting == 1)
        for handle in found:
            assert await ack(client, handle) == 0
        assert (await waits).ext["hasMsg"] == "true"
        (last,) = handles(await pop_in_order(client, "b"))
        assert await ack(client, last) == 0
        assert await has("b") == "false"


async def test_what_is_not_wanted_is_passed_by_in_order(setup: Setup) -> None:
    """Tags: the position moves past what was not wanted when what was given is acked."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0", tags="b")
        append(broker, "1")
        append(broker, "2", tags="b")
        append(broker, "3")

        found = await pop_in_order(client, "a", exp="a", expType="TAG", maxMsgNums=1)
        assert bodies(found) == ["1"]
        assert await ack(client, handles(found)[0]) == 0
        rest = await pop_in_order(client, "a", exp="a", expType="TAG")

        assert bodies(rest) == ["3"]
        assert broker.offsets.query("g", "t", 0) == 2


async def test_a_restart_gives_a_locked_queue_to_nobody_else(setup: Setup) -> None:
    """The same attempt gets what is not acked, from the file of the locks."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, *"012")
        _, one, _ = handles(await pop_in_order(client, "a"))
        assert await ack(client, one) == 0

    async with running(setup) as broker, transaction_client(broker.port) as client:
        await until(lambda: broker.pop_log.is_known)
        locked = await pop_in_order(client, "b")
        again = await pop_in_order(client, "a")

        assert locked.code == ResponseCode.POLLING_TIMEOUT
        assert bodies(again) == ["0", "2"]
