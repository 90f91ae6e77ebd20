"""Which queues a pop reads, in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.pop.choice import DRAWN_BITS, Chances, choose, queue_order

CHANCES = Chances(retry_percent=20, retry_percent_by_priority=0, highest_first=True)
RETRIES = (("%RETRY%g_t", 1),)


def drawn(*, start: int = 0, retry: int = 99, priority: int = 99) -> int:
    return (start * 100 + retry) * 100 + priority


@given(st.integers(1, 300), st.integers(0, (1 << DRAWN_BITS) - 1), st.booleans())
def test_every_queue_is_read_once_and_each_may_be_the_first(queues: int, start: int, highest: bool) -> None:
    """Whatever is drawn; no queue is behind the others by its number."""
    order = queue_order(queues, start, highest)

    assert sorted(order) == list(range(queues))
    assert {queue_order(queues, number, highest)[0] for number in range(queues)} == set(range(queues))


def test_retries_are_first_as_often_as_is_set_and_last_otherwise() -> None:
    """popFromRetryProbability."""
    first = choose("t", -1, 4, RETRIES, CHANCES, drawn=drawn(retry=19))
    last = choose("t", -1, 4, RETRIES, CHANCES, drawn=drawn(retry=20))

    assert [source.is_retry for source in first] == [True, False]
    assert [source.is_retry for source in last] == [False, True]


def test_priorities_are_read_from_the_highest_queue_and_without_retries_first() -> None:
    """priority.factor, priorityOrderAsc, popFromRetryProbabilityForPriority."""
    low_first = Chances(20, 0, highest_first=False)
    by_priority = choose("t", -1, 3, RETRIES, CHANCES, drawn=drawn(start=7, retry=0), priority_factor=100)
    other_way = choose("t", -1, 3, (), low_first, drawn=drawn(start=7), priority_factor=100)
    by_chance = choose("t", -1, 3, (), CHANCES, drawn=drawn(start=1, priority=50), priority_factor=50)

    assert (tuple(by_priority[0].queue_ids), by_priority[1].is_retry) == ((2, 1, 0), True)
    assert tuple(other_way[0].queue_ids) == (0, 1, 2)
    assert tuple(by_chance[0].queue_ids) == (0, 2, 1)


def test_ordered_pops_never_read_retry_topics() -> None:
    """Nor do they read by priority."""
    assert len(choose("t", 2, 4, RETRIES, CHANCES, drawn=0, ordered=True, priority_factor=100)) == 1


def test_a_pop_of_one_queue_reads_that_one_and_the_retries() -> None:
    """All of both retry topics."""
    sources = choose("t", 2, 4, (("r2", 2), ("r1", 1)), CHANCES, drawn=drawn())

    assert [(source.topic, sorted(source.queue_ids)) for source in sources] == [
        ("t", [2]), ("r2", [0, 1]), ("r1", [0]),
    ]  # fmt: skip
