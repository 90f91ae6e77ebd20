"""Accepted connections of which nobody knows yet whether they begin with a handshake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.tls.config import TlsMode
from brokerset_runtime.tls.contexts import MEMBER_AUTHORITY_KEY, Tls
from brokerset_runtime.tls.member_names import MemberPort
from brokerset_runtime.tls.session import TlsSession
from brokerset_runtime.tls.transport import HANDSHAKE_BYTE, TlsTransport

log = structlog.get_logger(__name__)

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""A connection that has sent nothing, or has not ended its handshake, after so long is closed."""

ARRIVALS_MAX: Final = 1_000
"""Connections before the end of their handshake; one more closes the one that has waited longest, which is
the least likely to be of a client that means well."""

_NO_TLS: Final = "this server has no TLS (tls.server.mode=disabled)"
_NO_AUTHORITY: Final = f"nobody is named who signs certificates of members ({MEMBER_AUTHORITY_KEY})"


_SHOW_MEMBERSHIP: Final = (
    "if it is a member, give it a good certificate of this authority (tls.members.certPath,"
    " or tls.client.certPath without that); else keep it from this port"
)


class Arrivals:
    """Gives each accepted connection to the protocol that its first byte asks for, within bounds."""

    def __init__(
        self,
        tls: Tls,
        serving: Callable[[], asyncio.Protocol],
        refusing: Callable[[], asyncio.Protocol] | None = None,
        *,
        members_of: MemberPort | None = None,
        at_http_port: bool = False,
    ) -> None:
        """`serving` makes the protocol of a connection, `refusing` that of one that had to use TLS.

        Without `refusing` such a connection is closed. With `members_of` it is such a port of members, and
        all must show certificates; with `at_http_port` nobody.
        """
        self._tls = tls
        self._serving = serving
        self._refusing = refusing
        self._members_of = members_of
        self._at_http_port = at_http_port
        self._port = "http" if at_http_port else "members" if members_of is not None else "clients"
        self._waiting: dict[_Arrival, None] = {}
        self._log = LogThrottle()
        self._closed = False
        if members_of is not None and tls.clients_may_be_members:
            log.warning(
                "whoever has a client's certificate, or one of this authority, is let in as a member",
                authority=str(tls.member_authorities),
                next_step=f"name the authority of members alone by {MEMBER_AUTHORITY_KEY}",
            )

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
        context = self._context()
        if context is None:
            self.failed(arrival, _NO_TLS if self._tls.mode is TlsMode.DISABLED else _NO_AUTHORITY)
            return None
        arrival.session = TlsSession(context, server_side=True)
        return TlsTransport(
            arrival.session,
            self._serving(),
            on_opened=arrival.end,
            on_failed=arrival.failed,
            admit=self._admit,
        )

    def _admit(self, transport: TlsTransport) -> str | None:
        if self._at_http_port:
            return None  # nobody was asked
        if self._members_of is None:
            return self._tls.admit(transport)
        return self._tls.admit_member(transport, self._members_of)

    def _context(self) -> ssl.SSLContext | None:
        if self._at_http_port:
            return self._tls.http
        return self._tls.server if self._members_of is None else self._tls.members

    def plain(self, arrival: _Arrival) -> asyncio.Protocol | None:
        """The protocol for a connection that begins with something else; None: it is closed."""
        enforced = self._tls.mode is TlsMode.ENFORCING
        if not enforced or (self._at_http_port and self._tls.http is None):
            return self._serving()
        self._tls.plain_refused[self._port] += 1
        if self._members_of is not None:
            self._report_stranger(
                arrival, "it does not use TLS", "if it is a member, set tls.enable=true there"
            )
        return None if self._refusing is None else self._refusing()

    def failed(self, arrival: _Arrival, reason: str) -> None:
        """A handshake has come to nothing."""
        self._tls.handshakes_failed[self._port] += 1
        if self._members_of is not None:
            self._report_stranger(arrival, reason, _SHOW_MEMBERSHIP)
            return
        suppressed = self._log.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning("TLS handshake failed", peer=arrival.peer, reason=reason, suppressed=suppressed)

    def _report_stranger(self, arrival: _Arrival, reason: str, next_step: str) -> None:
        suppressed = self._log.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            subject = None if arrival.session is None else arrival.session.shown_subject()
            log.warning(
                "connection at a port of members failed",
                peer=arrival.peer,
                subject=subject or "none shown",
                reason=reason,
                authority=str(self._tls.member_authorities),
                next_step=next_step,
                suppressed=suppressed,
            )


class _Arrival(asyncio.Protocol):
    """One connection until its first byte, and until the end of its handshake if it begins one."""

    def __init__(self, owner: Arrivals) -> None:
        self.peer: Any = None
        self.session: TlsSession | None = None
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
        above = self._owner.plain(self)
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
        self._owner.failed(self, self._reason or reason)

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
