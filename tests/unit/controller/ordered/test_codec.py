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
    ProducerStarted,
    QueuesDeleted,
    Reassigned,
    Released,
    RetriesFinished,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_controller.ordered.limits import SUBJECTS_MAX
from brokerset_controller.ordered.machine import Changed
from brokerset_controller.ordered.state import Subject, Tombstone
from brokerset_controller.replicas.events import Superseded
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy

EVENTS: tuple[Event, ...] = (
    SubjectCreated("orders", OrderStrategy.STRICT, ("orders-0", "orders-1"), 2),
    MemberJoined("orders", "g", ConsumeStrategy.EXCLUSIVE, "a", "client", 30_000),
    ProducerStarted("orders"),
    Reassigned("orders", "g", 1, frozenset(), {0: "a", 1: "a"}),
    GenerationPrepared("orders", 0, 3, ("orders-1",)),
    PartitionSealed("orders", 0, 10, 1),
    PartitionSealed("orders", 1, 0, 1),
    Drained("orders", "g", 0, 2, 10),
    PartitionRetired("orders", 0),
    Reassigned("orders", "g", 7, frozenset({1}), {}),
    Released("orders", "g", 1, 3),
    MemberLeft("orders", "g", "a"),
    GroupRemoved("orders", "g"),
    SubjectDeleted("orders"),
    QueuesDeleted("orders", "orders-0", 6),
    QueuesDeleted("orders", "orders-1", 6),
    SubjectCreated("orders", OrderStrategy.BEST_TRIED, ("orders-0",), 1),
)
SHARED_EVENTS: tuple[Event, ...] = (
    SubjectCreated("orders", OrderStrategy.STRICT, ("orders-0",), 2),
    MemberJoined("orders", "s", ConsumeStrategy.SHARED, "a", "client", 30_000),
    GenerationPrepared("orders", 0, 1, ("orders-0",)),
    PartitionSealed("orders", 0, 10, 1),
    PartitionSealed("orders", 1, 0, 1),
    Drained("orders", "s", 0, 1, 10),
    Drained("orders", "s", 1, 1, 10),
    RetriesFinished("orders", "s", 0, 1),
)


def test_each_event_comes_back_from_its_bytes() -> None:
    for event in (*EVENTS, *SHARED_EVENTS):
        version, *values = orjson.loads(encode_event(event))

        assert version == ORDERED_VERSION
        assert event_of(values) == event


@pytest.mark.parametrize("events", [EVENTS, SHARED_EVENTS], ids=["Exclusive", "Shared"])
def test_two_controllers_have_the_same_subjects_after_the_same_entries_and_after_a_snapshot(
    events: tuple[Event, ...],
) -> None:
    """After each entry; without subjects the snapshot is as it was before there were any."""
    first, second = ReplicasMachine(), ReplicasMachine()
    for index, event in enumerate(events):
        outcome = first.apply(index, encode_event(event))
        second.apply(index, encode_event(event))
        restored = ReplicasMachine()
        restored.restore(first.snapshot())

        assert isinstance(outcome, Changed), event
        assert first.snapshot() == second.snapshot() == restored.snapshot()
        assert restored.ordered.subjects == first.ordered.subjects
        assert restored.ordered.tombstones == first.ordered.tombstones
        assert restored.ordered.parts == first.ordered.parts
        assert restored.ordered.partitions_on == first.ordered.partitions_on
    assert ReplicasMachine().snapshot() == b"[1,[]]"


def test_an_event_whose_guard_fails_changes_nothing_and_says_why() -> None:
    machine = ReplicasMachine()
    changes: list[str] = []
    machine.ordered.listeners.append(lambda change: changes.append(type(change.outcome).__name__))

    outcome = machine.apply(1, encode_event(EVENTS[1]))
    machine.apply(2, encode_event(EVENTS[0]))

    assert outcome == Superseded("orders: there is no such subject")
    assert changes == ["Superseded", "Changed"]


def test_there_is_a_most_of_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerset_controller.ordered.limits.SUBJECTS_MAX", 1)
    machine = ReplicasMachine()
    machine.apply(1, encode_event(EVENTS[0]))

    outcome = machine.apply(2, encode_event(SubjectCreated("more", OrderStrategy.STRICT, ("orders-0",), 1)))

    assert isinstance(outcome, Superseded)
    assert SUBJECTS_MAX == 10_000


@pytest.mark.parametrize(
    "text",
    [
        '[7,"SubjectCreated","orders","Strict",[],2]',
        '[4,"SubjectCreated","orders","Strictly",[],2]',
        '[4,"SubjectCreated","orders","Strict",[]]',
        '[4,"SubjectCreated","orders","Strict",["a","a"],2]',
        '[4,"PartitionSealed","orders",0,-1,1]',
        '[4,"Reassigned","orders","g",1,[1,1],[]]',
        '[4,"Reassigned","orders","g",1,[],[[1,"a"],[1,"b"]]]',
        '[4,"Somethingelse"]',
        '[4,"ProducerStarted"]',
    ],
)
def test_what_no_version_writes_is_not_read(text: str) -> None:
    """Also what stands twice, which would be read as one."""
    with pytest.raises(ValueError, match=r".+"):
        ReplicasMachine().apply(1, text.encode())


