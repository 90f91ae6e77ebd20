"""How fast bytes leave: one budget for all who read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

BURST_SECONDS: Final = 0.1
"""So much of the budget may be saved up by those who were slower."""


class Pace:
    """Bytes in a second, for threads that each ask before they go on."""

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free_at = clock()
        self._lock = threading.Lock()

    def take(self, count: int) -> float:
        """Book so many bytes; returns the seconds to wait before they are sent."""
        with self._lock:
            now = self._clock()
            begin = max(self._free_at, now - BURST_SECONDS)
            self._free_at = begin + count / self._rate
            return max(0.0, begin - now)
