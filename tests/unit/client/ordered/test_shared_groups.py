"""Members of a Shared group: all of them are given messages of all partitions, in no order."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import chain

import pytest

from brokerset_client.ordered.consuming import (
    FailurePolicy,
    LaneLimits,
    OrderedConsumer,
    OrderedConsumerSettings,
    SubscriptionOptions,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy
from brokerset_rig.fake_pull_logs import FORGOTTEN_SECONDS
from brokerset_rig.fake_subject import DELAY_SECONDS, GROUP, SHARED_EPOCH, FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import Recorder, consumer_of
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

LONG = 20_000.0
SHARED = SubscriptionOptions(consume_strategy=ConsumeStrategy.SHARED)
RETRIES = f"%RETRY%{GROUP}%orders"


def now() -> float:
    return asyncio.get_running_loop().time()


def shared_subject(strategy: OrderStrategy = OrderStrategy.STRICT, partitions: int = 1) -> FakeSubject:
    return FakeSubject(partitions, strategy=strategy, consume=ConsumeStrategy.SHARED)


def member(
    subject: FakeSubject,
    recorder: Recorder,
    name: str = "first",
    *,
    transport: FakeTransport | None = None,
    settings: OrderedConsumerSettings | None = None,
    options: SubscriptionOptions = SHARED,
) -> OrderedConsumer:
    return consumer_of(
        subject, recorder.handle, name=name, transport=transport, settings=settings, options=options
    )


def bodies(*recorders: Recorder) -> list[int]:
    return sorted(int(each.body) for each in chain(*(recorder.handled for recorder in recorders)))


def position(subject: FakeSubject, topic: str | None = None) -> int:
    return subject.group_progress(0, topic).sharing.group_position


async def test_members_share_a_partition_and_handle_each_message_once() -> None:
    """More members than partitions all work, also on messages of one key, many at the same time."""
    subject = shared_subject()
    first, second = Recorder(seconds=lambda _: 1.0), Recorder(seconds=lambda _: 1.0)

    async with member(subject, first), member(subject, second, "second"):
        await until(lambda: len(subject.members) == 2)
        await asyncio.sleep(1)
        began_at = now()
        for number in range(400):
            subject.send("a", b"%d" % number)
        await until(lambda: position(subject) == 400, LONG)
        took = now() - began_at

    assert bodies(first, second) == list(range(400))
    assert min(len(first.handled), len(second.handled)) >= 100
    assert took < 12
    assert {context.epoch for context in first.contexts + second.contexts} == {SHARED_EPOCH}
    assert {message.queue_offset for message in first.handled + second.handled} == set(range(400))
    assert subject.violations == []


async def test_the_messages_of_a_dead_member_come_again_to_another() -> None:
    """A member that neither asks nor acknowledges any more is forgotten by the broker: what it had is handled
    by others, and what it had acknowledged is not."""
    subject = shared_subject()
    transport = FakeTransport(subject)
    first = Recorder(seconds=lambda message: 0.0 if int(message.body) < 10 else 1_000.0)
    second = Recorder()
    for number in range(40):
        subject.send("a", b"%d" % number)

    dead = member(subject, first, transport=transport)
    dead.start()
    await until(lambda: position(subject) == 10)
    transport.brokers_cut = transport.controllers_cut = True
    died_at = now()
    async with member(subject, second, "second"):
        await until(lambda: position(subject) == 40, LONG)
        took = now() - died_at
    await dead.close(1)

    assert bodies(second) == list(range(10, 40))
    assert FORGOTTEN_SECONDS - 5 < took < FORGOTTEN_SECONDS + 5
    assert subject.violations == []


async def test_lost_answers_lose_nothing_and_give_nothing_twice() -> None:
    """What an answer that was lost had is pulled once more by its pull sequences."""
    subject = shared_subject()
    transport = FakeTransport(subject)
    recorder = Recorder()
    lost = {
        RequestCode.BROKERSET_CLAIM_QUEUE,
        RequestCode.PULL_MESSAGE,
        RequestCode.BROKERSET_ACKNOWLEDGE,
    }
    transport.lose_answers |= lost
    for number in range(200):
        subject.send("a", b"%d" % number)

    async with member(subject, recorder, transport=transport):
        await until(lambda: position(subject) == 200, LONG)
        assert transport.lose_answers == set()
        transport.lose_answers |= {RequestCode.PULL_MESSAGE}
        for number in range(200, 210):
            subject.send("a", b"%d" % number)
        await until(lambda: position(subject) == 210, LONG)

    assert bodies(recorder) == list(range(210))
    assert subject.violations == []


async def test_after_a_change_of_the_master_late_results_do_nothing_and_messages_come_again() -> None:
    """A new master has no pull logs: what was pulled is dropped, results of handlers that run do not count,
    and another pull log begins; what was acknowledged does not come again."""
    subject = shared_subject()
    recorder = Recorder(seconds=lambda message: 0.0 if int(message.body) < 20 else 3.0)
    for number in range(30):
        subject.send("a", b"%d" % number)

    async with member(subject, recorder) as consumer:
        await until(lambda: position(subject) == 20)
        await until(lambda: len(recorder.begun) == 30)
        subject.new_master()
        await until(lambda: position(subject) == 30, LONG)
        measured = consumer.measurements()[0]

    times = Counter(int(message.body) for message in recorder.handled)
    assert times == Counter({**dict.fromkeys(range(20), 1), **dict.fromkeys(range(20, 30), 2)})
    assert measured.too_late == 10
    assert measured.resynced >= 1
    assert subject.violations == []


@pytest.mark.parametrize("filters", [True, False])
async def test_tags_are_filtered_and_pull_sequences_still_fit(filters: bool) -> None:
    """What has another tag counts as handled, whether the broker drops it or the client; the others keep
    their own queue offsets, and no ack passes one that runs (statement 64)."""
    subject = shared_subject()
    subject.filters = filters
    recorder = Recorder(seconds=lambda message: 20.0 if message.body == b"41" else 0.0)
    for number in range(120):
        subject.send("a", b"%d" % number, tags="even" if number % 2 == 0 else "odd")

    options = SubscriptionOptions(consume_strategy=ConsumeStrategy.SHARED, tags="odd")
    async with member(subject, recorder, options=options):
        await asyncio.sleep(10)
        running = position(subject)
        await until(lambda: position(subject) == 120, LONG)

    assert running == 41
    assert bodies(recorder) == list(range(1, 120, 2))
    assert all(message.queue_offset == int(message.body) for message in recorder.handled)
    assert subject.violations == []


async def test_a_pull_whose_messages_were_all_dropped_is_repeated_at_once() -> None:
    """A broker that has searched for long without a match says so, and there may be one further on."""
    subject = shared_subject()
    transport = FakeTransport(subject)
    transport.refuse[RequestCode.PULL_MESSAGE] = ResponseCode.PULL_RETRY_IMMEDIATELY
    fields = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId", "groupPosition")
    transport.refused_ext = dict.fromkeys(fields, "0")

    async with member(subject, Recorder(), transport=transport):
        await asyncio.sleep(10)

    assert transport.asked[RequestCode.PULL_MESSAGE] > 1_000


@pytest.mark.parametrize("strategy", list(OrderStrategy))
async def test_a_failure_goes_to_the_retry_topic_and_to_the_dead_letters_at_last(
    strategy: OrderStrategy,
) -> None:
    """Whatever the subject's strategy, nothing waits for a message that fails (statement 39)."""
    subject = shared_subject(strategy)
    first, second = Recorder(), Recorder()
    for recorder in (first, second):
        recorder.failing["bad"] = -1
    for number in range(50):
        subject.send("bad" if number == 7 else "good", b"%d" % number)
    policy = FailurePolicy(reconsume_max=2)
    options = SubscriptionOptions(consume_strategy=ConsumeStrategy.SHARED, failures=policy)

    async with (
        member(subject, first, options=options) as consumer,
        member(subject, second, "second", options=options) as other,
    ):
        await until(lambda: position(subject) == 50, 10)
        await until(lambda: subject.dead, LONG)
        await until(lambda: position(subject, RETRIES) == 2, LONG)
        measured = [consumer.measurements()[0], other.measurements()[0]]

    begun = [each for each in first.begun + second.begun if each[1].key == "bad"]
    begun.sort(key=lambda each: each[0])
    assert [message.reconsume_times for _, message in begun] == [0, 1, 2]
    assert begun[1][0] - begun[0][0] >= DELAY_SECONDS
    assert subject.dead == [b"7"]
    assert sum(each.sent_back for each in measured) == 2
    assert bodies(first, second) == [number for number in range(50) if number != 7]
    assert subject.violations == []


