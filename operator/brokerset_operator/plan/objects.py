"""The few fields of the API's objects that the plan reads, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from brokerset_operator.model.observed import Object
from brokerset_operator.resources.quantities import amount_of

FAILED_CONDITION: Final = "ActionFailed"
"""Condition in which `apply` tells what failed in the reconcile before."""


def claim_templates(stateful_set: Object) -> dict[str, tuple[str, str | None]]:
    """Return size and storage class of each claim template, by its name."""
    return {
        str(part(each, "metadata").get("name")): (
            requested(each),
            text(part(each, "spec").get("storageClassName")),
        )
        for each in items(part(stateful_set, "spec"), "volumeClaimTemplates")
    }


def requested(claim: Object) -> str:
    """Return the size that a claim asks for."""
    return str(part(part(part(claim, "spec"), "resources"), "requests").get("storage", "0"))


def size_of(quantity: str) -> int:
    """Return a quantity in bytes; 0 for what is none."""
    try:
        return int(amount_of(quantity))
    except ValueError:
        return 0


def conditions_true(obj: Object) -> frozenset[str]:
    """Return the types of an object's conditions that are true."""
    found = items(part(obj, "status"), "conditions")
    return frozenset(str(c.get("type")) for c in found if c.get("status") == "True")


def owned_by(obj: Object, uid: str) -> bool:
    """Return whether an object belongs to that owner."""
    return any(owner.get("uid") == uid for owner in items(part(obj, "metadata"), "ownerReferences"))


def kept_by_stateful_set(obj: Object) -> bool:
    """Return whether an object goes when a StatefulSet is deleted."""
    return any(
        owner.get("kind") == "StatefulSet" for owner in items(part(obj, "metadata"), "ownerReferences")
    )


def part(obj: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a field that is an object itself; empty when it is not there."""
    found = obj.get(key)
    return found if isinstance(found, dict | Mapping) else {}


def items(obj: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return a field that is a list of objects; empty when it is not there."""
    found = obj.get(key)
    return (
        [item for item in found if isinstance(item, dict | Mapping)]
        if isinstance(found, list | tuple)
        else []
    )


def text(value: object) -> str | None:
    """Return a text that is not empty."""
    return value if isinstance(value, str) and value else None


def seconds(value: object) -> float | None:
    """Return a time of the API in seconds since 1970."""
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None


def time_text(now: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def failed_message(status: Mapping[str, Any]) -> str | None:
    """Return what failed in the reconcile before, as `apply` has written it; None when nothing did."""
    failed = (c for c in items(status, "conditions") if c.get("type") == FAILED_CONDITION)
    return next((str(c.get("message", "")) for c in failed if c.get("status") == "True"), None)
