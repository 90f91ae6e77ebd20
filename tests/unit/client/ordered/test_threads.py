"""Handlers that are plain functions: real threads on a real loop."""

from __future__ import annotations

import asyncio
import threading

from brokerset_client.ordered.consuming import (
    HandlingContext,
    OrderedConsumerSettings,
    OrderedMessage,
    Pending,
)
from brokerset_rig.fake_subject import FakeSubject
from brokerset_rig.ordered_consumers import consumer_of
from brokerset_rig.waiting import until


async def test_plain_functions_run_in_threads_in_the_order_of_their_key() -> None:
    """A function gets messages of a key one at a time, others at the same time, on few threads
    (statement 37)."""
    subject = FakeSubject()
    together = threading.Barrier(2, timeout=10)
    handled: list[tuple[str | None, bytes]] = []
    names: set[str] = set()

    def handle(message: OrderedMessage, context: HandlingContext) -> None:
        together.wait()
        names.add(threading.current_thread().name)
        handled.append((message.key, message.body))

    for number in range(10):
        subject.send("a", b"a%d" % number)
        subject.send("b", b"b%d" % number)
    settings = OrderedConsumerSettings(threads_max=2)
    async with consumer_of(subject, handle, settings=settings):
        await until(lambda: subject.group_progress().position == 20)

    for key in "ab":
        assert [body for each, body in handled if each == key] == [f"{key}{n}".encode() for n in range(10)]
    assert len(names) == 2


async def test_an_answer_may_come_from_another_thread() -> None:
    """`Pending.done` is safe from any thread (statement 41)."""
    subject = FakeSubject()

    async def handle(message: OrderedMessage, context: HandlingContext) -> Pending:
        pending = context.defer()
        threading.Thread(target=pending.done).start()
        return pending

    subject.send("a", b"1")
    async with consumer_of(subject, handle):
        await until(lambda: subject.group_progress().position == 1)


async def test_a_thread_that_takes_too_long_is_waited_for() -> None:
    """A thread cannot be cancelled: the next attempt begins when it has returned, and its result does not
    count (statement 37)."""
    subject = FakeSubject()
    running = 0
    attempts: list[tuple[int, int]] = []

    def handle(message: OrderedMessage, context: HandlingContext) -> None:
        nonlocal running
        running += 1
        attempts.append((context.attempt, running))
        if context.attempt == 1:
            while not context.cancelled:
                threading.Event().wait(0.01)
        running -= 1

    subject.send("a", b"1")
    settings = OrderedConsumerSettings(handling_seconds=0.3)
    async with consumer_of(subject, handle, settings=settings):
        await until(lambda: subject.group_progress().position == 1)

    assert attempts == [(1, 1), (2, 1)]


async def test_what_a_function_returns_is_awaited_if_it_can_be() -> None:
    """A lambda that calls a coroutine function is a handler like that function: its message is handled when
    the coroutine has ended, and not before (statement 37)."""
    subject = FakeSubject()
    running: list[bytes] = []
    handled: list[bytes] = []

    async def work(message: OrderedMessage) -> int:
        assert running == []
        running.append(message.body)
        await asyncio.sleep(0.01)
        handled.append(running.pop())
        return 1

    subject.send("a", b"1")
    subject.send("a", b"2")
    async with consumer_of(subject, lambda message, _: work(message)):
        await until(lambda: subject.group_progress().position == 2)

    assert handled == [b"1", b"2"]
