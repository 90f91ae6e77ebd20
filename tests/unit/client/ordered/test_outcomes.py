"""What handlers do, and what becomes of their messages: a consumer of a subject in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from brokerset_client.ordered.consuming import (
    FailurePolicy,
    HandlingContext,
    LaneLimits,
    OrderedConsumerSettings,
    OrderedMessage,
    Pending,
    PoisonPolicy,
    SubscriptionOptions,
)
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.fake_subject import DELAY_SECONDS, GROUP, FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import Recorder, consumer_of
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

LONG = 1_000.0
"""Seconds of virtual time that a test may take."""


async def test_strict_failure_stops_its_key_alone() -> None:
    """A key that fails is tried again, spaced, without a copy; its later messages wait, other keys go on
    (statement 38)."""
    subject = FakeSubject()
    recorder = Recorder()
    recorder.failing["bad"] = 5
    subject.send("bad", b"1")
    for number in range(2, 22):
        subject.send(f"good-{number}", b"%d" % number)
    subject.send("bad", b"22")

    async with consumer_of(subject, recorder.handle) as consumer:
        await until(lambda: len(recorder.handled) == 20)
        assert [message.key for message in recorder.handled if message.key == "bad"] == []
        blocked = consumer.measurements()[0].partitions[0].blocked
        await until(lambda: len(recorder.handled) == 22, LONG)

    attempts = [at for at, message in recorder.begun if message.body == b"1"]
    waits = [later - earlier for earlier, later in pairwise(attempts)]
    assert [(each.key, each.waiting) for each in blocked] == [("bad", 1)]
    assert recorder.by_key()["bad"] == [b"1", b"22"]
    assert len(attempts) == 6
    assert all(wait > 0.079 * 2**n for n, wait in enumerate(waits))
    assert [request for request in subject.requests if request[2] == "SendBack"] == []
    assert [context.attempt for context in recorder.contexts if context.attempt > 1] == [2, 3, 4, 5, 6]


async def test_poison_lets_other_keys_of_the_partition_go_on_for_long() -> None:
    """One key that always fails, among a hundred: the others lose nothing of their throughput, though the
    position cannot pass it (statements 38, 44)."""
    subject = FakeSubject()
    recorder = Recorder()
    recorder.failing["key-0"] = -1
    for number in range(3_000):
        subject.send(f"key-{number % 100}", b"%d" % number)

    async with consumer_of(subject, recorder.handle) as consumer:
        await until(lambda: len(recorder.handled) == 2_970)
        measured = consumer.measurements()[0].partitions[0]

    assert measured.position == 0
    assert measured.unhandled == 30
    assert subject.group_progress().position == 0


async def test_a_blocked_key_with_much_traffic_leaves_room_for_others() -> None:
    """A third of the messages belong to a key that fails: the others are handled all the same, with bounded
    memory, and the key's own follow in order when its cause was mended (statements 38, 44)."""
    subject = FakeSubject()
    recorder = Recorder()
    recorder.failing["bad"] = -1
    for number in range(900):
        subject.send(f"good-{number % 20}" if number % 3 else "bad", b"%d" % number)
    settings = OrderedConsumerSettings(pull_batch=10, lanes=LaneLimits(unhandled_max=20))

    async with consumer_of(subject, recorder.handle, settings=settings) as consumer:
        await until(lambda: len(recorder.handled) == 600)
        measured = consumer.measurements()[0].partitions[0]
        await asyncio.sleep(20)
        recorder.failing["bad"] = 0
        consumer.retry_now(subject.name)
        await until(lambda: len(recorder.handled) == 900, 30)
        await until(lambda: subject.group_progress().position == 900)

    assert measured.unhandled <= 29
    assert recorder.by_key()["bad"] == [b"%d" % number for number in range(0, 900, 3)]
    assert len(recorder.handled) == 900
    assert recorder.overlaps == []
    assert subject.violations == []


