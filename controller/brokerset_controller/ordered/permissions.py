"""How long the members of groups may go on, as the controller that leads knows it. Not replicated.

A permission is a duration: the member counts it from when it sent the heartbeat, this controller from when it
answered. So the member's ends first, if clocks run at rates that differ by less than the margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PERMISSION_SECONDS: Final = 30.0
"""How long a member may consume after a heartbeat that was answered."""

STOP_MARGIN_SECONDS: Final = 5.0
"""So long before its permission ends a member begins nothing new: what runs shall end within it."""

WAIT_MARGIN_SECONDS: Final = 5.0
"""How much longer a controller waits: its clock may run faster than the member's."""

Key = tuple[str, str, str]
"""Subject, group, session."""


@dataclass(slots=True)
class _Permission:
    given_at: float
    seconds: float


class Permissions:
    """Those of one leadership. Times are seconds of a monotonic clock that runs while the machine sleeps."""

    def __init__(
        self, begun_at: float, *, seconds: float = PERMISSION_SECONDS, margin: float = WAIT_MARGIN_SECONDS
    ) -> None:
        """`begun_at` is when this controller began to lead: others may have given some until then."""
        self._begun_at = begun_at
        self._seconds = seconds
        self._margin = margin
        self._given: dict[Key, _Permission] = {}

    def give(self, key: Key, now: float) -> float:
        """A heartbeat is answered, after a majority has confirmed that this controller leads: how long the
        member may go on from when it sent it, in seconds."""
        self._given[key] = _Permission(now, self._seconds)
        return self._seconds

    def forget(self, key: Key) -> None:
        """It has left."""
        self._given.pop(key, None)

    def ends_at(self, key: Key) -> float:
        """From when on the member surely does nothing more."""
        given = self._given.get(key)
        if given is None:
            return self._begun_at + self._seconds + self._margin
        return given.given_at + given.seconds + self._margin

    def has_ended(self, key: Key, now: float) -> bool:
        """Whether another member may take over what it owns."""
        return now >= self.ends_at(key)
