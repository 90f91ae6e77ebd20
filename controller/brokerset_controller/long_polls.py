"""Requests that wait for a change, a bounded number of them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Final

from brokerset_protocol import replies
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

WAITING_MAX: Final = 50_000
"""Requests that wait at once; the next one is refused as SYSTEM_BUSY, and may come again."""


class LongPolls:
    """Requests that wait, by what they wait for."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._waiting: dict[Hashable, dict[asyncio.Future[None], None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    async def wait(self, key: Hashable, seconds: float) -> None:
        """Return when the key is woken, or after so many seconds. Raises `Rejected` when too many wait."""
        if self._count >= self._waiting_max:
            raise Rejected(ResponseCode.SYSTEM_BUSY, replies.OVERLOADED)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, {})[future] = None
        self._count += 1
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            self._count -= 1
            waiting = self._waiting.get(key, {})
            waiting.pop(future, None)
            if not waiting:
                self._waiting.pop(key, None)

    def wake(self, key: Hashable) -> None:
        """Let those go that wait for it."""
        for future in self._waiting.get(key, {}):
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Let all go: this controller does not lead any more."""
        for key in list(self._waiting):
            self.wake(key)
