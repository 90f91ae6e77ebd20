"""Ordered pops against a simple model: one group, one queue, a list of messages."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from brokerset_broker.pop.order_locks import (
    Fate,
    acked,
    find,
    given_before,
    is_locked,
    made_visible,
    popped,
    room,
)
from brokerset_broker.tables.pop.order_lock import OrderLock
from brokerset_rig.examples import examples

MESSAGES = 200

steps = st.one_of(
    st.tuples(st.just("pop"), st.sampled_from("abc"), st.integers(1, 32), st.integers(0, 3)),
    st.tuples(st.just("ack"), st.integers(0, 40)),
    st.tuples(st.just("stale ack"), st.integers(0, 40)),
    st.tuples(st.just("change"), st.integers(0, 40), st.integers(0, 30)),
    st.tuples(st.just("wait"), st.integers(1, 40)),
)


class Model:
    """Who has which message until when, message by message."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.out: dict[int, int] = {}
        """Visible from when, of what was given out and is not acked."""
        self.attempt = ""
        self.pop_time = 0
        self.read_to = 0
        """Behind the last message that the last pop gave out: what is not wanted before that is known."""

    @property
    def position(self) -> int:
        return min(set(range(MESSAGES + 1)) - self.acked)

    def take(self, count: int, gap: int) -> list[int]:
        """What a pop reads: from the position on, not what is acked; each `gap`-th message is not wanted."""
        wanted = [
            offset
            for offset in range(self.position, MESSAGES)
            if offset not in self.acked and (gap == 0 or offset % (gap + 1) != gap)
        ]
        return wanted[:count]


@examples(200)
@given(st.lists(steps, max_size=60))
@example([("pop", "a", 5, 0), ("ack", 3), ("pop", "a", 1, 0), ("ack", 0)])
def test_an_ordered_queue_is_what_the_model_says(script: list[tuple[object, ...]]) -> None:
    """Nobody gets messages next to somebody else, no acked message comes again, no order is broken, and what
    is JSON in between is the same."""
    model, lock, now, last = Model(), None, 1_000, -1
    for step in script:
        now += 1
        match step:
            case ("pop", str(attempt), int(count), int(gap)):
                blocked = any(time > now for time in model.out.values()) and attempt != model.attempt
                assert (lock is not None and is_locked(lock, attempt, now)) == blocked
                if blocked:
                    continue
                passed_by: frozenset[int] = (
                    frozenset() if lock is None else given_before(lock, model.position)
                )
                taken = model.take(min(count, room(passed_by)), gap)
                if not taken:
                    continue
                # Messages that are not wanted before the first one are passed for good.
                model.acked.update(range(model.position, taken[0]))
                assert not model.acked & set(taken)
                lock = popped(
                    lock,
                    attempt_id=attempt,
                    pop_time=now,
                    invisible_ms=20,
                    queue_offsets=taken,
                    passed_by=passed_by,
                )
                assert lock.open_offsets() == taken
                model.attempt, model.pop_time, model.read_to = attempt, now, taken[-1] + 1
                model.out = dict.fromkeys(taken, now + 20)
            case ("ack", int(index)) if lock is not None and index < len(lock.queue_offsets):
                offset = lock.queue_offsets[index]
                fate = find(lock, offset, model.pop_time)
                if offset not in model.out and offset not in model.acked:
                    assert fate is Fate.NOT_GIVEN
                    continue
                assert fate is (Fate.DONE if offset in model.out else Fate.DONE_BEFORE)
                lock = acked(lock, offset)
                model.out.pop(offset, None)
                model.acked.add(offset)
                before = lock.queue_offsets
                assert model.acked.issuperset(range(model.read_to, lock.next_offset))
                model.acked.update(  # not wanted, between what is acked
                    offset for offset in range(before[0], lock.next_offset) if offset not in model.out
                )
                assert lock.next_offset >= last
                last = lock.next_offset
            case ("stale ack", int(index)) if lock is not None and index < len(lock.queue_offsets):
                stale = find(lock, lock.queue_offsets[index], model.pop_time - 1)
                assert stale is Fate.OTHER_POP
            case ("change", int(index), int(after)) if lock is not None and index < len(lock.queue_offsets):
                offset = lock.queue_offsets[index]
                if find(lock, offset, model.pop_time) is Fate.DONE:
                    lock = made_visible(lock, offset, now + after)
                    model.out[offset] = now + after
            case ("wait", int(duration)):
                now += duration
            case _:
                continue
        if lock is not None:
            assert OrderLock.from_json(lock.to_json()) == lock
