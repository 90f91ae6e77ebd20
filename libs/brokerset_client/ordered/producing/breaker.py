"""Circuit breakers: which broker groups BestTried messages avoid for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerset_client.ordered.producing.settings import ProducerSettings

GROUPS_MAX: Final = 1_000
"""Broker groups with failures that are remembered; of more of them the oldest is taken for a usual one."""


@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    """In a row, while closed."""
    open_until: float | None = None
    """None: closed. In the past: half open."""
    successes: int = 0
    """In a row, while half open."""


class Breakers:
    """One for each broker group: closed, then open after failures in a row, then half open, then closed."""

    __slots__ = ("_groups", "_settings")

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._groups: dict[str, _Breaker] = {}

    def allows(self, group: str, now: float) -> bool:
        """Whether messages that may go elsewhere may go there."""
        breaker = self._groups.get(group)
        return breaker is None or breaker.open_until is None or breaker.open_until <= now

    def succeeded(self, group: str) -> None:
        """The group's master has answered."""
        breaker = self._groups.get(group)
        if breaker is None:
            return
        breaker.failures = 0
        if breaker.open_until is None:
            del self._groups[group]
            return
        breaker.successes += 1
        if breaker.successes >= self._settings.breaker_successes:
            del self._groups[group]

    def failed(self, group: str, now: float) -> None:
        """An attempt got no answer, or one of a broker that does not serve."""
        if group not in self._groups and len(self._groups) >= GROUPS_MAX:
            del self._groups[next(iter(self._groups))]
        breaker = self._groups.setdefault(group, _Breaker())
        breaker.failures += 1
        if breaker.open_until is not None or breaker.failures >= self._settings.breaker_failures:
            breaker.open_until = now + self._settings.breaker_open_ms / 1000
            breaker.successes = 0
