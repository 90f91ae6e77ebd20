"""Consumers that are cut off, paused or slow: who may handle what, and when somebody else may."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import cast

import pytest

from brokerset_client.ordered.consuming import OrderedConsumerSettings, SubscriptionOptions
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.fake_subject import FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import LoopClock, Recorder, consumer_of
from brokerset_rig.waiting import until
from brokerset_sim.loop import OWNER, VirtualLoop

pytestmark = pytest.mark.virtual

LONG = 1_000.0
"""Seconds of virtual time that a test may take."""

RENEWING = ("pull", "ClaimQueue", "Acknowledge", "SendBack")
"""Requests that renew a queue's lock."""


def now() -> float:
    return asyncio.get_running_loop().time()


def last_heartbeat(subject: FakeSubject) -> float:
    """When the last one that the controllers answered arrived."""
    return max(at for at, _, what in subject.requests if what == "heartbeat")


async def feed(subject: FakeSubject, keys: int = 4, pause: float = 0.1) -> None:
    """A producer that never ends."""
    number = 0
    while True:
        subject.send(f"key-{number % keys}", b"%d" % number)
        number += 1
        await asyncio.sleep(pause)


@pytest.mark.parametrize("strategy", list(OrderStrategy))
async def test_without_answers_nothing_starts_in_the_margin(strategy: OrderStrategy) -> None:
    """Cut off from the controllers alone, a consumer starts no handler from 25 s after its last answered
    heartbeat on, and goes on as soon as it is answered again (statement 48)."""
    subject = FakeSubject(strategy=strategy)
    transport = FakeTransport(subject)
    recorder = Recorder()
    producer = asyncio.create_task(feed(subject))

    async with consumer_of(subject, recorder.handle, transport=transport):
        await asyncio.sleep(12)
        transport.controllers_cut = True
        await asyncio.sleep(100)
        cut_off = [at for at, _ in recorder.begun]
        sent = last_heartbeat(subject)
        transport.controllers_cut = False
        before = len(recorder.begun)
        await until(lambda: len(recorder.begun) > before + 50, LONG)
    producer.cancel()

    assert sent + 24.5 < max(cut_off) < sent + 25.0
    assert recorder.overlaps == []


