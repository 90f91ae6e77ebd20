"""Rule 6: a group that the manifest no longer has goes when nobody has anything left to read in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeleteObject, ObjectRef, SetPermission
from brokerset_operator.plan import reasons
from brokerset_operator.plan.draft import AT_ONCE_SECONDS, BUSY_SECONDS, WAIT_SECONDS, Draft, named_in
from brokerset_operator.plan.facts import GroupFacts, claims_are_free

DRAIN_GRACE_SECONDS: Final = 60.0
"""How long a group must be empty: clients re-read their routes every 30 s, so each has done so twice."""

READ_ONLY: Final = 4


def decide_drained(draft: Draft) -> dict[int, int]:
    """Drain what is to go; return the pods of each such group that stays for now."""
    stay: dict[int, int] = {}
    dropped = [group for group in draft.facts.groups.values() if group.dropped]
    for group in reversed(dropped):
        highest = not stay
        if group.keeper is None:
            left = _left_by_a_stateful_set(group)
            if left:
                # It was being made anew around its pods: only with it can they be drained and go.
                stay[group.index] = left
                draft.remember(group, replicas=left)
                draft.goes_on(
                    reasons.DRAINING_GROUP, f"StatefulSet {group.resource} is made anew around its pods"
                )
                continue
            # Its objects go with its last pod. What is remembered stays: its volumes do too.
            if group.known:
                draft.remember(
                    group, replicas=0, leaving=None, replacing=None, drain_since=None, empty_since=None
                )
            if group.brokers:
                draft.goes_on(reasons.DRAINING_GROUP, f"the brokers of {group.name} end")
            continue
        if group.keeper.deleting:
            draft.goes_on(reasons.DRAINING_GROUP, f"the brokers of {group.name} end")
            continue
        if _is_drained(draft, group, highest=highest) and highest:
            if group.keeper.retained and claims_are_free(group):
                _remove(draft, group)
                continue
            draft.waits(
                f"{group.name} goes when its claims no longer depend on its StatefulSet", BUSY_SECONDS
            )
        stay[group.index] = group.current
    return stay


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


def _remove(draft: Draft, group: GroupFacts) -> None:
    assert group.keeper is not None, "there is something to remove"
    ref = ObjectRef("apps/v1", "StatefulSet", group.resource, group.keeper.uid or None)
    draft.act(DeleteObject(ref, "the manifest no longer has this group, and it is drained"))
    draft.goes_on(reasons.DRAINING_GROUP, f"{group.name} goes; its claims stay")
    draft.remember(group, replicas=0, leaving=None, replacing=None)


def _is_drained(draft: Draft, group: GroupFacts, *, highest: bool) -> bool:
    """Whether a group may go; takes the next step towards that."""
    now, annotations = draft.facts.now, draft.facts.meta.annotations
    if named_in(annotations.get(names.DISCARD_GROUP), group):
        draft.goes_on(reasons.DRAINING_GROUP, f"{group.name} goes undrained, as an annotation says")
        return True
    if not draft.facts.controllers.led:
        draft.waits(f"{group.name} stays until the controllers answer")
        return False
    if group.contested is not None:
        draft.waits(f"{group.name} stays: {group.contested}", WAIT_SECONDS)
        return False
    if group.virgin:
        return True
    if draft.work_of(group).drain_since is None:
        # Written down before it is done: should the group be wanted again, it must be made writable.
        draft.remember(group, drain_since=now)
        draft.goes_on(reasons.DRAINING_GROUP, f"{group.name} is drained", AT_ONCE_SECONDS)
        return False
    drain = draft.facts.observed.drains.get(group.name)
    if drain is None and group.master is not None and not highest:
        # Only some are looked at in a round, the highest ones first: that is the order in which they go.
        draft.goes_on(
            reasons.DRAINING_GROUP, f"{group.name} goes after those with higher numbers", WAIT_SECONDS
        )
        return False
    if drain is None or drain.permission is None:
        _tell(draft, group, "its master does not answer: wait until it does")
        return False
    if drain.permission != READ_ONLY:
        draft.act(SetPermission(group.name, READ_ONLY, "the manifest no longer has this group"))
    if drain.unread > 0:
        draft.remember(group, empty_since=None)
        _tell(draft, group, f"{drain.unread:,} messages are not consumed yet: let their consumers run")
        return False
    empty_since = draft.work_of(group).empty_since
    if drain.permission != READ_ONLY or empty_since is None:
        draft.remember(group, empty_since=now if drain.permission == READ_ONLY else None)
        draft.goes_on(reasons.DRAINING_GROUP, f"{group.name} takes no sends any more")
        return False
    left = DRAIN_GRACE_SECONDS - (now - empty_since)
    if left > 0:
        message = f"{group.name} is empty, and goes when it has been so for {DRAIN_GRACE_SECONDS:g} s"
        draft.goes_on(reasons.DRAINING_GROUP, message, min(left, WAIT_SECONDS))
        return False
    return True


def _tell(draft: Draft, group: GroupFacts, what: str) -> None:
    message = (
        f"{group.name} is to go, and {what}, or annotate the BrokerSet with"
        f" {names.DISCARD_GROUP}={group.name} to give them up"
    )
    draft.raise_condition(reasons.DRAINING, reasons.UNREAD_MESSAGES, message)
    draft.goes_on(reasons.DRAINING_GROUP, message, WAIT_SECONDS)
