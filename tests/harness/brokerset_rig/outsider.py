"""Whoever reaches a port of a set and is nobody there: its own sockets, no certificate, no user, all protocols known.

It shares with the product only the layouts of packets of members, which an outsider can read in the source.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brokerset_rig import wire

SECONDS_MAX: Final = 20.0
"""Longest wait for an answer: what hangs is a failure, and no refusal."""

OPEN: Final = "open"
CLOSED: Final = "closed"
"""By the alert that a certificate is required."""

ENDED: Final = "ended"
"""The connection, without an answer."""


class Refused(Exception):
    """A server answered that it does not serve this."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code
        self.remark = remark


@dataclass(frozen=True, slots=True)
class Outsider:
    """How it connects: in plain text, or by TLS that believes every server and shows nothing."""

    by_tls: bool

    def socket(self, address: str) -> socket.socket:
        """A connection. Raises `OSError`."""
        host, _, port = address.rpartition(":")
        found = socket.create_connection((host, int(port)), SECONDS_MAX)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context().wrap_socket(found) if self.by_tls else found

    def requests(self, address: str) -> Requests:
        """A remoting client. Raises `OSError`."""
        return Requests(self, address)

    def get(self, address: str, path: str) -> tuple[int, bytes]:
        """Status and body of an HTTP request. Raises `OSError`, `http.client.HTTPException`."""
        connection = http.client.HTTPConnection(address, timeout=SECONDS_MAX)
        connection.sock = self.socket(address)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @staticmethod
    def _context() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


class Requests(wire.Client):
    """A remoting client that gets an answer, or raises why not."""

    def __init__(self, outsider: Outsider, address: str) -> None:
        self._outsider = outsider
        self._host, _, port = address.rpartition(":")
        super().__init__(int(port), SECONDS_MAX)

    def _connected(self, port: int) -> socket.socket:
        return self._outsider.socket(f"{self._host}:{port}")

    def served(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> wire.Answer:
        """A successful answer. Raises `Refused`."""
        answer = self.call(code, ext or {}, body)
        if answer.code:
            raise Refused(answer.code, answer.remark or "")
        return answer


def outcome(attempt: Callable[[], None]) -> str:
    """How an attempt ends: `open`, `closed`, `ended`, or the code of a refusal (`code 16`). Raises whatever else it raised."""
    try:
        attempt()
    except Refused as refused:
        return f"code {refused.code}"
    except ssl.SSLError as error:
        if error.reason != "TLSV13_ALERT_CERTIFICATE_REQUIRED":
            raise
        return CLOSED
    except (ConnectionError, http.client.RemoteDisconnected):
        return ENDED
    return OPEN
