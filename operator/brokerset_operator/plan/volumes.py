"""Rule 3: volumes grow, and never shrink; a StatefulSet that is fixed is made anew around its pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeleteObject, ObjectRef, ResizeClaim
from brokerset_operator.model.observed import Object
from brokerset_operator.plan import reasons
from brokerset_operator.plan.draft import BUSY_SECONDS, WAIT_SECONDS, Draft
from brokerset_operator.plan.objects import (
    claim_templates,
    conditions_true,
    items,
    part,
    requested,
    seconds,
    size_of,
    text,
)

FIXED_FIELDS: Final = ("serviceName", "podManagementPolicy", "selector")
"""Fields of a StatefulSet, besides its claim templates, that the API server lets nobody change."""

FAILED_CONDITION: Final = "ActionFailed"
"""Condition in which `apply` tells what failed in the round before."""

ASK_AGAIN_SECONDS: Final = 600.0
"""How long a refusal to let a claim grow is believed."""


def keep_volumes(draft: Draft, stateful_sets: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Let claims grow; return the StatefulSets that must not be sent in this round, as they are made anew."""
    held = set()
    for name, wanted in stateful_sets.items():
        for claim_name, claim in _claims_of(draft, name, wanted).items():
            template = claim_templates(wanted).get(names.VOLUME)
            if template is not None:
                _keep_claim(draft, claim_name, claim, template[0])
        found = draft.facts.observed.stateful_sets.get(name)
        if found is None:
            continue
        meta = part(found, "metadata")
        if meta.get("deletionTimestamp") is not None:
            held.add(name)
            draft.waits(f"StatefulSet {name} is being deleted; it is made anew then", BUSY_SECONDS)
        elif _is_fixed_otherwise(found, wanted):
            held.add(name)
            uid = meta.get("uid")
            ref = ObjectRef("apps/v1", "StatefulSet", name, str(uid) if uid else None)
            draft.act(DeleteObject(ref, "its claim template cannot be changed; its pods stay", orphan=True))
            draft.goes_on(reasons.CHANGING_VOLUMES, f"StatefulSet {name} is made anew around its pods")
    return frozenset(held)


def with_fixed_fields_of(manifest: Mapping[str, Any], found: Object) -> dict[str, Any]:
    """Return a StatefulSet with all that cannot be changed as it is there, so that it can be sent.

    For a group that is to go: nobody waits for what is made from its claim templates, and while it is made
    anew around its pods it could go without them.
    """
    old, new = part(found, "spec"), part(manifest, "spec")
    kept = {name: old[name] for name in FIXED_FIELDS if name in old and name in new}
    templates = [
        {key: value for key, value in each.items() if key != "status"}
        for each in items(old, "volumeClaimTemplates")
    ]
    return {**manifest, "spec": {**new, **kept, "volumeClaimTemplates": templates}}


def _was_refused(draft: Draft) -> bool:
    """Whether the API server has just refused to let a claim grow: that ends a round, so it is rare."""
    told = items(draft.facts.observed.status, "conditions")
    failed = [c for c in told if c.get("type") == FAILED_CONDITION and c.get("status") == "True"]
    if any(str(c.get("message", "")).startswith(ResizeClaim.__name__) for c in failed):
        return True
    for each in told:
        if each.get("type") == reasons.STORAGE_NOT_EXPANDABLE and each.get("reason") == reasons.REFUSED:
            since = seconds(each.get("lastTransitionTime"))
            return since is not None and draft.facts.now - since < ASK_AGAIN_SECONDS
    return False


def _claims_of(draft: Draft, name: str, wanted: Mapping[str, Any]) -> dict[str, Object]:
    claims = draft.facts.observed.claims
    replicas = int(part(wanted, "spec").get("replicas", 0))
    found = (names.claim_of(f"{name}-{ordinal}") for ordinal in range(replicas))
    return {each: claims[each] for each in found if each in claims}


def _is_fixed_otherwise(found: Object, wanted: Object) -> bool:
    if claim_templates_differ(found, wanted):
        return True
    old, new = part(found, "spec"), part(wanted, "spec")
    return any(field in new and old.get(field) != new[field] for field in FIXED_FIELDS)


def claim_templates_differ(found: Object, wanted: Object) -> bool:
    """Return whether claims that are made from now on would be other ones."""
    old, new = claim_templates(found), claim_templates(wanted)
    if old.keys() != new.keys():
        return True
    return any(
        size_of(old[name][0]) != size_of(size) or old[name][1] != class_name
        for name, (size, class_name) in new.items()
    )


def _keep_claim(draft: Draft, name: str, claim: Object, size: str) -> None:
    if part(claim, "metadata").get("deletionTimestamp") is not None:
        return
    asked, wanted = size_of(requested(claim)), size_of(size)
    capacity = part(part(claim, "status"), "capacity").get("storage")
    if asked > wanted:
        draft.notes.append(f"{name} keeps {requested(claim)}: volumes never shrink")
        return
    if asked == wanted:
        if capacity is not None and size_of(str(capacity)) < wanted:
            restart = "FileSystemResizePending" in conditions_true(claim)
            how = "its pod must be restarted for that" if restart else "the storage class works on it"
            draft.goes_on(reasons.CHANGING_VOLUMES, f"{name} grows to {size}: {how}", WAIT_SECONDS)
        return
    class_name = text(part(claim, "spec").get("storageClassName"))
    storage_class = draft.facts.observed.storage_classes.get(class_name or "")
    if storage_class is None:
        # It may not be read, or it is gone: the API server knows whether the claim can grow.
        if _was_refused(draft):
            draft.raise_condition(
                reasons.STORAGE_NOT_EXPANDABLE,
                reasons.REFUSED,
                f"{name} has {requested(claim)}, and may not grow to {size}: see whether storage class"
                f" {class_name} allows expansion; it is asked again every {ASK_AGAIN_SECONDS:g} s",
            )
            draft.look(WAIT_SECONDS)
            return
        draft.last.append(ResizeClaim(name, size))
        draft.waits(
            f"{name} is asked to grow; its storage class {class_name} could not be read", WAIT_SECONDS
        )
        return
    if storage_class.get("allowVolumeExpansion") is not True:
        draft.raise_condition(
            reasons.STORAGE_NOT_EXPANDABLE,
            reasons.CLASS_FORBIDS,
            f"{name} has {requested(claim)}, and storage class {class_name} does not let it grow to {size}:"
            f" set allowVolumeExpansion: true on the class if its driver can do that, or ask for"
            f" {requested(claim)} again",
        )
        return
    draft.act(ResizeClaim(name, size))
    draft.goes_on(reasons.CHANGING_VOLUMES, f"{name} grows from {requested(claim)} to {size}")
