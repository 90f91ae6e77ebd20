"""A writer and a reader that run in a pod, and tell at the end whether anything acknowledged is lost.

    python load.py '{"namesrv": …, "topic": …, "rate": …, "run": …, "scan": true}'

Each line on standard input is answered by one line of JSON on standard output: what happened since the line
before. `stop`, or the end of the input, ends the load; the answer is then the verdict.

The writer is a `Producer` as anybody uses it. A send that fails after the client's own retries, or whose answer
is not `SEND_OK`, is counted, and the application here sends the message again until it is acknowledged. The
reader is a `PushConsumer`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any, Final

from brokerset_client import (
    ClientError,
    ConsumeFromWhere,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
    PushSettings,
    SendStatus,
)
from brokerset_runtime.logs import configure_logs

TICK_SECONDS: Final = 0.005
AGAIN_SECONDS: Final = 0.01
"""Pause of the application before it sends a message again that its client has given up."""

UNANSWERED_MAX: Final = 256
"""Messages without an acknowledgement; then no new ones are sent until there are answers."""

END_SECONDS_MAX: Final = 90.0
"""Longest time until the reader has everything, and for the scan."""

START_SECONDS_MAX: Final = 30.0
SHOWN_MAX: Final = 10
"""Most messages of one kind that a verdict names."""


class Load:
    """One writer, one reader, and what they know."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.namesrv: str = given["namesrv"]
        self.topic: str = given["topic"]
        self.run_name: str = given["run"]
        self.rate: float = given["rate"]
        self.scans: bool = given["scan"]
        self.acked: dict[int, tuple[str, int, int]] = {}
        """By number: broker name, queue and offset of the acknowledgement."""

        self.read: Counter[int] = Counter()
        self.failed = 0
        self.reasons: Counter[str] = Counter()
        self.unanswered: set[int] = set()
        self.stopping = asyncio.Event()
        self.last_ack = 0.0
        self.silence = 0.0
        """Longest time without an acknowledgement since the last answer, in seconds."""

        self.silence_ended = 0.0
        """When that was over, in seconds since 1970."""

        self.told_acked = 0
        self.told_failed = 0

    async def work(self) -> None:
        """Write and read until the input ends; then judge."""
        settings = PushSettings(rebalance_seconds=2.0)
        reader = PushConsumer(
            f"readers-{self.run_name}",
            namesrv=self.namesrv,
            listener=self._take,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            settings=settings,
        )
        reader.subscribe(self.topic)
        async with Producer("writers", namesrv=self.namesrv) as producer, reader:
            async with asyncio.timeout(START_SECONDS_MAX):
                await self._send(producer, 0)
            self.last_ack = asyncio.get_running_loop().time()
            self.silence, self.failed = 0.0, 0
            self.reasons.clear()
            tell({"started": True})
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(producer, tasks))
                tasks.create_task(self._listen())
            unread = await self._await_reader()
        lost, duplicates = await self._scan() if self.scans else ([], 0)
        tell(
            {
                "acked": len(self.acked),
                "failed": self.failed,
                "reasons": dict(self.reasons.most_common(SHOWN_MAX)),
                "lost": len(lost),
                "lostShown": lost[:SHOWN_MAX],
                "unread": len(unread),
                "unreadShown": [[number, *self.acked[number]] for number in unread[:SHOWN_MAX]],
                "duplicates": duplicates,
                "readTwice": sum(count - 1 for count in self.read.values()),
            }
        )

    async def _write(self, producer: Producer, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        number, owed, counted = 1, 0.0, loop.time()
        while not self.stopping.is_set():
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            owed = min(owed + self.rate * (now - counted), self.rate / 10 + 1)
            counted = now
            while owed >= 1 and len(self.unanswered) < UNANSWERED_MAX:
                tasks.create_task(self._send(producer, number))
                number, owed = number + 1, owed - 1

    async def _send(self, producer: Producer, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.unanswered.add(number)
        body = f"{self.run_name}/{number}".encode()
        while True:
            try:
                result = await producer.send(Message(topic=self.topic, body=body))
                if result.status is SendStatus.SEND_OK:
                    break
                reason = f"{result.status.name}: stored, and maybe lost with the master"
            except ClientError as error:
                reason = f"{type(error).__name__}: {error}"[:400]
            self.failed += 1
            self.reasons[reason] += 1
            await asyncio.sleep(AGAIN_SECONDS)
        now = loop.time()
        if now - self.last_ack > self.silence:
            self.silence, self.silence_ended = now - self.last_ack, time.time()
        self.last_ack = now
        self.unanswered.discard(number)
        self.acked[number] = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)

    async def _take(self, message: MessageView) -> None:
        run, _, number = message.body.decode().rpartition("/")
        if run == self.run_name:
            self.read[int(number)] += 1

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while (line := await lines.readline()) and line.strip() != b"stop":
            silent = max(self.silence, loop.time() - self.last_ack)
            tell(
                {
                    "acked": len(self.acked) - self.told_acked,
                    "failed": self.failed - self.told_failed,
                    "unanswered": len(self.unanswered),
                    "gapMs": round(silent * 1000),
                    "gapEndedAt": self.silence_ended,
                    "reasons": dict(self.reasons.most_common(SHOWN_MAX)),
                }
            )
            self.told_acked, self.told_failed, self.silence = len(self.acked), self.failed, 0.0
        self.stopping.set()

    async def _await_reader(self) -> list[int]:
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                while any(number not in self.read for number in self.acked):  # noqa: ASYNC110  # reads set no event
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return sorted(number for number in self.acked if number not in self.read)
        return []

    async def _scan(self) -> tuple[list[list[object]], int]:
        """Read every queue from its beginning to its end; return what is not where it was acknowledged."""
        found: dict[tuple[str, int, int], str] = {}
        async with (
            asyncio.timeout(END_SECONDS_MAX),
            PullConsumer("scanners", namesrv=self.namesrv, auto_commit=False) as consumer,
        ):
            for queue in await consumer.queues(self.topic):
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    try:
                        result = await consumer.pull(queue, offset)
                    except ClientError:
                        await asyncio.sleep(0.1)
                        continue
                    for message in result.messages:
                        place = (queue.broker_name, queue.queue_id, message.queue_offset)
                        found[place] = message.body.decode()
                    offset = result.next_queue_offset
        lost: list[list[object]] = [
            [number, *place, found.get(place)]
            for number, place in sorted(self.acked.items())
            if found.get(place) != f"{self.run_name}/{number}"
        ]
        ours = [body for body in found.values() if body.startswith(f"{self.run_name}/")]
        return lost, len(ours) - len(set(ours))


def tell(answer: dict[str, Any]) -> None:
    """One line for who asked."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logs("error", json=False)
    asyncio.run(Load(json.loads(sys.argv[1])).work())
