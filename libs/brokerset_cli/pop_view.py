"""What `brokerset status` shows of consumption by POP: what is out, and whether it comes back in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

LATE_MS: Final = 60_000
"""Messages that come back later than this are a problem, as they are an alert."""

NEAR_LIMIT: Final = 0.8
"""The same for the part of `popCheckPointsMax` that is in use."""


@dataclass(frozen=True, slots=True)
class PopView:
    """What a master says of its pops."""

    known: bool
    """Whether it knows all messages in flight; until then pops and acks wait."""

    check_points: int
    check_points_max: int
    in_flight: int
    late_ms: int
    """How late the oldest message is that should have come back; 0 if none is."""

    waiting: int
    """Pops and notifications that wait for messages."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to show."""
        return self.known and not (self.check_points or self.waiting)


def pop_view(facts: Mapping[str, str]) -> PopView | None:
    """What the measurements of a broker (28) say; None of those that say nothing, such as Java's."""
    try:
        return PopView(
            known=facts["brokersetPopKnown"] == "true",
            check_points=int(facts["brokersetPopCheckPoints"]),
            check_points_max=int(facts["brokersetPopCheckPointsMax"]),
            in_flight=int(facts["brokersetPopInFlight"]),
            late_ms=int(facts["brokersetPopReviveLatencyMs"]),
            waiting=int(facts["brokersetPopWaiting"]),
        )
    except (KeyError, ValueError):
        return None


def pop_problems(name: str, pops: PopView | None) -> list[str]:
    """What is wrong with the pops of a master."""
    if pops is None:
        return []
    found = []
    if not pops.known:
        found.append(
            f"{name} does not serve pops and acks yet: it reads which messages are in flight; its log says "
            "whether it cannot"
        )
    if pops.late_ms > LATE_MS:
        found.append(
            f"popped messages of {name} come back {pops.late_ms / 1000:.0f} s late: it does not keep up, or "
            "its store takes nothing; its log says which"
        )
    if pops.check_points > NEAR_LIMIT * pops.check_points_max:
        found.append(
            f"{name} has {pops.check_points} open check points of {pops.check_points_max} "
            "(popCheckPointsMax): ack popped messages, or pops are refused"
        )
    return found


POP_COLUMNS: Final[Mapping[str, Callable[[PopView], object]]] = {
    "in flight": lambda pops: pops.in_flight,
    "check points": lambda pops: f"{pops.check_points:,} of {pops.check_points_max:,}",
    "late": lambda pops: f"{pops.late_ms / 1000:.1f} s" if pops.late_ms else None,
    "waiting": lambda pops: pops.waiting,
}
"""Columns of the table, and what stands in them."""