async def test_without_permission_the_broker_hears_nothing() -> None:
    """When the permission has ended there are no pulls, acks or claims, so no lock is renewed, and the next
    owner starts (statement 49)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    recorder = Recorder()
    producer = asyncio.create_task(feed(subject))

    async with consumer_of(subject, recorder.handle, transport=transport, name="first"):
        await asyncio.sleep(12)
        session = subject.owners[0].session
        transport.controllers_cut = True
        sent = last_heartbeat(subject)
        async with consumer_of(subject, recorder.handle, name="second"):
            await until(lambda: subject.owners[0].session != session, LONG)
            taken_over = now()
            before = len(recorder.begun)
            await until(lambda: len(recorder.begun) > before, LONG)
            started = now()
    producer.cancel()

    late = [what for at, who, what in subject.requests if who == session and at > sent + 30.01]
    assert [what for what in late if what in RENEWING] == []
    assert taken_over - sent < 41
    assert started - taken_over < 1
    assert recorder.overlaps == []


async def test_controllers_without_answers_change_nothing() -> None:
    """Five minutes without controllers: partitions, strategy and session stay; handling stops when the
    permission ends, and goes on by itself (statement 19)."""
    subject = FakeSubject(2)
    transport = FakeTransport(subject)
    recorder = Recorder()
    producer = asyncio.create_task(feed(subject))

    async with consumer_of(subject, recorder.handle, transport=transport) as consumer:
        await asyncio.sleep(10)
        before = consumer.measurements()[0]
        transport.refuse[RequestCode.BROKERSET_CONSUMER_HEARTBEAT] = ResponseCode.SYSTEM_ERROR
        transport.refuse[RequestCode.BROKERSET_ASSIGNMENT_CHANGED] = ResponseCode.SYSTEM_ERROR
        await asyncio.sleep(300)
        during = consumer.measurements()[0]
        stopped = max(at for at, _ in recorder.begun)
        transport.refuse.clear()
        handled = len(recorder.handled)
        await until(lambda: len(recorder.handled) > handled + 100, LONG)
        after = consumer.measurements()[0]
    producer.cancel()

    assert stopped < last_heartbeat(subject) + 35
    assert during.permission_seconds == 0.0
    assert during.problem is not None
    assert "refused by the controllers" in during.problem
    assert (during.order_strategy, during.version) == (before.order_strategy, before.version)
    assert [each.partition_id for each in during.partitions] == [0, 1]
    assert after.session == before.session
    assert after.problem is None


async def test_the_wall_clock_is_never_asked() -> None:
    """Liveness does not depend on it: a consumer works with a wall clock that cannot be read (statements 20,
    79)."""

    class NoWall(LoopClock):
        def now_ms(self) -> int:
            raise AssertionError("a consumer asked the wall clock")

    subject = FakeSubject(2)
    recorder = Recorder()
    for number in range(100):
        subject.send(f"key-{number % 9}", b"%d" % number)

    async with consumer_of(subject, recorder.handle, clock=NoWall()) as consumer:
        await until(lambda: len(recorder.handled) == 100)
        assert consumer.measurements()[0].problem is None


async def test_an_answer_that_comes_late_gives_less_time() -> None:
    """The permission counts from the sending: answers that take 4 s leave 21 s for new handlers
    (statements 20, 48)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    transport.answer_late[RequestCode.BROKERSET_CONSUMER_HEARTBEAT] = 4.0
    recorder = Recorder()
    producer = asyncio.create_task(feed(subject))

    async with consumer_of(subject, recorder.handle, transport=transport):
        await asyncio.sleep(40)
        transport.controllers_cut = True
        await asyncio.sleep(60)
    producer.cancel()

    answered = [at for at, _, what in subject.requests if what == "heartbeat"]
    begun = max(at for at, _ in recorder.begun)
    assert any(at + 24.5 < begun < at + 25.0 for at in answered)


async def test_one_subject_never_delays_the_heartbeats_of_another() -> None:
    """A subject whose controllers do not answer, and one whose handler takes minutes to stop, leave the
    heartbeats of a third alone (statement 47)."""
    quick, dead, slow = FakeSubject(), FakeSubject(name="dead"), FakeSubject(name="slow")
    transport = FakeTransport(quick, dead, slow)
    transport.slow_subjects.add("dead")
    recorder = Recorder()
    stuck = Recorder(seconds=lambda _: 120.0)
    slow.send("a", b"1")

    consumer = consumer_of(quick, recorder.handle, transport=transport)
    consumer.subscribe("dead", recorder.handle)
    consumer.subscribe("slow", stuck.handle)
    async with consumer:
        await until(lambda: stuck.begun)
        slow.owners[0].revoked = True
        slow.change()
        await asyncio.sleep(100)
        for number in range(10):
            quick.send("a", b"%d" % number)
        await until(lambda: len(recorder.handled) == 10, 1.0)
        await asyncio.sleep(40)

    heartbeats = [at for at, _, what in quick.requests if what == "heartbeat"]
    of_slow = [at for at, _, what in slow.requests if what == "heartbeat"]
    assert max(b - a for a, b in pairwise(heartbeats)) < 5.1
    assert max(b - a for a, b in pairwise(of_slow)) < 5.1


async def test_a_handler_that_outlives_the_permission_does_not_count() -> None:
    """Its coroutine is cancelled at the end of the permission, nothing of it is acknowledged, and who takes
    over handles the message (statement 48)."""
    subject = FakeSubject()
    transport = FakeTransport(subject)
    first, second = Recorder(seconds=lambda _: 1_000.0), Recorder()
    subject.send("a", b"1")

    async with consumer_of(subject, first.handle, transport=transport, name="first") as consumer:
        await until(lambda: first.begun)
        transport.controllers_cut = True
        async with consumer_of(subject, second.handle, name="second"):
            await until(lambda: second.handled, LONG)
            started = second.begun[0][0]
            cancelled = first.contexts[0].cancelled
            counted = consumer.measurements()[0]
        assert subject.group_progress().position == 1

    assert cancelled
    assert (counted.handled, counted.failed, counted.too_late) == (0, 0, 1)
    assert started > last_heartbeat_of(subject, "first") + 30
    assert first.handled == []


