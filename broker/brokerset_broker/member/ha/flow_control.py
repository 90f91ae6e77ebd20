"""How fast a slave may be sent to: a bucket that fills with time (Java: `FlowMonitor`)."""

from __future__ import annotations

from typing import Final

BURST_SECONDS: Final = 0.1
"""What may be sent at once after a pause, and how much of a packet goes in one piece."""

PIECE_BYTES_MIN: Final = 1_024
"""Smallest piece, so that a very slow rate is not all overhead."""


class TokenBucket:
    """Says how long to wait before the next piece, so that `rate` bytes a second are kept on average.

    A piece may be taken when the bucket is not in debt, and may then bring it into debt: so no piece is too
    big ever to be sent. Java counts in windows of a second instead, and sends a second's bytes at once.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._tokens = rate * BURST_SECONDS
        self._filled_at = now

    @property
    def piece_bytes(self) -> int:
        """Most bytes that should be taken at a time, so that the stream is even."""
        return max(PIECE_BYTES_MIN, int(self._rate * BURST_SECONDS))

    def change_rate(self, rate: int, now: float) -> None:
        """Count with another rate (bytes a second, positive) from `now` on."""
        if rate != self._rate:
            self._fill(now)
            self._rate = rate

    def wait_seconds(self, now: float) -> float:
        """How long to wait until something may be taken; 0 when it may be now.

        Less than one byte is no debt: so short a wait could be lost in the clock's precision, permanently.
        """
        self._fill(now)
        return -self._tokens / self._rate if self._tokens <= -1 else 0.0

    def take(self, size: int) -> None:
        """Count `size` bytes as sent."""
        self._tokens -= size

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._filled_at) * self._rate
        self._tokens = min(self._rate * BURST_SECONDS, self._tokens + gained)
        self._filled_at = now
