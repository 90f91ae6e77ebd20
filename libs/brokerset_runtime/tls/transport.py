"""TLS between a connection of the loop and whoever reads and writes plain bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from brokerset_runtime.tls.session import TlsError, TlsSession

HANDSHAKE_BYTE: Final = 0x16
"""How a TLS connection begins; a remoting frame begins with its length, of which the first byte is 0 or 1."""

ANSWERS_MAX: Final = 64 * 1024
"""Bytes that TLS itself answers (a new key if one is asked for) to who reads nothing: it is aborted."""


class TlsTransport(asyncio.Protocol):
    """To the loop a protocol, to the protocol above a transport.

    The protocol above hears of the connection when the two ends have agreed, after `on_opened`. If they never
    do, it hears nothing, and `on_failed` gets the reason.
    """

    def __init__(
        self,
        session: TlsSession,
        above: asyncio.Protocol,
        *,
        on_opened: Callable[[], None],
        on_failed: Callable[[str], None],
        admit: Callable[[TlsTransport], str | None] | None = None,
    ) -> None:
        """`admit` says why the other end is refused, by what it has shown; None: it is not."""
        self._session = session
        self._above = above
        self._on_opened = on_opened
        self._on_failed = on_failed
        self._admit = admit
        self._transport: asyncio.Transport | None = None
        self._opened = False
        self._closing = False
        self._paused = False
        self._answered = 0
        self._error: TlsError | None = None

    # -- to the loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transport is no subclass

    def begin(self) -> None:
        """Send the first message of a client."""
        try:
            self._session.begin()
        except TlsError as error:
            self._fail(error)
        else:
            self._send()

    def data_received(self, data: bytes) -> None:
        session = self._session
        try:
            plain = session.receive(data)
        except TlsError as error:
            self._fail(error)
            return
        answered = self._send()
        if self._paused:
            self._answered += answered
            if self._answered > ANSWERS_MAX:
                self._error = TlsError("the other end makes TLS answer, and reads nothing")
                self.abort()
                return
        if session.established and not self._opened and not self._closing:
            refused = None if self._admit is None else self._admit(self)
            if refused is not None:
                self._fail(TlsError(refused))
                return
            self._opened = True
            self._on_opened()
            self._above.connection_made(self)  # type: ignore[arg-type]  # has what the protocols above use
        if plain and not self._closing:
            self._above.data_received(plain)
        if session.ended:
            self.close()

    def pause_writing(self) -> None:
        self._paused = True
        if self._opened:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        self._paused, self._answered = False, 0
        if self._opened:
            self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._opened:
            self._above.connection_lost(self._error or exc)
        else:
            self._on_failed(str(self._error or exc or "the other end closed the connection"))

    # -- to the protocol above ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        try:
            self._session.write(data)
        except TlsError as error:
            self._fail(error)
        else:
            self._send()

    def writelines(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        """Send what was written, say that nothing more comes, and close."""
        if self._closing:
            return
        self._closing = True
        self._session.close()
        self._send()
        if self._transport is not None:
            self._transport.close()

    def shown_certificate(self) -> bytes | None:
        """What the other end has shown, in DER; None if it was not asked, or showed none."""
        return self._session.shown_certificate()

    def shown_names(self) -> tuple[tuple[str, str], ...]:
        """What that certificate is for."""
        return self._session.shown_names()

    def refuse(self, why: str) -> None:
        """Abort a connection that must not be any more; the protocol above gets a `TlsError`."""
        self._error = self._error or TlsError(why)
        self.abort()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        return self._closing or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the connection below has: its addresses, its socket, to which nobody else may write."""
        return self._transport.get_extra_info(name, default) if self._transport is not None else default

    def _send(self) -> int:
        data = self._session.take()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
        return len(data)

    def _fail(self, error: TlsError) -> None:
        """Tell the other end why, and close."""
        self._error = self._error or error
        self._send()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
