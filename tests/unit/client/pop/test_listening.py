"""A POP consumer with a listener: what becomes of messages, whatever listener and broker do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from brokerset_client import ConsumeStatus, Later, PoppedMessage
from brokerset_protocol import subscriptions
from brokerset_rig.fake_pop import FakePopBroker, Listening
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

LONG = 10_000.0


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_what_succeeds_is_acknowledged_in_batches() -> None:
    """Acks of one turn share a request, and each message is acknowledged once."""
    broker, seen = FakePopBroker(), []
    broker.put(*numbers(100))

    async def listener(message: PoppedMessage) -> None:
        seen.append(message.body)

    async with Listening(broker, listener) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert sorted(seen) == sorted(numbers(100))
    assert sum(broker.ack_sizes) == 100
    assert len(broker.ack_sizes) < 20
    assert (consumer.work.counts.popped, consumer.work.counts.acked, consumer.hand.count) == (100, 100, 0)


async def test_a_batch_listener_gets_several_and_a_failure_concerns_all_of_them() -> None:
    broker = FakePopBroker()
    broker.put(*numbers(5))
    calls: list[list[bytes]] = []

    async def listener(messages: Sequence[PoppedMessage]) -> ConsumeStatus:
        calls.append([message.body for message in messages])
        return ConsumeStatus.SUCCESS if len(calls) > 1 else ConsumeStatus.RECONSUME_LATER

    async with Listening(broker, batch=listener, batch_max=4, backoff_seconds=(3.0,)):
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert calls == [[b"0", b"1", b"2", b"3"], [b"4"], [b"0", b"1", b"2", b"3"]]


async def test_a_failure_comes_again_after_the_back_off_which_grows() -> None:
    """10 s, 30 s, then 60 s by default; also after an exception."""
    broker = FakePopBroker()
    broker.put(b"m")
    times: list[float] = []

    async def listener(_: PoppedMessage) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 4:
            raise RuntimeError("not yet")

    async with Listening(broker, listener) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert [round(b - a) for a, b in itertools.pairwise(times)] == [10, 30, 60]
    assert (consumer.work.counts.failed, consumer.work.counts.acked) == (3, 1)


async def test_a_listener_says_when_its_message_comes_again() -> None:
    broker = FakePopBroker()
    broker.put(b"m")
    times: list[float] = []

    async def listener(_: PoppedMessage) -> Later | None:
        times.append(asyncio.get_running_loop().time())
        return Later(after_seconds=77.0) if len(times) == 1 else None

    async with Listening(broker, listener):
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert round(times[1] - times[0]) == 77


async def test_what_fails_too_often_is_a_dead_letter_and_acknowledged() -> None:
    """It is acknowledged only when the broker has taken the dead letter; else it comes again."""
    broker = FakePopBroker()
    broker.put(b"m")
    broker.dead_letters_refused = True
    calls = 0

    async def listener(_: PoppedMessage) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        return ConsumeStatus.RECONSUME_LATER

    async with Listening(broker, listener, max_reconsume_times=2, backoff_seconds=(1.0,)) as consumer:
        await until(lambda: calls == 5, LONG, pause=0.1)
        assert broker.undone() == [b"m"]
        broker.dead_letters_refused = False
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert broker.messages[0].dead
    assert (calls, consumer.work.counts.dead, consumer.work.counts.acked) == (6, 1, 0)


async def test_a_long_listener_keeps_its_message() -> None:
    """Its invisible time of 10 s is renewed for 300 s; nobody else gets it."""
    broker, calls = FakePopBroker(), 0
    broker.put(b"m")

    async def listener(_: PoppedMessage) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(300)

    async with Listening(broker, listener, invisible_seconds=10.0) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert (calls, consumer.lost) == (1, [])
    assert consumer.work.renewals.renewed >= 30


async def test_what_waits_for_a_listener_is_renewed_too() -> None:
    """One worker, 20 messages of 5 s each, and 10 s of invisible time: each is worked on once."""
    broker, seen = FakePopBroker(), []
    broker.put(*numbers(20))

    async def listener(message: PoppedMessage) -> None:
        seen.append(message.body)
        await asyncio.sleep(5)

    async with Listening(broker, listener, invisible_seconds=10.0, workers=1) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert (seen, consumer.lost) == (numbers(20), [])


async def test_a_renewal_that_fails_is_said_and_the_ack_does_not_pass_for_done() -> None:
    """The broker is away for longer than the invisible time: the message is reported as lost, once."""
    broker, calls = FakePopBroker(), 0
    broker.put(b"m")

    async def listener(_: PoppedMessage) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            broker.down = True
            await asyncio.sleep(60)
            broker.down = False

    async with Listening(broker, listener, invisible_seconds=10.0) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert calls == 2
    assert consumer.lost == [(b"m", "HandleExpired")]
    assert (consumer.work.counts.lost, consumer.work.counts.acked, consumer.hand.count) == (1, 1, 0)


async def test_a_broker_that_is_away_for_a_moment_costs_nothing() -> None:
    """Acks are repeated until the next master answers; nothing comes twice, and the route is read again."""
    broker, seen = FakePopBroker(), []
    broker.put(*numbers(10))

    async def listener(message: PoppedMessage) -> None:
        seen.append(message.body)
        broker.down = True

    async with Listening(broker, listener) as consumer:
        await until(lambda: len(seen) == 10, LONG, pause=0.1)
        await asyncio.sleep(8)
        assert len(broker.undone()) == 10
        broker.down = False
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert (sorted(seen), consumer.lost) == (numbers(10), [])
    assert broker.stales > 0


async def test_a_batch_of_acks_that_is_refused_is_asked_for_one_by_one() -> None:
    broker = FakePopBroker()
    broker.put(*numbers(8))
    broker.batches_refused = True

    async def listener(_: PoppedMessage) -> None:
        pass

    async with Listening(broker, listener) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert consumer.lost == []
    assert broker.ack_sizes.count(1) == 8


async def test_closing_gives_back_at_once_what_no_listener_has_begun_with() -> None:
    """And waits for the one that runs; what is given back counts as not delivered."""
    broker, begun = FakePopBroker(), asyncio.Event()
    broker.put(*numbers(10))

    async def listener(_: PoppedMessage) -> None:
        begun.set()
        await asyncio.sleep(2)

    async with Listening(broker, listener, workers=1) as consumer:
        await begun.wait()

    await asyncio.sleep(0.01)
    assert broker.free() == numbers(10)[1:]
    assert [kept.times for kept in broker.messages[1:]] == [0] * 9
    assert (consumer.work.counts.acked, consumer.work.counts.given_back, consumer.hand.count) == (1, 9, 0)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_listener_that_takes_too_long_at_the_end_is_cancelled_and_all_is_given_back(
    ordered: bool,
) -> None:
    """Ordered, that is the whole batch of the queue, and not only the message of the call."""
    broker, begun = FakePopBroker(ordered=ordered), asyncio.Event()
    broker.put(*numbers(4))

    async def listener(_: PoppedMessage) -> None:
        begun.set()
        await asyncio.sleep(LONG)

    async with Listening(broker, listener, workers=1, close_timeout=1.0, ordered=ordered) as consumer:
        await begun.wait()
        stopped_at = asyncio.get_running_loop().time()
        await consumer.stop()
        assert asyncio.get_running_loop().time() - stopped_at < 1.5

    await asyncio.sleep(0.01)
    assert broker.free() == numbers(4)
    assert (consumer.work.counts.given_back, consumer.hand.count) == (4, 0)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_pause_gives_back_and_what_a_poll_brings_later_too(ordered: bool) -> None:
    """The listener is not called again before `resume`, also not with the rest of an ordered batch."""
    broker, seen = FakePopBroker(ordered=ordered), []
    broker.put(*numbers(4))

    async def listener(message: PoppedMessage) -> None:
        seen.append(message.body)
        await asyncio.sleep(1)

    async with Listening(broker, listener, workers=1, ordered=ordered) as consumer:
        await until(lambda: seen, LONG, pause=0.1)
        consumer.hand.suspended = True
        await consumer.work.give_back_waiting()
        await consumer.listener.quiet()
        broker.put(b"new")
        await asyncio.sleep(50)
        assert seen == [b"0"]
        assert broker.free() == [b"1", b"2", b"3", b"new"]
        consumer.hand.suspended = False
        consumer.hand.changed()
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert seen == [b"0", b"1", b"2", b"3", b"new"]


async def test_no_more_is_asked_for_than_there_is_room_for() -> None:
    """One poll waits at a source; it may bring one batch on top."""
    broker = FakePopBroker()
    broker.put(*numbers(1000))
    gate = asyncio.Event()

    async def listener(_: PoppedMessage) -> None:
        await gate.wait()

    async with Listening(broker, listener, in_hand_max=50) as consumer:
        await asyncio.sleep(20)
        assert 50 <= consumer.hand.count < 50 + 32
        gate.set()
        await until(lambda: not broker.undone(), LONG, pause=0.1)


async def test_what_only_the_hash_of_a_tag_matched_is_acknowledged_and_not_shown() -> None:
    broker, seen = FakePopBroker(), []
    broker.put(b"1", b"2", tag="a")
    broker.put(b"3", tag="b")
    only_b = subscriptions.parse("t", "b", version=1)

    async def listener(message: PoppedMessage) -> None:
        seen.append(message.body)

    async with Listening(broker, listener, subscription=only_b) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert (seen, consumer.work.counts.popped) == ([b"3"], 1)


async def test_a_broker_without_room_for_long_polls_is_not_asked_without_end() -> None:
    broker = FakePopBroker()
    broker.full = True

    async def listener(_: PoppedMessage) -> None:
        pass

    async with Listening(broker, listener):
        await asyncio.sleep(100)

    assert broker.pops <= 210


async def test_a_broker_that_is_away_is_not_asked_without_end() -> None:
    """And when it is back its messages come within some seconds."""
    broker, seen = FakePopBroker(), []
    broker.down = True

    async def listener(message: PoppedMessage) -> None:
        seen.append(message.body)

    async with Listening(broker, listener):
        await asyncio.sleep(100)
        assert broker.pops <= 45
        broker.down = False
        broker.put(b"m")
        await until(lambda: seen, 4)


async def test_a_queue_stays_in_order_over_failures() -> None:
    """What is behind a message that failed is given back, and comes after it; other queues go on."""
    broker, seen = FakePopBroker(ordered=True), []
    broker.put(*numbers(6))
    broker.put(b"other", queue_id=1)
    failures = {b"2": 2}

    async def listener(message: PoppedMessage) -> ConsumeStatus:
        if failures.get(message.body, 0):
            failures[message.body] -= 1
            return ConsumeStatus.RECONSUME_LATER
        seen.append(message.body)
        return ConsumeStatus.SUCCESS

    async with Listening(broker, listener, ordered=True) as consumer:
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert [body for body in seen if body != b"other"] == numbers(6)
    assert seen.index(b"other") < seen.index(b"2")
    assert consumer.work.counts.lost == 0


async def test_an_attempt_of_an_ordered_pop_keeps_its_name_until_it_is_answered() -> None:
    """So the broker can give the same messages again when its answer was lost."""
    broker = FakePopBroker(ordered=True)
    broker.down = True

    async def listener(_: PoppedMessage) -> None:
        pass

    async with Listening(broker, listener, ordered=True):
        await asyncio.sleep(5)
        tries = len(broker.attempts)
        broker.down = False
        broker.put(b"1")
        await until(lambda: not broker.undone(), LONG, pause=0.1)
        broker.put(b"2")
        await until(lambda: not broker.undone(), LONG, pause=0.1)

    assert tries > 3
    assert len(set(broker.attempts[: tries + 1])) == 1
    assert len(set(broker.attempts)) >= 2
