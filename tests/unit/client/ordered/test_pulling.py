"""Applications that ask for messages: the same order, permission and acks as with handlers."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_client.errors import ClientClosed
from brokerset_client.ordered.consuming import (
    AlreadySubscribed,
    OrderedConsumer,
    OrderedConsumerSettings,
    SubscriptionOptions,
)
from brokerset_client.ordered.consuming.failures import FailurePolicy
from brokerset_rig.fake_subject import GROUP, FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import LoopClock, Recorder, consumer_of
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual


def empty_consumer(
    transport: FakeTransport, settings: OrderedConsumerSettings | None = None
) -> OrderedConsumer:
    return OrderedConsumer(transport, group=GROUP, client_id="process", clock=LoopClock(), settings=settings)


async def test_a_batch_has_one_message_of_each_lane() -> None:
    """The next message of a key comes when the one before is done, and acks follow (statement 37)."""
    subject = FakeSubject()
    for number in range(3):
        subject.send("a", b"a%d" % number)
        subject.send("b", b"b%d" % number)
    consumer = empty_consumer(FakeTransport(subject))
    found: list[list[bytes]] = []

    async with consumer.pulling(subject.name) as puller:
        for _ in range(3):
            batch = await puller.pull(10, 1.0)
            found.append(sorted(each.message.body for each in batch))
            assert len(await puller.pull(10, 0.5)) == 0
            batch.ack()
        await until(lambda: subject.group_progress().position == 6)

    assert found == [[b"a0", b"b0"], [b"a1", b"b1"], [b"a2", b"b2"]]
    assert subject.violations == []
    assert subject.members == {}


async def test_no_more_messages_are_given_than_were_asked_for() -> None:
    """`pull` takes as many as it says; nobody waits for the others, so their time does not run."""
    subject = FakeSubject()
    for number in range(20):
        subject.send(f"key-{number}", b"%d" % number)
    consumer = empty_consumer(FakeTransport(subject), OrderedConsumerSettings(handling_seconds=5))
    sizes = []

    async with consumer.pulling(subject.name) as puller:
        for _ in range(3):
            batch = await puller.pull(6, 1.0)
            sizes.append(len(batch))
            batch.ack()
            await asyncio.sleep(30)
        measured = consumer.measurements()[0]

    assert sizes == [6, 6, 6]
    assert (measured.handled, measured.failed) == (18, 0)


async def test_without_permission_nothing_is_given() -> None:
    """Cut off from the controllers, whoever asks gets nothing from the margin on (statement 48)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    for number in range(20_000):
        subject.send(f"key-{number % 50}", b"%d" % number)
    consumer = empty_consumer(transport)
    times: list[float] = []

    async with consumer.pulling(subject.name) as puller:
        await puller.pull(1, 1.0)
        transport.controllers_cut = True
        sent = max(at for at, _, what in subject.requests if what == "heartbeat")
        loop = asyncio.get_running_loop()
        while loop.time() < sent + 60:
            batch = await puller.pull(5, 0.1)
            if len(batch):
                times.append(loop.time())
                await asyncio.sleep(0.1)
                batch.ack()
        transport.controllers_cut = False

    assert sent + 24.5 < max(times) < sent + 25.1


async def test_what_nobody_finished_is_handled_again_elsewhere() -> None:
    """At the end of `pulling` unfinished messages are given back at once; the finished ones are acknowledged
    (statement 46)."""
    subject = FakeSubject()
    recorder = Recorder()
    subject.send("a", b"1")
    subject.send("b", b"2")
    consumer = empty_consumer(FakeTransport(subject))
    loop = asyncio.get_running_loop()

    async with consumer.pulling(subject.name) as puller:
        batch = await puller.pull(10, 1.0)
        assert [each.message.body for each in batch] == [b"1", b"2"]
        batch.messages[0].done()
        closing = loop.time()
    took = loop.time() - closing
    position = subject.group_progress().position
    async with consumer_of(subject, recorder.handle):
        await until(lambda: recorder.handled)

    assert took < 1
    assert position == 1
    assert [message.body for message in recorder.handled] == [b"2"]


async def test_a_message_that_failed_comes_again() -> None:
    """A failure of the application is one of a handler: the message comes again, later (statement 38)."""
    subject = FakeSubject()
    subject.send("a", b"1")
    consumer = empty_consumer(FakeTransport(subject))

    async with consumer.pulling(subject.name) as puller:
        (first,) = await puller.pull(1, 1.0)
        first.failed("not now")
        (second,) = await puller.pull(1, 5.0)
        second.done()
        await until(lambda: subject.group_progress().position == 1)

    assert (first.context.attempt, second.context.attempt) == (1, 2)


async def test_a_message_that_was_never_finished_comes_again_after_its_time() -> None:
    """Whoever forgets a message does not stop its key: after the time for handling it comes again
    (statement 42)."""
    subject = FakeSubject()
    subject.send("a", b"1")
    consumer = empty_consumer(FakeTransport(subject), OrderedConsumerSettings(handling_seconds=5))

    async with consumer.pulling(subject.name) as puller:
        (first,) = await puller.pull(1, 1.0)
        (again,) = await puller.pull(1, 10.0)
        again.done()
        first.done()
        await until(lambda: subject.group_progress().position == 1)

    assert first.context.cancelled
    assert again.context.attempt == 2


async def test_asking_after_the_end_is_refused() -> None:
    """A puller belongs to its block."""
    subject = FakeSubject()
    consumer = empty_consumer(FakeTransport(subject))

    async with consumer.pulling(subject.name) as puller:
        with pytest.raises(ValueError, match="1 or more"):
            await puller.pull(0, 1.0)
    with pytest.raises(ClientClosed):
        await puller.pull(1, 1.0)
    await consumer.close()
    with pytest.raises(ClientClosed):
        consumer.subscribe(subject.name, Recorder().handle)


async def test_a_group_consumes_a_subject_once_in_a_process() -> None:
    """A second subscription is refused with what to do, until the first one is closed."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    consumer = consumer_of(subject, Recorder().handle, transport=transport)

    with pytest.raises(AlreadySubscribed, match="in this process already"):
        consumer.subscribe(subject.name, Recorder().handle)
    async with consumer:
        await until(lambda: subject.owners)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (SubscriptionOptions(failures=FailurePolicy(attempts_max=0)), "attempts_max is 0"),
        (SubscriptionOptions(tags="||"), "only separators"),
    ],
)
async def test_options_that_cannot_be_are_refused(options: SubscriptionOptions, reason: str) -> None:
    """Before anything is sent, with the reason (statement 21)."""
    consumer = empty_consumer(FakeTransport())

    with pytest.raises(ValueError, match=reason):
        consumer.subscribe("orders", Recorder().handle, options)
    with pytest.raises(ValueError, match="is not subscribed"):
        consumer.pause("orders")


async def test_settings_that_cannot_be_are_refused_all_at_once() -> None:
    """Each with its name."""
    settings = OrderedConsumerSettings(pull_batch=0, handlers_max=-1, watch_ms=20_000)

    with pytest.raises(ValueError, match=r"pull_batch is 0.*handlers_max is -1.*watch_ms is 20000"):
        empty_consumer(FakeTransport(), settings)
