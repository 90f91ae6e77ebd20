"""What must hold of ordered pops, seen from outside: who was given which messages, in which order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from brokerset_sim.history import Violation

ORDER: Final = "nothing is given out before what lies before it is acknowledged"
LOCKED: Final = "a queue is given to nobody else while messages of it are out"
NOT_AGAIN: Final = "no acknowledged message of an ordered pop is given out again"
FENCED: Final = "a message is acknowledged by who has it"
ALL_DONE: Final = "every message of an ordered group is acknowledged in the end"


@dataclass(slots=True)
class _Queue:
    """One queue of the group."""

    end: int = 0
    attempt: str = ""
    server: tuple[str, int] = ("", 0)
    until: dict[int, float] = field(default_factory=dict)
    """Of the messages that the last pop gave out: their invisible time does not end before."""

    answered: dict[tuple[str | int, ...], None] = field(default_factory=dict)
    """Attempt, pop time, invisible time and messages of each answer."""

    pop_times: dict[int, int] = field(default_factory=dict)
    """Of each message the newest pop that was answered."""

    asked: Counter[int] = field(default_factory=Counter)
    """By message, acks that were sent and not refused: they may have counted."""

    done: dict[int, float] = field(default_factory=dict)
    """When an ack was answered with 0."""


class PopOrderOracle:
    """One group that pops in order, and the queues of one topic."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._queues: dict[int, _Queue] = {}

    def queue(self, queue_id: int) -> _Queue:
        """What is known of a queue."""
        return self._queues.setdefault(queue_id, _Queue())

    def stored(self, queue_id: int, queue_offset: int) -> None:
        """A message is in the log permanently."""
        queue = self.queue(queue_id)
        queue.end = max(queue.end, queue_offset + 1)

    def given(
        self,
        queue_id: int,
        offsets: list[int],
        *,
        attempt: str,
        pop_time: int,
        invisible_ms: int,
        now: float,
        since: float,
        until: float,
        server: tuple[str, int],
        early: float,
    ) -> None:
        """Messages of a queue are given out; times are as `PopOracle.given` has them. Raises `Violation`."""
        queue = self.queue(queue_id)
        answer: tuple[str | int, ...] = (attempt, pop_time, invisible_ms, *offsets)
        if answer in queue.answered:
            return  # somebody passes the answer on, or the attempt was repeated in one millisecond
        queue.answered[answer] = None
        what = f"{server} gives {offsets} of queue {queue_id} to {attempt}"
        if offsets != sorted(set(offsets)):
            raise Violation(ORDER, what)
        left_out = [each for each in range(offsets[-1]) if not queue.asked[each] and each not in offsets]
        if left_out:
            raise Violation(ORDER, f"{what}: nobody has acknowledged {left_out[:5]}")
        again = [each for each in offsets if queue.done.get(each, since) < since]
        if again:
            raise Violation(NOT_AGAIN, f"{what}: {again[:5]} are acknowledged")
        slack = early if server != queue.server else 0.0
        out = [each for each, end in queue.until.items() if not queue.asked[each] and now < end - slack]
        if out and attempt != queue.attempt:
            raise Violation(LOCKED, f"{what}: {queue.attempt} has {out[:5]}")
        self.counts["order: given"] += len(offsets)
        self.counts["order: given again"] += sum(each in queue.pop_times for each in offsets)
        self.counts["order: same attempt"] += attempt == queue.attempt
        queue.attempt, queue.server = attempt, server
        queue.until = dict.fromkeys(offsets, until)
        queue.pop_times |= dict.fromkeys(offsets, pop_time)

    def ack_asked(self, queue_id: int, queue_offset: int) -> None:
        """An ack is sent."""
        self.queue(queue_id).asked[queue_offset] += 1

    def ack_refused(self, queue_id: int, queue_offset: int) -> None:
        """The answer to an ack says that the message is somebody else's."""
        self.queue(queue_id).asked[queue_offset] -= 1

    def acknowledged(self, queue_id: int, queue_offset: int, pop_time: int, now: float) -> None:
        """An ack was answered with 0. Raises `Violation`."""
        queue = self.queue(queue_id)
        newest = queue.pop_times.get(queue_offset)
        if queue_offset not in queue.done:
            if newest != pop_time and queue.asked[queue_offset] < 2:  # who has it may ask in the same moment
                raise Violation(
                    FENCED, f"{queue_offset} of queue {queue_id} is acked for pop {pop_time}, newest {newest}"
                )
            queue.done[queue_offset] = now
            self.counts["order: acknowledged"] += 1

    def change_asked(self, queue_id: int, queue_offset: int, until: float) -> None:
        """A holder wants another end; from now on that may count."""
        known = self.queue(queue_id).until
        if queue_offset in known:
            known[queue_offset] = min(known[queue_offset], until)

    def attempt_asked(self, attempt: str, until: float) -> None:
        """An attempt is repeated, maybe with a shorter invisible time. That may count from now on, also when
        the broker dies before it answers."""
        for queue in self._queues.values():
            if queue.attempt == attempt:
                queue.until = {each: min(end, until) for each, end in queue.until.items()}

    def changed(self, queue_id: int, queue_offset: int, pop_time: int, until: float) -> None:
        """A change was answered with 0."""
        queue = self.queue(queue_id)
        if queue.pop_times.get(queue_offset) == pop_time and queue_offset in queue.until:
            queue.until[queue_offset] = until
            self.counts["order: changed"] += 1

    def missing(self) -> list[tuple[int, int]]:
        """Queue and number of what nobody has acknowledged."""
        return [
            (queue_id, each)
            for queue_id, queue in self._queues.items()
            for each in range(queue.end)
            if not queue.asked[each]
        ]

    def settled(self) -> None:
        """Nothing more will come. Raises `Violation`."""
        missing = self.missing()
        if missing:
            raise Violation(ALL_DONE, f"{len(missing)} are not, such as {missing[:3]}")
