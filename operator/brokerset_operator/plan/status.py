"""The status of a BrokerSet: conditions, groups, a word for people, and what is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import EmitEvent
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan import owner, reasons
from brokerset_operator.plan.conditions import condition
from brokerset_operator.plan.controllers import lost_majority, retained_text
from brokerset_operator.plan.external import external_access, external_status
from brokerset_operator.plan.facts import ALIVE, Broker, ControllerFacts, Facts, GroupFacts
from brokerset_operator.plan.keeping_certificates import expiring_unseen, tls_status
from brokerset_operator.plan.objects import items
from brokerset_operator.plan.problems import failing, group_problem, is_being_created, trouble
from brokerset_operator.plan.workflow import write_workflow

Verdict = tuple[bool, str, str]
"""Whether a condition holds, why in one word, and what to know about it."""

PROBLEM_CHARACTERS_MAX: Final = 1024
"""Longest text on what is wrong with one broker."""


@dataclass(slots=True)
class Remarks:
    """What the rules tell people."""

    progress: list[tuple[str, str]] = field(default_factory=list)
    """Reason and message of everything that goes on; the first reason counts."""

    raised: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """Conditions that are there only while they are true, with reason and messages."""

    requests: dict[str, Any] = field(default_factory=dict)


def write_status(facts: Facts, remarks: Remarks) -> dict[str, Any]:
    """Return the whole status of a set with a valid manifest."""
    verdicts = _verdicts(facts, remarks)
    shown = [group for group in facts.groups.values() if group.wanted or group.keeper is not None]
    known = facts.controllers
    controllers: dict[str, Any] = {
        "formed": known.formed,
        "replicas": known.wanted,
        "ready": len(known.answering),
        "members": sorted(known.members),
        "voters": sorted(known.voters),
    }
    if (ref := facts.manifest.spec.controllers.ref) is not None:
        controllers["set"] = ref.name
    if known.leader is not None:
        controllers["leader"] = known.leader
    wanted = [group for group in shown if not group.dropped]
    lags = [
        lag
        for group in shown
        for broker in group.brokers.values()
        if (lag := _lag(group, broker)) is not None
    ]
    masters = [
        group.master.pod.name for group in shown if group.master is not None and group.master.pod is not None
    ]
    found: dict[str, Any] = {
        "observedGeneration": facts.meta.generation,
        "phase": _phase(facts, verdicts),
        "masters": ",".join(masters),
        "epochs": ",".join(str(group.state.master_epoch) for group in shown if group.state is not None),
        "groupCount": len(wanted),
        "inSync": f"{sum(_count(group) for group in wanted)}/{sum(group.wanted for group in wanted)}",
        "lagBytes": max(lags, default=0),
        "selector": ",".join(f"{key}={value}" for key, value in _first_brokers(facts.meta.name).items()),
        "conditions": [*conditions(facts.observed, verdicts), *_others_conditions(facts.observed)],
        "controllers": controllers,
        "groups": [_group(facts, group) for group in shown],
        "workflow": write_workflow(facts.memory),
    }
    if (access := external_access(facts)) is not None:
        found["external"] = external_status(access)
    found |= tls_status(facts)
    if remarks.requests:
        found["requests"] = remarks.requests
    return found | _owner(facts.observed)


def _first_brokers(name: str) -> dict[str, str]:
    """Labels of one pod of each group: an autoscaler takes the pods of the scale subresource for replicas."""
    return {**names.selector(name, "broker"), names.POD_INDEX_LABEL: "0"}


def invalid_status(observed: Observed, reason: str, message: str) -> dict[str, Any]:
    """Return the status of a set whose manifest is not carried out; what was known stays."""
    kept = {
        str(c["type"]): (c.get("status") == "True", str(c.get("reason")), str(c.get("message")))
        for c in items(observed.status, "conditions")
        if c.get("type") in reasons.ALWAYS
    }
    verdicts: dict[str, Verdict] = {
        reasons.PROGRESSING: (False, reason, "nothing is changed until the manifest is corrected"),
        reasons.DEGRADED: (False, reasons.NONE, "not observed"),
        **kept,
        reasons.READY: (False, reason, message),
    }
    until = "the manifest is corrected" if reason == reasons.INVALID_SPEC else "that is done"
    verdicts[reasons.PROGRESSING] = (False, reason, f"nothing is changed until {until}")
    why = "the manifest is invalid; correct it, as the condition Ready says"
    if (late := expiring_unseen(observed.status, observed.now, why)) is not None:
        verdicts[reasons.CERTIFICATE_EXPIRING] = (True, reasons.NOT_RENEWED, late)
    found = {
        **observed.status,
        "observedGeneration": observed.meta.generation,
        "phase": "Invalid",
        "conditions": [*conditions(observed, verdicts), *_others_conditions(observed)],
    }
    return found


def _others_conditions(observed: Observed) -> list[dict[str, Any]]:
    """Conditions that others write; they stay as they are, unless nobody says them any more."""
    refused = owner.believed(observed.status, observed.operator.installation, observed.now)
    kept = reasons.OTHERS if refused else (reasons.AUDIT_PASSED,)
    return [dict(one) for one in items(observed.status, "conditions") if one.get("type") in kept]


def _owner(observed: Observed) -> dict[str, Any]:
    mine = observed.operator.installation
    found: dict[str, Any] = {owner.OPERATOR: mine} if mine else {}
    if owner.believed(observed.status, mine, observed.now):
        found[owner.REFUSED] = observed.status[owner.REFUSED]
    return found


def conditions(observed: Observed, verdicts: Mapping[str, Verdict]) -> list[dict[str, Any]]:
    """Return conditions, in their order."""
    generation, now = observed.meta.generation, observed.now
    return [
        condition(
            observed.status,
            kind,
            ("True" if holds else "False", reason, message),
            generation=generation,
            now=now,
        )
        for kind, (holds, reason, message) in verdicts.items()
    ]


def events(observed: Observed, status: Mapping[str, Any]) -> list[EmitEvent]:
    """Return what changed since the last status that people should hear of."""
    before = {str(c.get("type")): c for c in items(observed.status, "conditions")}
    found = []
    for now in items(status, "conditions"):
        kind, old = str(now["type"]), before.get(str(now["type"]))
        if kind in reasons.OTHERS:
            continue
        good = (kind == reasons.READY) == (now["status"] == "True")
        same = old is not None and all(old.get(key) == now[key] for key in ("status", "reason"))
        if same or kind in (reasons.PROGRESSING, reasons.CONTROLLERS_READY) or (old is None and good):
            continue
        name, wanted = f"{kind}{now['reason']}"[:128], now["reason"] in reasons.WANTED
        found.append(EmitEvent(name, now["message"][:1024], warning=not good and not wanted))
    return found


def _verdicts(facts: Facts, remarks: Remarks) -> dict[str, Verdict]:
    wanted = [group for group in facts.groups.values() if not group.dropped]
    problems = [problem for group in wanted if (problem := group_problem(facts, group)) is not None]
    controllers = _controllers(facts)
    if not facts.led:
        problems.insert(0, controllers[1:])
    elif not controllers[0]:
        new = all(is_being_created(facts, group) for group in wanted)
        problems.append((reasons.CREATING if new else controllers[1], controllers[2]))
    fewer = [
        f"{g.name} has {g.current} brokers, wanted are {g.wanted}" for g in wanted if g.current != g.wanted
    ]
    ready: Verdict = (True, reasons.AS_WANTED, _whole_but(facts, wanted))
    if problems:
        ready = (False, problems[0][0], "; ".join(message for _, message in problems))
    elif fewer:
        ready = (False, reasons.SCALING, "; ".join(fewer))
    degraded: Verdict = (False, reasons.NONE, "")
    bad = [problem for problem in problems if problem[0] != reasons.CREATING]
    if bad:
        degraded = (True, bad[0][0], "; ".join(message for _, message in bad))
    progress: Verdict = (False, reasons.DONE, "")
    if remarks.progress:
        going = [reason for reason, _ in remarks.progress]
        asks = reasons.WAITING_FOR_APPROVAL in going
        reason = reasons.WAITING_FOR_APPROVAL if asks else going[0]
        message = "; ".join(dict.fromkeys(message for _, message in remarks.progress))
        progress = (reason != reasons.PAUSED, reason, message)
    contested = [group.contested for group in facts.groups.values() if group.contested is not None]
    found: dict[str, Verdict] = {
        reasons.READY: ready,
        reasons.PROGRESSING: progress,
        reasons.DEGRADED: degraded,
        reasons.CONTROLLERS_READY: controllers,
        reasons.IDENTITY_CONFLICT: _conflict(facts.groups.values(), contested),
    }
    for kind, (reason, messages) in sorted(remarks.raised.items()):
        found[kind] = (True, reason, "; ".join(messages))
    return found


def _whole_but(facts: Facts, groups: list[GroupFacts]) -> str:
    """What is true of groups without a problem: which brokers are not in sync because that is wanted."""
    fenced, replaced = [], []
    for group in groups:
        replacing = facts.work_of(group).replacing
        for ordinal in range(group.wanted):
            broker, pod = group.brokers.get(ordinal), f"{group.resource}-{ordinal}"
            if broker is not None and broker.fenced:
                fenced.append(pod)
            elif (broker is None or not broker.settled) and replacing is not None and replacing.pod == pod:
                replaced.append(pod)
    if not fenced and not replaced:
        return "every group has a master and all its brokers in sync"
    causes = [
        f"{word}: {', '.join(pods)}" for word, pods in (("fenced", fenced), ("replaced", replaced)) if pods
    ]
    return f"every group has a master, and its brokers are in sync but for some ({'; '.join(causes)})"


def _conflict(groups: Any, contested: list[str]) -> Verdict:
    if not contested:
        return False, reasons.NONE, ""
    foreign = any(group.foreign is not None for group in groups)
    advice = (
        "volumes and controllers keep the identity of the BrokerSet that made them: create this set under"
        " another name, or delete the claims that it took over if their messages are not wanted"
        if foreign
        else "a volume was copied or restored, or belongs to another set: keep one broker with this identity,"
        " and make the other a new replica by deleting its claim and its pod"
    )
    reason = reasons.OTHER_OWNER if foreign else reasons.FOREIGN_VOLUME
    return True, reason, f"{'; '.join(dict.fromkeys(contested))}. {advice}"


def _name_servers(facts: Facts) -> Verdict:
    """Of a set whose groups elect their leaders themselves, and that has no controllers."""
    pods = facts.name_servers
    ready = sum(pod.ready and not pod.terminating for pod in pods.values())
    if ready:
        message = f"none are wanted: groups elect their leaders; {ready} of {len(pods)} name servers serve"
        return True, reasons.AS_WANTED, message
    causes = [f"{pod.name}: {why}" for pod in pods.values() if (why := failing(facts, pod)) is not None]
    text = f" ({'; '.join(causes)})" if causes else ""
    return False, reasons.NAME_SERVERS_MISSING, f"no name server is ready{text}"


def _controllers(facts: Facts) -> Verdict:
    known = facts.controllers
    if facts.manifest.is_dledger and not known.own:
        return _name_servers(facts)
    if not known.led:
        broken = [f"{pod.name}: {pod.broken}" for pod in known.pods.values() if pod.broken is not None]
        causes = f" ({'; '.join(broken)})" if broken else ""
        ref = facts.manifest.spec.controllers.ref
        if ref is not None:
            message = f"no controller of BrokerSet {ref.name} leads: see its condition ControllersReady"
            return False, reasons.CONTROLLERS_SILENT if known.formed else reasons.CREATING, message
        if not known.formed:
            return _not_formed(known, causes)
        message = (
            f"no leading controller was confirmed, {len(known.answering)} of {known.wanted} answer: more than"
            f" half must run{causes}"
        )
        if not facts.manifest.is_dledger:
            message += ". Masters go on, but none is replaced"
        return False, reasons.CONTROLLERS_SILENT, message
    if not known.own:
        return True, reasons.AS_WANTED, "those of another set lead"
    begun = facts.memory.controllers
    crashing = {n: why for n, pod in known.pods.items() if (why := failing(facts, pod)) is not None}
    silent = [n for n in range(known.wanted) if n not in known.voting or n in crashing]
    replaced = begun is not None and all(begun.pod.endswith(f"-{n}") for n in silent)
    stuck = any(n in crashing for n in silent)
    if (silent and (stuck or not replaced)) or len(known.members) > known.wanted:
        listed = ", ".join(map(str, silent)) or "none"
        causes = "; ".join(f"{known.pods[n].name}: {crashing[n]}" for n in silent if n in crashing)
        return (
            False,
            reasons.CONTROLLERS_MISSING,
            f"controllers that do not vote and answer: {listed}{f' ({causes})' if causes else ''}",
        )
    others = f"all but {', '.join(map(str, silent))}, which is replaced, vote" if silent else "all vote"
    return True, reasons.AS_WANTED, f"controller {known.leader} leads, and {others}"


def _not_formed(known: ControllerFacts, causes: str) -> Verdict:
    if known.retained and (gone := lost_majority(known)):
        message = (
            f"controllers {_listed(known.last_known)} voted, and the volumes of {_listed(gone)} are gone: the"
            " others are no majority. Bring these volumes back; if they are gone for good delete the claims"
            " and pods of all controllers of this set, then run `brokerset controller rebuild`, which asks"
            " the brokers what they know"
        )
        return False, reasons.CONTROLLER_VOLUMES_LOST, message
    kept = f": {retained_text(known)}" if known.retained else ""
    return False, reasons.CREATING, f"the controllers have not formed a group yet{causes}{kept}"


def _listed(numbers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _phase(facts: Facts, verdicts: Mapping[str, Verdict]) -> str:
    ready, progressing = verdicts[reasons.READY], verdicts[reasons.PROGRESSING]
    if progressing[1] == reasons.PAUSED:
        return "Paused"
    if verdicts[reasons.DEGRADED][0]:
        return "Degraded"
    if ready[1] == reasons.CREATING:
        return "Creating"
    words = {reasons.SCALING: "Scaling", reasons.DRAINING_GROUP: "Draining"}
    if progressing[0]:
        return words.get(progressing[1], "Updating")
    return "Ready" if ready[0] else words.get(ready[1], "Degraded")


def _group(facts: Facts, group: GroupFacts) -> dict[str, Any]:
    state, master = group.state, group.master
    found: dict[str, Any] = {"name": group.name}
    if state is None:
        return found
    found |= {"epoch": state.master_epoch, "inSync": list(state.sync_state_set)}
    if facts.manifest.is_dledger:
        found["term"] = max(0, state.master_epoch - 1)
    if master is not None and master.replica is not None and master.pod is not None:
        found["master"] = {"id": master.replica.broker_id, "pod": master.pod.name}
    pods = {b.broker_id: b for b in group.brokers.values() if b.broker_id is not None and b.pod is not None}
    brokers = []
    for replica in state.replicas:
        broker = pods.get(replica.broker_id)
        one: dict[str, Any] = {"id": replica.broker_id}
        if broker is not None and broker.pod is not None:
            one["pod"] = broker.pod.name
            if (why := trouble(facts, broker.pod)) is not None:
                one["problem"] = why[:PROBLEM_CHARACTERS_MAX]
        alive = replica.standing == ALIVE
        word = "master" if replica.broker_id == state.master_id else "slave"
        one["role"] = "fenced" if replica.broker_id in state.fenced else word if alive else replica.standing
        if replica.max_offset is not None:
            one["maxOffset"] = replica.max_offset
        lag = _lag(group, broker) if broker is not None else None
        if lag is not None:
            one["lagBytes"] = lag
        brokers.append(one)
    return {**found, "brokers": brokers}


def _lag(group: GroupFacts, broker: Broker) -> int | None:
    master = group.master.replica if group.master is not None else None
    if (
        master is None
        or master.max_offset is None
        or broker.replica is None
        or broker.replica.max_offset is None
    ):
        return None
    return max(0, master.max_offset - broker.replica.max_offset)


def _count(group: GroupFacts) -> int:
    return sum(broker.settled for broker in group.brokers.values())
