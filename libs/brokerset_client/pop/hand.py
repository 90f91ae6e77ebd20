"""How many popped messages a consumer has: it asks for more only while it has room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Hand:
    """Counts what waits, what is worked on, and what is being settled."""

    def __init__(self, count_max: int) -> None:
        self._max = count_max
        self._changed = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.count = 0
        self.suspended = False
        """Nothing more is asked for, however much room there is."""

    def take(self, count: int) -> None:
        """So many more are here."""
        self.count += count
        if self.count:
            self._empty.clear()

    def give(self, count: int = 1) -> None:
        """So many are settled, or given up."""
        self.count -= count
        assert self.count >= 0
        if not self.count:
            self._empty.set()
        if self.count < self._max:
            self._changed.set()

    def changed(self) -> None:
        """Let those who wait for room see whether they still want it."""
        self._changed.set()

    async def wait_for_room(self, given_up: Callable[[], bool]) -> None:
        """Until more may be asked for, or `given_up`."""
        while (self.suspended or self.count >= self._max) and not given_up():
            self._changed.clear()
            await self._changed.wait()

    async def wait_empty(self) -> None:
        """Until nothing is here."""
        await self._empty.wait()
