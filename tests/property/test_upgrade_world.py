"""`upgrade_plan` in a made world: commands die between any two acts, people are early, clients send."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.steps import StepState, current
from brokerset_cli.takeover.upgrade_facts import (
    Act,
    BrokerSeen,
    Comparison,
    Likeness,
    Note,
    OldStore,
    Origin,
    Prepare,
    Presence,
    PutAside,
    SetPermission,
    StartBroker,
    StoreSeen,
    TakeNote,
    TruncateLog,
    World,
)
from brokerset_cli.takeover.upgrade_plan import Plan, choose_leader, logs_wanted, plan_upgrade
from brokerset_formats.identity import BrokerIdentity

GROUP = "broker-a"
FLOWS = (Origin.IDENTITY, Origin.CLASSIC)
"""A DLedger group has a world of its own."""

ROUNDS_MAX = 150
OLD_EPOCHS = ((1, 0), (3, 2))


@dataclass
class Broker:
    """A store with whatever process runs on it. An offset is a number of messages."""

    number: int
    log: list[int]
    epochs: tuple[tuple[int, int], ...] | None
    old_runs: bool = True
    new_runs: bool = False
    note: Note | None = None
    broker_id: int | None = None
    permission: int = 6

    @property
    def name(self) -> str:
        return f"/store-{self.number}"

    @property
    def address(self) -> str:
        return f"10.0.0.{self.number}:10911"

    @property
    def prepared(self) -> bool:
        return bool(self.epochs and self.epochs[0][0] == 0) or bool(self.note and self.note.prepared)


@dataclass
class Made:
    """The world, and what must never happen in it."""

    flow: Origin
    brokers: list[Broker]
    old_controllers: bool
    old_data: bool
    can_start: bool
    seen: bool = True
    """Whether a name server names the old brokers."""
    accept_cut: frozenset[str] = frozenset()
    wanted: str = ""
    new_controllers: bool = False
    master_id: int | None = None
    sent: int = 100
    moved: dict[int, bool] = field(default_factory=dict)

    @property
    def old_master(self) -> Broker:
        return self.brokers[0]

    # -- what the command sees -----------------------------------------------------------------------

    def world(self) -> World:
        stores = tuple(
            StoreSeen(
                OldStore(
                    Path(each.name), 1 if each.old_runs or each.new_runs else None, True, 0, len(each.log),
                    1024, each.epochs,
                    BrokerIdentity("c", GROUP, each.broker_id) if each.broker_id is not None else None, "5.x",
                ),
                each.note,
            )
            for each in self.brokers
        )  # fmt: skip
        seen = World(
            flow=self.flow,
            group=GROUP,
            stores=stores,
            brokers=tuple(
                BrokerSeen(
                    each.address,
                    each is self.old_master,
                    len(each.log),
                    each.permission,
                    not each.permission & 2,
                    each.name,
                )
                for each in self.brokers
                if each.old_runs and self.seen
            ),
            old_controllers=Presence.OLD if self.old_controllers else Presence.GONE,
            old_data=("/controller",) if self.old_data else (),
            controllers_problem="" if self.new_controllers else "none answers",
            replicas=self._replicas(),
            master_permission=6 if self.master_id is not None else None,
            wanted_master=self.wanted,
            accept_cut=self.accept_cut,
            can_start=self.can_start,
        )
        if not logs_wanted(seen):
            return replace(seen, stores=tuple(replace(s, store=replace(s.store, end=None)) for s in stores))
        leader, _ = choose_leader(seen)
        if leader is None:
            return seen
        mine = self.by_name(leader.name)
        others = {each.name: compare(mine.log, each.log) for each in self.brokers if each is not mine}
        return replace(seen, comparisons=others)

    def _replicas(self) -> GroupFacts | None:
        found = [each for each in self.brokers if each.broker_id is not None]
        if not found or not self.new_controllers:
            return None
        master = next((each for each in found if each.broker_id == self.master_id), None)
        return GroupFacts(
            GROUP,
            self.master_id,
            tuple(
                Replica(
                    each.broker_id or 0,
                    each.address,
                    each.new_runs,
                    master is not None and each.log == master.log,
                )
                for each in found
            ),
        )

    def by_name(self, name: str) -> Broker:
        return next(each for each in self.brokers if each.name == name)

    # -- what happens by itself ----------------------------------------------------------------------

    def send(self) -> None:
        """A client sends to the old master."""
        if self.old_master.old_runs and self.old_master.permission & 2:
            self.old_master.log.append(self.sent)
            self.sent += 1

    def copy(self) -> None:
        """Slaves copy one message."""
        for each in self.brokers[1:]:
            ahead = self.old_master.log[: len(each.log)] == each.log and len(self.old_master.log) > len(
                each.log
            )
            if each.old_runs and self.old_master.old_runs and ahead:
                each.log.append(self.old_master.log[len(each.log)])

    def stop_stuck_slaves(self) -> None:
        """The person stops slaves that copy nothing any more."""
        for each in self.brokers[1:]:
            each.old_runs = each.old_runs and self.old_master.log[: len(each.log)] == each.log

    def settle(self) -> None:
        """New brokers register, the first one is elected, slaves take over their master's log."""
        if not self.new_controllers:
            return
        for each in self.brokers:
            if not each.new_runs:
                continue
            if each.broker_id is None:
                each.broker_id = 1 + sum(other.broker_id is not None for other in self.brokers)
            if self.master_id is None:
                self.master_id = each.broker_id
                for other in self.brokers:
                    assert len(other.log) <= len(each.log), "the shorter log leads"
        master = next((each for each in self.brokers if each.broker_id == self.master_id), None)
        for each in self.brokers:
            if master is not None and each.new_runs and master.new_runs and each is not master:
                assert master.log[: len(each.log)] == each.log, (
                    "a slave that is no beginning of its master follows it"
                )
                each.log = list(master.log)

    # -- what the command does -----------------------------------------------------------------------

    def do(self, act: Act, plan: Plan, stage: int) -> None:
        """Carry an act out up to a stage, as if the command died there; stage 9 is all of it."""
        match act:
            case TakeNote(store, address, master, members):
                each = self.by_name(store)
                note = each.note or Note(self.flow.value, GROUP)
                each.note = replace(note, address=address, master=master, members=members)
            case SetPermission(address, value, was, store):
                each = self.by_name(store)
                if was is not None:
                    each.note = replace(each.note or Note(self.flow.value, GROUP), permission=was)
                if stage > 0:
                    next(one for one in self.brokers if one.address == address).permission = value
            case PutAside():
                assert not self.old_controllers, "the data of controllers that run is moved"
                self.old_data = False
            case TruncateLog(store, offset):
                each = self.by_name(store)
                assert not each.old_runs
                assert not each.new_runs
                assert store in self.accept_cut, "a log is cut that nobody allowed to be cut"
                end = (
                    len(each.log)
                    if stage == 0
                    else max(offset, offset + (len(each.log) - offset) // (stage + 1))
                )
                each.log = each.log[: offset if stage == 9 else end]
            case Prepare(store, _, leader):
                self._prepare(self.by_name(store), leader, stage)
            case StartBroker(store):
                each = self.by_name(store)
                assert each.prepared
                assert all(one.prepared for one in self.brokers), "a broker starts while epochs are old"
                if store == plan.leader:
                    for other in self.brokers:
                        assert each.log[: len(other.log)] == other.log, "the leader lacks what another has"
                else:
                    elected = [one for one in self.brokers if one.broker_id == self.master_id]
                    assert elected, "a slave starts before a master is elected"
                    assert elected[0].name == plan.leader
                    assert elected[0].new_runs
                each.new_runs = True

    def _prepare(self, each: Broker, leader: str, stage: int) -> None:
        assert not each.old_runs, "epochs are moved while the broker runs"
        assert not each.new_runs
        assert not self.old_controllers, "epochs are moved while old controllers run"
        note = each.note or Note(self.flow.value, GROUP)
        each.note = replace(note, leader=leader, moved=("epochFileCheckpoint",) if each.epochs else ())
        if stage == 0:
            return
        if each.epochs and each.epochs[0][0] != 0:
            self.moved[each.number] = True
            each.epochs = None
        if stage == 1:
            return
        if each.log and each.epochs is None:
            each.epochs = ((0, 0),)
        if stage == 2:
            return
        each.note = replace(each.note, prepared=True)

    # -- what the person does ------------------------------------------------------------------------

    def follow(self, plan: Plan) -> None:
        """Do what the current step asks for."""
        step = current(plan.steps)
        assert step is not None
        match step.name:
            case "old-controllers":
                self.old_controllers = False
            case "controllers":
                self.new_controllers = True
            case "slaves-stopped" | "master-stopped":
                for each in self.brokers:
                    each.old_runs = each.old_runs and f"{each.name} (" not in step.detail
            case "start-master" | "start-slaves" if step.state is StepState.YOURS:
                each = next(one for one in self.brokers if one.name in step.detail)
                self.do(StartBroker(each.name), plan, 9)
            case "start-master" | "start-slaves":
                for each in self.brokers:  # somebody had started an old broker again
                    each.old_runs = False
            case _:
                raise AssertionError(f"nobody knows what to do about {step}")


def compare(master: list[int], slave: list[int]) -> Comparison:
    common = next(
        (i for i, (a, b) in enumerate(zip(master, slave, strict=False)) if a != b),
        min(len(master), len(slave)),
    )
    if common == len(slave):
        return Comparison(Likeness.PREFIX, common)
    kind = Likeness.LONGER if common == len(master) else Likeness.APART
    if common == 0:
        return Comparison(Likeness.NOTHING)
    return Comparison(kind, common, len(slave) - common, len(slave) - common)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("command"), st.sampled_from([0, 1, 2, 9])),
        st.tuples(
            st.sampled_from(["person", "send", "copy", "settle", "old controllers", "old broker"]),
            st.integers(0, 2),
        ),
    ),
    max_size=60,
)


