"""Sends that wait for replicas."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_broker.member.ha import waiting
from brokerset_broker.member.ha.waiting import Begun, Bell, BothDone, Rate, Waiters
from brokerset_broker.store.errors import PutStatus
from brokerset_rig.failing_answers import Answers

pytestmark = pytest.mark.virtual

OK = PutStatus.PUT_OK
LATE = PutStatus.FLUSH_SLAVE_TIMEOUT


async def test_waiters_are_answered_in_order_or_too_late() -> None:
    """One pass answers everybody whose end is reached; the others are told when their time is over."""

    waiters, told = Waiters(), []
    loop = asyncio.get_running_loop()
    for end in (10, 20, 30):
        waiters.add(end, lambda status, end=end: told.append((end, status, loop.time())), 3.0)  # type: ignore[misc]  # mypy cannot infer a lambda with a default

    await asyncio.sleep(1)
    waiters.answer_up_to(25)
    waiters.add(40, lambda status: told.append((40, status, loop.time())), 3.0)
    await asyncio.sleep(10)

    assert told == [(10, OK, 1.0), (20, OK, 1.0), (30, LATE, 3.0), (40, LATE, 4.0)]
    assert len(waiters) == 0


async def test_too_many_waiters_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit to how many wait."""

    monkeypatch.setattr(waiting, "WAITERS_MAX", 1)

    waiters, told = Waiters(), list[PutStatus]()
    waiters.add(1, told.append, 1.0)
    waiters.add(2, told.append, 1.0)
    assert told == [LATE]
    waiters.answer_all(PutStatus.SERVICE_NOT_AVAILABLE)
    assert told == [LATE, PutStatus.SERVICE_NOT_AVAILABLE]


async def test_an_answer_that_fails_ends_no_other() -> None:
    """Neither when replicas have what it waits for, nor when all are told, nor when time is over."""

    waiters, answers = Waiters(), Answers()
    for end in (1, 11, 21):
        waiters.add(end, answers.fail, 1.0)
        waiters.add(end, answers.take, 1.0)
    waiters.answer_up_to(10)
    await asyncio.sleep(2)
    waiters.add(31, answers.fail, 1.0)
    waiters.add(31, answers.take, 1.0)
    waiters.answer_all(PutStatus.SERVICE_NOT_AVAILABLE)

    assert answers.given == [OK, LATE, LATE, PutStatus.SERVICE_NOT_AVAILABLE]
    assert answers.reported == [f"at {status}" for status in answers.given]
    assert len(waiters) == 0


@pytest.mark.parametrize(
    ("flushed", "replicated", "expected"),
    [
        (True, OK, OK),
        (False, OK, PutStatus.FLUSH_DISK_TIMEOUT),
        (True, LATE, LATE),
        (False, LATE, LATE),
    ],
)
def test_disk_and_replicas(flushed: bool, replicated: PutStatus, expected: PutStatus) -> None:
    """The answer waits for both; a failure of the replicas goes before one of the disk."""
    told: list[PutStatus] = []
    first, second = BothDone(told.append), BothDone(told.append)

    first.flushed(flushed)
    assert not told
    first.replicated(replicated)
    second.replicated(replicated)
    assert len(told) == 1
    second.flushed(flushed)

    assert told == [expected, expected]


def test_a_rate_is_that_of_the_last_second() -> None:
    """Bytes are counted by the second."""
    rate = Rate(0.0)
    rate.add(500, 0.5)

    assert rate.per_second(0.9) == 0
    assert rate.per_second(1.0) == 500
    assert rate.per_second(2.0) == 0
    assert rate.total == 500


async def test_a_bell_wakes_in_time_or_when_rung() -> None:
    """A ring counts for the wait that follows it, once; without one the wait ends in time."""

    bell, loop = Bell(), asyncio.get_running_loop()
    bell.ring()
    await bell.wait(5)
    assert loop.time() == 0
    await bell.wait(5)
    assert loop.time() == 5
    loop.call_later(1, bell.ring)
    loop.call_later(1, bell.ring)
    await bell.wait(5)
    assert loop.time() == 6
    await bell.wait(5)
    assert loop.time() == 11


async def test_what_need_not_wait_is_done_when_it_has_begun() -> None:
    """A coroutine that returns without waiting has done all of its work, and no task is needed."""
    done = list[str]()

    async def work() -> None:
        done.append("all")

    begun = Begun(work())

    assert begun.done
    assert done == ["all"]
    await begun.finish()


async def test_a_task_finishes_what_was_begun() -> None:
    """What waits goes on in the task that finishes it, and its error is raised there."""
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    steps = list[str]()

    async def work() -> None:
        await first
        steps.append("first")
        await second
        steps.append("second")
        raise OSError("gone")

    begun = Begun(work())
    task = asyncio.create_task(begun.finish())
    assert not begun.done
    first.set_result(None)
    await asyncio.sleep(1)
    assert steps == ["first"]
    second.set_result(None)

    with pytest.raises(OSError, match="gone"):
        await task
    assert steps == ["first", "second"]


async def test_an_error_of_the_first_step_is_raised_by_the_task() -> None:
    """Whoever begins does not have to deal with errors."""

    async def work() -> None:
        raise OSError("gone")

    begun = Begun(work())

    assert not begun.done
    with pytest.raises(OSError, match="gone"):
        await begun.finish()


async def test_what_was_begun_hears_of_a_cancellation() -> None:
    """The coroutine cleans up when the task that finishes it is cancelled, or when it is given up."""
    ended = list[str]()

    async def work(name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(name)

    task = asyncio.create_task(Begun(work("cancelled")).finish())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    Begun(work("given up")).close()

    assert ended == ["cancelled", "given up"]
