"""A sender of timers for a failover measurement: at a steady rate, each due some seconds later.

Raw requests, as both makes take them. A message that is not acknowledged in time is not sent again.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from brokerset_bench.history import body_of
from brokerset_bench.master_line import MasterLine, at_rate
from brokerset_bench.pop_history import PopHistory
from brokerset_bench.timer_history import TimerHistory
from brokerset_bench.writer import ANSWER_SECONDS_MAX, IN_FLIGHT_MAX, Route, send_fields
from brokerset_formats.properties import Property
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import ConnectionClosed

PRODUCER_GROUP: Final = "brokerset-bench-timers"
QUEUES: Final = 2
DELAYS_SECONDS: Final = (1.5, 3.0, 5.0, 8.0)
"""In turn, so that some are due before the fault, during it, and when all is well again."""


class TimerLoad:
    """Puts timers. One loop owns all of its state."""

    delayed = True

    def __init__(
        self, history: TimerHistory | PopHistory, route: Route, topic: str, *, rate: int, size: int
    ) -> None:
        self._history = history
        self._topic = topic
        self._rate = rate
        self._size = size
        self._next = 0
        self._waiting: dict[int, float] = {}
        self._line = MasterLine(route)
        self._loop = asyncio.get_running_loop()

    async def run(self, stop: asyncio.Event, done: asyncio.Event) -> None:
        """Put timers until `stop`; take late acknowledgements until `done`."""
        following = asyncio.create_task(self._line.follow())
        try:
            await at_rate(self._rate, stop, self._put)
            await done.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self._line.close()

    def _put(self) -> None:
        self._give_up()
        connection = self._line.connection
        if connection is None or not connection.is_open or len(self._waiting) >= IN_FLIGHT_MAX:
            return
        number, self._next = self._next, self._next + 1
        due_ms = time.time_ns() // 1_000_000
        properties = {Property.UNIQ_KEY: f"{number:032X}", Property.WAIT: "true"}
        if self.delayed:
            due_ms += int(DELAYS_SECONDS[number % len(DELAYS_SECONDS)] * 1000)
            properties[Property.TIMER_DELIVER_MS] = str(due_ms)
        fields = send_fields(PRODUCER_GROUP, self._topic, number % QUEUES, properties)
        self._history.put(number, due_ms / 1000, self._line.address)
        try:
            future = connection.start_call(
                Command(RequestCode.SEND_MESSAGE_V2, fields, body_of(number, self._size))
            )
        except ConnectionClosed as error:
            self._history.failed(number, str(error))
            return
        self._waiting[number] = self._loop.time()
        future.add_done_callback(partial(self._answered, self._line.address, number))

    def _give_up(self) -> None:
        oldest = self._loop.time() - ANSWER_SECONDS_MAX
        for number in [one for one, sent in self._waiting.items() if sent <= oldest]:
            del self._waiting[number]
            self._history.failed(number, "no answer in time")

    def _answered(self, broker: str, number: int, future: asyncio.Future[Command]) -> None:
        in_time = self._waiting.pop(number, None) is not None
        if future.cancelled() or future.exception() is not None:
            if in_time:
                self._history.failed(number, "connection closed")
            return
        answer = future.result()
        if answer.code == ResponseCode.SUCCESS:
            self._history.acked(number, broker)  # a late one counts as well
        elif in_time:
            self._history.failed(number, f"code {answer.code}: {answer.remark}"[:100])


class PopSends(TimerLoad):
    """Sends messages that are to be popped."""

    delayed = False
