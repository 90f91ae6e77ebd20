"""How parts ask other processes, as a protocol, so that a simulated network can stand in for sockets."""

from __future__ import annotations

import asyncio
from typing import Protocol

from brokerset_protocol.commands import Command
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_runtime.remoting.pool import ConnectionPool


class Asker(Protocol):
    """Requests by address."""

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request and return the answer, whatever its code.

        Raises `ConnectionClosed` or `RequestTimeout`: whether the request was carried out is then unknown,
        but for `ConnectionClosed` with a `ConnectionRefusedError` as cause: nobody listens there.
        """

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        """Send a one-way request. Raises `ConnectionClosed` if there is no connection in time."""


class PoolRequester:
    """Asks over a pool of remoting connections."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        try:
            async with asyncio.timeout(timeout):
                connection = await self._pool.get(address, timeout)
                return await connection.call(command, timeout)
        except RequestTimeout:
            raise
        except TimeoutError:
            raise RequestTimeout(f"no answer from {address} in {timeout:g} s") from None
        except ValueError as error:
            raise ConnectionClosed(str(error)) from error

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        try:
            connection = await self._pool.get(address, timeout)
        except ValueError as error:
            raise ConnectionClosed(str(error)) from error
        connection.notify(command)
