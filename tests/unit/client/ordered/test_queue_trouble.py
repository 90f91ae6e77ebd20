"""What brokers may answer to an owner: other masters, lost messages, resets, newer owners, lost answers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from brokerset_client.ordered.consuming import LaneLimits, OrderedConsumerSettings
from brokerset_client.retry import Backoff
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.fake_subject import FakeProgress, FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import Recorder, consumer_of
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

LONG = 1_000.0


def bodies(recorder: Recorder) -> list[int]:
    return [int(message.body) for message in recorder.handled]


async def test_another_master_is_claimed_and_nothing_comes_twice() -> None:
    """A new master knows no claims: the session claims again, and goes on behind what it has
    (statement 73)."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda _: 0.02)
    for number in range(100):
        subject.send("a", b"%d" % number)

    async with consumer_of(subject, recorder.handle):
        for _ in range(5):
            await asyncio.sleep(0.3)
            subject.new_master()
        await until(lambda: len(recorder.handled) == 100, LONG)

    assert bodies(recorder) == list(range(100))
    assert subject.violations == []


async def test_an_idle_consumer_notices_another_master() -> None:
    """A parked pull that ends with NOT_CLAIMED is followed by a claim at once."""
    subject = FakeSubject()
    recorder = Recorder()

    async with consumer_of(subject, recorder.handle):
        await asyncio.sleep(3)
        subject.new_master()
        await asyncio.sleep(0.1)
        subject.send("a", b"1")
        await until(lambda: recorder.handled, 0.2)


async def test_messages_that_a_master_has_lost_are_an_error_and_the_broker_says_where_to_go_on() -> None:
    """A position behind the end of the queue is said and counted; the session goes on where the broker is,
    and skips nothing that comes there (statement 66)."""
    subject = FakeSubject()
    recorder = Recorder()
    for number in range(50):
        subject.send("a", b"%d" % number)

    async with consumer_of(subject, recorder.handle) as consumer:
        await until(lambda: subject.group_progress().position == 50)
        subject.lose_tail(0, 40)
        for number in range(100, 120):
            subject.queue(subject.name, 0).append(b"%d" % number, {"__SHARDINGKEY": "a"})
        subject.lose_tail(0, 45)
        subject.send("a", b"200")
        await until(lambda: bodies(recorder)[-1] == 200, LONG)
        measured = consumer.measurements()[0]

    assert bodies(recorder) == [*range(50), *range(100, 105), 200]
    assert measured.resynced >= 1
    assert subject.violations == []


@pytest.mark.parametrize("said_by", ["pull", "claim"])
@pytest.mark.parametrize("position", [5, 95])
async def test_a_reset_drops_what_was_pulled_and_starts_there(position: int, said_by: str) -> None:
    """After an administrator's reset the session starts at the new position, whether a pull or a claim says
    so; a handler that runs ends first (statement 70)."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda _: 0.1)
    for number in range(200):
        subject.send("a", b"%d" % number)

    settings = OrderedConsumerSettings(pull_batch=10, lanes=LaneLimits(unhandled_max=10))
    async with consumer_of(subject, recorder.handle, settings=settings) as consumer:
        await until(lambda: len(recorder.handled) == 20)
        subject.reset(0, position)
        if said_by == "claim":
            subject.new_master()
        await until(lambda: len(recorder.begun) > 60, LONG)
        measured = consumer.measurements()[0]

    begun = [int(message.body) for _, message in recorder.begun]
    jump = next(n for n in range(1, len(begun)) if begun[n] != begun[n - 1] + 1)
    assert begun[jump] == position
    assert begun[jump - 1] < 40
    assert begun[jump:] == list(range(position, position + len(begun) - jump))
    assert recorder.overlaps == []
    assert measured.resynced == 1
    assert subject.violations == []


async def test_a_reset_while_shed_messages_are_pulled_again_lets_no_key_overlap() -> None:
    """The pull of what was shed hears of the reset first, while another key's handler runs: that one ends
    before its message comes again (statements 37, 70)."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda message: 10.0 if message.key == "slow" else 0.0)
    recorder.failing["bad"] = -1
    subject.send("bad", b"0")
    for number in range(1, 20):
        subject.send("bad" if number % 2 else f"good-{number}", b"%d" % number)
    subject.send("slow", b"20")
    settings = OrderedConsumerSettings(
        pull_batch=5, lanes=LaneLimits(unhandled_max=6, span_max=21), trouble=Backoff(first_ms=1)
    )

    async with consumer_of(subject, recorder.handle, settings=settings) as consumer:
        await until(lambda: any(message.key == "slow" for _, message in recorder.begun), LONG)
        subject.reset(0, 0)
        recorder.failing["bad"] = 0
        consumer.retry_now(subject.name)
        await until(lambda: [m.key for m in recorder.handled].count("slow") == 2, LONG)

    assert recorder.overlaps == []
    assert subject.violations == []


async def test_messages_that_retention_has_taken_are_counted() -> None:
    """A group whose position is older than the oldest message goes on there, and says how many it has missed
    (statement 66)."""
    subject = FakeSubject()
    recorder = Recorder()
    for number in range(50):
        subject.send("a", b"%d" % number)
    subject.queue(subject.name, 0).records[:30] = [None] * 30

    async with consumer_of(subject, recorder.handle) as consumer:
        await until(lambda: subject.group_progress().position == 50)
        expired = consumer.measurements()[0].expired

    assert bodies(recorder) == list(range(30, 50))
    assert expired == 30
    assert subject.violations == []


