"""Heartbeats (904) to every controller, each by a task of its own: no unreachable one delays another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from brokerset_broker.member.membership.controllers import Controllers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import BrokerHeartbeat, BrokerHeartbeatAnswer
from brokerset_runtime.clock import Clock
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

log = structlog.get_logger(__name__)

PAUSE_SECONDS_MIN: Final = 0.01
"""Shortest pause between two heartbeats to one controller."""


class Heartbeats:
    """Tells all controllers that the broker lives. They wait for the answer, unlike Java's."""

    def __init__(
        self,
        controllers: Controllers,
        asker: Asker,
        clock: Clock,
        *,
        pause_seconds: Callable[[], float],
        timeout_seconds: float,
        header: Callable[[], BrokerHeartbeat | None],
        on_conflict: Callable[[], None],
        on_answer: Callable[[BrokerHeartbeatAnswer, float], None],
    ) -> None:
        """`pause_seconds` is asked after each beat; `header` is None while nothing is to be sent.

        `on_conflict` hears that a controller knows another process with this identity, which may be old news
        of a follower; `on_answer` gets what our controllers say, and when the heartbeat was sent.
        """
        self._controllers = controllers
        self._asker = asker
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._timeout_seconds = timeout_seconds
        self._header = header
        self._on_conflict = on_conflict
        self._on_answer = on_answer
        self._heard: dict[str, float] = {}
        self._hurry = asyncio.Event()
        self.begun = asyncio.Event()
        """Set by the owner after the first registration; `run` waits for it."""

    @property
    def ages(self) -> dict[str, float]:
        """Seconds since each controller last took a heartbeat, by address."""
        now = self._clock.monotonic()
        return {address: now - heard for address, heard in self._heard.items()}

    def hurry(self) -> None:
        """Beat to all controllers at once; one that is being asked is asked again right after."""
        before, self._hurry = self._hurry, asyncio.Event()
        before.set()

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
        sent_at = self._clock.monotonic()
        try:
            reply = await self._asker.ask(address, command, self._timeout_seconds)
        except (ConnectionClosed, RequestTimeout) as error:
            log.debug("heartbeat not answered", controller=address, reason=str(error))
            return
        if reply.code == ResponseCode.BROKERSET_IDENTITY_CONFLICT:
            self._on_conflict()
        elif reply.code == ResponseCode.SUCCESS:
            self._heard[address] = self._clock.monotonic()
            self._read(address, reply, sent_at)

    def _read(self, address: str, reply: Command, sent_at: float) -> None:
        if not reply.ext:
            return
        try:
            answer = BrokerHeartbeatAnswer.from_ext(reply.ext)
        except Rejected as rejected:
            log.debug("answer to a heartbeat not understood", controller=address, reason=rejected.remark)
            return
        self._on_answer(answer, sent_at)

    async def _keep_beating(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun, hurry = loop.time(), self._hurry
            await self.beat(address)
            pause = max(PAUSE_SECONDS_MIN, begun + self._pause_seconds() - loop.time())
            try:
                async with asyncio.timeout(pause):
                    await hurry.wait()
            except TimeoutError:
                pass
