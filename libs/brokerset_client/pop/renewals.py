"""Renews the invisible time of messages that are worked on, so that nobody else gets them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from brokerset_client.errors import ClientError
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.settling import Settling, Spawn

log = structlog.get_logger(__name__)

RENEW_AT: Final = 0.5
"""Part of what is left of an invisible time after which it is renewed; the rest is for failing attempts."""

RENEW_SECONDS_MIN: Final = 0.05
"""Least time between two renewals of one message."""


class Renewals:
    """Keeps messages invisible until told otherwise."""

    def __init__(
        self,
        settling: Settling,
        spawn: Spawn,
        invisible_seconds: float,
        lost: Callable[[PoppedMessage, ClientError], None],
    ) -> None:
        """`lost` is called once for a message whose time could not be renewed: others get it, too."""
        self._settling = settling
        self._spawn = spawn
        self._seconds = invisible_seconds
        self._lost = lost
        self._timers: dict[PoppedMessage, asyncio.TimerHandle | None] = {}
        """What is kept invisible; None while a renewal is under way."""
        self.renewed = 0
        """Invisible times that were renewed."""

    def begin(self, messages: Iterable[PoppedMessage]) -> None:
        """Keep these invisible from now on."""
        for message in messages:
            if message not in self._timers:
                self._schedule(message)

    def end(self, messages: Iterable[PoppedMessage]) -> None:
        """Let the time of these run; a renewal that is under way is not taken back."""
        for message in messages:
            timer = self._timers.pop(message, None)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Renew nothing any more."""
        self.end(list(self._timers))

    def _schedule(self, message: PoppedMessage) -> None:
        loop = asyncio.get_running_loop()
        wait = max(RENEW_SECONDS_MIN, (message.expires_at - loop.time()) * RENEW_AT)
        self._timers[message] = loop.call_later(wait, self._begin_renewal, message)

    def _begin_renewal(self, message: PoppedMessage) -> None:
        self._timers[message] = None
        self._spawn(self._renew(message), f"renewal of {message.message_id}")

    async def _renew(self, message: PoppedMessage) -> None:
        if message not in self._timers:
            return  # it was settled in this turn
        try:
            await self._settling.change(message, self._seconds)
        except ClientError as error:
            if message in self._timers:  # else it was settled meanwhile
                self.end([message])
                log.warning("popped message is lost to others", message=str(message), reason=str(error))
                self._lost(message, error)
            return
        self.renewed += 1
        if message in self._timers and self._timers[message] is None:  # else one was begun again meanwhile
            self._schedule(message)
