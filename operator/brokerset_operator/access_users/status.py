"""The status of a User, as the CRD declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

READY: Final = "Ready"

MESSAGE_LENGTH_MAX: Final = 4096
NAME_LENGTH_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reconcile found: the condition Ready, and what goes with it."""

    ready: bool
    reason: str
    message: str
    groups: tuple[str, ...] = ()
    """Broker groups that have the user as wanted."""

    secret: str | None = None
    """The Secret with the password."""

    again_seconds: float | None = None
    """None: not before the next regular reconcile."""


def status_of(live: Mapping[str, Any], name: str, verdict: Verdict, moment: str) -> dict[str, Any]:
    """What to write; `moment` is now, as the API writes it."""
    before = live.get("status") or {}
    status = "True" if verdict.ready else "False"
    conditions = before.get("conditions") or ()
    old: Mapping[str, Any] = next((one for one in conditions if one.get("type") == READY), {})
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    generation = int(live["metadata"].get("generation") or 1)
    found: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": "Ready" if verdict.ready else verdict.reason,
        "username": name[:NAME_LENGTH_MAX],
        "conditions": [
            {
                "type": READY,
                "status": status,
                "observedGeneration": generation,
                "reason": verdict.reason,
                "message": verdict.message[:MESSAGE_LENGTH_MAX],
                "lastTransitionTime": since or moment,
            }
        ],
    }
    if verdict.secret is not None:
        found["secretName"] = verdict.secret
    if verdict.groups:
        found["groups"] = list(verdict.groups)
    return found
