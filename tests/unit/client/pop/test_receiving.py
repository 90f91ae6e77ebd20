"""A POP consumer without a listener: `receive`, acks, changes and renewals at the application's own pace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerset_client.errors import BrokerUnreachable, HandleExpired, HandleRefused, NoQueue
from brokerset_client.pop.requests import PopWish, Source
from brokerset_rig.fake_pop import ALL, SOURCE, Asking, FakePopBroker
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

LONG = 10_000.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_messages_come_and_an_ack_returns_when_it_is_confirmed() -> None:
    broker = FakePopBroker()
    broker.put(b"1", b"2", b"3")

    async with Asking(broker) as consumer:
        got = await consumer.receiving.receive(2, 60.0, 5.0)
        await asyncio.gather(*(consumer.settling.ack(message) for message in got))

        assert [message.body for message in got] == [b"1", b"2"]
        assert broker.undone() == [b"3"]
        assert (broker.ack_sizes, consumer.settling.pending) == ([2], 0)


async def test_nothing_within_the_wait_is_no_message_and_no_error() -> None:
    async with Asking(FakePopBroker()) as consumer:
        begun = now()
        assert await consumer.receiving.receive(2, 60.0, 5.0) == []
        assert 5 <= now() - begun < 5.5


async def test_a_message_that_comes_while_it_waits_comes_at_once() -> None:
    broker = FakePopBroker()
    async with Asking(broker) as consumer:
        waiting = asyncio.create_task(consumer.receiving.receive(2, 60.0, 15.0))
        await asyncio.sleep(3)
        broker.put(b"m")
        begun = now()
        assert [message.body for message in await waiting] == [b"m"]
        assert now() - begun < 0.1


async def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    """What its long poll brings later is kept for the next one, with its whole invisible time."""
    broker = FakePopBroker()
    async with Asking(broker) as consumer:
        waiting = asyncio.create_task(consumer.receiving.receive(2, 10.0, 15.0))
        await asyncio.sleep(3)
        waiting.cancel()
        broker.put(b"m")
        await asyncio.sleep(8)
        (message,) = await consumer.receiving.receive(2, 10.0, 5.0)
        assert message.expires_at - now() > 9
        await consumer.settling.ack(message)
    assert broker.undone() == []


async def test_what_waited_here_for_too_long_is_not_given_out_as_ours() -> None:
    """Its time was over, and perhaps somebody else has it: it comes by another pop."""
    broker = FakePopBroker()
    async with Asking(broker) as consumer:
        waiting = asyncio.create_task(consumer.receiving.receive(2, 2.0, 15.0))
        await asyncio.sleep(1)
        waiting.cancel()
        broker.put(b"m")
        await asyncio.sleep(30)
        (message,) = await consumer.receiving.receive(2, 10.0, 5.0)
        assert broker.messages[0].serial == message.handle.pop_time
        await consumer.settling.ack(message)


async def test_a_receive_without_any_broker_raises_and_the_next_one_may_succeed() -> None:
    broker = FakePopBroker()
    broker.down = True
    async with Asking(broker) as consumer:
        with pytest.raises(BrokerUnreachable):
            await consumer.receiving.receive(2, 10.0, 5.0)
        assert broker.pops < 15
        broker.down = False
        broker.put(b"m")
        assert len(await consumer.receiving.receive(2, 10.0, 5.0)) == 1


async def test_no_known_broker_is_said() -> None:
    async with Asking(FakePopBroker()) as consumer:
        consumer.receiving.want([])
        with pytest.raises(NoQueue, match="check that the topics exist"):
            await consumer.receiving.receive(2, 10.0, 1.0)


async def test_the_end_of_a_consumer_ends_a_receive_and_gives_back_the_rest() -> None:
    """Also what a poll brings that waited at the broker then."""
    broker = FakePopBroker()
    async with Asking(broker) as consumer:
        waiting = asyncio.create_task(consumer.receiving.receive(2, 60.0, 15.0))
        await asyncio.sleep(1)
        assert consumer.receiving.close() == []
        assert await waiting == []
        broker.put(b"m")
        await until(lambda: broker.changes == [(0, 1, True)], 1)


async def test_what_was_not_taken_of_a_topic_that_is_wanted_no_more_is_not_given_out() -> None:
    broker = FakePopBroker()
    async with Asking(broker) as consumer:
        waiting = asyncio.create_task(consumer.receiving.receive(2, 60.0, 15.0))
        await asyncio.sleep(1)
        waiting.cancel()
        broker.put(b"m")
        await asyncio.sleep(1)
        (message,) = consumer.receiving.drop("t")
        assert message.body == b"m"
        assert await consumer.receiving.receive(2, 60.0, 0.0) == []


async def test_an_ack_behind_the_time_of_a_message_that_others_have_is_refused() -> None:
    """Acks are truthful: who was too late hears it."""
    broker = FakePopBroker()
    broker.put(b"m")
    async with Asking(broker) as consumer:
        (late,) = await consumer.receiving.receive(1, 10.0, 1.0)
        await asyncio.sleep(11)
        (again,) = await consumer.receiving.receive(1, 10.0, 1.0)
        with pytest.raises(HandleRefused):
            await consumer.settling.ack(late)
        assert late.lost
        assert broker.undone() == [b"m"]
        await consumer.settling.ack(again)
        assert again.reconsume_times == 1


async def test_an_ack_that_no_broker_confirms_in_time_says_so() -> None:
    """It is tried for as long as the message is ours."""
    broker = FakePopBroker()
    broker.put(b"m")
    async with Asking(broker) as consumer:
        (message,) = await consumer.receiving.receive(1, 10.0, 1.0)
        broker.down = True
        begun = now()
        with pytest.raises(HandleExpired, match="the ack"):
            await consumer.settling.ack(message)
        assert 9 < now() - begun < 13
        assert message.lost


async def test_an_ack_follows_a_change_that_is_under_way() -> None:
    """It needs the handle that comes with the answer of the change."""
    broker = FakePopBroker()
    broker.put(b"m")
    async with Asking(broker) as consumer:
        (message,) = await consumer.receiving.receive(1, 10.0, 1.0)
        change = asyncio.create_task(consumer.settling.change(message, 30.0))
        await asyncio.sleep(0)
        await consumer.settling.ack(message)
        await change
    assert broker.undone() == []


async def test_changes_of_one_message_follow_each_other() -> None:
    broker = FakePopBroker()
    broker.put(b"m")
    async with Asking(broker) as consumer:
        (message,) = await consumer.receiving.receive(1, 10.0, 1.0)
        await asyncio.gather(*(consumer.settling.change(message, seconds) for seconds in (20.0, 30.0, 40.0)))
        assert [milliseconds for _, milliseconds, _ in broker.changes] == [20_000, 30_000, 40_000]
        assert not message.lost


async def test_a_message_is_renewed_until_its_owner_ends_it() -> None:
    broker = FakePopBroker()
    broker.put(b"m")
    async with Asking(broker) as consumer:
        (message,) = await consumer.receiving.receive(1, 10.0, 1.0)
        consumer.renewals.begin([message])
        await asyncio.sleep(100)
        assert (broker.free(), consumer.lost) == ([], [])
        consumer.renewals.end([message])
        await asyncio.sleep(11)
        assert broker.free() == [b"m"]


async def test_a_renewal_that_is_refused_is_reported_once_and_ends() -> None:
    broker = FakePopBroker()
    broker.put(b"m")
    async with Asking(broker) as consumer:
        (message,) = await consumer.receiving.receive(1, 10.0, 1.0)
        consumer.renewals.begin([message])
        broker.messages[0].serial += 1  # somebody else has it
        await asyncio.sleep(100)
        assert (consumer.lost, message.lost, len(broker.changes)) == ([b"m"], True, 1)


async def test_several_sources_are_asked_by_turns() -> None:
    """The first of them does not starve the others: all are asked before one of them waits."""
    broker = FakePopBroker()
    async with Asking(broker, sources=3) as consumer:
        assert await consumer.receiving.receive(1, 10.0, 2.0) == []
    assert broker.pops == 6


async def test_waiting_for_acks_has_an_end() -> None:
    broker = FakePopBroker()
    broker.put(b"m")
    async with Asking(broker) as consumer:
        (message,) = await consumer.receiving.receive(1, 60.0, 1.0)
        broker.down = True
        done = consumer.settling.ack(message)
        begun = now()
        await consumer.settling.wait_acks(3.0)
        assert 2.9 < now() - begun < 3.2
        broker.down = False
        await consumer.settling.wait_acks(60.0)
        assert done.done()
    assert broker.undone() == []


async def test_acks_of_a_topic_that_is_gone_keep_no_others_waiting() -> None:
    """They are tried for as long as the message would be ours, which may be hours."""
    broker = FakePopBroker()
    broker.put(b"0", b"1")
    wish = PopWish(count=1, invisible_ms=3_600_000, wait_ms=0)
    (of_gone,) = (await broker.pop(SOURCE, ALL, wish)).messages
    (of_other,) = (await broker.pop(Source("t1", "broker-a"), ALL, wish)).messages
    broker.gone = {"t"}
    async with Asking(broker) as consumer:
        late = consumer.settling.ack(of_gone)
        await asyncio.sleep(100)
        async with asyncio.timeout(3):
            await consumer.settling.ack(of_other)
        broker.gone = set()
        await late
    assert broker.undone() == []


async def test_a_renewal_that_is_under_way_does_not_outlive_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the application begins again meanwhile: afterwards the invisible time runs."""
    broker = FakePopBroker()
    broker.put(b"m")
    change, answered = broker.change, asyncio.Event()

    async def slow(*of: Any, **with_: Any) -> None:
        await answered.wait()
        await change(*of, **with_)

    monkeypatch.setattr(broker, "change", slow)
    async with Asking(broker) as consumer:
        (message,) = await consumer.receiving.receive(1, 10.0, 1.0)
        consumer.renewals.begin([message])
        await asyncio.sleep(6)  # a renewal is under way
        consumer.renewals.end([message])
        consumer.renewals.begin([message])
        answered.set()
        await asyncio.sleep(30)
        assert consumer.lost == []
        consumer.renewals.end([message])
        await asyncio.sleep(30)
        assert broker.free() == [b"m"]
