"""`brokerset upgrade dledger` in a made world: what a client was told to be stored is everywhere in the end.

Commands die in the middle of acts, members come and go, lead and lose the lead, clients send.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.steps import StepState, current
from brokerset_cli.takeover.upgrade_dledger import BEGUN, DONE
from brokerset_cli.takeover.upgrade_facts import (
    Act,
    BrokerSeen,
    Comparison,
    Exchange,
    Likeness,
    Note,
    OldStore,
    Origin,
    Prepare,
    StartBroker,
    StoreSeen,
    TakeNote,
    World,
)
from brokerset_cli.takeover.upgrade_plan import Plan, choose_leader, logs_wanted, plan_upgrade
from brokerset_formats.identity import BrokerIdentity

GROUP = "broker-a"
ROUNDS_MAX = 200
STAGES = (0, 1, 2, 9)
"""How far an act comes until the command dies; 9 is all of it."""

Entry = tuple[int, int]
"""Term and message."""


@dataclass
class Member:
    """A store with whatever process runs on it."""

    number: int
    ledger: list[Entry] | None
    """None once it was moved aside."""

    log: list[int] | None = None
    """The commit log of controller mode."""

    term: int = 0
    committed: int = 0
    checkpoint: int = 0
    """What the disk says of `committed`; it is written now and then."""

    runs: bool = True
    new_runs: bool = False
    note: Note | None = None
    prepared: bool = False
    broker_id: int | None = None

    @property
    def name(self) -> str:
        return f"/store-{self.number}"

    @property
    def address(self) -> str:
        return f"10.0.0.{self.number}:10911"

    @property
    def last(self) -> tuple[int, int]:
        entries = self.ledger or []
        return (entries[-1][0], len(entries) - 1) if entries else (-1, -1)


@dataclass
class Group:
    """The world, and what must never happen in it."""

    members: list[Member]
    can_start: bool
    seen: bool = True
    leader: int | None = 0
    controllers: bool = False
    master_id: int | None = None
    sent: int = 0
    acknowledged: frozenset[int] = frozenset()

    # -- DLedger --------------------------------------------------------------------------------------

    @property
    def _up(self) -> list[Member]:
        return [each for each in self.members if each.runs and each.ledger is not None]

    @property
    def _quorum(self) -> int:
        return len(self.members) // 2 + 1

    def elect(self, number: int) -> None:
        """By last term and index, as DLedger votes; a new leader begins its term with an entry of it."""
        candidate = self.members[number % len(self.members)]
        votes = [each for each in self._up if each.last <= candidate.last]
        if candidate in self._up and len(votes) >= self._quorum:
            term = 1 + max(each.term for each in votes)
            for each in votes:
                each.term = term
            self.leader = candidate.number
            self._append()

    def _leading(self) -> Member | None:
        leader = None if self.leader is None else self.members[self.leader]
        return leader if leader is not None and leader in self._up else None

    def _append(self) -> int | None:
        leader = self._leading()
        if leader is None or leader.ledger is None:
            return None
        self.sent += 1
        leader.ledger.append((leader.term, self.sent))
        return self.sent

    def push(self, number: int) -> None:
        """A member gets all that the leader has; what a quorum has is acknowledged."""
        leader, member = self._leading(), self.members[number % len(self.members)]
        if leader is None or member not in self._up or member.term > leader.term or leader.ledger is None:
            return
        member.term, member.ledger = leader.term, list(leader.ledger)
        same = [each for each in self._up if each.term == leader.term and each.ledger is not None]
        for end in range(len(leader.ledger), leader.committed, -1):
            if leader.ledger[end - 1][0] != leader.term:
                break
            if sum((each.ledger or [])[:end] == leader.ledger[:end] for each in same) >= self._quorum:
                leader.committed = member.committed = end
                self.acknowledged |= {message for _, message in leader.ledger[:end]}
                break

    def send(self) -> None:
        self._append()

    # -- what the command sees ------------------------------------------------------------------------

    def _store(self, each: Member) -> StoreSeen:
        length = len(each.ledger if each.ledger is not None else each.log or [])
        store = OldStore(
            Path(each.name),
            locked_by=1 if each.runs or each.new_runs else None,
            end=length,
            file_size=1024 if length else 0,
            epochs=((0, 0),) if each.prepared and length else None,
            identity=BrokerIdentity("c", GROUP, each.broker_id) if each.broker_id is not None else None,
            ledger=f"dledger-n{each.number}" if each.ledger is not None else "",
            last=each.last if each.ledger is not None else None,
            committed=each.checkpoint if each.ledger is not None else 0,
        )
        return StoreSeen(store, each.note)

    def world(self) -> World:
        members = len(self.members)
        world = World(
            flow=Origin.DLEDGER,
            group=GROUP,
            stores=tuple(map(self._store, self.members)),
            brokers=tuple(
                BrokerSeen(each.address, each.number == self.leader, store=each.name, members=members)
                for each in self.members
                if each.runs and self.seen
            ),
            controllers_problem="" if self.controllers else "none answers",
            replicas=self._replicas(),
            members=members,
            can_start=self.can_start,
        )
        if not logs_wanted(world):
            stores = (replace(s, store=replace(s.store, end=None, last=None)) for s in world.stores)
            return replace(world, stores=tuple(stores))
        leader, _ = choose_leader(world)
        if leader is None:
            return world
        mine = self.by_name(leader.name)
        others = {each.name: compare(mine, each) for each in self.members if each is not mine}
        return replace(world, comparisons=others)

    def _replicas(self) -> GroupFacts | None:
        found = [each for each in self.members if each.broker_id is not None]
        if not found or not self.controllers:
            return None
        master = next((each for each in found if each.broker_id == self.master_id), None)
        rows = [
            Replica(
                each.broker_id or 0,
                each.address,
                each.new_runs,
                master is not None and each.log == master.log,
            )
            for each in found
        ]
        return GroupFacts(GROUP, self.master_id, tuple(rows))

    def by_name(self, name: str) -> Member:
        return next(each for each in self.members if each.name == name)

    # -- what the command does ------------------------------------------------------------------------

    def do(self, act: Act, stage: int) -> None:
        match act:
            case TakeNote(store, address, master, members):
                each = self.by_name(store)
                note = each.note or Note("dledger", GROUP)
                each.note = replace(note, address=address, master=master, members=members)
            case Exchange(store, chosen, until):
                self._exchange(self.by_name(store), chosen, until, stage)
            case Prepare(store, empty, leader):
                each = self.by_name(store)
                assert not each.runs
                assert each.note is not None
                assert each.note.exchange == DONE, "epochs are written over a DLedger"
                assert empty == (not each.log)
                if stage:
                    each.note, each.prepared = replace(each.note, leader=leader, prepared=True), True
            case StartBroker(store):
                self.start(self.by_name(store))
            case _:
                raise AssertionError(act)

    def _exchange(self, each: Member, chosen: tuple[int, int] | None, until: int | None, stage: int) -> None:
        assert not each.runs, "files are moved while the broker runs"
        assert not each.new_runs
        note = each.note or Note("dledger", GROUP)
        if stage == 0:
            return  # it died in the migration
        if note.exchange != BEGUN:
            if chosen is not None:
                assert chosen == each.last
                rows = each.ledger or []
                each.log = [message for _, message in rows[:until]]
                assert self.acknowledged <= set(each.log), (
                    "a store is chosen that lacks what was acknowledged"
                )
            each.note = note = replace(note, exchange=BEGUN, chosen=chosen)
        if stage == 1:
            return
        if chosen is None:
            taken = [
                other.log
                for other in self.members
                if other.note is not None and other.note.chosen is not None
            ]
            assert taken, "a store is emptied before another has everything"
            each.log = each.log or []
        each.ledger = None
        if stage == 9:
            each.note = replace(note, exchange=DONE)

    def start(self, each: Member) -> None:
        assert all(one.prepared for one in self.members), "a broker starts while another store is not ready"
        if self.master_id is None:
            assert self.acknowledged <= set(each.log or []), "the first broker lacks what was acknowledged"
        each.new_runs = True

    def settle(self) -> None:
        """New brokers register, the first one is elected, the others copy it."""
        if not self.controllers:
            return
        for each in self.members:
            if each.new_runs and each.broker_id is None:
                each.broker_id = 1 + sum(one.broker_id is not None for one in self.members)
                self.master_id = self.master_id or each.broker_id
        master = next((each for each in self.members if each.broker_id == self.master_id), None)
        for each in self.members:
            if master is not None and each is not master and each.new_runs:
                assert (master.log or [])[: len(each.log or [])] == (each.log or [])
                each.log = list(master.log or [])

    # -- what the person does -------------------------------------------------------------------------

    def follow(self, plan: Plan) -> None:
        step = current(plan.steps)
        assert step is not None
        match step.name:
            case "controllers":
                self.controllers = True
            case "slaves-stopped" | "master-stopped":
                for each in self.members:
                    each.runs = each.runs and f"{each.name} (" not in step.detail
            case "start-master" | "start-slaves":
                self.start(next(each for each in self.members if each.name in step.detail))
            case _:
                raise AssertionError(f"nobody knows what to do about {step}")

    def start_old(self, number: int) -> None:
        """Somebody starts an old broker again, while its DLedger is whole."""
        each = self.members[number % len(self.members)]
        exchanging = any(one.note is not None and one.note.exchange for one in self.members)
        if each.ledger is not None and not each.new_runs and not exchanging:
            each.runs = True


def compare(mine: Member, other: Member) -> Comparison:
    one = mine.ledger if mine.ledger is not None else mine.log or []
    two = other.ledger if other.ledger is not None else other.log or []
    common = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )
    if common == len(two):
        return Comparison(Likeness.PREFIX, common)
    if common == 0:
        return Comparison(Likeness.NOTHING)
    kind = Likeness.LONGER if common == len(one) else Likeness.APART
    return Comparison(kind, common, len(two) - common, len(two) - common)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("command"), st.sampled_from(STAGES)),
        st.tuples(
            st.sampled_from(
                ["person", "send", "send", "push", "push", "elect", "settle", "stop", "start", "checkpoint"]
            ),
            st.integers(0, 4),
        ),
    ),
    max_size=80,
)


def play(it: Group, kind: str, which: int) -> None:
    match kind:
        case "command" | "person":
            plan = plan_upgrade(it.world())
            step = current(plan.steps)
            if kind == "command" and plan.act is not None:
                it.do(plan.act, which)
            elif kind == "person" and step is not None and step.state is StepState.YOURS:
                it.follow(plan)
        case "send":
            it.send()
        case "push":
            it.push(which)
        case "elect":
            it.elect(which)
        case "settle":
            it.settle()
        case "checkpoint":
            each = it.members[which % len(it.members)]
            each.checkpoint = each.committed
        case "stop":
            it.members[which % len(it.members)].runs = False
        case "start":
            it.start_old(which)


def finish(it: Group) -> None:
    """Go on as people would, until all is done."""
    for _ in range(ROUNDS_MAX):
        it.settle()
        plan = plan_upgrade(it.world())
        step = current(plan.steps)
        if step is None:
            return
        assert step.state is not StepState.BLOCKED, step
        if plan.act is not None:
            it.do(plan.act, 9)
        elif step.state is StepState.YOURS:
            it.follow(plan)
    raise AssertionError(f"it does not come to an end; last {step}")


DEPOSED = [*[("send", 0)] * 4, ("elect", 1), ("push", 2)]
"""The old leader has the longest log, and the new one what is committed."""

BEHIND = [*[("send", 0)] * 4, ("push", 1)]
"""What is committed is not on all members, and no checkpoint tells it."""


@example(3, False, True, DEPOSED)
@example(3, False, True, BEHIND)
@given(st.sampled_from([1, 2, 3, 4, 5]), st.booleans(), st.booleans(), EVENTS)
def test_leaving_dledger_goes_on_after_any_crash_and_loses_nothing(
    count: int, can_start: bool, seen: bool, events: list[tuple[str, int]]
) -> None:
    """No rule is broken, the end comes, and what was acknowledged is everywhere in the order of the log."""
    it = Group([Member(n, [(0, 0)]) for n in range(count)], can_start, seen, acknowledged=frozenset({0}))
    for each in it.members:
        each.committed = 1
    it.elect(0)

    for kind, which in events:
        play(it, kind, which)
    finish(it)

    first = it.members[0].log or []
    assert it.acknowledged <= set(first)
    assert all(each.log == first for each in it.members)
    assert all(each.ledger is None for each in it.members)
