"""How producers of a failover measurement reach the master, and keep a rate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from brokerset_bench.writer import CONNECT_SECONDS_MAX, TICK_SECONDS, Route
from brokerset_runtime.remoting import Connection, ConnectionClosed, Handlers, connect
from brokerset_runtime.tls import tls_of_environment

FOLLOW_SECONDS: Final = 0.01
"""How often the route's master is compared with the one that is connected."""

BEHIND_SECONDS_MAX: Final = 0.1
"""After a pause no more than this is made up for."""


class MasterLine:
    """A connection to the master that a route names; another one when that changes, or it has ended.

    Connections to masters of before stay open: what they answer late counts, and they may ask.
    """

    def __init__(
        self,
        route: Route,
        handlers: Handlers | None = None,
        on_open: Callable[[Connection], None] | None = None,
    ) -> None:
        """`handlers` serve what brokers ask; `on_open` is called with each new connection."""
        self._route = route
        self._handlers = handlers
        self._on_open = on_open
        self._before: list[Connection] = []
        self.connection: Connection | None = None
        self.address = ""

    @property
    def is_open(self) -> bool:
        """Whether there is a master to send to."""
        return self.connection is not None and self.connection.is_open

    async def follow(self) -> None:
        """Go where the route points, until cancelled. The route is read by somebody else."""
        while True:
            master = self._route.master
            if master and (master != self.address or not self.is_open):
                with contextlib.suppress(ConnectionClosed):
                    await self._move(master)
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _move(self, master: str) -> None:
        connection = await connect(
            master, self._handlers, timeout=CONNECT_SECONDS_MAX, tls=tls_of_environment()
        )
        if self.connection is not None:
            self._before.append(self.connection)
        self.connection, self.address = connection, master
        if self._on_open is not None:
            self._on_open(connection)

    async def close(self) -> None:
        """End all connections."""
        for connection in (*self._before, *([] if self.connection is None else [self.connection])):
            connection.abort()
            await connection.wait_closed()


async def at_rate(rate: int, stop: asyncio.Event, begin: Callable[[], None]) -> None:
    """Call `begin` so many times a second until `stop`."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while not stop.is_set():
        now = loop.time()
        due = max(due, now - BEHIND_SECONDS_MAX)
        while due <= now:
            begin()
            due += 1 / rate
        await asyncio.sleep(TICK_SECONDS)