async def test_a_member_without_anything_to_ask_is_not_forgotten() -> None:
    """As long as its handlers run, and it has no room for more, it claims again from time to time: nothing
    of it is given to others."""
    subject = shared_subject()
    recorder = Recorder(seconds=lambda _: 200.0)
    for number in range(10):
        subject.send("a", b"%d" % number)

    settings = OrderedConsumerSettings(lanes=LaneLimits(unhandled_max=5), pull_batch=5)
    async with member(subject, recorder, settings=settings):
        await until(lambda: position(subject) == 10, LONG)

    assert bodies(recorder) == list(range(10))
    assert subject.violations == []


async def test_a_paused_member_leaves_its_messages_to_others() -> None:
    """What it has pulled and not begun is given to another when the broker has forgotten it; it goes on when
    it is resumed."""
    subject = shared_subject()
    first, second = Recorder(seconds=lambda _: 1.0), Recorder()
    for number in range(50):
        subject.send("a", b"%d" % number)

    settings = OrderedConsumerSettings(handlers_max=2)
    async with member(subject, first, settings=settings) as paused:
        await until(lambda: len(first.begun) == 2)
        paused.pause(subject.name)
        async with member(subject, second, "second"):
            await until(lambda: position(subject) == 50, 2 * FORGOTTEN_SECONDS)
        paused.resume(subject.name)
        subject.send("a", b"50")
        await until(lambda: position(subject) == 51, 10)

    assert bodies(first, second) == list(range(51))
    assert bodies(first) == [0, 1, 50]
    assert subject.violations == []


