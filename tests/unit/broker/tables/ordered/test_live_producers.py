"""Producers that a master remembers, and the records about them."""

from __future__ import annotations

from unittest import mock

from brokerset_broker.tables.ordered import live_producers
from brokerset_broker.tables.ordered.live_producers import (
    PRODUCER_KEPT_MS,
    SWEEP_MS,
    LiveProducers,
    LiveQueue,
)
from brokerset_broker.tables.ordered.sequences import Stamps
from brokerset_broker.tables.ordered.state import OrderedState


def store(queue: LiveQueue, producer: str, sequence: int, queue_offset: int, now_ms: int = 0) -> None:
    queue.stored(Stamps(1, producer, 1, sequence, 1), queue_offset, now_ms, 1)


def test_records_of_changes_add_up_to_the_table() -> None:
    """What was forgotten and comes again, what was not written and is written later: the records say what the
    master knows."""
    live, state, queue = LiveProducers(), OrderedState(), LiveQueue(None, 0)
    live.put("t", 0, queue)
    with mock.patch.object(live_producers, "PRODUCERS_MAX", 2):
        for offset, producer in enumerate("abcadb"):
            now_ms = offset * PRODUCER_KEPT_MS
            assert queue.make_room(now_ms)
            store(queue, producer, 0, offset, now_ms)
            live.note("t", 0)
            change = live.take_changes()
            assert change is not None
            if offset % 2:
                live.not_written(change)
            else:
                state.apply(change)
    last = live.take_changes()
    assert last is not None
    state.apply(last)

    assert state.producers["t"][0].producers == queue.producers
    assert state.producers["t"][0].complete_to == 6
    assert live.take_changes() is None


def test_a_young_producer_is_not_forgotten() -> None:
    """One that stored something lately stays, and a new one is refused."""
    queue = LiveQueue(None, 0)
    with mock.patch.object(live_producers, "PRODUCERS_MAX", 2):
        for offset, producer in enumerate("ab"):
            store(queue, producer, 0, offset, 1_000)
        early = queue.make_room(1_000 + PRODUCER_KEPT_MS - 1)
        late = queue.make_room(1_000 + PRODUCER_KEPT_MS)

    assert (early, late) == (False, True)
    assert list(queue.producers) == ["b"]


def test_a_full_broker_forgets_the_idle_producers_of_all_queues() -> None:
    """Each start of a process is a producer: those of weeks ago, of whatever queue, make room for new ones,
    and young ones stay."""
    live, state = LiveProducers(), OrderedState()
    with mock.patch.object(live_producers, "TOTAL_PRODUCERS_MAX", 4):
        for queue_id, now_ms in enumerate((0, PRODUCER_KEPT_MS)):
            queue = LiveQueue(None, 0)
            live.put("t", queue_id, queue)
            for offset, producer in enumerate("ab"):
                store(queue, producer, 0, offset, now_ms)
                live.note("t", queue_id)
        change = live.take_changes()
        assert change is not None
        state.apply(change)
        early, searched = live.has_room(PRODUCER_KEPT_MS - 1), live.has_room(PRODUCER_KEPT_MS)
        late, total = live.has_room(PRODUCER_KEPT_MS + SWEEP_MS), live.total
        live.forget_topic("t")

    assert (early, searched, late, total, live.total) == (False, False, True, 2, 0)
    assert state.producer_count() == 4


def test_producers_that_a_full_broker_forgot_are_gone_with_the_next_record() -> None:
    """The table does not keep what the master forgot."""
    live, state, queue = LiveProducers(), OrderedState(), LiveQueue(None, 0)
    live.put("t", 0, queue)
    store(queue, "a", 0, 0)
    live.note("t", 0)
    for now_ms in (0, PRODUCER_KEPT_MS):
        with mock.patch.object(live_producers, "TOTAL_PRODUCERS_MAX", 1):
            live.has_room(now_ms)
        change = live.take_changes()
        if change is not None:
            state.apply(change)

    assert state.producer_count() == 0
