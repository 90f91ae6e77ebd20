"""Consumers of an ordered subject in memory: handling, acknowledging, handing over."""

from __future__ import annotations

import pytest

from brokerset_rig.fake_subject import FakeSubject
from brokerset_rig.ordered_consumers import Recorder, consumer_of
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual


async def test_messages_of_a_key_are_handled_one_at_a_time_in_their_order() -> None:
    """Whatever handlers take, those of one key come one after the other, in the order sent (statement 37)."""
    subject = FakeSubject(2)
    recorder = Recorder(seconds=lambda message: 0.01 * (message.queue_offset % 3))
    for number in range(60):
        subject.send(f"key-{number % 7}", b"%d" % number)

    async with consumer_of(subject, recorder.handle):
        await until(lambda: len(recorder.handled) == 60)

    for key, bodies in recorder.by_key().items():
        assert bodies == [b"%d" % number for number in range(60) if f"key-{number % 7}" == key]
    assert recorder.overlaps == []
    assert subject.violations == []


async def test_acks_of_what_was_handled_are_stored_at_close() -> None:
    """Closing leaves the group where it handled to, with nothing owned and no member (statement 46)."""
    subject = FakeSubject(2)
    recorder = Recorder()
    for number in range(20):
        subject.send(f"key-{number}", b"%d" % number)

    async with consumer_of(subject, recorder.handle):
        await until(lambda: len(recorder.handled) == 20)

    assert sum(subject.group_progress(number).position for number in range(2)) == 20
    assert subject.members == {}
    assert subject.owners == {}
    assert subject.violations == []


async def test_a_consumer_that_joins_gets_partitions_after_the_owner_has_released_them() -> None:
    """Handing over: the owner's acks are stored before the next owner starts, and no key overlaps
    (statement 46)."""
    subject = FakeSubject(4)
    recorder = Recorder(seconds=lambda _: 0.05)
    for number in range(200):
        subject.send(f"key-{number % 40}", b"%d" % number)

    async with consumer_of(subject, recorder.handle, name="first"):
        await until(lambda: len(recorder.handled) > 10)
        async with consumer_of(subject, recorder.handle, name="second"):
            await until(lambda: len({owner.session for owner in subject.owners.values()}) == 2)
            await until(lambda: len(recorder.handled) == 200)

    assert len({session for session, *_ in subject.acks}) == 2
    assert recorder.overlaps == []
    assert all(bodies == sorted(bodies, key=int) for bodies in recorder.by_key().values())
    assert subject.violations == []
