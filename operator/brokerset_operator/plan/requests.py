"""Rule 9: what people ask for by annotation; done once for each value, and answered in `status.requests`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import Fence, SwitchOver
from brokerset_operator.plan import steps
from brokerset_operator.plan.facts import Facts, GroupFacts
from brokerset_operator.plan.objects import part, time_text
from brokerset_operator.plan.steps import Finding, Steps

PATIENCE_SECONDS: Final = 600.0
"""How long a request waits for the group to be able to do it."""

ACCEPTED: Final = "Accepted"
WAITING: Final = "Waiting"
FINISHED: Final = "Done"
REFUSED: Final = "Refused"
FAILED: Final = "Failed"

OPEN: Final = (ACCEPTED, WAITING)
"""States of requests that are not answered for good."""

FENCED_MAX: Final = 64
"""Most replicas in one annotation; a group has at most nine."""


NO_FENCES: Final = (
    "a DLedger cannot do without a member: delete the broker's pod to have it made again, or switch over with"
    f" {names.SWITCH_OVER} so that it does not lead"
)


@dataclass(frozen=True, slots=True)
class Target:
    """`<group>/<broker id>`, or a group alone."""

    group: str
    broker_id: int | None


def serve_requests(facts: Facts) -> Steps:
    """Answer the annotations."""
    old = part(facts.observed.status, "requests")
    switch = yield from _switch_over(facts, part(old, "switchover"))
    fence = yield from _fence(facts, part(old, "fence"))
    yield steps.Answers({name: item for name, item in (("switchover", switch), ("fence", fence)) if item})


def read_target(given: str) -> Target | None:
    """Return what `<group>[/<id>]` names; None when it cannot be read."""
    group, slash, number = given.strip().partition("/")
    if not group or (slash and not number.strip().isdecimal()):
        return None
    return Target(group, int(number) if slash else None)


# -- switchover -----------------------------------------------------------------------------------------


def _switch_over(facts: Facts, old: Mapping[str, Any]) -> Finding[dict[str, Any]]:
    value = facts.meta.annotations.get(names.SWITCH_OVER)
    if not value:
        return {}
    if old.get("value") != value:
        return (yield from _accept(facts, value))
    if old.get("state") not in OPEN:
        return dict(old)
    target, group = _found(facts, value)
    if target is None or group is None or group.state is None:
        return (yield from _waiting(facts, old, "nobody tells of the group now"))
    epoch = old.get("epoch")
    if isinstance(epoch, int) and group.state.master_epoch > epoch and group.state.master_id is not None:
        if target.broker_id in (None, group.state.master_id):
            return _answer(facts, value, FINISHED, f"broker {group.state.master_id} is master", old)
        # Somebody else was elected meanwhile: what was asked for is still to be done.
        old = {**old, "epoch": group.state.master_epoch}
    problem = _why_no_switch(facts, group, target)
    if problem is not None:
        return (yield from _waiting(facts, old, problem))
    yield SwitchOver(
        group=group.name,
        to_broker_id=target.broker_id,
        epoch=group.state.master_epoch,
        why=f"annotation {names.SWITCH_OVER}",
    )
    yield steps.Again(steps.BUSY_SECONDS)
    return (yield from _waiting(facts, old, "the master is asked to hand over"))


def _accept(facts: Facts, value: str) -> Finding[dict[str, Any]]:
    """Write down in which epoch it was asked for; it is done from the next reconcile on, and only once."""
    if read_target(value) is None:
        return _answer(facts, value, REFUSED, f"write <group> or <group>/<broker id>, not {value[:64]!r}")
    if not facts.led:
        yield steps.Again(steps.WAIT_SECONDS)
        return {}
    target, group = _found(facts, value)
    if group is None or target is None:
        known = ", ".join(each.name for each in facts.groups.values())
        return _answer(facts, value, REFUSED, f"there is no such group: groups are {known}")
    if group.state is None or group.master is None:
        yield steps.Again(steps.WAIT_SECONDS)
        return {}
    if target.broker_id == group.state.master_id:
        return _answer(facts, value, FINISHED, f"broker {target.broker_id} is master already")
    if target.broker_id is not None and all(r.broker_id != target.broker_id for r in group.state.replicas):
        ids = ", ".join(str(each.broker_id) for each in group.state.replicas)
        return _answer(facts, value, REFUSED, f"{group.name} has no broker {target.broker_id}: it has {ids}")
    yield steps.Again(steps.AT_ONCE_SECONDS)
    return {**_answer(facts, value, ACCEPTED, "is done next"), "epoch": group.state.master_epoch}


def _why_no_switch(facts: Facts, group: GroupFacts, target: Target) -> str | None:
    if not facts.led or group.master is None:
        return f"{group.name} has no living master"
    if group.contested is not None:
        return group.contested
    work = facts.work_of(group)
    if work.replacing is not None or work.leaving is not None:
        return f"a broker of {group.name} is being replaced or taken out"
    candidates = [each.broker_id for each in group.brokers.values() if each.can_lead]
    if target.broker_id is not None and target.broker_id not in candidates:
        return f"broker {target.broker_id} is not alive, in sync and unfenced"
    return None if candidates else f"no other broker of {group.name} is alive, in sync and unfenced"


# -- fences ----------------------------------------------------------------------------------------------


def _fence(facts: Facts, old: Mapping[str, Any]) -> Finding[dict[str, Any]]:
    """Fence what the annotation lists, and unfence what an earlier value of it had fenced."""
    value = facts.meta.annotations.get(names.FENCE) or ""
    if old.get("value", "") == value and old.get("state") not in OPEN:
        return dict(old)
    if facts.manifest.is_dledger:
        return _answer(facts, value, REFUSED, NO_FENCES) if value else {}
    if not facts.led:
        yield steps.Again(steps.WAIT_SECONDS)
        return dict(old)
    parts = [each for each in value.split(",") if each.strip()]
    targets = [read_target(each) for each in parts[:FENCED_MAX]]
    listed = [target for target in targets if target is not None and target.broker_id is not None]
    if len(listed) != len(parts):
        message = f"write <group>/<broker id>, … with at most {FENCED_MAX}, not {value[:64]!r}"
        return {**_answer(facts, value, REFUSED, message), "fenced": old.get("fenced", [])}
    ours = {name for name in old.get("fenced", []) if isinstance(name, str)}
    wanted = {f"{target.group}/{target.broker_id}": target for target in listed}
    fenced = sorted(ours | wanted.keys())
    if old.get("value", "") != value:
        # Written down before it is done: who is fenced by this must be known when the annotation goes.
        yield steps.Again(steps.AT_ONCE_SECONDS)
        return {**_answer(facts, value, ACCEPTED, "is done next"), "fenced": fenced}
    problems = []
    for name in (*sorted(wanted), *sorted(ours - wanted.keys())):
        target = wanted.get(name) or read_target(name)
        if target is not None and (problem := (yield from _fence_one(facts, target, name in wanted))):
            problems.append(problem)
    if not problems:
        if not value:
            return {}
        return {**_answer(facts, value, FINISHED, "as asked for", old), "fenced": sorted(wanted)}
    return {**(yield from _waiting(facts, old, "; ".join(problems))), "fenced": fenced}


def _fence_one(facts: Facts, target: Target, fenced: bool) -> Finding[str | None]:
    """Take one step; return what is still to be done, or None."""
    name = f"{target.group}/{target.broker_id}"
    group = facts.group_named(target.group)
    state = group.state if group is not None else None
    if group is None or state is None or target.broker_id is None:
        return f"{name}: the group is not known" if fenced else None
    if all(each.broker_id != target.broker_id for each in state.replicas):
        return f"{name}: there is no such broker" if fenced else None
    if (target.broker_id in state.fenced) == fenced:
        return None
    if fenced and target.broker_id == state.master_id:
        return f"{name} is the master: switch over first, with {names.SWITCH_OVER}={group.name}"
    if fenced and group.living_in_sync - {target.broker_id} <= {state.master_id}:
        return f"{name}: only the master would stay in sync: wait until another broker is"
    if fenced and facts.work_of(group).replacing is not None:
        return f"{name}: another broker is being replaced"
    yield Fence(group.name, target.broker_id, fenced, f"annotation {names.FENCE}")
    return f"{name} is being {'fenced' if fenced else 'taken in again'}"


# -- answers ---------------------------------------------------------------------------------------------


def _found(facts: Facts, value: str) -> tuple[Target | None, GroupFacts | None]:
    target = read_target(value)
    return target, None if target is None else facts.group_named(target.group)


def _waiting(facts: Facts, old: Mapping[str, Any], message: str) -> Finding[dict[str, Any]]:
    yield steps.Again(steps.BUSY_SECONDS)
    value, since = str(old.get("value", "")), old.get("since")
    began = float(since) if isinstance(since, int | float) else facts.now
    if facts.now - began > PATIENCE_SECONDS:
        return {
            **old,
            **_answer(facts, value, FAILED, f"given up: {message}. Set another value to try again"),
        }
    return {**old, "state": WAITING, "message": message}


def _answer(
    facts: Facts, value: str, state: str, message: str, old: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {**(old or {}), "value": value, "state": state, "message": message}
    found.setdefault("since", facts.now)
    if state not in OPEN:
        found["time"] = time_text(facts.now)
    return found
