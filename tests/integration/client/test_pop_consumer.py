"""`PopConsumer` against our broker over sockets: what it promises its users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.pop.counts import CHECK_POINT
from brokerset_client import (
    ClientClosed,
    ClosedByListener,
    ConsumeFromWhere,
    ConsumeStatus,
    HandleRefused,
    Later,
    Message,
    PopConsumer,
    PoppedMessage,
    PopSettings,
    Producer,
    PushConsumer,
    TopicConfig,
)
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.waiting import until

OLDEST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@asynccontextmanager
async def cluster(folder: Path, queues: int = 4) -> AsyncIterator[tuple[str, Broker]]:
    """A name server, and a broker with a topic `t` that it knows, and whose POP is ready."""
    async with running_name_server(folder) as server:
        namesrv = f"{HOST}:{server.port}"
        async with running_broker(folder / "store", namesrv_addr=namesrv, pop_clock_skew_ms=0) as broker:
            broker.topics.update(TopicConfig("t", queues, queues))
            await until(lambda: broker.registrar.registered and broker.pop_log.is_known)
            yield namesrv, broker


async def send(namesrv: str, *bodies: bytes, tag: str = "a", key: str | None = None) -> None:
    async with Producer("p", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic="t", body=body, tags=tag, sharding_key=key))


def consumer(namesrv: str, *, expression: str = "*", **options: Any) -> PopConsumer:
    made = PopConsumer("g", namesrv=namesrv, consume_from=OLDEST, **options)
    made.subscribe("t", expression)
    return made


async def receive_all(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    found: list[PoppedMessage] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            found += await consumer.receive(count - len(found), wait=1.0)
    return found


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_messages_that_were_acknowledged_do_not_come_again(tmp_path: Path) -> None:
    """And those that were not come to another member when their time is over, with their count."""
    async with cluster(tmp_path) as (namesrv, _):
        await send(namesrv, *numbers(10))
        async with consumer(namesrv) as first:
            got = await receive_all(first, 10)
            assert sorted(message.body for message in got) == numbers(10)
            await asyncio.gather(*(first.ack(message) for message in got[1:]))
            await first.change_invisible(got[0], 0.3)
            async with consumer(namesrv) as second:
                (again,) = await receive_all(second, 1)
                assert (again.body, again.reconsume_times) == (got[0].body, 1)
                with pytest.raises(HandleRefused):
                    await first.ack(got[0])
                await second.ack(again)
                assert await second.receive(wait=0.5) == []


async def test_a_listener_gets_each_message_once_and_acknowledges(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, _):
        seen: list[bytes] = []

        async def listener(message: PoppedMessage) -> None:
            seen.append(message.body)

        async with consumer(namesrv, listener=listener) as member:
            await send(namesrv, *numbers(200))
            await until(lambda: member.counts.acked == 200)
        async with consumer(namesrv) as next_one:
            assert await next_one.receive(wait=0.3) == []
        assert sorted(seen) == sorted(numbers(200))


async def test_a_long_poll_brings_a_message_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, _), consumer(namesrv) as member:
        waiting = asyncio.create_task(member.receive(wait=15.0))
        await asyncio.sleep(0)
        await send(namesrv, b"m")
        async with asyncio.timeout(5):
            (message,) = await waiting
        await member.ack(message)


async def test_a_failure_comes_again_and_ends_as_a_dead_letter(tmp_path: Path) -> None:
    """Nothing is gone by failing too often: Java's POP consumer acknowledges such a message."""
    async with cluster(tmp_path) as (namesrv, broker):
        counts: list[int] = []

        async def listener(message: PoppedMessage) -> Later:
            counts.append(message.reconsume_times)
            return Later(after_seconds=0.05)

        settings = PopSettings(max_reconsume_times=2)
        async with consumer(namesrv, listener=listener, settings=settings) as member:
            await send(namesrv, b"m")
            await until(lambda: member.counts.dead == 1)

        assert counts == [0, 1, 2]
        assert broker.topics.get("%DLQ%g") is not None
        dead = PopConsumer("undertaker", namesrv=namesrv, consume_from=OLDEST)
        dead.subscribe("%DLQ%g")
        broker.topics.update(TopicConfig("%DLQ%g", 1, 1))
        async with dead:
            (letter,) = await receive_all(dead, 1)
            assert letter.body == b"m"