def last_heartbeat_of(subject: FakeSubject, client_id: str) -> float:
    """Of the first session that spoke, as a member may have left since."""
    session = next(who for _, who, what in subject.requests if what == "heartbeat")
    assert client_id == "first"
    return max(at for at, who, what in subject.requests if (who, what) == (session, "heartbeat"))


@pytest.mark.parametrize(("first_rate", "second_rate"), [(0.9, 1.1), (1.1, 0.9), (1.0, 1.0)])
async def test_clocks_that_run_wrong_by_a_tenth_let_nothing_overlap(
    first_rate: float, second_rate: float
) -> None:
    """The owner is cut off from the controllers, its clock runs 10 % slow or fast, and its handlers use all
    the time they get: the next owner starts no handler before the last one of the first has ended
    (statement 82)."""
    subject = FakeSubject(margin_ms=5_000)
    transport = FakeTransport(subject)
    recorder = Recorder(seconds=lambda message: 0.3 if message.queue_offset % 50 else 1_000.0)
    second = Recorder(seconds=lambda _: 0.3)
    ended: list[float] = []

    async def handle(message: object, context: object) -> None:
        try:
            await recorder.handle(message, context)  # type: ignore[arg-type]  # both as they came
        finally:
            ended.append(now())

    for number in range(1, 800):
        subject.send(f"key-{number % 3}", b"%d" % number)
    async with consumer_of(subject, handle, transport=transport, name="first", rate=first_rate):
        await until(lambda: recorder.begun)
        transport.controllers_cut = True
        async with consumer_of(subject, second.handle, name="second", rate=second_rate):
            await until(lambda: len(second.begun) > 5, LONG)
            last_end, first_begin = max(ended), second.begun[0][0]

    assert last_end < first_begin


async def test_a_process_that_was_stopped_beyond_its_permission_changes_nothing_afterwards() -> None:
    """Stopped in mid-handler and continued after somebody else took over: its result does not count, its acks
    are refused or not sent, and order is kept (statements 48, 55)."""
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    subject = FakeSubject()
    first, second = Recorder(seconds=lambda _: 0.5), Recorder(seconds=lambda _: 0.01)
    for number in range(40):
        subject.send("a", b"%d" % number)

    token = OWNER.set("first")
    consumer = consumer_of(subject, first.handle, name="first")
    consumer.start()
    OWNER.reset(token)
    await until(lambda: len(first.handled) == 3)
    session = subject.owners[0].session
    loop.stop_owner("first")
    async with consumer_of(subject, second.handle, name="second"):
        await until(lambda: second.handled, LONG)
        loop.continue_owner("first")
        await until(lambda: len(second.handled) == 37, LONG)
        after = [each for each in subject.acks if each[0] == session and each[3] > 2]
        measured = consumer.measurements()[0]
    await consumer.close()

    assert after == []
    assert measured.handled == 3
    bodies = [int(message.body) for message in second.handled]
    assert bodies == list(range(bodies[0], 40))
    assert bodies[0] <= 3
    assert len(first.begun) == 4


