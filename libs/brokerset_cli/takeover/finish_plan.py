"""What `brokerset adopt --finish` does next: facts about a set that joined in, steps out; knows no socket."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.steps import (
    Standing,
    Step,
    StepState,
    blocked,
    done,
    in_order,
    ready,
    waiting,
    yours,
)

WHOLE: Final = "whole"
NAME_SERVERS: Final = "name-servers"
CLIENTS: Final = "clients"
OWN: Final = "own"
LEAVE: Final = "leave"

NO_WAY_BACK: Final = "There is no way back from here."


class Owner(Enum):
    """Whose our brokers are, as the folder remembers it."""

    JOINED = "joined"
    """Java's controllers lead their groups."""

    OWN = "own"
    """Our controllers do, or will; they still register with Java's name servers."""

    ORDINARY = "ordinary"
    """Nothing of Java's is used any more."""


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """One group of the folder, as those say it who decide about it now.

    They are Java's controllers while our brokers belong to them, or our brokers themselves when those do not
    answer; afterwards ours.
    """

    name: str
    wanted: int
    """How many brokers of ours it has."""

    replicas: tuple[Replica, ...] = ()
    """Those of ours that are known."""

    master_id: int | None = None
    """The living master, if it is one of ours."""

    java: tuple[str, ...] = ()
    """Addresses of Java brokers of this group that live."""

    java_in_sync: tuple[str, ...] = ()
    """Those that Java's controllers count as in sync, dead ones too: they could have what ours lack."""

    known: bool = False
    """Whether our controllers know it."""

    answered: int = 0
    """How many of ours have said who they are, for controllers of ours that do not know the group."""

    @property
    def ready(self) -> int:
        """How many of ours are alive and in sync."""
        return sum(each.alive and each.in_sync for each in self.replicas)

    @property
    def complete(self) -> bool:
        """Whether it can be proposed to our controllers."""
        return not self.known and self.answered >= self.wanted

    def as_group_facts(self) -> GroupFacts:
        """For the table that is shown."""
        return GroupFacts(self.name, self.master_id, self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishFacts:
    """Everything that decides what is next."""

    owner: Owner
    folder: str
    groups: tuple[OwnGroup, ...] = ()
    set_runs: bool = False
    """Whether `up` runs in the folder."""

    serving: bool = False
    """Whether `up` has seen all of it serve."""

    stopping: bool = False
    """Whether `up` is about to end: it takes no wishes any more."""

    controllers_answer: bool = False
    """Whether our controllers do; it is asked behind `own` only."""

    java_answers: bool = False
    """Whether Java's controllers answer, and know our groups."""

    adoption: Step | None = None
    """What `adopt` would do next, if Java's controllers answer; None when all of that is done."""

    changed: tuple[str, ...] = ()
    """Java brokers that are to get settings back."""

    whole_seen: bool = False
    """Whether it was seen before that every group is ours."""

    clients_moved: bool = False
    own_begun: bool = False
    """Whether all of ours were seen in sync, and were about to be stopped."""

    asked: bool = False
    """Whether this call has told `up` to run controllers."""

    name_servers: str = ""
    """Ours, joined by semicolons; empty while there are none."""

    java_name_servers: str = ""
    java_controllers: str = ""
    missing: tuple[str, ...] = ()
    """Brokers that a name server of ours does not know, `broker-a at 10.0.0.9:10911`; or who is silent."""

    order_topics: tuple[str, ...] = ()
    """Entries of Java's name servers for ordered topics that ours lack."""

    remembered: bool = True
    """Whether the folder still has the memory of the adoption."""

    @property
    def stopped_for_own(self) -> bool:
        """Whether `own` has stopped our brokers, and the folder does not say yet whose they are."""
        return self.owner is Owner.JOINED and self.own_begun and not self.set_runs

    @property
    def past_joined(self) -> bool:
        """Whether the steps before `own` lie behind us."""
        return self.owner is not Owner.JOINED or self.stopped_for_own


def plan_finish(facts: FinishFacts) -> tuple[Step, ...]:
    """The steps from a set that is whole, and joined to another cluster, to an ordinary one."""
    again = f"clients get {facts.java_name_servers} again, then `--back --clients-moved`"
    before, clients = ("", "") if facts.past_joined else ("`--back`, as before", again)
    alongside = (
        "Controllers of ours, each with a name server, start alongside; our brokers register there, too."
    )
    own = f"Our brokers stop for a moment, and start under our own controllers. {NO_WAY_BACK}"
    leave = "Our brokers leave Java's name servers, and Java's controllers forget ours."
    left = facts.owner is Owner.ORDINARY and not facts.remembered
    return in_order(
        [
            Step(WHOLE, "Every group is ours: no Java broker runs.", *_whole(facts), back=before),
            Step(NAME_SERVERS, alongside, *_name_servers(facts), back=before),
            Step(CLIENTS, "Clients get our name servers.", *_clients(facts), back=clients),
            Step(OWN, own, *(_stopping(facts) if facts.owner is Owner.JOINED else _under_ours(facts))),
            Step(LEAVE, leave, *(done() if left else ready())),
        ]
    )


def go_on_with(facts: FinishFacts, option: str = "") -> str:
    """The command that goes on."""
    return f"`brokerset adopt --data {facts.folder}{option}`"


def _whole(facts: FinishFacts) -> Standing:
    if facts.past_joined:
        return done()
    if facts.changed:
        names = ", ".join(facts.changed)
        return yours(
            f"{names} still has settings of a switchover",
            f"start {names} once more, so that it gets its settings back, then give the "
            f"same command again; one that will never run again is taken out of {facts.folder}/adoption.json",
        )
    next_of_adopt = "" if facts.adoption is None else f"{facts.adoption.name}: "
    if facts.adoption is not None:
        next_of_adopt += facts.adoption.detail or facts.adoption.title
    if needs_adopt(facts):
        return yours(next_of_adopt, f"{go_on_with(facts)} does that; then give this one again")
    if living := ", ".join(address for group in facts.groups for address in group.java):
        return yours(f"{living} runs", f"stop the Java broker at {living}, then give the same command again")
    if not facts.java_answers:
        silent = f"the controllers {facts.java_controllers} do not answer"
        if facts.whole_seen:
            return done(f"as it was seen before; {silent}")
        return blocked(silent, "start them again, so that it is seen once that every group is ours")
    if next_of_adopt and facts.set_runs:
        return waiting(next_of_adopt)
    return done() if facts.whole_seen else ready()


def needs_adopt(facts: FinishFacts) -> bool:
    """Whether `adopt` has to do something before; what it only waits for, is waited for here, too."""
    if facts.past_joined or facts.adoption is None:
        return False
    if not facts.set_runs and facts.whole_seen and not any(group.java for group in facts.groups):
        return False  # they are started again under Java's controllers, with what came since
    return facts.adoption.state is not StepState.WAITING


def _name_servers(facts: FinishFacts) -> Standing:
    if facts.past_joined:
        return done()
    if not facts.set_runs and not facts.java_answers:
        return blocked(
            f"our brokers do not run, and the controllers {facts.java_controllers} do not answer",
            "start those controllers again: until `own` is done our brokers cannot start without them",
        )
    if facts.stopping:
        return waiting("our brokers are stopping")
    if not facts.set_runs or not facts.name_servers or facts.order_topics:
        return ready()
    if not facts.missing:
        return done(facts.name_servers)
    return waiting(f"not registered yet: {'; '.join(facts.missing)}") if facts.asked else ready()


def _clients(facts: FinishFacts) -> Standing:
    if facts.past_joined or facts.clients_moved:
        return done("as you said")
    return yours(
        "nobody can see that from outside",
        f"give every client, also consoles and scripts, namesrvAddr={facts.name_servers} instead of "
        f"{facts.java_name_servers}; both know all brokers, so one client after the other. When all have it: "
        f"{go_on_with(facts, ' --finish --clients-moved')}",
    )


def _stopping(facts: FinishFacts) -> Standing:
    """`own`, before the folder says that our brokers belong to our controllers."""
    problem = why_not_own(facts)
    if not facts.stopped_for_own:
        return waiting(problem) if problem else ready()
    hint = (
        f"start ours under Java's controllers once more, `brokerset up --detach --data {facts.folder}`, so "
        "that they get what they may lack; then the same command says what to do"
    )
    return blocked(problem, hint) if problem else ready("our brokers have stopped for it")


def why_not_own(facts: FinishFacts) -> str:
    """Why our brokers must not change to our controllers now; empty when nothing can be lost by it.

    Once they have stopped for it, what was seen before counts: nobody has taken messages since, unless a
    Java broker got in sync in that moment, and was elected.
    """
    if facts.changed:
        return f"{', '.join(facts.changed)} still has settings of a switchover"
    if not facts.groups:
        return "no group is known"
    for group in facts.groups:
        if group.java:
            return f"the Java broker at {', '.join(group.java)} runs"
        if group.java_in_sync:
            return f"the Java broker at {', '.join(group.java_in_sync)} counts as in sync"
    if facts.stopped_for_own:
        return ""
    if not facts.whole_seen:
        return "it was not seen that every group is ours"
    if not facts.clients_moved:
        return "clients still use other name servers"
    if not facts.set_runs or not facts.name_servers:
        return "our brokers, or our name servers, do not run"
    if facts.missing:
        return f"not registered: {'; '.join(facts.missing)}"
    for group in facts.groups:
        if not any(each.broker_id == group.master_id and each.alive for each in group.replicas):
            return f"{group.name} has no master of ours"
        if group.ready < group.wanted:
            return f"{group.name}: {group.ready} of our {group.wanted} brokers are in sync"
    return ""


def _under_ours(facts: FinishFacts) -> Standing:
    """How far our controllers are with the groups that they are to take in."""
    if facts.owner is Owner.ORDINARY:
        return done()
    if not facts.set_runs:
        return ready("our brokers do not run")
    if not facts.controllers_answer:
        return waiting("our controllers do not answer yet")
    if complete := [group.name for group in facts.groups if group.complete]:
        return ready(f"our controllers do not know {', '.join(complete)} yet")
    for group in facts.groups:
        if not group.known:
            return waiting(f"{group.name}: {group.answered} of {group.wanted} brokers have said who they are")
        if group.master_id is None:
            return waiting(f"{group.name} has no master yet")
        if group.ready < group.wanted:
            return waiting(f"{group.name}: {group.ready} of {group.wanted} brokers are in sync")
    if not facts.serving:
        return waiting("not every process serves yet")
    return done(", ".join(f"master {each.name}/{each.master_id}" for each in facts.groups))
