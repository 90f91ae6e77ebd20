"""The replicated state of ordered subjects, and its records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.snapshot import MetadataState
from brokerset_broker.tables.ordered.state import OrderedState, changes_of
from brokerset_broker.tables.ordered.values import (
    ClaimKey,
    Fence,
    FencesPut,
    OrderedChange,
    OrderedQueue,
    ProducersPart,
    ProducersPut,
    ProducerState,
    SharedAcksPut,
    Subject,
    SubjectsPut,
    queue_key,
)
from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus

topics = st.sampled_from(["t", "%RETRY%g%t"])
numbers = st.integers(0, 5)
subjects = st.builds(
    Subject,
    st.sampled_from(OrderStrategy),
    numbers,
    st.dictionaries(
        numbers,
        st.builds(OrderedQueue, numbers, st.sampled_from(PartitionStatus), st.integers(-1, 9), st.booleans()),
    ),
)
fences = st.builds(Fence, st.integers(0, 4), st.sampled_from(["a", "b"]), st.booleans())
producers = st.builds(ProducerState, numbers, numbers, numbers, numbers)
parts = st.builds(
    ProducersPart,
    numbers,
    st.dictionaries(st.sampled_from("pq"), producers),
    st.lists(st.sampled_from("rs"), unique=True).map(tuple),
)
queue_names = st.builds(queue_key, topics, numbers)
claims = st.builds(ClaimKey, topics, st.sampled_from("gh"), numbers)
ranges = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
changes: st.SearchStrategy[OrderedChange] = st.one_of(
    st.builds(SubjectsPut, st.dictionaries(topics, subjects, min_size=1)),
    st.builds(
        FencesPut,
        st.dictionaries(
            topics.map(lambda topic: f"{topic}@g"), st.dictionaries(numbers, fences, min_size=1), min_size=1
        ),
    ),
    st.builds(ProducersPut, st.dictionaries(queue_names, parts, min_size=1)),
    st.builds(SharedAcksPut, st.dictionaries(claims, ranges, min_size=1)),
)


@given(changes)
def test_a_record_says_what_was_written(change: OrderedChange) -> None:
    """Every change comes out of its records as it went in."""
    ((_, body),) = records.encode(change)

    assert records.decode(body) == change


@given(st.lists(changes))
def test_applying_twice_is_applying_once(made: Sequence[OrderedChange]) -> None:
    """A replica that applies the end of its log again has the same state."""
    once, twice = OrderedState(), OrderedState()
    for change in made:
        once.apply(change)
    for change in [*made, *made[len(made) // 2 :]]:
        twice.apply(change)
    for change in made[len(made) // 2 :]:
        once.apply(change)

    assert once == twice


@given(st.lists(changes))
def test_a_chunk_has_everything(made: Sequence[OrderedChange]) -> None:
    """The sections of a snapshot, or of the file, make the same state again; its entries are not counted, as
    brokers of older versions do not count them."""
    state = OrderedState()
    for change in made:
        state.apply(change)
    taken = MetadataState()
    counted = taken.add_chunk(records.json_bytes(state.to_json()))

    assert taken.ordered == state == state.copy()
    assert counted == 0


@given(st.lists(fences, min_size=1))
def test_a_fence_only_grows(made: Sequence[Fence]) -> None:
    """Whatever order records come in, the highest epoch stays, with the session that had it first, released
    or not (statement 54)."""
    state = OrderedState()
    highest: list[tuple[int, bool]] = []
    for fence in made:
        state.apply(FencesPut({"t@g": {0: fence}}))
        found = state.fence("t", "g", 0)
        assert found is not None
        highest.append((found.epoch, found.released))

    assert highest == sorted(highest)
    assert highest[-1] == max((fence.epoch, fence.released) for fence in made)


def test_a_deleted_topic_takes_everything_along() -> None:
    """Subject, fences and producers of a deleted topic are gone; those of others stay."""
    state = MetadataState()
    for topic in ("t", "u"):
        state.apply(
            SubjectsPut({topic: Subject(OrderStrategy.STRICT, 1, {0: OrderedQueue(1, PartitionStatus.OPEN)})})
        )
        state.apply(FencesPut({f"{topic}@g": {0: Fence(1, "s")}}))
        state.apply(ProducersPut({f"{topic}@0": ProducersPart(1, {"p": ProducerState(1, 1, 0, 0)})}))
        state.apply(SharedAcksPut({ClaimKey(topic, "g", 0): ((5, 9),)}))
    state.apply(records.TopicsDeleted(("t",)))

    ordered = state.ordered
    assert (set(ordered.subjects), set(ordered.fences), set(ordered.producers)) == ({"u"}, {"u"}, {"u"})
    assert {key.topic for key in ordered.shared_acks} == {"u"}


def test_a_retired_queue_leaves_nothing_for_groups() -> None:
    """Fences and ranges of the queue, and of the retry topics' queues of its number, are gone for all groups;
    what is kept of producers and of other queues stays."""
    state = OrderedState()
    queues = {number: OrderedQueue(number, PartitionStatus.SEALED, 9) for number in (0, 1)}
    state.apply(SubjectsPut({"t": Subject(OrderStrategy.STRICT, 1, queues)}))
    for topic in ("t", "%RETRY%g%t", "u"):
        for number in (0, 1):
            state.apply(FencesPut({f"{topic}@g": {number: Fence(1, "s")}}))
            state.apply(SharedAcksPut({ClaimKey(topic, "g", number): ((5, 9),)}))
    state.apply(FencesPut({"t@h": {0: Fence(1, "s")}}))
    state.apply(ProducersPut({"t@0": ProducersPart(1, {"p": ProducerState(1, 1, 0, 0)})}))
    before = state.fence_count()
    retired = {**queues, 0: queues[0]._replace(retired=True)}
    state.apply(SubjectsPut({"t": Subject(OrderStrategy.STRICT, 2, retired)}))

    assert (before, state.fence_count()) == (7, 4)
    assert state.fences["t"] == {"g": {1: Fence(1, "s")}}
    left = {(key.topic, key.queue_id) for key in state.shared_acks}
    assert left == {("t", 1), ("%RETRY%g%t", 1), ("u", 0), ("u", 1)}
    assert set(state.producers) == {"t"}


def test_acks_of_a_shared_group_go_with_its_offsets() -> None:
    """A reset of a queue, and the removal of a group's offsets, leave no ranges; other queues and groups keep
    theirs."""
    state = MetadataState()
    keys = [ClaimKey("t", group, queue) for group in "gh" for queue in (0, 1)]
    state.apply(SharedAcksPut({key: ((5, 9), (11, 12)) for key in keys}))
    state.apply(records.ResetsPut({"t@g": {0: 3}}))
    after_reset = set(state.ordered.shared_acks)
    state.apply(records.OffsetsRemoved(("h",)))

    assert after_reset == set(keys[1:])
    assert set(state.ordered.shared_acks) == {ClaimKey("t", "g", 1)}


@pytest.mark.parametrize(
    "payload",
    [
        b'{"subjects":{"t":{"strategy":"Loose","version":1,"queues":{}}}}',
        b'{"subjects":{"t":{"strategy":"Strict","version":1,"queues":{"0":[1,"Open"]}}}}',
        b'{"subjects":{"t":{"strategy":"Strict","version":1,"queues":{"0":[1,"Ajar",-1]}}}}',
        b'{"fences":{"t@g":{"0":[1]}}}',
        b'{"fences":{"t@g":[]}}',
        b'{"producers":{"t":{"upTo":1,"put":{}}}}',
        b'{"producers":{"t@x":{"upTo":1,"put":{}}}}',
        b'{"producers":{"t@0":{"upTo":1,"put":{"p":[1,2,3]}}}}',
        b'{"producers":{"t@0":{"upTo":1,"put":{},"gone":7}}}',
        b'{"subjects":{"t":{"strategy":"Strict","version":1,"queues":{},"retired":[1]}}}',
        b'{"sharedAcks":{"t@0":[]}}',
        b'{"sharedAcks":{"t@g@0":[1]}}',
        b'{"sharedAcks":{"t@g@0":7}}',
    ],
)
def test_what_cannot_be_read_is_refused(payload: bytes) -> None:
    """A record that cannot be read stops applying, rather than being guessed."""
    with pytest.raises(FormatError):
        changes_of(fields.parse_object(payload))
