"""Conditions of a status: the time of the last change is kept while one stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from brokerset_operator.plan.objects import items, time_text

Verdict = tuple[Literal["True", "False", "Unknown"], str, str]
"""Whether a condition holds, why in one word, and what to know about it."""

MESSAGE_CHARACTERS_MAX: Final = 4096


def condition(
    before: Mapping[str, Any], kind: str, verdict: Verdict, *, generation: int, now: float
) -> dict[str, Any]:
    """One condition; `before` is the status in which it may have been."""
    holds, reason, message = verdict
    old = find(before, kind)
    since = old.get("lastTransitionTime") if old.get("status") == holds else None
    return {
        "type": kind,
        "status": holds,
        "observedGeneration": generation,
        "reason": reason,
        "message": message[:MESSAGE_CHARACTERS_MAX],
        "lastTransitionTime": since or time_text(now),
    }


def find(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of a status; empty when it is not there."""
    return next((each for each in items(status, "conditions") if each.get("type") == kind), {})


def verdict_of(found: Mapping[str, Any]) -> Verdict | None:
    """What a condition says; None for one that is not there."""
    holds = found.get("status")
    if holds not in ("True", "False", "Unknown"):
        return None
    return holds, str(found.get("reason") or ""), str(found.get("message") or "")
