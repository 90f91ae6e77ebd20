"""What changes by itself: what is learned from it, and what people are told of it."""

from __future__ import annotations

from brokerset_operator.model import names
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Facts, GroupFacts
from brokerset_operator.plan.objects import part
from brokerset_operator.plan.problems import failing, group_problem
from brokerset_operator.plan.steps import Steps


def learn(facts: Facts) -> Steps:
    """Remember which id is on which volume, how many pods there are, and who ever had a master."""
    for group in facts.groups.values():
        if not group.dropped or group.known:
            led = group.work.led or (group.state is not None and not group.virgin)
            there = group.keeper.replicas if group.keeper is not None and not group.keeper.deleting else 0
            yield steps.remember(group, led=led, ids=_ids(group), replicas=max(there, group.work.replicas))


def _ids(group: GroupFacts) -> dict[int, int]:
    """Ids by ordinal; what contradicts what is known counts only when everything is seen and fits.

    A pod's address may have been another pod's a moment ago, and controllers tell of a dead process for two
    seconds: an id that seems to have moved to another ordinal has most likely not.
    """
    known = dict(group.work.ids)
    seen = {n: broker.replica.broker_id for n, broker in group.brokers.items() if broker.replica is not None}
    if len(seen) == len(group.brokers) == len(set(seen.values())):
        return dict(sorted((known | seen).items()))
    for ordinal, broker_id in seen.items():
        if broker_id not in known.values():
            known[ordinal] = broker_id
    return dict(sorted(known.items()))


def note_whole(facts: Facts) -> Steps:
    """Remember that a group was seen without a problem: from then on it is not being created any more."""
    for group in facts.groups.values():
        if not group.dropped and not group.work.whole and group_problem(facts, group) is None:
            yield steps.remember(group, whole=True)


def report_progress(facts: Facts) -> Steps:
    """Say what comes and goes by itself, and reconcile again soon while something does."""
    shape = facts.shape
    assert shape is not None, "it is decided before"
    for group in facts.groups.values():
        if group.dropped:
            continue
        problem = group_problem(facts, group)
        if problem is not None:
            yield steps.Again(steps.BUSY_SECONDS)
            if problem[0] in (reasons.CREATING, reasons.TOO_FEW_IN_SYNC, reasons.BROKERS_MISSING):
                yield steps.GoesOn(reasons.STARTING, problem[1])
        ending = [broker for n, broker in group.brokers.items() if n >= shape.groups.get(group.index, 0)]
        if any(broker.pod is not None for broker in ending):
            yield steps.GoesOn(reasons.SCALING, f"{len(ending)} brokers of {group.name} end")
    if any(n >= shape.controller_replicas for n in facts.controllers.pods):
        yield steps.GoesOn(reasons.CHANGING_CONTROLLERS, "controllers end that are no members any more")


def report_failing(facts: Facts) -> Steps:
    """Reconcile again while a controller crashes: nothing is heard of it when it has run for long enough."""
    known = facts.controllers
    if known.led and known.own and any(failing(facts, pod) is not None for pod in known.pods.values()):
        yield steps.Again(steps.WAIT_SECONDS)


def report_paused(facts: Facts) -> Steps:
    """Nothing is done, and what people have asked for stays as it is answered."""
    message = f"annotation {names.PAUSED}: nothing is changed"
    yield steps.GoesOn(reasons.PAUSED, message, steps.IDLE_SECONDS)
    yield steps.Answers(dict(part(facts.observed.status, "requests")))
