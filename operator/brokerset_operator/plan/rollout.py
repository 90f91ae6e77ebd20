"""Rule 7, for brokers: old pods are replaced, slaves first, then the master hands over, and goes last.

That a pod is replaced is written down one round before it is deleted, so that no later round, whatever it
sees of the deletion, takes a second one down.
"""

from __future__ import annotations

from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeletePod
from brokerset_operator.plan import reasons
from brokerset_operator.plan.draft import AT_ONCE_SECONDS, WAIT_SECONDS, Draft
from brokerset_operator.plan.facts import Broker, GroupFacts
from brokerset_operator.plan.live_settings import too_strict
from brokerset_operator.plan.objects import Pod
from brokerset_operator.plan.pods import STALE_SECONDS, is_old, is_slow, why_failing
from brokerset_operator.plan.scaling import never_starts
from brokerset_operator.plan.switchover import successor, switch_over
from brokerset_operator.plan.workflow import Replacing

OLD: Final = "its template or its settings have changed"


def roll_brokers(draft: Draft, *, controllers_done: bool) -> None:
    """Go on with what was begun, then begin the next step, in one group at a time."""
    for group in draft.facts.groups.values():
        # One that is to go is not rolled, but it is drained by brokers that run.
        _replace_broken(draft, group)
        _go_on(draft, group)
    groups = [group for group in draft.facts.groups.values() if not group.dropped]
    begun = [group for group in groups if draft.work_of(group).replacing is not None]
    waiting = [group for group in groups if old_brokers(draft, group)]
    if begun or not waiting:
        return
    if not controllers_done:
        draft.goes_on(reasons.ROLLING, "brokers are replaced after the controllers")
        return
    _begin(draft, waiting[0])


def old_brokers(draft: Draft, group: GroupFacts) -> list[Broker]:
    """Return the brokers whose pods are old, highest ordinal first; none that is leaving."""
    found = [
        b
        for b in group.brokers.values()
        if b.ordinal < min(group.current, group.wanted) and b.pod is not None
    ]
    return [b for b in reversed(found) if b.pod is not None and _is_old(draft, group, b.pod)]


def why_not_now(draft: Draft, group: GroupFacts, candidate: Broker) -> str | None:
    """Return why a broker must not be taken down now; None when the group can spare it."""
    if not draft.facts.controllers.led:
        return "the controllers do not answer"
    if group.contested is not None:
        return group.contested
    if group.keeper is None or group.keeper.deleting:
        return f"StatefulSet {group.resource} is being made anew"
    if group.virgin:
        return None if never_starts(draft, group) else f"{group.name} gets its first master"
    if group.master is None or group.state is None:
        return f"{group.name} has no living master"
    if group.current != group.wanted:
        return f"{group.name} is being scaled"
    for ordinal in range(group.current):
        broker = group.brokers.get(ordinal)
        if broker is None or broker.pod is None or broker.pod.terminating:
            return f"pod {group.resource}-{ordinal} is not there"
        if not broker.fenced and not broker.settled:
            return f"{broker.pod.name} is not in sync"
        if broker.ordinal != candidate.ordinal and not broker.pod.ready:
            return f"{broker.pod.name} is not ready"
    if (strict := too_strict(draft, group)) is not None:
        return strict
    if any(ordinal >= group.current for ordinal in group.brokers):
        return f"a pod of {group.name} is still ending"
    staying = len(group.living_in_sync - {candidate.broker_id})
    least = max(1, min(draft.facts.manifest.min_in_sync_of(group.current), group.current - 1))
    if group.current > 1 and staying < least:
        return f"only {staying} of {group.name} would stay in sync, and {least} must: unfence the others"
    return None


def _is_old(draft: Draft, group: GroupFacts, pod: Pod) -> bool:
    return is_old(pod, draft.templates.get(group.resource), group.keeper)


def _is_lame(draft: Draft, group: GroupFacts, broker: Broker) -> str | None:
    """Why an old pod does nobody any good, so that taking it down costs nothing."""
    pod = broker.pod
    if pod is None or pod.terminating or not _is_old(draft, group, pod):
        return None
    if pod.broken is not None:
        return pod.broken
    useless = not broker.in_sync and not broker.master and not broker.fenced and group.master is not None
    if useless and draft.facts.controllers.led and is_slow(pod, draft.facts.now):
        return "it has not been ready for long"
    return None


def _replace_broken(draft: Draft, group: GroupFacts) -> None:
    """Replace old pods that do not run: they would block the very change that mends them.

    One at a time while the group has a master. Without one nobody can be waited for: all at once.
    """
    lame = [b for b in reversed(list(group.brokers.values())) if _is_lame(draft, group, b)]
    lame = [b for b in lame if b.ordinal < max(group.current, 1)]
    if not lame:
        return
    if group.master is None or not draft.facts.controllers.led:
        for broker in lame:
            if broker.pod is not None and broker.pod.broken is not None:
                why = f"{OLD}, and it does not run: {broker.pod.broken}"
                draft.act(DeletePod(broker.pod.name, broker.pod.uid, why))
                draft.goes_on(reasons.ROLLING, f"{broker.pod.name} is replaced: {broker.pod.broken}")
        return
    begun = draft.work_of(group).replacing
    again = next(
        (b for b in lame if begun is not None and b.pod is not None and b.pod.name == begun.pod), None
    )
    if begun is None or (again is not None and again.pod is not None and again.pod.uid != begun.uid):
        _write_down(draft, group, again or lame[0])


