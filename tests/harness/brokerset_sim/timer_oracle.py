"""What must hold of timer messages, seen from outside: what producers did, and what the committed log has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from brokerset_sim.history import Violation
from brokerset_sim.log_records import WHEEL_TOPIC, LogRecord

EARLY: Final = "no timer message is delivered before its time"
TWICE: Final = "a timer message is delivered once in each epoch"
AGAIN: Final = "a later master delivers only what was not noted as delivered"
LOST: Final = "every acknowledged timer message is delivered"
RECALLED: Final = "what was recalled in time is not delivered"
ROLLED: Final = "a timer message is put aside again once"
REFUSED: Final = "what was refused is not delivered"
WHOLE: Final = "a timer message is delivered as it was sent, where it was sent"


@dataclass(slots=True)
class TimedMessage:
    """One message: what its producer did, and what the log has of it."""

    key: str
    topic: str
    queue_id: int
    body: bytes
    earliest_ms: int
    """It may not be delivered before this, by the clock of the broker that delivers it."""

    delay_ms: int | None = None
    """What was asked for, unless it was a time."""

    acknowledged: bool = False
    refused: bool = False
    recall_asked: bool = False
    recalled: bool = False
    """A recall was acknowledged in time."""

    rolled_late: bool = False
    """It, or its recall, was put aside again when its time had nearly come: for half a roll window nobody has
    read slots. Then its recall may be behind it."""

    doubled: bool = False
    """It was put aside again twice, which may happen to what was taken too late and to a crash that follows:
    each copy is delivered."""

    waits: list[LogRecord] = field(default_factory=list)
    """Its records in the wheel's topic, also those of recalls."""

    deliveries: list[LogRecord] = field(default_factory=list)


def _rolled_without_a_slot(copy: LogRecord) -> bool:
    """Whether the slot in which it was to be put aside again was over when a broker took it."""
    return copy.properties.get("TIMER_ENQUEUE_MS") == str(2**63 - 1)


