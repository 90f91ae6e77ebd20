"""Transactions, timers and pops beside the plain sends of a failover measurement, and their judges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerset_bench import pop_history, timer_history, timer_load, transaction_history, transaction_load
from brokerset_bench.event_log import MessageVerdict, Subject
from brokerset_bench.pop_history import PopHistory
from brokerset_bench.pop_reader import PopReader
from brokerset_bench.probes import Prober
from brokerset_bench.reader import Reader
from brokerset_bench.timer_history import TimerHistory
from brokerset_bench.timer_load import PopSends, TimerLoad
from brokerset_bench.transaction_history import TransactionHistory
from brokerset_bench.transaction_load import TransactionLoad
from brokerset_bench.writer import Route
from brokerset_client.instance import ClientInstance

SETTLE_SECONDS_MAX: Final = 30.0
"""Longest time after the load, and after the brokers are whole again, until everything is delivered that is
owed: the longest delay, and some passes of checks of transactions."""

POLL_SECONDS: Final = 0.05
BODY_SIZE: Final = 256

CHECK_SETTINGS: Final = ("transactionTimeOut=2000", "transactionCheckInterval=1000")
"""Of brokers, in milliseconds, so that what is left open is asked about in each run; by default the first
check comes after half a minute."""

CHECKS: Final[Mapping[Subject, Callable[[Iterable[Mapping[str, Any]]], MessageVerdict]]] = {
    Subject.TRANSACTIONS: transaction_history.check,
    Subject.TIMERS: timer_history.check,
    Subject.POPS: pop_history.check,
}
"""Who judges which history."""


@dataclass(slots=True)
class _Part:
    """One subject: its topic, its history, who sends and who consumes."""

    topic: str
    queues: int
    history: TransactionHistory | TimerHistory | PopHistory
    reader: Reader | PopReader
    load: TransactionLoad | TimerLoad
    sending: asyncio.Task[None] | None = None
    reading: asyncio.Task[None] | None = None


class MessageLoads:
    """The loads of one run; none when no rate is given."""

    def __init__(
        self,
        instance: ClientInstance,
        route: Route,
        group: str,
        name: str,
        *,
        transactions: int = 0,
        timers: int = 0,
        pops: int = 0,
    ) -> None:
        """`transactions`, `timers` and `pops` are rates, a second; 0 for none. `name` is the run's.

        `route` names the master of the group, and is read by somebody else.
        """
        self._parts: list[_Part] = []
        self._done = asyncio.Event()
        if transactions:
            topic, queues, ends = (
                f"transactions-{name}",
                transaction_load.QUEUES,
                TransactionHistory(time.monotonic),
            )
            producer = TransactionLoad(ends, route, topic, rate=transactions, size=BODY_SIZE)
            reader = Reader(instance, route, topic, group, queues=queues)
            self._parts.append(_Part(topic, queues, ends, reader, producer))
        if timers:
            topic, queues, puts = f"timers-{name}", timer_load.QUEUES, TimerHistory(time.time)
            sender = TimerLoad(puts, route, topic, rate=timers, size=BODY_SIZE)
            reader = Reader(instance, route, topic, group, queues=queues)
            self._parts.append(_Part(topic, queues, puts, reader, sender))
        if pops:
            topic, queues, gifts = f"pops-{name}", timer_load.QUEUES, PopHistory(time.monotonic)
            sends = PopSends(gifts, route, topic, rate=pops, size=BODY_SIZE)
            popper = PopReader(instance, route, topic, group, gifts, queues=queues)
            self._parts.append(_Part(topic, queues, gifts, popper, sends))

    async def create_topics(self, prober: Prober, master: str) -> None:
        """Make the topics. Raises `NoAnswer`."""
        for part in self._parts:
            await prober.create_topic(master, part.topic, part.queues)

    def start(self, stop: asyncio.Event) -> None:
        """Send until `stop`, and consume."""
        for part in self._parts:
            part.sending = asyncio.create_task(part.load.run(stop, self._done))
            part.reading = asyncio.create_task(part.reader.run(part.history))

    async def finish(self, settle_max: float = SETTLE_SECONDS_MAX) -> dict[str, MessageVerdict]:
        """Wait until everything owed was consumed, read all that is left, and judge. Raises `NotRead`.

        What does not come in time is not waited for: the judge will say so.
        """
        deadline = time.monotonic() + settle_max
        while any(part.history.owed for part in self._parts) and time.monotonic() < deadline:  # noqa: ASYNC110  # histories set no event
            await asyncio.sleep(POLL_SECONDS)
        found = {}
        for part in self._parts:
            await part.reader.until_end()
            await part.reader.scan(part.history)
            found[part.history.subject.value] = CHECKS[part.history.subject](part.history.events())
        self._done.set()
        return found

    async def close(self) -> None:
        """End what runs."""
        tasks = [task for part in self._parts for task in (part.sending, part.reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def write(self, folder: Path, name: str) -> None:
        """Keep the histories."""
        for part in self._parts:
            part.history.write(folder / f"{name}-{part.history.subject}.jsonl")
