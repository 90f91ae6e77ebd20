"""The cases of POP, each next to Java's on one broker.

A pop gives up to 32 messages of any queue; counted are messages that were popped by a group of their own and whose acks
were answered, every message of the topic once. Of pops that wait the time counts from before a send until the pop is
answered; the memory is the most that the broker had while they waited and were woken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tests.bench import generator
from tests.bench.cases import BODY, Action, Case, Context, backlog, run_of
from tests.bench.generator import Run, WrongAnswer
from tests.bench.sides import Running

from brokerset_rig.measuring import memory_mib

CONSUMERS: Final = 8
"""Connections, each with one pop that is not answered."""

WAITING_MANY: Final = 10_000
WAITING_FEW: Final = 8
SAMPLE_SECONDS: Final = 0.25
PREWARM_WAITING: Final = 1_000
SETTLED_SECONDS: Final = 3.0
"""Until all pops wait, before the first message comes."""


def pops(acks: str) -> Action:
    """Every message of the backlog, popped and acknowledged, again by a new group until the time is over."""

    def act(running: Running, context: Context) -> Run:
        runs = [("pop", backlog(running, context), {"conns": CONSUMERS, "acks": acks})]
        return context.load.measured(
            running.server.address, running.cpu_seconds, runs, again_until=context.size.seconds
        )

    return act


def waiting(count: int, rate: int) -> Action:
    """So many pops wait for messages that come at a steady rate."""

    def act(running: Running, context: Context) -> Run:
        topic = generator.new_topic(running.server.port, "popwait")
        seconds = max(3.0, context.size.seconds)
        flags = {"size": BODY, "conns": CONSUMERS, "count": count, "rate": rate, "seconds": seconds,
                 "warm": SETTLED_SECONDS}  # fmt: skip
        with most_memory(running) as most:
            run = run_of(running, context, topic, "popwait", **flags)
        return Run({**run.values, "mostMiB": most.mib}, run.use, run.generator)

    return act


@dataclass(slots=True)
class Most:
    """The most memory that was seen, in MiB."""

    mib: float = 0.0


@contextmanager
def most_memory(running: Running) -> Iterator[Most]:
    """What a broker has at most in pages that are no pages of files."""
    most, over, pids = Most(), threading.Event(), running.tree()

    def watch() -> None:
        while not over.wait(SAMPLE_SECONDS):
            with suppress(OSError):
                most.mib = max(most.mib, sum(memory_mib(pid)["anonymous"] for pid in pids))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def prewarm_pops(running: Running, context: Context) -> None:
    """Pops and acks of both kinds."""
    seconds = running.side.prewarm_seconds
    topic = backlog(running, context)
    for acks in ("one", "batch"):
        with suppress(WrongAnswer):
            context.load.measured(
                running.server.address,
                running.cpu_seconds,
                [("pop", topic, {"conns": CONSUMERS, "acks": acks})],
                again_until=seconds,
            )


def prewarm(running: Running, context: Context) -> None:
    """Pops, acks and waiting pops, unmeasured, as `cases.prewarm` does; what is not served, its own case tells."""
    prewarm_pops(running, context)
    with suppress(WrongAnswer):
        context.load.answer(
            running.server.address,
            "popwait",
            generator.new_topic(running.server.port, "popwait"),
            {
                "size": BODY,
                "count": PREWARM_WAITING,
                "rate": 500,
                "seconds": running.side.prewarm_seconds,
                "warm": 1,
            },
        )


POP_CASES: Final = (
    Case("pop-ack", pops("one")),
    Case("pop-batch-ack", pops("batch")),
    Case("pop-wake", waiting(WAITING_FEW, 1000)),
    Case("pop-wake-10k", waiting(WAITING_MANY, 50)),
)
