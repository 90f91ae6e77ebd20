"""The cases of one broker: what is done to it, and with which settings it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.bench import floors, generator
from tests.bench.generator import Generator, Run
from tests.bench.sides import Running

LOG_FILE_BYTES = 256 << 20
"""Of a commit log file, in both makes: a roll must come within reach."""

BODY = 1024
E2E_RATE = 1000
RECORD_OVERHEAD_BYTES = 180
"""About what a message takes in the log besides its body; it decides only when the roll comes."""

END_SLACK_BYTES = 256 << 10
"""Two tenths of a second of the end-to-end cases."""

FLOOR_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    rounds: int
    seconds: float
    warm: float
    backlog: int
    """Messages that are pulled, again and again."""

    load_bytes: int
    """Written right before the end-to-end case "after load"."""

    timers: int
    """That are delivered at once."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a case works with."""

    load: Generator
    size: Size
    backlogs: dict[str, str]
    """By side, the topic with messages that is pulled, and that the end-to-end cases find."""


Action: TypeAlias = Callable[[Running, Context], Run]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the results."""

    name: str
    act: Action
    flush: str = "ASYNC_FLUSH"
    floor: Callable[[Path], float] | None = None
    """Messages a second that the machine gives without a broker."""


def run_of(running: Running, context: Context, topic: str, mode: str, **flags: object) -> Run:
    """One run of the load generator."""
    server = running.server
    return context.load.measured(server.address, running.cpu_seconds, [(mode, topic, flags)])


def sends(**flags: object) -> Action:
    """Sends to a new topic."""

    def act(running: Running, context: Context) -> Run:
        topic = generator.new_topic(running.server.port, "send", running.access)
        timed = {"seconds": context.size.seconds, "warm": context.size.warm}
        return run_of(running, context, topic, "send", **flags, **timed)

    return act


def backlog(running: Running, context: Context) -> str:
    """The topic with messages of this broker, made once."""
    address = running.server.address
    if address not in context.backlogs:
        topic = generator.new_topic(running.server.port, "backlog", running.access)
        flags = {"size": BODY, "count": context.size.backlog, "window": 4, "batch": 32}
        context.load.answer(address, "send", topic, flags)
        generator.await_indexed(running.server.port, topic, context.size.backlog, running.access)
        context.backlogs[address] = topic
    return context.backlogs[address]


def pulls(running: Running, context: Context) -> Run:
    """Every message of the backlog, from the page cache, again until the time is over."""
    topic = backlog(running, context)
    flags = {"size": BODY}
    runs = [("pull", topic, flags)]
    return context.load.measured(
        running.server.address, running.cpu_seconds, runs, again_until=context.size.seconds
    )


def end_to_end(topic: str, running: Running, context: Context) -> Run:
    """From before a send until the long poll of its queue answers, at a steady rate."""
    flags = {"size": BODY, "rate": E2E_RATE, "seconds": max(2.0, context.size.seconds)}
    return run_of(running, context, topic, "e2e", **flags)


def e2e_old_topic(running: Running, context: Context) -> Run:
    """On a topic that has messages."""
    return end_to_end(backlog(running, context), running, context)


def e2e_new_topic(running: Running, context: Context) -> Run:
    """On a topic that was made a moment ago: the files of its queues are made under the first messages."""
    return end_to_end(generator.new_topic(running.server.port, "e2e", running.access), running, context)


def write_until(running: Running, context: Context, end: int, body: int) -> None:
    """Bring the log to this end or just before it, with batches; how long a record is shows only then."""
    server = running.server
    while (left := end - generator.log_end(server.port)) > END_SLACK_BYTES:
        flags = {
            "size": body,
            "count": max(1, left // (body + RECORD_OVERHEAD_BYTES)),
            "window": 4,
            "batch": 8,
        }
        context.load.answer(server.address, "send", generator.new_topic(server.port, "filler"), flags)


def e2e_after_load(running: Running, context: Context) -> Run:
    """Right after gigabytes were written, while the disk still writes them back."""
    topic = backlog(running, context)
    end = generator.log_end(running.server.port)
    write_until(running, context, end + context.size.load_bytes, 4 * BODY)
    return end_to_end(topic, running, context)


def e2e_over_roll(running: Running, context: Context) -> Run:
    """While the commit log comes to the end of a file and goes on in the next one."""
    topic = backlog(running, context)
    port = running.server.port
    seconds = max(2.0, context.size.seconds)
    before_roll = int(E2E_RATE * seconds / 2) * (BODY + RECORD_OVERHEAD_BYTES)
    end = generator.log_end(port)
    target = (end // LOG_FILE_BYTES + 1) * LOG_FILE_BYTES - before_roll
    if target < end:
        target += LOG_FILE_BYTES
    write_until(running, context, target, BODY)
    begun = generator.log_end(port) // LOG_FILE_BYTES
    run = end_to_end(topic, running, context)
    rolled = generator.log_end(port) // LOG_FILE_BYTES > begun
    return Run({**run.values, "rolled": float(rolled)}, run.use, run.generator)


def prewarm(running: Running, context: Context) -> None:
    """Everything that is measured, once and unmeasured: a JVM compiles only what has run often, and is slow until then."""
    server, seconds = running.server, running.side.prewarm_seconds
    for flags in ({"size": BODY, "window": 64}, {"size": BODY, "window": 4, "batch": 32}):
        topic = generator.new_topic(server.port, "prewarm", running.access)
        context.load.answer(server.address, "send", topic, {**flags, "seconds": seconds, "warm": 0})
    topic = backlog(running, context)
    runs = [("pull", topic, {"size": BODY})]
    context.load.measured(server.address, running.cpu_seconds, runs, again_until=seconds / 2)
    context.load.answer(
        server.address, "e2e", topic, {"size": BODY, "rate": E2E_RATE, "seconds": seconds / 2}
    )


def synced(records: int) -> Callable[[Path], float]:
    """The floor below sends that wait for the disk, so many at a time."""
    return lambda folder: floors.synced_per_second(folder, records, FLOOR_SECONDS)


SYNC = "SYNC_FLUSH"
BROKER_CASES = (
    Case("send-1k-1", sends(size=BODY, window=1)),
    Case("send-1k-64", sends(size=BODY, window=64)),
    Case("send-1k-4x64", sends(size=BODY, window=64, conns=4)),
    Case("send-100b-64", sends(size=100, window=64)),
    Case("batch-1k", sends(size=BODY, window=4, batch=32)),
    Case("batch-100b", sends(size=100, window=4, batch=32)),
    Case("pull-1k", pulls),
    Case("e2e-old-topic", e2e_old_topic),
    Case("e2e-new-topic", e2e_new_topic),
    Case("sync-1", sends(size=BODY, window=1), SYNC, synced(1)),
    Case("sync-16", sends(size=BODY, window=16), SYNC, synced(16)),
    Case("sync-64", sends(size=BODY, window=64), SYNC, synced(64)),
    Case("sync-batch", sends(size=BODY, window=4, batch=32), SYNC, synced(128)),
)
LOADED_CASES = (
    Case("e2e-roll", e2e_over_roll),
    Case("e2e-after-load", e2e_after_load),
)
