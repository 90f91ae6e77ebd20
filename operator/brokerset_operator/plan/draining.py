"""Rule 6: a group that the manifest no longer has goes when nobody has anything left to read in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeleteObject, ObjectRef, SetPermission
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Facts, GroupFacts, claims_are_free
from brokerset_operator.plan.steps import Finding, Steps

DRAIN_GRACE_SECONDS: Final = 60.0
"""How long a group must be empty: clients re-read their routes every 30 s, so each has done so twice."""

READ_ONLY: Final = 4


def drain_groups(facts: Facts) -> Steps:
    """Take the next step in each group that is to go, the highest first; say what stays of it for now."""
    highest = True
    for group in reversed(list(facts.groups.values())):
        if group.dropped and (left := (yield from _left(facts, group, highest=highest))):
            highest = False
            yield steps.Pods(group.index, left, read_only=True)


def _left(facts: Facts, group: GroupFacts, *, highest: bool) -> Finding[int]:
    """Drain a group; returns how many pods stay for now."""
    if group.keeper is None:
        if left := _left_by_a_stateful_set(group):
            # It was being made again around its pods: only with it can they be drained and go.
            yield steps.remember(group, replicas=left)
            yield steps.GoesOn(
                reasons.DRAINING_GROUP, f"StatefulSet {group.resource} is made again around its pods"
            )
            return left
        # Its objects go with its last pod. What is remembered stays: its volumes do too.
        if group.known:
            yield steps.remember(
                group, replicas=0, leaving=None, replacing=None, drain_since=None, empty_since=None
            )
    if group.keeper is None or group.keeper.deleting:
        if group.keeper is not None or group.brokers:
            yield steps.GoesOn(reasons.DRAINING_GROUP, f"the brokers of {group.name} end")
        return 0
    if (yield from _is_drained(facts, group, highest=highest)) and highest:
        if group.keeper.retained and claims_are_free(group):
            ref = ObjectRef("apps/v1", "StatefulSet", group.resource, group.keeper.uid or None)
            yield DeleteObject(ref, "the manifest no longer has this group, and it is drained")
            yield steps.GoesOn(reasons.DRAINING_GROUP, f"{group.name} goes; its claims stay")
            yield steps.remember(group, replicas=0, leaving=None, replacing=None)
            return 0
        yield steps.Waits(f"{group.name} goes when its claims no longer depend on its StatefulSet")
    return group.current


def _left_by_a_stateful_set(group: GroupFacts) -> int:
    """How many pods a StatefulSet must have to take in what runs on without one; 0 when nothing does.

    Kubernetes is about to delete pods that belong to a StatefulSet which is gone: these are waited for.
    """
    pods = [broker.pod for broker in group.brokers.values() if broker.pod is not None]
    if group.work.replicas and pods:
        return group.current
    running = [pod for pod in pods if not pod.terminating]
    if not running or any(pod.kept for pod in running):
        return 0
    return 1 + max(pod.ordinal for pod in running)


def keeping_claims(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the StatefulSet of a group that is to go, so that no claim goes with it."""
    policy = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    return {**manifest, "spec": {**manifest["spec"], "persistentVolumeClaimRetentionPolicy": policy}}


def _is_drained(facts: Facts, group: GroupFacts, *, highest: bool) -> Finding[bool]:
    """Whether a group may go; takes the next step towards that."""
    now, annotations = facts.now, facts.meta.annotations
    if group.named_in(annotations.get(names.DISCARD_GROUP)):
        yield steps.GoesOn(reasons.DRAINING_GROUP, f"{group.name} goes undrained, as an annotation says")
        return True
    if not facts.led:
        yield steps.Waits(f"{group.name} stays until the controllers answer")
        return False
    if group.contested is not None:
        yield steps.Waits(f"{group.name} stays: {group.contested}", steps.WAIT_SECONDS)
        return False
    if group.virgin:
        return True
    if facts.work_of(group).drain_since is None:
        # Written down before it is done: should the group be wanted again, it must be made writable.
        yield steps.remember(group, drain_since=now)
        yield steps.GoesOn(reasons.DRAINING_GROUP, f"{group.name} is drained", steps.AT_ONCE_SECONDS)
        return False
    drain = facts.observed.drains.get(group.name)
    if drain is None and group.master is not None and not highest:
        # Only some are probed in a reconcile, the highest ones first: that is the order in which they go.
        yield steps.GoesOn(
            reasons.DRAINING_GROUP, f"{group.name} goes after those with higher numbers", steps.WAIT_SECONDS
        )
        return False
    if drain is None or drain.permission is None:
        yield from _tell(group, "its master does not answer: wait until it does")
        return False
    if drain.permission != READ_ONLY:
        yield SetPermission(group.name, READ_ONLY, "the manifest no longer has this group")
    if drain.unread > 0:
        yield steps.remember(group, empty_since=None)
        yield from _tell(group, f"{drain.unread:,} messages are not consumed yet: let their consumers run")
        return False
    empty_since = facts.work_of(group).empty_since
    if drain.permission != READ_ONLY or empty_since is None:
        yield steps.remember(group, empty_since=now if drain.permission == READ_ONLY else None)
        yield steps.GoesOn(reasons.DRAINING_GROUP, f"{group.name} takes no sends any more")
        return False
    left = DRAIN_GRACE_SECONDS - (now - empty_since)
    if left > 0:
        message = f"{group.name} is empty, and goes when it has been so for {DRAIN_GRACE_SECONDS:g} s"
        yield steps.GoesOn(reasons.DRAINING_GROUP, message, min(left, steps.WAIT_SECONDS))
        return False
    return True


def _tell(group: GroupFacts, what: str) -> Steps:
    message = (
        f"{group.name} is to go, and {what}, or annotate the BrokerSet with"
        f" {names.DISCARD_GROUP}={group.name} to give them up"
    )
    yield steps.Raise(reasons.DRAINING, reasons.UNREAD_MESSAGES, message)
    yield steps.GoesOn(reasons.DRAINING_GROUP, message, steps.WAIT_SECONDS)