async def test_two_processes_with_one_client_id_are_two_members() -> None:
    """Sessions are drawn at each start, so processes with the same name never own one partition
    (statement 22)."""
    subject = FakeSubject(2)
    recorder = Recorder(seconds=lambda _: 0.01)
    for number in range(200):
        subject.send(f"key-{number % 20}", b"%d" % number)

    first = consumer_of(subject, recorder.handle, name="same", seed="first")
    second = consumer_of(subject, recorder.handle, name="same", seed="second")
    async with first, second:
        await until(lambda: len(recorder.handled) >= 200, LONG)
        sessions = [consumer.measurements()[0].session for consumer in (first, second)]
        await until(lambda: len({each.session for each in subject.owners.values()}) == 2, LONG)
        assert {member.client_id for member in subject.members.values()} == {"same"}

    assert len(set(sessions)) == 2
    assert recorder.overlaps == []
    assert subject.violations == []


async def test_a_consumer_never_creates_its_subject() -> None:
    """An unknown subject is waited for, with waits that grow, and consumed when somebody has made it
    (statement 7)."""
    subject = FakeSubject()
    subject.exists = False
    transport = FakeTransport(subject)
    recorder = Recorder()
    subject.send("a", b"1")

    async with consumer_of(subject, recorder.handle, transport=transport) as consumer:
        await asyncio.sleep(100)
        problem = consumer.measurements()[0].problem
        asked = transport.asked[RequestCode.BROKERSET_CONSUMER_HEARTBEAT]
        subject.exists = True
        await until(lambda: recorder.handled)

    assert problem is not None
    assert "no such subject" in problem
    assert 50 < asked < 150
    assert set(transport.asked) <= {
        RequestCode.BROKERSET_CONSUMER_HEARTBEAT,
        RequestCode.BROKERSET_ASSIGNMENT_CHANGED,
        RequestCode.BROKERSET_CLAIM_QUEUE,
        RequestCode.PULL_MESSAGE,
        RequestCode.BROKERSET_ACKNOWLEDGE,
        RequestCode.BROKERSET_RELEASE_QUEUE,
    }


async def test_a_subject_that_is_ordered_otherwise_is_refused_and_said() -> None:
    """Who expects another order strategy than the subject's consumes nothing, and can see why
    (statement 21)."""
    subject = FakeSubject(strategy=OrderStrategy.BEST_TRIED)
    recorder = Recorder()
    subject.send("a", b"1")
    options = SubscriptionOptions(order_strategy=OrderStrategy.STRICT)

    async with consumer_of(subject, recorder.handle, options=options) as consumer:
        await asyncio.sleep(60)
        problem = consumer.measurements()[0].problem

    assert problem is not None
    assert "ordered otherwise" in problem
    assert recorder.begun == []
    assert subject.members == {}


async def test_closing_ends_every_task_even_with_a_handler_that_does_not() -> None:
    """After close nothing of the consumer runs; a handler that took too long is cancelled, and the session
    leaves by its permission alone (statement 52)."""
    subject = FakeSubject(3)
    recorder = Recorder(seconds=lambda _: 1_000.0)
    subject.send("a", b"1")
    before = asyncio.all_tasks()
    consumer = consumer_of(subject, recorder.handle)
    consumer.start()
    await until(lambda: recorder.begun)

    await consumer.close(timeout=3)

    assert asyncio.all_tasks() == before
    assert len(subject.members) == 1
    assert Counter(what for *_, what in subject.requests)["leave"] == 0
    assert subject.group_progress(0).position == 0


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.002, 0.006, 0.03, 1.0, 7.0])
async def test_closing_ends_every_task_at_any_moment(seconds: float) -> None:
    """Whatever a consumer is about, closing leaves no task and no timer of it (statement 52)."""
    subject = FakeSubject(2, strategy=OrderStrategy.BEST_TRIED)
    recorder = Recorder(seconds=lambda _: 0.001)
    recorder.failing["key-1"] = -1
    for number in range(50):
        subject.send(f"key-{number % 5}", b"%d" % number)
    before = asyncio.all_tasks()
    settings = OrderedConsumerSettings(handling_seconds=1)

    async with consumer_of(subject, recorder.handle, settings=settings):
        await asyncio.sleep(seconds)
    begun = len(recorder.begun)
    await asyncio.sleep(60)

    assert asyncio.all_tasks() == before
    assert len(recorder.begun) == begun
    assert subject.members == {}