@pytest.mark.parametrize(
    ("poison", "dead"), [(PoisonPolicy.SKIP, []), (PoisonPolicy.DEAD_LETTER, [b"poison"])]
)
async def test_poison_policies_free_the_lane(poison: PoisonPolicy, dead: list[bytes]) -> None:
    """After the last attempt the message is skipped, or becomes one dead letter, and the lane goes on
    (statement 38)."""
    subject = FakeSubject()
    recorder = Recorder()
    recorder.failing["a"] = 3
    subject.send("a", b"poison")
    subject.send("a", b"next")
    options = SubscriptionOptions(failures=FailurePolicy(attempts_max=3, poison=poison))

    async with consumer_of(subject, recorder.handle, options=options):
        await until(lambda: recorder.handled, LONG)

    assert recorder.by_key() == {"a": [b"next"]}
    assert subject.dead == dead
    assert subject.group_progress().position == 2


async def test_best_tried_failure_makes_one_copy_and_the_next_message_runs() -> None:
    """Exactly one copy for retry, the original acknowledged, the copy handled after its delay with one more
    failure counted (statement 39)."""
    subject = FakeSubject(strategy=OrderStrategy.BEST_TRIED)
    recorder = Recorder()
    recorder.failing["a"] = 1
    subject.send("a", b"1")
    subject.send("a", b"2")

    async with consumer_of(subject, recorder.handle):
        await until(lambda: recorder.handled)
        assert recorder.by_key() == {"a": [b"2"]}
        await until(lambda: subject.group_progress().position == 2)
        await until(lambda: len(recorder.handled) == 2, LONG)

    copy = recorder.handled[1]
    begun = [at for at, message in recorder.begun if message.body == b"1"]
    assert (copy.body, copy.reconsume_times, copy.view.topic) == (b"1", 1, subject.name)
    assert begun[1] - begun[0] >= DELAY_SECONDS
    assert Counter(what for *_, what in subject.requests)["SendBack"] == 1
    assert subject.violations == []


async def test_best_tried_gives_up_with_one_dead_letter() -> None:
    """After as many copies as allowed there is exactly one dead letter, and nothing more (statement 39)."""
    subject = FakeSubject(strategy=OrderStrategy.BEST_TRIED)
    recorder = Recorder()
    recorder.failing["a"] = -1
    subject.send("a", b"1")
    options = SubscriptionOptions(failures=FailurePolicy(reconsume_max=2))

    async with consumer_of(subject, recorder.handle, options=options) as consumer:
        await until(lambda: subject.dead, LONG)
        await asyncio.sleep(100)
        measured = consumer.measurements()[0]

    assert subject.dead == [b"1"]
    assert len(recorder.begun) == 3
    assert (measured.sent_back, measured.dead, measured.failed) == (2, 1, 3)


async def test_a_copy_that_could_not_be_stored_is_tried_again_before_the_message_is_done() -> None:
    """As long as no copy is stored the original is not acknowledged; the copy then reaches the group's own
    retry topic (statement 40)."""
    subject = FakeSubject(strategy=OrderStrategy.BEST_TRIED)
    transport = FakeTransport(subject)
    transport.refuse[RequestCode.BROKERSET_SEND_BACK] = 1
    recorder = Recorder()
    recorder.failing["a"] = 1
    subject.send("a", b"1")

    async with consumer_of(subject, recorder.handle, transport=transport):
        await asyncio.sleep(30)
        assert subject.group_progress().position == 0
        del transport.refuse[RequestCode.BROKERSET_SEND_BACK]
        await until(lambda: recorder.handled, LONG)

    assert list(subject.queues) == [(subject.name, 0), (f"%RETRY%{GROUP}%{subject.name}", 0)]
    assert subject.group_progress().position == 1


