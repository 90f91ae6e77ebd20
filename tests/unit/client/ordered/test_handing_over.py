"""Partitions that change owners, are sealed, or belong to a newer assignment."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from brokerset_client.ordered.consuming import OrderedConsumerSettings
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.fake_subject import DELAY_SECONDS, FakeOwnership, FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import Recorder, consumer_of
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

LONG = 1_000.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_the_owner_waits_for_its_handlers_acknowledges_and_only_then_releases() -> None:
    """Revoked in mid-handler: nothing new starts, the handler ends and counts, its ack is stored, then the
    queue is released with that position, and the next owner begins behind it (statement 46)."""
    subject = FakeSubject(1)
    first, second = Recorder(seconds=lambda _: 3.0), Recorder()
    for number in range(10):
        subject.send("a", b"%d" % number)

    async with consumer_of(subject, first.handle, name="first"):
        await until(lambda: len(first.begun) == 2)
        session = subject.owners[0].session
        async with consumer_of(subject, second.handle, name="second"):
            await until(lambda: len(subject.members) == 2)
            subject.hand_over(0)
            revoked_at = now()
            await until(lambda: second.begun, LONG)

    own = [(at, what) for at, who, what in subject.requests if who == session and at > revoked_at]
    sent = [what for _, what in own if what in ("Acknowledge", "ReleaseQueue")]
    released = next(at for at, what in own if what == "ReleaseQueue")
    assert sent[-1] == "ReleaseQueue"
    assert "Acknowledge" in sent
    assert len(first.begun) == len(first.handled) == 2
    assert int(second.begun[0][1].body) == 2
    assert second.begun[0][0] > released > first.begun[1][0] + 3.0
    assert not any(what == "pull" for at, what in own if at > revoked_at + 0.1)
    assert subject.violations == []


async def test_handing_over_takes_a_moment() -> None:
    """From the revocation to the first message of the next owner it takes less than 200 ms, when handlers are
    quick (statement 46)."""
    subject = FakeSubject(1)
    first, second = Recorder(seconds=lambda _: 0.001), Recorder(seconds=lambda _: 0.001)
    for number in range(20_000):
        subject.send(f"key-{number % 10}", b"%d" % number)

    async with consumer_of(subject, first.handle, name="first"):
        await until(lambda: len(first.begun) > 20)
        async with consumer_of(subject, second.handle, name="second"):
            await until(lambda: len(subject.members) == 2)
            await asyncio.sleep(1)
            subject.hand_over(0)
            revoked_at = now()
            await until(lambda: second.begun, 5)

    assert second.begun[0][0] - revoked_at < 0.2
    assert subject.violations == []


async def test_partitions_that_stay_run_on_without_a_gap() -> None:
    """A member joins: what its owner keeps is not claimed again, and handles without a pause
    (statement 45)."""
    subject = FakeSubject(2)
    recorder = Recorder()

    async def feed() -> None:
        for number in range(400):
            for partition in (0, 1):
                subject.send(f"key-{partition}", b"%d" % number, partition=partition)
            await asyncio.sleep(0.05)

    async with consumer_of(subject, recorder.handle, name="first"):
        producer = asyncio.create_task(feed())
        await asyncio.sleep(5)
        session = subject.owners[0].session
        async with consumer_of(subject, recorder.handle, name="second"):
            await asyncio.sleep(10)
            kept = next(number for number, each in subject.owners.items() if each.session == session)
            claims = [who for _, who, what in subject.requests if what == "ClaimQueue"]
        await producer

    times = [at for at, message in recorder.begun if message.partition_id == kept]
    assert claims.count(session) == 2
    assert max(later - earlier for earlier, later in pairwise(times)) < 0.06


async def test_a_grant_that_was_revoked_before_it_ran_is_released_at_once() -> None:
    """The controllers hear of it with the next heartbeat, without a request to the broker."""
    subject = FakeSubject(1)
    recorder = Recorder()
    subject.send("a", b"1")

    consumer = consumer_of(subject, recorder.handle)
    session = consumer.measurements()[0].session
    subject.epochs = 5
    subject.owners[0] = FakeOwnership(session, 5, revoked=True)
    async with consumer:
        await until(lambda: recorder.handled)

    assert recorder.contexts[0].epoch == 6
    assert subject.violations == []


async def test_a_partition_that_was_lost_and_comes_back_waits_for_handlers_of_the_old_ownership() -> None:
    """The same keys run once in a process, whatever epochs say: the new ownership starts when the old handler
    has ended (statement 37)."""
    subject = FakeSubject(1)
    recorder = Recorder()
    blocked = asyncio.Event()

    async def handle(message: object, context: object) -> None:
        if not recorder.begun:
            recorder.begun.append((now(), message))  # type: ignore[arg-type]  # as it came
            while not blocked.is_set():
                try:
                    await blocked.wait()
                except asyncio.CancelledError:
                    continue  # a handler that does not listen
            recorder.begun.append((now(), message))  # type: ignore[arg-type]
            return
        await recorder.handle(message, context)  # type: ignore[arg-type]

    subject.send("a", b"1")
    async with consumer_of(subject, handle) as consumer:
        await until(lambda: recorder.begun)
        subject.epochs += 1
        subject.owners[0] = FakeOwnership(subject.owners[0].session, subject.epochs)
        subject.change()
        await asyncio.sleep(20)
        waiting = consumer.measurements()[0].partitions[0].state
        assert len(recorder.begun) == 1
        ended_at = now()
        blocked.set()
        await until(lambda: recorder.handled, LONG)

    assert waiting == "starting"
    assert recorder.begun[-1][0] > ended_at
    assert recorder.contexts[0].epoch == 2


async def test_a_sealed_partition_is_reported_as_drained_when_all_is_acknowledged() -> None:
    """Not before the ack of its last message is confirmed; then it is consumed no more (statement 76)."""
    subject = FakeSubject(2)
    recorder = Recorder(seconds=lambda _: 1.0)
    for number in range(10):
        subject.send("a", b"%d" % number, partition=0)

    async with consumer_of(subject, recorder.handle):
        await until(lambda: len(recorder.handled) == 3)
        subject.seal(0)
        await until(lambda: subject.drained, LONG)
        await asyncio.sleep(10)

    assert subject.drained == {0: 10}
    assert len(recorder.handled) == 10
    assert subject.violations == []


@pytest.mark.parametrize("strategy", list(OrderStrategy))
async def test_an_empty_sealed_partition_is_drained_and_finished_at_once(strategy: OrderStrategy) -> None:
    """Nothing was ever sent to it: the claim alone says so, and no copies are waited for."""
    subject = FakeSubject(1, strategy=strategy)
    subject.seal(0)

    async with consumer_of(subject, Recorder().handle):
        await until(lambda: subject.drained == {0: 0}, 1)
        await until(lambda: subject.finished == {0}, 10)

    assert subject.violations == []


async def test_a_drained_partition_does_not_wait_for_its_copies() -> None:
    """Whoever inherits from a BestTried partition begins when its own queue is drained; copies for retry are
    handled afterwards, and fail, and come again as any others do (statement 81)."""
    subject = FakeSubject(1, strategy=OrderStrategy.BEST_TRIED)
    recorder = Recorder()
    recorder.failing["a"] = 3
    subject.send("a", b"1")
    for number in range(2, 6):
        subject.send(f"key-{number}", b"%d" % number)

    async with consumer_of(subject, recorder.handle):
        await until(lambda: subject.group_progress().position == 5)
        subject.seal(0)
        await until(lambda: subject.drained, 6)
        drained_at = now()
        await until(lambda: len(recorder.handled) == 5, LONG)
        pulls = [at for at, *_, what in subject.requests if what == "ReleaseQueue"]

    copies = [at for at, message in recorder.begun if message.body == b"1"]
    assert len(copies) == 4
    assert copies[1] - copies[0] >= DELAY_SECONDS
    assert drained_at < copies[1]
    assert pulls == [at for at in pulls if at < copies[2]]
    assert subject.violations == []


async def test_a_partition_is_finished_when_no_copies_come_any_more() -> None:
    """After a copy was made the retry queue has to be empty for longer than brokers may keep one
    (statement 81)."""
    subject = FakeSubject(1, strategy=OrderStrategy.BEST_TRIED)
    recorder = Recorder()
    recorder.failing["a"] = 2
    subject.send("a", b"1")
    subject.seal(0)

    settings = OrderedConsumerSettings(retry_finished_seconds=600)
    async with consumer_of(subject, recorder.handle, settings=settings):
        await until(lambda: subject.finished, LONG)
        finished_at = now()

    copies = [at for at, _ in recorder.begun]
    assert len(copies) == 3
    assert copies[2] + 600 < finished_at < copies[2] + 640
    assert subject.violations == []


async def test_who_had_a_partition_from_its_first_message_on_and_made_no_copies_finishes_it_at_once() -> None:
    """All messages came to it, so nobody else has made a copy that counts (statement 81)."""
    subject = FakeSubject(1, strategy=OrderStrategy.BEST_TRIED)
    for number in range(5):
        subject.send("a", b"%d" % number)
    subject.seal(0)

    async with consumer_of(subject, Recorder().handle):
        await until(lambda: subject.finished, 15)

    assert subject.violations == []


@pytest.mark.parametrize("when", ["before it is drained", "afterwards"])
async def test_who_had_a_partition_later_waits_for_copies_of_the_owner_before(when: str) -> None:
    """An owner before may have made copies: their time counts from when this session began, and those that
    come are handled, also by a session that finds the partition drained (statement 81)."""
    subject = FakeSubject(1, strategy=OrderStrategy.BEST_TRIED)
    first, second = Recorder(), Recorder()
    first.failing["a"] = 1
    for number in range(5):
        subject.send("a" if number == 0 else "b", b"%d" % number)

    settings = OrderedConsumerSettings(retry_finished_seconds=600)
    async with consumer_of(subject, first.handle, name="first", settings=settings):
        await until(lambda: subject.group_progress().position == 5)
        if when == "afterwards":
            subject.seal(0)
            await until(lambda: subject.drained, 6)
    subject.seal(0)
    async with consumer_of(subject, second.handle, name="second", settings=settings):
        began_at = now()
        await until(lambda: subject.finished, LONG)
        finished_at = now()

    assert [message.body for message in second.handled] == [b"0"]
    assert finished_at - began_at > 600
    assert subject.violations == []


async def test_joining_and_leaving_members_lose_and_disorder_nothing() -> None:
    """Members come and go every second: per key the first handlings have the order of the sends, none
    overlap, none is missing (statement 77)."""
    subject = FakeSubject(6)
    recorder = Recorder(seconds=lambda message: 0.002 * (message.queue_offset % 5))
    transport = FakeTransport(subject)

    async def feed() -> None:
        for number in range(3_000):
            subject.send(f"key-{number % 37}", b"%d" % number)
            await asyncio.sleep(0.01)

    producer = asyncio.create_task(feed())
    members = []
    for number in range(30):
        member = consumer_of(subject, recorder.handle, name=f"m{number}", transport=transport)
        member.start()
        members.append(member)
        if len(members) > 3:
            await members.pop(number % 4).close()
        await asyncio.sleep(1)
    await producer
    await until(lambda: len({message.body for message in recorder.handled}) == 3_000, LONG)
    for member in members:
        await member.close()

    for handled in recorder.by_key().values():
        firsts = list(dict.fromkeys(handled))
        assert firsts == sorted(firsts, key=int)
    assert recorder.overlaps == []
    assert len(recorder.handled) == 3_000
    assert subject.violations == []


class NotingTransport(FakeTransport):
    """Notes when heartbeats are on their way."""

    def __init__(self, subject: FakeSubject) -> None:
        super().__init__(subject)
        self.on_the_way = 0
        self.abandoned = 0
        """Those whose answers nobody waited for: the controllers may still be at work on them."""

        self.left = False

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        if command.code != RequestCode.BROKERSET_CONSUMER_HEARTBEAT:
            return await super().ask_controllers(command, timeout)
        self.left |= command.ext["leaving"] == "true"
        self.on_the_way += 1
        try:
            return await super().ask_controllers(command, timeout)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.on_the_way -= 1


async def test_the_heartbeat_that_leaves_waits_for_the_one_that_is_on_its_way() -> None:
    """The controllers work on both at the same time: one that joins must not come behind it."""
    subject = FakeSubject(1)
    transport = NotingTransport(subject)
    transport.answer_late[RequestCode.BROKERSET_CONSUMER_HEARTBEAT] = 0.5

    async with consumer_of(subject, Recorder().handle, transport=transport):
        await until(lambda: len(subject.members) == 1)
        await until(lambda: transport.on_the_way == 0)
        await until(lambda: transport.on_the_way == 1, LONG)

    assert transport.left
    assert transport.abandoned == 0
    assert not subject.members
