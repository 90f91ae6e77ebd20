from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerset_kube.errors import Request, Unavailable
from brokerset_operator.reconcile_queue import (
    BACK_OFF_SECONDS_MAX,
    GAP_SECONDS,
    GONE,
    RECONCILE_SECONDS_MAX,
    Key,
    ReconcileQueue,
    RetryAfter,
    Schedule,
)
from brokerset_sim.loop import run


def key(name: str) -> Key:
    return Key("BrokerSet", "shop", name)


A, B, C = key("a"), key("b"), key("c")


def schedule(keys_max: int = 100) -> Schedule:
    return Schedule(randomness=random.Random(1), keys_max=keys_max)


# -- the schedule -------------------------------------------------------------------------------------------


def test_events_are_served_in_order_and_once() -> None:
    """Several events of one object are one reconcile; objects come in the order of their first events."""
    plan = schedule()
    for name in (B, A, B, B):
        plan.enqueue(name, 1.0)

    assert [plan.take(1.0), plan.take(1.0), plan.take(1.0)] == [B, A, None]


def test_a_event_during_a_reconcile_leads_to_another_one() -> None:
    """What changes while a reconcile reads may have been missed by it."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    assert plan.take(0.0) == A
    plan.enqueue(A, 5.0)
    assert plan.take(5.0) is None

    plan.succeeded(A, 6.0, None)

    assert plan.take(6.0) == A


def test_reconciles_of_one_object_have_a_gap() -> None:
    """Events that come faster than reconciles are worth are gathered."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    plan.take(0.0)
    plan.succeeded(A, 0.1, None)
    plan.enqueue(A, 0.1)

    assert plan.take(0.1) is None
    assert plan.next_at() == GAP_SECONDS
    assert plan.take(GAP_SECONDS) == A


def test_a_failed_reconcile_waits_longer_each_time() -> None:
    """Pauses double up to a minute, give or take a fifth."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    pauses = []
    for _ in range(10):
        at = plan.next_at()
        assert at is not None
        assert plan.take(at) == A
        pauses.append(plan.failed(A, at))

    assert 0.8 <= pauses[0] <= 1.2
    assert all(after > before for before, after in itertools.pairwise(pauses[:6]))
    assert 0.8 * BACK_OFF_SECONDS_MAX <= pauses[-1] <= 1.2 * BACK_OFF_SECONDS_MAX


def test_events_do_not_shorten_the_pause_after_a_failure_but_people_do() -> None:
    """A reconcile's own traces are events; a changed manifest is a new reason to try."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    plan.take(0.0)
    now = 0.0
    for _ in range(4):
        now += plan.failed(A, now)
        assert plan.take(now) == A
    pause = plan.failed(A, now)
    plan.enqueue(A, now + 1.0)
    assert plan.next_at() == now + pause

    plan.enqueue(A, now + 1.0, fresh=True)

    assert plan.take(now + 1.0) == A


def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    """`wait` is the least pause."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    plan.take(0.0)

    assert plan.failed(A, 0.0, wait=30.0) == 30.0


def test_a_success_forgets_the_failures_before() -> None:
    """After a success the first pause is short again."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    plan.take(0.0)
    for _ in range(5):
        plan.failed(A, 0.0)
        plan.take(1e9)
    plan.succeeded(A, 0.0, None)
    plan.enqueue(A, 1e9)
    plan.take(1e9)

    assert plan.failed(A, 0.0) <= 1.2


def test_another_reconcile_comes_when_it_was_asked_for_or_with_a_event_before() -> None:
    """`look_again` is the longest time; a mark comes sooner and does not add a reconcile."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    plan.take(0.0)
    plan.succeeded(A, 1.0, 100.0)
    assert plan.next_at() == 101.0

    plan.enqueue(A, 5.0)
    assert plan.take(5.0) == A
    plan.succeeded(A, 6.0, None)

    assert plan.next_at() is None


def test_a_reconcile_at_a_given_time_does_not_delay_a_sooner_one() -> None:
    """`look_again` only ever brings a reconcile forward."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    plan.take(0.0)
    plan.succeeded(A, 0.0, 10.0)
    plan.requeue(A, 50.0)
    assert plan.next_at() == 10.0
    plan.requeue(A, 5.0)

    assert plan.next_at() == 5.0


