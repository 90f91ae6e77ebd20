"""Locks of ordered pops: who gets messages of a queue, what acks make of it, and RocketMQ's JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brokerset_broker.pop.order_locks import (
    EXPIRY_MS,
    Fate,
    acked,
    find,
    free_at,
    given_before,
    is_expired,
    is_locked,
    made_visible,
    order_counts,
    popped,
    room,
)
from brokerset_broker.tables.pop.order_lock import OrderLock, file_of, locks_of_file, locks_to_json
from brokerset_formats.errors import FormatError

JAVA_FILE = (
    b'{"orderInfoCount":1,"orderedConsumptionLevel":"QUEUE","table":{"T@g":{1:{"a":"att-2","cm":5,"i":60000,'
    b'"l":1700000000500,"o":[7,1,3],"oc":{7:1,8:1,10:1},"ot":{8:1700000090000},"popTime":1700000000000}}}}'
)
"""As Java 5.5.0 has written it."""


def first_pop(**more: object) -> OrderLock:
    lock = popped(None, attempt_id="a", pop_time=1_000, invisible_ms=60_000, queue_offsets=[7, 8, 10])
    return replace(lock, **more)  # type: ignore[arg-type]  # fields by name


def test_the_file_of_java_is_read() -> None:
    """Messages, acks, counts and changed times are what Java's broker wrote."""
    assert locks_of_file(JAVA_FILE) == {
        "T@g": {
            1: OrderLock(
                "att-2",
                1_700_000_000_000,
                60_000,
                (7, 8, 10),
                acked=0b101,
                counts={7: 1, 8: 1, 10: 1},
                visible_at={8: 1_700_000_090_000},
                consumed_at=1_700_000_000_500,
            )
        }
    }


def test_the_file_is_written_as_java_does() -> None:
    """Names, order of fields and values are Java's; only its unquoted keys become quoted ones."""
    quoted = JAVA_FILE.replace(b'{1:{"a"', b'{"1":{"a"').replace(b"{7:1,8:1,10:1}", b'{"7":1,"8":1,"10":1}')
    quoted = quoted.replace(b'"ot":{8:', b'"ot":{"8":')

    written = json.dumps(
        file_of(dict(locks_to_json(locks_of_file(JAVA_FILE)))), separators=(",", ":")
    ).encode()

    assert written == quoted


@pytest.mark.parametrize(
    "lock", [{}, {"o": []}, {"o": [5, 0]}, {"o": [5, 3, 2]}, {"o": [-1]}, {"o": list(range(65))}, {"o": "5"}]
)
def test_a_lock_that_cannot_be_is_refused(lock: dict[str, object]) -> None:
    """Queue offsets must ascend, and there are 64 bits for them."""
    with pytest.raises(FormatError):
        OrderLock.from_json(lock)


def test_empty_locks_of_java_are_left_out() -> None:
    """Java's broker has keys without queues after a mere check."""
    assert locks_of_file(b'{"table":{"T@g":{},"T@h":{0:{"o":[]}}}}') == {}


def test_a_queue_is_locked_for_others_until_the_invisible_time_is_over() -> None:
    """Another attempt, or one without a name, gets nothing; the same attempt does."""
    lock = first_pop()

    assert is_locked(lock, "b", 60_999)
    assert is_locked(lock, None, 60_999)
    assert not is_locked(lock, "a", 60_999)
    assert not is_locked(lock, "b", 61_000)


def test_two_attempts_without_a_name_are_not_the_same() -> None:
    """A client that names no attempt does not unlock the queue for itself."""
    assert is_locked(first_pop(attempt_id=None), None, 2_000)


def test_the_queue_is_free_when_all_is_acked() -> None:
    """The last ack unlocks, not the first."""
    lock = acked(acked(first_pop(), 7), 10)
    assert is_locked(lock, "b", 2_000)

    lock = acked(lock, 8)

    assert not is_locked(lock, "b", 2_000)
    assert lock.next_offset == 11


def test_the_group_goes_on_at_the_first_message_that_is_not_acked() -> None:
    """Acks behind a gap do not move it."""
    lock = acked(first_pop(), 10)
    assert lock.next_offset == 7

    assert acked(lock, 7).next_offset == 8
    assert acked(acked(lock, 7), 8).next_offset == 11


