"""What is wrong with groups and pods, in words for people."""

from __future__ import annotations

from typing import Final

from brokerset_operator.plan import reasons
from brokerset_operator.plan.facts import Facts, GroupFacts
from brokerset_operator.plan.live_settings import minimum_of
from brokerset_operator.plan.pods import Pod, why_failing

FIRST_EPOCH: Final = 1
"""Master epoch of a group's first master; a group that had to elect another one has begun."""


def group_problem(facts: Facts, group: GroupFacts) -> tuple[str, str] | None:
    """Return why a wanted group is not as the manifest wants it; a pod that we replace is no reason."""
    if group.contested is not None:
        return reasons.CONFLICT, group.contested
    silent = facts.manifest.is_dledger and group.work.led and group.state is None
    if silent:
        return reasons.NO_MASTER, f"none of the members of {group.name} answers{_causes(facts, group)}"
    if group.state is None or group.virgin:
        there = sum(broker.replica is not None for broker in group.brokers.values())
        return (
            reasons.CREATING,
            f"{group.name} has no master yet: {there} of {group.wanted} brokers registered"
            f"{_causes(facts, group)}",
        )
    if group.master is None:
        advice = group.state.advice or "its brokers start, or move"
        return reasons.NO_MASTER, f"{group.name} has no living master: {advice}{_causes(facts, group)}"
    least = None if facts.manifest.is_dledger else minimum_of(facts, group, group.master)
    if least is None:
        least = facts.manifest.min_in_sync_of(min(group.wanted, max(group.current, 1)))
    creating = is_being_created(facts, group)
    if len(group.living_in_sync) < least:
        return (
            reasons.CREATING if creating else reasons.TOO_FEW_IN_SYNC,
            f"{group.name} refuses sends: {len(group.living_in_sync)} in sync, and {least} must be"
            f"{_causes(facts, group)}",
        )
    replacing = facts.work_of(group).replacing
    missing = [
        f"{group.resource}-{ordinal}"
        for ordinal in range(group.wanted)
        if (broker := group.brokers.get(ordinal)) is None
        or not (broker.fenced or (broker.settled and failing(facts, broker.pod) is None))
    ]
    # One that is being replaced is missed for a moment by design, but not when it does not come back.
    missing = [
        pod
        for pod in missing
        if replacing is None or pod != replacing.pod or _does_not_come_back(facts, group, pod)
    ]
    if missing:
        narrow = "; one loss more, and it refuses sends" if len(group.living_in_sync) <= least else ""
        message = f"not in sync: {', '.join(missing)}{_causes(facts, group, missing)}{narrow}"
        return reasons.CREATING if creating else reasons.BROKERS_MISSING, message
    return None


def is_being_created(facts: Facts, group: GroupFacts) -> bool:
    """Whether a group has not begun: it elects a master when all have registered, in sync they are later."""
    epoch = group.state.master_epoch if group.state is not None else 0
    first = facts.manifest.is_dledger or epoch <= FIRST_EPOCH  # its members may need several elections
    return not facts.work_of(group).whole and first


def _causes(facts: Facts, group: GroupFacts, missing: list[str] | None = None) -> str:
    """What is known of brokers that are of no use, of `missing` or of all."""
    causes = [
        f"{broker.pod.name}: {why}"
        for broker in group.brokers.values()
        if broker.pod is not None
        if missing is None or broker.pod.name in missing
        if (why := trouble(facts, broker.pod)) is not None
    ]
    return f" ({'; '.join(causes)})" if causes else ""


def trouble(facts: Facts, pod: Pod) -> str | None:
    """Why a broker is of no use: its pod does not run, or what it says itself."""
    return pod.broken or facts.observed.troubles.get(pod.name) or failing(facts, pod)


def failing(facts: Facts, pod: Pod | None) -> str | None:
    return why_failing(pod, facts.now) if pod is not None else None


def _does_not_come_back(facts: Facts, group: GroupFacts, name: str) -> bool:
    pods = (broker.pod for broker in group.brokers.values())
    return any(pod is not None and pod.name == name and failing(facts, pod) is not None for pod in pods)
