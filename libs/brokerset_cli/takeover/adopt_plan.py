"""What `brokerset adopt` does next: facts about a cluster in, steps out; knows no socket, file or clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from brokerset_cli.takeover.steps import Step, StepState, in_order

JOIN: Final = "join"
CATCH_UP: Final = "catch-up"
LEAVE: Final = "leave"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a group, as the controllers know it, and as it was found when it was asked."""

    broker_id: int
    address: str
    alive: bool
    """Whether the controllers hear it."""

    in_sync: bool
    ours: bool
    """Whether it is a broker of the folder."""

    answers: bool = True
    """Whether something listens at its address."""

    log_end: int | None = None
    """None when it does not say it."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group of the cluster."""

    name: str
    master_id: int | None
    replicas: tuple[Replica, ...]
    needs: int = 1
    """How many must be in sync before our master acknowledges a send (`minInSyncReplicas`)."""

    counted: frozenset[int] | None = None
    """Ids of the Java brokers that the adoption is about: those that lived when it began; None before."""

    read_only: str = ""
    """Address of a Java broker that an interrupted hand-over has left read-only; empty when there is none."""

    @property
    def master(self) -> Replica | None:
        """The master, if the controllers name one and hear it."""
        found = next((each for each in self.replicas if each.broker_id == self.master_id), None)
        return found if found is not None and found.alive else None

    @property
    def ours(self) -> tuple[Replica, ...]:
        """Our replicas."""
        return tuple(each for each in self.replicas if each.ours)

    @property
    def theirs(self) -> tuple[Replica, ...]:
        """Java's replicas that the adoption is about, those first that can go first: never the master."""
        counted = self.counted
        found = [
            each
            for each in self.replicas
            if not each.ours and (each.alive or counted is None or each.broker_id in counted)
        ]
        return tuple(sorted(found, key=lambda each: (each.broker_id == self.master_id, each.broker_id)))

    def in_sync_without(self, broker_id: int) -> int:
        """How many living replicas are in sync when one is gone."""
        return sum(each.in_sync and each.alive and each.broker_id != broker_id for each in self.replicas)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that decides what is next."""

    groups: tuple[GroupFacts, ...]
    wanted: int
    """Brokers of ours for each group."""

    obstacles: tuple[str, ...] = ()
    """What stands against it, found by the look; each with its way out."""

    set_runs: bool = False
    """Whether `up` runs in the folder."""

    folder: bool = False
    """Whether the folder has a set."""


def plan_adoption(facts: Facts, *, stop_with: bool = False) -> tuple[Step, ...]:
    """The steps from Java's brokers to ours. `stop_with`: brokers are stopped by a command that was given."""
    names = ", ".join(group.name for group in facts.groups)
    found = [_look(facts, names), _join(facts), _catch_up(facts)]
    found += [_switch(group) for group in facts.groups]
    for group in facts.groups:
        found += [_retire(group, each, facts.wanted, stop_with) for each in group.theirs]
    return in_order(found)


def plan_return(facts: Facts) -> tuple[Step, ...]:
    """The steps from ours back to Java's brokers, until nothing of ours is left."""
    if not facts.folder:
        return ()
    found = []
    for group in facts.groups:
        found += [_bring_back(group, each, facts.set_runs) for each in group.theirs]
    found += [_switch_back(group) for group in facts.groups]
    return in_order([*found, _leave(facts)])


def _look(facts: Facts, names: str) -> Step:
    blocked = bool(facts.obstacles)
    return Step(
        "look",
        "The cluster is looked at; nothing is changed.",
        StepState.BLOCKED if blocked else StepState.DONE,
        f"obstacles: {len(facts.obstacles)}" if blocked else names,
        "remove the obstacles, then look again; nothing was changed" if blocked else "",
    )


def _join(facts: Facts) -> Step:
    missing = [
        f"{group.name} {_living(group.ours)} of {facts.wanted}"
        for group in facts.groups
        if _living(group.ours) < facts.wanted
    ]
    if not missing and facts.set_runs:
        state = StepState.DONE
    else:
        state = StepState.WAITING if facts.set_runs else StepState.READY
    return Step(
        JOIN,
        f"Brokers of ours start as replicas, {facts.wanted} in each group.",
        state,
        f"registered: {', '.join(missing)}" if missing and facts.set_runs else "",
        back="they leave: stopped, cleaned from the controllers, their folders deleted",
    )


def _living(replicas: Iterable[Replica]) -> int:
    return sum(each.alive for each in replicas)


def _catch_up(facts: Facts) -> Step:
    behind = []
    for group in facts.groups:
        ends = [each.log_end for each in group.replicas if each.log_end is not None and each.alive]
        for each in group.ours:
            if each.alive and not each.in_sync:
                lag = "" if each.log_end is None else f", {max(ends) - each.log_end:,} bytes behind"
                behind.append(f"{group.name}/{each.broker_id}{lag}")
    complete = all(
        sum(each.alive and each.in_sync for each in group.ours) >= facts.wanted for group in facts.groups
    )
    return Step(
        CATCH_UP,
        "They copy the logs until they are in sync.",
        StepState.DONE if complete else StepState.WAITING,
        "" if complete else "; ".join(behind),
        back="as join",
    )


