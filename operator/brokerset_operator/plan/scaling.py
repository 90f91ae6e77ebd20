"""Rule 5: how many brokers a group has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import (
    CleanBroker,
    DeleteObject,
    DeletePod,
    Fence,
    ObjectRef,
    SetPermission,
)
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import DEAD, Broker, Facts, GroupFacts
from brokerset_operator.plan.live_settings import minimum_of, too_strict
from brokerset_operator.plan.objects import failed_message, part
from brokerset_operator.plan.pods import STALE_SECONDS, is_slow
from brokerset_operator.plan.steps import Finding, Steps
from brokerset_operator.plan.workflow import Leaving
from brokerset_operator.resources.set_facts import facts_of
from brokerset_operator.resources.settings_files import kept_settings
from brokerset_spec.dledger_mode import FIXED_REPLICAS, FIXED_REPLICAS_ADVICE
from brokerset_spec.manifest import BrokerSet

READ_AND_WRITE: Final = 6


def size_groups(facts: Facts) -> Steps:
    """Take at most one step in each group that is wanted, and say how many pods it is to have."""
    for group in facts.groups.values():
        if group.dropped:
            continue
        yield from _open_again(facts, group)
        if facts.manifest.is_dledger:
            yield steps.Pods(group.index, (yield from _size_of_ledger(group)))
        else:
            yield from _expect_fewer(facts, group)
            yield steps.Pods(group.index, (yield from _size(facts, group)))


def least_staying(manifest: BrokerSet, current: int) -> int:
    """Return how many must stay in sync when one of `current` brokers leaves for good."""
    return max(1, min(max(manifest.min_in_sync_replicas, 2), current - 1))


def _size(facts: Facts, group: GroupFacts) -> Finding[int]:
    if group.keeper is None and group.work.replicas == 0:
        # Either nothing is there yet, or only the StatefulSet is gone: its pods are taken over.
        size = max([group.wanted, *(n + 1 for n in group.brokers)])
        yield steps.remember(group, replicas=size)
        return size
    if group.wanted < group.current:
        return (yield from _fewer(facts, group))
    yield from _welcome_back(facts, group)
    if group.wanted > group.current:
        message = f"{group.name} gets {group.wanted} brokers, from {group.current}"
        yield steps.GoesOn(reasons.SCALING, message, steps.AT_ONCE_SECONDS)
        yield steps.remember(group, replicas=group.wanted)
    return group.current


def _size_of_ledger(group: GroupFacts) -> Finding[int]:
    """The members of a DLedger are those that it began with.

    With more of them, whose volumes are empty, more than half could lack what is committed.
    """
    size, there = group.current or group.wanted, 1 + max(group.claims, default=-1)
    if group.current == 0 and there not in (0, group.wanted):
        yield _fixed(group, f"volumes of {there} members are there from before")
        return 0
    if size != group.wanted:
        yield _fixed(group, f"it has {size} members")
    if group.work.replicas != size:
        yield steps.remember(group, replicas=size)
    return size


def _fixed(group: GroupFacts, what: str) -> steps.Raise:
    text = f"{group.name}: {what}, and {group.wanted} are wanted, but {FIXED_REPLICAS}"
    return steps.Raise(reasons.SCALE_REFUSED, reasons.FIXED_MEMBERS, f"{text}: {FIXED_REPLICAS_ADVICE}")


def _fewer(facts: Facts, group: GroupFacts) -> Finding[int]:
    ordinal = group.current - 1
    pod = names.broker_pod(facts.meta.name, group.index, ordinal)
    yield steps.GoesOn(
        reasons.SCALING, f"{group.name} gets {group.wanted} brokers, from {group.current}: {pod} goes"
    )
    if facts.led and group.contested is None and group.virgin:
        return (yield from _fewer_of_a_new_group(facts, group))
    problem = _why_it_stays(facts, group, pod)
    if problem is not None:
        yield problem
        return group.current
    broker, leaving = group.brokers[ordinal], facts.work_of(group).leaving
    if leaving is None or leaving.ordinal != ordinal:
        yield steps.remember(group, leaving=_leaving(facts, group, broker))
        yield steps.Again(steps.AT_ONCE_SECONDS)
        return group.current
    return (yield from _take_out(facts, group, broker, leaving))


def _why_it_stays(facts: Facts, group: GroupFacts, pod: str) -> steps.Waits | None:
    """Why the last pod of a group that has led is not taken out now."""
    if not facts.led:
        return steps.Waits(f"{pod} stays until the controllers answer")
    if group.contested is not None:
        return steps.Waits(f"{pod} stays: {group.contested}", steps.WAIT_SECONDS)
    if group.master is None:
        return steps.Waits(f"{pod} stays until {group.name} has a living master")
    replacing = facts.work_of(group).replacing
    if replacing is not None and replacing.pod != pod:
        return steps.Waits(f"{pod} stays until {replacing.pod}, which is being replaced, is in sync")
    strict = too_strict(facts, group)
    if strict is None and minimum_of(facts, group, group.master) is None:
        strict = f"the master does not tell at port {names.REMOTING_PORT} how many must be in sync"
    return None if strict is None else steps.Waits(f"{pod} stays: {strict}")


def _leaving(facts: Facts, group: GroupFacts, broker: Broker) -> Leaving:
    claim = group.claims.get(broker.ordinal)
    asked = facts.meta.annotations.get(names.DELETE_CLAIMS)
    goes = claim is not None and (asked == "true" or group.named_in(asked))
    meta: Mapping[str, Any] = part(claim, "metadata") if claim is not None and goes else {}
    return Leaving(
        ordinal=broker.ordinal,
        since=facts.now,
        broker_id=broker.broker_id,
        claim_uid=str(meta["uid"]) if meta.get("uid") else None,
        claim_resource=str(meta.get("name", "")) if meta.get("uid") else "",
    )


def _take_out(facts: Facts, group: GroupFacts, broker: Broker, leaving: Leaving) -> Finding[int]:
    """Switch over → fence → one pod less → claim and id. Returns the number of pods."""
    assert group.state is not None, "a group with a master is known"
    seen = group.keeper.replicas if group.keeper is not None else group.current
    broker_id = broker.broker_id if broker.broker_id is not None else leaving.broker_id
    out = broker_id in group.state.fenced and broker_id not in group.state.sync_state_set
    # What is seen of the pod may be older than its end, which must not be taken back.
    if seen > broker.ordinal and broker.replica is None and not out and _may_join_yet(facts, broker, leaving):
        yield steps.Waits(f"{group.resource}-{broker.ordinal} begins; it goes when its id is known")
        return group.current
    if broker_id is not None and broker_id != leaving.broker_id:
        yield steps.remember(group, leaving=_leaving(facts, group, broker))
    if broker.master:
        yield from _hand_over(group, broker)
        return group.current
    registered = any(each.broker_id == broker_id for each in group.state.replicas)
    if broker_id is not None and registered and not broker.fenced and broker_id not in group.state.fenced:
        yield _fence(facts, group, broker_id)
        return group.current
    if broker_id is not None and broker_id in group.state.sync_state_set:
        yield steps.Waits(f"{group.name}/{broker_id} is fenced, but still in the in-sync set")
        return group.current
    if seen <= broker.ordinal and broker.pod is None:
        yield from _finish(facts, group, leaving, broker_id)
    return broker.ordinal


def _may_join_yet(facts: Facts, broker: Broker, leaving: Leaving) -> bool:
    """Whether a broker that is not registered may be so at any moment, in sync, perhaps with a new id."""
    pod, now = broker.pod, facts.now
    if pod is None or broker.broker_id is not None:
        return now - leaving.since < STALE_SECONDS
    return not pod.terminating and pod.broken is None and not is_slow(pod, now)


def _hand_over(group: GroupFacts, broker: Broker) -> Steps:
    target = group.successor(max(group.brokers) + 1, without=broker.ordinal)
    if target is None:
        message = f"{group.name}: its master is to go, and no other broker is in sync: wait until one is"
        yield steps.Raise(reasons.SCALE_REFUSED, reasons.BELOW_MINIMUM, message)
    else:
        yield group.switch_over(target, f"broker {broker.broker_id} leaves the group")


def _fence(facts: Facts, group: GroupFacts, broker_id: int) -> Fence | steps.Raise:
    staying = len(group.living_in_sync - {broker_id})
    counted = group.state is not None and broker_id in group.state.sync_state_set
    least = least_staying(facts.manifest, group.current)
    allowed = group.named_in(facts.meta.annotations.get(names.BELOW_MINIMUM)) and staying >= 1
    if counted and staying < least and not allowed:
        return steps.Raise(
            reasons.SCALE_REFUSED,
            reasons.BELOW_MINIMUM,
            f"{group.name}: without broker {broker_id} only {staying} would stay in sync, and {least} must:"
            f" wait until more are, or annotate the BrokerSet with {names.BELOW_MINIMUM}={group.name}",
        )
    return Fence(group.name, broker_id, True, "it leaves the group", force=counted and staying == 1)


def _finish(facts: Facts, group: GroupFacts, leaving: Leaving, broker_id: int | None) -> Steps:
    """The pod is gone. An id is forgotten only with its volume: nobody could use the volume without it."""
    work = facts.work_of(group)
    if leaving.claim_uid is None or not leaving.claim_resource:
        aside = work.aside if broker_id is None else tuple(sorted({*work.aside, broker_id}))
        yield steps.remember(group, leaving=None, replicas=leaving.ordinal, aside=aside)
        return
    claim = group.claims.get(leaving.ordinal)
    if claim is not None and part(claim, "metadata").get("uid") == leaving.claim_uid:
        if facts.now - leaving.since < STALE_SECONDS:
            # The pod may be about to come: what was seen could be from before more were asked for.
            yield steps.Waits(f"{leaving.claim_resource} goes when nothing has used it for a while")
        elif part(claim, "metadata").get("deletionTimestamp") is None:
            ref = ObjectRef("v1", "PersistentVolumeClaim", leaving.claim_resource, leaving.claim_uid)
            yield DeleteObject(ref, f"annotation {names.DELETE_CLAIMS}")
        return
    assert group.state is not None, "a group with a master is known"
    replica = next((each for each in group.state.replicas if each.broker_id == broker_id), None)
    if replica is None:
        ids = {ordinal: known for ordinal, known in work.ids.items() if ordinal != leaving.ordinal}
        yield steps.remember(group, leaving=None, replicas=leaving.ordinal, ids=ids)
    elif replica.standing == DEAD:
        yield CleanBroker(group.name, replica.broker_id, "its volume was deleted after scale-in")


def _fewer_of_a_new_group(facts: Facts, group: GroupFacts) -> Finding[int]:
    """Make a group smaller that never had a master, and does not get one, for not all of its brokers come.

    While all of them come the master is elected in a moment, or has been by now: then it is waited for.
    """
    if not never_starts(facts, group):
        yield steps.Waits(f"{group.name} gets fewer brokers when it has its first master")
        return group.current
    yield steps.remember(group, expected=group.wanted, replicas=group.wanted, leaving=None)
    return group.wanted


def never_starts(facts: Facts, group: GroupFacts) -> bool:
    """Return whether a group without a master has a pod that will not run without help."""
    pods = [broker.pod for broker in group.brokers.values() if broker.pod is not None]
    return any(pod.broken is not None or is_slow(pod, facts.now) for pod in pods)


def _expect_fewer(facts: Facts, group: GroupFacts) -> Steps:
    """Let a first election wait for no more brokers than there are to be.

    Nobody was told that the group keeps a message, so a broker may be restarted: it tells the controllers.
    """
    state = group.state
    if not group.virgin or not facts.led or state is None or group.contested is not None:
        return
    if group.current != group.wanted or state.expected_replicas <= group.wanted:
        return
    kept = kept_settings(facts_of(facts.observed), group.index).get("expectedReplicas", "0")
    config_map = facts.observed.config_maps.get(group.resource)
    if config_map is not None and kept.isdecimal() and int(kept) > group.wanted:
        uid = part(config_map, "metadata").get("uid")
        ref = ObjectRef("v1", "ConfigMap", group.resource, str(uid) if uid else None)
        yield DeleteObject(ref, "it says that the first election waits for more brokers")
        yield steps.GoesOn(reasons.SCALING, f"{group.name} is told to wait for {group.wanted} brokers only")
        return
    for broker in reversed(list(group.brokers.values())):
        pod = broker.pod
        if pod is not None and broker.replica is not None and not pod.terminating:
            yield DeletePod(pod.name, pod.uid, "its group waits for more brokers than there will be")
            return


def _welcome_back(facts: Facts, group: GroupFacts) -> Steps:
    """Take brokers in again that scale-in took out, now that they are wanted again."""
    work = facts.work_of(group)
    aside = set(work.aside)
    if work.leaving is not None and work.leaving.broker_id is not None:
        aside.add(work.leaving.broker_id)
    if group.state is not None and facts.led and group.contested is None:
        aside &= {each.broker_id for each in group.state.replicas}
        for ordinal, broker in group.brokers.items():
            if ordinal < group.wanted and broker.broker_id is not None and broker.broker_id in aside:
                if broker.fenced:
                    yield Fence(group.name, broker.broker_id, False, "it is wanted again")
                    yield steps.GoesOn(reasons.SCALING, f"{group.name}/{broker.broker_id} is taken in again")
                else:
                    aside.discard(broker.broker_id)
    yield steps.remember(group, leaving=None, aside=tuple(sorted(aside)))


def _open_again(facts: Facts, group: GroupFacts) -> Steps:
    """A group that was being drained is wanted again."""
    work = facts.work_of(group)
    if work.drain_since is None:
        return
    if not facts.led or group.master is None:
        yield steps.Waits(f"{group.name} is made writable when it has a master")
        return
    permission = facts.manifest.config_values().get("broker_permission", READ_AND_WRITE)
    assert isinstance(permission, int), "the manifest is valid"
    yield SetPermission(group.name, permission, "it is wanted again")
    if work.opening and failed_message(facts.observed.status) is None:
        # Told twice: the first time may have been cut off before it was done.
        yield steps.remember(group, drain_since=None, empty_since=None, opening=False)
    else:
        yield steps.remember(group, opening=True)
        yield steps.Again(steps.AT_ONCE_SECONDS)
