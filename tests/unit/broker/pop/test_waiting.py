"""Who waits for messages, whom an arrival wakes, and whose time is over."""

from __future__ import annotations

import pytest

from brokerset_broker.pop.waiting import EARLY_MS, POLL_MS_MAX, SLOT_MS, Waiter, WaitingTable, wait_ms


def table() -> WaitingTable:
    return WaitingTable(lambda topic, group: (f"%RETRY%{group}_{topic}",))


def waiter(
    waiting: WaitingTable | None,
    topic: str = "t",
    group: str = "g",
    queue_id: int = -1,
    *,
    codes: frozenset[int] | None = None,
    ordered: bool = False,
    owner: object = "owner",
    deadline_ms: int = 1_000,
) -> Waiter:
    made = Waiter()
    made.topic, made.group, made.queue_id = topic, group, queue_id
    made.codes, made.ordered, made.owner, made.deadline_ms = codes, ordered, owner, deadline_ms
    made.line = None
    if waiting is not None:
        assert waiting.add(made)
    return made


def test_a_message_wakes_one_of_any_queue_and_one_of_its_queue_in_each_group() -> None:
    """The one that has waited longest; ten thousand others sleep on."""
    waiting = table()
    waiting.line_max = 10_000
    first = waiter(waiting)
    for _ in range(9_000):
        waiter(waiting)
    exact = waiter(waiting, queue_id=3)
    waiter(waiting, queue_id=4)
    other = waiter(waiting, group="h")

    assert waiting.arrived("t", 3, None) == [first, exact, other]
    assert len(waiting) == 9_001


def test_messages_of_a_locked_queue_wake_no_ordered_pop() -> None:
    """It would get nothing; who frees the queue wakes it. Who wants no order is woken."""
    waiting = table()
    waiting.is_locked = lambda topic, group, queue_id: (topic, group, queue_id) == ("t", "g", 3)
    ordered = waiter(waiting, ordered=True)
    other_group = waiter(waiting, group="h", ordered=True)

    assert waiting.arrived("t", 3, 5) == [other_group]
    unordered = waiter(waiting)
    assert waiting.arrived("t", 3, 5) == [unordered]
    assert waiting.arrived("t", 4, 5) == [ordered]


def test_who_does_not_want_a_message_keeps_nobody_from_it() -> None:
    """The code is compared as Java does, in 32 bits."""
    waiting = table()
    waiter(waiting, codes=frozenset({7}))
    wants = waiter(waiting, codes=frozenset({-1}))

    assert waiting.arrived("t", 0, 0xFFFFFFFF) == [wants]
    assert waiting.arrived("t", 0, 8) == []
    assert len(waiting.arrived("t", 0, 8, force=True)) == 1


def test_an_arrival_at_a_retry_topic_wakes_one_who_waits_for_the_topic() -> None:
    """Whichever queue that is, but not who keeps the order."""
    waiting = table()
    waiter(waiting, ordered=True)
    exact = waiter(waiting, queue_id=5)

    assert waiting.arrived("%RETRY%g_t", 0, None) == [exact]
    assert waiting.arrived("%RETRY%g_t", 0, None) == []
    assert waiting.arrived("%RETRY%g_u", 0, None) == []


def test_each_waits_until_its_deadline_and_no_longer() -> None:
    """Nobody is taken twice, and no more at once than is asked for."""
    waiting = table()
    early, late = waiter(waiting, deadline_ms=100), waiter(waiting, deadline_ms=100)
    waiter(waiting, deadline_ms=500)

    assert waiting.next_due_ms() == 100
    assert waiting.expired(99, 10) == []
    assert waiting.expired(100 + SLOT_MS, 1) == [early]
    assert waiting.expired(100 + SLOT_MS, 10) == [late]
    assert len(waiting.expired(10_000, 10)) == 1
    assert (len(waiting), waiting.next_due_ms(), waiting.topics()) == (0, None, [])


def test_limits_hold_and_who_is_gone_is_forgotten() -> None:
    """popPollingSize for each queue of a group, maxPopPollingSize for all."""
    waiting = table()
    waiting.line_max, waiting.total_max = 2, 3
    waiter(waiting)
    waiter(waiting, owner="other")
    assert not waiting.add(waiter(None))
    waiter(waiting, group="h")
    assert not waiting.add(waiter(None, group="i"))

    waiting.drop("owner")

    assert (len(waiting), waiting.count("t", "g", -1), waiting.count("t", "h", -1)) == (1, 1, 0)
    assert waiting.next("t", "g", -1) is not None
    assert waiting.next("t", "g", -1) is None


@pytest.mark.parametrize(
    ("poll", "born", "expected"),
    [
        (15_000, 10_000, 15_000 - EARLY_MS),
        (15_000, 0, 15_000 - EARLY_MS),
        (15_000, 9_000, 14_000 - EARLY_MS),
        (15_000, 99_000, 15_000 - EARLY_MS),
        (1_000, 8_500, 0),
        (1_000, 8_499, None),
        (-5, 10_000, 0),
        (1 << 70, 10_000, POLL_MS_MAX - EARLY_MS),
        (0, -(1 << 70), None),
    ],
)
def test_a_request_waits_from_its_birth_on(poll: int, born: int, expected: int | None) -> None:
    """At 10,000: not at all if it is too old, and never longer than it asked for."""
    assert wait_ms(poll, born, 10_000) == expected
