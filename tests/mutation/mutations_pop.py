"""Mistakes in pops, whose consequences are messages that two have, that come again, or that nobody hears of."""

from __future__ import annotations

from tests.mutation.table import Mutation

_POP = "broker/brokerset_broker/pop/"
_REQUESTS = "broker/brokerset_broker/requests/pop/"
_REVIVAL = "broker/brokerset_broker/services/pop/"
_ACKS = "tests/integration/broker/test_pop_acks.py::"
_POPS = "tests/integration/broker/test_pops.py::"
_ORDER = "tests/integration/broker/test_pops_in_order.py::"
_ORDERED = "tests/integration/broker/test_ordered_pops.py::"
_LOCKS = "tests/unit/broker/pop/test_order_locks.py::"
_FATES = "tests/unit/broker/pop/test_fates.py::"

POP = (
    Mutation(
        name="pop-expired-handle-acks",
        breaks="An ack that comes too late is answered with 0.",
        path=_POP + "fates.py",
        old="        return NotYours.EXPIRED\n    if points.is_early_acked",
        new="        return Settled.ACKED\n    if points.is_early_acked",
        caught_by=_FATES + "test_a_handle_whose_time_is_over_is_not_good",
    ),
    Mutation(
        name="pop-clock-set-back",
        breaks="A clock that is set back makes handles of messages good that have come back.",
        path=_POP + "fates.py",
        old="max(now_ms, points.came_back_ms)",
        new="now_ms",
        caught_by=_FATES + "test_a_clock_that_is_set_back_makes_no_old_handle_good",
    ),
    Mutation(
        name="pop-given-up-handle-acks",
        breaks="The old handle of a changed message acknowledges it.",
        path=_POP + "fates.py",
        old="    if points.is_out_elsewhere(source, claim.offset, point):\n",
        new="    if False:\n",
        caught_by=_FATES + "test_the_handle_from_before_a_change_is_not_good",
    ),
    Mutation(
        name="pop-never-popped-acks",
        breaks="A message that no pop has reached is taken for acknowledged.",
        path=_POP + "fates.py",
        old="    if source.position is None or claim.offset >= source.position:\n",
        new="    if False:\n",
        caught_by=_FATES + "test_a_message_that_no_pop_has_reached_is_nobodys",
    ),
    Mutation(
        name="pop-acked-message-stays-out",
        breaks="An acknowledged message comes back.",
        path=_POP + "check_points.py",
        old="        point.left &= ~bits\n",
        new="        point.left &= ~0\n",
        caught_by=_ACKS + "test_what_is_not_acked_comes_back_once_and_what_is_acked_does_not",
    ),
    Mutation(
        name="pop-order-lock-frees-first",
        breaks="A queue is given to somebody else when its first message is visible, not its last.",
        path=_POP + "order_locks.py",
        old="        time = max(time, lock.visible_at.get(offset, end))\n",
        new="        time = min(time or end, lock.visible_at.get(offset, end))\n",
        caught_by=_LOCKS + "test_the_queue_is_free_when_the_last_message_is_visible",
    ),
    Mutation(
        name="pop-order-other-pop-acks",
        breaks="An ack of an earlier ordered pop counts for the newest one.",
        path=_POP + "order_locks.py",
        old="    if pop_time != lock.pop_time:\n",
        new="    if False:\n",
        caught_by=_ORDERED + "test_an_ack_of_another_pop_is_refused",
    ),
    Mutation(
        name="pop-order-acked-again",
        breaks="What was acknowledged behind an open message is given out again.",
        path=_REQUESTS + "ordered_pops.py",
        old="        return frozenset() if lock is None else given_before(lock, position)\n",
        new="        return frozenset()\n",
        caught_by=_ORDER + "test_what_was_acked_behind_an_open_message_is_not_given_again",
    ),
    Mutation(
        name="pop-order-attempt-ignored",
        breaks="A repeated attempt does not get its messages before their time is over.",
        path=_POP + "order_locks.py",
        old="    if attempt_id is not None and attempt_id == lock.attempt_id:\n        return False\n",
        new="    if False:\n        return False\n",
        caught_by=_ORDER + "test_a_repeated_attempt_gets_the_same_messages",
    ),
    Mutation(
        name="pop-order-lock-without-position",
        breaks="After a crash a broker alone gives out again what was acknowledged before its last pop.",
        path=_REQUESTS + "ordered_pops.py",
        old="(lock.acked or self._table.journal is None)",
        new="lock.acked",
        caught_by="tests/simulation/test_pop_worlds.py::"
        "test_a_broker_alone_forgets_no_ack_of_ordered_pops_in_a_crash",
    ),
    Mutation(
        name="pop-retry-not-counted",
        breaks="A message that comes back does not say how often it was given out.",
        path=_REVIVAL + "revive.py",
        old="record.reconsume_times + (0 if point.suspend else 1),",
        new="record.reconsume_times,",
        caught_by=_ACKS + "test_what_is_not_acked_comes_back_once_and_what_is_acked_does_not",
    ),
    Mutation(
        name="pop-arrival-wakes-nobody",
        breaks="Who waits for messages hears of none.",
        path=_REQUESTS + "polls.py",
        old="        woken = self.table.arrived(topic, queue_id, tags_code, force=force)\n",
        new="        woken: list[Waiter] = []\n",
        caught_by=_POPS + "test_a_message_wakes_one_of_those_who_wait",
    ),
)
