"""Worlds as `brokerset upgrade` sees them, for tests of its plan: a master and a slave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.steps import StepState, current
from brokerset_cli.takeover.upgrade_facts import (
    BrokerSeen,
    Comparison,
    Likeness,
    Note,
    OldStore,
    Origin,
    StoreSeen,
    World,
)
from brokerset_cli.takeover.upgrade_plan import Plan
from brokerset_formats.identity import BrokerIdentity

MASTER, SLAVE = "/data/a", "/data/b"
M_ADDRESS, S_ADDRESS = "10.0.0.1:10911", "10.0.0.2:10911"
PREFIX = {SLAVE: Comparison(Likeness.PREFIX, 500)}


def store(
    path: str, *, locked: int | None = None, epochs: tuple[tuple[int, int], ...] | None = ((2, 0),),
    broker_id: int | None = None,
    end: int | None = 500, begin: int = 0, problem: str = "", note: Note | None = None, **more: bool,
) -> StoreSeen:  # fmt: skip
    identity = None if broker_id is None else BrokerIdentity("c", "broker-a", broker_id)
    found = OldStore(Path(path), locked, True, begin, end, 1024, epochs, identity, "5.x", problem=problem)
    return StoreSeen(found, note, **more)


def note(*, master: bool = False, **more: object) -> Note:
    first = Note("identity", "broker-a", M_ADDRESS if master else S_ADDRESS, master, 2)
    return replace(first, **more)  # type: ignore[arg-type]  # fields of a note


def world(flow: Origin = Origin.IDENTITY, **changes: object) -> World:
    """Everything old is stopped and noted, new controllers serve: the files are next."""
    first = World(
        flow,
        "broker-a",
        (store(MASTER, note=note(master=True)), store(SLAVE, note=note())),
        comparisons=PREFIX,
    )
    return replace(first, **changes)  # type: ignore[arg-type]  # fields of a world


def running(**more: object) -> tuple[BrokerSeen, ...]:
    master = BrokerSeen(M_ADDRESS, True, 500, 6, store=MASTER)
    return (replace(master, **more), BrokerSeen(S_ADDRESS, False, 500, 6, store=SLAVE))  # type: ignore[arg-type]


def prepared(**more: object) -> tuple[StoreSeen, StoreSeen]:
    first = ((0, 0),)
    return (
        store(MASTER, epochs=first, note=note(master=True, prepared=True), **more),  # type: ignore[arg-type]
        store(SLAVE, epochs=first, note=note(prepared=True)),
    )


def group(
    *, master: int | None = 1, alive: bool = True, in_sync: bool = True, two: bool = True
) -> GroupFacts:
    replicas = [Replica(1, M_ADDRESS, alive, True)]
    if two:
        replicas.append(Replica(2, S_ADDRESS, True, in_sync))
    return GroupFacts("broker-a", master, tuple(replicas))


def now(plan: Plan) -> tuple[str, StepState]:
    step = current(plan.steps)
    assert step is not None
    return step.name, step.state


def words(plan: Plan) -> str:
    step = current(plan.steps)
    assert step is not None
    return f"{step.detail} | {step.hint}"


def joined(**changes: object) -> tuple[StoreSeen, StoreSeen]:
    """Both stores with brokers that have ids; `changes` are of the master's manifest."""
    first, second = (
        replace(
            each, store=replace(each.store, locked_by=7, identity=BrokerIdentity("c", "broker-a", number))
        )
        for number, each in enumerate(prepared(), 1)
    )
    return replace(first, note=note(master=True, prepared=True, **changes)), second