def test_the_queue_is_free_when_the_last_message_is_visible() -> None:
    """A longer invisible time of one message locks as long; a shorter one does not unlock the others."""
    longer = made_visible(first_pop(), 8, 90_000)
    shorter = made_visible(first_pop(), 8, 2_000)

    assert free_at(longer) == 90_000
    assert free_at(shorter) == 61_000
    assert free_at(acked(acked(shorter, 7), 10)) == 2_000


def test_a_message_that_is_acked_is_not_given_out_again() -> None:
    """It stays in the next lock, acked, and the group passes it when what is before it is acked."""
    before = acked(first_pop(), 8)
    passed_by = given_before(before, 7)
    assert passed_by == {8}

    lock = popped(
        before,
        attempt_id="b",
        pop_time=70_000,
        invisible_ms=60_000,
        queue_offsets=[7, 10, 11],
        passed_by=passed_by,
    )

    assert lock.open_offsets() == [7, 10, 11]
    assert acked(lock, 7).next_offset == 10
    assert lock.counts == {7: 1, 10: 1}
    assert room(passed_by) == 61


def test_a_small_pop_does_not_take_the_group_past_what_nobody_has_read() -> None:
    """3 and 5 were not acknowledged: who gets 2 alone and acknowledges it, leaves 3 to the next pop."""
    before = first_pop(queue_offsets=(2, 3, 4, 5, 6), acked=0b10100)
    passed_by = given_before(before, 2)

    lock = popped(
        before, attempt_id="b", pop_time=70_000, invisible_ms=9, queue_offsets=[2], passed_by=passed_by
    )

    assert lock.open_offsets() == [2]
    assert find(lock, 3, 70_000) is Fate.NOT_GIVEN
    lock = acked(lock, 2)
    assert (lock.next_offset, free_at(lock)) == (3, 0)
    assert given_before(lock, 3) == {4, 6}


def test_a_group_that_went_back_gets_everything_again() -> None:
    """With nothing open a position before the lock was set on purpose."""
    done = acked(acked(acked(first_pop(), 7), 8), 10)

    assert given_before(done, 0) == frozenset()
    assert given_before(done, 8) == {8, 10}


def test_fates() -> None:
    """An ack counts for the pop that it names, once, and for its messages only."""
    lock = acked(first_pop(), 8)

    assert find(lock, 7, 1_000) is Fate.DONE
    assert find(lock, 8, 1_000) is Fate.DONE_BEFORE
    assert find(lock, 9, 1_000) is Fate.NOT_GIVEN
    assert find(lock, 7, 999) is Fate.OTHER_POP
    assert find(None, 7, 1_000) is Fate.UNKNOWN


def test_order_counts_are_java_s() -> None:
    """A first pop counts the queue alone; a repeated one each message, then the least of all."""
    first = first_pop()
    again = popped(first, attempt_id="b", pop_time=2, invisible_ms=1, queue_offsets=[7, 8, 10])
    third = popped(again, attempt_id="c", pop_time=3, invisible_ms=1, queue_offsets=[7, 8, 10, 11])

    assert order_counts(1, first) == "0 1 0"
    assert order_counts(1, again) == "0 qo1%7 1;0 qo1%8 1;0 qo1%10 1;0 1 1"
    assert order_counts(1, third) == "0 qo1%7 2;0 qo1%8 2;0 qo1%10 2;0 1 0"


def test_a_repeated_attempt_counts_nothing() -> None:
    """Its answer was lost, the messages were not consumed."""
    again = popped(first_pop(), attempt_id="b", pop_time=2, invisible_ms=1, queue_offsets=[7, 8, 10])

    repeated = popped(again, attempt_id="b", pop_time=3, invisible_ms=1, queue_offsets=[7, 8, 10])

    assert repeated.counts == again.counts
    assert repeated.pop_time == 3


def test_a_lock_expires_after_a_day_unless_messages_are_still_out() -> None:
    """Java forgets after 24 hours; a longer invisible time keeps its lock here."""
    assert not is_expired(first_pop(), 1_000 + EXPIRY_MS)
    assert is_expired(first_pop(), 1_001 + EXPIRY_MS)
    assert not is_expired(first_pop(invisible_ms=2 * EXPIRY_MS), 1_001 + EXPIRY_MS)
