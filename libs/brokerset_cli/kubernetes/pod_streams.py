"""Bytes to and from a port of a pod, over a websocket to the API server; inside of it by TLS if need be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp

from brokerset_cli.kubernetes.kube_api import CONNECT_SECONDS
from brokerset_cli.kubernetes.streams import DATA, ERRORS
from brokerset_cli.output import CommandFailed
from brokerset_runtime.tls import ServerTrust, TlsError
from brokerset_runtime.tls.session import TlsSession

Tunnel = AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]
"""A connection to a port of a pod, not made yet."""

ADVICE: Final = (
    "the set's certificates must be for its name servers' Service; docs/kubernetes/tls.md has the names"
)


@dataclass(frozen=True, slots=True)
class Way:
    """How a port of a pod is reached."""

    pod: str
    tunnel: Tunnel
    trust: ServerTrust | None = None
    """Whom to trust: the pod takes TLS alone. None: it takes plain bytes."""


class PodStream(Protocol):
    """Both directions of one connection."""

    async def send(self, data: bytes) -> None:
        """Send to the pod."""

    def received(self) -> AsyncIterator[bytes]:
        """What the pod sends, until it ends. Raises `CommandFailed` with what the API server says."""


class PlainStream:
    """Bytes as they are."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """Send to the pod."""
        await self._socket.send_bytes(bytes([DATA]) + data)

    async def received(self) -> AsyncIterator[bytes]:
        """What the pod sends."""
        begun: set[int] = set()
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)  # the first frame has the port's number
            elif channel == DATA:
                yield data
            elif channel == ERRORS:
                raise CommandFailed(" ".join(data.decode("utf-8", "replace").split()))


class TlsStream:
    """Bytes that the pod gets, and sends, by TLS."""

    def __init__(self, inner: PlainStream, way: Way) -> None:
        assert way.trust is not None, "without trust a stream is plain"
        self._inner, self._pod = inner, way.pod
        self._session = TlsSession(way.trust.client, server_side=False, server_name=way.trust.server_name)
        self._arriving = inner.received()
        self._order = asyncio.Lock()
        """TLS counts its records: what was encrypted first is sent first."""
        self._early = b""

    async def agree(self) -> None:
        """Make the handshake. Raises `CommandFailed` if the certificate is not one of the set."""
        try:
            self._session.begin()
            await self._flush()
            async with asyncio.timeout(CONNECT_SECONDS):
                while not self._session.established:
                    self._early = self._session.receive(await anext(self._arriving))
                    await self._flush()
        except StopAsyncIteration:
            raise CommandFailed(
                f"{self._pod} ended the connection before the end of the TLS handshake"
            ) from None
        except TimeoutError:
            raise CommandFailed(
                f"{self._pod} did not end its TLS handshake in {CONNECT_SECONDS:g} s"
            ) from None
        except TlsError as error:
            await self._flush()  # what tells the pod
            raise CommandFailed(f"{self._pod}: {error}", ADVICE) from None

    async def send(self, data: bytes) -> None:
        """Send to the pod."""
        self._session.write(data)
        await self._flush()

    async def received(self) -> AsyncIterator[bytes]:
        """What the pod sends."""
        if self._early:
            yield self._early
        async for data in self._arriving:
            plain = self._session.receive(data)
            await self._flush()
            if plain:
                yield plain
            if self._session.ended:
                return

    async def _flush(self) -> None:
        async with self._order:
            if data := self._session.take():
                await self._inner.send(data)


async def stream_of(way: Way, socket: aiohttp.ClientWebSocketResponse, *, plain: bool = False) -> PodStream:
    """The stream of a connection that was made; `plain`: whoever connects speaks TLS itself.

    Raises `CommandFailed`.
    """
    inner = PlainStream(socket)
    if way.trust is None or plain:
        return inner
    found = TlsStream(inner, way)
    await found.agree()
    return found
