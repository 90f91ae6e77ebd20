"""Events and subjects come back from their bytes, and nothing else is read."""

from __future__ import annotations

import orjson
import pytest

from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.ordered.assignment import plan
from brokerset_controller.ordered.codec import ORDERED_VERSION, encode_event, event_of
from brokerset_controller.ordered.events import (
    Drained,
    Event,
    GenerationPrepared,
    GroupRemoved,
    MemberJoined,
    MemberLeft,
    PartitionRetired,
    PartitionSealed,
    Reassigned,
    Released,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_controller.ordered.state import SUBJECTS_MAX
from brokerset_controller.replicas.events import Applied, Superseded
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy

EVENTS: tuple[Event, ...] = (
    SubjectCreated("orders", OrderStrategy.STRICT, ("orders-0", "orders-1"), 2),
    MemberJoined("orders", "g", ConsumeStrategy.EXCLUSIVE, "a", "client"),
    Reassigned("orders", "g", 1, frozenset(), {0: "a", 1: "a"}),
    GenerationPrepared("orders", 0, 3, ("orders-1",)),
    PartitionSealed("orders", 0, 10),
    PartitionSealed("orders", 1, 0),
    Drained("orders", "g", 0, 1, 10),
    PartitionRetired("orders", 0),
    Reassigned("orders", "g", 3, frozenset({1}), {}),
    Released("orders", "g", 1, 2),
    MemberLeft("orders", "g", "a"),
    GroupRemoved("orders", "g"),
    SubjectDeleted("orders"),
)


def test_each_event_comes_back_from_its_bytes() -> None:
    for event in EVENTS:
        version, *values = orjson.loads(encode_event(event))

        assert version == ORDERED_VERSION
        assert event_of(values) == event


def test_two_controllers_have_the_same_subjects_after_the_same_entries_and_after_a_snapshot() -> None:
    """After each entry; without subjects the snapshot is as it was before there were any."""
    first, second = ReplicasMachine(), ReplicasMachine()
    for index, event in enumerate(EVENTS):
        outcome = first.apply(index, encode_event(event))
        second.apply(index, encode_event(event))
        restored = ReplicasMachine()
        restored.restore(first.snapshot())

        assert outcome == Applied(), event
        assert first.snapshot() == second.snapshot() == restored.snapshot()
        assert restored.ordered.subjects == first.ordered.subjects
    assert first.snapshot() == ReplicasMachine().snapshot() == b"[1,[]]"


def test_an_event_whose_guard_fails_changes_nothing_and_says_why() -> None:
    machine = ReplicasMachine()
    changes: list[str] = []
    machine.ordered.listeners.append(lambda change: changes.append(type(change.outcome).__name__))

    outcome = machine.apply(1, encode_event(EVENTS[1]))
    machine.apply(2, encode_event(EVENTS[0]))

    assert outcome == Superseded("there is no subject orders")
    assert changes == ["Superseded", "Applied"]


def test_there_is_a_most_of_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerset_controller.ordered.machine.SUBJECTS_MAX", 1)
    machine = ReplicasMachine()
    machine.apply(1, encode_event(EVENTS[0]))

    outcome = machine.apply(2, encode_event(SubjectCreated("more", OrderStrategy.STRICT, ("orders-0",), 1)))

    assert isinstance(outcome, Superseded)
    assert SUBJECTS_MAX == 10_000


@pytest.mark.parametrize(
    "text",
    [
        '[5,"SubjectCreated","orders","Strict",[],2]',
        '[4,"SubjectCreated","orders","Strictly",[],2]',
        '[4,"SubjectCreated","orders","Strict",[]]',
        '[4,"PartitionSealed","orders",0,-1]',
        '[4,"Reassigned","orders","g",1,[1,1],[]]',
        '[4,"Somethingelse"]',
    ],
)
def test_what_no_version_writes_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ReplicasMachine().apply(1, text.encode())


def test_a_snapshot_that_contradicts_itself_is_not_read() -> None:
    machine = ReplicasMachine()
    for index, event in enumerate(EVENTS[:3]):
        machine.apply(index, encode_event(event))
    version, groups, (subject,) = orjson.loads(machine.snapshot())
    group = machine.ordered.subjects["orders"].groups["g"]
    assert plan(machine.ordered.subjects["orders"], group) is None

    for broken in (
        [version, groups, [subject, subject]],
        [version, groups, [[*subject[:7], [[*subject[7][0][:4], [], *subject[7][0][5:]]]]]],
        [version, groups, [[*subject[:6], [], subject[7]]]],
        [version, groups, [subject], []],
    ):
        with pytest.raises(ValueError, match=r".+"):
            ReplicasMachine().restore(orjson.dumps(broken))
