"""Asks brokers over a new connection each time: an old one may be half-open and prove nothing."""

from __future__ import annotations

import asyncio
from typing import Final

from brokerset_acl.signatures import Sign
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, ConnectionClosed, RequestTimeout, connect
from brokerset_runtime.tls import Tls

LINGER_SECONDS: Final = 1.0
"""How long the connection of a one-way request stays open: a broker drops the work of a closed connection."""

LINGERING_MAX: Final = 1_000
"""Connections that stay open so; the oldest is closed for one more."""


class FreshRequester:
    """An `Asker` that connects for every request."""

    def __init__(self, tls: Tls | None = None, sign: Sign | None = None) -> None:
        self._tls = tls
        self._sign = sign
        self._lingering: dict[int, Connection] = {}

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        """Connect, ask, close. Raises what `Asker.ask` says; `timeout` (seconds) is for all of it."""
        try:
            async with asyncio.timeout(timeout):
                connection = await self._connect(address, timeout)
                try:
                    return await connection.call(command, timeout)
                finally:
                    connection.abort()
        except RequestTimeout:
            raise
        except TimeoutError:
            raise RequestTimeout(f"no answer from {address} in {timeout:g} s") from None

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        """Connect and send; the connection ends a moment later."""
        connection = await self._connect(address, timeout)
        connection.notify(command)
        key = id(connection)
        self._lingering[key] = connection
        if len(self._lingering) > LINGERING_MAX:
            self._end(next(iter(self._lingering)))
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end, key)

    async def close(self) -> None:
        """Close what is still open, and wait until what is queued has been sent or is given up."""
        connections = list(self._lingering.values())
        self._lingering.clear()
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    def _end(self, key: int) -> None:
        connection = self._lingering.pop(key, None)
        if connection is not None:
            connection.close()

    async def _connect(self, address: str, timeout: float) -> Connection:
        try:
            return await connect(address, timeout=timeout, tls=self._tls, sign=self._sign)
        except ValueError as error:
            raise ConnectionClosed(str(error)) from error
