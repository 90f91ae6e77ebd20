"""Locks of orderly consumers, against a naive model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.tables.locks import QueueLocks
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_runtime.clock import ManualClock

QUEUES = [MessageQueue("t", "b", number) for number in range(3)]


def test_a_free_queue_is_locked_once() -> None:
    """A second client gets nothing while the first renews, and the first may ask again."""
    clock = ManualClock()
    locks = QueueLocks(clock)

    assert locks.lock("g", "one", QUEUES[:2]) == QUEUES[:2]
    clock.advance(59_000)
    assert locks.lock("g", "two", QUEUES) == QUEUES[2:]
    assert locks.lock("g", "one", QUEUES[:1]) == QUEUES[:1]
    clock.advance(2_000)

    assert locks.lock("g", "two", QUEUES) == QUEUES[1:]
    assert locks.locked_by_other("g", QUEUES[0], "two")
    assert not locks.locked_by_other("g", QUEUES[0], "one")
    assert not locks.locked_by_other("other", QUEUES[0], "two")


def test_only_the_holder_unlocks() -> None:
    """Somebody else's unlock changes nothing; the holder's frees the queue at once."""
    locks = QueueLocks(ManualClock())
    locks.lock("g", "one", QUEUES[:1])

    locks.unlock("g", "two", QUEUES)
    assert locks.lock("g", "two", QUEUES[:1]) == []
    locks.unlock("g", "one", QUEUES)

    assert locks.lock("g", "two", QUEUES[:1]) == QUEUES[:1]


def test_a_group_has_locks_until_they_expire() -> None:
    """`has_locks` tells an orderly group from others, and expired locks leave no memory behind."""
    clock = ManualClock()
    locks = QueueLocks(clock)
    assert not locks.has_locks("g")
    locks.lock("g", "one", QUEUES)

    assert locks.has_locks("g")
    clock.advance(60_001)
    assert not locks.has_locks("g")
    assert locks.expire() == 3
    assert locks.expire() == 0


def test_limits_grant_nothing_more() -> None:
    """A group cannot lock more queues than the limit, nor more groups lock at all."""
    locks = QueueLocks(ManualClock())
    locks.queues_max = 2
    locks.groups_max = 1

    assert locks.lock("g", "one", QUEUES) == QUEUES[:2]
    assert locks.lock("other", "one", QUEUES) == []


steps = st.lists(
    st.tuples(
        st.sampled_from(["lock", "unlock", "wait"]),
        st.sampled_from(["one", "two"]),
        st.sets(st.sampled_from(QUEUES)),
        st.integers(0, 70_000),
    ),
    max_size=30,
)


@given(steps)
def test_locks_agree_with_a_model(sequence: list[tuple[str, str, set[MessageQueue], int]]) -> None:
    """Whatever clients do, one holder at a time, for 60 s from its last renewal."""
    clock = ManualClock()
    locks = QueueLocks(clock)
    held: dict[MessageQueue, tuple[str, float]] = {}
    for action, client, queues, wait_ms in sequence:
        now = clock.monotonic()
        if action == "wait":
            clock.advance(wait_ms)
        elif action == "unlock":
            locks.unlock("g", client, queues)
            held = {queue: lock for queue, lock in held.items() if lock[0] != client or queue not in queues}
        else:
            free = [
                q for q in sorted(queues) if q not in held or held[q][0] == client or now - held[q][1] > 60
            ]
            held.update({queue: (client, now) for queue in free})
            assert locks.lock("g", client, sorted(queues)) == free
    now = clock.monotonic()
    assert locks.has_locks("g") == any(now - since <= 60 for _, since in held.values())


def test_a_session_replaces_another_but_no_client() -> None:
    """A session's lock is replaced by the next session's at once, and by a client's after 30 s; a client's
    lock keeps sessions out for its life (statement 53)."""
    clock = ManualClock()
    locks, queue = QueueLocks(clock), MessageQueue("t", "b", 0)

    first = locks.claim("g", "s1", queue, 1)
    second = locks.claim("g", "s2", queue, 2)
    locks.unlock("g", "s1", [queue])
    early = locks.lock("g", "client", [queue])
    clock.advance(30_001)
    late = locks.lock("g", "client", [queue])
    refused = locks.claim("g", "s2", queue, 2)
    clock.advance(60_001)
    again = locks.claim("g", "s2", queue, 2)

    assert (first, second, early, late) == (True, True, [], [queue])
    assert (refused, again) == (False, True)
    assert not locks.held_by_client("g", queue)
