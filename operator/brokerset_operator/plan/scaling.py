"""Rule 5: how many brokers a group has."""

from __future__ import annotations

from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import (
    CleanBroker,
    DeleteObject,
    DeletePod,
    Fence,
    ObjectRef,
    SetPermission,
)
from brokerset_operator.plan import reasons
from brokerset_operator.plan.draft import AT_ONCE_SECONDS, WAIT_SECONDS, Draft, named_in
from brokerset_operator.plan.facts import DEAD, Broker, GroupFacts
from brokerset_operator.plan.live_settings import minimum_of, too_strict
from brokerset_operator.plan.objects import items, part
from brokerset_operator.plan.pods import STALE_SECONDS, is_slow
from brokerset_operator.plan.switchover import successor, switch_over
from brokerset_operator.plan.volumes import FAILED_CONDITION
from brokerset_operator.plan.workflow import Leaving
from brokerset_operator.resources.set_facts import facts_of
from brokerset_operator.resources.settings_files import kept_settings
from brokerset_spec.manifest import BrokerSet

READ_AND_WRITE: Final = 6


def decide_size(draft: Draft, group: GroupFacts) -> int:
    """Take at most one step, and return how many pods the group's StatefulSet is to have."""
    _open_again(draft, group)
    _expect_fewer(draft, group)
    if group.keeper is None and group.work.replicas == 0:
        # Either nothing is there yet, or only the StatefulSet is gone: its pods are taken over.
        size = max([group.wanted, *(n + 1 for n in group.brokers)])
        draft.remember(group, replicas=size)
        return size
    if group.wanted < group.current:
        return _fewer(draft, group)
    _welcome_back(draft, group)
    if group.wanted > group.current:
        draft.goes_on(
            reasons.SCALING,
            f"{group.name} gets {group.wanted} brokers, from {group.current}",
            AT_ONCE_SECONDS,
        )
        draft.remember(group, replicas=group.wanted)
    return group.current


def least_staying(manifest: BrokerSet, current: int) -> int:
    """Return how many must stay in sync when one of `current` brokers leaves for good."""
    return max(1, min(max(manifest.min_in_sync_replicas, 2), current - 1))


def _fewer(draft: Draft, group: GroupFacts) -> int:
    ordinal = group.current - 1
    pod = names.broker_pod(draft.facts.meta.name, group.index, ordinal)
    draft.goes_on(
        reasons.SCALING, f"{group.name} gets {group.wanted} brokers, from {group.current}: {pod} goes"
    )
    if not draft.facts.controllers.led:
        draft.waits(f"{pod} stays until the controllers answer")
        return group.current
    if group.contested is not None:
        draft.waits(f"{pod} stays: {group.contested}", WAIT_SECONDS)
        return group.current
    if group.virgin:
        return _fewer_of_a_new_group(draft, group)
    if group.master is None:
        draft.waits(f"{pod} stays until {group.name} has a living master")
        return group.current
    replacing = draft.work_of(group).replacing
    if replacing is not None and replacing.pod != pod:
        draft.waits(f"{pod} stays until {replacing.pod}, which is being replaced, is in sync")
        return group.current
    strict = too_strict(draft, group)
    if strict is None and minimum_of(draft, group, group.master) is None:
        strict = f"the master does not tell at port {names.REMOTING_PORT} how many must be in sync"
    if strict is not None:
        draft.waits(f"{pod} stays: {strict}")
        return group.current
    broker = group.brokers[ordinal]
    leaving = draft.work_of(group).leaving
    if leaving is None or leaving.ordinal != ordinal:
        draft.remember(group, leaving=_leaving(draft, group, broker))
        draft.look(AT_ONCE_SECONDS)
        return group.current
    return _take_out(draft, group, broker, leaving)


def _leaving(draft: Draft, group: GroupFacts, broker: Broker) -> Leaving:
    claim = group.claims.get(broker.ordinal)
    asked = draft.facts.meta.annotations.get(names.DELETE_CLAIMS)
    goes = claim is not None and (asked == "true" or named_in(asked, group))
    meta = part(claim, "metadata") if claim is not None and goes else {}
    return Leaving(
        ordinal=broker.ordinal,
        since=draft.facts.now,
        broker_id=broker.broker_id,
        claim_uid=str(meta["uid"]) if meta.get("uid") else None,
        claim_resource=str(meta.get("name", "")) if meta.get("uid") else "",
    )


