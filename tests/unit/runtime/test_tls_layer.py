"""The layer of TLS against ends that want something other than to talk."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from brokerset_runtime.tls import Tls
from brokerset_runtime.tls.arrivals import Arrivals
from brokerset_runtime.tls.session import TlsSession
from brokerset_runtime.tls.transport import ANSWERS_MAX, TlsTransport

ANSWER = b"k" * 27
"""A record that says that keys are new."""


class _Transport:
    def __init__(self) -> None:
        self.written = 0
        self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 1)

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class _Session:
    """A session that answers each record by itself, as to a request for new keys."""

    established, ended = True, False

    def receive(self, data: bytes) -> bytes:
        return b""

    def take(self) -> bytes:
        return ANSWER


class _Above(asyncio.Protocol):
    lost: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc


def test_who_makes_tls_answer_and_reads_nothing_is_given_up() -> None:
    """Such answers are no requests, so nobody else bounds them; who reads may ask as often as it likes."""
    above, transport = _Above(), _Transport()
    session = cast(TlsSession, _Session())
    layer = TlsTransport(session, above, on_opened=lambda: None, on_failed=lambda reason: None)
    layer.connection_made(cast(asyncio.Transport, transport))
    times = ANSWERS_MAX // len(ANSWER) + 1

    for _ in range(times):
        layer.data_received(b"new keys, please")
    layer.pause_writing()
    for _ in range(times - 1):
        layer.data_received(b"new keys, please")
    layer.resume_writing()
    layer.pause_writing()
    for _ in range(times - 1):
        layer.data_received(b"new keys, please")
    assert not transport.aborted

    layer.data_received(b"new keys, please")

    assert transport.aborted
    layer.connection_lost(None)
    assert "reads nothing" in str(above.lost)


async def test_a_connection_that_comes_after_the_end_is_closed() -> None:
    """The loop may have accepted it before the port was closed."""
    arrivals = Arrivals(cast(Tls, None), asyncio.Protocol)
    arrivals.close()
    transport = _Transport()

    arrivals.accept().connection_made(cast(asyncio.Transport, transport))

    assert transport.aborted
    assert len(arrivals) == 0
