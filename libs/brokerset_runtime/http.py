"""The HTTP endpoint of a process: `/metrics`, `/healthz`, `/readyz`, and what its owner adds.

The web server and the metrics library are loaded when `start` runs, not when this module is imported, because
together they take longer to load than the rest of a process takes to start. `start` loads them in a
thread, so that requests are served meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from brokerset_runtime.tls.arrivals import Arrivals
from brokerset_runtime.tls.contexts import Tls

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

    from brokerset_runtime.http_connections import HttpConnections, HttpLimits

SHUTDOWN_SECONDS_MAX: Final = 1.0
"""Longest time that `close` waits for requests that are being answered."""

BACKLOG: Final = 128
"""Connections that wait until they are accepted."""

_TLS_METRICS: Final = "brokerset_runtime.tls.metrics"

Check = Callable[[], list[str]]
"""Returns the reasons why the answer is no; empty means yes. Must return at once."""


def _nothing_wrong() -> list[str]:
    return []


class HttpEndpoint:
    """Serves health, readiness and metrics of the process that owns it."""

    def __init__(
        self,
        *,
        alive: Check = _nothing_wrong,
        ready: Check = _nothing_wrong,
        metrics: Callable[[], CollectorRegistry] | None = None,
        extend: Callable[[web.Application], None] | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        """`metrics` returns the registry to show; without it the library's global one is shown.

        `extend` may add requests to the application before it serves.
        """
        self._limits = limits
        self._connections: HttpConnections | None = None
        self._alive = alive
        self._ready = ready
        self._metrics = metrics
        self._extend = extend
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._arrivals: Arrivals | None = None
        self._tls_metrics: CollectorRegistry | None = None

    @property
    def connections(self) -> HttpConnections:
        """Those that are open, and how many were not let in; `start` comes first."""
        assert self._connections is not None, "start comes first"
        return self._connections

    async def start(self, host: str, port: int, tls: Tls | None = None) -> int:
        """Listen on `host:port`, 0 for a free port; returns the port. Raises `OSError` when it is taken.

        With `tls` the port takes HTTPS, too, or alone (`tls.server.mode`), and asks nobody for a certificate;
        metrics have those of `tls/metrics.py`.
        """
        for module in ("aiohttp.web", "prometheus_client", *(() if tls is None else (_TLS_METRICS,))):
            await asyncio.to_thread(importlib.import_module, module)
        from aiohttp import web

        from brokerset_runtime.http_connections import HttpConnections, HttpLimits

        limits = self._limits or HttpLimits()
        connections = self._connections = HttpConnections(limits)

        @web.middleware
        async def answering(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            with connections.answering(request.protocol):
                return await handler(request)

        application = web.Application(middlewares=[answering])
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._show_metrics)
        if self._extend is not None:
            self._extend(application)
        runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS_MAX,
            keepalive_timeout=limits.wait_seconds_max,  # of the first request, too
        )
        await runner.setup()
        server = runner.server
        assert server is not None, "a runner that was set up has one"

        def serving() -> asyncio.Protocol:
            return connections.accept(server)

        if tls is not None:
            from brokerset_runtime.tls.metrics import tls_registry

            self._arrivals = Arrivals(tls, serving, at_http_port=True)
            self._tls_metrics = tls_registry(tls)
        accept = serving if self._arrivals is None else self._arrivals.accept
        try:
            self._server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=BACKLOG)
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; may be called more than once, and without `start`."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if self._connections is not None:
            self._connections.close()
        if self._arrivals is not None:
            self._arrivals.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return self._answer(self._alive)

    async def _readyz(self, _request: web.Request) -> web.Response:
        return self._answer(self._ready)

    def _answer(self, check: Check) -> web.Response:
        from aiohttp import web

        reasons = check()
        text = "".join(f"{reason}\n" for reason in reasons) or "ok\n"
        return web.Response(status=503 if reasons else 200, text=text)

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        from aiohttp import web
        from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

        registry = self._metrics() if self._metrics is not None else REGISTRY
        body = generate_latest(registry)
        if self._tls_metrics is not None:
            body += generate_latest(self._tls_metrics)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
