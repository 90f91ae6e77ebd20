"""The connections of an HTTP port, within bounds.

The web server ends by itself those that wait too long for a request (`keepalive_timeout`): silent ones, idle
ones, and those that have sent half a head. It has no bound for their number, nor for how long a peer takes
nothing of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog

from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.tls.arrivals import ARRIVALS_MAX

log = structlog.get_logger(__name__)

SWEEP_SECONDS_MAX: Final = 10.0
"""Longest pause between two checks for answers that nobody takes."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one HTTP port, each with what happens at it."""

    connections_max: int = ARRIVALS_MAX
    """After their handshake, if there is one. One more closes one that waits for a request, so that probes
    get in: the oldest that had no answer yet, else the one that has been idle longest. When all are being
    answered, the new one is closed at once."""

    wait_seconds_max: float = 120.0
    """A connection without a complete head so long after it was opened, or after its last answer, is closed;
    so is one whose peer takes nothing of an answer for so long. As remoting servers do with idle ones."""


class HttpConnections:
    """Admits connections, knows which are being answered, and closes others where that is needed."""

    def __init__(self, limits: HttpLimits) -> None:
        self.refused = 0
        """Closed at once: as many as are allowed were being answered."""

        self.displaced = 0
        """Closed while they waited for a request, to make room."""

        self._limits = limits
        self._open: dict[asyncio.Protocol, _Bounded] = {}
        self._unanswered: dict[_Bounded, None] = {}
        """Those that wait for the end of their first request, the oldest first."""

        self._idle: dict[_Bounded, None] = {}
        """Those that wait for the next one, the longest first."""

        self._closed = False
        self._sweeping: asyncio.TimerHandle | None = None
        self._log = LogThrottle()

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, serving: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol of a connection that was accepted now; `serving` makes the one that answers."""
        return _Bounded(self, serving)

    @contextmanager
    def answering(self, server: Any) -> Iterator[None]:
        """Within it the connection of this protocol of the web server is not closed to make room."""
        connection = self._open.get(server)
        if connection is not None:
            self._unanswered.pop(connection, None)
            self._idle.pop(connection, None)
        try:
            yield
        finally:
            if connection is not None and server in self._open:
                self._idle[connection] = None

    def close(self) -> None:
        """Admit nobody any more, also not those that the loop has accepted already and still brings."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()

    def opened(
        self, connection: _Bounded, serving: Callable[[], asyncio.Protocol]
    ) -> asyncio.Protocol | None:
        """What answers a new connection; None: it is refused."""
        if self._closed or (
            len(self._open) >= self._limits.connections_max and not self._displace(connection)
        ):
            return None
        server = serving()
        self._open[server] = connection
        self._unanswered[connection] = None
        if self._sweeping is None:
            self._sweep_later()
        return server

    def lost(self, connection: _Bounded, server: asyncio.Protocol) -> None:
        """It is gone."""
        self._open.pop(server, None)
        self._unanswered.pop(connection, None)
        self._idle.pop(connection, None)

    def _displace(self, new: _Bounded) -> bool:
        oldest = next(iter(self._unanswered), None) or next(
            (each for each in self._idle if not each.unsent_bytes), None
        )
        if oldest is None:
            self.refused += 1
        else:
            self.displaced += 1
            oldest.abort()
        suppressed = self._log.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning(
                "too many connections to the HTTP port, one was closed",
                closed=(oldest or new).peer,
                connections_max=self._limits.connections_max,
                next_step="see who opens them; who reaches this port should be monitoring and readers alone",
                suppressed=suppressed,
            )
        return oldest is not None

    def _sweep_later(self) -> None:
        pause = min(SWEEP_SECONDS_MAX, self._limits.wait_seconds_max / 2)
        self._sweeping = asyncio.get_running_loop().call_later(pause, self._sweep)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._open.values()):
            if connection.seconds_stalled(now) > self._limits.wait_seconds_max:
                connection.abort()
        self._sweep_later()


class _Bounded(asyncio.Protocol):
    """One connection: passes everything on to what answers."""

    def __init__(self, owner: HttpConnections, serving: Callable[[], asyncio.Protocol]) -> None:
        self.peer: Any = None
        self._owner = owner
        self._serving = serving
        self._server: asyncio.Protocol | None = None
        self._transport: Any = None
        self._stalled_at = 0
        """Bytes that were not sent at the last check."""

        self._stalled_since = 0.0
        """When a check found that number first."""

    @property
    def unsent_bytes(self) -> int:
        """Of answers, in this process."""
        return int(self._transport.get_write_buffer_size())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.peer = transport.get_extra_info("peername")
        self._server = self._owner.opened(self, self._serving)
        if self._server is None:
            self._transport.abort()
        else:
            self._server.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._server is not None:
            self._server.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._server is None else self._server.eof_received()

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause_writing()

    def resume_writing(self) -> None:
        self._stalled_at = 0
        if self._server is not None:
            self._server.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._server is not None:
            self._owner.lost(self, self._server)
            self._server.connection_lost(exc)

    def seconds_stalled(self, now: float) -> float:
        """How long its peer has taken nothing, as far as checks see; 0 if nothing is to be taken."""
        unsent = self.unsent_bytes
        if unsent != self._stalled_at:
            self._stalled_at, self._stalled_since = unsent, now
        return now - self._stalled_since if unsent else 0.0

    def abort(self) -> None:
        """Close it without a word; the owner forgets it at once."""
        if self._server is not None:
            self._owner.lost(self, self._server)
        self._transport.abort()