def _take_out(draft: Draft, group: GroupFacts, broker: Broker, leaving: Leaving) -> int:
    """Switch over → fence → one pod less → claim and id. Returns the number of pods."""
    assert group.state is not None, "a group with a master is known"
    seen = group.keeper.replicas if group.keeper is not None else group.current
    broker_id = broker.broker_id if broker.broker_id is not None else leaving.broker_id
    out = broker_id in group.state.fenced and broker_id not in group.state.sync_state_set
    # What is seen of the pod may be older than its end, which must not be taken back.
    if seen > broker.ordinal and broker.replica is None and not out and _may_join_yet(draft, broker, leaving):
        draft.waits(f"{group.resource}-{broker.ordinal} begins; it goes when its id is known")
        return group.current
    if broker_id is not None and broker_id != leaving.broker_id:
        draft.remember(group, leaving=_leaving(draft, group, broker))
    if broker.master:
        _hand_over(draft, group, broker)
        return group.current
    registered = any(each.broker_id == broker_id for each in group.state.replicas)
    if broker_id is not None and registered and not broker.fenced and broker_id not in group.state.fenced:
        _fence(draft, group, broker_id)
        return group.current
    if broker_id is not None and broker_id in group.state.sync_state_set:
        draft.waits(f"{group.name}/{broker_id} is fenced, but still in the in-sync set")
        return group.current
    if seen <= broker.ordinal and broker.pod is None:
        _finish(draft, group, leaving, broker_id)
    return broker.ordinal


def _may_join_yet(draft: Draft, broker: Broker, leaving: Leaving) -> bool:
    """Whether a broker that is not registered may be so at any moment, in sync, perhaps with a new id."""
    pod, now = broker.pod, draft.facts.now
    if pod is None or broker.broker_id is not None:
        return now - leaving.since < STALE_SECONDS
    return not pod.terminating and pod.broken is None and not is_slow(pod, now)


def _hand_over(draft: Draft, group: GroupFacts, broker: Broker) -> None:
    able = [b for b in group.brokers.values() if b.ordinal != broker.ordinal]
    target = successor(able, prefer=lambda b: b.ordinal < group.wanted)
    if target is None:
        draft.raise_condition(
            reasons.SCALE_REFUSED,
            reasons.BELOW_MINIMUM,
            f"{group.name}: its master is to go, and no other broker is in sync: wait until one is",
        )
        return
    draft.act(switch_over(group, target, f"broker {broker.broker_id} leaves the group"))


def _fence(draft: Draft, group: GroupFacts, broker_id: int) -> None:
    staying = len(group.living_in_sync - {broker_id})
    counted = group.state is not None and broker_id in group.state.sync_state_set
    least = least_staying(draft.facts.manifest, group.current)
    allowed = named_in(draft.facts.meta.annotations.get(names.BELOW_MINIMUM), group) and staying >= 1
    if counted and staying < least and not allowed:
        draft.raise_condition(
            reasons.SCALE_REFUSED,
            reasons.BELOW_MINIMUM,
            f"{group.name}: without broker {broker_id} only {staying} would stay in sync, and {least} must:"
            f" wait until more are, or annotate the BrokerSet with {names.BELOW_MINIMUM}={group.name}",
        )
        return
    draft.act(
        Fence(
            group=group.name,
            broker_id=broker_id,
            fenced=True,
            why="it leaves the group",
            force=counted and staying == 1,
        )
    )


def _finish(draft: Draft, group: GroupFacts, leaving: Leaving, broker_id: int | None) -> None:
    """The pod is gone. An id is forgotten only with its volume: nobody could use the volume without it."""
    work = draft.work_of(group)
    if leaving.claim_uid is None:
        aside = work.aside if broker_id is None else tuple(sorted({*work.aside, broker_id}))
        draft.remember(group, leaving=None, replicas=leaving.ordinal, aside=aside)
        return
    claim = group.claims.get(leaving.ordinal)
    if claim is not None and part(claim, "metadata").get("uid") == leaving.claim_uid:
        if draft.facts.now - leaving.since < STALE_SECONDS:
            # The pod may be about to come: what was seen could be from before more were asked for.
            draft.waits(f"{leaving.claim_resource} goes when nothing has used it for a while")
        elif part(claim, "metadata").get("deletionTimestamp") is None:
            ref = ObjectRef("v1", "PersistentVolumeClaim", leaving.claim_resource, leaving.claim_uid)
            draft.act(DeleteObject(ref, f"annotation {names.DELETE_CLAIMS}"))
        return
    assert group.state is not None, "a group with a master is known"
    replica = next((each for each in group.state.replicas if each.broker_id == broker_id), None)
    if replica is not None:
        if replica.standing == DEAD:
            draft.act(CleanBroker(group.name, replica.broker_id, "its volume was deleted after scale-in"))
        return
    ids = {ordinal: known for ordinal, known in work.ids.items() if ordinal != leaving.ordinal}
    draft.remember(group, leaving=None, replicas=leaving.ordinal, ids=ids)


