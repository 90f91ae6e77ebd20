"""Producers that a master remembers, and the records about them."""

from __future__ import annotations

from unittest import mock

from brokerset_broker.tables.ordered import live_producers
from brokerset_broker.tables.ordered.live_producers import PRODUCER_KEPT_MS, LiveProducers, LiveQueue
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
