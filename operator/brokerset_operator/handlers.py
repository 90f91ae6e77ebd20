"""kopf's part: events of the kinds that people write enqueue objects.

kopf runs in our own event loop, and makes its requests with our client's session. Only `on.event` handlers
are used: they keep no state in objects, add no finalizer and write nothing. Why: decision 0023.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import aiohttp
import kopf
import structlog

from brokerset_kube.client import KubeClient
from brokerset_kube.kinds import Kind

log = structlog.get_logger(__name__)

SERVER_SECONDS: Final = 300
"""After how long the server ends a watch request; kopf goes on with another one."""

INACTIVITY_SECONDS: Final = 70.0
"""kopf replaces a watch request on which nothing comes for so long, not even a bookmark."""

REQUEST_SECONDS: Final = 30.0
"""Time-out of a list of all BrokerSets."""

PAGE_SIZE: Final = 500
"""Objects that are listed at once."""

END_SECONDS_MAX: Final = 5.0
"""Longest wait for tasks of kopf that were cancelled; the Lease is to be given back in time."""

RETRY_DELAYS: Final = (1, 2, 4, 8, 15, 30)
"""Pauses in seconds between the tries of one request, after which kopf gives up and the process ends."""

OnEvent = Callable[[str, str, Mapping[str, Any]], None]
"""Called with a kind, LISTED, ADDED, MODIFIED or DELETED, and the object."""


class KopfEnded(Exception):
    """kopf has stopped although nobody asked it to."""


class KopfSession:
    """What kopf uses of an aiohttp session: the requests of one kopf, until it is to end.

    kopf can miss a cancellation, so one that ends is refused every further request. And when a watch fails,
    kopf closes its session while its other watches still run: those would wait for credentials permanently.
    So `close` does nothing, and `end` finds the tasks that have made requests.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._ending = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.headers: Mapping[str, str] = client.session.headers
        self.closed = False

    async def request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        """One request as who we are now; a token may have been renewed since it was read."""
        self._go_on()
        task = asyncio.current_task()
        assert task is not None, "kopf is asynchronous"
        self._tasks.add(task)
        answer = await self._send(method, url, options)
        if answer.status == 401:
            answer.close()
            answer = await self._send(method, url, options, fresh=True)
        return answer

    async def _send(
        self, method: str, url: str, options: Mapping[str, Any], *, fresh: bool = False
    ) -> aiohttp.ClientResponse:
        now = asyncio.get_running_loop().time()
        headers = {**(options["headers"] or {}), **self._client.access.authorization(now, fresh=fresh)}
        answer = await self._client.session.request(method, url, **{**options, "headers": headers})
        try:
            self._go_on()
        except asyncio.CancelledError:
            answer.close()
            raise
        return answer

    def _go_on(self) -> None:
        if self._ending:
            raise asyncio.CancelledError("kopf ends")

    async def close(self) -> None:
        """The session is the client's, and stays open."""

    async def end(self, root_tasks: Iterable[asyncio.Task[Any]]) -> None:
        """End all of kopf's tasks: first its root tasks, then the watches that a failure has left behind."""
        self._ending = True
        for tasks in (root_tasks, self._tasks):
            ending = set(tasks)
            for task in ending:
                task.cancel()
            if ending:
                done, left = await asyncio.wait(ending, timeout=END_SECONDS_MAX)
                for task in done:
                    task.cancelled() or task.exception()  # what they failed with is of no use any more
                if left:
                    names = sorted(task.get_name() for task in left)
                    log.error("tasks of kopf do not end, and are left behind", tasks=names)


def make_registry(
    session: KopfSession, server: str, kinds: Sequence[Kind], on_event: OnEvent
) -> kopf.OperatorRegistry:
    """The handlers: for each kind one that passes events on; one says how to reach the API server."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=server, aiohttp_session=cast(aiohttp.ClientSession, session))

    for kind in kinds:
        _pass_on(kind, registry, on_event)
    return registry


def _pass_on(kind: Kind, registry: kopf.OperatorRegistry, on_event: OnEvent) -> None:
    @kopf.on.event(kind.group, "v1alpha1", kind.plural, registry=registry)
    async def passed_on(event: Any, **_: Any) -> None:
        on_event(kind.kind, event["type"] or "LISTED", event["object"])


def make_settings() -> kopf.OperatorSettings:
    """kopf without everything that writes, or watches more than it needs."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.process.ultimate_exiting_timeout = None
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.connect_timeout = REQUEST_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = REQUEST_SECONDS
    settings.networking.error_backoffs = RETRY_DELAYS
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.5
    return settings


async def run_kopf(
    client: KubeClient,
    namespaces: Sequence[str],
    kinds: Sequence[Kind],
    on_event: OnEvent,
    *,
    take_signals: Callable[[], None] = lambda: None,
) -> None:
    """Watch these kinds until cancelled. Raises `KopfEnded`.

    kopf's own runner, `kopf.operator`, cancels at its end every task of the loop that it does not know. So
    its root tasks are run here; none of them ends by itself. In the main thread kopf takes SIGTERM and SIGINT
    when it starts: `take_signals` is called to take them back.
    """
    _pass_logs_on()
    session = KopfSession(client)

    async def start() -> Sequence[asyncio.Task[Any]]:
        root_tasks = await kopf.spawn_tasks(
            registry=make_registry(session, client.access.server, kinds, on_event),
            settings=make_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=tuple(namespaces),
        )
        take_signals()
        return list(root_tasks)

    starting = asyncio.ensure_future(start())
    try:
        done, _ = await asyncio.wait(await asyncio.shield(starting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending = asyncio.ensure_future(session.end(await starting))
        try:
            await asyncio.shield(ending)  # a kopf that has failed may be cancelled, too
        finally:
            await ending
    problem = next((error for task in done if not task.cancelled() and (error := task.exception())), None)
    raise KopfEnded(f"kopf has stopped: {problem or 'it does not say why'}") from problem


class _ToStructlog(logging.Handler):
    """Passes kopf's log lines on to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        tell("kopf says", text=record.getMessage(), logger=record.name)


def _pass_logs_on() -> None:
    logger = logging.getLogger("kopf")
    if not any(isinstance(handler, _ToStructlog) for handler in logger.handlers):
        logger.addHandler(_ToStructlog(logging.WARNING))
        logger.propagate = False
        logger.setLevel(logging.WARNING)