@pytest.mark.parametrize("strategy", list(OrderStrategy))
async def test_a_newer_owner_stops_everything_at_once(strategy: OrderStrategy) -> None:
    """STALE_EPOCH: handlers that run are cancelled, nothing more starts or is acknowledged, and a heartbeat
    asks the controllers (statement 55)."""
    subject = FakeSubject(strategy=strategy)
    recorder = Recorder(seconds=lambda _: 10.0)
    for number in range(30):
        subject.send(f"key-{number}", b"%d" % number)

    async with consumer_of(subject, recorder.handle) as consumer:
        await until(lambda: len(recorder.begun) == 30)
        progress = subject.group_progress()
        progress.epoch, progress.session = 99, "another"
        progress.end_pulls()
        before = Counter(what for *_, what in subject.requests)
        await asyncio.sleep(1)
        after = Counter(what for *_, what in subject.requests)
        measured = consumer.measurements()[0]

    assert recorder.handled == []
    assert len(recorder.begun) == 30
    assert all(context.cancelled for context in recorder.contexts)
    assert after["Acknowledge"] == 0
    assert after["heartbeat"] == before["heartbeat"] + 1
    assert measured.partitions[0].state == "fenced"
    assert measured.fenced == 1


async def test_a_lost_answer_to_an_ack_is_no_loss() -> None:
    """An ack that was stored and not answered is repeated, and the position fits (statement 58)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    recorder = Recorder(seconds=lambda _: 0.01)
    transport.lose_answers.add(RequestCode.BROKERSET_ACKNOWLEDGE)
    for number in range(100):
        subject.send("a", b"%d" % number)

    async with consumer_of(subject, recorder.handle, transport=transport):
        await until(lambda: subject.group_progress().position == 100, LONG)

    assert bodies(recorder) == list(range(100))
    assert subject.violations == []


async def test_lost_answers_to_claims_and_pulls_lose_nothing() -> None:
    """Whatever answer is lost, each message is handled once, in order (statement 60)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    recorder = Recorder()
    transport.lose_answers |= {RequestCode.BROKERSET_CLAIM_QUEUE, RequestCode.PULL_MESSAGE}
    for number in range(100):
        subject.send("a", b"%d" % number)

    async with consumer_of(subject, recorder.handle, transport=transport):
        await until(lambda: subject.group_progress().position == 100, LONG)
        transport.lose_answers |= {RequestCode.BROKERSET_CLAIM_QUEUE, RequestCode.PULL_MESSAGE}
        subject.new_master()
        subject.send("a", b"100")
        await until(lambda: subject.group_progress().position == 101, LONG)

    assert bodies(recorder) == list(range(101))
    assert subject.violations == []


async def test_an_unreachable_broker_is_asked_less_and_less() -> None:
    """A dead broker costs a few requests in a second, and handling goes on by itself (statement 32)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    recorder = Recorder()

    async with consumer_of(subject, recorder.handle, transport=transport):
        await asyncio.sleep(20)
        transport.brokers_cut = True
        subject.new_master()
        await asyncio.sleep(600)
        tries = transport.cut_tries
        transport.brokers_cut = False
        subject.send("a", b"1")
        await until(lambda: recorder.handled, 5)

    assert 300 <= tries <= 700


async def test_a_queue_that_a_rocketmq_client_has_locked_is_waited_for() -> None:
    """QUEUE_LOCKED: the claim is tried again, spaced, until the lock is free (statement 68)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    transport.refuse[RequestCode.BROKERSET_CLAIM_QUEUE] = ResponseCode.BROKERSET_QUEUE_LOCKED
    recorder = Recorder()
    subject.send("a", b"1")

    async with consumer_of(subject, recorder.handle, transport=transport):
        await asyncio.sleep(60)
        tries = transport.asked[RequestCode.BROKERSET_CLAIM_QUEUE]
        transport.refuse.clear()
        await until(lambda: recorder.handled, 5)

    assert 30 <= tries <= 80


async def test_a_broker_that_is_no_master_any_more_has_its_route_read_again() -> None:
    """Answers that a replaced master gives make the transport read the route (statement 33)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    transport.refuse[RequestCode.PULL_MESSAGE] = ResponseCode.SERVICE_NOT_AVAILABLE
    recorder = Recorder()
    subject.send("a", b"1")

    async with consumer_of(subject, recorder.handle, transport=transport):
        await until(lambda: subject.stale_routes > 2)
        transport.refuse.clear()
        await until(lambda: recorder.handled, 5)


async def test_a_broker_without_long_polling_is_not_asked_without_pause() -> None:
    """Empty answers that come at once slow the pulls down."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    transport.refuse[RequestCode.PULL_MESSAGE] = ResponseCode.PULL_NOT_FOUND
    transport.refused_ext = {
        "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"
    }  # fmt: skip
    recorder = Recorder()

    async with consumer_of(subject, recorder.handle, transport=transport):
        await asyncio.sleep(60)

    assert transport.asked[RequestCode.PULL_MESSAGE] < 400


async def test_the_position_of_a_group_is_where_the_next_owner_begins() -> None:
    """A new session begins at the acknowledged position, not at what the one before had pulled
    (statement 60)."""
    subject = FakeSubject()
    recorder = Recorder()
    for number in range(10):
        subject.send("a", b"%d" % number)
    subject.progress[subject.name, 0] = FakeProgress(position=4)

    async with consumer_of(subject, recorder.handle):
        await until(lambda: subject.group_progress().position == 10)

    assert bodies(recorder) == [4, 5, 6, 7, 8, 9]
