"""Whatever happens in whatever order: what holds of ordered subjects, after every event."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_controller.ordered import limits
from brokerset_controller.ordered.assignment import plan
from brokerset_controller.ordered.codec import subject_of, subject_values, tombstone_of, tombstone_values
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
    Reassigned,
    Released,
    RetriesFinished,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_controller.ordered.machine import Changed, SubjectsMachine
from brokerset_controller.ordered.membership import assignment_of
from brokerset_controller.ordered.queues import answered, queues_of
from brokerset_controller.ordered.state import WRITABLE, ConsumerGroup, Entry, Subject, Tombstone
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_protocol.bodies.ordered import SubjectQueues
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus

ROUTE = ("orders-0", "orders-1")
STRATEGIES = {"g": ConsumeStrategy.EXCLUSIVE, "h": ConsumeStrategy.EXCLUSIVE, "s": ConsumeStrategy.SHARED}

sessions = st.sampled_from(["a", "b", "c", "d"])
groups = st.sampled_from(sorted(STRATEGIES))
numbers = st.integers(0, 14)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), groups, sessions),
        st.tuples(st.just("leave"), groups, sessions),
        st.tuples(st.just("plan"), groups),
        st.tuples(st.just("plan"), groups),
        st.tuples(st.just("release"), groups, numbers, st.integers(0, 3)),
        st.tuples(st.just("drain"), groups, numbers),
        st.tuples(st.just("finish"), groups, numbers),
        st.tuples(st.just("scale"), st.integers(1, 4)),
        st.tuples(st.just("seal"), numbers),
        st.tuples(st.just("seal"), numbers),
        st.tuples(st.just("retire"), numbers),
        st.tuples(st.just("remove"), groups),
        st.tuples(st.just("seize"), groups, numbers, sessions),
        st.tuples(st.just("start")),
        st.tuples(st.just("delete")),
        st.tuples(st.just("push"), st.sampled_from(ROUTE)),
        st.tuples(st.just("push"), st.sampled_from(ROUTE)),
        st.tuples(st.just("create"), st.integers(1, 4)),
        st.tuples(st.just("create"), st.integers(1, 4)),
    ),
    max_size=60,
)


class Watched:
    """A subject, and what stands outside it: who may be consuming what, what was given, and the brokers."""

    def __init__(self, order: OrderStrategy) -> None:
        self.machine = SubjectsMachine()
        self.epoch = 0
        """The highest that was given, to owners and producers."""

        self.versions: dict[str, int] = {"": 0}
        """The subject's (by the empty name) and groups', as they were seen last."""

        self.places: dict[tuple[str, int], int] = {}
        self.ids = -1
        self.consumes: dict[tuple[str, int], str] = {}
        """By group and partition: who was granted it, and has neither stopped nor left."""

        self.handled: dict[str, set[int]] = {name: set() for name in STRATEGIES}
        self.finished: dict[str, set[int]] = {name: set() for name in STRATEGIES}
        self.inherits: dict[int, frozenset[int]] = {}
        self.brokers: dict[str, SubjectQueues | None] = dict.fromkeys(ROUTE)
        """What each broker group has confirmed last."""

        self.order = order
        self.happens(SubjectCreated("orders", order, ROUTE, 2))

    @property
    def entry(self) -> Entry:
        """What stands behind the name."""
        entry = self.machine.entry("orders")
        assert entry is not None, "nothing is forgotten"
        return entry

    @property
    def subject(self) -> Subject | None:
        """The subject, unless it is deleted."""
        return self.machine.subjects.get("orders")

    def happens(self, event: Event | None) -> None:
        """Apply it, if its guards hold, and check everything."""
        if event is None:
            return
        before = self.machine.entry("orders")
        outcome = self.machine.apply(1, event)
        if not isinstance(outcome, Changed):
            assert self.machine.entry("orders") is before, "a guard failed, and something changed"
            return
        match event:
            case Released():
                del self.consumes[event.group, event.partition_id]
            case Drained():
                assert event.partition_id not in self.handled[event.group], "it was drained twice"
                self.handled[event.group].add(event.partition_id)
                shared = STRATEGIES[event.group] is ConsumeStrategy.SHARED
                if self.order is OrderStrategy.STRICT and not shared:
                    self._finished(event.group, event.partition_id)
            case RetriesFinished():
                assert event.partition_id in self.handled[event.group], "it is not drained"
                self._finished(event.group, event.partition_id)
            case PartitionRetired():
                assert isinstance(before, Subject)
                missing = [name for name in before.groups if event.partition_id not in self.finished[name]]
                assert not missing, f"{missing} have copies for retry, or messages"
            case MemberJoined() if event.strategy is ConsumeStrategy.SHARED:
                assert self.subject is not None
                if not isinstance(before, Subject) or event.group not in before.groups:
                    self._given(self.subject.groups[event.group].epoch)
            case MemberLeft():
                gone = [key for key, session in self.consumes.items() if session == event.session]
                for key in [key for key in gone if key[0] == event.group]:
                    del self.consumes[key]
            case Reassigned():
                self._granted(event)
            case GroupRemoved():
                self.handled[event.group].clear()
                self.finished[event.group].clear()
            case ProducerStarted():
                self._given(self.entry.epoch)
            case SubjectDeleted():
                assert self.consumes == {}, "somebody consumes what is deleted"
                for each in (*self.handled.values(), *self.finished.values()):
                    each.clear()
            case SubjectCreated():
                assert isinstance(before, Tombstone | None)
                assert all(each is None for each in self.brokers.values()), "old messages in a new subject"
            case _:
                pass
        self._check()

    def push(self, broker_group: str) -> list[Event]:
        """A broker group is sent what it shall have; the events that its answer makes."""
        pushed, known = queues_of(self.entry, broker_group), self.brokers[broker_group]
        if pushed is None:
            return []
        if known is not None:
            assert pushed.version >= known.version, "a broker would refuse it"
            same = (pushed.queues, pushed.deleted) == (known.queues, known.deleted)
            assert pushed.version > known.version or same, "one version, two contents"
            sealed = {each.queue_id for each in known.queues if each.state is PartitionStatus.SEALED}
            for each in pushed.queues:
                assert each.queue_id not in sealed or each.state is PartitionStatus.SEALED, (
                    "it is opened again"
                )
        self.brokers[broker_group] = None if pushed.deleted else pushed
        ends = tuple(replace(each, end=each.partition_id % 7) for each in pushed.queues)
        return answered(self.entry, broker_group, pushed, replace(pushed, queues=ends), 1)

    def _finished(self, group: str, partition_id: int) -> None:
        assert partition_id not in self.finished[group], "it was finished twice"
        self.finished[group].add(partition_id)
        self.consumes.pop((group, partition_id), None)

    def _given(self, epoch: int) -> None:
        assert epoch > self.epoch, "an epoch was given twice, or an older one"
        self.epoch = epoch

    def _granted(self, event: Reassigned) -> None:
        assert self.subject is not None
        for partition_id, session in sorted(event.granted.items()):
            assert (event.group, partition_id) not in self.consumes, "two consume one partition"
            assert partition_id not in self.finished[event.group], "nothing of it can come any more"
            self.consumes[event.group, partition_id] = session
            self._given(self.subject.groups[event.group].ownerships[partition_id].epoch)

    def _check(self) -> None:
        self._check_numbers()
        subject = self.subject
        if subject is None:
            return
        self._check_partitions(subject)
        for name, group in subject.groups.items():
            owned = {number: each.session for number, each in group.ownerships.items()}
            assert owned == {number: who for (at, number), who in self.consumes.items() if at == name}
            assert set(owned.values()) <= set(group.members)
            self._check_assignments(subject, group)
            again = plan(subject, group)
            if again is None:
                self._check_counts(group)
            else:
                settled = self.machine.check(again)
                assert isinstance(settled, Subject)
                assert plan(settled, settled.groups[name]) is None, "a plan is made again and again"

    def _check_assignments(self, subject: Subject, group: ConsumerGroup) -> None:
        """Nothing before what it inherits, nothing that is finished; marked when it is drained."""
        handled, finished = self.handled[group.name], self.finished[group.name]
        assert group.finished == finished & set(subject.partitions)
        for session in group.members:
            assigned = assignment_of(subject, group, session).partitions
            for each in assigned:
                number = each.partition.partition_id
                missing = self.inherits[number] - handled
                assert not missing, f"{missing} come before {number}"
                assert number not in finished, "nothing of it can come any more"
                assert each.retries_only == (number in handled)
            if group.is_shared:
                assert {each.partition.partition_id for each in assigned} == subject.assignable(group)
                assert {each.epoch for each in assigned} <= {group.epoch}

    def _check_counts(self, group: ConsumerGroup) -> None:
        """Those of full partitions, and of drained ones, differ by one at most."""
        if any(each.revoked for each in group.ownerships.values()):
            return
        for drained in (False, True):
            owners = Counter(
                each.session
                for number, each in group.ownerships.items()
                if (number in group.drained) is drained
            )
            counts = [owners[session] for session in group.members]
            assert max(counts, default=0) - min(counts, default=0) <= 1, "shares are not even"

    def _check_numbers(self) -> None:
        """Versions never fall, what is counted is right, and everything comes back from its values."""
        entry = self.entry
        seen = {"": entry.version}
        if isinstance(entry, Subject):
            seen |= {name: each.version for name, each in entry.groups.items()}
            assert self.machine.parts == limits.parts(entry)
            assert subject_of(orjson.loads(orjson.dumps(subject_values(entry)))) == entry
        else:
            assert self.machine.parts == 0
            assert tombstone_of(orjson.loads(orjson.dumps(tombstone_values(entry)))) == entry
        for name, version in seen.items():
            assert version >= self.versions.get(name, 0), f"the version of {name!r} fell"
        self.versions |= seen

    def _check_partitions(self, subject: Subject) -> None:
        covered = [0] * LOGICAL_PARTITIONS
        for each in subject.partitions.values():
            known = self.places.setdefault((each.broker_group, each.queue_id), each.partition_id)
            assert known == each.partition_id, "one queue, two partitions"
            self.inherits.setdefault(each.partition_id, each.inherits)
            if each.status in WRITABLE:
                for number in range(*each.keys):
                    covered[number] += 1
        assert max(covered) <= 1, "two partitions take sends of one key"
        if not subject.is_scaling:
            assert min(covered) == 1, "keys without a partition"
        assert max(subject.partitions) >= self.ids
        self.ids = max(subject.partitions)


def epoch_of(group: ConsumerGroup, number: int) -> int:
    """By which a partition is consumed; 0 if it is not."""
    owned = group.ownerships.get(number)
    return group.epoch if owned is None else owned.epoch


def event_of(watched: Watched, step: tuple[object, ...]) -> Event | None:
    """What a step would have the controllers agree on now; often it does not fit."""
    entry, subject = watched.entry, watched.subject
    ids = sorted(subject.partitions) if subject is not None else [0]
    group = subject.groups.get(str(step[1])) if subject is not None and len(step) > 1 else None
    match step:
        case ("join", str(name), str(session)):
            return MemberJoined("orders", name, STRATEGIES[name], session, "client", 30_000)
        case ("leave", str(name), str(session)):
            return MemberLeft("orders", name, session)
        case ("plan", _) if subject is not None and group is not None:
            return plan(subject, group)
        case ("release", str(name), int(index), int(late)) if group is not None:
            number = ids[index % len(ids)]
            return Released("orders", name, number, max(epoch_of(group, number) - late // 3, 0))
        case ("drain", str(name), int(index)) if group is not None:
            number = ids[index % len(ids)]
            return Drained("orders", name, number, epoch_of(group, number), 5)
        case ("finish", str(name), int(index)) if group is not None:
            number = ids[index % len(ids)]
            return RetriesFinished("orders", name, number, epoch_of(group, number))
        case ("scale", int(count)):
            return GenerationPrepared("orders", entry.generation, count, ROUTE)
        case ("seal", int(index)):
            number = ids[index % len(ids)]
            return PartitionSealed("orders", number, number % 7, 1)
        case ("remove", str(name)):
            return GroupRemoved("orders", name)
        case ("retire", int(index)):
            return PartitionRetired("orders", ids[index % len(ids)])
        case ("seize", str(name), int(number), str(session)) if group is not None:
            return Reassigned("orders", name, group.version, frozenset(), {number: session})
        case ("start",):
            return ProducerStarted("orders")
        case ("delete",):
            return SubjectDeleted("orders")
        case ("create", int(count)):
            return SubjectCreated("orders", watched.order, ROUTE, count)
        case _:
            return None


@given(st.sampled_from(OrderStrategy), steps)
def test_promises_hold_after_every_event(order: OrderStrategy, happened: list[tuple[object, ...]]) -> None:
    """One owner, growing epochs, nothing before what it inherits, each key in one partition.

    Nothing is retired before all groups have finished it; members of a Shared group have all partitions.
    """
    watched = Watched(order)
    for step in happened:
        if step[0] == "push":
            for event in watched.push(str(step[1])):
                watched.happens(event)
        else:
            watched.happens(event_of(watched, step))

    assert watched.entry.version >= 1


def test_a_deleted_subject_that_comes_again_is_among_what_happens() -> None:
    """The steps reach it: deletion, brokers that delete, creation."""
    watched = Watched(OrderStrategy.STRICT)
    for step in (("start",), ("delete",), ("create", 2)):
        watched.happens(event_of(watched, step))
    assert watched.subject is None

    for broker_group in ROUTE:
        for event in watched.push(broker_group):
            watched.happens(event)
    watched.happens(event_of(watched, ("create", 3)))

    assert watched.subject is not None
    assert sorted(watched.subject.partitions) == [2, 3, 4]


@pytest.mark.parametrize("order", OrderStrategy)
def test_copies_for_retry_are_among_what_happens(order: OrderStrategy) -> None:
    """The steps reach it: partitions of all kinds of groups are drained, finished and retired."""
    watched = Watched(order)
    for step in (
        *[("join", name, session) for name in STRATEGIES for session in ("a", "b")],
        *[("plan", name) for name in STRATEGIES],
        ("scale", 1),
        *[("seal", index) for index in (0, 1)],
        *[("drain", name, index) for name in STRATEGIES for index in (0, 1)] * 2,
        *[("plan", name) for name in STRATEGIES],
    ):
        watched.happens(event_of(watched, step))
    drained = watched.subject
    assert drained is not None
    owned = sorted(number for name, number in watched.consumes if name == "g")
    assert owned == ([0, 1, 2] if order is OrderStrategy.BEST_TRIED else [2])

    watched.happens(event_of(watched, ("retire", 0)))
    assert watched.subject is drained
    for step in (*[("finish", name, index) for name in STRATEGIES for index in (0, 1)], *[("retire", 0)] * 2):
        watched.happens(event_of(watched, step))

    assert watched.subject is not None
    assert sorted(watched.subject.partitions) == [2]
