"""Rule 3: volumes grow, and never shrink; a StatefulSet that is fixed is made again around its pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeleteObject, ObjectRef, ResizeClaim
from brokerset_operator.model.observed import Object
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Facts
from brokerset_operator.plan.objects import (
    claim_templates,
    conditions_true,
    failed_message,
    items,
    part,
    requested,
    seconds,
    size_of,
    text,
)
from brokerset_operator.plan.steps import Finding, Steps

FIXED_FIELDS: Final = ("serviceName", "podManagementPolicy", "selector")
"""Fields of a StatefulSet, besides its claim templates, that the API server lets nobody change."""

ASK_AGAIN_SECONDS: Final = 600.0
"""How long a refusal to let a claim grow is believed."""


def keep_volumes(facts: Facts, stateful_sets: Mapping[str, Object]) -> Finding[frozenset[str]]:
    """Let claims grow; return the StatefulSets that must not be sent now, as they are made again."""
    held = set()
    for name, wanted in stateful_sets.items():
        for claim_name, claim in _claims_of(facts, name, wanted).items():
            template = claim_templates(wanted).get(names.VOLUME)
            if template is not None:
                yield from _keep_claim(facts, claim_name, claim, template[0])
        found = facts.observed.stateful_sets.get(name)
        if found is None:
            continue
        meta = part(found, "metadata")
        if meta.get("deletionTimestamp") is not None:
            held.add(name)
            yield steps.Waits(f"StatefulSet {name} is being deleted; it is made again then")
        elif _is_fixed_otherwise(found, wanted):
            held.add(name)
            uid = meta.get("uid")
            ref = ObjectRef("apps/v1", "StatefulSet", name, str(uid) if uid else None)
            yield DeleteObject(ref, "its claim template cannot be changed; its pods stay", orphan=True)
            yield steps.GoesOn(reasons.CHANGING_VOLUMES, f"StatefulSet {name} is made again around its pods")
    return frozenset(held)


def with_fixed_fields_of(manifest: Mapping[str, Any], found: Object) -> dict[str, Any]:
    """Return a StatefulSet with all that cannot be changed as it is there, so that it can be sent.

    For a group that is to go: nobody waits for what is made from its claim templates, and while it is made
    again around its pods it could go without them.
    """
    old, new = part(found, "spec"), part(manifest, "spec")
    kept = {name: old[name] for name in FIXED_FIELDS if name in old and name in new}
    templates = [
        {key: value for key, value in each.items() if key != "status"}
        for each in items(old, "volumeClaimTemplates")
    ]
    return {**manifest, "spec": {**new, **kept, "volumeClaimTemplates": templates}}


def _was_refused(facts: Facts) -> bool:
    """Whether the API server has just refused to let a claim grow: that ends a reconcile, so it is rare."""
    if (failed_message(facts.observed.status) or "").startswith(ResizeClaim.__name__):
        return True
    for each in items(facts.observed.status, "conditions"):
        if each.get("type") == reasons.STORAGE_NOT_EXPANDABLE and each.get("reason") == reasons.REFUSED:
            since = seconds(each.get("lastTransitionTime"))
            return since is not None and facts.now - since < ASK_AGAIN_SECONDS
    return False


def _claims_of(facts: Facts, name: str, wanted: Object) -> dict[str, Object]:
    claims = facts.observed.claims
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


def _keep_claim(facts: Facts, name: str, claim: Object, size: str) -> Steps:
    if part(claim, "metadata").get("deletionTimestamp") is not None:
        return
    asked, wanted = size_of(requested(claim)), size_of(size)
    capacity = part(part(claim, "status"), "capacity").get("storage")
    if asked > wanted:
        yield steps.Waits(f"{name} keeps {requested(claim)}: volumes never shrink", steps.IDLE_SECONDS)
        return
    if asked == wanted:
        if capacity is not None and size_of(str(capacity)) < wanted:
            restart = "FileSystemResizePending" in conditions_true(claim)
            how = "its pod must be restarted for that" if restart else "the storage class works on it"
            yield steps.GoesOn(reasons.CHANGING_VOLUMES, f"{name} grows to {size}: {how}", steps.WAIT_SECONDS)
        return
    class_name = text(part(claim, "spec").get("storageClassName"))
    storage_class = facts.observed.storage_classes.get(class_name or "")
    if storage_class is None:
        # It may not be read, or it is gone: the API server knows whether the claim can grow.
        if _was_refused(facts):
            yield steps.Raise(
                reasons.STORAGE_NOT_EXPANDABLE,
                reasons.REFUSED,
                f"{name} has {requested(claim)}, and may not grow to {size}: see whether storage class"
                f" {class_name} allows expansion; it is asked again every {ASK_AGAIN_SECONDS:g} s",
            )
            yield steps.Again(steps.WAIT_SECONDS)
            return
        yield steps.At(steps.Stage.REFUSABLE, ResizeClaim(name, size))
        yield steps.Waits(
            f"{name} is asked to grow; its storage class {class_name} could not be read", steps.WAIT_SECONDS
        )
        return
    if storage_class.get("allowVolumeExpansion") is not True:
        yield steps.Raise(
            reasons.STORAGE_NOT_EXPANDABLE,
            reasons.CLASS_FORBIDS,
            f"{name} has {requested(claim)}, and storage class {class_name} does not let it grow to {size}:"
            f" set allowVolumeExpansion: true on the class if its driver can do that, or ask for"
            f" {requested(claim)} again",
        )
        return
    yield ResizeClaim(name, size)
    yield steps.GoesOn(reasons.CHANGING_VOLUMES, f"{name} grows from {requested(claim)} to {size}")