def _fewer_of_a_new_group(draft: Draft, group: GroupFacts) -> int:
    """Make a group smaller that never had a master, and does not get one, for not all of its brokers come.

    While all of them come the master is elected in a moment, or has been by now: then it is waited for.
    """
    if not never_starts(draft, group):
        draft.waits(f"{group.name} gets fewer brokers when it has its first master")
        return group.current
    draft.remember(group, expected=group.wanted, replicas=group.wanted, leaving=None)
    return group.wanted


def never_starts(draft: Draft, group: GroupFacts) -> bool:
    """Return whether a group without a master has a pod that will not run without help."""
    pods = [broker.pod for broker in group.brokers.values() if broker.pod is not None]
    return any(pod.broken is not None or is_slow(pod, draft.facts.now) for pod in pods)


def _expect_fewer(draft: Draft, group: GroupFacts) -> None:
    """Let a first election wait for no more brokers than there are to be.

    Nobody was told that the group keeps a message, so a broker may be restarted: it tells the controllers.
    """
    facts, state = draft.facts, group.state
    if not group.virgin or not facts.controllers.led or state is None or group.contested is not None:
        return
    if group.current != group.wanted or state.expected_replicas <= group.wanted:
        return
    kept = kept_settings(facts_of(facts.observed), group.index).get("expectedReplicas", "0")
    config_map = facts.observed.config_maps.get(group.resource)
    if config_map is not None and kept.isdecimal() and int(kept) > group.wanted:
        uid = part(config_map, "metadata").get("uid")
        ref = ObjectRef("v1", "ConfigMap", group.resource, str(uid) if uid else None)
        draft.act(DeleteObject(ref, "it says that the first election waits for more brokers"))
        draft.goes_on(reasons.SCALING, f"{group.name} is told to wait for {group.wanted} brokers only")
        return
    for broker in reversed(list(group.brokers.values())):
        pod = broker.pod
        if pod is not None and broker.replica is not None and not pod.terminating:
            draft.act(DeletePod(pod.name, pod.uid, "its group waits for more brokers than there will be"))
            return


def _welcome_back(draft: Draft, group: GroupFacts) -> None:
    """Take brokers in again that scale-in took out, now that they are wanted again."""
    work = draft.work_of(group)
    aside = set(work.aside)
    if work.leaving is not None:
        if work.leaving.broker_id is not None:
            aside.add(work.leaving.broker_id)
        draft.remember(group, leaving=None)
    if group.state is None or not draft.facts.controllers.led or group.contested is not None:
        draft.remember(group, aside=tuple(sorted(aside)))
        return
    registered = {each.broker_id for each in group.state.replicas}
    aside &= registered
    for ordinal, broker in group.brokers.items():
        if ordinal < group.wanted and broker.broker_id in aside:
            if broker.fenced:
                draft.act(Fence(group.name, broker.broker_id, False, "it is wanted again"))
                draft.goes_on(reasons.SCALING, f"{group.name}/{broker.broker_id} is taken in again")
            else:
                aside.discard(broker.broker_id)
    draft.remember(group, aside=tuple(sorted(aside)))


def _open_again(draft: Draft, group: GroupFacts) -> None:
    """A group that was being drained is wanted again."""
    work = draft.work_of(group)
    if work.drain_since is None:
        return
    if not draft.facts.controllers.led or group.master is None:
        draft.waits(f"{group.name} is made writable when it has a master")
        return
    config = draft.facts.manifest.config_values()
    permission = config.get("broker_permission", READ_AND_WRITE)
    assert isinstance(permission, int), "the manifest is valid"
    draft.act(SetPermission(group.name, permission, "it is wanted again"))
    failed = any(
        each.get("type") == FAILED_CONDITION and each.get("status") == "True"
        for each in items(draft.facts.observed.status, "conditions")
    )
    if work.opening and not failed:
        # Told twice: the first time may have been cut off before it was done.
        draft.remember(group, drain_since=None, empty_since=None, opening=False)
    else:
        draft.remember(group, opening=True)
        draft.look(AT_ONCE_SECONDS)
