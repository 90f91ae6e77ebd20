"""What applications and brokers do at the edges of a consumer: odd errors, odd results, odd moments."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest

from brokerset_client import ClientInstance
from brokerset_client.ordered import OrderedClient
from brokerset_client.ordered.consuming import (
    HandlingContext,
    LaneLimits,
    OrderedConsumerSettings,
    OrderedMessage,
)
from brokerset_client.ordered.consuming.pulling import Puller
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig import fake_subject
from brokerset_rig.fake_subject import FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import Recorder, consumer_of
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

LONG = 1_000.0


class SaysNothing(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("strategy", list(OrderStrategy))
async def test_an_error_that_cannot_be_shown_is_a_failure_like_others(strategy: OrderStrategy) -> None:
    """Whatever a handler raises, its message comes again, and its key goes on (statement 38)."""
    subject = FakeSubject(strategy=strategy)
    handled: list[bytes] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        if message.body == b"1" and context.attempt == 1 and not message.reconsume_times:
            raise SaysNothing
        handled.append(message.body)

    subject.send("a", b"1")
    subject.send("a", b"2")
    async with consumer_of(subject, handle):
        await until(lambda: len(handled) == 2, LONG)
        await until(lambda: subject.group_progress().position == 2, LONG)

    assert sorted(handled) == [b"1", b"2"]


async def test_a_fault_behind_a_handler_does_not_stop_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error between a handler's result and what follows from it: the message comes again."""
    subject = FakeSubject()
    recorder = Recorder()
    recorder.failing["a"] = 1
    faults = [ZeroDivisionError("a bug")]

    def decide(*_: object, **__: object) -> None:
        raise faults[0]

    monkeypatch.setattr("brokerset_client.ordered.consuming.partition_handlers.decide_after_failure", decide)
    subject.send("a", b"1")
    subject.send("a", b"2")
    async with consumer_of(subject, recorder.handle) as consumer:
        await until(lambda: subject.group_progress().position == 2, LONG)
        measured = consumer.measurements()[0]

    assert recorder.by_key() == {"a": [b"1", b"2"]}
    assert measured.failed == 1


@pytest.mark.parametrize("trouble", ["cut", "paused"])
async def test_a_retry_queue_that_is_not_asked_is_not_empty(trouble: str) -> None:
    """A drained partition is not finished while its retry queue may have a copy that nobody has seen, because
    the broker cannot be reached, or the subscription is paused (statement 81)."""
    subject = FakeSubject(1, strategy=OrderStrategy.BEST_TRIED)
    transport = FakeTransport(subject)
    recorder = Recorder()
    recorder.failing["a"] = 1
    subject.send("a", b"1")
    subject.seal(0)

    settings = OrderedConsumerSettings(retry_finished_seconds=60)
    async with consumer_of(subject, recorder.handle, transport=transport, settings=settings) as consumer:
        await until(lambda: subject.drained)
        if trouble == "paused":
            consumer.pause(subject.name)
        else:
            transport.brokers_cut = True
            subject.new_master()
        await asyncio.sleep(200)
        too_early = set(subject.finished)
        transport.brokers_cut = False
        consumer.resume(subject.name)
        await until(lambda: subject.finished, LONG)

    assert too_early == set()
    assert [message.body for message in recorder.handled] == [b"1"]


async def test_a_broker_that_was_away_has_to_be_seen_without_copies_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it was down it delivered none: copies that were due come when it is up (statement 81)."""
    monkeypatch.setattr(fake_subject, "DELAY_SECONDS", 900.0)  # 500 s, and 400 s in which it is down
    subject = FakeSubject(1, strategy=OrderStrategy.BEST_TRIED)
    transport = FakeTransport(subject)
    recorder = Recorder()
    recorder.failing["a"] = 1
    subject.send("a", b"1")
    subject.seal(0)

    settings = OrderedConsumerSettings(retry_finished_seconds=600)
    async with consumer_of(subject, recorder.handle, transport=transport, settings=settings):
        await asyncio.sleep(400)
        transport.brokers_cut = True
        subject.new_master()
        await asyncio.sleep(400)
        transport.brokers_cut = False
        await until(lambda: subject.finished, 3_000)

    assert [message.body for message in recorder.handled] == [b"1"]


@pytest.mark.parametrize("value", [0, 1, "done", {}])
async def test_other_values_of_a_handler_mean_nothing(value: object) -> None:
    """What is neither a pending answer nor awaitable is dropped: the message is handled."""
    subject = FakeSubject()
    calls: list[bytes] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> object:
        calls.append(message.body)
        return value

    subject.send("a", b"1")
    async with consumer_of(subject, handle):
        await until(lambda: subject.group_progress().position == 1, LONG)

    assert calls == [b"1"]


async def test_a_consumer_that_was_never_started_can_be_closed() -> None:
    """It is no member, so it has nothing to leave; the subject may be subscribed once more (statement 52)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    consumer = consumer_of(subject, Recorder().handle, transport=transport)

    await consumer.close()

    assert subject.requests == []


