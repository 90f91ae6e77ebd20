"""What flows for long on asyncio: logs and watches, and websockets to ports of pods, with the same login.

The official client has websockets too: they take a thread each, know no time-out, and do not say who acts as
another user. See docs/decisions/0011-kubectl-plugin.md.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from brokerset_cli.kubernetes.kube_api import (
    CONNECT_SECONDS,
    KubeApi,
    Query,
    refusal,
    serialized,
    unreachable,
)
from brokerset_kube.kinds import POD

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

QUIET_SECONDS: Final = 60.0
"""A log or a watch that is silent for so long is opened again: its connection may be dead."""

HEARTBEAT_SECONDS: Final = 15.0
"""How often the other end of a websocket is asked whether it is there."""

ENDING_SECONDS: Final = 1.0
PROTOCOL: Final = "v4.channel.k8s.io"
DATA: Final = 0
ERRORS: Final = 1
"""Channels of a forwarded port; the first frame of each has the port's number."""


class Streams:
    """Long answers of the API server; use it with `async with`. Every method raises `ApiFailed`."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._stack = AsyncExitStack()
        self._sessions: dict[ApiClient, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Streams:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._stack.aclose()

    @asynccontextmanager
    async def read(self, path: str, query: Query) -> AsyncIterator[aiohttp.StreamReader]:
        """An answer that comes in parts, until the server ends it."""
        timeout = aiohttp.ClientTimeout(None, sock_connect=CONNECT_SECONDS, sock_read=QUIET_SECONDS)
        while True:
            client, session, url, options = await self._request(path, query)
            try:
                async with session.get(url, timeout=timeout, **options) as answer:
                    if answer.status == HTTPStatus.OK:
                        self._api.login.worked()
                        yield answer.content
                        return
                    content = await answer.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise unreachable(client, error) from None
            if answer.status != HTTPStatus.UNAUTHORIZED or not self._api.login.is_renewed(client):
                raise refusal(answer.status, content)

    @asynccontextmanager
    async def forward(self, pod: str, port: int) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A connection to a port of a pod, in frames of a channel's number and data."""
        path, query = POD.path(self._api.namespace, pod, "portforward"), {"ports": str(port)}
        client, session, url, options = await self._request(path, query)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await session.ws_connect(
                    url,
                    protocols=(PROTOCOL,),
                    heartbeat=HEARTBEAT_SECONDS,
                    timeout=aiohttp.ClientWSTimeout(ws_close=ENDING_SECONDS),
                    **options,
                )
        except aiohttp.WSServerHandshakeError as error:
            # Why not is in an answer that a websocket does not show. Asked plainly, the server tells.
            await asyncio.to_thread(self._api.request, "GET", path, query)
            raise unreachable(client, error) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(client, error) from None
        try:
            yield socket
        finally:
            await socket.close()

    async def _request(
        self, path: str, query: Query
    ) -> tuple[ApiClient, aiohttp.ClientSession, str, dict[str, Any]]:
        """The client that is logged in, its connections, the address, and options of the request."""
        client, _ = await asyncio.to_thread(self._api.login.get)
        _, url, headers, *_ = await asyncio.to_thread(serialized, client, "GET", path, query)
        if client not in self._sessions:
            connector = aiohttp.TCPConnector(limit=0, ssl=_tls(client.configuration))
            session = aiohttp.ClientSession(connector=connector)
            self._sessions[client] = await self._stack.enter_async_context(session)
        given = client.configuration
        options = {
            "headers": headers,
            "proxy": _proxy(given),
            "proxy_headers": given.proxy_headers,
            "server_hostname": given.tls_server_name,
        }
        return client, self._sessions[client], url, options


def _tls(given: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=given.ssl_ca_cert)
    if not given.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if given.cert_file:
        context.load_cert_chain(given.cert_file, given.key_file)
    return context


def _proxy(given: Any) -> str | None:
    from kubernetes.client.rest import should_bypass_proxies

    if not given.proxy or should_bypass_proxies(given.host, given.no_proxy or ""):
        return None
    return str(given.proxy)