def made(flow: Origin, tails: list[list[int]], *, can_start: bool, accept: bool, seen: bool = True) -> Made:
    """Old brokers that run; `tails` is what each slave has behind the first ten messages of the master."""
    common = list(range(10))
    brokers = [Broker(0, [*common, 10, 11], OLD_EPOCHS if flow is Origin.IDENTITY else None)]
    brokers += [
        Broker(n + 1, common + tail, OLD_EPOCHS if flow is Origin.IDENTITY else None)
        for n, tail in enumerate(tails)
    ]
    names = frozenset(each.name for each in brokers[1:]) if accept else frozenset()
    return Made(flow, brokers, flow is Origin.IDENTITY, flow is Origin.IDENTITY, can_start, seen, names)


def play(it: Made, kind: str, which: int) -> None:
    """One event of the world."""
    match kind:
        case "command":
            plan = plan_upgrade(it.world())
            if plan.act is not None:
                it.do(plan.act, plan, which)
        case "person":
            plan = plan_upgrade(it.world())
            step = current(plan.steps)
            if step is not None and step.state is StepState.YOURS:
                it.follow(plan)
        case "send":
            it.send()
        case "copy":
            it.copy()
        case "settle":
            it.settle()
        case "old controllers":
            if it.flow is Origin.IDENTITY and not any(each.broker_id for each in it.brokers):
                it.old_controllers = True
        case "old broker":
            each = it.brokers[which % len(it.brokers)]
            if not each.new_runs and each.broker_id is None and it.master_id is None:
                each.old_runs = True
        case _:
            raise AssertionError(kind)