class TimerOracle:
    """Every method raises `Violation` for what must never happen."""

    def __init__(self, *, precision_ms: int, noted_ms: int) -> None:
        """What was delivered `noted_ms` before the last record of an epoch is noted by its master."""
        self._precision_ms = precision_ms
        self._noted_ms = noted_ms
        self.now_ms = 0
        """The latest time that a broker's clock has shown when the log was read, if anybody tells it."""

        self.messages: dict[str, TimedMessage] = {}
        self._ends: dict[int, int] = {}
        """For each epoch the time of its newest record, by its master's clock."""

        self.stepped: dict[int, None] = {}
        """Epochs in which a clock was set: their times say nothing of what lies between two records."""

    # -- producers ----------------------------------------------------------------------------------------

    def sent(self, message: TimedMessage) -> None:
        """A producer is about to send it."""
        self.messages[message.key] = message

    def acknowledged(self, key: str) -> None:
        """The producer knows that it is stored; the log was read up to now."""
        message = self.messages[key]
        message.acknowledged = True
        if not message.waits and not message.deliveries:
            raise Violation(LOST, f"{key} was acknowledged, and is not in the log")

    def refused(self, key: str) -> None:
        """The producer knows that it is not stored."""
        message = self.messages[key]
        message.refused = True
        self._not_stored(message)

    @staticmethod
    def _not_stored(message: TimedMessage) -> None:
        if message.refused and (message.waits or message.deliveries):
            raise Violation(REFUSED, f"{message.key} was refused, and is stored")

    def recall_asked(self, key: str) -> None:
        """A producer is about to recall it."""
        self.messages[key].recall_asked = True

    def recall_acknowledged(self, key: str, latest_ms: int) -> None:
        """A producer was told that it is recalled; no clock has ever been past `latest_ms`."""
        message = self.messages[key]
        if latest_ms < message.earliest_ms - 2 * self._precision_ms:
            message.recalled = True
            self._not_recalled(message)

    @staticmethod
    def _not_recalled(message: TimedMessage) -> None:
        if message.recalled and message.deliveries and not message.rolled_late:
            raise Violation(
                RECALLED, f"{message.key} was recalled, and is at {message.deliveries[-1].offset}"
            )

    def clock_set(self, now_ms: int) -> None:
        """A broker's clock was set: delays of sends that are not answered may count from there."""
        for message in self.messages.values():
            if not (message.acknowledged or message.refused) and message.delay_ms is not None:
                message.earliest_ms = min(message.earliest_ms, now_ms + message.delay_ms)

    # -- the log ------------------------------------------------------------------------------------------

    def forget_log(self) -> None:
        """The log was truncated: it is told from its beginning again."""
        self._ends.clear()
        for message in self.messages.values():
            message.waits.clear()
            message.deliveries.clear()

    def record(self, record: LogRecord) -> None:
        """The next record of the committed log."""
        self._ends[record.epoch] = max(self._ends.get(record.epoch, 0), record.store_ms)
        message = self.messages.get(record.key)
        if message is None:
            return
        if record.topic == WHEEL_TOPIC:
            if "TIMER_ROLL_TIMES" in record.properties:
                self._rolled(record, message)
            message.waits.append(record)
        else:
            self._delivered(record, message)
        self._not_stored(message)

    def _rolled(self, record: LogRecord, message: TimedMessage) -> None:
        due_ms = message.earliest_ms - 2 * self._precision_ms
        message.rolled_late |= max(record.store_ms, self.now_ms) >= due_ms
        if "TIMER_DEL_UNIQKEY" in record.properties:
            return
        times = record.properties["TIMER_ROLL_TIMES"]
        copies = [
            wait
            for wait in message.waits
            if wait.properties.get("TIMER_ROLL_TIMES") == times and "TIMER_DEL_UNIQKEY" not in wait.properties
        ]
        message.doubled |= bool(copies)
        if copies and not any(_rolled_without_a_slot(copy) for copy in (*copies, record)):
            raise Violation(
                ROLLED, f"{record.key} was put aside again at {copies[0].offset}, and at {record.offset}"
            )

    def _delivered(self, record: LogRecord, message: TimedMessage) -> None:
        if "TIMER_DEL_UNIQKEY" in record.properties:
            raise Violation(RECALLED, f"a recall of {record.key} is delivered at {record.offset}")
        if record.store_ms < message.earliest_ms:
            raise Violation(
                EARLY, f"{record.key} is delivered at {record.store_ms}, due at {message.earliest_ms}"
            )
        wanted = message.topic, message.queue_id, message.body
        if (record.topic, record.queue_id, record.body) != wanted:
            raise Violation(WHOLE, f"{record.key} is delivered as {record}")
        for before in () if message.doubled else message.deliveries:
            self._may_come_again(before, record)
        message.deliveries.append(record)
        self._not_recalled(message)

    def _may_come_again(self, before: LogRecord, record: LogRecord) -> None:
        if before.epoch == record.epoch:
            raise Violation(
                TWICE, f"{record.key} is at {before.offset}, and at {record.offset} of epoch {record.epoch}"
            )
        since_ms = self._ends[before.epoch] - before.store_ms
        if since_ms > self._noted_ms and before.epoch not in self.stepped:
            raise Violation(
                AGAIN,
                f"{record.key} is at {before.offset} of epoch {before.epoch}, which went on for {since_ms} ms"
                f", and at {record.offset} of epoch {record.epoch}",
            )

    # -- the end ------------------------------------------------------------------------------------------

    def missing(self) -> Iterable[TimedMessage]:
        """Messages that wait; without those that somebody recalled, whether in time or not."""
        return (
            each
            for each in self.messages.values()
            if (each.acknowledged or each.waits) and not each.deliveries and not each.recall_asked
        )

    def counts(self) -> dict[str, int]:
        """How many messages rolled, and how many deliveries were not the first of their message."""
        messages = self.messages.values()
        return {
            "rolled": sum(any("TIMER_ROLL_TIMES" in each.properties for each in m.waits) for m in messages),
            "delivered": sum(bool(m.deliveries) for m in messages),
            "delivered again": sum(max(0, len(m.deliveries) - 1) for m in messages),
        }

    def settled(self) -> None:
        """All times have come, and nothing is on its way."""
        left = [each.key for each in self.missing()]
        if left:
            raise Violation(LOST, f"{len(left)} are not delivered, such as {left[:3]}")
