"""Keeps a master's lease: takes what controllers grant, says when it begins or ends, and hurries for it.

Whoever decides by the lease calls `may_serve` each time: a process that was stopped wakes up with all its
timers late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from brokerset_broker.ha.lease import Lease
from brokerset_runtime.clock import Clock

URGENT_SECONDS: Final = 0.1
"""Pause between heartbeats while half of the lease has passed without a renewal."""

MISSING_SECONDS: Final = 1.0
"""A lease that is missing for longer is shown as a problem; a new master gets its first one sooner."""


class LeaseKeeper:
    """The lease of one broker."""

    def __init__(
        self, lease: Lease, clock: Clock, *, master_epoch: Callable[[], int | None], interval_seconds: float
    ) -> None:
        """`master_epoch` is None while the broker is not master."""
        self.lease = lease
        self.on_change: Callable[[], None] = _nothing
        """Called when `may_serve` has changed, at the latest when the loop runs again after the end."""

        self._clock = clock
        self._master_epoch = master_epoch
        self._interval_seconds = interval_seconds
        self._half_at = 0.0
        self._counts_from = 0.0
        self._served = False
        self._missing_since: float | None = None
        self._changed = asyncio.Event()

    def may_serve(self) -> bool:
        """Whether the broker is master, and certain that nobody else is."""
        epoch = self._master_epoch()
        if epoch is None:
            return False
        lease = self.lease
        if not lease.required:
            return True
        return self._half_at >= self._counts_from and lease.valid(self._clock.monotonic(), epoch)

    @property
    def missing(self) -> bool:
        """Whether a master is without lease for longer than it takes to get one."""
        since = self._missing_since
        if since is None or self.may_serve():
            return False
        return self._clock.monotonic() - since >= MISSING_SECONDS

    def granted(self, sent_at: float, lease_ms: int, epoch: int) -> None:
        """A controller that leads granted a lease in its answer to a heartbeat that was sent then."""
        if sent_at < self._counts_from or not self.lease.granted(sent_at, lease_ms, epoch):
            return
        self._half_at = sent_at + lease_ms / 2_000
        self.look()

    def give_up(self) -> None:
        """Do not serve until a lease comes that a later heartbeat asked for."""
        self._counts_from = self._clock.monotonic()
        self._half_at = self._counts_from - 1.0
        self.look()

    def pause_seconds(self) -> float:
        """Until the next heartbeat: a master beats more often when its lease is not renewed in time."""
        epoch = self._master_epoch()
        if epoch is None or not self.lease.required:
            return self._interval_seconds
        now = self._clock.monotonic()
        if not self.may_serve() or self.lease.urgent(now):
            return min(URGENT_SECONDS, self._interval_seconds)
        return min(self._interval_seconds, self._half_at - now)

    def look(self) -> None:
        """Say it if `may_serve` has changed; to be called when the role has."""
        serves = self.may_serve()
        if serves or self._master_epoch() is None:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = self._clock.monotonic()
        self._changed.set()
        if serves is not self._served:
            self._served = serves
            self.on_change()

    async def run(self) -> None:
        """Notice the end of leases, for as long as this task runs."""
        while True:
            self._changed.clear()
            seconds = self.lease.ends_at - self._clock.monotonic() if self._served else None
            if self._served and not self.lease.required:
                seconds = None
            try:
                async with asyncio.timeout(None if seconds is None else max(seconds, 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                self.look()
                await asyncio.sleep(0)


def _nothing() -> None:
    """Nobody wants to know."""
