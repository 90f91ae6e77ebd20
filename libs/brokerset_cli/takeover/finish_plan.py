"""What `brokerset adopt --finish` does next: facts about a set that joined in, steps out; knows no socket."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.steps import Step, StepState, in_order

WHOLE: Final = "whole"
NAME_SERVERS: Final = "name-servers"
CLIENTS: Final = "clients"
OWN: Final = "own"
LEAVE: Final = "leave"

NO_WAY_BACK: Final = "There is no way back from here."
AS_BEFORE: Final = "`--back`, as before"


class Standing(Enum):
    """Whose our brokers are, as the folder remembers it."""

    GUEST = "guest"
    """Java's controllers lead their groups."""

    OWN = "own"
    """Our controllers do, or will; they still register with Java's name servers."""

    ORDINARY = "ordinary"
    """Nothing of Java's is used any more."""


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """One group of the folder, as those say it who decide about it now.

    They are Java's controllers while our brokers are guests, or our brokers themselves when those do not
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

    standing: Standing
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
        return self.standing is Standing.GUEST and self.own_begun and not self.set_runs

    @property
    def past_guest(self) -> bool:
        """Whether the steps before `own` lie behind us."""
        return self.standing is not Standing.GUEST or self.stopped_for_own


def plan_finish(facts: FinishFacts) -> tuple[Step, ...]:
    """The steps from a set that is whole, and a guest, to an ordinary one."""
    return in_order([_whole(facts), _name_servers(facts), _clients(facts), _own(facts), _leave(facts)])


def go_on_with(facts: FinishFacts, option: str = "") -> str:
    """The command that goes on."""
    return f"`brokerset adopt --data {facts.folder}{option}`"


def _whole(facts: FinishFacts) -> Step:
    hint = ""
    if facts.past_guest:
        state, detail = StepState.DONE, ""
    elif facts.changed:
        state = StepState.YOURS
        detail = f"{', '.join(facts.changed)} still has settings of a hand-over"
        hint = (
            f"start {', '.join(facts.changed)} once more, so that it gets its settings back, then give the "
            f"same command again; one that will never run again is taken out of {facts.folder}/adoption.json"
        )
    elif needs_adopt(facts):
        assert facts.adoption is not None
        state, detail = StepState.YOURS, _text(facts.adoption)
        hint = f"{go_on_with(facts)} does that; then give this one again"
    elif living := [address for group in facts.groups for address in group.java]:
        state, detail = StepState.YOURS, f"{', '.join(living)} runs"
        hint = f"stop the Java broker at {', '.join(living)}, then give the same command again"
    elif not facts.java_answers:
        state = StepState.DONE if facts.whole_seen else StepState.BLOCKED
        detail = f"the controllers {facts.java_controllers} do not answer"
        detail = f"as it was seen before; {detail}" if facts.whole_seen else detail
        hint = (
            "" if facts.whole_seen else "start them again, so that it is seen once that every group is ours"
        )
    elif facts.adoption is not None and facts.set_runs:
        state, detail = StepState.WAITING, _text(facts.adoption)
    elif not facts.whole_seen:
        state, detail = StepState.READY, ""
    else:
        state, detail = StepState.DONE, ""
    return Step(WHOLE, "Every group is ours: no Java broker runs.", state, detail, hint, back=_back(facts))


def _back(facts: FinishFacts, how: str = AS_BEFORE) -> str:
    """How a step is undone; not at all once `own` has begun."""
    return "" if facts.past_guest else how


def needs_adopt(facts: FinishFacts) -> bool:
    """Whether `adopt` has to do something before; what it only waits for, is waited for here, too."""
    if facts.past_guest or facts.adoption is None:
        return False
    if not facts.set_runs and facts.whole_seen and not any(group.java for group in facts.groups):
        return False  # they are started again as guests, with what came since
    return facts.adoption.state is not StepState.WAITING


def _text(step: Step) -> str:
    return f"{step.name}: {step.detail or step.title}"


def _name_servers(facts: FinishFacts) -> Step:
    hint = ""
    if facts.past_guest:
        state, detail = StepState.DONE, ""
    elif not facts.set_runs and not facts.java_answers:
        state = StepState.BLOCKED
        detail = f"our brokers do not run, and the controllers {facts.java_controllers} do not answer"
        hint = "start those controllers again: until `own` is done our brokers cannot start without them"
    elif facts.stopping:
        state, detail = StepState.WAITING, "our brokers are stopping"
    elif facts.set_runs and facts.name_servers and not facts.missing and not facts.order_topics:
        state, detail = StepState.DONE, facts.name_servers
    elif facts.set_runs and facts.name_servers and facts.asked and not facts.order_topics:
        state, detail = StepState.WAITING, f"not registered yet: {'; '.join(facts.missing)}"
    else:
        state, detail = StepState.READY, ""
    return Step(
        NAME_SERVERS,
        "Controllers of ours, each with a name server, start beside; our brokers register there, too.",
        state,
        detail,
        hint,
        back=_back(facts),
    )


def _clients(facts: FinishFacts) -> Step:
    done = facts.past_guest or facts.clients_moved
    hint = (
        f"give every client, also consoles and scripts, namesrvAddr={facts.name_servers} instead of "
        f"{facts.java_name_servers}; both know all brokers, so one client after the other. When all have it: "
        f"{go_on_with(facts, ' --finish --clients-moved')}"
    )
    return Step(
        CLIENTS,
        "Clients get our name servers.",
        StepState.DONE if done else StepState.YOURS,
        "as you said" if done else "nobody can see that from outside",
        "" if done else hint,
        back=_back(facts, f"clients get {facts.java_name_servers} again, then `--back --clients-moved`"),
    )


def _own(facts: FinishFacts) -> Step:
    hint = ""
    if facts.standing is Standing.GUEST:
        problem = why_not_own(facts)
        if problem and facts.stopped_for_own:
            state = StepState.BLOCKED
            hint = (
                f"start ours as guests once more, `brokerset up --detach --data {facts.folder}`, so that "
                "they get what they may lack; then the same command says what to do"
            )
        else:
            state = StepState.WAITING if problem else StepState.READY
        detail = problem or ("our brokers have stopped for it" if facts.stopped_for_own else "")
    else:
        state, detail = _under_ours(facts)
    return Step(
        OWN,
        f"Our brokers stop for a moment, and start under our own controllers. {NO_WAY_BACK}",
        state,
        detail,
        hint,
    )


def why_not_own(facts: FinishFacts) -> str:
    """Why our brokers must not change to our controllers now; empty when nothing can be lost by it.

    Once they have stopped for it, what was seen before counts: nobody has taken messages since, unless a
    Java broker got in sync in that moment, and was elected.
    """
    if facts.changed:
        return f"{', '.join(facts.changed)} still has settings of a hand-over"
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


def _under_ours(facts: FinishFacts) -> tuple[StepState, str]:
    """How far our controllers are with groups that were told to them."""
    if facts.standing is Standing.ORDINARY:
        return StepState.DONE, ""
    if not facts.set_runs:
        return StepState.READY, "our brokers do not run"
    if not facts.controllers_answer:
        return StepState.WAITING, "our controllers do not answer yet"
    if complete := [group.name for group in facts.groups if group.complete]:
        return StepState.READY, f"our controllers do not know {', '.join(complete)} yet"
    for group in facts.groups:
        if not group.known:
            count = f"{group.answered} of {group.wanted}"
            return StepState.WAITING, f"{group.name}: {count} brokers have said who they are"
        if group.master_id is None:
            return StepState.WAITING, f"{group.name} has no master yet"
        if group.ready < group.wanted:
            return StepState.WAITING, f"{group.name}: {group.ready} of {group.wanted} brokers are in sync"
    if not facts.serving:
        return StepState.WAITING, "not every process serves yet"
    return StepState.DONE, ", ".join(f"master {each.name}/{each.master_id}" for each in facts.groups)


def _leave(facts: FinishFacts) -> Step:
    done = facts.standing is Standing.ORDINARY and not facts.remembered
    return Step(
        LEAVE,
        "Our brokers leave Java's name servers, and Java's controllers forget ours.",
        StepState.DONE if done else StepState.READY,
    )
