"""Offsets of groups are reset while their consumers work: nothing is skipped that should come, nothing
comes to a standstill, and offsets do not go back to where they were before."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from brokerset_client import (
    Admin,
    ClientInstance,
    ConsumeFromWhere,
    Later,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    PushConsumer,
    PushSettings,
    TopicConfig,
    Verdict,
    WindowLimits,
)
from brokerset_client.consumer_admin import ConsumerAdmin
from brokerset_rig.local_servers import running_broker, running_name_server
from brokerset_rig.waiting import until

QUEUES = 3
QUICK = PushSettings(commit_seconds=0.02, rebalance_seconds=0.5, lock_seconds=0.2, lock_valid_seconds=5.0)


class World:
    """A name server, a broker, a client, and all that was sent and consumed."""

    def __init__(self, instance: ClientInstance) -> None:
        self.instance = instance
        self.admin = Admin(instance=instance)
        self.got: list[tuple[int, int]] = []
        """Queue and queue offset of each message, as they came."""

    async def listener(self, message: MessageView) -> None:
        """Note it, and let others run."""
        self.got.append((message.queue_id, message.queue_offset))
        await asyncio.sleep(0)

    def since(self, mark: int) -> set[tuple[int, int]]:
        """What came after so many messages."""
        return set(self.got[mark:])


async def started(world: World, broker_name: str, messages: int) -> list[MessageQueue]:
    """Create topic and messages."""
    await world.admin.create_topic(TopicConfig("t", QUEUES, QUEUES))
    await world.admin.wait_for_route("t", QUEUES)
    await send(world, messages)
    return [MessageQueue("t", broker_name, queue) for queue in range(QUEUES)]


async def send(world: World, messages: int) -> None:
    """Send messages to all queues."""
    async with Producer("p", instance=world.instance) as producer:
        for number in range(messages):
            await producer.send(Message(topic="t", body=b"%d" % number))


def consumer(world: World, *, orderly: bool, **options: object) -> PushConsumer:
    """A member of group g, from the first message on."""
    settings: dict[str, object] = {
        "listener": world.listener, "settings": QUICK,
        "consume_from": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **options,
    }  # fmt: skip
    made = PushConsumer("g", instance=world.instance, orderly=orderly, **settings)  # type: ignore[arg-type]  # test options
    made.subscribe("t")
    return made


@pytest.mark.parametrize("orderly", [False, True])
async def test_everything_after_each_reset_comes_and_offsets_stay_ahead(
    tmp_path: Path, orderly: bool
) -> None:
    """Back to the start, to a time, to single offsets and to the end, while more is sent all the time."""
    source = random.Random(7)
    async with (
        running_name_server(tmp_path / "ns") as names,
        running_broker(tmp_path / "b", namesrv_addr=f"127.0.0.1:{names.port}") as broker,
        ClientInstance(f"127.0.0.1:{names.port}") as instance,
    ):
        await until(lambda: names.table.broker_count > 0)
        world = World(instance)
        queues = await started(world, broker.settings.broker_name, 90)
        sending = asyncio.create_task(send(world, 300))
        async with consumer(world, orderly=orderly):
            for _ in range(12):
                target = len(world.got) + source.randrange(60)
                await until(lambda target=target: len(world.got) >= target or sending.done())  # type: ignore[misc]  # bound early
                mark = len(world.got)
                kind = source.randrange(3)
                if kind == 0:
                    moved = await world.admin.reset_offsets("g", "t", 0)
                elif kind == 1:
                    moved = await world.admin.reset_offsets("g", "t", -1)
                else:
                    queue = source.choice(queues)
                    end = await world.admin.max_offset(queue)
                    moved = await world.admin.reset_queue_offset("g", queue, source.randrange(end + 1))
                ends = {queue.queue_id: await world.admin.max_offset(queue) for queue in moved}
                wanted = {
                    (queue.queue_id, offset)
                    for queue, first in moved.items()
                    for offset in range(first, ends[queue.queue_id])
                }
                await until(lambda mark=mark, wanted=wanted: wanted <= world.since(mark))  # type: ignore[misc]  # bound early
            await sending
            ends = {queue.queue_id: await world.admin.max_offset(queue) for queue in queues}

            await until(
                lambda: all(broker.offsets.query("g", "t", number) == end for number, end in ends.items())
            )
    assert {(number, end - 1) for number, end in ends.items()} <= set(world.got)


async def test_a_bad_message_is_skipped_though_the_consumer_fetches_no_more(tmp_path: Path) -> None:
    """An orderly consumer fails each time, and has fetched as much as it may: the notice gets it past."""
    failing = True

    async def listener(message: MessageView) -> Verdict:
        if failing and message.queue_offset == 0:
            return Later(suspend_ms=10)
        await world.listener(message)
        return None

    async with (
        running_name_server(tmp_path / "ns") as names,
        running_broker(
            tmp_path / "b", namesrv_addr=f"127.0.0.1:{names.port}", reset_notice_millis=20
        ) as broker,
        ClientInstance(f"127.0.0.1:{names.port}") as instance,
    ):
        await until(lambda: names.table.broker_count > 0)
        world = World(instance)
        queues = await started(world, broker.settings.broker_name, 60)
        settings = PushSettings(
            commit_seconds=0.02, lock_seconds=0.2, lock_valid_seconds=5.0, pull_batch=4,
            queue_limits=WindowLimits(messages_max=4),
        )  # fmt: skip
        member = consumer(world, orderly=True, listener=listener, settings=settings)
        async with member:
            await until(lambda: member.listener.failed > 5)
            await world.admin.reset_queue_offset("g", queues[0], 3)
            await until(lambda: (0, 19) in world.got)

            assert (0, 1) not in world.got
            assert (0, 3) in world.got
            assert broker.reset_notices.sent >= 1
            failing = False
            await until(lambda: len(world.since(0)) >= 57)


async def test_a_suspended_group_gets_nothing_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """`consumeEnable` is off: parked pulls are answered, none is given a message; after it nothing is
    lost."""
    async with (
        running_name_server(tmp_path / "ns") as names,
        running_broker(tmp_path / "b", namesrv_addr=f"127.0.0.1:{names.port}") as broker,
        ClientInstance(f"127.0.0.1:{names.port}") as instance,
    ):
        await until(lambda: names.table.broker_count > 0)
        world = World(instance)
        await started(world, broker.settings.broker_name, 9)
        consumers = ConsumerAdmin(world.admin)
        async with consumer(world, orderly=False):
            await until(lambda: len(world.got) == 9)
            await until(lambda: len(broker.parked_pulls) >= QUEUES)
            await consumers.allow("g", False)
            await send(world, 9)
            assert len(world.got) == 9

            await consumers.allow("g", True)
            await until(lambda: len(world.got) >= 18)

    assert len(set(world.got)) == len(world.got) == 18


async def test_a_group_goes_on_where_another_is(tmp_path: Path) -> None:
    """Clone of offsets, also of a single topic; groups that nobody made are refused."""
    async with (
        running_name_server(tmp_path / "ns") as names,
        running_broker(tmp_path / "b", namesrv_addr=f"127.0.0.1:{names.port}") as broker,
        ClientInstance(f"127.0.0.1:{names.port}") as instance,
    ):
        await until(lambda: names.table.broker_count > 0)
        world = World(instance)
        queues = await started(world, broker.settings.broker_name, 30)
        async with consumer(world, orderly=False) as member:
            await until(lambda: len(world.got) == 30)
            consumers = ConsumerAdmin(world.admin)
            (only,) = await consumers.members("g")
            await until(lambda: sum(broker.offsets.query("g", "t", n) or 0 for n in range(QUEUES)) == 30)
            assert await consumers.clone_offsets("g", "h", "t") == [only.broker]
            positions = await consumers.positions("g", "t")
            info = await consumers.running_info("g", only, stacks=True)

        assert only.client_id == member.instance.client_id
        assert sum(positions[only.client_id][queue] for queue in queues) == 30
        assert set(info.mq_table) >= set(queues)
        assert info.jstack is not None
        assert [broker.offsets.query("h", "t", n) for n in range(QUEUES)] == [
            broker.offsets.query("g", "t", n) for n in range(QUEUES)
        ]
