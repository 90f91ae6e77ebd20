"""The one list of what runs only where a broker leads: started, drained and stopped with its role."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

log = structlog.get_logger(__name__)

DRAIN_SECONDS_MAX: Final = 0.5
"""How long one service may take to finish what it has begun; a change of role waits for it."""


class RoleService(Protocol):
    """Work in the background of a master, or of a broker without controllers."""

    @property
    def name(self) -> str:
        """How it is called in logs."""

    def start(self) -> None:
        """Work from now on. Called on the loop, when everything before is applied and the log is open."""

    async def drain(self) -> None:
        """Finish what is half done and begin nothing new; appends are still taken by the log."""

    def stop(self) -> None:
        """Append nothing any more, and leave no timer or task behind; without `drain`, too."""


class RoleServices:
    """All services of a broker, in the order in which they start; they stop the other way round."""

    def __init__(self, services: Sequence[RoleService] = ()) -> None:
        self._services = tuple(services)
        self.running = False
        """Whether they run."""

        self._ended = False

    def start(self) -> None:
        """Start each, unless they run, or the broker ends."""
        if self.running or self._ended:
            return
        self.running = True
        for service in self._services:
            service.start()

    async def stop(self) -> None:
        """Let each finish what it has begun, then stop it."""
        if not self.running:
            return
        self.running = False
        for service in reversed(self._services):
            try:
                async with asyncio.timeout(DRAIN_SECONDS_MAX):
                    await service.drain()
            except TimeoutError:
                log.warning("a service is stopped in the middle of its work", service=service.name)
            except Exception:  # the edge of a service: the others are stopped all the same
                log.error(
                    "a service could not finish its work, and is stopped", service=service.name, exc_info=True
                )
            finally:
                service.stop()

    def stop_now(self) -> None:
        """Stop each without waiting: the broker ends, and starts none again."""
        self.running, self._ended = False, True
        for service in reversed(self._services):
            service.stop()
