"""A producer and consumers of an ordered subject that run in a pod, and judge at the end what became of each key.

    python ordered_load.py '{"namesrv": …, "subject": …, "keys": …, "rate": …, "consumers": …, "run": …}'

Each line on standard input is answered by one line of JSON on standard output: what happened since the line
before. `stop`, or the end of the input, ends the load; the answer is then the verdict. The subject must be there:
neither producer nor consumers make one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Final

from brokerset_client import Message
from brokerset_client.ordered import (
    HandlingContext,
    OrderedClient,
    OrderedMessage,
    OrderedProducer,
    OrderedSendResult,
)
from brokerset_runtime.logs import configure_logs

TICK_SECONDS: Final = 0.005
UNCONFIRMED_MAX: Final = 512
"""Messages without a confirmation; then no new ones are sent until there are some."""

START_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 150.0
"""Longest time until everything is confirmed and handled."""

SHOWN_MAX: Final = 10
"""Most faults that a verdict names."""


class KeyHistory:
    """What was sent and handled of one key; numbers count from 0."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed: set[int] = set()
        self.handled: list[int] = []
        """First completed handlings, in the order of their ends."""

        self.times: Counter[int] = Counter()


class OrderedLoad:
    """One producer, some consumers of one group, and what they know."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.namesrv: str = given["namesrv"]
        self.subject: str = given["subject"]
        self.run_name: str = given["run"]
        self.rate: float = given["rate"]
        self.consumers: int = given["consumers"]
        digests = (hashlib.sha256(f"{number}".encode()).hexdigest() for number in range(given["keys"]))
        self.keys = {digest[:12]: KeyHistory() for digest in digests}
        """By key; they are spread over all logical partitions."""

        self.faults: list[str] = []
        self.unconfirmed = 0
        self.partitions: set[int] = set()
        """Those that messages were confirmed in."""

        self.stopping = asyncio.Event()
        self.told_confirmed = 0
        self.told_handled = 0

    @property
    def confirmed(self) -> int:
        """Messages that are confirmed."""
        return sum(len(history.confirmed) for history in self.keys.values())

    @property
    def handled(self) -> int:
        """Messages that were handled, each counted once."""
        return sum(len(history.handled) for history in self.keys.values())

    async def work(self) -> None:
        """Send and consume until the input ends; then judge."""
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(OrderedClient(self.namesrv, client_id=f"load-{number}"))
                for number in range(self.consumers + 1)
            ]
            for client in clients[1:]:
                consumer = client.consumer(group=f"readers-{self.run_name}")
                consumer.subscribe(self.subject, self._take)
                await stack.enter_async_context(consumer)
            producer = await stack.enter_async_context(clients[0].producer())
            async with asyncio.timeout(START_SECONDS_MAX):
                for key in self.keys:
                    await self._send(producer, key)
                while self.handled < len(self.keys):  # noqa: ASYNC110  # handlings set no event
                    await asyncio.sleep(0.05)
            tell({"started": True})
            writing = asyncio.create_task(self._write(producer))
            await self._listen()
            await writing
            await self._await_end()
        tell(self._verdict())

    async def _write(self, producer: OrderedProducer) -> None:
        loop = asyncio.get_running_loop()
        names, number, owed, counted = list(self.keys), 0, 0.0, loop.time()
        while not self.stopping.is_set():
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            owed = min(owed + self.rate * (now - counted), self.rate / 10 + 1)
            counted = now
            while owed >= 1 and self.unconfirmed < UNCONFIRMED_MAX:
                await self._send(producer, names[number % len(names)])
                number, owed = number + 1, owed - 1

    async def _send(self, producer: OrderedProducer, key: str) -> None:
        """Several messages of a key are on their way at once: their order is that of the calls."""
        history = self.keys[key]
        number, history.sent = history.sent, history.sent + 1
        self.unconfirmed += 1
        message = Message(topic=self.subject, body=f"{self.run_name}/{key}/{number}".encode())
        future = await producer.send_async(message, key=key)
        future.add_done_callback(lambda done: self._confirmed(history, key, number, done))

    def _confirmed(
        self, history: KeyHistory, key: str, number: int, done: asyncio.Future[OrderedSendResult]
    ) -> None:
        self.unconfirmed -= 1
        if done.cancelled() or (error := done.exception()) is not None:
            why = "cancelled" if done.cancelled() else f"{type(error).__name__}: {error}"
            self.faults.append(f"{key}/{number} was not sent: {why}"[:400])
            return
        history.confirmed.add(number)
        self.partitions.add(done.result().partition_id)

    async def _take(self, message: OrderedMessage, context: HandlingContext) -> None:
        run, key, text = message.body.decode().split("/")
        if run != self.run_name:
            return
        history, number = self.keys[key], int(text)
        if key != message.key:
            self.faults.append(f"{key}/{number} came with the key {message.key}")
        if number and not history.times[number - 1]:
            self.faults.append(f"{key}/{number} began before {number - 1} was handled")
        await asyncio.sleep(0)
        if not history.times[number]:
            history.handled.append(number)
        history.times[number] += 1

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while (line := await lines.readline()) and line.strip() != b"stop":
            confirmed, handled = self.confirmed, self.handled
            tell(
                {
                    "confirmed": confirmed - self.told_confirmed,
                    "handled": handled - self.told_handled,
                    "unconfirmed": self.unconfirmed,
                    "faults": self.faults[:SHOWN_MAX],
                }
            )
            self.told_confirmed, self.told_handled = confirmed, handled
        self.stopping.set()

    async def _await_end(self) -> None:
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                while self.unconfirmed or self.handled < self.confirmed:  # noqa: ASYNC110  # nor does this
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pass  # the verdict names what is missing

    def _verdict(self) -> dict[str, Any]:
        disorder = [
            f"{key}: {before} was handled before {after}"
            for key, history in self.keys.items()
            for before, after in zip(history.handled, history.handled[1:], strict=False)
            if before > after
        ]
        lost = [
            f"{key}/{number}"
            for key, history in self.keys.items()
            for number in sorted(history.confirmed.difference(history.handled))
        ]
        return {
            "confirmed": self.confirmed,
            "handled": self.handled,
            "unconfirmed": self.unconfirmed,
            "again": sum(sum(each.times.values()) - len(each.handled) for each in self.keys.values()),
            "partitions": sorted(self.partitions),
            "disorder": len(disorder),
            "lost": len(lost),
            "faults": len(self.faults),
            "shown": [*self.faults[:SHOWN_MAX], *disorder[:SHOWN_MAX], *lost[:SHOWN_MAX]],
        }


def tell(answer: dict[str, Any]) -> None:
    """One line for who asked."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logs("error", json=False)
    asyncio.run(OrderedLoad(json.loads(sys.argv[1])).work())
