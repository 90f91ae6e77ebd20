"""Accepted connections of which nobody knows yet whether they begin with a handshake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.tls.config import TlsMode
from brokerset_runtime.tls.contexts import Tls
from brokerset_runtime.tls.session import TlsSession
from brokerset_runtime.tls.transport import HANDSHAKE_BYTE, TlsTransport

log = structlog.get_logger(__name__)

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""A connection that has sent nothing, or has not ended its handshake, after so long is closed."""

ARRIVALS_MAX: Final = 1_000
"""Connections before the end of their handshake; one more closes the one that has waited longest, which is
the least likely to be of a client that means well."""

_NO_TLS: Final = "this server has no TLS (tls.server.mode=disabled)"
_NO_AUTHORITY: Final = "nobody is named who signs certificates of members (tls.server.trustCertPath)"


class Arrivals:
    """Gives each accepted connection to the protocol that its first byte asks for, within bounds."""

    def __init__(
        self,
        tls: Tls,
        serving: Callable[[], asyncio.Protocol],
        refusing: Callable[[], asyncio.Protocol] | None = None,
        *,
        members_only: bool = False,
    ) -> None:
        """`serving` makes the protocol of a connection, `refusing` that of one that had to use TLS.

        Without `refusing` such a connection is closed. With `members_only` all must show certificates.
        """
        self.handshakes_failed = 0
        self.plain_refused = 0
        self._tls = tls
        self._serving = serving
        self._refusing = refusing
        self._members_only = members_only
        self._waiting: dict[_Arrival, None] = {}
        self._log = LogThrottle()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def accept(self) -> asyncio.Protocol:
        """The protocol of a connection that was accepted now."""
        return _Arrival(self)

    def close(self) -> None:
        """Close those that wait, and those that the loop has accepted already and still brings."""
        self._closed = True
        for arrival in list(self._waiting):
            arrival.abort()

    def began(self, arrival: _Arrival) -> None:
        if self._closed:
            arrival.abort()
            return
        self._waiting[arrival] = None
        if len(self._waiting) > ARRIVALS_MAX:
            next(iter(self._waiting)).expired("too many connections have not ended their handshake")

    def ended(self, arrival: _Arrival) -> None:
        self._waiting.pop(arrival, None)

    def secure(self, arrival: _Arrival) -> TlsTransport | None:
        """The layer for a connection that begins a handshake; None: it is refused."""
        context: ssl.SSLContext | None = self._tls.members if self._members_only else self._tls.server
        if context is None:
            self.failed(arrival.peer, _NO_TLS if self._tls.mode is TlsMode.DISABLED else _NO_AUTHORITY)
            return None
        return TlsTransport(
            TlsSession(context, server_side=True),
            self._serving(),
            on_opened=arrival.end,
            on_failed=arrival.failed,
        )

    def plain(self) -> asyncio.Protocol | None:
        """The protocol for a connection that begins with something else; None: it is closed."""
        if self._tls.mode is not TlsMode.ENFORCING:
            return self._serving()
        self.plain_refused += 1
        return None if self._refusing is None else self._refusing()

    def failed(self, peer: Any, reason: str) -> None:
        self.handshakes_failed += 1
        suppressed = self._log.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning("TLS handshake failed", peer=peer, reason=reason, suppressed=suppressed)


class _Arrival(asyncio.Protocol):
    """One connection until its first byte, and until the end of its handshake if it begins one."""

    def __init__(self, owner: Arrivals) -> None:
        self.peer: Any = None
        self._owner = owner
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.peer = transport.get_extra_info("peername")
        self._timer = asyncio.get_running_loop().call_later(
            HANDSHAKE_SECONDS_MAX, self.expired, f"no handshake in {HANDSHAKE_SECONDS_MAX:g} s"
        )
        self._owner.began(self)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if data[0] == HANDSHAKE_BYTE:
            layer = self._owner.secure(self)
            if layer is None:
                transport.close()
                return
            transport.set_protocol(layer)
            layer.connection_made(transport)
            layer.data_received(data)
            return
        self.end()
        above = self._owner.plain()
        if above is None:
            transport.close()
            return
        transport.set_protocol(above)
        above.connection_made(transport)
        if not transport.is_closing():  # it may have been refused
            above.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def failed(self, reason: str) -> None:
        """The handshake has come to nothing."""
        self.end()
        self._owner.failed(self.peer, self._reason or reason)

    def expired(self, reason: str) -> None:
        self._reason = reason
        self.abort()

    def abort(self) -> None:
        self.end()
        self._transport.abort()

    def end(self) -> None:
        """It has arrived, or is gone."""
        self._owner.ended(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
