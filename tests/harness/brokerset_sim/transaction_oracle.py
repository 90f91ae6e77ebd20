"""What must hold of transactions, seen from outside: what producers did, and what the committed log has.

It knows nothing of passes, progress or replicas. What producers ask for and are told is given to it by them;
records of the log as they become committed, in the order of the log, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from brokerset_sim.history import Violation
from brokerset_sim.log_records import (
    COMMIT,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    ROLLBACK,
    TRANSACTION_BITS,
    LogRecord,
)

HIDDEN: Final = "no half message is visible before its commit"
ONCE: Final = "a transaction ends once"
COMMITTED_KEPT: Final = "an acknowledged commit is visible"
ROLLED_BACK: Final = "what was rolled back never appears"
HALF_KEPT: Final = "no half message is lost before its transaction ends"
WHOLE: Final = "a commit delivers what was sent, where it was sent"
ENDED: Final = "every transaction ends"
CHECKED: Final = "checks are counted and bounded"
YOUNG: Final = "no transaction is checked before its time"
NOT_CHECKED: Final = "nobody is asked about a transaction whose end was acknowledged"
OPS: Final = "each end has an op record, behind the final record"
PASSED: Final = "the progress passes nothing that is open"


class End(IntEnum):
    """What a producer asks for."""

    COMMIT = COMMIT
    ROLLBACK = ROLLBACK


@dataclass(slots=True)
class Transaction:
    """One transaction: what its producers did, and what the log has of it."""

    key: str
    group: str
    topic: str
    queue_id: int
    body: bytes
    immune_ms: int = 0
    """For so long after `begun_ms` nobody is to be asked about it."""

    begun_ms: int = 0
    acknowledged: bool = False
    """The producer knows that the half is stored."""

    asked: dict[End, None] = field(default_factory=dict)
    acked: dict[End, int] = field(default_factory=dict)
    """And in which epoch."""

    checks: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By epoch and number of the check."""

    copies: dict[int, LogRecord] = field(default_factory=dict)
    """Its half records, by queue offset."""

    final: LogRecord | None = None
    given_up: LogRecord | None = None