def _write_down(draft: Draft, group: GroupFacts, broker: Broker) -> None:
    assert broker.pod is not None, "there is a pod to replace"
    replica = broker.replica
    draft.remember(
        group,
        replacing=Replacing(
            pod=broker.pod.name,
            uid=broker.pod.uid,
            since=draft.facts.now,
            broker_id=broker.broker_id,
            incarnation=replica.incarnation if replica is not None else 0,
        ),
    )
    draft.goes_on(reasons.ROLLING, f"{broker.pod.name} is replaced", AT_ONCE_SECONDS)


def _go_on(draft: Draft, group: GroupFacts) -> None:
    begun = group.work.replacing
    if begun is None or draft.work_of(group).replacing != begun:
        return
    ordinal = int(begun.pod.rpartition("-")[2])
    broker = group.brokers.get(ordinal)
    pod = broker.pod if broker is not None else None
    if broker is None or pod is None:
        if ordinal >= group.current:
            draft.remember(group, replacing=None)
        else:
            draft.goes_on(reasons.ROLLING, f"{begun.pod} is made anew")
    elif pod.uid == begun.uid:
        _take_down(draft, group, broker, pod, begun)
    elif _is_back(group, broker, begun, draft.facts.now):
        draft.remember(group, replacing=None)
        draft.look(AT_ONCE_SECONDS)
    elif _is_old(draft, group, pod) and not broker.in_sync and not broker.master:
        _write_down(draft, group, broker)  # the manifest has changed again meanwhile
    elif (why := why_failing(pod, draft.facts.now)) is not None:
        message = f"{pod.name} does not come back: {why}. Correct the manifest, or put it back"
        draft.goes_on(reasons.ROLL_WAITS, message, WAIT_SECONDS)
    else:
        draft.goes_on(reasons.ROLLING, f"{pod.name} is new, and comes into sync")


def _take_down(draft: Draft, group: GroupFacts, broker: Broker, pod: Pod, begun: Replacing) -> None:
    if pod.terminating:
        draft.goes_on(reasons.ROLLING, f"{pod.name} ends")
        return
    problem = None if _is_lame(draft, group, broker) else _why_keep(draft, group, broker, pod)
    if problem is None:
        epoch = group.state.master_epoch if group.state is not None and pod.broken is None else None
        draft.act(
            DeletePod(pod.name, pod.uid, OLD, group=group.name if epoch is not None else None, epoch=epoch)
        )
        draft.goes_on(reasons.ROLLING, f"{pod.name} is replaced")
    elif draft.facts.now - begun.since > STALE_SECONDS:
        draft.remember(group, replacing=None)
        draft.waits(f"{pod.name} is not replaced now: {problem}")
    else:
        draft.goes_on(reasons.ROLLING, f"{pod.name} is replaced later: {problem}")


def _why_keep(draft: Draft, group: GroupFacts, broker: Broker, pod: Pod) -> str | None:
    if not _is_old(draft, group, pod):
        return "it is as wanted"
    if broker.master and group.current > 1:
        return "it has become master"
    return why_not_now(draft, group, broker)


def _is_back(group: GroupFacts, broker: Broker, begun: Replacing, now: float) -> bool:
    """Whether the new pod's broker does what the old one's did; its very own registration is waited for.

    Not for ever: a pod that was made anew at the address of the old one, just when its replacement was noted,
    had the start that is remembered. Controllers tell of a dead process for much less long.
    """
    if group.virgin:
        return True
    if broker.replica is None or broker.pod is None or not broker.pod.ready or broker.pod.terminating:
        return False
    if why_failing(broker.pod, now) is not None:
        return False
    started = broker.replica.broker_id != begun.broker_id or broker.replica.incarnation > begun.incarnation
    certain = started or now - begun.since > STALE_SECONDS
    return certain and (broker.in_sync or broker.fenced)


def _begin(draft: Draft, group: GroupFacts) -> None:
    old = old_brokers(draft, group)
    slaves = [broker for broker in old if not broker.master]
    # A fenced one is in nobody's way.
    slaves.sort(key=lambda broker: not broker.fenced)
    candidate = slaves[0] if slaves else old[0]
    problem = why_not_now(draft, group, candidate)
    if problem is not None:
        draft.goes_on(reasons.ROLL_WAITS, f"{group.name} has old pods, but {problem}", WAIT_SECONDS)
    elif slaves or group.virgin:
        _write_down(draft, group, candidate)
    elif _is_approved(draft, group):
        if group.current == 1:
            _write_down(draft, group, candidate)
        else:
            _hand_over(draft, group, candidate)


def _hand_over(draft: Draft, group: GroupFacts, master: Broker) -> None:
    others = [broker for broker in group.brokers.values() if broker.ordinal < group.current]
    target = successor(others, prefer=lambda broker: broker.ordinal < group.wanted)
    if target is None:
        draft.goes_on(
            reasons.ROLL_WAITS,
            f"{group.name}: nobody is in sync to take over from its old master",
            WAIT_SECONDS,
        )
        return
    draft.act(switch_over(group, target, f"the master, broker {master.broker_id}, is replaced: {OLD}"))
    draft.goes_on(reasons.ROLLING, f"the master of {group.name} hands over to broker {target.broker_id}")


def _is_approved(draft: Draft, group: GroupFacts) -> bool:
    """Whether the master may be touched; with `supervised` a person says so, for this master epoch."""
    if draft.facts.manifest.spec.update.strategy != "supervised" or group.state is None:
        return True
    epoch = group.state.master_epoch
    given = (draft.facts.meta.annotations.get(names.APPROVE) or "").replace(" ", "").split(",")
    if f"{group.name}/{epoch}" in given or f"{group.resource}/{epoch}" in given:
        return True
    draft.goes_on(
        reasons.WAITING_FOR_APPROVAL,
        f"all slaves of {group.name} are new: to let its master hand over and be replaced, annotate the"
        f" BrokerSet with {names.APPROVE}={group.name}/{epoch}",
        WAIT_SECONDS,
    )
    return False
