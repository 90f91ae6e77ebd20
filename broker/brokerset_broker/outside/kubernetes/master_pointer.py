"""Lets the group's `-master` Service lead to this broker while it is master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog

from brokerset_broker.outside.kubernetes.api import ApiFailed, SliceConflict
from brokerset_broker.outside.kubernetes.master_slice import Change, Overtaken, decide_slice

log = structlog.get_logger(__name__)

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 5.0
"""Waits after failures double from the first to the second."""

LOOK_SECONDS: Final = 15.0
"""How often a master looks whether the slice still leads to it."""


class Slice(Protocol):
    """The slice at the API server."""

    async def read(self) -> Mapping[str, Any]:
        """The slice as it is. Raises `ApiFailed`."""
        ...

    async def patch(self, change: Mapping[str, Any]) -> None:
        """Merge a change into it. Raises `SliceConflict`, `ApiFailed`."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class MasterPointer:
    """Writes the slice when this broker becomes master, and again when somebody else spoils it.

    Failover needs no operator for that: the right on this one object is the broker's own. The epoch in the
    slice keeps a former master from taking it back.
    """

    def __init__(self, found: Slice, *, pod: str, pod_ip: str, leads: Callable[[], int | None]) -> None:
        """`leads` tells the epoch in which this broker is master; None while it is not."""
        self._slice = found
        self._pod = pod
        self._pod_ip = pod_ip
        self._leads = leads
        self._wake = asyncio.Event()
        self._told: int | None = None

    def wake(self) -> None:
        """The role may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Look after the slice for as long as this task runs."""
        pause = PAUSE_SECONDS_MIN
        try:
            while True:
                self._wake.clear()
                try:
                    await self._look()
                    pause, wait = PAUSE_SECONDS_MIN, LOOK_SECONDS
                except SliceConflict:
                    wait = PAUSE_SECONDS_MIN
                except ApiFailed as error:
                    wait = pause
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
                    if wait == PAUSE_SECONDS_MIN:
                        log.warning(
                            "the master's Service cannot be led to this broker; it is tried again",
                            reason=str(error),
                        )
                try:
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            await self._slice.close()

    async def _look(self) -> None:
        epoch = self._leads()
        if epoch is None:
            return
        decision = decide_slice(await self._slice.read(), pod=self._pod, pod_ip=self._pod_ip, epoch=epoch)
        if isinstance(decision, Change):
            if self._leads() != epoch:
                self._wake.set()
                return
            await self._slice.patch(decision.patch)
            log.info("the master's Service leads here", epoch=epoch, address=self._pod_ip)
        elif isinstance(decision, Overtaken) and self._told != decision.epoch:
            self._told = decision.epoch
            log.warning("the master's Service leads to a later master", epoch=epoch, later=decision.epoch)
