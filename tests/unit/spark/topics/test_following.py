"""What a stream decides."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_spark.topics.following import Ends, Seen, advanced, batch_between, next_step
from brokerset_spark.topics.offsets import Mark, QueueKey, StreamOffset, partition_numbers

A, B = QueueKey("t", "a", 0), QueueKey("t", "b", 0)
OFFSETS = st.dictionaries(
    st.builds(QueueKey, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.integers(0, 2**63 - 1),
)


def test_what_is_there_is_read_and_nothing_is_lost() -> None:
    """A queue goes on where the stream is, up to its end."""
    step = next_step(StreamOffset({A: 3}), Seen({A: Ends(0, 9)}))
    assert (step.begins, step.ends, step.jumps, step.losses) == ({A: 3}, {A: 9}, {}, [])


@pytest.mark.parametrize(
    ("ends", "changed", "said"),
    [
        (Ends(5, 9), False, "2 records expired"),
        (Ends(0, 2), False, "ends at 2"),
        (Ends(0, 9), True, "is another one now"),
    ],
    ids=["expired", "shorter", "changed"],
)
def test_what_is_lost_is_said_and_the_rest_is_read(ends: Ends, changed: bool, said: str) -> None:
    """After a loss the stream begins with the first record that is there, and its offset says so."""
    start = StreamOffset({A: 3}, {A: Mark(1, 1)})
    step = next_step(start, Seen({A: ends}), changed=frozenset({A}) if changed else frozenset())
    (loss,) = step.losses
    assert said in loss
    end = advanced(start, step, {A: Mark(2, 2)})
    assert end.begins == {A: ends.first}
    assert batch_between(start, end) == {A: (ends.first, ends.last)}


def test_a_new_queue_is_read_from_its_beginning() -> None:
    """Without a loss if it has everything, with one if its first records have expired."""
    start = StreamOffset({A: 1})
    assert not next_step(start, Seen({A: Ends(0, 1), B: Ends(0, 4)})).losses
    step = next_step(start, Seen({A: Ends(0, 1), B: Ends(2, 4)}))
    assert "first 2 records have expired" in step.losses[0]
    assert batch_between(start, advanced(start, step, {})) == {B: (2, 4)}


def test_a_broker_that_is_away_is_waited_for() -> None:
    """Its queues stay where they are, and are no loss; a queue that is gone is one, and is forgotten."""
    start = StreamOffset({A: 1, B: 2}, {B: Mark(1, 1)})
    step = next_step(start, Seen({A: Ends(0, 1)}, absent=frozenset({B})))
    assert not step.losses
    assert advanced(start, step, {}) is start
    gone = next_step(start, Seen({A: Ends(0, 1)}))
    assert "does not exist any more" in gone.losses[0]
    assert advanced(start, gone, {}).offsets == {A: 1}


def test_a_target_bounds_what_is_read() -> None:
    """Nothing behind the target, and nothing of queues that came later."""
    step = next_step(StreamOffset({A: 1}), Seen({A: Ends(0, 9), B: Ends(0, 9)}), target={A: 4})
    assert step.ends == {A: 4, B: 0}


@given(OFFSETS, OFFSETS)
def test_offsets_survive_json(offsets: dict[QueueKey, int], begins: dict[QueueKey, int]) -> None:
    """A checkpoint gives back what was put in, and the same offsets are the same text."""
    marks = {key: Mark(offset, offset & 0x7FFFFFFF) for key, offset in offsets.items()}
    value = StreamOffset(offsets, marks, begins)
    text = json.dumps(value.to_json())
    assert StreamOffset.from_json(json.loads(text)) == value
    backwards = StreamOffset(dict(reversed(offsets.items())), marks, begins)
    assert json.dumps(backwards.to_json()) == text


def test_a_newer_checkpoint_is_refused() -> None:
    """What this version does not know is not passed over."""
    with pytest.raises(ValueError, match="@other"):
        StreamOffset.from_json({"@other": {}})


def test_partitions_are_numbered_by_broker_and_queue() -> None:
    """From 0 within each topic."""
    keys = [QueueKey("u", "a", 0), QueueKey("t", "b", 0), QueueKey("t", "a", 1), QueueKey("t", "a", 0)]
    assert [partition_numbers(keys)[key] for key in sorted(keys)] == [0, 1, 2, 0]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=8),
    st.integers(0, 20),
)
def test_batches_of_a_growing_queue_join(moves: list[tuple[int, int, int]], most: int) -> None:
    """Whatever is appended and expires, each batch begins where the one before ended, or a loss was said, and
    in the end all that is there has been read."""
    offset, first, last = StreamOffset({A: 0}), 0, 0
    for grown, expired, _ in moves:
        last += grown
        first = min(last, first + expired // 4)
        step = next_step(offset, Seen({A: Ends(first, last)}), most=most)
        end = advanced(offset, step, {})
        begin, until = batch_between(offset, end).get(A, (offset.offsets[A], offset.offsets[A]))
        assert (begin == offset.offsets[A]) or step.losses
        assert begin <= until == end.offsets[A] <= last or begin == until
        offset = end
    assert next_step(offset, Seen({A: Ends(first, last)})).ends == {A: max(last, first)}
