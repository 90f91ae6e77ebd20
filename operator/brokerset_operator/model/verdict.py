"""What a reconcile of a Topic, Subject or User found, and the part of their status that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

READY: Final = "Ready"
"""The condition that each of these objects has."""

MESSAGE_LENGTH_MAX: Final = 4096
"""Longest text of a condition."""

WAIT_SECONDS: Final = 5.0
"""Pause before the next try at what others must mend: no leader, silent brokers, a Secret that is missing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The condition Ready, and when to reconcile again."""

    ready: bool
    reason: str
    message: str
    again_seconds: float | None = None
    """None: not before the next regular reconcile."""

    refusal: str | None = None
    """What controllers said when they refused."""


def condition(
    live: Mapping[str, Any], kind: str, true: bool, reason: str, message: str, moment: str
) -> dict[str, Any]:
    """A condition as the API has it; the time of its last change stays while `true` does."""
    before = (live.get("status") or {}).get("conditions") or ()
    old: Mapping[str, Any] = next((one for one in before if one.get("type") == kind), {})
    status = "True" if true else "False"
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "observedGeneration": generation_of(live),
        "reason": reason,
        "message": message[:MESSAGE_LENGTH_MAX],
        "lastTransitionTime": since or moment,
    }


def status_with(live: Mapping[str, Any], verdict: Verdict, moment: str) -> dict[str, Any]:
    """What the status of each of these kinds has; `moment` is now, as the API writes it."""
    return {
        "observedGeneration": generation_of(live),
        "phase": "Ready" if verdict.ready else verdict.reason,
        "conditions": [condition(live, READY, verdict.ready, verdict.reason, verdict.message, moment)],
    }


def generation_of(live: Mapping[str, Any]) -> int:
    """The generation of an object's manifest."""
    return int(live["metadata"].get("generation") or 1)
