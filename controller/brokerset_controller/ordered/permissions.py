"""How long the members of groups may go on, as the controller that leads knows it. Not replicated.

A permission is a duration: the member counts it from when it sent the heartbeat, this controller from when it
answered. So the member's ends first, if clocks run at rates that differ by less than the margin. Its length
was agreed on with the member's joining.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

Key = tuple[str, str, str]
"""Subject, group, session."""

_STALE_MAX: Final = 1_024
"""Entries of the heap whose members are gone before it is built again."""


@dataclass(slots=True)
class _Known:
    ends_at: float
    answered_at: float | None = None
    queued: bool = False
    """Whether the heap has an entry of it."""


class Permissions:
    """Those of one leadership. Times are seconds of a monotonic clock that runs while the machine sleeps.

    There is one for each member: whoever begins to lead counts all from then on (`expect`), for others may
    have given some until then, and each that joins from when it joined.
    """

    def __init__(self, margin: float) -> None:
        """`margin`: how many seconds longer this controller waits, for its clock may run faster."""
        self._margin = margin
        self._known: dict[Key, _Known] = {}
        self._heap: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self._known)

    @property
    def queued(self) -> int:
        """Entries of the heap, those included whose members are gone."""
        return len(self._heap)

    def expect(self, key: Key, seconds: float, now: float) -> None:
        """A member may go on for so long from now: it has joined, or somebody else may have let it."""
        ends_at = now + seconds + self._margin
        known = self._known.setdefault(key, _Known(ends_at))
        known.ends_at = max(known.ends_at, ends_at)
        if known.queued:
            return
        known.queued = True
        heappush(self._heap, (known.ends_at, key))
        if len(self._heap) > 2 * len(self._known) + _STALE_MAX:
            self._heap = [(each.ends_at, name) for name, each in self._known.items() if each.queued]
            heapify(self._heap)

    def give(self, key: Key, seconds: float, now: float) -> None:
        """A heartbeat is answered, after a majority has confirmed that this controller leads: the member may
        go on for so many seconds from when it sent it."""
        self.expect(key, seconds, now)
        self._known[key].answered_at = now

    def forget(self, key: Key) -> None:
        """It is no member any more."""
        self._known.pop(key, None)

    def answered_at(self, key: Key) -> float | None:
        """When a heartbeat of it was answered last; None if this leadership has answered none."""
        known = self._known.get(key)
        return None if known is None else known.answered_at

    def has_ended(self, key: Key, now: float) -> bool:
        """Whether the member surely does nothing more, so that another one may take what it owns."""
        known = self._known.get(key)
        return known is not None and now >= known.ends_at

    def ended(self, now: float) -> list[Key]:
        """The members whose permission has surely ended, each once, unless it is extended again."""
        found: dict[Key, None] = {}
        while self._heap and self._heap[0][0] <= now:
            _, key = heappop(self._heap)
            known = self._known.get(key)
            if known is None:
                continue
            if known.ends_at > now:
                heappush(self._heap, (known.ends_at, key))
            else:
                known.queued = False
                found[key] = None
        return list(found)