async def test_a_member_that_its_broker_cannot_hear_starts_nothing_that_others_have_got() -> None:
    """It has permission, but no answers of the broker: before the broker gives its messages to others it
    starts no handlers, and begins another pull log afterwards."""
    subject = shared_subject()
    transport = FakeTransport(subject)
    first, second = Recorder(seconds=lambda _: 4.0), Recorder()
    for number in range(50):
        subject.send("a", b"%d" % number)

    settings = OrderedConsumerSettings(handlers_max=1)
    async with member(subject, first, transport=transport, settings=settings):
        await until(lambda: len(first.begun) == 2)
        transport.brokers_cut = True
        cut_at = now()
        async with member(subject, second, "second"):
            await until(lambda: position(subject) == 50, 2 * FORGOTTEN_SECONDS)
        transport.brokers_cut = False
        subject.send("a", b"50")
        await until(lambda: position(subject) == 51, 20)

    late = [int(message.body) for at, message in first.begun if at > cut_at + 25]
    assert late == [50]
    assert set(bodies(first, second)) == set(range(51))
    assert subject.violations == []


async def test_a_member_that_closes_hands_over_what_it_has_not_begun() -> None:
    """Its handlers end, their acks are stored, and the rest is with another at once (statement 46)."""
    subject = shared_subject()
    first, second = Recorder(seconds=lambda _: 2.0), Recorder()
    for number in range(50):
        subject.send("a", b"%d" % number)

    settings = OrderedConsumerSettings(handlers_max=2)
    async with member(subject, second, "second"):
        await until(lambda: position(subject) == 50)
        for number in range(50, 100):
            subject.send("a", b"%d" % number)
        await until(lambda: position(subject) == 100)
        closing = member(subject, first, settings=settings)
    for number in range(100, 150):
        subject.send("a", b"%d" % number)
    closing.start()
    await until(lambda: len(first.begun) == 2)
    async with member(subject, second, "third"):
        await until(lambda: len(subject.members) == 2)
        await closing.close()
        closed_at = now()
        await until(lambda: position(subject) == 150, 5)
        took = now() - closed_at

    assert bodies(first) == [100, 101]
    assert bodies(first, second) == list(range(150))
    assert took < 1.0
    assert subject.violations == []


async def test_a_sealed_partition_is_drained_when_others_have_handled_their_part() -> None:
    """A member that has nothing to do hears within seconds that another has handled the last message, and
    reports it (statement 76)."""
    subject = shared_subject(partitions=1)
    transport = FakeTransport(subject)
    first, second = Recorder(seconds=lambda _: 14.0), Recorder()
    subject.send("a", b"1")

    async with member(subject, first, transport=transport):
        await until(lambda: first.begun)
        async with member(subject, second, "second"):
            await until(lambda: len(subject.members) == 2)
            subject.seal(0)
            await asyncio.sleep(6)
            transport.controllers_cut = True
            assert subject.drained == {}
            await until(lambda: first.handled, LONG)
            handled_at = now()
            await until(lambda: subject.drained, LONG)
            took = now() - handled_at

    assert subject.drained == {0: 1}
    assert took < 4
    assert second.handled == []
    assert subject.violations == []


