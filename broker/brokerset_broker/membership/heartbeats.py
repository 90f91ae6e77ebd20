"""Heartbeats (904) to every controller, each by a task of its own: no unreachable one delays another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from brokerset_broker.membership.controllers import Controllers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import BrokerHeartbeat
from brokerset_runtime.asking import Asker
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

log = structlog.get_logger(__name__)


class Heartbeats:
    """Tells all controllers that the broker lives. They wait for the answer, unlike Java's."""

    def __init__(
        self,
        controllers: Controllers,
        asker: Asker,
        clock: Clock,
        *,
        interval_seconds: float,
        timeout_seconds: float,
        header: Callable[[], BrokerHeartbeat | None],
        on_conflict: Callable[[], None],
    ) -> None:
        """`header` is None while nothing is to be sent; `on_conflict` hears that a controller knows another
        process with this identity, which may be old news of a follower."""
        self._controllers = controllers
        self._asker = asker
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._header = header
        self._on_conflict = on_conflict
        self._heard: dict[str, float] = {}
        self.begun = asyncio.Event()
        """Set by the owner after the first registration; `run` waits for it."""

    @property
    def ages(self) -> dict[str, float]:
        """Seconds since each controller last took a heartbeat, by address."""
        now = self._clock.monotonic()
        return {address: now - heard for address, heard in self._heard.items()}

    async def run(self) -> None:
        """Beat for as long as this task runs; addresses may come and go."""
        await self.begun.wait()
        async with asyncio.TaskGroup() as group:
            tasks: dict[str, asyncio.Task[None]] = {}
            while True:
                self._controllers.changed.clear()
                wanted = self._controllers.addresses
                for address in [known for known in tasks if known not in wanted]:
                    tasks.pop(address).cancel()
                    self._heard.pop(address, None)
                for address in wanted:
                    if address not in tasks:
                        tasks[address] = group.create_task(self._keep_beating(address))
                await self._controllers.changed.wait()

    async def beat(self, address: str) -> None:
        """One heartbeat; returns when it is answered or given up."""
        header = self._header()
        if header is None:
            return
        command = Command(RequestCode.BROKER_HEARTBEAT, header.to_ext())
        try:
            reply = await self._asker.ask(address, command, self._timeout_seconds)
        except (ConnectionClosed, RequestTimeout) as error:
            log.debug("heartbeat not answered", controller=address, reason=str(error))
            return
        if reply.code == ResponseCode.BROKERSET_IDENTITY_CONFLICT:
            self._on_conflict()
        elif reply.code == ResponseCode.SUCCESS:
            self._heard[address] = self._clock.monotonic()

    async def _keep_beating(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.beat(address)
            await asyncio.sleep(max(0.0, begun + self._interval_seconds - loop.time()))
