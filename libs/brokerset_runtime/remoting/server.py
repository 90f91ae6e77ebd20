"""A remoting server: accepts, limits and sweeps connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from brokerset_runtime.remoting.connection import Connection, ConnectionLimits, Handlers

log = structlog.get_logger(__name__)

SWEEP_SECONDS_MAX = 10.0
"""Longest pause between two looks for idle connections."""

DRAIN_LOOK_SECONDS = 0.01
"""How often a closing server looks whether requests are still in flight."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server, each with what happens at it."""

    connections_max: int = 20_000
    """One more is accepted and closed at once, and counted in `RemotingServer.refused`."""

    idle_seconds_max: float = 120.0
    """A connection without traffic for so long is closed (Java's `serverChannelMaxIdleTimeSeconds`)."""

    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class RemotingServer:
    """Listens on one or more addresses and serves them with the same handlers."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        limits: ServerLimits | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.refused = 0
        self.protocol_errors = 0
        self._handlers = handlers
        self._limits = limits or ServerLimits()
        self._on_close = on_close
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Accept on `host:port`, 0 takes a free port; returns the port. Raises `OSError` if it is taken."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._new_connection, host, port, backlog=4096)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def listen_on(self, listener: socket.socket) -> int:
        """Accept on a socket that listens already; the server owns it from now on. Returns the port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._new_connection, sock=listener, backlog=4096)
        self._servers.append(server)
        bound: int = listener.getsockname()[1]
        return bound

    async def sweep_idle(self) -> None:
        """Close idle connections, for as long as this task runs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS_MAX, self._limits.idle_seconds_max / 2))
            oldest = loop.time() - self._limits.idle_seconds_max
            for connection in list(self.connections.values()):
                if connection.last_activity < oldest and connection.in_flight == 0:
                    connection.close()

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()

    async def close(self, drain_seconds: float = 3.0) -> None:
        """Stop accepting, let requests in flight finish for a while, close every connection."""
        self.stop_accepting()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_seconds
        while loop.time() < deadline and any(  # noqa: ASYNC110  # requests end in many ways, none tells
            c.in_flight for c in self.connections.values()
        ):
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        connections = list(self.connections.values())
        for connection in connections:
            connection.close()
        if connections:
            waits = [asyncio.ensure_future(c.wait_closed()) for c in connections]
            _, pending = await asyncio.wait(waits, timeout=drain_seconds)
            for connection in connections:
                connection.abort()
            for wait in pending:
                wait.cancel()

    def _new_connection(self) -> Connection:
        return Connection(
            self._handlers, limits=self._limits.connection, on_open=self._opened, on_close=self._lost
        )

    def _opened(self, connection: Connection) -> bool:
        if len(self.connections) >= self._limits.connections_max:
            self.refused += 1
            log.warning("refused connection", peer=connection.peer, connections=len(self.connections))
            return False
        self.connections[id(connection)] = connection
        return True

    def _lost(self, connection: Connection) -> None:
        if connection.protocol_error is not None:
            self.protocol_errors += 1
        if self.connections.pop(id(connection), None) is not None and self._on_close is not None:
            self._on_close(connection)
