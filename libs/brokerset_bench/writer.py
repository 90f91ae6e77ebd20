"""The writer of a failover measurement: a steady rate of numbered messages, each acknowledged, refused or
tried again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Final

from brokerset_bench.history import History, body_of
from brokerset_bench.probes import NoAnswer, Prober
from brokerset_formats.properties import Property, encode_properties
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.send import SendKey, SendResponseKey
from brokerset_runtime.remoting import Connection, ConnectionClosed, connect
from brokerset_runtime.tls import tls_of_environment

QUEUES: Final = 8
TICK_SECONDS: Final = 0.002
"""How often messages that are due leave."""

TICK_MESSAGES_MAX: Final = 64
"""Most messages that leave at once; after a pause the rate is not made up for."""

IN_FLIGHT_MAX: Final = 256
"""Messages without an answer on the present master's connection; then the writer waits for answers."""

ROUTE_PAUSE_SECONDS: Final = 0.01
"""How often the route is read while sends fail, or while no answer comes."""

SILENCE_SECONDS: Final = 0.05
"""Without an acknowledgement for so long the route is read again."""

REGULAR_SECONDS: Final = 1.0
"""The route is read so often even when all is well."""

ANSWER_SECONDS_MAX: Final = 3.0
"""Without an answer for so long a message is sent again; a late acknowledgement still counts as one."""

CONNECT_SECONDS_MAX: Final = 0.3
CLING_SECONDS: Final = 0.02
"""How often a message goes to a master of before, as a client with an old route sends it."""

CLING_RETRY_SECONDS: Final = 0.2
"""Pause between two attempts to connect to a master of before."""


@dataclass(slots=True)
class Line:
    """One connection to a broker, with the messages that wait for its answer."""

    address: str
    connection: Connection
    clinging: bool = False
    waiting: dict[int, float] = field(default_factory=dict)
    """Numbers of messages, by when they were sent; in order."""

    def sent_until(self, moment: float) -> list[int]:
        """Messages that wait since then, or longer."""
        return list(takewhile(lambda number: self.waiting[number] <= moment, self.waiting))


class Route:
    """Who the master is, as name servers tell it: read every 10 ms while `watch` says so."""

    def __init__(self, prober: Prober, name_servers: Sequence[str], topic: str, group: str) -> None:
        self._prober = prober
        self._name_servers = tuple(name_servers)
        self._topic = topic
        self._group = group
        self._current = 0
        self.master = ""
        """The last one that a route named."""

    async def read(self) -> str:
        """Ask the name server in use; the next one is asked the next time when it does not answer."""
        server = self._name_servers[self._current % len(self._name_servers)]
        try:
            found = await self._prober.master_of(server, self._topic, self._group)
        except NoAnswer as error:
            if error.code is None:
                self._current += 1
            return self.master
        if found:
            self.master = found
        return self.master


