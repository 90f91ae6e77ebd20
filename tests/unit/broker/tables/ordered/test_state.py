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
    Fence,
    FencesPut,
    OrderedChange,
    OrderedQueue,
    ProducersPart,
    ProducersPut,
    ProducerState,
    Subject,
    SubjectsPut,
    queue_key,
)
from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus

topics = st.sampled_from(["t", "%RETRY%g_t"])
numbers = st.integers(0, 5)
subjects = st.builds(
    Subject,
    st.sampled_from(OrderStrategy),
    numbers,
    st.dictionaries(
        numbers, st.builds(OrderedQueue, numbers, st.sampled_from(PartitionStatus), st.integers(-1, 9))
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
changes: st.SearchStrategy[OrderedChange] = st.one_of(
    st.builds(SubjectsPut, st.dictionaries(topics, subjects, min_size=1)),
    st.builds(
        FencesPut,
        st.dictionaries(
            topics.map(lambda topic: f"{topic}@g"), st.dictionaries(numbers, fences, min_size=1), min_size=1
        ),
    ),
    st.builds(ProducersPut, st.dictionaries(queue_names, parts, min_size=1)),
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
    state.apply(records.TopicsDeleted(("t",)))

    ordered = state.ordered
    assert (set(ordered.subjects), set(ordered.fences), set(ordered.producers)) == ({"u"}, {"u"}, {"u"})


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
    ],
)
def test_what_cannot_be_read_is_refused(payload: bytes) -> None:
    """A record that cannot be read stops applying, rather than being guessed."""
    with pytest.raises(FormatError):
        changes_of(fields.parse_object(payload))
