"""What there is to say of a broker's pops: for metrics, `brokerset status` and Java's brokerStatus."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.check_points import CheckPoints
from brokerset_broker.pop.counts import PopCounts
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.pop_requests import PopRequests
from brokerset_broker.services.pop.revive import PopRevival
from brokerset_broker.tables.pop.order_table import OrderTable
from brokerset_runtime.clock import Clock

STATUS_OVERDUE_MAX: Final = 1_000
"""Overdue check points that `status` looks at."""


class PopOverview:
    """Reads what the parts of POP know; it changes nothing."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        log_of_pops: PopLog,
        revival: PopRevival,
        requests: PopRequests,
        locks: OrderTable,
    ) -> None:
        self._live = live
        self._clock = clock
        self._log = log_of_pops
        self._revival = revival
        self._requests = requests
        self._locks = locks

    @property
    def points(self) -> CheckPoints:
        """The open check points."""
        return self._log.points

    @property
    def counts(self) -> PopCounts:
        """What has happened since start."""
        return self._log.counts

    @property
    def is_known(self) -> bool:
        """Whether this broker leads and has read all open check points."""
        return self._log.is_known

    @property
    def check_points_max(self) -> int:
        """`popCheckPointsMax`."""
        return self._live.current.pop_check_points_max

    @property
    def uncommitted(self) -> int:
        """Positions of groups that wait until their records are safe."""
        return len(self._log.commits)

    @property
    def acked(self) -> int:
        """Messages acked since start."""
        return self._log.counts.acked

    @property
    def copied(self) -> int:
        """Check points that were appended again since start."""
        return self._revival.copied

    def waiting(self) -> Mapping[str, int]:
        """Requests that wait for messages."""
        return {"pop": len(self._requests.pops), "notification": len(self._requests.notifications)}

    def locked_queues(self) -> int:
        """Queues and groups of ordered pops that are not acknowledged altogether."""
        return sum(
            lock.acked.bit_count() < len(lock.queue_offsets)
            for queues in list(self._locks.locks.values())
            for lock in list(queues.values())
        )

    def next_due(self) -> float | None:
        """Seconds until messages in flight become visible again; None if nothing is."""
        due = self.points.next_due()
        return None if due is None else max(0.0, due - self._clock.monotonic())

    def overdue(self, limit: int) -> dict[int, tuple[int, int]]:
        """By revive queue: check points that should have been revived, and for how many ms the oldest.

        A store that takes nothing counts for all of them. Up to `limit` are looked at.
        """
        now = self._clock.monotonic()
        found = {queue_id: (0, 0) for queue_id in sorted(self.points.queues)}
        waits_since = self._revival.waits_since if self._log.is_known else None
        stuck_ms = 0 if waits_since is None else int((now - waits_since) * 1_000)
        for point in islice(self.points.overdue(now), limit):
            count, late_ms = found.get(point.revive_queue, (0, 0))
            late = max(late_ms, int((now - point.due) * 1_000), stuck_ms)
            found[point.revive_queue] = (count + 1, late)
        if stuck_ms:
            found = {queue_id: (count, max(late, stuck_ms)) for queue_id, (count, late) in found.items()}
        return found

    def status(self) -> dict[str, str]:
        """What GET_BROKER_RUNTIME_INFO (28) says of pops where this broker leads; RocketMQ says nothing."""
        if not self._log.leads:
            return {}
        overdue = self.overdue(STATUS_OVERDUE_MAX).values() if self.is_known else ()
        return {
            "brokersetPopKnown": str(self.is_known).lower(),
            "brokersetPopCheckPoints": str(self.points.count),
            "brokersetPopCheckPointsMax": str(self.check_points_max),
            "brokersetPopInFlight": str(self.points.in_flight),
            "brokersetPopReviveLatencyMs": str(max((late for _, late in overdue), default=0)),
            "brokersetPopWaiting": str(self._requests.waiting),
        }
