"""How much a producer may have on its way: bounds memory, and lets senders wait for room in the order they
came."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SendLimits:
    """Bounds of what was handed to a producer and is not acknowledged; at one, the next sender waits."""

    messages_max: int = 1024
    bytes_max: int = 64 * 1024 * 1024


class SendWindow:
    """Counts messages and bytes on their way."""

    __slots__ = ("_limits", "_waiting", "bytes", "messages")

    def __init__(self, limits: SendLimits) -> None:
        self._limits = limits
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.messages = 0
        self.bytes = 0

    def try_enter(self, size: int) -> bool:
        """Take room for a message of `size` bytes, if there is some and nobody waits for it."""
        if self._waiting or not self._fits(size):
            return False
        self.messages += 1
        self.bytes += size
        return True

    async def enter(self, size: int) -> None:
        """Wait for room, first come, first served."""
        if self.try_enter(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            else:
                self._waiting.remove(entry)
                self._admit()
            raise

    def leave(self, size: int) -> None:
        """Give back what `try_enter` or `enter` took."""
        self.messages -= 1
        self.bytes -= size
        if self._waiting:
            self._admit()

    def _fits(self, size: int) -> bool:
        # One message always fits: a limit below its size must not block permanently.
        return self.messages < self._limits.messages_max and (
            self.messages == 0 or self.bytes + size <= self._limits.bytes_max
        )

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if turn.done():
                continue
            self.messages += 1
            self.bytes += size
            turn.set_result(None)
