"""How long a session may consume: a duration on the consumer's own monotonic clock.

It counts from when the heartbeat was sent, so the controllers' clock and the time on the way do not matter:
whoever granted it begins to count later. What is left is the error of the clocks' rates, and the margin is
for that: with 30 s and a margin of 5 s, clocks may differ by 10 % (3 s). The clock has to run while the
machine sleeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Permission:
    """What the session has been granted so far; times are seconds of the consumer's monotonic clock."""

    ends_at: float = -math.inf
    """From then on nothing that was done counts."""

    margin: float = 0.0
    """Seconds before the end in which nothing new is begun."""

    def extended(self, sent_at: float, permission_ms: int, margin_ms: int) -> Permission:
        """After the answer to a heartbeat that was sent at `sent_at`, whenever the answer arrives.

        An answer to an older heartbeat takes nothing away: what was granted stays granted.
        """
        ends_at = sent_at + permission_ms / 1000
        return Permission(ends_at, margin_ms / 1000) if ends_at > self.ends_at else self

    def may_begin(self, now: float) -> bool:
        """Whether a handler, a pull or a claim may start."""
        return now < self.ends_at - self.margin

    def may_go_on(self, now: float) -> bool:
        """Whether what runs may still count, and be acknowledged."""
        return now < self.ends_at

    def remaining(self, now: float) -> float:
        """Seconds until the end, 0.0 if it is over."""
        return max(0.0, self.ends_at - now)


NO_PERMISSION: Final = Permission()
"""Before the first answer."""
