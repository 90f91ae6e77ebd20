"""Whatever happens in whatever order: what holds of ordered subjects, after every event."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from brokerset_controller.ordered.apply import GuardFailed, apply
from brokerset_controller.ordered.assignment import plan
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
)
from brokerset_controller.ordered.state import WRITABLE, Subject
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus

ROUTE = ("orders-0", "orders-1")
GROUPS = ("g", "h")

sessions = st.sampled_from(["a", "b", "c", "d"])
groups = st.sampled_from(GROUPS)
numbers = st.integers(0, 14)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), groups, sessions),
        st.tuples(st.just("leave"), groups, sessions),
        st.tuples(st.just("plan"), groups),
        st.tuples(st.just("plan"), groups),
        st.tuples(st.just("release"), groups, numbers, st.integers(0, 3)),
        st.tuples(st.just("drain"), groups, numbers),
        st.tuples(st.just("scale"), st.integers(1, 4)),
        st.tuples(st.just("seal"), numbers),
        st.tuples(st.just("seal"), numbers),
        st.tuples(st.just("retire"), numbers),
        st.tuples(st.just("remove"), groups),
        st.tuples(st.just("seize"), groups, numbers, sessions),
    ),
    max_size=60,
)


class Watched:
    """A subject, and what stands outside it: who may be consuming what, and what was ever given."""

    def __init__(self) -> None:
        self.subject = self._applied(None, SubjectCreated("orders", OrderStrategy.STRICT, ROUTE, 2))
        self.epochs: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.places: dict[tuple[str, int], int] = {}
        self.ids = -1
        self.consumes: dict[tuple[str, int], str] = {}
        """By group and partition: who was granted it, and has neither stopped nor left."""

        self.handled: dict[str, set[int]] = {name: set() for name in GROUPS}
        self.inherits: dict[int, frozenset[int]] = {}

    def _applied(self, subject: Subject | None, event: Event) -> Subject:
        after = apply(subject, event)
        assert after is not None
        return after

    def happens(self, event: Event | None) -> None:
        """Apply it, if its guards hold, and check everything."""
        if event is None:
            return
        try:
            self.subject = self._applied(self.subject, event)
        except GuardFailed:
            return
        match event:
            case Released() | Drained():
                del self.consumes[event.group, event.partition_id]
                if isinstance(event, Drained):
                    self.handled[event.group].add(event.partition_id)
            case MemberLeft():
                gone = [key for key, session in self.consumes.items() if session == event.session]
                for key in [key for key in gone if key[0] == event.group]:
                    del self.consumes[key]
            case Reassigned():
                self._granted(event)
            case GroupRemoved():
                self.handled[event.group].clear()
            case _:
                pass
        self._check()

    def _granted(self, event: Reassigned) -> None:
        for partition_id, session in event.granted.items():
            assert (event.group, partition_id) not in self.consumes, "two consume one partition"
            missing = self.inherits[partition_id] - self.handled[event.group]
            assert not missing, f"{missing} come before {partition_id}"
            assert partition_id not in self.handled[event.group], "it was handled to its end"
            self.consumes[event.group, partition_id] = session
            epoch = self.subject.groups[event.group].ownerships[partition_id].epoch
            assert epoch > self.epochs[event.group], "an epoch was given twice, or an older one"
        if event.granted:
            self.epochs[event.group] = self.subject.epoch

    def _check(self) -> None:
        self._check_partitions(self.subject.partitions.values())
        for name, group in self.subject.groups.items():
            owned = {number: each.session for number, each in group.ownerships.items()}
            assert owned == {number: who for (at, number), who in self.consumes.items() if at == name}
            assert set(owned.values()) <= set(group.members)
            assert set(owned) <= self.subject.assignable(group)
            again = plan(self.subject, group)
            if again is not None:
                settled = self._applied(self.subject, again)
                assert plan(settled, settled.groups[name]) is None, "a plan is made again and again"

    def _check_partitions(self, partitions: Iterable[object]) -> None:
        covered = [0] * LOGICAL_PARTITIONS
        for each in self.subject.partitions.values():
            known = self.places.setdefault((each.broker_group, each.queue_id), each.partition_id)
            assert known == each.partition_id, "one queue, two partitions"
            self.inherits.setdefault(each.partition_id, each.inherits)
            if each.status in WRITABLE:
                for number in range(*each.keys):
                    covered[number] += 1
        assert max(covered) <= 1, "two partitions take sends of one key"
        if not self.subject.is_scaling:
            assert min(covered) == 1, "keys without a partition"
        assert max(self.subject.partitions) >= self.ids
        self.ids = max(self.subject.partitions)


def event_of(watched: Watched, step: tuple[object, ...]) -> Event | None:
    """What a step would have the controllers agree on now; often it does not fit."""
    subject = watched.subject
    match step:
        case ("join", str(group), str(session)):
            return MemberJoined("orders", group, ConsumeStrategy.EXCLUSIVE, session, "client", 30_000)
        case ("leave", str(group), str(session)):
            return MemberLeft("orders", group, session)
        case ("plan", str(group)):
            return plan(subject, subject.groups[group]) if group in subject.groups else None
        case ("release", str(group), int(number), int(late)):
            owned = subject.groups[group].ownerships.get(number) if group in subject.groups else None
            return None if owned is None else Released("orders", group, number, owned.epoch - late // 3)
        case ("drain", str(group), int(number)):
            owned = subject.groups[group].ownerships.get(number) if group in subject.groups else None
            return None if owned is None else Drained("orders", group, number, owned.epoch, 5)
        case ("scale", int(count)):
            return GenerationPrepared("orders", subject.generation, count, ROUTE)
        case ("seal", int(number)):
            return PartitionSealed("orders", number, number % 7, 1)
        case ("remove", str(group)):
            return GroupRemoved("orders", group)
        case ("retire", int(number)):
            return PartitionRetired("orders", number)
        case ("seize", str(group), int(number), str(session)) if group in subject.groups:
            version = subject.groups[group].version
            return Reassigned("orders", group, version, frozenset(), {number: session})
        case _:
            return None


@given(steps)
def test_promises_hold_after_every_event(happened: list[tuple[object, ...]]) -> None:
    """One owner, growing epochs, nothing before what it inherits, each key in one partition."""
    watched = Watched()
    for step in happened:
        watched.happens(event_of(watched, step))

    assert all(isinstance(each.status, PartitionStatus) for each in watched.subject.partitions.values())
