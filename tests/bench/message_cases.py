"""The cases of transactions, timers and filtered pulls, each next to Java's on one broker.

A transaction is a half message and its commit, both answered. Timers are put far ahead, so that none is delivered
meanwhile; those that are delivered were put before, and are all due at the same whole second: the rate is how many
there are by how long it takes after that second until all are in their queues, p50 and p99 how late each was stored.
A filter matches one of ten messages; the rate and the processor time are those of the messages that match.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from tests.bench import generator
from tests.bench.cases import BODY, Action, Case, Context, run_of
from tests.bench.generator import Run, WrongAnswer
from tests.bench.sides import Running

SETTINGS: Final = {"enablePropertyFilter": "true"}
"""Without it Java refuses pulls with SQL."""

FAR_MS: Final = 3_600_000
"""Delay of timers that are put and not delivered: within the window of the wheel, so none is rolled."""

LEAD_SECONDS: Final = 8
"""From the first put of the timers that are delivered until they are due, at least."""

TAGS: Final = 10
TAGGED_BATCH: Final = 3 * TAGS
TAGGED: Final = "tagged"
"""Behind an address: the topic with tags and properties."""

PREWARM_TIMERS: Final = 5_000


def transactions(conns: int, window: int) -> Action:
    """Half messages and commits, so many open on each connection."""

    def act(running: Running, context: Context) -> Run:
        topic = generator.new_topic(running.server.port, "tx")
        timed = {"seconds": context.size.seconds, "warm": context.size.warm}
        return run_of(running, context, topic, "tx", size=BODY, conns=conns, window=window, **timed)

    return act


def put_timers(running: Running, context: Context) -> Run:
    """Timers that stay in the wheel."""
    topic = generator.new_topic(running.server.port, "put")
    timed = {"seconds": context.size.seconds, "warm": context.size.warm}
    return run_of(running, context, topic, "send", size=BODY, conns=4, window=64, delay=FAR_MS, **timed)


def deliver_timers(running: Running, context: Context) -> Run:
    """Timers that are all due at once."""
    return run_of(running, context, new_timers(running), "timers", **timers_flags(context.size.timers))


def new_timers(running: Running) -> str:
    """A topic for timers."""
    return generator.new_topic(running.server.port, "timers")


def timers_flags(count: int) -> dict[str, object]:
    """How the load generator puts timers that are delivered."""
    return {"size": BODY, "count": count, "window": 64, "lead": LEAD_SECONDS}


def tagged(running: Running, context: Context) -> str:
    """The topic whose messages have tags and properties in turn, made once."""
    key = f"{running.server.address}/{TAGGED}"
    if key not in context.backlogs:
        topic = generator.new_topic(running.server.port, TAGGED)
        count = -(-context.size.backlog // TAGGED_BATCH) * TAGGED_BATCH
        flags = {"size": BODY, "count": count, "window": 4, "batch": TAGGED_BATCH, "tags": TAGS}
        context.load.answer(running.server.address, "send", topic, flags)
        generator.await_indexed(running.server.port, topic, count)
        context.backlogs[key] = topic
    return context.backlogs[key]


def filtered(kind: str) -> Action:
    """Every message of the topic, filtered, from the page cache, again until the time is over."""

    def act(running: Running, context: Context) -> Run:
        runs = [("filtered", tagged(running, context), {"tags": TAGS, "type": kind})]
        return context.load.measured(
            running.server.address, running.cpu_seconds, runs, again_until=context.size.seconds
        )

    return act


def prewarm(running: Running, context: Context) -> None:
    """Each kind of load, unmeasured, as `cases.prewarm` does; what is not served, its own case tells."""
    seconds, port = running.side.prewarm_seconds, running.server.port
    timed = {"size": BODY, "window": 64, "seconds": seconds, "warm": 0}
    for kind in ("TAG", "SQL92"):
        warm_up(
            running, context, "filtered", tagged(running, context), {"tags": TAGS, "type": kind}, seconds / 2
        )
    warm_up(running, context, "tx", generator.new_topic(port, "prewarm"), timed)
    delayed = {**timed, "delay": FAR_MS}
    warm_up(running, context, "send", generator.new_topic(port, "prewarm"), delayed)
    warm_up(running, context, "timers", new_timers(running), timers_flags(PREWARM_TIMERS))


def warm_up(
    running: Running,
    context: Context,
    mode: str,
    topic: str,
    flags: Mapping[str, object],
    seconds: float = 0.0,
) -> None:
    """One kind of load, once or for so long."""
    with suppress(WrongAnswer):
        context.load.measured(
            running.server.address, running.cpu_seconds, [(mode, topic, flags)], again_until=seconds
        )


MESSAGE_CASES: Final = (
    Case("tx-1", transactions(1, 1)),
    Case("tx-4x64", transactions(4, 64)),
    Case("timer-put", put_timers),
    Case("timer-deliver", deliver_timers),
    Case("filter-tag", filtered("TAG")),
    Case("filter-sql", filtered("SQL92")),
)
