"""Writers and a consumer on a group of ours, while somebody hurts it, and the judgement of what they saw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

from brokerset_bench.history import History, Verdict, check
from brokerset_bench.probes import Prober
from brokerset_bench.reader import Reader
from brokerset_bench.writer import QUEUES, Route, Writer
from brokerset_client.instance import ClientInstance
from brokerset_rig.own_group import OwnGroup
from brokerset_rig.stack import StackError

BODY_BYTES = 700
NUMBERS_APART = 1_000_000_000
"""Distance between the first message numbers of two writers."""

AGAIN_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.02


class JudgedLoad:
    """What the writers and the consumer of one topic saw."""

    def __init__(self, group: OwnGroup, topic: str) -> None:
        self.history = History(time.monotonic)
        self.verdict = Verdict()
        """Of the whole load, once it has ended."""
        self.compared = (0, 0)
        """From where to where all logs were the same, once it has ended."""
        self._group = group
        self._topic = topic

    @property
    def acknowledged(self) -> int:
        """Acknowledgements so far."""
        return len(self.history.acks)

    async def more_acknowledged(self, count: int = 20) -> None:
        """Sends work: so many more are acknowledged after this moment. Raises `StackError`."""
        goal = self.acknowledged + count
        try:
            async with asyncio.timeout(AGAIN_SECONDS_MAX):
                while self.acknowledged < goal:  # noqa: ASYNC110  # the writers set no event
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise StackError(f"no send is acknowledged for {AGAIN_SECONDS_MAX:g} s") from None

    def longest_pause(self, since: int = 0) -> float:
        """Longest time in seconds between two acknowledgements, from the one with this number on."""
        times = [ack.t for ack in self.history.acks[max(0, since - 1) :]]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def judge(self) -> None:
        """Keep the verdict. Raises `StackError` when a promise was broken; the history is then in the group's folder."""
        self.verdict = check(self.history.events())
        if self.verdict.ok:
            return
        path = self._group.folder / f"{self._topic}.jsonl"
        self.history.write(path)
        texts = [text for found in self.verdict.texts.values() for text in found[:3]]
        raise StackError(f"{dict(self.verdict.violations)}: {'; '.join(texts)}; see {path}")

    def __str__(self) -> str:
        verdict, (begin, end) = self.verdict, self.compared
        return (
            f"{verdict.acked:,} acknowledged, {verdict.failed:,} failed sends, {verdict.duplicates:,} twice, none lost; "
            f"{end - begin:,} bytes are the same in all logs"
        )


@asynccontextmanager
async def judged_load(
    group: OwnGroup, prober: Prober, topic: str, *, writers: int = 2, rate: int = 300
) -> AsyncIterator[JudgedLoad]:
    """Load a whole group for as long as the block runs; then everything must heal, and is read and judged.

    `rate` is messages a second of each writer. Raises `StackError` when a promise was broken or logs differ.
    """
    load = JudgedLoad(group, topic)
    look = await group.all_in_sync(prober)
    names = group.set.name_servers
    routes = [Route(prober, names, topic, group.set.group) for _ in range(writers)]
    await prober.create_topic(look.master, topic, QUEUES)
    async with asyncio.timeout(AGAIN_SECONDS_MAX):
        while not await routes[0].read():  # noqa: ASYNC110  # name servers set no event here
            await asyncio.sleep(LOOK_SECONDS)
    found = [
        Writer(load.history, route, topic, rate=rate, size=BODY_BYTES, first=number * NUMBERS_APART)
        for number, route in enumerate(routes)
    ]
    stop = asyncio.Event()
    async with ClientInstance(names) as instance:
        reader = Reader(instance, routes[0], topic, group.set.group)
        reading = asyncio.create_task(reader.run(load.history))
        writing = [asyncio.create_task(writer.run(stop)) for writer in found]
        try:
            await load.more_acknowledged()
            yield load
            stop.set()
            await asyncio.gather(*writing)
            load.compared = await group.same_logs(prober)
            await reader.until_end()
            await reader.scan(load.history)
        finally:
            await _end([reading, *writing])
    load.judge()


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
