"""Rule 4: the members of the controllers' raft group follow the pods, one small step at a time."""

from __future__ import annotations

from brokerset_operator.model import names
from brokerset_operator.model.actions import (
    Action,
    AddController,
    DeletePod,
    MoveLeadership,
    PromoteController,
    RemoveController,
)
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import ControllerFacts, Facts
from brokerset_operator.plan.steps import Finding, Steps


def follow_members(facts: Facts) -> Steps:
    """Take at most one step, and say how many controller pods there are to be."""
    yield steps.Pods(None, (yield from _number(facts)))


def _number(facts: Facts) -> Finding[int]:
    """A pod goes only when its number is no member any more; a pod comes before it is a member."""
    known = facts.controllers
    if not known.own:
        return 0
    if not known.formed:
        return (yield from _form(known))
    if not known.led:
        yield steps.Waits(
            "no leading controller was confirmed: members and leaders of groups are left as they are"
        )
        return max([known.current, known.wanted, *(n + 1 for n in known.pods)])
    step, why_not = next_step(facts.meta.name, facts.meta.namespace, known)
    if step is not None:
        yield step
    if why_not is not None:
        yield steps.Waits(why_not)
    members = frozenset(known.members)
    wanted = frozenset(range(known.wanted))
    if step is not None or members != wanted or known.voters != wanted:
        yield steps.GoesOn(
            reasons.CHANGING_CONTROLLERS,
            f"controllers {_listed(known.voters)} vote; wanted are {_listed(wanted)}",
        )
    return max([known.wanted, *(n + 1 for n in members)])


def _form(known: ControllerFacts) -> Finding[int]:
    """Let the first pods come, until they lead."""
    # Without volumes the first members are those of the settings that each started with: their number stays.
    number = known.first_pods
    yield steps.Remember(None, {"controller_replicas": number})
    yield steps.GoesOn(reasons.STARTING, retained_text(known) if known.retained else "the controllers start")
    if not known.joins:
        for pod in (known.pods[n] for n in sorted(known.waiting & known.pods.keys())):
            if not pod.terminating:
                yield DeletePod(pod.name, pod.uid, "nobody has data: it must not wait for others")
    elif known.waiting >= frozenset(range(number)):
        # Nobody has data: that set was deleted before it began, and this one begins as a new one does.
        yield steps.Remember(None, {"blank_controllers": True})
        yield steps.Again(steps.AT_ONCE_SECONDS)
    return number


def retained_text(known: ControllerFacts) -> str:
    """What people are told while controllers start from volumes of a set that was deleted."""
    claims = ", ".join(known.retained.values())
    return (
        f"a deleted BrokerSet of this name left volumes of controllers ({claims}): {known.first_pods} of them"
        " start, so that those who voted can agree; then their number becomes what the manifest says"
    )


def lost_majority(known: ControllerFacts) -> frozenset[int]:
    """Return the voters whose volumes are gone, when so many are that the others can never agree."""
    gone = known.last_known - frozenset(known.claims) | known.last_known & known.waiting
    return (
        gone
        if known.last_known and len(known.last_known - gone) < majority(len(known.last_known))
        else frozenset()
    )


def next_step(name: str, namespace: str, known: ControllerFacts) -> tuple[Action | None, str | None]:
    """Return the next change of members, and why one that is wanted is not made now."""
    emptied = sorted(known.waiting & frozenset(known.members))
    learners = sorted(n for n, votes in known.members.items() if not votes)
    surplus = sorted((n for n in known.members if n >= known.wanted), reverse=True)
    for node_id in emptied:
        return _removal(known, node_id, "its volume is new: it forgot what it voted")
    for node_id in learners:
        if node_id >= known.wanted:
            return RemoveController(node_id, "the manifest wants fewer controllers"), None
        if node_id in known.answering and node_id in known.caught_up:
            if len(known.voting) + 1 >= majority(len(known.voters) + 1):
                return PromoteController(node_id), None
            return None, f"controller {node_id} gets its vote when more of the others answer"
        return None, f"controller {node_id} receives the log"
    # Who is to stay comes before anybody goes: it may be the only one that those who go can hand over to.
    # One that was a member before still has its data; it is safe as a learner, for its votes are its own.
    for node_id in sorted((known.waiting | known.answering) - frozenset(known.members)):
        if node_id < known.wanted:
            host = names.controller_host(name, namespace, node_id)
            return AddController(
                node_id, f"{host}:{names.RAFT_PORT}", f"{host}:{names.CONTROLLER_PORT}"
            ), None
    for node_id in surplus:
        if node_id == known.leader:
            return _leadership_move(known, node_id)
        return _removal(known, node_id, "the manifest wants fewer controllers")
    return None, None


def majority(voters: int) -> int:
    """Return how many of so many voters are more than half."""
    return voters // 2 + 1


def _removal(known: ControllerFacts, node_id: int, why: str) -> tuple[Action | None, str | None]:
    stay = known.voting - {node_id}
    left = known.voters - {node_id}
    agreeing = len(known.voting) if node_id in known.voting else len(stay)
    if not left or agreeing < majority(len(known.voters)) or len(stay) < majority(len(left)):
        return None, f"controller {node_id} stays a member until more of the others answer ({why})"
    return RemoveController(node_id, why), None


def _leadership_move(known: ControllerFacts, node_id: int) -> tuple[Action | None, str | None]:
    able = [n for n in sorted(known.voting & known.caught_up) if n != node_id and n < known.wanted]
    if not able:
        return None, f"controller {node_id} leads until another one has everything"
    return MoveLeadership(able[0], f"controller {node_id} is to go"), None


def _listed(numbers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