def _switch(group: GroupFacts) -> Step:
    master = group.master
    if master is not None and master.ours and not group.read_only:
        state, detail = StepState.DONE, f"master {group.name}/{master.broker_id} at {master.address}"
    elif group.read_only:
        state, detail = StepState.READY, f"{group.read_only} was left read-only by a call that was cut off"
    elif master is None:
        state, detail = StepState.WAITING, "the controllers name no living master"
    elif heir_of(group, ours=True) is None:
        state, detail = StepState.WAITING, "none of ours is in sync"
    else:
        state, detail = StepState.READY, f"master {group.name}/{master.broker_id} at {master.address}"
    return Step(
        f"switch:{group.name}",
        "Java's master stops taking messages, ours catches up and is elected.",
        state,
        detail,
        back="Java's broker is made master again",
    )


def heir_of(group: GroupFacts, *, ours: bool) -> Replica | None:
    """Who is made master: a living replica in sync of that make; the longest log, then the lowest id."""
    found = [each for each in group.replicas if each.ours is ours and each.alive and each.in_sync]
    return min(found, key=lambda each: (-(each.log_end or 0), each.broker_id), default=None)


def _retire(group: GroupFacts, java: Replica, wanted: int, stop_with: bool) -> Step:
    name = f"{group.name}/{java.broker_id} at {java.address}"
    problem = why_not_retire(group, java, wanted)
    hint = ""
    if not java.alive and not java.answers:
        state, detail = StepState.DONE, "stopped; its id is kept, so that it can come back"
    elif not java.alive:
        state, detail = StepState.WAITING, f"the controllers do not hear it, but {java.address} is still open"
    elif problem:
        state, detail = StepState.WAITING, problem
    elif stop_with:
        state, detail = StepState.READY, "the group is whole without it"
    else:
        state, detail = StepState.YOURS, "the group is whole without it"
        hint = (
            f"stop the Java broker {name} now, as its service is stopped on its host; keep its store, so "
            "that it can come back. Then give the same command again"
        )
    return Step(
        f"retire:{group.name}:{java.broker_id}",
        f"The Java broker {name} is stopped.",
        state,
        detail,
        hint,
        back="it is started again, and follows",
    )


def why_not_retire(group: GroupFacts, java: Replica, wanted: int) -> str:
    """Why a Java broker must not be stopped now; empty when the group is whole without it."""
    if group.read_only:
        return f"{group.read_only} is still read-only"
    if group.master is None or not group.master.ours:
        return "the master is not ours"
    in_sync = sum(each.alive and each.in_sync for each in group.ours)
    if in_sync < wanted:
        return f"{in_sync} of our {wanted} brokers are in sync"
    rest = group.in_sync_without(java.broker_id)
    return f"{rest} would be in sync, and sends need {group.needs}" if rest < group.needs else ""


def _bring_back(group: GroupFacts, java: Replica, set_runs: bool) -> Step:
    name = f"{group.name}/{java.broker_id} at {java.address}"
    hint = ""
    if java.alive and java.in_sync:
        state, detail = StepState.DONE, "in sync"
    elif (java.alive or java.answers) and group.master is None and not set_runs:
        state, detail = StepState.YOURS, "it runs, and nobody has what it lacks: our brokers do not run"
        hint = (
            "start our brokers, `brokerset up --detach` with the --data of this command; then give the same "
            "command again"
        )
    elif java.alive or java.answers:
        state, detail = StepState.WAITING, "it runs, and is not in sync yet"
    else:
        state, detail = StepState.YOURS, "it does not run"
        hint = (
            f"start the Java broker {name} again, with the store that it had. Then give the same command "
            "again"
        )
    return Step(
        f"return:{group.name}:{java.broker_id}",
        f"The Java broker {name} runs and is in sync.",
        state,
        detail,
        hint,
    )


def _switch_back(group: GroupFacts) -> Step:
    master = group.master
    if group.read_only:
        state, detail = StepState.READY, f"{group.read_only} was left read-only by a call that was cut off"
    elif master is not None and not master.ours:
        state, detail = StepState.DONE, f"master {group.name}/{master.broker_id} at {master.address}"
    elif master is None:
        state, detail = StepState.WAITING, "the controllers name no living master"
    elif heir_of(group, ours=False) is None:
        state, detail = StepState.WAITING, "no Java broker is in sync"
    else:
        state, detail = StepState.READY, f"master {group.name}/{master.broker_id} at {master.address}"
    return Step(f"switch:{group.name}", "A Java broker is made master again.", state, detail)


def _leave(facts: Facts) -> Step:
    problem = why_not_leave(facts)
    return Step(
        LEAVE,
        "Our brokers are stopped and cleaned from the controllers, and their folder is deleted.",
        StepState.WAITING if problem else StepState.READY,
        problem,
    )


def why_not_leave(facts: Facts) -> str:
    """Why our brokers must not go now; empty when every group lives without them."""
    if not facts.groups:
        return "no group is known"
    for group in facts.groups:
        if group.read_only:
            return f"{group.read_only} is still read-only"
        if group.master is None or group.master.ours:
            return f"the master of {group.name} is not Java's"
        if any(not each.in_sync or not each.alive for each in group.theirs):
            return f"{group.name}: not every Java broker is in sync"
    return ""


def until_step(steps: Sequence[Step], last: str | None) -> tuple[Step, ...]:
    """The steps up to one that is named, or to all of its kind: `retire` means every `retire:…`.

    Raises `KeyError` when none is meant.
    """
    if last is None:
        return tuple(steps)

    def meant(step: Step) -> bool:
        return step.name == last or step.name.startswith(f"{last}:")

    places = [number for number, step in enumerate(steps) if meant(step)]
    if not places:
        raise KeyError(last)
    return tuple(steps[: places[-1] + 1])


def kinds(steps: Sequence[Step]) -> str:
    """The names that can be given to `--to`."""
    return ", ".join(dict.fromkeys(step.name.partition(":")[0] for step in steps))