async def test_closing_many_times_at_once_leaves_once_and_fails_nowhere() -> None:
    """Who closes what is being closed waits for the same end (statement 52)."""
    subject = FakeSubject()
    consumer = consumer_of(subject, Recorder().handle)
    consumer.start()
    await until(lambda: subject.owners)

    await asyncio.gather(*(consumer.close() for _ in range(5)))

    assert subject.members == {}


async def test_a_consumer_that_nobody_refers_to_consumes_until_the_client_is_closed() -> None:
    """It is not forgotten while it runs, and afterwards it is (statement 52)."""
    subject = FakeSubject()
    recorder = Recorder()
    client = OrderedClient(instance=ClientInstance("127.0.0.1:1"))
    client.transport = FakeTransport(subject)  # type: ignore[assignment]  # a stand-in
    client.instance.check_running = lambda: None  # type: ignore[method-assign]  # it needs no connections
    consumer = client.consumer(group="billing")
    consumer.subscribe(subject.name, recorder.handle)
    consumer.start()
    forgotten = weakref.ref(consumer)
    del consumer
    gc.collect()

    subject.send("a", b"1")
    await until(lambda: recorder.handled, LONG)
    await client.close()
    gc.collect()

    assert subject.members == {}
    assert forgotten() is None


async def test_a_client_closes_its_connections_whatever_its_users_do() -> None:
    """The error of one of them is raised afterwards, and stops none of the others (statement 52)."""
    closed: list[str] = []

    async def fails() -> None:
        raise ZeroDivisionError

    async def ends(what: str) -> None:
        await asyncio.sleep(1)
        closed.append(what)

    client = OrderedClient(namesrv="127.0.0.1:1")
    users = [User(fails), User(lambda: ends("user"))]
    client._users.update(dict.fromkeys(users))  # type: ignore[arg-type]  # stand-ins
    client.instance.close = lambda: ends("instance")  # type: ignore[method-assign]

    with pytest.raises(ZeroDivisionError):
        await client.close()

    assert closed == ["user", "instance"]


class User:
    """Something that a client closes."""

    def __init__(self, close: object) -> None:
        self.close = close


async def test_a_message_that_came_too_late_for_one_call_is_not_one_too_many_for_the_next() -> None:
    """`pull` never gives more than it was asked for; what is too much goes back without a failure."""
    returned: list[str] = []

    class Context:
        cancelled = False

        def __init__(self, name: str) -> None:
            self.name = name

        def defer(self) -> SimpleNamespace:
            return SimpleNamespace(is_completed=False)

        def return_unhandled(self) -> None:
            returned.append(self.name)

    puller = Puller(lambda: True)
    slots = puller.slots(lambda: None)
    assert len(await puller.pull(1, 0.1)) == 0
    for name in ("m1", "m2", "m3"):
        await puller.give(name, Context(name))  # type: ignore[arg-type]  # stand-ins

    batch = await puller.pull(2, 0.1)

    assert [str(each.message) for each in batch] == ["m1", "m2"]
    assert returned == ["m3"]
    assert not slots.take()


async def test_memory_behind_a_key_that_fails_while_the_pull_waits_is_used_by_others() -> None:
    """The partition is full, then a key fails: what waits behind it makes room at once, and not with the next
    heartbeat (statement 38)."""
    subject = FakeSubject(heartbeat_ms=20_000)
    recorder = Recorder(seconds=lambda message: 2.0 if message.key == "bad" else 0.0)
    recorder.failing["bad"] = -1
    for number in range(10):
        subject.send("bad", b"%d" % number)
    subject.send("good", b"10")
    settings = OrderedConsumerSettings(pull_batch=5, lanes=LaneLimits(unhandled_max=10))

    async with consumer_of(subject, recorder.handle, settings=settings):
        await until(lambda: recorder.begun)
        await until(lambda: recorder.handled, 2.5)

    assert [message.key for message in recorder.handled] == ["good"]