class TransactionOracle:
    """Every method raises `Violation` for what must never happen."""

    def __init__(self, *, check_max: int, timeout_ms: int, skew_ms: int) -> None:
        """`skew_ms` is how much clocks of two hosts differ at most."""
        self._check_max = check_max
        self._timeout_ms = timeout_ms
        self.skew_ms = skew_ms
        self.transactions: dict[str, Transaction] = {}
        self._at: dict[int, Transaction] = {}
        """By queue offset of the half topic."""

        self._ops: dict[int, None] = {}

    # -- producers ----------------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> None:
        """A producer is about to send the half."""
        self.transactions[transaction.key] = transaction

    def half_acknowledged(self, key: str) -> None:
        """The producer knows that the half is stored, and the log was read up to now."""
        transaction = self.transactions[key]
        transaction.acknowledged = True
        if not transaction.copies:
            raise Violation(HALF_KEPT, f"{key} was acknowledged, and its half is not in the log")

    def asked(self, key: str, end: End) -> None:
        """A producer is about to ask for an end."""
        self.transactions[key].asked[end] = None

    def end_acknowledged(self, key: str, end: End, epoch: int) -> None:
        """A producer was told that the transaction has ended so; the log was read up to now."""
        transaction = self.transactions[key]
        if any(other is not end for other in transaction.acked):
            raise Violation(ONCE, f"{key} was acknowledged as {end.name}, and before as the other")
        transaction.acked.setdefault(end, epoch)
        self._acknowledged_end_holds(transaction)

    def _acknowledged_end_holds(self, transaction: Transaction) -> None:
        final, key = transaction.final, transaction.key
        if End.COMMIT in transaction.acked and final is None:
            raise Violation(COMMITTED_KEPT, f"the commit of {key} was acknowledged, and has no final record")
        if End.ROLLBACK in transaction.acked and final is not None:
            raise Violation(ROLLED_BACK, f"{key} is at {final.offset}, its rollback was acknowledged")

    # -- checks -------------------------------------------------------------------------------------------

    def check_left(self, key: str, *, epoch: int, times: int, now_ms: int) -> None:
        """A broker that leads in `epoch` asks about a transaction, for the `times`th time; by its clock."""
        transaction = self.transactions.get(key)
        if transaction is None:
            raise Violation(CHECKED, f"a check names {key}, which nobody has sent")
        told = [end.name for end, acked in transaction.acked.items() if acked <= epoch]
        if told:
            raise Violation(NOT_CHECKED, f"{key} is checked in {epoch}, acknowledged was {told}")
        if not 1 <= times <= self._check_max:
            raise Violation(CHECKED, f"{key} is checked for the {times}th time of {self._check_max}")
        transaction.checks[epoch, times] += 1
        if transaction.checks[epoch, times] > 1:
            raise Violation(CHECKED, f"{key} is checked twice for the {times}th time in {epoch}")
        stored_ms = min((copy.store_ms for copy in transaction.copies.values()), default=now_ms)
        if now_ms + self.skew_ms < stored_ms + self._timeout_ms:
            raise Violation(YOUNG, f"{key} was stored at {stored_ms}, and is checked at {now_ms}")
        if now_ms + self.skew_ms < transaction.begun_ms + transaction.immune_ms:
            raise Violation(YOUNG, f"{key} is checked at {now_ms}, and immune since {transaction.begun_ms}")

    def check_arrived(self, key: str, group: str) -> None:
        """A producer of a group was asked about a transaction."""
        wanted = self.transactions[key].group
        if wanted != group:
            raise Violation(CHECKED, f"a producer of {group} is asked about {key} of {wanted}")

    # -- the log ------------------------------------------------------------------------------------------

    def forget_log(self) -> None:
        """The log was truncated: it is told from its beginning again."""
        self._at.clear()
        self._ops.clear()
        for transaction in self.transactions.values():
            transaction.copies.clear()
            transaction.final = transaction.given_up = None

    def record(self, record: LogRecord) -> None:
        """The next record of the committed log."""
        if record.topic == OP_TOPIC:
            self._op(record)
            return
        transaction = self.transactions.get(record.key)
        if record.topic == HALF_TOPIC:
            self._half(record, transaction)
        elif transaction is None:
            return
        elif record.topic == GIVEN_UP_TOPIC:
            self._given_up(record, transaction)
        else:
            self._visible(record, transaction)

    def _half(self, record: LogRecord, transaction: Transaction | None) -> None:
        if transaction is None:
            raise Violation(WHOLE, f"the half topic has {record.key!r}, which nobody has sent")
        if record.sys_flag & TRANSACTION_BITS or record.body != transaction.body:
            raise Violation(WHOLE, f"the half of {record.key} has other bytes, or a transaction's flag")
        times = int(record.properties.get("TRANSACTION_CHECK_TIMES", "0"))
        if times > self._check_max:
            raise Violation(CHECKED, f"a half of {record.key} is checked for the {times}th time")
        transaction.copies[record.queue_offset] = record
        self._at[record.queue_offset] = transaction

    def _op(self, record: LogRecord) -> None:
        if record.properties.get("TAGS") != "d":
            return
        superseded = "BROKERSET_SUPERSEDED" in record.properties
        for text in record.body.decode().split(","):
            if not text:
                continue
            queue_offset = int(text)
            transaction = self._at.get(queue_offset)
            if transaction is None:
                raise Violation(OPS, f"an op record names {queue_offset}, where no half is")
            if superseded:
                if queue_offset == max(transaction.copies):
                    raise Violation(
                        OPS, f"{queue_offset} is the newest copy of {transaction.key}, not an older one"
                    )
                continue
            if transaction.final is None and End.ROLLBACK not in transaction.asked:
                raise Violation(OPS, f"an op record ends {transaction.key}, which is not committed")
            self._ops[queue_offset] = None

    def _given_up(self, record: LogRecord, transaction: Transaction) -> None:
        if transaction.final is not None or self._has_op(transaction):
            raise Violation(ONCE, f"{record.key} is given up at {record.offset}, and has ended before")
        checked = max((self._times(copy) for copy in transaction.copies.values()), default=0)
        if checked < self._check_max:
            raise Violation(CHECKED, f"{record.key} is given up after {checked} checks")
        transaction.given_up = record
        self._acknowledged_end_holds(transaction)

    def _visible(self, record: LogRecord, transaction: Transaction) -> None:
        key = record.key
        if End.COMMIT not in transaction.asked or record.sys_flag & TRANSACTION_BITS != COMMIT:
            asked = [end.name for end in transaction.asked]
            raise Violation(HIDDEN, f"{key} is visible at {record.offset}, asked for was {asked}")
        if transaction.final is not None:
            raise Violation(ONCE, f"{key} is at {transaction.final.offset}, and again at {record.offset}")
        if transaction.given_up is not None or self._has_op(transaction):
            raise Violation(ONCE, f"{key} is visible at {record.offset}, and had ended before")
        wanted = transaction.topic, transaction.queue_id, transaction.body
        if (record.topic, record.queue_id, record.body) != wanted or "REAL_TOPIC" in record.properties:
            raise Violation(WHOLE, f"{key} is visible as {record}")
        if record.prepared_offset not in [copy.offset for copy in transaction.copies.values()]:
            raise Violation(WHOLE, f"{key} has no half at {record.prepared_offset}, which its final names")
        transaction.final = record
        self._acknowledged_end_holds(transaction)

    def _has_op(self, transaction: Transaction) -> bool:
        return any(queue_offset in self._ops for queue_offset in transaction.copies)

    @staticmethod
    def _times(copy: LogRecord) -> int:
        return int(copy.properties.get("TRANSACTION_CHECK_TIMES", "0"))

    def progress(self, name: str, half_progress: int) -> None:
        """A broker that has the log up to now, or less, does not ask about halves below this any more."""
        for queue_offset, transaction in self._at.items():
            newer = max(transaction.copies) > queue_offset
            if queue_offset < half_progress and not newer and self._is_open(transaction):
                raise Violation(
                    PASSED, f"{name} is at {half_progress}, and {transaction.key} is open at {queue_offset}"
                )

    def counts(self) -> dict[str, int]:
        """How many transactions became visible, and how many were given up."""
        transactions = self.transactions.values()
        return {
            "visible": sum(each.final is not None for each in transactions),
            "given up": sum(each.given_up is not None for each in transactions),
        }

    # -- the end ------------------------------------------------------------------------------------------

    def _is_open(self, transaction: Transaction) -> bool:
        ended = transaction.final is not None or transaction.given_up is not None
        return not ended and not self._has_op(transaction)

    def open(self) -> Iterable[Transaction]:
        """Transactions with a half that have not ended."""
        return (each for each in self.transactions.values() if each.copies and self._is_open(each))

    def without_op(self) -> Iterable[Transaction]:
        """Committed transactions whose newest half no op record names."""
        return (
            each
            for each in self.transactions.values()
            if each.final is not None and max(each.copies) not in self._ops
        )

    def settled(self) -> None:
        """Producers have answered every check, and nothing is on its way."""
        for transaction in self.transactions.values():
            if transaction.acknowledged and not transaction.copies:
                raise Violation(HALF_KEPT, f"{transaction.key} was acknowledged, and is gone")
            self._acknowledged_end_holds(transaction)
        left = [each.key for each in self.open()]
        if left:
            raise Violation(ENDED, f"{len(left)} are open, such as {left[:3]}")
        left = [each.key for each in self.without_op()]
        if left:
            raise Violation(OPS, f"{len(left)} are committed without an op record, such as {left[:3]}")
