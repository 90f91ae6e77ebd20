"""The pull consumer: assignment, seeking, polling, committing, single pulls."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_client import (
    ClientClosed,
    ClientError,
    ConsumeFromWhere,
    MessageQueue,
    PullConsumer,
    PullStatus,
    pull_consumer,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.waiting import until

from .fake_broker import FakeBroker, FakeCluster, refuse

FIRST = MessageQueue("t", "a", 0)
SECOND = MessageQueue("t", "a", 1)


async def one_broker(cluster: FakeCluster, messages: int = 0) -> FakeBroker:
    broker = await cluster.add_broker()
    cluster.topics["t"] = {"a": 2}
    for number in range(messages):
        broker.put("t", number % 2, b"%d" % number)
    return broker


def consumer(cluster: FakeCluster, *, auto_commit: bool = False) -> PullConsumer:
    return PullConsumer(
        "g",
        namesrv=cluster.namesrv,
        auto_commit=auto_commit,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )


async def take(reader: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in await reader.poll(timeout=5.0)]
    return found


async def test_polling_gives_everything_of_the_assigned_queues_in_order(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, 100)
    async with consumer(cluster) as reader:
        assert await reader.assign_topic("t") == [FIRST, SECOND]
        found = await take(reader, 100)
        assert reader.position(FIRST) == 50
        await reader.commit()
        assert await reader.committed(FIRST) == 50
        waiting = asyncio.create_task(reader.poll(timeout=5.0))
        await asyncio.sleep(0)
        broker.put("t", 0, b"new")
        late = await waiting

    assert [int(body) for body in found if int(body) % 2 == 0] == list(range(0, 100, 2))
    assert [int(body) for body in found if int(body) % 2] == list(range(1, 100, 2))
    assert [message.body for message in late] == [b"new"]


async def test_seeking_forgets_what_was_fetched_ahead(cluster: FakeCluster) -> None:
    await one_broker(cluster, 20)
    async with consumer(cluster) as reader:
        await reader.assign([FIRST])
        await take(reader, 10)
        reader.seek(FIRST, 7)
        again = await take(reader, 3)
        await reader.seek_to_begin()
        first = await reader.poll(messages_max=1)
        await reader.seek_to_end(FIRST)
        nothing = await reader.poll(timeout=0.05)
        with pytest.raises(ValueError, match="not assigned"):
            reader.seek(SECOND, 0)

    assert again == [b"14", b"16", b"18"]
    assert first[0].body == b"0"
    assert nothing == []


async def test_paused_queues_give_nothing_and_keep_their_place(cluster: FakeCluster) -> None:
    """The other queues go on; what was fetched ahead comes after the pause, and seeking does not end it."""
    broker = await one_broker(cluster, 20)
    async with consumer(cluster) as reader:
        await reader.assign_topic("t")
        first = await take(reader, 4)
        reader.pause(FIRST)
        place = reader.position(FIRST)
        assert reader.paused() == [FIRST]
        others = await take(reader, 10 - sum(int(body) % 2 for body in first))
        assert all(int(body) % 2 for body in others)
        assert await reader.poll(timeout=0.05) == []
        assert reader.position(FIRST) == place

        reader.seek(FIRST, 9)
        assert reader.paused() == [FIRST]
        waiting = asyncio.create_task(reader.poll(timeout=5.0))
        await asyncio.sleep(0)
        reader.resume()
        assert [message.body for message in await waiting] == [b"18"]
        assert reader.paused() == []
        reader.pause()
        broker.put("t", 1, b"21")
        assert await reader.poll(timeout=0.05) == []
        with pytest.raises(ValueError, match="not assigned"):
            reader.pause(MessageQueue("t", "a", 7))


async def test_what_was_polled_is_stored_at_close(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, 10)
    async with consumer(cluster, auto_commit=True) as reader:
        await reader.assign([FIRST])
        await reader.poll(messages_max=2)
    assert broker.offsets == {("g", "t", 0): 2}

    async with consumer(cluster) as reader:
        await reader.assign([FIRST])
        found = await take(reader, 3)

    assert found == [b"4", b"6", b"8"]


async def test_a_consumer_can_be_iterated(cluster: FakeCluster) -> None:
    await one_broker(cluster, 10)
    found = []
    async with consumer(cluster) as reader:
        await reader.assign_topic("t")
        async for message in reader:
            found.append(message.body)
            if len(found) == 10:
                break

    assert len(set(found)) == 10


async def test_trouble_is_mended_in_the_background_and_told_if_nothing_comes(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, 2)
    broker.script(RequestCode.PULL_MESSAGE, *[refuse(ResponseCode.NO_PERMISSION, "closed")] * 4)
    async with consumer(cluster) as reader:
        await reader.assign([FIRST])
        with pytest.raises(ClientError, match="closed"):
            await reader.poll(timeout=0.1)
        assert await take(reader, 1) == [b"0"]


async def test_a_single_pull_says_what_it_found(cluster: FakeCluster) -> None:
    broker = await one_broker(cluster, 10)
    async with consumer(cluster) as reader:
        found = await reader.pull(FIRST, 1, messages_max=2)
        end = await reader.pull(FIRST, 5)
        broker.moved_to = 5
        beyond = await reader.pull(FIRST, 99)

    assert (found.status, [m.body for m in found.messages], found.next_queue_offset) == (
        PullStatus.FOUND,
        [b"2", b"4"],
        3,
    )
    assert (end.status, end.messages, end.max_queue_offset) == (PullStatus.NO_NEW_MSG, [], 5)
    assert (beyond.status, beyond.next_queue_offset) == (PullStatus.OFFSET_ILLEGAL, 5)
    assert all(int(command.ext["sysFlag"]) == 4 for command in broker.seen(RequestCode.PULL_MESSAGE))


async def test_fetching_ahead_is_bounded(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerset_client.pull_consumer.PREFETCH_MESSAGES_MAX", 32)

    broker = await one_broker(cluster, 400)
    async with consumer(cluster) as reader:
        await reader.assign([FIRST])
        await until(lambda: len(broker.seen(RequestCode.PULL_MESSAGE)) == 1)
        await asyncio.sleep(0.1)  # time for a pull too many
        assert len(broker.seen(RequestCode.PULL_MESSAGE)) == 1
        assert len(await take(reader, 200)) == 200


async def test_a_closed_consumer_says_so(cluster: FakeCluster) -> None:
    await one_broker(cluster)
    reader = consumer(cluster)
    with pytest.raises(ClientClosed):
        await reader.poll()
    async with reader:
        await reader.assign([FIRST])
        waiting = asyncio.create_task(reader.poll(timeout=30.0))
        await asyncio.sleep(0.01)

    with pytest.raises(ClientClosed):
        await waiting


async def test_only_what_the_application_came_back_from_is_stored_by_itself(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of the last poll are still in its hands: a crash must not lose them."""

    monkeypatch.setattr(pull_consumer, "COMMIT_SECONDS", 0.02)

    broker = await one_broker(cluster, messages=4)
    async with consumer(cluster, auto_commit=True) as reader:
        await reader.assign_topic("t")
        assert len(await reader.poll(messages_max=1)) == 1
        await asyncio.sleep(0.1)
        assert sum(broker.offsets.values()) == 0
        assert len(await reader.poll(messages_max=1)) == 1
        await until(lambda: sum(broker.offsets.values()) == 1)
        await asyncio.sleep(0.1)
        assert sum(broker.offsets.values()) == 1

    assert sum(broker.offsets.values()) == 2


