"""The status of a User, as the CRD declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

READY: Final = "Ready"

WORKFLOW: Final = "workflow"
SECRET_VERSION: Final = "secretVersion"
"""Where a status remembers the version of the Secret that was applied."""

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

    secret_version: str | None = None
    """Of the Secret whose password all groups have, if it is ready."""

    former_until_ms: int | None = None
    """Until when brokers accept the former password, too."""

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
    if verdict.ready and verdict.secret_version is not None:
        found[WORKFLOW] = {SECRET_VERSION: verdict.secret_version}
        if verdict.former_until_ms is not None:
            found["formerPasswordUntil"] = _moment(verdict.former_until_ms)
    else:
        found |= {name: before[name] for name in (WORKFLOW, "formerPasswordUntil") if name in before}
    return found


def applied_version(live: Mapping[str, Any]) -> str | None:
    """The version of the Secret whose password all groups had when the user was ready last."""
    workflow = (live.get("status") or {}).get(WORKFLOW) or {}
    return str(workflow[SECRET_VERSION]) if workflow.get(SECRET_VERSION) else None


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