def send_fields(
    group: str, topic: str, queue: int, properties: Mapping[str, str], *, sys_flag: int = 0
) -> dict[str, str]:
    """The header of a SEND_MESSAGE_V2 of one message."""
    return {
        SendKey.PRODUCER_GROUP: group,
        SendKey.TOPIC: topic,
        SendKey.DEFAULT_TOPIC: "TBW102",
        SendKey.DEFAULT_TOPIC_QUEUE_NUMS: "4",
        SendKey.QUEUE_ID: str(queue),
        SendKey.SYS_FLAG: str(sys_flag),
        SendKey.BORN_TIMESTAMP: str(time.time_ns() // 1_000_000),  # by which a broker knows how old a half is
        SendKey.FLAG: "0",
        SendKey.PROPERTIES: encode_properties(properties).decode(),
        SendKey.RECONSUME_TIMES: "0",
        SendKey.UNIT_MODE: "false",
        SendKey.MAX_RECONSUME_TIMES: "0",
        SendKey.BATCH: "false",
    }


class Writer:
    """Sends until `run` is asked to stop. One loop owns all of its state."""

    def __init__(
        self, history: History, route: Route, topic: str, *, rate: int, size: int, first: int
    ) -> None:
        self._history = history
        self._route = route
        self._topic = topic
        self._rate = rate
        self._size = size
        self._next = first
        self._again: deque[int] = deque()
        self._line: Line | None = None
        self._old: dict[str, Line] = {}
        self._healthy = False
        self._loop = asyncio.get_running_loop()
        self._last_ack = self._loop.time()
        self.failed = 0
        """Attempts at the present master that were refused, broken off or not answered in time."""

        self.failed_at_old = 0
        """The same at masters of before."""

        self.reasons: dict[str, int] = {}
        """Why, and how often."""

    @property
    def unanswered(self) -> int:
        """Messages that nobody has acknowledged or refused yet, and those to be sent again."""
        return len(self._again) + sum(len(line.waiting) for line in self._lines)

    @property
    def _lines(self) -> list[Line]:
        """The present master's, and those of masters of before."""
        return [*([] if self._line is None else [self._line]), *self._old.values()]

    async def run(self, stop: asyncio.Event) -> None:
        """Send at the rate until `stop`, then until everything is answered or given up."""
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch())
            cling = tasks.create_task(self._cling(stop))
            owed, counted = 0.0, self._loop.time()
            while not stop.is_set():
                now = self._loop.time()
                owed = min(owed + self._rate * (now - counted), TICK_MESSAGES_MAX)
                counted = now
                owed -= self._send_due(int(owed))
                self._give_up_late()
                await asyncio.sleep(TICK_SECONDS)
            deadline = self._loop.time() + ANSWER_SECONDS_MAX + 1
            while self.unanswered and self._loop.time() < deadline:
                self._send_due(min(len(self._again), TICK_MESSAGES_MAX), new=False)
                self._give_up_late()
                await asyncio.sleep(TICK_SECONDS)
            watch.cancel()
            cling.cancel()
        for line in self._lines:
            line.connection.abort()
            await line.connection.wait_closed()

    # -- sending ------------------------------------------------------------------------------------------

    def _send_due(self, due: int, *, new: bool = True) -> int:
        """Send so many messages if the master takes them; returns how many are no longer owed."""
        line = self._line
        if line is None or not line.connection.is_open or not self._healthy:
            return due  # a client that waits for a master does not make up for it later
        for count in range(due):
            if len(line.waiting) >= IN_FLIGHT_MAX:
                return count
            if not self._again and not new:
                return count
            self._send(line, self._take_number())
        return due

    def _take_number(self) -> int:
        if self._again:
            return self._again.popleft()
        self._next += 1
        return self._next - 1

    def _send(self, line: Line, number: int) -> None:
        body = body_of(number, self._size)
        queue = number % QUEUES
        properties = {Property.UNIQ_KEY: f"{number:032X}", Property.WAIT: "true"}
        fields = send_fields("brokerset-bench", self._topic, queue, properties)
        command = Command(RequestCode.SEND_MESSAGE_V2, fields, body)
        self._history.sent(number, queue, line.address, body)
        try:
            future = line.connection.start_call(command)
        except ConnectionClosed as error:
            self._failed(line, number, str(error))
            return
        line.waiting[number] = self._loop.time()
        future.add_done_callback(partial(self._answered, line, number))

    def _answered(self, line: Line, number: int, future: asyncio.Future[Command]) -> None:
        in_time = line.waiting.pop(number, None) is not None
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            if in_time:
                self._failed(line, number, "connection closed")
            return
        answer = future.result()
        if answer.code != ResponseCode.SUCCESS:
            if in_time:
                self._failed(line, number, f"code {answer.code}: {(answer.remark or '')[:60]}")
            return
        # A late one counts as well: whoever promises after ten seconds has promised.
        queue, offset = (
            int(answer.ext[SendResponseKey.QUEUE_ID]),
            int(answer.ext[SendResponseKey.QUEUE_OFFSET]),
        )
        self._history.acked(number, queue, offset, line.address)
        if line is self._line:
            self._last_ack = self._loop.time()
            self._healthy = True

    def _failed(self, line: Line, number: int, why: str) -> None:
        """Note a failure, and send the message again as soon as somebody takes messages."""
        self._history.failed(number, number % QUEUES, line.address, why)
        self.reasons[why] = self.reasons.get(why, 0) + 1
        if line.clinging:
            self.failed_at_old += 1
        else:
            self.failed += 1
        self._again.append(number)
        if line is self._line:
            self._healthy = False

    def _give_up_late(self) -> None:
        oldest = self._loop.time() - ANSWER_SECONDS_MAX
        for line in self._lines:
            for number in line.sent_until(oldest):
                del line.waiting[number]
                self._failed(line, number, "no answer in time")

    # -- who is master ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Read the route while something is wrong, and go where it points."""
        read_at = 0.0
        while True:
            await asyncio.sleep(ROUTE_PAUSE_SECONDS)
            now = self._loop.time()
            well = self._healthy and now - self._last_ack <= SILENCE_SECONDS
            if well and now - read_at < REGULAR_SECONDS:
                continue
            read_at = now
            master = await self._route.read()
            line = self._line
            if master and (line is None or line.address != master or not line.connection.is_open):
                await self._move(master)
                well = False
            line = self._line
            if (
                not well
                and line is not None
                and line.connection.is_open
                and len(line.waiting) < IN_FLIGHT_MAX
            ):
                self._send(line, self._take_number())  # is anybody there?

    async def _move(self, master: str) -> None:
        try:
            connection = await connect(master, timeout=CONNECT_SECONDS_MAX, tls=tls_of_environment())
        except ConnectionClosed:
            return
        before = self._line
        if before is not None and before.address != master:
            before.clinging = True
            self._old[before.address] = before
        old = self._old.pop(master, None)
        if old is not None:
            old.connection.abort()
        self._line = Line(master, connection)
        self._last_ack = self._loop.time()

    async def _cling(self, stop: asyncio.Event) -> None:
        """Go on sending to masters of before; some of them do not know yet that they are no more."""
        retry_at: dict[str, float] = {}
        while not stop.is_set():
            await asyncio.sleep(CLING_SECONDS)
            for address, line in list(self._old.items()):
                if line.connection.is_open:
                    if len(line.waiting) < IN_FLIGHT_MAX:
                        self._next += 1
                        self._send(line, self._next - 1)
                elif self._loop.time() >= retry_at.get(address, 0.0):
                    retry_at[address] = self._loop.time() + CLING_RETRY_SECONDS
                    with contextlib.suppress(ConnectionClosed):
                        connection = await connect(
                            address, timeout=CONNECT_SECONDS_MAX, tls=tls_of_environment()
                        )
                        if address in self._old:
                            self._old[address] = Line(address, connection, clinging=True)
                        else:
                            connection.abort()