async def test_a_reset_back_is_followed_and_stored(cluster: FakeCluster) -> None:
    """What was fetched before a reset comes no more between, and what is stored goes back, too: after a crash
    the group goes on where the reset took it, and skips nothing."""
    broker = await one_broker(cluster, messages=20)
    async with consumer(cluster) as reader:
        await reader.assign([FIRST])
        assert len(await reader.poll(messages_max=8)) == 8
        await reader.commit()
        broker.moved_to = 3
        broker.put("t", 0, b"20")  # ends the parked pull
        await until(lambda: broker.moved_to is None)
        await until(lambda: reader.position(FIRST) == 3)
        found = await reader.poll(messages_max=2)
        await reader.commit()

    assert [message.body for message in found] == [b"6", b"8"]
    assert broker.offsets == {("g", "t", 0): 5}


async def test_an_offset_that_moves_forward_leaves_what_was_fetched(cluster: FakeCluster) -> None:
    """The broker has deleted what lies between; what came before that is given all the same."""
    broker = await one_broker(cluster, messages=20)
    async with consumer(cluster) as reader:
        await reader.assign([FIRST])
        assert len(await reader.poll(messages_max=8)) == 8
        await until(lambda: len(broker.seen(RequestCode.PULL_MESSAGE)) == 2)
        broker.moved_to = 12
        broker.put("t", 0, b"20")
        await until(lambda: broker.moved_to is None)
        broker.put("t", 0, b"deleted")
        broker.put("t", 0, b"24")
        found = await take(reader, 4)

    assert found == [b"16", b"18", b"20", b"24"]


async def test_a_reset_back_is_stored_without_a_call_of_the_application(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `auto_commit` what is stored goes back with the reset."""
    monkeypatch.setattr(pull_consumer, "COMMIT_SECONDS", 0.02)
    broker = await one_broker(cluster, messages=20)
    async with consumer(cluster, auto_commit=True) as reader:
        await reader.assign([FIRST])
        await reader.poll(messages_max=8)
        await reader.poll(messages_max=1)
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 8)
        broker.moved_to = 3
        broker.put("t", 0, b"20")
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 3)