def test_more_objects_than_the_bound_are_dropped_and_counted() -> None:
    """A mark of one object too many is refused; those that are known go on."""
    plan = schedule(keys_max=2)

    assert [plan.enqueue(name, 0.0) for name in (A, B, C)] == [True, True, False]
    assert plan.enqueue(A, 0.0)
    assert plan.dropped == 1


def test_the_age_of_the_oldest_event_counts_failures_in() -> None:
    """A change that no reconcile could take in grows older until one succeeds."""
    plan = schedule()
    plan.enqueue(A, 0.0)
    assert plan.oldest_seconds(3.0) == 3.0
    plan.take(3.0)
    assert plan.oldest_seconds(4.0) == 0.0
    plan.failed(A, 5.0)

    assert plan.oldest_seconds(9.0) == 9.0
    assert plan.take(9.0) == A
    plan.failed(A, 10.0)
    assert plan.oldest_seconds(11.0) == 11.0
    assert plan.take(15.0) == A
    plan.succeeded(A, 16.0, None)
    assert plan.oldest_seconds(17.0) == 0.0


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from("mmmtsfl"), st.integers(0, 4), st.floats(0, 3)), max_size=200),
    seed=st.integers(0, 10),
)
def test_no_event_is_lost_and_no_object_runs_twice(steps: list[tuple[str, int, float]], seed: int) -> None:
    """Against a naive model: every marked object is served, and never by two reconciles at a time."""
    plan = Schedule(randomness=random.Random(seed))
    marked: set[Key] = set()
    running: set[Key] = set()
    now = 0.0
    for what, number, passes in steps:
        now += passes
        name = key(str(number))
        if what == "m":
            plan.enqueue(name, now)
            marked.add(name)
        elif what == "t":
            taken = plan.take(now)
            if taken is not None:
                assert taken not in running
                running.add(taken)
                marked.discard(taken)
        elif what == "l":
            plan.requeue(name, now + 1)
        elif running:
            done = min(running)
            running.discard(done)
            if what == "s":
                plan.succeeded(done, now, None)
            else:
                plan.failed(done, now)
                marked.add(done)
    for done in sorted(running):
        plan.succeeded(done, now, None)
    served: set[Key] = set()
    while (taken := plan.take(now + 1000)) is not None:
        served.add(taken)
        plan.succeeded(taken, now + 1000, None)
    assert marked <= served
    assert plan.next_at() is None


def test_what_is_overtaken_does_not_pile_up() -> None:
    """Keys and looks without end keep the heap about as small as the number of objects."""
    plan = schedule()
    for number in range(10_000):
        now = float(number)
        plan.enqueue(A, now)
        plan.take(now)
        plan.succeeded(A, now, 1e6 - number)

    assert len(plan._heap) < 200


# -- the queue ----------------------------------------------------------------------------------------------


