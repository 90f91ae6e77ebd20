"""kopf's part: events of the kinds that people write become marks.

Only `on.event` handlers are used: they keep no state in objects, add no finalizer and write nothing. kopf
runs in a thread with a loop of its own, because it takes signals and, when it ends, every task of its loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import kopf
import structlog

from brokerset_operator.kube.credentials import Access
from brokerset_operator.kube.kinds import Kind

log = structlog.get_logger(__name__)

SERVER_SECONDS: Final = 300
"""After how long the server ends a watch request, which is made anew then."""

INACTIVITY_SECONDS: Final = 70.0
"""A watch on which nothing comes for so long, not even a bookmark, is made anew."""

REQUEST_SECONDS: Final = 30.0
"""Time-out of a list of all BrokerSets."""

JOIN_SECONDS: Final = 5.0
"""How long the thread may take to end, each time that it is told to."""

PAGE_SIZE: Final = 500
"""Objects that are listed at once."""

RETRY_DELAYS: Final = (1, 2, 4, 8, 15, 30)
"""Pauses in seconds between the tries of one request, after which kopf gives up and the process ends."""

PEM_BEGIN: Final = b"-----BEGIN "

OnEvent = Callable[[str, str, Mapping[str, Any]], None]
"""Called in the caller's loop with a kind, LISTED, ADDED, MODIFIED or DELETED, and the object."""


class KopfEnded(Exception):
    """kopf has stopped although nobody asked it to."""


def make_registry(access: Access, kinds: Sequence[Kind], told: OnEvent) -> kopf.OperatorRegistry:
    """The handlers: for each kind one that passes events on; one says how to reach the API server."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection_info(access)

    for kind in kinds:
        _pass_on(kind, registry, told)
    return registry


def _pass_on(kind: Kind, registry: kopf.OperatorRegistry, told: OnEvent) -> None:
    @kopf.on.event(kind.group, "v1alpha1", kind.plural, registry=registry)
    async def passed_on(event: Any, **_: Any) -> None:
        told(kind.kind, event["type"] or "LISTED", event["object"])


def make_settings() -> kopf.OperatorSettings:
    """kopf without everything that writes, watches more than it needs, or hangs."""
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


def connection_info(access: Access) -> kopf.ConnectionInfo:
    """Our credentials as kopf takes them; asked for again when the API server refuses them."""
    token = None
    if access.token is not None:
        token = access.authorization(0.0, fresh=True)["Authorization"].removeprefix("Bearer ")
    # kopf takes what does not begin like this for base64.
    ca_data = access.ca_data
    if ca_data is not None:
        ca_data = ca_data[max(0, ca_data.find(PEM_BEGIN)) :]
    certificate, key = access.certificate or (None, None)
    return kopf.ConnectionInfo(
        server=access.server,
        ca_data=ca_data,
        insecure=access.insecure,
        scheme="Bearer" if token else None,
        token=token,
        certificate_data=certificate,
        private_key_data=key,
        default_namespace=access.namespace,
    )


async def run_kopf(access: Access, namespaces: Sequence[str], kinds: Sequence[Kind], told: OnEvent) -> None:
    """Watch these kinds until cancelled; `told` is called in this loop. Raises `KopfEnded`."""
    loop = asyncio.get_running_loop()
    thread = _KopfThread(
        access, namespaces, kinds, lambda *event: _post(loop, told, *event), lambda: _post(loop, ended.set)
    )
    ended = asyncio.Event()
    _pass_logs_on()
    thread.start()
    try:
        await ended.wait()
        raise KopfEnded(f"kopf has stopped: {thread.problem or 'it does not say why'}")
    finally:
        thread.stop()
        await asyncio.to_thread(thread.join, JOIN_SECONDS)
        if thread.is_alive():
            log.warning("kopf does not end when it is told to; all its tasks are cancelled")
            thread.stop_all()
            await asyncio.to_thread(thread.join, JOIN_SECONDS)
            if thread.is_alive():
                log.error("kopf does not end at all; its thread is left alone until this process ends")


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    """Call something in the other thread's loop, unless that is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        log.debug("an event came too late")


class _KopfThread(threading.Thread):
    """Runs one kopf operator."""

    def __init__(
        self,
        access: Access,
        namespaces: Sequence[str],
        kinds: Sequence[Kind],
        told: OnEvent,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(name="kopf", daemon=True)
        self._registry = make_registry(access, kinds, told)
        self._settings = make_settings()
        self._namespaces = tuple(namespaces)
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._stopping = threading.Event()
        self.problem: str | None = None
        """What it died of."""

    def run(self) -> None:
        try:
            asyncio.run(self._operate())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # the edge of a task: told to who waits for it
            self.problem = f"{type(error).__name__}: {error}"
            log.exception("kopf failed")
        finally:
            self._ended()

    async def _operate(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopping.is_set():
            return
        await kopf.operator(
            registry=self._registry,
            settings=self._settings,
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
        )

    def stop(self) -> None:
        """Let it end; may be called from any thread."""
        self._stopping.set()
        if self._loop is not None and self._main is not None:
            _post(self._loop, self._main.cancel)

    def stop_all(self) -> None:
        """Cancel every task: one that waits for the credentials of a kopf that ends waits for ever."""
        if self._loop is not None:
            _post(self._loop, self._cancel_all)

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks():
            task.cancel()


class _ToStructlog(logging.Handler):
    """Passes kopf's log lines on to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        tell("kopf says", text=record.getMessage(), logger=record.name)


_IGNORED: Final = ("OS signals are ignored",)


def _pass_logs_on() -> None:
    logger = logging.getLogger("kopf")
    if not any(isinstance(handler, _ToStructlog) for handler in logger.handlers):
        handler = _ToStructlog(logging.WARNING)
        handler.addFilter(lambda record: not record.getMessage().startswith(_IGNORED))
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
