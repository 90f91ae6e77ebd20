"""What `brokerset adopt` does next: facts about a cluster in, steps out; knows no socket, file or clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerset_cli.takeover.steps import (
    Standing,
    Step,
    blocked,
    done,
    in_order,
    ready,
    waiting,
    yours,
)

JOIN: Final = "join"
LEAVE: Final = "leave"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a group, as the controllers know it, and as it was found when it was asked."""

    broker_id: int
    address: str
    alive: bool
    """Whether the controllers hear it."""

    in_sync: bool
    ours: bool = False
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
    """Address of a Java broker that an interrupted switchover left read-only; empty when there is none."""

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

    @property
    def ours_ready(self) -> int:
        """How many of ours are alive and in sync."""
        return sum(each.alive and each.in_sync for each in self.ours)

    def name_of(self, replica: Replica) -> str:
        """What people call a replica."""
        return f"{self.name}/{replica.broker_id} at {replica.address}"


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that decides what is next."""

    groups: tuple[GroupFacts, ...]
    wanted: int
    """Brokers of ours for each group."""

    obstacles: tuple[str, ...] = ()
    """What stands against it; each with its way out."""

    set_runs: bool = False
    """Whether `up` runs in the folder."""

    folder: bool = False
    """Whether the folder has a set."""

    stop_with: bool = False
    """Whether a command was given that stops Java's brokers."""

    stopped: frozenset[str] = frozenset()
    """Steps for which this call has run that command."""


def plan_adoption(facts: Facts) -> tuple[Step, ...]:
    """The steps from Java's brokers to ours."""
    title = "Java's master stops taking messages, ours catches up and is elected."
    back = "Java's broker is made master again"
    found = [
        Step("look", "The cluster is looked at; nothing is changed.", *_observe(facts)),
        Step(
            JOIN,
            f"Brokers of ours start as replicas, {facts.wanted} in each group.",
            *_join(facts),
            back="they leave: stopped, cleaned from the controllers, their folders deleted",
        ),
        Step("catch-up", "They copy the logs until they are in sync.", *_catch_up(facts), back="as join"),
        *(Step(f"switch:{each.name}", title, *_switch(each, back=False), back=back) for each in facts.groups),
    ]
    for group in facts.groups:
        found += [_retire(group, each, facts) for each in group.theirs]
    return in_order(found)


def plan_return(facts: Facts) -> tuple[Step, ...]:
    """The steps from ours back to Java's brokers, until nothing of ours is left."""
    if not facts.folder:
        return ()
    found = [
        Step(
            f"return:{group.name}:{each.broker_id}",
            f"The Java broker {group.name_of(each)} runs and is in sync.",
            *_bring_back(group, each, facts.set_runs),
        )
        for group in facts.groups
        for each in group.theirs
    ]
    title = "A Java broker is made master again."
    found += [Step(f"switch:{each.name}", title, *_switch(each, back=True)) for each in facts.groups]
    title = "Our brokers are stopped and cleaned from the controllers, and their folder is deleted."
    problem = why_not_leave(facts)
    return in_order([*found, Step(LEAVE, title, *(waiting(problem) if problem else ready()))])


def _observe(facts: Facts) -> Standing:
    if not facts.obstacles:
        return done(", ".join(group.name for group in facts.groups))
    hint = "remove the obstacles, then look again; nothing was changed"
    return blocked(f"obstacles: {len(facts.obstacles)}", hint)


def _join(facts: Facts) -> Standing:
    living = {group.name: sum(each.alive for each in group.ours) for group in facts.groups}
    missing = [f"{name} {count} of {facts.wanted}" for name, count in living.items() if count < facts.wanted]
    if not facts.set_runs:
        return ready()
    return waiting(f"registered: {', '.join(missing)}") if missing else done()


def _catch_up(facts: Facts) -> Standing:
    if all(group.ours_ready >= facts.wanted for group in facts.groups):
        return done()
    behind = []
    for group in facts.groups:
        ends = [each.log_end for each in group.replicas if each.log_end is not None and each.alive]
        for each in group.ours:
            if each.alive and not each.in_sync:
                lag = "" if each.log_end is None else f", {max(ends) - each.log_end:,} bytes behind"
                behind.append(f"{group.name}/{each.broker_id}{lag}")
    return waiting("; ".join(behind))


def _switch(group: GroupFacts, *, back: bool) -> Standing:
    """To ours, or `back` to a Java broker."""
    master = group.master
    if group.read_only:
        return ready(f"{group.read_only} was left read-only by a call that was cut off")
    if master is None:
        return waiting("the controllers name no living master")
    if master.ours is not back:
        return done(f"master {group.name_of(master)}")
    if heir_of(group, ours=not back) is None:
        return waiting("no Java broker is in sync" if back else "none of ours is in sync")
    return ready(f"master {group.name_of(master)}")


def heir_of(group: GroupFacts, *, ours: bool) -> Replica | None:
    """Who is made master: a living replica in sync of that make; the longest log, then the lowest id."""
    found = [each for each in group.replicas if each.ours is ours and each.alive and each.in_sync]
    return min(found, key=lambda each: (-(each.log_end or 0), each.broker_id), default=None)


def _retire(group: GroupFacts, java: Replica, facts: Facts) -> Step:
    name = f"retire:{group.name}:{java.broker_id}"
    whole = "the group is whole without it"
    if not java.alive and not java.answers:
        standing = done("stopped; its id is kept, so that it can come back")
    elif not java.alive:
        standing = waiting(f"the controllers do not hear it, but {java.address} is still open")
    elif problem := why_not_retire(group, java, facts.wanted):
        standing = waiting(problem)
    elif facts.stop_with:
        standing = waiting(whole) if name in facts.stopped else ready(whole)
    else:
        hint = (
            f"stop the Java broker {group.name_of(java)} now, as its service is stopped on its host; keep "
            "its store, so that it can come back. Then give the same command again"
        )
        standing = yours(whole, hint)
    title = f"The Java broker {group.name_of(java)} is stopped."
    return Step(name, title, *standing, back="it is started again, and follows")


def why_not_retire(group: GroupFacts, java: Replica, wanted: int) -> str:
    """Why a Java broker must not be stopped now; empty when the group is whole without it."""
    if group.read_only:
        return f"{group.read_only} is still read-only"
    if group.master is None or not group.master.ours:
        return "the master is not ours"
    if group.ours_ready < wanted:
        return f"{group.ours_ready} of our {wanted} brokers are in sync"
    rest = sum(each.in_sync and each.alive and each.broker_id != java.broker_id for each in group.replicas)
    return f"{rest} would be in sync, and sends need {group.needs}" if rest < group.needs else ""


def _bring_back(group: GroupFacts, java: Replica, set_runs: bool) -> Standing:
    if java.alive and java.in_sync:
        return done("in sync")
    if not java.alive and not java.answers:
        hint = (
            f"start the Java broker {group.name_of(java)} again, with the store that it had. Then give the "
            "same command again"
        )
        return yours("it does not run", hint)
    if group.master is None and not set_runs:
        hint = (
            "start our brokers, `brokerset up --detach` with the --data of this command; then give the same "
            "command again"
        )
        return yours("it runs, and nobody has what it lacks: our brokers do not run", hint)
    return waiting("it runs, and is not in sync yet")


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
