"""One run of a failover measurement: load, fault, mending, and the judgement of what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from brokerset_bench.faults import PAUSE_SECONDS, Kind, inject
from brokerset_bench.history import History, check
from brokerset_bench.measurements import (
    KindResult,
    RunResult,
    first_takeover,
    longest_pause,
    pause_after_takeover,
    takeover_gap,
)
from brokerset_bench.message_loads import MessageLoads
from brokerset_bench.probes import GroupView, NoAnswer, Prober
from brokerset_bench.reader import NotRead, Reader
from brokerset_bench.sets import BenchSet
from brokerset_bench.writer import QUEUES, Route, Writer
from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance

FOLLOW_SECONDS: Final = 3.0
"""The load goes on for so long after the fault is mended."""

SERVED_SECONDS: Final = 1.0
"""A fault is mended no sooner than this after another master's first acknowledgement."""

TOPIC_SECONDS_MAX: Final = 40.0
"""Longest time until a route tells a new topic."""

POLL_SECONDS: Final = 0.02
SWITCH_MS_MAX: Final = 10_000
"""Time-out of a planned switchover."""


class RunFailed(Exception):
    """A run could not be made or ended; says what was waited for."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, and how patient a run is."""

    rate: int
    """Messages a second."""

    size: int
    """Bytes of a body."""

    warm: float
    """Seconds of load before the fault."""

    settle: float
    """Seconds between the creation of a topic and the load (Java's slaves copy topics on a timer)."""

    takeover_max: float
    """Seconds after which nobody is expected to take over any more."""

    whole_max: float
    """Seconds that the group may take to be whole."""

    transactions: int = 0
    """Begun in a second, besides the messages."""

    timers: int = 0
    """Put in a second, besides the messages."""

    pops: int = 0
    """Sent in a second to be popped, besides the messages."""


async def run_kind(
    bench: BenchSet,
    kind: Kind,
    runs: int,
    load: Load,
    keep: Path | None,
    done: Callable[[int], None],
    result: KindResult,
) -> None:
    """Add runs of a kind to `result` until it has so many, on a set that was just started.

    Ends sooner when the set is of no use any more: the brokers are not all in sync after a run (the next
    one needs another set), or something else went wrong (`problem`).
    """
    try:
        async with Prober() as prober:
            await _until_whole(bench, prober, load)
            async with ClientInstance(bench.name_servers) as instance:
                while len(result.runs) < runs:
                    run = _Run(bench, kind, len(result.runs), load, prober, instance)
                    result.runs.append(await run.make(keep))
                    done(1)
                    if run.not_whole:
                        result.not_whole = run.not_whole
                        return
    except (NoAnswer, NotRead, RunFailed, ClientError) as error:
        result.problem = str(error)


async def _until_whole(bench: BenchSet, prober: Prober, load: Load) -> GroupView:
    return await prober.until_whole(
        bench.controller_addresses, bench.group, bench.broker_addresses, load.whole_max, bench.ended
    )