async def test_what_a_consumer_has_not_begun_with_at_its_end_is_somebody_elses_at_once(
    tmp_path: Path,
) -> None:
    """Not only after its invisible time of a minute."""
    async with cluster(tmp_path) as (namesrv, _):
        begun = asyncio.Event()

        async def listener(_: PoppedMessage) -> None:
            begun.set()

        async def slow(message: PoppedMessage) -> None:
            await listener(message)
            await asyncio.sleep(0.2)

        await send(namesrv, *numbers(20))
        async with consumer(namesrv, listener=slow, settings=PopSettings(workers=1)) as member:
            await begun.wait()
        rest = 20 - member.counts.acked
        assert rest >= 15
        async with consumer(namesrv) as next_one, asyncio.timeout(8):
            got = await receive_all(next_one, rest)
            assert {message.reconsume_times for message in got} <= {0, 1}
            await asyncio.gather(*(next_one.ack(message) for message in got))


async def test_tags_filter_at_the_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, _):
        await send(namesrv, b"1", b"2", tag="a")
        await send(namesrv, b"3", tag="b")
        async with consumer(namesrv, expression="b || c") as member:
            (message,) = await receive_all(member, 1)
            assert message.body == b"3"
            await member.ack(message)
            assert await member.receive(wait=0.3) == []


async def test_a_queue_is_consumed_in_order_over_a_failure(tmp_path: Path) -> None:
    """Two ordered members share the queues; each key stays in its order, though one of its messages fails."""
    async with cluster(tmp_path) as (namesrv, _):
        seen: dict[str, list[bytes]] = {}
        failed: set[str] = set()

        async def listener(message: PoppedMessage) -> ConsumeStatus | Later:
            key = message.properties["__SHARDINGKEY"]
            if message.body == b"5" and key not in failed:
                failed.add(key)
                return Later(after_seconds=0.2)
            seen.setdefault(key, []).append(message.body)
            return ConsumeStatus.SUCCESS

        for key in ("x", "y", "z"):
            await send(namesrv, *numbers(10), key=key)
        options: dict[str, Any] = {"listener": listener, "ordered": True}
        async with consumer(namesrv, **options) as first, consumer(namesrv, **options) as second:
            await until(lambda: first.counts.acked + second.counts.acked == 30)
        assert seen == dict.fromkeys(("x", "y", "z"), numbers(10))


async def test_a_block_keeps_messages_for_longer_than_their_time(tmp_path: Path) -> None:
    """`renewing`: half a second of invisible time, and work for three times as long."""
    async with cluster(tmp_path) as (namesrv, _):
        await send(namesrv, b"m")
        settings = PopSettings(invisible_seconds=0.5)
        async with consumer(namesrv, settings=settings) as first, consumer(namesrv) as second:
            (message,) = await receive_all(first, 1)
            async with first.renewing(message):
                assert await second.receive(wait=1.5) == []
                await first.ack(message)
            assert not message.lost


async def test_a_broker_that_starts_again_costs_no_message(tmp_path: Path) -> None:
    """What was acknowledged stays so, and what was out comes again or is acknowledged with its old handle."""
    async with running_name_server(tmp_path) as server:
        namesrv = f"{HOST}:{server.port}"
        options: dict[str, Any] = {"namesrv_addr": namesrv, "pop_clock_skew_ms": 0}
        async with running_broker(tmp_path / "store", **options) as broker:
            port = broker.port
            broker.topics.update(TopicConfig("t", 4, 4))
            await until(lambda: broker.registrar.registered and broker.pop_log.is_known)
            await send(namesrv, *numbers(10))
            member = consumer(namesrv)
            await member.start()
            got = await receive_all(member, 10)
            await member.ack(got[0])
        acks = [asyncio.create_task(member.ack(message)) for message in got[1:5]]
        async with running_broker(tmp_path / "store", listen_port=port, **options):
            await asyncio.gather(*acks)
            for message in got[5:]:
                await member.nack(message, 0.05)
            again = await receive_all(member, 5)
            assert sorted(m.body for m in again) == sorted(m.body for m in got[5:])
            await asyncio.gather(*(member.ack(message) for message in again))
            await member.close()


