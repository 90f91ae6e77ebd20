"""How often masters that hear no replica may be relieved: a network that comes and goes must not move them
all the time. Pure; one table of one controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAUSE_SECONDS_MIN: Final = 10.0
"""Between two reliefs of one group."""

PAUSE_SECONDS_MAX: Final = 320.0
"""Each relief doubles the pause up to this."""

QUIET_SECONDS: Final = 600.0
"""After so long without one a group begins with the shortest pause again."""


@dataclass(frozen=True, slots=True)
class _Relief:
    at: float
    pause: float


class Reliefs:
    """The last relief of each group; times are seconds of one clock."""

    def __init__(self) -> None:
        self._last: dict[str, _Relief] = {}

    def wait_seconds(self, broker_name: str, now: float) -> float:
        """How long the group's master must go on yet; 0 if it may be relieved."""
        last = self._last.get(broker_name)
        return 0.0 if last is None else max(0.0, last.at + last.pause - now)

    def relieved(self, broker_name: str, now: float) -> None:
        """The group's master was relieved."""
        last = self._last.get(broker_name)
        is_first = last is None or now - last.at >= QUIET_SECONDS
        pause = PAUSE_SECONDS_MIN if last is None or is_first else min(2 * last.pause, PAUSE_SECONDS_MAX)
        self._last[broker_name] = _Relief(now, pause)

    def forget(self, broker_name: str) -> None:
        """The group is not known any more."""
        self._last.pop(broker_name, None)