@dataclass(slots=True)
class _Run:
    bench: BenchSet
    kind: Kind
    number: int
    load: Load
    prober: Prober
    instance: ClientInstance
    history: History = field(default_factory=lambda: History(time.monotonic))
    switch_pause_ms: int | None = None
    not_whole: str = ""
    """What was missing when the group should have been whole again after the run."""

    async def make(self, keep: Path | None) -> RunResult:
        topic = f"failover-{self.kind.name}-{self.number}"
        view = await self._whole()
        route = Route(self.prober, self.bench.name_servers, topic, self.bench.group)
        loads = MessageLoads(
            self.instance,
            route,
            self.bench.group,
            f"{self.kind.name}-{self.number}",
            transactions=self.load.transactions,
            timers=self.load.timers,
            pops=self.load.pops,
        )
        await loads.create_topics(self.prober, view.master)
        await self._create_topic(view, route, topic)
        reader = Reader(self.instance, route, topic, self.bench.group)
        writer = Writer(self.history, route, topic, rate=self.load.rate, size=self.load.size, first=0)
        self.history.note("clock", datetime.now(UTC).isoformat())  # what the servers' logs are in
        stop = asyncio.Event()
        writing = asyncio.create_task(writer.run(stop))
        reading = asyncio.create_task(reader.run(self.history))
        loads.start(stop)
        try:
            await asyncio.sleep(self.load.warm)
            if not self.history.acks:
                raise RunFailed(f"nothing was acknowledged in {self.load.warm:g} s: {writer.reasons}")
            view = await self.prober.group(
                self.bench.controller_addresses, self.bench.group, self.bench.broker_addresses
            )
            fault = time.monotonic()
            gap = await self._fault(view)
            acks, loaded_until = self.history.acks, time.monotonic()
            stop.set()
            await writing
            ended = time.monotonic()
            later = pause_after_takeover(acks, fault, view.master, loaded_until)
            # The consumer may only be asked to be at the end when everybody serves again.
            whole_after: float | None = None
            try:
                await self._whole()
                whole_after = time.monotonic() - ended
            except NoAnswer as error:
                self.not_whole = str(error)
            await reader.until_end()
            await reader.scan(self.history)
            messages = await loads.finish()
        finally:
            await loads.close()
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)
            if keep is not None:
                self.history.write(keep / f"{self.kind.name}-{self.number}.jsonl")
                loads.write(keep, f"{self.kind.name}-{self.number}")
        return RunResult(
            gap=gap,
            verdict=check(self.history.events()),
            failed=writer.failed,
            failed_at_old=writer.failed_at_old,
            reasons=dict(writer.reasons),
            whole_after=whole_after,
            later_pause=later,
            switch_pause_ms=self.switch_pause_ms,
            messages=messages,
        )

    async def _whole(self) -> GroupView:
        return await _until_whole(self.bench, self.prober, self.load)

    async def _create_topic(self, view: GroupView, route: Route, topic: str) -> None:
        await self.prober.create_topic(view.master, topic, QUEUES)
        try:
            async with asyncio.timeout(TOPIC_SECONDS_MAX):
                while not await route.read():  # noqa: ASYNC110  # name servers set no event here
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise RunFailed(f"no route tells {topic} after {TOPIC_SECONDS_MAX:g} s") from None
        await asyncio.sleep(self.load.settle)

    async def _fault(self, view: GroupView) -> float | None:
        """Make the fault, watch, mend it, watch on; returns the gap."""
        kind, history = self.kind, self.history
        history.note("fault", kind.name, view.master)
        fault = time.monotonic()
        mend = inject(kind, self.bench, view)
        try:
            if kind.fault == "switchover":
                answer = await self.prober.switch_over(view.master, self.bench.group, SWITCH_MS_MAX)
                self.switch_pause_ms = answer.pause_ms
            if kind.takeover:
                await self._until_taken_over(fault, view.master)
            await asyncio.sleep(max(0.0, fault + kind.mend_after - time.monotonic()))
        finally:
            mend()
        history.note("heal", kind.name)
        if kind.takeover:
            await asyncio.sleep(FOLLOW_SECONDS)
            return takeover_gap(history.acks, fault, view.master)
        watched = FOLLOW_SECONDS if kind.fault == "switchover" else PAUSE_SECONDS - kind.mend_after
        await asyncio.sleep(watched)
        return longest_pause(history.acks, fault, time.monotonic())

    async def _until_taken_over(self, fault: float, old: str) -> None:
        deadline = fault + self.load.takeover_max
        acks, seen = self.history.acks, 0
        while time.monotonic() < deadline:
            if first_takeover(acks[seen:], fault, old) is not None:
                await asyncio.sleep(SERVED_SECONDS)
                return
            seen = len(acks)
            await asyncio.sleep(POLL_SECONDS)
