"""A simulated cluster in which brokers die, come back and are elected while `adopt` acts on its steps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from brokerset_cli.takeover.adopt_plan import (
    Facts,
    GroupFacts,
    Replica,
    heir_of,
    plan_adoption,
    plan_return,
)
from brokerset_cli.takeover.steps import Step, StepState, current
from brokerset_rig.examples import examples

JAVA, WANTED = (1, 2), 2
STEPS_MAX = 200


@dataclass
class Broker:
    ours: bool
    runs: bool = True
    in_sync: bool = True


@dataclass
class World:
    """One group; the controllers know everybody that ever registered and was not cleaned."""

    needs: int
    chance: random.Random
    brokers: dict[int, Broker] = field(default_factory=lambda: {n: Broker(False) for n in JAVA})
    master: int | None = 1
    next_id: int = 3
    runs: bool = False
    folder: bool = False
    read_only: int | None = None
    lost: bool = False

    def facts(self) -> Facts:
        replicas = tuple(
            Replica(n, f"h:{n}", b.runs, b.in_sync, b.ours, b.runs, 0) for n, b in self.brokers.items()
        )
        read_only = self.read_only
        answers = read_only is not None and self.brokers[read_only].runs
        group = GroupFacts(
            "g", self.master, replicas, self.needs, frozenset(JAVA), f"h:{read_only}" if answers else ""
        )
        return Facts((group,), WANTED, (), self.runs, self.folder)

    def living(self) -> list[int]:
        return [n for n, b in self.brokers.items() if b.runs and b.in_sync]

    def settle(self) -> None:
        """What the cluster does by itself: elects among those in sync, and lets the others catch up."""
        if self.master is not None and not self.brokers[self.master].runs:
            self.master = None
        if self.master is None and self.living():
            self.master = self.chance.choice(self.living())
        if self.master is None:
            return
        for broker in self.brokers.values():
            broker.in_sync = broker.runs

    def fault(self) -> None:
        """One broker dies, though never the last that is in sync, or a dead one of ours comes back."""
        number = self.chance.choice(list(self.brokers))
        broker = self.brokers[number]
        if broker.runs and len(self.living()) > 1:
            broker.runs = False
        elif not broker.runs and self.runs:
            broker.runs = True

    def act(self, step: Step, *, cut_off: bool) -> None:
        """What the command, or the person, does on a step; `cut_off`: it ends in the middle."""
        group = self.facts().groups[0]
        kind, *rest = step.name.split(":")
        if kind == "join":
            self.folder = self.runs = True
            for broker in self.brokers.values():
                broker.runs = broker.runs or broker.ours
            for _ in range(WANTED - len(group.ours)):
                self.brokers[self.next_id] = Broker(True, in_sync=False)
                self.next_id += 1
        elif kind == "switch":
            self.switch(group, back=bool(rest) and step.title.startswith("A Java"), cut_off=cut_off)
        elif kind == "retire":
            self.retire(int(rest[-1]))
        elif kind == "return":
            self.brokers[int(rest[-1])].runs = True
        elif kind == "leave":
            self.leave()
        else:
            raise AssertionError(f"nobody acts on {step.name}")

    def switch(self, group: GroupFacts, *, back: bool, cut_off: bool) -> None:
        self.read_only = None
        master, heir = group.master, heir_of(group, ours=not back)
        if master is None or heir is None or master.ours is not back:
            return
        assert self.brokers[heir.broker_id].in_sync, "a replica that is not in sync is never elected"
        assert self.brokers[heir.broker_id].runs
        if not back:
            self.read_only = master.broker_id
        if cut_off and self.chance.random() < 0.5:
            return
        self.master = heir.broker_id
        if not cut_off:
            self.read_only = None

    def retire(self, number: int) -> None:
        rest = [n for n in self.living() if n != number]
        assert len(rest) >= self.needs, "the group is never left below what sends need"
        assert self.master is not None
        assert self.brokers[self.master].ours, "the master is ours"
        assert sum(self.brokers[n].ours for n in rest) >= WANTED, "all of ours are in sync"
        assert self.read_only is None or not self.brokers[self.read_only].runs
        self.brokers[number].runs = False

    def leave(self) -> None:
        assert self.master in JAVA, "ours leave only when a Java broker leads"
        assert all(self.brokers[n].runs and self.brokers[n].in_sync for n in JAVA)
        self.brokers = {n: b for n, b in self.brokers.items() if not b.ours}
        self.folder = self.runs = False


def drive(world: World, *, back: bool, faults: int) -> None:
    """Act on the current step again and again; faults end after some time. Asserts that it finishes."""
    for _ in range(STEPS_MAX):
        steps = plan_return(world.facts()) if back else plan_adoption(world.facts())
        step = current(steps)
        if step is None:
            return
        assert step.state is not StepState.BLOCKED
        trouble = faults > 0
        if step.state in (StepState.READY, StepState.YOURS):
            world.act(step, cut_off=trouble and world.chance.random() < 0.5)
        if trouble:
            faults -= 1
            if world.chance.random() < 0.5:
                world.fault()
        elif world.runs:
            for broker in world.brokers.values():  # the supervisor starts ours again
                broker.runs = broker.runs or broker.ours
        if world.chance.random() < 0.7 or not trouble:
            world.settle()
    raise AssertionError(f"it does not end: {step}, {world}")


@given(st.integers(0, 2**32), st.integers(1, 2), st.integers(0, 25), st.integers(0, 25), st.booleans())
@examples(300)
def test_repeating_the_command_ends_in_an_adopted_cluster_or_one_given_back(
    seed: int, needs: int, faults: int, later: int, whole: bool
) -> None:
    """From any state that faults lead to, acting on the current step finishes, and breaks no condition."""
    world = World(needs, random.Random(seed))

    if whole:
        drive(world, back=False, faults=faults)

        assert world.master is not None
        assert world.brokers[world.master].ours
        assert not any(world.brokers[n].runs for n in JAVA)
    else:
        for _ in range(faults):  # somewhere on the way
            step = current(plan_adoption(world.facts()))
            if step is not None and step.state in (StepState.READY, StepState.YOURS):
                world.act(step, cut_off=world.chance.random() < 0.3)
            world.fault() if world.chance.random() < 0.2 else world.settle()
    drive(world, back=True, faults=later)

    assert not any(broker.ours for broker in world.brokers.values()) or not faults
    assert world.master is None or world.master in JAVA