async def test_a_pause_ends_with_resume_and_loses_nothing(tmp_path: Path) -> None:
    """The listener is not called in between; what a poll that waits brings meanwhile is given back."""
    async with cluster(tmp_path) as (namesrv, _):
        seen: list[bytes] = []

        async def listener(message: PoppedMessage) -> None:
            seen.append(message.body)

        async with consumer(namesrv, listener=listener) as member:
            await send(namesrv, b"1")
            await until(lambda: member.counts.acked == 1)
            await member.suspend()
            await send(namesrv, b"2")
            async with consumer(namesrv) as other:
                (message,) = await receive_all(other, 1)
                assert message.body == b"2"
                await other.nack(message, 0.01)
            assert seen == [b"1"]
            member.resume()
            await until(lambda: member.counts.acked == 2)
        assert seen == [b"1", b"2"]


async def test_two_consumers_share_an_instance_and_one_leaves(tmp_path: Path) -> None:
    """The poll of the one that left ends by that, and the other gets the message."""
    async with cluster(tmp_path) as (namesrv, _), Producer("p", namesrv=namesrv) as producer:
        first = PopConsumer("g", instance=producer.instance, consume_from=OLDEST)
        second = PopConsumer("g", instance=producer.instance, consume_from=OLDEST)
        first.subscribe("t")
        await first.start()
        assert await first.receive(wait=0.3) == []
        waiting = asyncio.create_task(first.receive(wait=5.0))
        await asyncio.sleep(0)
        await first.close()
        assert await waiting == []
        second.subscribe("t")
        async with second:
            await producer.send(Message(topic="t", body=b"m"))
            (message,) = await receive_all(second, 1)
            await second.ack(message)
        with pytest.raises(ClientClosed):
            await first.receive()


async def test_what_a_consumer_gives_back_at_its_end_does_not_go_to_its_own_long_poll(tmp_path: Path) -> None:
    """Though that waits longer than the poll of the member that gets it."""
    async with cluster(tmp_path, queues=1) as (namesrv, broker), consumer(namesrv) as other:
        goes_on = asyncio.Event()

        async def listener(_: PoppedMessage) -> None:
            await goes_on.wait()

        waiting = broker.pop_requests.pops
        first = consumer(namesrv, listener=listener, settings=PopSettings(workers=1))
        await first.start()
        await send(namesrv, *numbers(3))
        await until(lambda: first.counts.popped == 3 and len(waiting) == 1)
        gets = asyncio.create_task(receive_all(other, 2))
        await until(lambda: len(waiting) == 2)
        closing = asyncio.create_task(first.close())

        got = await gets

        assert sorted(message.body for message in got) == [b"1", b"2"]
        assert not waiting
        goes_on.set()
        await closing
        assert (first.counts.acked, first.counts.given_back) == (1, 2)
        await asyncio.gather(*(other.ack(message) for message in got))
        pops = sum(count for of, count in broker.pop_log.counts.stored.items() if of[2] == CHECK_POINT)
        assert pops <= 3 + 2 + 2  # of the two consumers, and what was given back


@pytest.mark.parametrize("kind", [PopConsumer, PushConsumer])
async def test_a_listener_that_closes_its_own_consumer_is_refused_at_once(
    tmp_path: Path, kind: type[PopConsumer] | type[PushConsumer]
) -> None:
    """It would wait for itself; a task that it starts may do it, and its message is done then."""
    async with cluster(tmp_path, queues=1) as (namesrv, broker):
        closing: list[asyncio.Task[None]] = []

        async def listener(_: Any) -> None:
            with pytest.raises(ClosedByListener, match="let another task close it"):
                await member.close()
            closing.append(asyncio.create_task(member.close()))

        member = kind("g", namesrv=namesrv, listener=listener, consume_from=OLDEST)
        member.subscribe("t")
        await member.start()
        await send(namesrv, b"m")
        await until(lambda: closing)
        async with asyncio.timeout(10):
            await closing[0]

        assert broker.pop_log.in_flight("t", "g", 0) == 0
        await until(lambda: broker.offsets.query("g", "t", 0) == 1)


async def test_a_topic_that_is_wanted_no_more_goes_to_others(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, _):
        seen: list[bytes] = []

        async def listener(message: PoppedMessage) -> None:
            seen.append(message.body)

        async with consumer(namesrv, listener=listener) as member:
            await until(lambda: member.sources)
            await member.unsubscribe("t")
            assert member.sources == []
            await send(namesrv, b"m")
            async with consumer(namesrv) as other:
                (message,) = await receive_all(other, 1)
                await other.ack(message)
        assert seen == []