def test_an_entry_that_cannot_be_read_names_its_subject() -> None:
    """Whoever reads the log of a controller that stopped knows where to search."""
    with pytest.raises(ValueError, match="partition_id in PartitionSealed of the subject 'orders'"):
        ReplicasMachine().apply(1, b'[4,"PartitionSealed","orders",-1,1,1]')


def machine_with(events: tuple[Event, ...]) -> ReplicasMachine:
    machine = ReplicasMachine()
    for index, event in enumerate(events):
        machine.apply(index, encode_event(event))
    return machine


def changed(values: list[object], index: int, value: object) -> list[object]:
    """The list with another value at a place."""
    return [*values[:index], value, *values[index + 1 :]]


def test_a_snapshot_that_contradicts_itself_is_not_read() -> None:
    """Things that are there twice, or name what is not there, or numbers that were not given yet."""
    machine = machine_with(EVENTS[:4])
    version, groups, (subject,), tombstones = orjson.loads(machine.snapshot())
    group = machine.ordered.subjects["orders"].groups["g"]
    assert plan(machine.ordered.subjects["orders"], group) is None
    (members,) = subject[10]

    for broken in (
        [version, groups, [subject, subject], tombstones],
        [version, groups, [changed(subject, 10, [changed(members, 4, [])])], tombstones],
        [version, groups, [changed(subject, 9, [])], tombstones],
        [version, groups, [changed(subject, 8, [["orders-0", 1], ["orders-0", 1]])], tombstones],
        [version, groups, [changed(subject, 10, [changed(members, 5, members[5] * 2)])], tombstones],
        [version, groups, [changed(subject, 10, [changed(members, 7, [0])])], tombstones],
        [version, groups, [changed(subject, 10, [changed(members, 2, 99)])], tombstones],
        [version, groups, [changed(subject, 5, 1)], tombstones],
        [version, groups, [changed(subject, 6, 1)], tombstones],
        [version, groups, [changed(subject, 2, ["orders-0", "orders-0"])], tombstones],
        [version, groups, [subject], tombstones, []],
        [version, groups, [subject]],
    ):
        with pytest.raises(ValueError, match=r".+"):
            ReplicasMachine().restore(orjson.dumps(broken))


def test_what_is_wrong_with_a_snapshot_names_the_subject() -> None:
    """A living one, and what is left of a deleted one."""
    version, groups, (subject,), _ = orjson.loads(machine_with(EVENTS[:4]).snapshot())
    *_, (tombstone,) = orjson.loads(machine_with(EVENTS[:-3]).snapshot())
    for broken in (
        [version, groups, [changed(subject, 3, -1)], []],
        [version, groups, [], [changed(tombstone, 2, -1)]],
        [version, groups, [], [changed(tombstone, 8, ["elsewhere"])]],
    ):
        with pytest.raises(ValueError, match="subject 'orders'"):
            ReplicasMachine().restore(orjson.dumps(broken))


def test_a_deleted_subject_keeps_its_numbers() -> None:
    """Created again it gives no id, queue, epoch or version that was given before."""
    before = machine_with(EVENTS[:-4]).ordered.subjects["orders"]
    deleted = machine_with(EVENTS[:-3]).ordered.tombstones["orders"]
    again = machine_with(EVENTS).ordered.subjects["orders"]

    assert isinstance(deleted, Tombstone)
    assert isinstance(again, Subject)
    assert min(again.partitions) >= before.next_partition_id
    assert {each.queue_id for each in again.partitions.values()} == {before.next_queue_ids["orders-0"]}
    assert again.epoch >= before.epoch > 0
    assert again.version > deleted.version > before.version
    assert again.generation > before.generation
    assert (
        again.group_version >= max(each.version for each in before.groups.values()) if before.groups else True
    )


def test_a_deleted_subject_is_created_again_when_brokers_have_nothing_of_it() -> None:
    """Else they would have old messages in its topic."""
    machine = machine_with(EVENTS[:-3])

    refused = machine.apply(90, encode_event(EVENTS[-1]))
    for event in (QueuesDeleted("orders", "orders-0", 5), QueuesDeleted("orders", "elsewhere", 6)):
        assert isinstance(machine.apply(91, encode_event(event)), Superseded)
    for cleaned in EVENTS[-3:-1]:
        machine.apply(92, encode_event(cleaned))

    assert refused == Superseded("orders: what is left of it is being deleted on orders-0, orders-1")
    assert isinstance(machine.apply(93, encode_event(EVENTS[-1])), Changed)


def test_names_of_deleted_subjects_count_and_can_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for each that was ever created, and no deletion is refused for lack of it."""
    monkeypatch.setattr("brokerset_controller.ordered.limits.SUBJECTS_MAX", 1)
    machine = machine_with(EVENTS[:-1])

    other = machine.apply(90, encode_event(SubjectCreated("more", OrderStrategy.STRICT, ("a",), 1)))

    assert isinstance(other, Superseded)
    assert "use such a one again" in other.reason
    assert isinstance(machine.apply(91, encode_event(EVENTS[-1])), Changed)
