"""Connections to an HTTP port that ask for nothing, ask too slowly, or are too many."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from brokerset_rig.certificates import Certificates
from brokerset_runtime.http import HttpEndpoint
from brokerset_runtime.http_connections import HttpLimits
from brokerset_runtime.tls import Tls, arrivals

SECONDS_MAX = 60
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK"
HELLO = b"\x16\x03\x01\x02\x00\x01"
ENDLESS_BYTES = 64 * 1024 * 1024
ATTEMPTS_MAX = 100
"""Of clients that a busy machine is too slow for, so that they are closed before they have asked."""


class Client:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def connect(port: int, tls: ssl.SSLContext | None = None) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    async def ask(self, request: bytes = HEALTHZ) -> bytes:
        """The status line of the answer; it is read to its end."""
        self.writer.write(request)
        async with asyncio.timeout(SECONDS_MAX):
            head = await self.reader.readuntil(b"\r\n\r\n")
            await self.reader.readuntil(b"\n")
        return head.split(b"\r\n")[0]

    async def ended(self) -> bytes:
        """Wait until the server has closed it; returns what came before that."""
        with suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(), SECONDS_MAX)
        return b""


class Serving:
    """An endpoint whose `/slow` answers when it is allowed to, and whose `/endless` is long."""

    def __init__(self, limits: HttpLimits) -> None:
        self.asked = asyncio.Semaphore(0)
        self.may_answer = asyncio.Event()
        self.endpoint = HttpEndpoint(extend=self._extend, limits=limits)
        self.port = 0
        self._clients: list[Client] = []

    def _extend(self, application: web.Application) -> None:
        application.router.add_get("/slow", self._slow)
        application.router.add_get("/endless", self._endless)

    async def _slow(self, _request: web.Request) -> web.Response:
        self.asked.release()
        await self.may_answer.wait()
        return web.Response(text="at last\n")

    async def _endless(self, _request: web.Request) -> web.Response:
        self.asked.release()
        return web.Response(body=bytes(ENDLESS_BYTES))

    async def client(self, tls: ssl.SSLContext | None = None) -> Client:
        self._clients.append(await Client.connect(self.port, tls))
        return self._clients[-1]

    async def answered(self, tls: ssl.SSLContext | None = None) -> Client:
        """A client that has had an answer."""
        for _ in range(ATTEMPTS_MAX):
            client = await self.client(tls)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                assert await client.ask() == OK
                return client
        raise AssertionError("no request is answered")

    async def being_answered(self, request: bytes = SLOW) -> tuple[Client, asyncio.Task[bytes]]:
        """A client whose request has reached the handler, and its answer."""
        for _ in range(ATTEMPTS_MAX):
            client = await self.client()
            answer = asyncio.create_task(client.ask(request))
            reached = asyncio.create_task(self.asked.acquire())
            async with asyncio.timeout(SECONDS_MAX):
                await asyncio.wait([answer, reached], return_when=asyncio.FIRST_COMPLETED)
            if reached.done():
                return client, answer
            reached.cancel()
            answer.exception()
        raise AssertionError("no request reaches the handler")

    async def until_connections(self, count: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.endpoint.connections) != count:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self.may_answer.set()
        for client in self._clients:
            client.writer.close()
        await self.endpoint.close()


@asynccontextmanager
async def serving(limits: HttpLimits, tls: Tls | None = None) -> AsyncIterator[Serving]:
    server = Serving(limits)
    server.port = await server.endpoint.start("127.0.0.1", 0, tls)
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


async def _silent(server: Serving, tls: ssl.SSLContext | None) -> Client:
    return await server.client(tls)


async def _half_head(server: Serving, tls: ssl.SSLContext | None) -> Client:
    client = await server.client(tls)
    client.writer.write(HEALTHZ[:-2])
    return client


async def _idle(server: Serving, tls: ssl.SSLContext | None) -> Client:
    return await server.answered(tls)


async def _half_second_head(server: Serving, tls: ssl.SSLContext | None) -> Client:
    client = await server.answered(tls)
    client.writer.write(HEALTHZ[:-2])
    return client


async def test_an_endpoint_that_never_started_can_be_closed() -> None:
    """As by a process without an HTTP port, or one that ends before."""
    await HttpEndpoint().close()


@pytest.mark.parametrize("begin", [_silent, _half_head, _idle, _half_second_head])
@pytest.mark.parametrize("by_tls", [False, True])
async def test_a_connection_that_asks_for_nothing_is_closed(
    begin: Callable[[Serving, ssl.SSLContext | None], Awaitable[Client]],
    by_tls: bool,
    certificates: Certificates,
) -> None:
    """Without an answer; also behind a handshake, and while another one is answered for longer than that."""
    tls = Tls(certificates.config(tls_server_mode="permissive")) if by_tls else None
    context = ssl.create_default_context(cafile=certificates.folder / "authority.pem") if by_tls else None
    async with serving(HttpLimits(wait_seconds_max=0.2), tls) as server:
        _, answer = await server.being_answered()
        client = await begin(server, context)

        assert await client.ended() == b""
        assert not answer.done()
        server.may_answer.set()
        assert await answer == OK


@pytest.mark.parametrize("sent", [b"", HELLO])
async def test_a_handshake_that_does_not_end_is_closed(
    sent: bytes, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, or after the first bytes of a handshake."""
    monkeypatch.setattr(arrivals, "HANDSHAKE_SECONDS_MAX", 0.05)
    async with serving(HttpLimits(), Tls(certificates.config())) as server:
        client = await server.client()
        client.writer.write(sent)

        assert await client.ended() == b""


async def test_too_many_that_wait_make_room() -> None:
    """The oldest that never got an answer goes first, then the one that is idle longest; others go on."""
    async with serving(HttpLimits(connections_max=4)) as server:
        busy, answer = await server.being_answered()
        idle = [await server.answered(), await server.answered()]
        silent = await server.client()
        await server.until_connections(4)

        newcomer = await server.client()
        assert await newcomer.ask() == OK
        assert await silent.ended() == b""
        assert await idle[0].ask() == OK

        another = await server.client()
        assert await another.ask() == OK
        assert await idle[1].ended() == b""
        assert await idle[0].ask() == OK
        assert not answer.done()
        server.may_answer.set()
        assert await answer == OK
        assert await busy.ask() == OK
        assert (server.endpoint.connections.displaced, server.endpoint.connections.refused) == (2, 0)


async def test_one_too_many_is_refused_while_all_are_answered() -> None:
    """And gets in when one has its answer."""
    async with serving(HttpLimits(connections_max=2)) as server:
        answers = [(await server.being_answered())[1] for _ in range(2)]

        assert await (await server.client()).ended() == b""
        assert server.endpoint.connections.refused == 1
        server.may_answer.set()
        assert await asyncio.gather(*answers) == [OK] * 2
        assert await (await server.client()).ask() == OK


async def test_an_answer_that_nobody_takes_ends() -> None:
    """It would stay in memory; another one is served meanwhile."""
    async with serving(HttpLimits(wait_seconds_max=0.2)) as server:
        client, answer = await server.being_answered(SLOW.replace(b"/slow", b"/endless"))

        await server.until_connections(0)
        with suppress(asyncio.LimitOverrunError, asyncio.IncompleteReadError, ConnectionError):
            await answer  # it has a head, and no end of a line
        assert len(await client.ended()) < ENDLESS_BYTES
        await server.answered()