@pytest.mark.parametrize("strategy", list(OrderStrategy))
async def test_an_answer_within_the_deadline_counts(strategy: OrderStrategy) -> None:
    """A handler may finish later: its lane waits for the answer, and nothing runs twice (statement 41)."""
    subject = FakeSubject(strategy=strategy)
    waiting: list[Pending] = []
    begun: list[bytes] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> Pending:
        begun.append(message.body)
        waiting.append(context.defer())
        return waiting[-1]

    subject.send("a", b"1")
    subject.send("a", b"2")
    async with consumer_of(subject, handle):
        await asyncio.sleep(100)
        assert begun == [b"1"]
        waiting[0].done()
        await until(lambda: len(begun) == 2)
        waiting[1].done()
        await until(lambda: subject.group_progress().position == 2)

    assert begun == [b"1", b"2"]


async def test_an_answer_that_never_comes_is_a_failure_under_strict() -> None:
    """Not answered within the time for handling: redelivered, spaced, and counted (statements 41, 42)."""
    subject = FakeSubject()
    attempts: list[tuple[float, int]] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> Pending:
        attempts.append((asyncio.get_running_loop().time(), context.attempt))
        pending = context.defer()
        if context.attempt == 3:
            pending.done()
        return pending

    subject.send("a", b"1")
    settings = OrderedConsumerSettings(handling_seconds=20)
    async with consumer_of(subject, handle, settings=settings):
        await until(lambda: subject.group_progress().position == 1, LONG)

    assert [attempt for _, attempt in attempts] == [1, 2, 3]
    assert attempts[1][0] - attempts[0][0] >= 20.08


async def test_an_answer_that_never_comes_is_sent_back_under_best_tried() -> None:
    """A message that nobody answers for does not stop its partition: a copy is made, and acks go on
    (statement 42)."""
    subject = FakeSubject(strategy=OrderStrategy.BEST_TRIED)

    async def handle(message: OrderedMessage, context: HandlingContext) -> Pending | None:
        return context.defer() if message.body == b"1" and not message.reconsume_times else None

    subject.send("a", b"1")
    for number in range(2, 300):
        subject.send(f"key-{number}", b"%d" % number)
    settings = OrderedConsumerSettings(handling_seconds=20)
    async with consumer_of(subject, handle, settings=settings) as consumer:
        await until(lambda: subject.group_progress().position == 299, LONG)
        await until(lambda: consumer.measurements()[0].handled == 299, LONG)

    assert subject.group_progress().position == 299


async def test_a_deferred_failure_is_a_failure() -> None:
    """What a pending answer fails with counts like what a handler raises."""
    subject = FakeSubject()
    attempts: list[int] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> Pending:
        attempts.append(context.attempt)
        pending = context.defer()
        if context.attempt == 1:
            pending.failed("the other system said no")
        else:
            pending.done()
        return pending

    subject.send("a", b"1")
    async with consumer_of(subject, handle) as consumer:
        await until(lambda: len(attempts) == 1)
        await asyncio.sleep(0.01)
        blocked = consumer.measurements()[0].partitions[0].blocked
        await until(lambda: subject.group_progress().position == 1, LONG)

    assert attempts == [1, 2]
    assert blocked[0].reason == "HandlingFailed: the other system said no"


async def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    """The time for handling ends an attempt; the next one begins when it has ended, never before
    (statement 37)."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda _: 1_000.0 if len(recorder.begun) < 3 else 0.0)
    subject.send("a", b"1")

    settings = OrderedConsumerSettings(handling_seconds=2)
    async with consumer_of(subject, recorder.handle, settings=settings):
        await until(lambda: recorder.handled, LONG)

    assert len(recorder.begun) == 3
    assert recorder.overlaps == []
    assert all(context.cancelled for context in recorder.contexts[:2])


async def test_handlers_get_fencing_token_deadline_and_sequence() -> None:
    """A handler knows the ownership epoch, its deadline, and where the message stands among those of its key
    (statement 48)."""
    subject = FakeSubject()
    subject.epochs = 16
    found: list[tuple[OrderedMessage, HandlingContext, float]] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        found.append((message, context, context.remaining()))

    subject.send("order-10001", b"1", tags="paid")
    subject.send("order-10001", b"2")
    async with consumer_of(subject, handle):
        await until(lambda: len(found) == 2)

    message, context, remaining = found[0]
    assert (context.epoch, context.attempt) == (17, 1)
    assert 29.0 < remaining <= 30.0
    assert (message.key, message.logical_partition, message.partition_id) == ("order-10001", 115, 0)
    assert [each.sequence for each, *_ in found] == [0, 1]
    assert (message.queue_offset, message.body, message.tags) == (0, b"1", "paid")


async def test_the_deadline_moves_on_with_the_permission() -> None:
    """A handler that takes longer than one permission goes on while heartbeats are answered."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda _: 100.0)
    subject.send("a", b"1")

    async with consumer_of(subject, recorder.handle):
        await until(lambda: recorder.handled, LONG)

    assert len(recorder.begun) == 1