async def test_a_drained_partition_is_finished_when_no_member_has_made_a_copy_for_long() -> None:
    """A member knows of copies of others only when they come: also one that began with the first message
    waits until the retry queue was empty for long enough (statement 81)."""
    subject = shared_subject()
    first, second = Recorder(), Recorder()
    for recorder in (first, second):
        recorder.failing["a"] = 2
    subject.send("a", b"1")
    subject.seal(0)

    settings = OrderedConsumerSettings(retry_finished_seconds=600)
    async with (
        member(subject, first, settings=settings),
        member(subject, second, "second", settings=settings),
    ):
        await until(lambda: subject.drained, 10)
        await until(lambda: subject.finished, LONG)
        finished_at = now()

    last = max(at for at, _ in first.begun + second.begun)
    assert len(first.handled) + len(second.handled) == 1
    assert len(first.begun) + len(second.begun) >= 3
    assert last + 600 < finished_at < last + 640
    assert subject.violations == []


async def test_copies_that_another_member_has_just_made_are_waited_for() -> None:
    """A retry queue that was empty for long says nothing about the failures of others, as long as the
    partition is not drained (statement 81)."""
    subject = shared_subject()
    recorder = Recorder()

    settings = OrderedConsumerSettings(retry_finished_seconds=600)
    async with (
        member(subject, recorder, settings=settings),
        member(subject, recorder, "second", settings=settings),
    ):
        await asyncio.sleep(1_000)
        recorder.failing["a"] = 1
        subject.send("a", b"1")
        subject.seal(0)
        await until(lambda: subject.finished, LONG)

    assert bodies(recorder) == [1]
    assert subject.violations == []


async def test_an_empty_sealed_partition_is_finished_at_once() -> None:
    """Where nothing was sent to, nobody makes copies."""
    subject = shared_subject()
    subject.seal(0)

    async with member(subject, Recorder()):
        await until(lambda: subject.finished == {0}, 15)


async def test_measurements_say_how_far_the_group_is() -> None:
    """Position and lag are the group's, of which the other members are a part."""
    subject = shared_subject()
    first, second = Recorder(seconds=lambda _: 1_000.0), Recorder()
    for number in range(10):
        subject.send("a", b"%d" % number)

    settings = OrderedConsumerSettings(lanes=LaneLimits(unhandled_max=1), pull_batch=1)
    async with member(subject, first, settings=settings) as slow:
        await until(lambda: first.begun)
        async with member(subject, second, "second") as quick:
            await until(lambda: len(second.handled) == 9)
            for number in range(10, 15):
                subject.send("a", b"%d" % number)
            await until(lambda: len(second.handled) == 14)
            await asyncio.sleep(20)
            measured = [slow.measurements()[0], quick.measurements()[0]]
            await slow.close(1)
            await until(lambda: position(subject) == 15, LONG)
            await asyncio.sleep(20)
            at_last = quick.measurements()[0].partitions[0]

    assert [each.consume_strategy for each in measured] == ["Shared", "Shared"]
    assert [(each.partitions[0].position, each.partitions[0].lag) for each in measured] == [(0, 15)] * 2
    assert (at_last.position, at_last.lag) == (15, 0)


async def test_messages_that_expired_in_a_pull_log_are_passed() -> None:
    """What retention takes between a pull and its repetition is not waited for (statement 66)."""
    subject = shared_subject()
    transport = FakeTransport(subject)
    recorder = Recorder()
    for number in range(20):
        subject.send("a", b"%d" % number)

    transport.lose_answers.add(RequestCode.PULL_MESSAGE)
    async with member(subject, recorder, transport=transport):
        await until(lambda: subject.group_progress().sharing.cursor == 20)
        subject.queue(subject.name, 0).records[:12] = [None] * 12
        await until(lambda: position(subject) == 20, LONG)

    assert bodies(recorder) == list(range(12, 20))
    assert subject.violations == []


async def test_a_member_that_wants_the_group_otherwise_is_refused() -> None:
    """A group is Shared or Exclusive, whoever comes first decides (statement 21)."""
    subject = FakeSubject()

    async with member(subject, Recorder()) as consumer:
        await until(lambda: consumer.measurements()[0].refused)
        problem = consumer.measurements()[0].problem

    assert "Exclusive" in str(problem)
