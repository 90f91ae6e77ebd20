"""The checkers of transactions and timer messages accept sound histories, and see each promise broken."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from brokerset_sim import timer_oracle as timers
from brokerset_sim import transaction_oracle as transactions
from brokerset_sim.history import Violation
from brokerset_sim.log_records import (
    COMMIT,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    WHEEL_TOPIC,
    LogRecord,
    log_record,
)
from brokerset_sim.timer_oracle import TimedMessage, TimerOracle
from brokerset_sim.transaction_oracle import End, Transaction, TransactionOracle

CHECK_MAX = 2
TIMEOUT_MS = 300
PRECISION_MS = 100
NOTED_MS = 500


Log = TypeVar("Log", "Transactions", "Timers")


def _whole(history: Callable[[Log], None], log: Log) -> None:
    history(log)
    log.oracle.settled()


class Transactions:
    """A history of one transaction, told in few words."""

    def __init__(self) -> None:
        self.oracle = TransactionOracle(check_max=CHECK_MAX, timeout_ms=TIMEOUT_MS, skew_ms=10)
        self.oracle.begin(Transaction("k", "g", "t", 1, b"body", begun_ms=1_000))
        self.offset = 0

    def record(self, topic: str, **changes: object) -> LogRecord:
        self.offset += 100
        record = LogRecord(topic, 0, 0, self.offset, b"body", {"UNIQ_KEY": "k"}, store_ms=1_000)
        record = replace(record, **changes)  # type: ignore[arg-type]  # names of its fields
        self.oracle.record(record)
        return record

    def half(self, queue_offset: int = 0, times: int = 0, **changes: object) -> LogRecord:
        properties = {"UNIQ_KEY": "k"} | ({"TRANSACTION_CHECK_TIMES": str(times)} if times else {})
        return self.record(HALF_TOPIC, queue_offset=queue_offset, **{"properties": properties} | changes)

    def op(self, *halves: int) -> None:
        body = "".join(f"{half}," for half in halves).encode()
        self.record(OP_TOPIC, body=body, properties={"TAGS": "d"})

    def final(self, half: int = 100, **changes: object) -> None:
        values = {"queue_id": 1, "sys_flag": COMMIT, "prepared_offset": half}
        self.record("t", **values | changes)

    def ask(self, end: End) -> None:
        self.oracle.asked("k", end)

    def answered(self, end: End, epoch: int = 1) -> None:
        self.oracle.end_acknowledged("k", end, epoch)

    def check(self, times: int = 1, now_ms: int = 2_000, epoch: int = 1) -> None:
        self.oracle.check_left("k", epoch=epoch, times=times, now_ms=now_ms)

    def commit(self) -> None:
        half = self.half()
        self.ask(End.COMMIT)
        self.final(half.offset)
        self.op(0)


def _committed(log: Transactions) -> None:
    log.commit()
    log.answered(End.COMMIT)
    log.oracle.progress("n", 1)


def _rolled_back_after_a_check(log: Transactions) -> None:
    log.half()
    log.oracle.half_acknowledged("k")
    log.check()
    log.oracle.check_arrived("k", "g")
    log.half(1, times=1)
    log.oracle.progress("n", 1)
    log.ask(End.ROLLBACK)
    log.op(0, 1)
    log.answered(End.ROLLBACK)
    log.answered(End.ROLLBACK)


def _given_up(log: Transactions) -> None:
    log.half()
    log.half(1, times=1)
    log.half(2, times=2)
    log.record(GIVEN_UP_TOPIC)
    log.oracle.progress("n", 3)


def _both_asked_for(log: Transactions) -> None:
    log.ask(End.ROLLBACK)
    log.commit()
    log.answered(End.COMMIT)


def _nothing_of_it_is_stored(log: Transactions) -> None:
    log.ask(End.COMMIT)


def _checked_by_a_deposed_master(log: Transactions) -> None:
    log.commit()
    log.answered(End.COMMIT, epoch=2)
    log.check(epoch=1)


def _checked_again_by_the_next_master(log: Transactions) -> None:
    log.half()
    log.check(epoch=1)
    log.check(epoch=2)
    log.ask(End.ROLLBACK)
    log.op(0)


def _answered_from_the_beginning(log: Transactions) -> None:
    log.commit()
    log.oracle.forget_log()
    log.commit()


@pytest.mark.parametrize(
    "history",
    [
        _committed,
        _rolled_back_after_a_check,
        _given_up,
        _both_asked_for,
        _nothing_of_it_is_stored,
        _checked_by_a_deposed_master,
        _checked_again_by_the_next_master,
        _answered_from_the_beginning,
    ],
)
def test_sound_transactions_are_accepted(history: Callable[[Transactions], None]) -> None:
    """Nothing is reported of what may happen."""
    log = Transactions()

    history(log)

    log.oracle.settled()


def _visible_before_its_commit(log: Transactions) -> None:
    log.half()
    log.final()


def _half_in_its_topic(log: Transactions) -> None:
    log.ask(End.COMMIT)
    log.record("t", queue_id=1, sys_flag=0)


def _visible_after_a_rollback_was_asked_for(log: Transactions) -> None:
    log.half()
    log.ask(End.ROLLBACK)
    log.final()


def _committed_twice(log: Transactions) -> None:
    log.commit()
    log.final()


def _committed_after_its_rollback(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.ask(End.ROLLBACK)
    log.op(0)
    log.final()


def _committed_after_it_was_given_up(log: Transactions) -> None:
    _given_up(log)
    log.ask(End.COMMIT)
    log.final(half=300)


def _given_up_after_its_commit(log: Transactions) -> None:
    log.half(times=CHECK_MAX)
    log.ask(End.COMMIT)
    log.final()
    log.record(GIVEN_UP_TOPIC)


def _answered_both(log: Transactions) -> None:
    log.commit()
    log.answered(End.COMMIT)
    log.answered(End.ROLLBACK)


def _commit_answered_before_it_is_stored(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.answered(End.COMMIT)


def _commit_lost(log: Transactions) -> None:
    _committed(log)
    log.oracle.forget_log()
    log.half()
    log.half(1, times=2)
    log.record(GIVEN_UP_TOPIC)


def _rollback_lost(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.answered(End.ROLLBACK)
    log.final()


def _half_lost(log: Transactions) -> None:
    log.half()
    log.oracle.half_acknowledged("k")
    log.oracle.forget_log()


def _half_not_stored(log: Transactions) -> None:
    log.oracle.half_acknowledged("k")


def _half_with_other_bytes(log: Transactions) -> None:
    log.half(body=b"other")


def _half_with_a_flag(log: Transactions) -> None:
    log.half(sys_flag=4)


def _final_in_another_queue(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.final(queue_id=0)


def _final_with_the_target(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.final(properties={"UNIQ_KEY": "k", "REAL_TOPIC": "t"})


def _final_of_another_half(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.final(half=777)


def _left_open(log: Transactions) -> None:
    log.half()


def _checked_too_often(log: Transactions) -> None:
    log.half()
    log.check(times=CHECK_MAX + 1)


def _check_not_counted(log: Transactions) -> None:
    log.half()
    log.check()
    log.check()


def _copies_of_too_many_checks(log: Transactions) -> None:
    log.half(times=CHECK_MAX + 1)


def _given_up_too_early(log: Transactions) -> None:
    log.half(times=1)
    log.record(GIVEN_UP_TOPIC)


def _another_group_asked(log: Transactions) -> None:
    log.oracle.check_arrived("k", "other")


def _checked_too_early(log: Transactions) -> None:
    log.half()
    log.check(now_ms=1_000 + TIMEOUT_MS - 20)


def _checked_while_immune(log: Transactions) -> None:
    log.oracle.transactions["k"].immune_ms = 2_000
    log.half()
    log.check(now_ms=2_900)


def _checked_after_its_end(log: Transactions) -> None:
    _committed(log)
    log.check()


def _op_before_the_final(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.op(0)


def _op_of_nothing(log: Transactions) -> None:
    log.op(7)


def _op_missing(log: Transactions) -> None:
    log.half()
    log.ask(End.COMMIT)
    log.final()


def _open_half_passed(log: Transactions) -> None:
    log.half()
    log.oracle.progress("n", 1)


@pytest.mark.parametrize(
    ("history", "rule"),
    [
        (_visible_before_its_commit, transactions.HIDDEN),
        (_half_in_its_topic, transactions.HIDDEN),
        (_visible_after_a_rollback_was_asked_for, transactions.HIDDEN),
        (_committed_twice, transactions.ONCE),
        (_committed_after_its_rollback, transactions.ONCE),
        (_committed_after_it_was_given_up, transactions.ONCE),
        (_given_up_after_its_commit, transactions.ONCE),
        (_answered_both, transactions.ONCE),
        (_commit_answered_before_it_is_stored, transactions.COMMITTED_KEPT),
        (_commit_lost, transactions.COMMITTED_KEPT),
        (_rollback_lost, transactions.ROLLED_BACK),
        (_half_lost, transactions.HALF_KEPT),
        (_half_not_stored, transactions.HALF_KEPT),
        (_half_with_other_bytes, transactions.WHOLE),
        (_half_with_a_flag, transactions.WHOLE),
        (_final_in_another_queue, transactions.WHOLE),
        (_final_with_the_target, transactions.WHOLE),
        (_final_of_another_half, transactions.WHOLE),
        (_left_open, transactions.ENDED),
        (_checked_too_often, transactions.CHECKED),
        (_check_not_counted, transactions.CHECKED),
        (_copies_of_too_many_checks, transactions.CHECKED),
        (_given_up_too_early, transactions.CHECKED),
        (_another_group_asked, transactions.CHECKED),
        (_checked_too_early, transactions.YOUNG),
        (_checked_while_immune, transactions.YOUNG),
        (_checked_after_its_end, transactions.NOT_CHECKED),
        (_op_before_the_final, transactions.OPS),
        (_op_of_nothing, transactions.OPS),
        (_op_missing, transactions.OPS),
        (_open_half_passed, transactions.PASSED),
    ],
)
def test_a_broken_history_of_a_transaction_is_seen(
    history: Callable[[Transactions], None], rule: str
) -> None:
    """Each promise has at least one history that breaks it alone."""
    with pytest.raises(Violation) as found:
        _whole(history, Transactions())

    assert found.value.invariant == rule


class Timers:
    """A history of one timer message that is due at 2,000, told in few words."""

    def __init__(self) -> None:
        self.oracle = TimerOracle(precision_ms=PRECISION_MS, noted_ms=NOTED_MS)
        self.oracle.sent(TimedMessage("k", "t", 1, b"body", earliest_ms=2_000, delay_ms=1_000))
        self.offset = 0

    def record(self, topic: str, **changes: object) -> None:
        self.offset += 100
        record = LogRecord(topic, 0, 0, self.offset, b"body", {"UNIQ_KEY": "k"}, store_ms=1_000)
        self.oracle.record(replace(record, **changes))  # type: ignore[arg-type]  # names of its fields

    def put(self) -> None:
        self.record(WHEEL_TOPIC)
        self.oracle.acknowledged("k")

    def deliver(self, store_ms: int = 2_010, epoch: int = 1, **changes: object) -> None:
        self.record("t", **{"queue_id": 1, "store_ms": store_ms, "epoch": epoch} | changes)

    def another(self, store_ms: int, epoch: int = 1) -> None:
        self.record("other", store_ms=store_ms, epoch=epoch, properties={})


def _delivered(log: Timers) -> None:
    log.put()
    log.deliver()


def _delivered_again_by_the_next_master(log: Timers) -> None:
    log.put()
    log.deliver()
    log.another(2_010 + NOTED_MS)
    log.deliver(epoch=2)


def _delivered_again_after_the_clock_was_set(log: Timers) -> None:
    log.put()
    log.deliver()
    log.oracle.stepped[1] = None
    log.another(9_000)
    log.deliver(epoch=2)


def _clock_set_back_while_it_is_sent(log: Timers) -> None:
    log.oracle.clock_set(500)
    log.put()
    log.oracle.clock_set(100)
    log.deliver(1_510)


def _recalled(log: Timers) -> None:
    log.put()
    log.oracle.recall_asked("k")
    log.oracle.recall_acknowledged("k", 1_500)


def _recalled_and_rolled_late(log: Timers) -> None:
    _recalled(log)
    log.record(WHEEL_TOPIC, store_ms=1_800, properties={"UNIQ_KEY": "k", "TIMER_ROLL_TIMES": "1"})
    log.deliver()


def _recalled_too_late(log: Timers) -> None:
    log.put()
    log.oracle.recall_asked("k")
    log.oracle.recall_acknowledged("k", 1_900)
    log.deliver()


def _rolled_twice_without_a_slot(log: Timers) -> None:
    properties = {"UNIQ_KEY": "k", "TIMER_ROLL_TIMES": "1"}
    log.put()
    log.record(WHEEL_TOPIC, properties=properties | {"TIMER_ENQUEUE_MS": str(2**63 - 1)})
    log.record(WHEEL_TOPIC, properties=properties, epoch=2)
    log.deliver(epoch=2)
    log.deliver(epoch=2)


def _refused_message(log: Timers) -> None:
    log.oracle.refused("k")


@pytest.mark.parametrize(
    "history",
    [
        _delivered,
        _delivered_again_by_the_next_master,
        _delivered_again_after_the_clock_was_set,
        _clock_set_back_while_it_is_sent,
        _recalled,
        _recalled_and_rolled_late,
        _recalled_too_late,
        _rolled_twice_without_a_slot,
        _refused_message,
    ],
)
def test_sound_timers_are_accepted(history: Callable[[Timers], None]) -> None:
    """Nothing is reported of what may happen."""
    log = Timers()

    history(log)

    log.oracle.settled()


def _early(log: Timers) -> None:
    log.put()
    log.deliver(1_999)


def _twice(log: Timers) -> None:
    log.put()
    log.deliver()
    log.deliver()


def _again_though_noted(log: Timers) -> None:
    log.put()
    log.deliver()
    log.another(2_010 + NOTED_MS + 1)
    log.deliver(epoch=2)


def _lost(log: Timers) -> None:
    log.put()


def _lost_though_unclear(log: Timers) -> None:
    log.record(WHEEL_TOPIC)


def _not_stored(log: Timers) -> None:
    log.oracle.acknowledged("k")


def _recalled_and_delivered(log: Timers) -> None:
    _recalled(log)
    log.deliver()


def _recalled_after_it_was_delivered(log: Timers) -> None:
    log.put()
    log.deliver()
    log.oracle.recall_acknowledged("k", 1_500)


def _recalled_with_a_roll_in_time(log: Timers) -> None:
    _recalled(log)
    log.record(WHEEL_TOPIC, store_ms=1_790, properties={"UNIQ_KEY": "k", "TIMER_ROLL_TIMES": "1"})
    log.deliver()


def _rolled_twice(log: Timers) -> None:
    log.put()
    for epoch in (1, 2):
        log.record(WHEEL_TOPIC, properties={"UNIQ_KEY": "k", "TIMER_ROLL_TIMES": "1"}, epoch=epoch)


def _recall_delivered(log: Timers) -> None:
    log.put()
    log.deliver(body=b"0", properties={"UNIQ_KEY": "k", "TIMER_DEL_UNIQKEY": "k"})


def _refused_and_delivered(log: Timers) -> None:
    log.oracle.refused("k")
    log.deliver()


def _in_another_queue(log: Timers) -> None:
    log.put()
    log.deliver(queue_id=0)


@pytest.mark.parametrize(
    ("history", "rule"),
    [
        (_early, timers.EARLY),
        (_twice, timers.TWICE),
        (_again_though_noted, timers.AGAIN),
        (_lost, timers.LOST),
        (_lost_though_unclear, timers.LOST),
        (_not_stored, timers.LOST),
        (_recalled_and_delivered, timers.RECALLED),
        (_recalled_after_it_was_delivered, timers.RECALLED),
        (_recalled_with_a_roll_in_time, timers.RECALLED),
        (_rolled_twice, timers.ROLLED),
        (_recall_delivered, timers.RECALLED),
        (_refused_and_delivered, timers.REFUSED),
        (_in_another_queue, timers.WHOLE),
    ],
)
def test_a_broken_history_of_a_timer_is_seen(history: Callable[[Timers], None], rule: str) -> None:
    """Each promise has at least one history that breaks it alone."""
    with pytest.raises(Violation) as found:
        _whole(history, Timers())

    assert found.value.invariant == rule


def test_a_record_is_read_without_the_code_of_the_product() -> None:
    """Topic, places, properties and times are those that lie in the bytes; other bytes are no record."""
    properties = b"UNIQ_KEY\x01k\x02TAGS\x01d\x02"
    head = struct.pack(">IIIiiqqiqQqQiq", 0, 0xDAA320A7, 0, 3, 0, 5, 700, COMMIT, 1_000, 0, 2_000, 0, 0, 600)
    data = head + struct.pack(">i4sB1sh", 4, b"body", 1, b"t", len(properties)) + properties

    found = log_record(data, 9)

    assert found == LogRecord(
        "t", 3, 5, 700, b"body", {"UNIQ_KEY": "k", "TAGS": "d"}, COMMIT, 2_000, 600, epoch=9
    )
    assert found.key == "k"
    assert log_record(b"\0" * 100, 9) is None
    assert log_record(b"\0" * 10, 9) is None
