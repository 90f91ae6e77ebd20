"""What `/healthz` and `/readyz` answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

TICK_SECONDS: Final = 1.0
STALL_SECONDS: Final = 30.0
"""A loop that stood still for so long is reported as stuck, even when it answers again."""

LEASE_SECONDS_MAX: Final = 30.0
"""Who stands by and could not read the Lease for so long is not ready to take over."""

OLDEST_SECONDS_MAX: Final = 900.0
"""A change that no reconcile could take in for so long makes the operator unready: somebody should look."""


class Watched(Protocol):
    """A watch that can tell whether it is to be relied on."""

    def lack(self, now: float) -> str | None:
        """Why not, or None."""


class Health:
    """Facts about the process, gathered by who knows them."""

    def __init__(
        self,
        *,
        leads: Callable[[], bool],
        lease_seconds: Callable[[], float | None],
        oldest_seconds: Callable[[], float],
    ) -> None:
        """`lease_seconds`: time since the Lease was read; `oldest_seconds`: that of the oldest change."""
        self._leads = leads
        self._lease_seconds = lease_seconds
        self._oldest_seconds = oldest_seconds
        self._ticked_at: float | None = None
        self._stalled: float | None = None
        self.watches: Sequence[Watched] = ()
        """Those that the leader relies on."""

        self.starting = False
        """Whether this process leads, and has not started its watches yet."""

        self.ending = False
        """Whether it was told to stop."""

    async def run(self) -> None:
        """Notice when the loop stands still; for as long as the process runs."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            if self._ticked_at is not None and now - self._ticked_at > STALL_SECONDS:
                self._stalled = now - self._ticked_at
            elif self._stalled is not None:
                self._stalled = None  # told once; then it has recovered
            self._ticked_at = now
            await asyncio.sleep(TICK_SECONDS)

    def alive_problems(self) -> list[str]:
        """Why the process should be restarted."""
        now = asyncio.get_running_loop().time()
        if self._ticked_at is not None and now - self._ticked_at > STALL_SECONDS:
            return [f"the event loop's own timer is {now - self._ticked_at:.0f} s late"]
        return []

    def ready_problems(self) -> list[str]:
        """Why the process neither leads as it should nor could take over at once."""
        now = asyncio.get_running_loop().time()
        problems = ["is stopping"] if self.ending else []
        if self._stalled is not None:
            problems.append(f"the event loop stood still for {self._stalled:.0f} s")
        if not self._leads():
            age = self._lease_seconds()
            if age is None:
                problems.append("the lease was not read yet")
            elif age > LEASE_SECONDS_MAX:
                problems.append(f"the lease was read last {age:.0f} s ago")
            return problems
        if self.starting:
            problems.append("leads, and is starting its watches")
        problems += (lack for watch in self.watches if (lack := watch.lack(now)) is not None)
        oldest = self._oldest_seconds()
        if oldest > OLDEST_SECONDS_MAX:
            problems.append(f"a change waits since {oldest:.0f} s; the log names the object and the reason")
        return problems
