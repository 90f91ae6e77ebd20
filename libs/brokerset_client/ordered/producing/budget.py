"""What a producer may have on its way, in messages and bytes; who finds no room is admitted in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Budget:
    """Counts what was accepted and is not answered yet.

    Unlike `SendWindow` it accepts a message in the moment in which room for it appears, and not when its
    sender's task gets its turn: so no later call passes an earlier one.
    """

    __slots__ = ("_bytes_max", "_messages_max", "_waiting", "bytes", "messages")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, Callable[[], None], asyncio.Future[None]]] = deque()
        self.messages = 0
        self.bytes = 0

    async def enter(self, size: int, accept: Callable[[], None], timeout: float | None) -> None:
        """Call `accept` as soon as `size` bytes have room.

        Raises `TimeoutError` after `timeout` seconds, and what `close` was given: then it was not called.
        """
        if not self._waiting and self._fits(size):
            self._admit(size, accept)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, accept, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except TimeoutError:
            if turn.done() and not turn.cancelled():
                return  # accepted in the moment in which the time was over
            raise
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._admit_waiting()

    def leave(self, size: int) -> None:
        """A message was answered."""
        self.messages -= 1
        self.bytes -= size
        self._admit_waiting()

    def close(self, error: Callable[[], Exception]) -> None:
        """Nobody is admitted any more."""
        while self._waiting:
            turn = self._waiting.popleft()[2]
            if not turn.done():
                turn.set_exception(error())

    def _fits(self, size: int) -> bool:
        # One message always fits: a limit below its size must not block permanently.
        return self.messages < self._messages_max and (
            self.messages == 0 or self.bytes + size <= self._bytes_max
        )

    def _admit(self, size: int, accept: Callable[[], None]) -> None:
        self.messages += 1
        self.bytes += size
        accept()

    def _admit_waiting(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, accept, turn = self._waiting.popleft()
            if not turn.done():
                self._admit(size, accept)
                turn.set_result(None)