class Reconciles:
    """Reconciles that take so long and return what the test says."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.started: list[tuple[float, str]] = []
        self.most = 0
        self.now: Counter[Key] = Counter()
        self.results: dict[Key, list[float | Exception | None]] = {}

    async def __call__(self, name: Key) -> float | None:
        self.started.append((asyncio.get_running_loop().time(), name.name))
        self.now[name] += 1
        assert self.now[name] == 1, "two rounds of one object at a time"
        self.most = max(self.most, self.now.total())
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now[name] -= 1
        results = self.results.get(name)
        result = results.pop(0) if results else None
        if isinstance(result, Exception):
            raise result
        return result


def running(
    reconciles: Callable[[Key], Awaitable[float | None]], *, workers: int = 2
) -> tuple[ReconcileQueue, asyncio.Task[None]]:
    queue = ReconcileQueue(reconciles, workers=workers, schedule=schedule())
    return queue, asyncio.create_task(queue.run())


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def test_as_many_reconciles_run_as_there_are_workers() -> None:
    """Ten objects and two workers: two at a time, in order, none left."""

    async def work() -> None:
        reconciles = Reconciles()
        queue, task = running(reconciles)
        for number in range(10):
            queue.enqueue(key(f"{number}"))
        await asyncio.sleep(20)

        assert reconciles.most == 2
        assert [name for _, name in reconciles.started] == [f"{number}" for number in range(10)]
        assert reconciles.started[-1][0] == pytest.approx(4.0)
        await ended(task)

    run(work())


def test_a_busy_object_does_not_starve_the_others() -> None:
    """One that is marked all the time gets its turn after those that were marked before."""

    async def work() -> None:
        reconciles = Reconciles(seconds=0.1)
        queue, task = running(reconciles, workers=1)
        for number in range(20):
            queue.enqueue(key(f"{number}"))
        for _ in range(200):
            queue.enqueue(A)
            await asyncio.sleep(0.01)
        await asyncio.sleep(5)

        order = [name for _, name in reconciles.started]
        assert order[:20] == [f"{number}" for number in range(20)]
        assert order.count("a") <= 4
        await ended(task)

    run(work())


def test_a_reconcile_that_fails_is_tried_again_and_the_others_go_on() -> None:
    """A failure delays its own object only."""

    async def work() -> None:
        reconciles = Reconciles(seconds=0.1)
        reconciles.results[A] = [RetryAfter("no"), ValueError("broken"), None]
        queue, task = running(reconciles, workers=1)
        queue.enqueue(A)
        queue.enqueue(B)
        await asyncio.sleep(10)

        assert [name for _, name in reconciles.started] == ["a", "b", "a", "a"]
        gaps = [at for at, name in reconciles.started if name == "a"]
        assert gaps[1] - gaps[0] >= 0.9
        assert gaps[2] - gaps[1] >= 1.7
        await ended(task)

    run(work())


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    """What an API server says with a refusal is the least pause."""

    async def work() -> None:
        reconciles = Reconciles(seconds=0.1)
        reconciles.results[A] = [Unavailable(Request("get", "pods"), "busy", 30.0), None]
        queue, task = running(reconciles, workers=1)
        queue.enqueue(A)
        await asyncio.sleep(60)

        first, second = (at for at, _ in reconciles.started)
        assert second - first >= 30.0
        await ended(task)

    run(work())


def test_a_reconcile_that_hangs_is_broken_off() -> None:
    """A worker is never lost to one object."""

    async def work() -> None:
        reconciles = Reconciles(seconds=10_000)
        told: list[bool] = []
        queue = ReconcileQueue(
            reconciles,
            workers=1,
            schedule=schedule(),
            on_reconciled=lambda name, seconds, good: told.append(good),
        )
        task = asyncio.create_task(queue.run())
        queue.enqueue(A)
        await asyncio.sleep(RECONCILE_SECONDS_MAX + 1)

        assert told == [False]
        await ended(task)

    run(work())


def test_an_object_that_is_gone_is_forgotten_unless_it_was_enqueued_meanwhile() -> None:
    """A set that is deleted and made again during its reconcile is looked at again."""

    async def work() -> None:
        reconciles = Reconciles()
        reconciles.results[A] = [GONE, GONE]
        queue, task = running(reconciles)
        queue.enqueue(A)
        await asyncio.sleep(0.5)
        queue.enqueue(A)
        await asyncio.sleep(1)
        assert queue.schedule.known(A)
        await asyncio.sleep(5)

        assert len(reconciles.started) == 2
        assert not queue.schedule.known(A)
        await ended(task)

    run(work())


def test_stopping_lets_reconciles_end_and_starts_none() -> None:
    """`stop` returns from `run` when what is on has ended; what waits stays undone."""

    async def work() -> None:
        reconciles = Reconciles(seconds=3)
        queue, task = running(reconciles, workers=1)
        queue.enqueue(A)
        queue.enqueue(B)
        await asyncio.sleep(1)
        queue.stop()
        await task

        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert [name for _, name in reconciles.started] == ["a"]

    run(work())


def test_everything_that_is_known_can_be_enqueued() -> None:
    """`mark_all` leads to a reconcile of each object."""

    async def work() -> None:
        reconciles = Reconciles(seconds=0.1)
        queue, task = running(reconciles)
        queue.enqueue(A)
        queue.enqueue(B)
        await asyncio.sleep(5)
        queue.enqueue_all()
        await asyncio.sleep(5)

        assert sorted(name for _, name in reconciles.started) == ["a", "a", "b", "b"]
        await ended(task)

    run(work())
