"""A remoting server: accepts, limits and sweeps connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.listening import listen_hosts
from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.remoting.connection import (
    DEFERRED,
    Connection,
    ConnectionLimits,
    Handler,
    Handlers,
    Lane,
    Reply,
)
from brokerset_runtime.tls.arrivals import Arrivals
from brokerset_runtime.tls.contexts import Tls
from brokerset_runtime.tls.member_names import MemberPort

log = structlog.get_logger(__name__)

SWEEP_SECONDS_MAX = 10.0
"""Longest pause between two looks for idle connections."""

PLAIN_REFUSED: Final = (
    "this server takes requests by TLS only (tls.server.mode=enforcing): set tls.enable=true at the client,"
    " in Java -Dtls.enable=true"
)

DRAIN_CHECK_SECONDS = 0.01
"""How often a closing server looks whether requests are still in flight."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server, each with what happens at it."""

    connections_max: int = 20_000
    """One more is accepted and closed at once, and counted in `RemotingServer.refused`."""

    idle_seconds_max: float = 120.0
    """A connection without traffic for so long is closed (Java's `serverChannelMaxIdleTimeSeconds`)."""

    frame_seconds_max: float = 60.0
    """A connection whose frame is not complete so long after its first byte is closed, and counted in
    `RemotingServer.protocol_errors`: bytes that trickle in keep it active, and up to 16 MiB in memory."""

    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class RemotingServer:
    """Listens on one or more addresses and serves them with the same handlers."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        limits: ServerLimits | None = None,
        lane: Lane | None = None,
        on_close: Callable[[Connection], None] | None = None,
        tls: Tls | None = None,
        members_only: bool = False,
    ) -> None:
        """With `tls`, both kinds of connections come to one port (`brokerset_runtime/tls/DESIGN.md`).

        With `members_only` whoever uses TLS must show the certificate of a member of a DLedger: other members
        have protocols of their own.
        """
        self.connections: dict[int, Connection] = {}
        self.refused = 0
        self.protocol_errors = 0
        self._handlers = handlers
        self._limits = limits or ServerLimits()
        self._lane = lane
        self._on_close = on_close
        self._servers: list[asyncio.Server] = []
        self._accepts = True
        self._arrivals = (
            None
            if tls is None
            else Arrivals(
                tls,
                self._new_connection,
                self._new_refused,
                members_of=MemberPort.DLEDGER if members_only else None,
            )
        )
        self._accept = self._new_connection if self._arrivals is None else self._arrivals.accept
        self._refused_log = LogThrottle()
        self._unreadable_log = LogThrottle()

    async def listen(self, host: str, port: int) -> int:
        """Accept on `host:port`, 0 takes a free port; returns the port. Raises `OSError` if it is taken."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._accept, listen_hosts(host, port), port, backlog=4096)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def listen_on(self, listener: socket.socket) -> int:
        """Accept on a socket that listens already; the server owns it from now on. Returns the port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._accept, sock=listener, backlog=4096)
        self._servers.append(server)
        bound: int = listener.getsockname()[1]
        return bound

    async def sweep_idle(self) -> None:
        """Close idle connections and those with a frame that does not end, for as long as this task runs."""
        loop = asyncio.get_running_loop()
        limits = self._limits
        while True:
            await asyncio.sleep(
                min(SWEEP_SECONDS_MAX, limits.idle_seconds_max / 2, limits.frame_seconds_max / 2)
            )
            now = loop.time()
            for connection in list(self.connections.values()):
                begun = connection.unfinished_since
                if begun is not None and now - begun > limits.frame_seconds_max:
                    connection.give_up(f"a frame is not complete after {limits.frame_seconds_max:g} s")
                elif now - connection.last_activity > limits.idle_seconds_max and connection.in_flight == 0:
                    connection.close()

    def stop_accepting(self) -> None:
        self._accepts = False
        for server in self._servers:
            server.close()
        if self._arrivals is not None:
            self._arrivals.close()

    async def close(self, drain_seconds: float = 3.0) -> None:
        """Stop accepting, let requests in flight finish for a while, close every connection.

        Each is closed as soon as nothing is in flight on it: its peer has somewhere else to go.
        """
        self.stop_accepting()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_seconds
        while loop.time() < deadline:
            idle = [each for each in self.connections.values() if not each.in_flight]
            busy = len(self.connections) - len(idle)
            for connection in idle:
                connection.close()
            if not busy:
                break
            await asyncio.sleep(DRAIN_CHECK_SECONDS)  # requests end in many ways, none tells
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
            self._handlers,
            limits=self._limits.connection,
            lane=self._lane,
            on_open=self._opened,
            on_close=self._lost,
        )

    def _new_refused(self) -> Connection:
        return Connection(
            _PlainRefused(),
            limits=self._limits.connection,
            on_open=self._opened,
            on_close=self._lost,
        )

    def _opened(self, connection: Connection) -> bool:
        if not self._accepts:  # the loop had accepted it already, and nobody would close it
            return False
        if len(self.connections) >= self._limits.connections_max:
            self.refused += 1
            suppressed = self._refused_log.admit(asyncio.get_running_loop().time())
            if suppressed is not None:
                log.warning(
                    "refused connection",
                    peer=connection.peer,
                    connections=len(self.connections),
                    suppressed=suppressed,
                )
            return False
        self.connections[id(connection)] = connection
        return True

    def _lost(self, connection: Connection) -> None:
        if connection.protocol_error is not None:
            self.protocol_errors += 1
            suppressed = self._unreadable_log.admit(asyncio.get_running_loop().time())
            if suppressed is not None:
                log.warning(
                    "closed connection with unreadable bytes",
                    peer=connection.peer,
                    reason=connection.protocol_error,
                    suppressed=suppressed,
                )
        if self.connections.pop(id(connection), None) is not None and self._on_close is not None:
            self._on_close(connection)


class _PlainRefused(dict[int, Handler]):
    """Handlers that answer every request with the reason why plain ones are not served."""

    def get(self, code: int, default: object = None) -> Handler:
        return _refuse_plain


def _refuse_plain(connection: Connection, command: Command) -> Reply:
    """Say why, and close: who asks in plain text has time to read one answer."""
    connection.finish(command, command.reply(ResponseCode.NO_PERMISSION, PLAIN_REFUSED))
    connection.close()
    return DEFERRED
