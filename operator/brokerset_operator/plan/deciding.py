"""What to do about a BrokerSet now: `plan` looks at what is, and returns what is safe to do.

The rules, their order, and what must never happen are in DESIGN.md, "A round".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from brokerset_operator.model import names
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan import reasons
from brokerset_operator.plan.controller_rollout import roll_controllers
from brokerset_operator.plan.controllers import decide_controllers
from brokerset_operator.plan.draft import BUSY_SECONDS, IDLE_SECONDS, Draft, begin
from brokerset_operator.plan.draining import decide_drained, keeping_claims
from brokerset_operator.plan.external import external_access, report_waiting
from brokerset_operator.plan.facts import Facts, gather, renamed
from brokerset_operator.plan.live_settings import keep_settings
from brokerset_operator.plan.lost import forget_lost
from brokerset_operator.plan.objects import part, template_of
from brokerset_operator.plan.requests import serve_requests
from brokerset_operator.plan.rollout import roll_brokers
from brokerset_operator.plan.scaling import decide_size
from brokerset_operator.plan.services import correct_master_service
from brokerset_operator.plan.static import keep_objects
from brokerset_operator.plan.status import events, group_problem, invalid_status, write_status
from brokerset_operator.plan.stuck import free_stuck
from brokerset_operator.plan.volumes import keep_volumes, with_fixed_fields_of
from brokerset_operator.resources.settings_files import read_file
from brokerset_operator.resources.wanted import Shape, wanted_objects

Wanted = Callable[[Observed, Shape], tuple[Mapping[str, Any], ...]]
"""Who says what objects a set of this shape has."""

Manifests = tuple[Mapping[str, Any], ...]


def plan(observed: Observed, wanted: Wanted = wanted_objects) -> Plan:
    """Return what to do now, the status, and when to look again.

    Every action is safe on its own and may be repeated; `observed` may be a moment old, except for `status`,
    which must be as it was written last.
    """
    if observed.meta.deleting:
        return Plan((), observed.status, IDLE_SECONDS, ("the set is being deleted",))
    if observed.manifest is None:
        return _refuse(observed, "; ".join(map(str, observed.problems)) or "the manifest cannot be read")
    facts = gather(observed)
    if changed := renamed(facts):
        texts = (f"spec.brokerNames: group {index} is {old}, not {new}" for index, old, new in changed)
        return _refuse(
            observed, f"{'; '.join(texts)}; a group keeps its name: put it back, or add it at the end"
        )
    draft = begin(facts)
    if observed.meta.annotations.get(names.PAUSED) == "true":
        draft.progress.append((reasons.PAUSED, f"annotation {names.PAUSED}: nothing is changed"))
        draft.requests = dict(part(observed.status, "requests"))
        return _finish(draft)
    _decide(draft, wanted)
    return _finish(draft)


def _refuse(observed: Observed, message: str) -> Plan:
    status = invalid_status(observed, reasons.INVALID_SPEC, message)
    return Plan(tuple(events(observed, status)), status, IDLE_SECONDS, (message,))


def _decide(draft: Draft, wanted: Wanted) -> None:
    facts, observed = draft.facts, draft.facts.observed
    free_stuck(draft)
    access = external_access(facts)
    addresses = access.addresses if access is not None else None
    first = replace(_shape_now(facts), external=addresses)
    objects = wanted(observed, first)
    draft.templates = {name: template_of(each) for name, each in _stateful_sets(objects).items()}
    shape = replace(_decide_shape(draft), external=addresses)
    # Objects go first: what a request may be refused for, a newer manifest may mend.
    decided, draft.actions = draft.actions, []
    if shape != first:
        objects = wanted(observed, shape)
    objects = _keeping_claims(facts, objects)
    stateful_sets = _stateful_sets(objects)
    draft.templates = {**draft.templates, **{n: template_of(each) for n, each in stateful_sets.items()}}
    held = keep_volumes(draft, stateful_sets)
    keep_objects(draft, objects, held)
    draft.actions += decided
    controllers_done = roll_controllers(draft)
    roll_brokers(draft, controllers_done=controllers_done)
    for group in facts.groups.values():
        forget_lost(draft, group)
        correct_master_service(draft, group)
    serve_requests(draft)
    files = {str(each["metadata"]["name"]): each for each in objects if each["kind"] == "ConfigMap"}
    for group in facts.groups.values():
        keep_settings(draft, group, read_file(files.get(group.resource, {})))
    report_waiting(draft, access)
    _watch(draft, shape)


def _watch(draft: Draft, shape: Shape) -> None:
    """Say what comes and goes by itself, and look again soon while something does."""
    for group in draft.facts.groups.values():
        if group.dropped:
            continue
        problem = group_problem(draft, group)
        if problem is not None:
            draft.look(BUSY_SECONDS)
            if problem[0] in (reasons.CREATING, reasons.TOO_FEW_IN_SYNC, reasons.BROKERS_MISSING):
                draft.goes_on(reasons.STARTING, problem[1])
        ending = [broker for n, broker in group.brokers.items() if n >= shape.groups.get(group.index, 0)]
        if any(broker.pod is not None for broker in ending):
            draft.goes_on(reasons.SCALING, f"{len(ending)} brokers of {group.name} end")
    if any(n >= shape.controller_replicas for n in draft.facts.controllers.pods):
        draft.goes_on(reasons.CHANGING_CONTROLLERS, "controllers end that are no members any more")


def _shape_now(facts: Facts) -> Shape:
    """The set as it is, with what is not there yet at full size."""
    known = facts.controllers
    groups = {
        index: group.current or group.wanted
        for index, group in facts.groups.items()
        if group.wanted or (group.keeper is not None and not group.keeper.deleting)
    }
    return Shape(
        controller_replicas=(known.current or known.first_pods) if known.own else 0,
        raft_join=known.joins,
        groups=groups,
        read_only_groups=frozenset(index for index in groups if facts.groups[index].dropped),
    )


def _decide_shape(draft: Draft) -> Shape:
    facts = draft.facts
    controllers = decide_controllers(draft)
    sizes = {index: decide_size(draft, group) for index, group in facts.groups.items() if not group.dropped}
    staying = decide_drained(draft)
    return Shape(
        controller_replicas=controllers,
        raft_join=facts.controllers.joins,
        groups=dict(sorted((sizes | staying).items())),
        read_only_groups=frozenset(staying),
    )


def _keeping_claims(facts: Facts, objects: Manifests) -> Manifests:
    """Objects as they are wanted; a group that is to go keeps its claims and its claim templates."""
    going = {group.resource for group in facts.groups.values() if group.dropped}
    there = facts.observed.stateful_sets
    found: list[Mapping[str, Any]] = []
    for each in objects:
        name = str(each["metadata"]["name"])
        if each["kind"] == "StatefulSet" and name in going:
            kept = with_fixed_fields_of(each, there[name]) if name in there else each
            found.append(keeping_claims(kept))
        else:
            found.append(each)
    return tuple(found)


def _stateful_sets(objects: Manifests) -> dict[str, Mapping[str, Any]]:
    return {str(each["metadata"]["name"]): each for each in objects if each["kind"] == "StatefulSet"}


def _finish(draft: Draft) -> Plan:
    status = write_status(draft)
    actions = (*draft.actions, *events(draft.facts.observed, status), *draft.last)
    return Plan(actions, status, draft.look_again_seconds, tuple(draft.notes))
