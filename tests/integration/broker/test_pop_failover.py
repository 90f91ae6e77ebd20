"""POP when a master crashes, in groups of both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias, TypeVar

import pytest

from brokerset_broker.app import Broker
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.crashing_groups import CrashingGroup, controlled_group, dledger_group
from brokerset_rig.pop_requests import ack, bodies, change, handles, pop, pop_in_order
from brokerset_rig.transaction_client import TransactionClient, transaction_client
from brokerset_rig.waiting import until

pytestmark = pytest.mark.long
T = TypeVar("T")

Groups: TypeAlias = Callable[..., AbstractAsyncContextManager[CrashingGroup]]
UNAVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.FLUSH_SLAVE_TIMEOUT
"""What is asked again, of whoever leads then."""
BOTH = pytest.mark.parametrize("groups", [controlled_group, dledger_group])


async def prepare(client: TransactionClient, count: int) -> None:
    await client.create_topic("t")
    for number in range(count):
        assert (await client.send("t", b"%d" % number)).code == 0


async def known(group: CrashingGroup) -> Broker:
    broker = await group.master()
    await until(lambda: broker.pop_log.is_known)
    return broker


@BOTH
async def test_a_new_master_knows_who_has_what(tmp_path: Path, groups: Groups) -> None:
    """What was acked does not come back; what is out is given to nobody else, and its handle is good still;
    what is not acked comes back when its time is over."""
    async with groups(tmp_path, pop_clock_skew_ms=0) as group:
        first = await known(group)
        async with transaction_client(first.port) as client:
            await prepare(client, 6)
            given = handles(await pop(client, maxMsgNums=4, invisibleTime=8_000, queueId=0))
            longer = handles(await pop(client, maxMsgNums=1, queueId=0))
            assert [await ack(client, given[number]) for number in (0, 2)] == [0, 0]
            assert await change(client, longer[0], 90_000) == 0
            await group.crash(first)

        second = await known(group)
        async with transaction_client(second.port) as client:
            assert second is not first
            rest = await pop(client, queueId=0)
            assert bodies(rest) == ["5"]
            assert await ack(client, given[1]) == 0
            assert await ack(client, given[0]) == 0
            assert await ack(client, longer[0]) == ResponseCode.MESSAGE_ILLEGAL
            back = await pop(client, queueId=0, pollTime=19_000)
            assert bodies(back) == ["3"]
            assert await ack(client, given[3]) == ResponseCode.MESSAGE_ILLEGAL


@BOTH
async def test_a_new_master_keeps_the_order(tmp_path: Path, groups: Groups) -> None:
    """A locked queue is given to the same attempt alone, without what it has acked; handles stay good."""
    async with groups(tmp_path, pop_clock_skew_ms=0) as group:
        first = await known(group)
        async with transaction_client(first.port) as client:
            await prepare(client, 5)
            given = handles(await pop_in_order(client, "a", maxMsgNums=3))
            assert await ack(client, given[1]) == 0
            await group.crash(first)

        second = await known(group)
        async with transaction_client(second.port) as client:
            locked = await pop_in_order(client, "b")
            assert locked.code == ResponseCode.POLLING_TIMEOUT
            assert await ack(client, given[0]) == 0
            again = await pop_in_order(client, "a", maxMsgNums=1)
            assert bodies(again) == ["2"]
            waits = asyncio.ensure_future(pop_in_order(client, "b", pollTime=9_000))
            await until(lambda: len(second.pop_requests.pops) == 1)
            assert await ack(client, handles(again)[0]) == 0
            assert bodies(await waits) == ["3", "4"]


@BOTH
async def test_what_a_new_master_reads_is_bounded_under_constant_pops(tmp_path: Path, groups: Groups) -> None:
    """The progress and the consumer offset go on while messages are popped and acked without a pause; after
    a crash nothing that was acked comes again."""
    async with groups(tmp_path, pop_clock_skew_ms=0) as group:
        first = await known(group)
        topic = first.pop_log.topic
        got: list[str] = []

        def progress() -> int:
            queues = first.pop_log.points.queues
            return sum(first.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", topic, queue) or 0 for queue in queues)

        async with transaction_client(first.port) as client:
            await prepare(client, 1)

            async def work() -> None:
                number = 1
                while True:
                    assert (await client.send("t", b"%d" % number)).code == 0
                    number += 1
                    answer = await pop(client, queueId=0)
                    for body, handle in zip(bodies(answer), handles(answer), strict=True):
                        assert await ack(client, handle) == 0
                        got.append(body)

            working = asyncio.ensure_future(work())
            await until(lambda: working.done() or progress() > 60)
            assert (first.offsets.query("g", "t", 0) or 0) > 10
            working.cancel()
            await asyncio.wait((working,))
            await group.crash(first)

        second = await known(group)
        async with transaction_client(second.port) as client:
            records = sum(second.store.queue_end(topic, queue) for queue in range(8))
            assert second.pop_log.points.count <= 1
            assert records > 60
            again = await pop(client, queueId=0)
            assert not set(bodies(again)) & set(got) if again.code == 0 else True


async def ask_leader(
    group: CrashingGroup, ask: Callable[[TransactionClient], Awaitable[T]], wanted: Callable[[T], bool]
) -> T:
    """The first wanted answer, of whoever leads then: on a busy machine the lease of a leader runs out."""
    async with asyncio.timeout(45):
        while True:
            leader = await known(group)
            async with transaction_client(leader.port) as client:
                answer = await ask(client)
            if wanted(answer):
                return answer


def is_taken(code: int) -> bool:
    return code not in UNAVAILABLE


def has_messages(answer: Command) -> bool:
    return answer.code == 0


async def lose_quorum(group: CrashingGroup, leader: Broker) -> list[int]:
    """Crash all others; their numbers."""
    others = {number: broker for number, broker in group.brokers.items() if broker is not leader}
    for broker in others.values():
        await group.crash(broker)
    return list(others)


async def test_a_pop_whose_leader_loses_its_quorum_loses_nothing(tmp_path: Path) -> None:
    """It is refused, as nobody knows whether its check point stays; each message comes, at the latest when
    the invisible time is over, and to one pop only."""
    async with dledger_group(tmp_path, pop_clock_skew_ms=0) as group:
        first = await known(group)
        async with transaction_client(first.port) as client:
            await prepare(client, 3)
            others = await lose_quorum(group, first)
            asked = asyncio.get_running_loop().time()
            refused = await pop(client, invisibleTime=20_000, queueId=0, maxMsgNums=2)
            assert refused.code in UNAVAILABLE
            assert "the messages come again when 20000 ms are over" in (refused.remark or "")

        for number in others:
            await group.start(number)
        got: list[str] = []
        while len(got) < 3:
            answer = await ask_leader(
                group, lambda client: pop(client, queueId=0, pollTime=19_000), has_messages
            )
            got += bodies(answer)
        assert sorted(got) == ["0", "1", "2"]
        assert asyncio.get_running_loop().time() < asked + 45


async def test_an_ack_whose_leader_loses_its_quorum_can_be_repeated(tmp_path: Path) -> None:
    """It is refused, not lost in silence: the next leader takes it once more, and the message is done."""
    async with dledger_group(tmp_path, pop_clock_skew_ms=0) as group:
        first = await known(group)
        async with transaction_client(first.port) as client:
            await prepare(client, 2)
            given = handles(await pop(client, queueId=0, invisibleTime=20_000))
            ordered = handles(await pop_in_order(client, "a", consumerGroup="o", invisibleTime=60_000))
            others = await lose_quorum(group, first)
            assert await ack(client, given[0]) in UNAVAILABLE
            assert await ack(client, ordered[0], group="o") in UNAVAILABLE

        for number in others:
            await group.start(number)
        assert await ask_leader(group, lambda client: ack(client, given[0]), is_taken) == 0
        assert await ask_leader(group, lambda client: ack(client, ordered[0], group="o"), is_taken) == 0
        second = await ask_leader(group, lambda client: pop(client, queueId=0, pollTime=25_000), has_messages)
        assert bodies(second) == ["1"]
        in_order = await ask_leader(
            group, lambda client: pop_in_order(client, "a", consumerGroup="o"), has_messages
        )
        assert bodies(in_order) == ["1"]
