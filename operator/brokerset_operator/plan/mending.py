"""Rules 8 and 10: lost ids, pods on dead nodes, and `-master` Services that lead astray."""

from __future__ import annotations

from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import CleanBroker, DeletePod, PointMasterService
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import DEAD, Facts, GroupFacts, slice_target
from brokerset_operator.plan.objects import items, part
from brokerset_operator.plan.pods import Pod, read_pod
from brokerset_operator.plan.steps import Steps

OVERDUE_SECONDS: Final = 30.0
"""How long after its time of grace a pod counts as stuck."""

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

CERTAIN_SECONDS: Final = 60.0
"""How long an id must look lost: controllers, pods and claims are not seen at the same moment."""

ASTRAY_SECONDS: Final = 10.0
"""How long a master has to lead its Service to itself, which takes it less than a second."""


def free_stuck(facts: Facts) -> Steps:
    """Delete by force the pods that certainly do not run any more; tell people about the rest."""
    observed = facts.observed
    for name in sorted(observed.pods):
        pod = read_pod(observed.pods[name])
        if pod is None or pod.gone_by is None:
            continue
        if observed.now - pod.gone_by <= OVERDUE_SECONDS:
            yield steps.Again(steps.WAIT_SECONDS)
            continue
        why = _why_it_ended(facts, pod)
        if why is not None:
            yield DeletePod(pod.name, pod.uid, why, force=True)
            continue
        yield steps.Raise(
            reasons.POD_STUCK,
            reasons.NODE_NOT_READY,
            f"{pod.name} does not end on node {pod.node}, where it may still write to its volume: bring the"
            f" node back, or, when it is surely off, delete it, or"
            f" `kubectl taint node {pod.node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute`",
        )
        yield steps.Again(steps.WAIT_SECONDS)


def _why_it_ended(facts: Facts, pod: Pod) -> str | None:
    observed = facts.observed
    if pod.node is None:
        return "it never had a node"
    node = observed.nodes.get(pod.node)
    if node is not None:
        taints = items(part(node, "spec"), "taints")
        if any(taint.get("key") == OUT_OF_SERVICE for taint in taints):
            return f"node {pod.node} is declared out of service"
        return None
    return f"node {pod.node} is gone" if pod.node in observed.missing_nodes else None


def mend_groups(facts: Facts) -> Steps:
    """Forget ids whose volumes are gone, and correct Services that lead elsewhere than to the master."""
    for group in facts.groups.values():
        yield from _forget_lost(facts, group)
        yield from _correct_master_service(facts, group)


def _forget_lost(facts: Facts, group: GroupFacts) -> Steps:
    """Clean ids that are on no volume any more, once that has been so for a while."""
    lost, before = lost_ids(facts, group), facts.work_of(group).orphans
    known = {broker_id: before.get(broker_id, facts.now) for broker_id in lost}
    for broker_id, since in known.items():
        if facts.now - since >= CERTAIN_SECONDS:
            yield CleanBroker(group.name, broker_id, "its volume is gone, and another broker has its place")
        yield steps.Waits(f"{group.name}/{broker_id} seems to have lost its volume")
    if known != dict(before):
        yield steps.remember(group, orphans=dict(sorted(known.items())))


def lost_ids(facts: Facts, group: GroupFacts) -> list[int]:
    """Return the ids that seem to be on no volume.

    Every broker that is wanted must run, with its id known: then each id is on one of their volumes, on a
    claim that was kept after scale-in, or nowhere.
    """
    state, work = group.state, facts.work_of(group)
    if state is None or group.contested is not None or not facts.led or group.master is None:
        return []
    if group.current != group.wanted or work.leaving is not None:
        return []
    if any(not broker.settled for broker in group.brokers.values()) or len(group.brokers) != group.wanted:
        return []
    kept = [ordinal for ordinal in group.claims if ordinal >= group.wanted]
    if any(ordinal not in work.ids for ordinal in kept):
        return []  # a volume with an id that nobody remembers
    here = {broker.broker_id for broker in group.brokers.values()} | {work.ids[ordinal] for ordinal in kept}
    return [
        each.broker_id
        for each in state.replicas
        if each.standing == DEAD
        and each.broker_id not in here
        and each.broker_id not in state.sync_state_set
        and each.broker_id != state.master_id
    ]


def _correct_master_service(facts: Facts, group: GroupFacts) -> Steps:
    """Point the Service to the master when it has led elsewhere for too long; never to an older epoch."""
    service = names.master_service(facts.meta.name, group.index)
    master, since = group.master, facts.work_of(group).astray_since
    if group.state is None or master is None or master.pod is None or master.pod.ip is None:
        return
    if not facts.led or group.contested is not None or master.pod.terminating:
        return
    address, epoch = slice_target(facts.observed, service)
    if (address == master.pod.ip and epoch == group.state.master_epoch) or epoch > group.state.master_epoch:
        if since is not None:
            yield steps.remember(group, astray_since=None)
        return
    if since is None:
        yield steps.remember(group, astray_since=facts.now)
    elif facts.now - since > ASTRAY_SECONDS:
        yield PointMasterService(service, master.pod.name, master.pod.ip, group.state.master_epoch)
    yield steps.Waits(f"Service {service} does not lead to the master of {group.name}")