def finish(it: Made) -> str:
    """Go on as people would; the words of what stands against it, empty when all was done."""
    for _ in range(ROUNDS_MAX):
        it.copy()
        it.settle()
        plan = plan_upgrade(it.world())
        step = current(plan.steps)
        if step is None:
            return ""
        if step.state is StepState.BLOCKED and step.name == "start-master":
            for each in it.brokers:
                each.old_runs = False
            continue
        if "equally long" in step.detail:
            it.wanted = it.old_master.name
            continue
        if step.state is StepState.BLOCKED:
            return step.detail
        if plan.act is not None:
            it.do(plan.act, plan, 9)
        elif step.name == "read-only":
            it.stop_stuck_slaves()
        elif step.state is StepState.YOURS or step.name in ("start-master", "start-slaves"):
            it.follow(plan)
    raise AssertionError(f"it does not come to an end; last {step}")


@given(st.sampled_from(FLOWS), st.integers(1, 2), st.booleans(), st.booleans(), EVENTS)
def test_an_upgrade_goes_on_after_any_crash_and_loses_nothing(
    flow: Origin, slaves: int, can_start: bool, seen: bool, events: list[tuple[str, int]]
) -> None:
    """Whatever dies, restarts or is sent: no rule is broken, the end comes, every message is everywhere."""
    it = made(flow, [[10], []][:slaves], can_start=can_start, accept=False, seen=seen)

    for kind, which in events:
        play(it, kind, which)
    words = finish(it)

    assert words == ""
    assert all(each.log == it.brokers[0].log for each in it.brokers)
    assert it.brokers[0].log[:12] == list(range(12))
    assert all(each.epochs and each.epochs[0] == (0, 0) for each in it.brokers)
    assert flow is Origin.CLASSIC or len(it.moved) == len(it.brokers)


@given(st.sampled_from(FLOWS), st.booleans(), st.sampled_from([[10, 77], [77], [10, 11, 77, 78]]), EVENTS)
def test_what_a_slave_alone_has_is_cut_only_by_who_says_so(
    flow: Origin, accept: bool, tail: list[int], events: list[tuple[str, int]]
) -> None:
    """A slave with other messages than its master's stops the upgrade; with --accept-cut exactly these go."""
    it = made(flow, [tail], can_start=True, accept=accept)

    for kind, which in events:
        play(it, kind, which)
    words = finish(it)

    if accept:
        assert words == ""
        assert it.brokers[1].log == it.brokers[0].log
        assert 77 not in it.brokers[0].log
    else:
        assert "/store-1" in words
        assert "would be cut from offset" in words
        assert it.brokers[1].log[10:] == tail
        assert not it.brokers[1].new_runs
