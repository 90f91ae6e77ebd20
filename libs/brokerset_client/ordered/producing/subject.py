"""All that a producer has on its way for one subject: executors, messages that wait for a partition, moves.

The order of a key is kept by **lanes**. A logical partition with messages on their way is bound to one place,
an executor or the parking place, until none is left; new ones go there as well, whatever the route says. An
executor whose partition takes nothing any more gives its messages away in one step, and not before the
request in flight is settled. So a logical partition is never in two executors.

Under BestTried a message that its partition's broker fails may leave its lane for another partition. Then
those of its key may pass it, and one whose outcome was unknown may be stored twice.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from brokerset_client.ordered.producing.breaker import Breakers
from brokerset_client.ordered.producing.errors import TriesExhausted
from brokerset_client.ordered.producing.executor import Executor
from brokerset_client.ordered.producing.measurements import ProducerCounters, ProducerMeasurements
from brokerset_client.ordered.producing.outcomes import Fenced, NotOpen, Outcome, Sealed, Unclear
from brokerset_client.ordered.producing.outgoing import (
    PRODUCER_CLIENT,
    Attempt,
    ExecutorKey,
    Failed,
    Outgoing,
    Stored,
)
from brokerset_client.ordered.producing.routing import RouteIndex
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_protocol.bodies.ordered import PartitionRoute, SubjectRoute
from brokerset_protocol.subject_words import OrderStrategy


@dataclass(frozen=True, slots=True)
class Effects:
    """What to do now; nothing of it depends on the order, but senders are answered as listed."""

    attempts: tuple[Attempt, ...] = ()
    """At most one for each executor."""
    stored: tuple[Stored, ...] = ()
    failed: tuple[Failed, ...] = ()
    route_wanted: bool = False
    """An answer says that the route has changed, or a message has no partition."""
    epoch_wanted: bool = False
    """A new epoch of the producer is needed: START_PRODUCER."""
    wake_at: float | None = None
    """When to come again if nothing else happens, on the monotonic clock."""
    fenced: str | None = None
    """Another process has this producer's id: end everything."""


@dataclass(slots=True)
class _Lane:
    """Where the messages of a logical partition are; without an executor they are parked."""

    executor: Executor | None
    count: int = 0


@dataclass(slots=True)
class _Pending:
    """Effects that are not taken yet."""

    stored: list[Stored] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    route_wanted: bool = False
    fenced: str | None = None