async def test_messages_without_a_stamp_keep_the_order_of_their_key() -> None:
    """What no ordered producer sent goes by its key, and without one into a common lane (statement 37)."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda _: 0.01)
    queue = subject.queue(subject.name, 0)
    for number in range(6):
        queue.append(b"%d" % number, {"__SHARDINGKEY": "k"} if number % 2 else {"ORDER_STAMP": "no stamp"})

    async with consumer_of(subject, recorder.handle):
        await until(lambda: len(recorder.handled) == 6)

    assert recorder.by_key() == {None: [b"0", b"2", b"4"], "k": [b"1", b"3", b"5"]}
    assert recorder.overlaps == []
    assert {message.sequence for message in recorder.handled} == {None}


async def test_other_tags_count_as_handled() -> None:
    """A subscription by tags gets those alone, and its position passes the others (statement 64)."""
    subject = FakeSubject()
    recorder = Recorder()
    for number in range(200):
        subject.send("a", b"%d" % number, tags="paid" if number == 150 else "made")

    options = SubscriptionOptions(tags="paid || sent")
    async with consumer_of(subject, recorder.handle, options=options):
        await until(lambda: subject.group_progress().position == 200)

    assert [message.body for message in recorder.handled] == [b"150"]


async def test_handlers_of_a_subscription_are_bounded() -> None:
    """No more handlers run than the subscription allows, over all partitions."""
    subject = FakeSubject(4)
    running = most = 0

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    for number in range(200):
        subject.send(f"key-{number}", b"")
    settings = OrderedConsumerSettings(handlers_max=5, lanes=LaneLimits(running_max=4))
    async with consumer_of(subject, handle, settings=settings) as consumer:
        await until(lambda: consumer.measurements()[0].handled == 200, LONG)

    assert most == 5


async def test_acks_are_ranges_without_gaps_and_few() -> None:
    """Many messages need few acks, and these follow each other without a gap (statement 43)."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda message: 0.001 * (message.queue_offset % 7))
    for number in range(1_000):
        subject.send(f"key-{number % 50}", b"")

    async with consumer_of(subject, recorder.handle):
        await until(lambda: subject.group_progress().position == 1_000)

    ranges = [(first, last) for *_, first, last in subject.acks]
    assert [first for first, _ in ranges] == [0, *(last + 1 for _, last in ranges[:-1])]
    assert len(ranges) < 100


async def test_a_paused_subscription_handles_nothing_and_keeps_its_partitions() -> None:
    """Pausing stops handlers, not only pulls; resuming goes on where it was (statement 50)."""
    subject = FakeSubject()
    recorder = Recorder(seconds=lambda _: 0.01)
    for number in range(100):
        subject.send("a", b"%d" % number)

    async with consumer_of(subject, recorder.handle) as consumer:
        await until(lambda: len(recorder.handled) == 10)
        consumer.pause(subject.name)
        await asyncio.sleep(60)
        paused_at = len(recorder.handled)
        owner = dict(subject.owners)
        consumer.resume(subject.name)
        await until(lambda: len(recorder.handled) == 100)

    assert paused_at <= 11
    assert owner[0].epoch == 1
    assert recorder.by_key()["a"] == [b"%d" % number for number in range(100)]
