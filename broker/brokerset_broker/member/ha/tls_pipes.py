"""TLS for links: they use one end of a pair of sockets, and what goes through the other is encrypted.

So links stay what they are, and everything that TLS says between the packets is none of their business. The
bytes are copied twice more; `sendfile` is not used, as its pages could be overwritten while they wait.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from brokerset_runtime.tls import Tls, TlsError
from brokerset_runtime.tls.arrivals import Arrivals
from brokerset_runtime.tls.connecting import connect_member
from brokerset_runtime.tls.member_names import MemberPort

log = structlog.get_logger(__name__)

BUFFER_BYTES: Final = 1024 * 1024
"""What may wait for a link to read it; then nothing more is read from its peer."""

CLOSE_SECONDS_MAX: Final = 5.0
"""Time that a peer has to read what a closed link has written; then its connection is aborted."""

Take = Callable[[socket.socket, Any], None]
"""Takes the plain end of an accepted connection, and the address of who connects."""


class TlsPort:
    """Accepts on a socket that listens, and gives the plain ends to `take`."""

    def __init__(self, listener: socket.socket, tls: Tls, take: Take) -> None:
        self._listener = listener
        self._arrivals = Arrivals(tls, lambda: _Outer(take), members_of=MemberPort.HA)
        self._server: asyncio.Server | None = None
        self._starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._arrivals.accept, sock=self._listener, start_serving=False
        )
        await self._server.start_serving()

    def close(self) -> None:
        """Stop listening; connections that have been given away are not touched."""
        self._starting.cancel()
        if self._server is not None:
            self._server.close()
        else:
            self._listener.close()
        self._arrivals.close()


async def connect_by_tls(tls: Tls, host: str, port: int) -> socket.socket:
    """Connect, and return the plain end. Raises `TlsError`, `OSError`, `ValueError` for what is no host."""
    taken: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
    outer = _Outer(lambda inner, _: taken.set_result(inner))
    await connect_member(tls, outer, host, port, MemberPort.HA)
    if outer.problem is not None:
        raise outer.problem
    return taken.result()


class _Outer(asyncio.Protocol):
    """The network's side: what arrives goes to the pair, what comes from the pair leaves."""

    def __init__(self, take: Take) -> None:
        self.problem: OSError | None = None
        """Why there is no pair."""

        self._take = take
        self._transport: Any = None
        self._inner: Any = None
        self._early: list[bytes] = []
        self._lost = False
        self._attaching: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        try:
            pair, plain = socket.socketpair()
        except OSError as error:
            self.problem = error
            log.error("a connection of replication cannot be used", reason=error.strerror)
            self._transport.abort()
            return
        for each in (pair, plain):
            each.setblocking(False)
        self._attaching = asyncio.get_running_loop().create_task(self._attach(pair))
        self._take(plain, transport.get_extra_info("peername"))

    async def _attach(self, pair: socket.socket) -> None:
        self._inner, _ = await asyncio.get_running_loop().create_unix_connection(
            lambda: _Inner(self._transport, self.end), sock=pair
        )
        self._inner.set_write_buffer_limits(high=BUFFER_BYTES)
        for data in self._early:
            self._inner.write(data)
        self._early.clear()
        if self._lost:  # while the pair was not ready to be closed
            self._inner.close()

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            self._early.append(data)
        else:
            self._inner.write(data)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_reading()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if isinstance(exc, TlsError):
            log.warning("TLS of replication ended", reason=str(exc))
        if self._patience is not None:
            self._patience.cancel()
        if self._inner is not None:
            self._inner.close()

    def end(self) -> None:
        """The link has closed its end: send what it has written, if the peer takes it in time."""
        if not self._lost:
            self._transport.close()
            self._patience = asyncio.get_running_loop().call_later(CLOSE_SECONDS_MAX, self._transport.abort)


class _Inner(asyncio.Protocol):
    """The pair's side."""

    def __init__(self, outer: Any, end: Callable[[], None]) -> None:
        self._outer = outer
        self._end = end

    def data_received(self, data: bytes) -> None:
        self._outer.write(data)

    def pause_writing(self) -> None:
        self._outer.pause_reading()

    def resume_writing(self) -> None:
        self._outer.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