class SubjectSender:
    """State machine of one subject. `roll` draws from [0, 1); `now` is seconds of one monotonic clock.

    Its memory is bounded by the producer's budget: every message is accepted under it. Executors, lanes and
    parked lines are at most one for each partition of the route, or logical partition.
    """

    def __init__(
        self, subject: str, settings: ProducerSettings, breakers: Breakers, roll: Callable[[], float]
    ) -> None:
        self.subject = subject
        self.settings = settings
        self.counters = ProducerCounters()
        self.route: RouteIndex | None = None
        self.epoch: int | None = None
        """The newest of this producer; executors that began with an older one keep it."""
        self._breakers = breakers
        self._roll = roll
        self._executors: dict[int, Executor] = {}
        self._lanes: dict[int, _Lane] = {}
        self._parked: dict[int, deque[Outgoing]] = {}
        self._sealed: set[int] = set()
        """Partitions that said so before the route did."""
        self._ready: dict[Executor, None] = {}
        self._wakes: list[tuple[float, int, Executor | None]] = []
        self._wake_number = 0
        self._parking_wake = False
        self._pending = _Pending()

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._parked and all(executor.idle for executor in self._executors.values())

    @property
    def executors(self) -> Iterable[Executor]:
        """For tests and measurements."""
        return self._executors.values()

    @property
    def waits_for_route(self) -> bool:
        """Whether messages wait for a route that has a partition for them."""
        return bool(self._parked) and self.epoch is not None

    def measure(self, producer_id: str, now: float) -> ProducerMeasurements:
        """A snapshot of what is on its way, and of the counters."""
        parked = [message for line in self._parked.values() for message in line]
        waiting = [
            message
            for executor in self._executors.values()
            for messages in (*(batch.messages for batch in executor.assigned), executor.waiting)
            for message in messages
            if not message.finished
        ]
        oldest = min((message.accepted_at for message in (*parked, *waiting)), default=now)
        counters = self.counters
        return ProducerMeasurements(
            subject=self.subject,
            producer_id=producer_id,
            epoch=-1 if self.epoch is None else self.epoch,
            unconfirmed=len(parked) + len(waiting),
            parked=len(parked),
            oldest_seconds=max(0.0, now - oldest),
            confirmed=counters.confirmed,
            failed=counters.failed,
            retried=counters.retried,
            unknown=counters.unknown,
        )

    # -- inputs -------------------------------------------------------------------------------------------

    def accept(self, message: Outgoing, now: float) -> None:
        """A message, behind all of its logical partition that were accepted before."""
        lane = self._lanes.get(message.logical)
        if lane is None:
            self._place(message, now)
        else:
            self._join(lane, message)

    def take_route(self, route: SubjectRoute, now: float) -> None:
        """A route from the controllers; one that is not newer changes nothing (statement 18)."""
        if self.route is not None and route.version <= self.route.version:
            return
        self.route = index = RouteIndex(route)
        self._sealed = {number for number in self._sealed if index.knows(number)}
        for executor in list(self._executors.values()):
            number = executor.key.partition_id
            executor.gone = not index.knows(number)
            if not index.takes(number):
                executor.closing = True
                self._dissolve_if_settled(executor, now)
        self._unpark(now)

    def take_epoch(self, epoch: int, now: float) -> None:
        """START_PRODUCER has given an epoch; lower ones than the last are ignored."""
        if self.epoch is not None and epoch <= self.epoch:
            return
        self.epoch = epoch
        for executor in self._executors.values():
            if executor.needs_epoch:
                executor.begin_epoch(epoch)
                self._ready[executor] = None
        self._unpark(now)

    def take_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt has ended."""
        executor = self._executors.get(attempt.key.partition_id)
        if executor is None:
            return  # everything was aborted in the meantime
        assert executor.assigned[0] is attempt.batch
        if isinstance(outcome, Unclear):
            self.counters.unknown += 1
            self._breakers.failed(executor.key.broker_group, now)
        else:
            self._breakers.succeeded(executor.key.broker_group)
        if isinstance(outcome, Sealed | NotOpen):
            self._pending.route_wanted = True
        if isinstance(outcome, Fenced):
            self._pending.fenced = outcome.reason or "another process uses this producer id"
        settled = executor.answered(outcome, now, self._roll)
        if settled.stored is not None:
            for message in settled.stored.messages:
                self._finish(message)
            self.counters.confirmed += len(settled.stored.messages)
            self._pending.stored.append(settled.stored)
        for failed in settled.failed:
            self._fail(failed.message, failed.error)
        self._ready[executor] = None
        if executor.sealed:
            self._sealed.add(executor.key.partition_id)
            executor.closing = True
        if self._best_tried and executor.assigned and isinstance(outcome, Unclear | NotOpen):
            self._try_elsewhere(executor, outcome, now)
        if executor.closing:
            self._dissolve_if_settled(executor, now)

    def abort(self, error: Callable[[Outgoing, bool], Exception]) -> None:
        """Fail everything; `error` gets a message, and whether it may be stored."""
        for executor in self._executors.values():
            for batch in executor.assigned:
                unknown = batch.unknown or (executor.outstanding and batch is executor.assigned[0])
                for message in batch.messages:
                    self._fail(message, error(message, unknown or message.maybe_stored))
            for message in executor.waiting:
                self._fail(message, error(message, message.maybe_stored))
        for line in self._parked.values():
            for message in line:
                self._fail(message, error(message, message.maybe_stored))
        self._executors.clear()
        self._parked.clear()
        self._ready.clear()
        self._wakes.clear()

    def refuse(self, message: Outgoing, error: Exception) -> None:
        """Fail a message that is not accepted: it has no place, and its lane does not count it."""
        message.finished = True
        self.counters.failed += 1
        self._pending.failed.append(Failed(message, error))

    # -- outputs ------------------------------------------------------------------------------------------

    def take_effects(self, now: float) -> Effects:
        """What to do now. To be called after inputs, and at `wake_at`."""
        while self._wakes and self._wakes[0][0] <= now:
            executor = heapq.heappop(self._wakes)[2]
            if executor is None:
                self._parking_wake = False
            elif self._executors.get(executor.key.partition_id) is executor:
                executor.wake_planned = None
                self._ready[executor] = None
        if self._best_tried:
            due = not self._parking_wake
            self._leave_parking(now)
            if due:
                self._leave_without_epoch(now)
        attempts = []
        while self._ready:
            executor = next(iter(self._ready))
            del self._ready[executor]
            if self._best_tried and not executor.assigned and not executor.outstanding:
                self._avoid_broken(executor, now)
            attempt = executor.offer(now)
            if attempt is not None:
                self.counters.retried += attempt.batch.attempts > 1
                attempts.append(attempt)
            elif (when := executor.wake_at()) is not None and executor.wake_planned != when:
                executor.wake_planned = when
                self._wake(when, executor)
        pending, self._pending = self._pending, _Pending()
        return Effects(
            tuple(attempts),
            tuple(pending.stored),
            tuple(pending.failed),
            route_wanted=pending.route_wanted or self.waits_for_route,
            epoch_wanted=self._epoch_wanted(),
            wake_at=self._wakes[0][0] if self._wakes else None,
            fenced=pending.fenced,
        )

    # -- places -------------------------------------------------------------------------------------------

    def _place(self, message: Outgoing, now: float) -> None:
        """A message of a logical partition that has no lane."""
        partition = self._partition_of(message.logical)
        lane = self._lanes[message.logical] = _Lane(
            None if partition is None else self._executor_of(partition)
        )
        self._join(lane, message)
        if lane.executor is None and self._best_tried:
            self._wake_for_parking(now)

    def _join(self, lane: _Lane, message: Outgoing) -> None:
        lane.count += 1
        message.strayed = False
        if lane.executor is None:
            self._parked.setdefault(message.logical, deque()).append(message)
        else:
            lane.executor.append(message)
            self._ready[lane.executor] = None

    def _partition_of(self, logical: int) -> PartitionRoute | None:
        if self.route is None or self.epoch is None:
            return None
        partition = self.route.partition_of(logical)
        if partition is None or partition.partition_id in self._sealed:
            return None
        return partition

    def _executor_of(self, partition: PartitionRoute) -> Executor:
        executor = self._executors.get(partition.partition_id)
        if executor is None:
            assert self.epoch is not None
            key = ExecutorKey(PRODUCER_CLIENT, self.subject, partition.partition_id, partition.broker_group)
            executor = Executor(key, partition.queue_id, self.epoch, self.settings)
            self._executors[partition.partition_id] = executor
        return executor

    def _dissolve_if_settled(self, executor: Executor, now: float) -> None:
        """Give all messages to who takes their logical partitions now, in one step and in their order."""
        if not executor.settled:
            return
        messages = executor.drain()
        del self._executors[executor.key.partition_id]
        self._ready.pop(executor, None)
        for message in messages:
            lane = self._lanes.get(message.logical)
            if lane is not None and lane.executor is executor:
                del self._lanes[message.logical]
        for message in messages:
            self.accept(message, now)

    def _unpark(self, now: float) -> None:
        for logical in [number for number in self._parked if self._partition_of(number) is not None]:
            line = self._parked.pop(logical)
            del self._lanes[logical]
            for message in line:
                self.accept(message, now)

    def _finish(self, message: Outgoing) -> None:
        """Its sender gets an answer now, and its lane may end."""
        message.finished = True
        if not message.strayed:
            self._leave_lane(message.logical)

    def _fail(self, message: Outgoing, error: Exception) -> None:
        if not message.finished:
            self._finish(message)
            self.counters.failed += 1
            self._pending.failed.append(Failed(message, error))

    def _leave_lane(self, logical: int) -> None:
        lane = self._lanes[logical]
        lane.count -= 1
        if not lane.count:
            del self._lanes[logical]

    # -- times and epochs ---------------------------------------------------------------------------------

    def _wake(self, when: float, executor: Executor | None) -> None:
        self._wake_number += 1
        heapq.heappush(self._wakes, (when, self._wake_number, executor))

    def _wake_for_parking(self, now: float) -> None:
        if not self._parking_wake:
            self._parking_wake = True
            self._wake(now + self.settings.stray_after_ms / 4000, None)

    def _epoch_wanted(self) -> bool:
        if self.epoch is None:
            return bool(self._parked)
        return any(executor.needs_epoch for executor in self._executors.values())

    # -- BestTried ----------------------------------------------------------------------------------------

    @property
    def _best_tried(self) -> bool:
        return self.route is not None and self.route.order_strategy == OrderStrategy.BEST_TRIED

    def _exhausted(self, message: Outgoing, now: float) -> bool:
        return (
            message.tries >= self.settings.tries_max
            or (now - message.accepted_at) * 1000 >= self.settings.best_tried_ms
        )

    def _give_up(self, message: Outgoing, unknown: bool, reason: str) -> None:
        text = (
            f"message {message.message_id} to {self.subject!r} failed after {message.tries} tries: {reason}"
        )
        self._fail(message, TriesExhausted(text, maybe_stored=unknown or message.maybe_stored))

    def _try_elsewhere(self, executor: Executor, outcome: Unclear | NotOpen, now: float) -> None:
        """The batch in flight has failed once more."""
        batch = executor.assigned[0]
        if isinstance(outcome, Unclear):
            reason = outcome.reason
            leaving = True
        else:
            reason = "its partition did not open"
            oldest = min(message.accepted_at for message in batch.messages)
            leaving = (now - oldest) * 1000 >= self.settings.stray_after_ms
        for message in batch.messages:
            if not message.finished and self._exhausted(message, now):
                self._give_up(message, batch.unknown, reason)
        while executor.waiting and self._exhausted(executor.waiting[0], now):
            self._give_up(executor.waiting.popleft(), False, "its time was over before it could be sent")
        if not all(message.finished for message in batch.messages):
            other = self._another(executor.key.broker_group, now) if leaving else None
            if other is None:
                return
            for message in batch.messages:
                message.maybe_stored |= batch.unknown
            self._stray(executor.abandon(), other)
        else:
            executor.abandon()

    def _avoid_broken(self, executor: Executor, now: float) -> None:
        """What was not sent yet does not have to find out by itself that a group's breaker is open."""
        if not executor.waiting or self._breakers.allows(executor.key.broker_group, now):
            return
        other = self._another(executor.key.broker_group, now)
        if other is not None:
            messages = [message for message in executor.waiting if not message.finished]
            executor.waiting.clear()
            self._stray(messages, other)

    def _another(self, group: str, now: float) -> PartitionRoute | None:
        """An open partition on another broker group that is not known to be broken."""
        assert self.route is not None
        found = [
            partition
            for partition in self.route.open_partitions()
            if partition.broker_group != group
            and partition.partition_id not in self._sealed
            and self._breakers.allows(partition.broker_group, now)
        ]
        return found[int(self._roll() * len(found))] if found else None

    def _stray(self, messages: Iterable[Outgoing], partition: PartitionRoute) -> None:
        executor = self._executor_of(partition)
        for message in messages:
            if not message.strayed:
                self._leave_lane(message.logical)
                message.strayed = True
            if not message.keyed:
                message.logical = partition.first + int(self._roll() * (partition.end - partition.first))
            executor.append(message)
        self._ready[executor] = None

    def _leave_parking(self, now: float) -> None:
        """What waits too long for its own partition takes another one, or fails when its time is over."""
        for logical in list(self._parked):
            line = self._parked[logical]
            while line and self._exhausted(line[0], now):
                self._give_up(line.popleft(), False, "no partition takes its key")
            if line and (now - line[0].accepted_at) * 1000 >= self.settings.stray_after_ms:
                other = self._another("", now) if self.epoch is not None else None
                if other is not None:
                    self._stray(line, other)
                    line.clear()
            if not line:
                del self._parked[logical]
        if self._parked:
            self._wake_for_parking(now)

    def _leave_without_epoch(self, now: float) -> None:
        """What waits for a new epoch fails when its time is over: no attempt would find that out."""
        for executor in self._executors.values():
            if executor.needs_epoch and executor.waiting:
                for message in executor.waiting:
                    if not message.finished and self._exhausted(message, now):
                        self._give_up(message, False, "the controllers gave no new epoch")
                executor.waiting = deque(each for each in executor.waiting if not each.finished)
                if executor.waiting:
                    self._wake_for_parking(now)
