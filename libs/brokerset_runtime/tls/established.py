"""Connections whose other end has shown a certificate: those with one that is revoked are found later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakKeyDictionary

import structlog

from brokerset_runtime.tls.transport import TlsTransport

log = structlog.get_logger(__name__)


class Established:
    """Open connections of a process, by what was shown; several loops may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakKeyDictionary[TlsTransport, tuple[bytes, asyncio.AbstractEventLoop]] = (
            WeakKeyDictionary()
        )

    def add(self, transport: TlsTransport, shown: bytes) -> None:
        """Remember a connection of the running loop for as long as there is one."""
        with self._lock:
            self._open[transport] = shown, asyncio.get_running_loop()

    def close(self, revoked: Callable[[bytes], str | None]) -> int:
        """Close those of which `revoked` names the certificate (DER); returns how many.

        From any thread: certificates are parsed, which takes some 30 µs for each different one.
        """
        with self._lock:
            found = [(transport, *shown) for transport, shown in self._open.items()]
        names = {shown: revoked(shown) for shown in dict.fromkeys(shown for _, shown, _ in found)}
        closed: dict[str, int] = {}
        for transport, shown, loop in found:
            name = names[shown]
            if name is None:
                continue
            with suppress(RuntimeError):  # the loop has ended, its connections with it
                loop.call_soon_threadsafe(transport.refuse, f"its certificate is revoked: {name}")
                closed[name] = closed.get(name, 0) + 1
        for name, count in closed.items():
            log.warning(
                "connections closed: their certificate is revoked", certificate=name, connections=count
            )
        return sum(closed.values())
