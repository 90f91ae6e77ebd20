"""What to do about a BrokerSet now: `plan` asks the rules, and puts in order what they answer.

The two tables say which rules there are, in which order they are asked, and in which stage their actions are
carried out. What a rule remembers is seen by those below it. What must never happen is in DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from brokerset_operator.model import access_stages, names, password_rotation, tls_stages
from brokerset_operator.model.actions import Action, Fence, Plan, SwitchOver
from brokerset_operator.model.observed import Object, Observed
from brokerset_operator.plan import reasons
from brokerset_operator.plan.access import report_access
from brokerset_operator.plan.controllers import follow_members
from brokerset_operator.plan.draining import drain_groups, keeping_claims
from brokerset_operator.plan.external import external_access, report_addresses
from brokerset_operator.plan.facts import Facts, gather, renamed
from brokerset_operator.plan.keeping_certificates import (
    awaits_certificate,
    keep_certificates,
    keep_trust,
    report_certificates,
)
from brokerset_operator.plan.live_settings import keep_settings
from brokerset_operator.plan.mending import free_stuck, mend_groups
from brokerset_operator.plan.pods import template_of
from brokerset_operator.plan.requests import serve_requests
from brokerset_operator.plan.rollout import roll_brokers, roll_controllers
from brokerset_operator.plan.rotation import rotate_passwords
from brokerset_operator.plan.scaling import size_groups
from brokerset_operator.plan.static import keep_objects, stateful_sets
from brokerset_operator.plan.status import Remarks, events, invalid_status, write_status
from brokerset_operator.plan.steps import (
    IDLE_SECONDS,
    WAIT_SECONDS,
    Again,
    Answers,
    At,
    GoesOn,
    Pods,
    Raise,
    Remember,
    Rule,
    Stage,
    Step,
    Takes,
    Unless,
    Waits,
)
from brokerset_operator.plan.tls import report_tls
from brokerset_operator.plan.volumes import with_fixed_fields_of
from brokerset_operator.plan.watching import learn, note_whole, report_failing, report_paused, report_progress
from brokerset_operator.plan.workflow import Workflow
from brokerset_operator.resources.wanted import Shape, wanted_objects

SHAPING: Final = (
    Rule(Stage.OBJECTS, learn),
    Rule(Stage.STUCK, free_stuck),
    Rule(Stage.MEMBERS, follow_members),
    Rule(Stage.SIZE, size_groups),
    Rule(Stage.SIZE, drain_groups),
)
"""Rules that say how many pods there are to be; then it is known what objects the set consists of."""

CARRYING_OUT: Final = (
    Rule(Stage.OBJECTS, keep_certificates),
    Rule(Stage.OBJECTS, keep_objects),
    Rule(Stage.ROLL, roll_controllers),
    Rule(Stage.ROLL, roll_brokers),
    Rule(Stage.MEND, mend_groups),
    Rule(Stage.REQUESTS, serve_requests),
    Rule(Stage.SETTINGS, keep_settings),
    Rule(Stage.SETTINGS, rotate_passwords),
    Rule(Stage.EVENTS, report_tls),
    Rule(Stage.EVENTS, report_certificates),
    Rule(Stage.EVENTS, report_access),
    Rule(Stage.EVENTS, report_addresses),
    Rule(Stage.EVENTS, report_progress),
    Rule(Stage.EVENTS, report_failing),
    Rule(Stage.EVENTS, note_whole),
)

WITHOUT_CERTIFICATE: Final = tuple(
    Rule(Stage.OBJECTS, keep_trust) if rule.steps is keep_objects else rule
    for rule in CARRYING_OUT
    if rule.steps not in (roll_controllers, roll_brokers)
)
"""While a set waits for the certificate that its pods are to have: they stay as they are."""

PAUSED: Final = (
    Rule(Stage.EVENTS, learn),
    Rule(Stage.EVENTS, report_paused),
    Rule(Stage.EVENTS, report_certificates),
    Rule(Stage.EVENTS, report_failing),
    Rule(Stage.EVENTS, note_whole),
)
"""All of them while people have paused the set: none acts."""

Wanted = Callable[[Observed, Shape], tuple[Object, ...]]
"""Who says what objects a set of this shape has."""


def plan(observed: Observed, wanted: Wanted = wanted_objects) -> Plan:
    """Return what to do now, the status, and when to reconcile again.

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
    if (
        problem := tls_stages.forgotten(observed) or password_rotation.changed_too_soon(observed)
    ) is not None:
        return _refuse(observed, problem)
    if (problem := tls_stages.must_wait(observed)) is not None:
        return _refuse(observed, problem, again_seconds=WAIT_SECONDS)
    if (problem := access_stages.must_wait(observed)) is not None:
        return _refuse(observed, problem, reasons.NO_CREDENTIALS, WAIT_SECONDS)
    decided = Decided(facts)
    if observed.meta.annotations.get(names.PAUSED) == "true":
        decided.follow(PAUSED)
    else:
        decided.follow(SHAPING)
        decided.facts = _with_objects(decided.facts, decided.pods, wanted)
        decided.follow(WITHOUT_CERTIFICATE if awaits_certificate(decided.facts) else CARRYING_OUT)
    return decided.finished()


def _refuse(
    observed: Observed, message: str, reason: str = reasons.INVALID_SPEC, again_seconds: float = IDLE_SECONDS
) -> Plan:
    status = invalid_status(observed, reason, message)
    return Plan(tuple(events(observed, status)), status, again_seconds, (message,))


@dataclass(slots=True)
class Decided:
    """What the rules have answered so far, ordered, and without what excludes each other."""

    facts: Facts
    actions: list[tuple[Stage, Action]] = field(default_factory=list)
    remarks: Remarks = field(default_factory=Remarks)
    notes: list[str] = field(default_factory=list)
    again_seconds: float = IDLE_SECONDS
    pods: list[Pods] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    """Scopes in which something is being done, see `Takes`."""

    def follow(self, rules: Iterable[Rule]) -> None:
        """Ask each of the rules, with what was decided before it."""
        for rule in rules:
            memory = self.facts.memory
            for step in rule.steps(self.facts):
                memory = self._take(step, rule.stage, memory)
            self.facts = replace(self.facts, memory=memory)

    def finished(self) -> Plan:
        """The plan, with its status."""
        status = write_status(self.facts, self.remarks)
        self.actions += [(Stage.EVENTS, event) for event in events(self.facts.observed, status)]
        ordered = tuple(action for _, action in sorted(self.actions, key=lambda one: one[0]))
        return Plan(ordered, status, self.again_seconds, tuple(self.notes))

    def _take(self, step: Step, stage: Stage, memory: Workflow) -> Workflow:
        """Put one step where it belongs; returns what is remembered with it."""
        match step:
            case Unless(scope, steps, otherwise):
                for each in otherwise if scope in self.taken else steps:
                    memory = self._take(each, stage, memory)
            case Takes(scope):
                self.taken.add(scope)
            case Remember(index, changes):
                if index is None:
                    return replace(memory, **changes)
                work = replace(memory.groups.get(index, self.facts.groups[index].work), **changes)
                return replace(memory, groups=dict(sorted({**memory.groups, index: work}.items())))
            case GoesOn(reason, message, seconds):
                self.remarks.progress.append((reason, message))
                self._again(seconds)
            case Waits(message, seconds):
                self.notes.append(message)
                self._again(seconds)
            case Again(seconds):
                self._again(seconds)
            case Raise(condition, reason, message):
                _, texts = self.remarks.raised.setdefault(condition, (reason, []))
                if not any(message in text for text in texts):
                    texts.append(message)
            case Pods():
                self.pods.append(step)
            case Answers(requests):
                self.remarks.requests = dict(requests)
            case At(later, action):
                self._act(later, action)
            case _:
                self._act(stage, step)
        return memory

    def _act(self, stage: Stage, action: Action) -> None:
        self.actions.append((stage, action))
        if isinstance(action, SwitchOver | Fence):
            self.taken.add(action.group)

    def _again(self, seconds: float) -> None:
        self.again_seconds = min(self.again_seconds, seconds)


# -- objects ---------------------------------------------------------------------------------------------


def _with_objects(facts: Facts, pods: Iterable[Pods], wanted: Wanted) -> Facts:
    """The set as it is to be now, with what it consists of then."""
    access = external_access(facts)
    numbers = {each.index: each.number for each in pods}
    shape = Shape(
        controller_replicas=numbers.pop(None, 0),
        raft_join=facts.controllers.joins,
        groups={index: numbers[index] for index in facts.groups if index in numbers},
        read_only_groups=frozenset(each.index for each in pods if each.read_only and each.index is not None),
        external=access.addresses if access is not None else None,
    )
    objects = tuple(_keeping_claims(facts, each) for each in wanted(facts.observed, shape))
    # A group that goes now has pods as well, of which it is asked whether they are old.
    going = {
        index: group.current
        for index, group in facts.groups.items()
        if index not in shape.groups and group.keeper is not None and not group.keeper.deleting
    }
    all_of_them = objects
    if going:
        all_of_them = wanted(facts.observed, replace(shape, groups={**shape.groups, **going}))
    templates = {name: template_of(each) for name, each in stateful_sets(all_of_them).items()}
    return replace(facts, shape=shape, objects=objects, templates=templates)


def _keeping_claims(facts: Facts, manifest: Object) -> Object:
    """An object as it is wanted; a group that is to go keeps its claims and its claim templates."""
    name, there = str(manifest["metadata"]["name"]), facts.observed.stateful_sets
    going = any(group.dropped and group.resource == name for group in facts.groups.values())
    if manifest["kind"] != "StatefulSet" or not going:
        return manifest
    return keeping_claims(with_fixed_fields_of(manifest, there[name]) if name in there else manifest)
