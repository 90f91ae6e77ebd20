"""Everything that a session consumes of one subject: the partitions of its assignment.

Of a BestTried subject, and in a Shared group, each partition has two queues, its own and one of the retry
topic, consumed by the same epoch. When the group has drained its own one, copies for retry may still come to
the other.
"""

from __future__ import annotations

import asyncio
import math

import structlog

from brokerset_client.ordered.consuming.assignment import AssignmentVersion, plan_changes
from brokerset_client.ordered.consuming.pull_client import PullClient
from brokerset_client.ordered.consuming.queue_requests import OwnedQueue
from brokerset_client.ordered.consuming.registration import Registration
from brokerset_formats.names import ordered_retry_topic
from brokerset_formats.order_keys import overlap
from brokerset_protocol.bodies.ordered import (
    AssignedPartition,
    AssignmentBody,
    DrainedPartition,
    FinishedPartition,
    OwnedReport,
    ReleasedPartition,
)

log = structlog.get_logger(__name__)


class OwnedPartition:
    """A partition that the session consumes by one epoch, which is its own unless the group is Shared."""

    def __init__(self, registration: Registration, partition: AssignedPartition) -> None:
        self._registration = registration
        self.partition = partition
        self.normal: PullClient | None = None
        """Of its own queue; None if the group had drained that before."""

        if not partition.retries_only:
            self.normal = self._client(registration.subject, partition.sealed_end)
        self.retry: PullClient | None = None
        if registration.sends_back:
            self.retry = self._client(ordered_retry_topic(registration.group, registration.subject), None)
        self.clients = [client for client in (self.normal, self.retry) if client is not None]
        self._retries_only_since = registration.clock.monotonic()
        """Since when there is only the retry queue; means nothing before."""

        self._starting: asyncio.Task[None] | None = None
        self._started = False
        self.is_stopping = False
        self.is_revoked = False
        """The controllers want it back, and have to hear that it is released."""

    def _client(self, topic: str, sealed_end: int | None) -> PullClient:
        registration, partition = self._registration, self.partition
        queue = OwnedQueue(
            transport=registration.transport,
            subject=registration.subject,
            topic=topic,
            broker_group=partition.broker_group,
            queue_id=partition.queue_id,
            group=registration.group,
            session=registration.session,
            epoch=partition.epoch,
            rules=registration.rules,
            request_seconds=registration.settings.request_seconds,
        )
        return PullClient(registration, queue, partition.partition_id, sealed_end)

    @property
    def range(self) -> tuple[int, int]:
        """Its logical partitions."""
        return self.partition.first, self.partition.end

    @property
    def is_ended(self) -> bool:
        """Whether nothing of it runs."""
        waits = self._starting is not None and not self._starting.done()
        return self.is_stopping and not waits and all(client.is_ended for client in self.clients)

    @property
    def released(self) -> bool:
        """Whether it has stopped, with all acks confirmed; nothing was begun counts as well."""
        if not self.is_ended:
            return False
        return not self._started or all(client.released for client in self.clients)

    @property
    def is_dropped(self) -> bool:
        """Whether a broker says that somebody else owns it."""
        return any(client.is_dropped for client in self.clients)

    @property
    def is_drained(self) -> bool:
        """Whether everything up to the sealed end is acknowledged, and the controllers may not know it."""
        if self.normal is None or self.partition.retries_only or self.is_dropped:
            return False
        return self.normal.claim.is_drained

    @property
    def is_finished(self) -> bool:
        """Whether no copies for retry will come any more, of a partition that the group has drained.

        Copies are delayed, and of those that others have made nothing is known until they come. So the retry
        queue has to be empty for longer than any of them may take.
        """
        if not self.partition.retries_only or self.is_dropped:
            return False
        if self.retry is None or self.partition.sealed_end == 0:
            return True
        made_at = max(client.handlers.sent_back_at for client in self.clients)
        if (
            self.normal is not None
            and self.normal.claim.began_at == 0
            and made_at == -math.inf
            and not self._registration.rules.shared
        ):
            return True  # all messages came to this session, and it made no copies
        since, last = self.retry.claim.empty_since, self.retry.claim.empty_at
        if since is None or last is None:
            return False
        # A broker that could not be asked since, or was not, may have a copy.
        since = max(since, made_at, self._retries_only_since)
        return last - since >= self._registration.settings.retry_finished_seconds

    def start_after(self, others: list[OwnedPartition]) -> None:
        """Consume as soon as these, which had some of the same keys, run no handler any more."""
        self._starting = asyncio.get_running_loop().create_task(self._start(others))

    async def _start(self, others: list[OwnedPartition]) -> None:
        if others:
            log.info(
                "partition waits for handlers of its keys that still run",
                subject=self._registration.subject,
                partition=self.partition.partition_id,
                epoch=self.partition.epoch,
            )
        for other in others:
            await other.ended()
        self._started = True
        for client in self.clients:
            client.start()

    async def ended(self) -> None:
        """Until nothing of it runs, after it was stopped or dropped."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        for client in self.clients:
            await client.ended()

    def update(self, partition: AssignedPartition) -> None:
        """The same ownership in a newer assignment."""
        if self.normal is not None:
            self.normal.claim.seal(partition.sealed_end)
            if partition.retries_only and not self.partition.retries_only:
                self._retries_only_since = self._registration.clock.monotonic()
                self.normal.stop()
        self.partition = partition

    def stop(self) -> None:
        """Graceful: handlers end, acks are confirmed, the queues are released."""
        if not self.is_stopping:
            self._end_start()
            for client in self.clients:
                client.stop()

    def drop(self) -> None:
        """It is not ours any more."""
        self._end_start()
        for client in self.clients:
            client.drop()

    async def kill(self) -> None:
        """End all tasks now."""
        self._end_start()
        for client in self.clients:
            await client.kill()

    def _end_start(self) -> None:
        self.is_stopping = True
        if self._starting is not None and not self._started:
            self._starting.cancel()
            self._registration.heartbeat_soon()

    def wake(self) -> None:
        """Something may start that could not before."""
        for client in self.clients:
            client.wake()


class CompositePullClient:
    """The partitions of one registration, changed by assignments; `apply` waits for none of them."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self.owned: dict[int, OwnedPartition] = {}
        """By partition id; what has stopped stays until an assignment shows that it was heard."""

        self._ending: list[OwnedPartition] = []
        """Not ours any more, but a handler may still run."""

        self._released: set[tuple[int, int]] = set()
        """(partition, epoch) that were revoked before they ran here."""

        self.version: AssignmentVersion | None = None

    def apply(self, assigned: AssignmentBody, *, starts: bool = True) -> None:
        """Stop and start what differs; an older assignment than the known one changes nothing.

        Without `starts` nothing is started any more: the session is about to leave.
        """
        running = {partition_id: owned.partition.epoch for partition_id, owned in self.owned.items()}
        changes = plan_changes(self.version, running, assigned)
        if changes is None:
            return
        self.version = changes.version
        self._registration.strategy = assigned.order_strategy
        self._ending = [owned for owned in self._ending if not owned.is_ended]
        for partition_id in changes.gone:
            owned = self.owned.pop(partition_id)
            owned.drop()
            if not owned.is_ended:
                self._ending.append(owned)
        for partition in changes.revoked:
            owned = self.owned[partition.partition_id]
            if owned.released and not owned.is_revoked:
                self._registration.heartbeat_soon()
            owned.is_revoked = True
            owned.stop()
        for partition in changes.kept:
            self.owned[partition.partition_id].update(partition)
        for partition in changes.started if starts else ():
            owned = OwnedPartition(self._registration, partition)
            self.owned[partition.partition_id] = owned
            owned.start_after([other for other in self._ending if overlap(other.range, owned.range)])
        before = self._released
        self._released = {(each.partition_id, each.epoch) for each in changes.never_started}
        if self._released - before:
            self._registration.heartbeat_soon()

    def report(self) -> OwnedReport:
        """What the next heartbeat says."""
        released = {
            (partition_id, owned.partition.epoch)
            for partition_id, owned in self.owned.items()
            if owned.is_revoked and owned.released
        }
        return OwnedReport(
            tuple(ReleasedPartition(*each) for each in sorted(released | self._released)),
            tuple(
                DrainedPartition(partition_id, owned.partition.epoch, owned.normal.claim.group_position)
                for partition_id, owned in sorted(self.owned.items())
                if owned.normal is not None and owned.is_drained
            ),
            tuple(
                FinishedPartition(partition_id, owned.partition.epoch)
                for partition_id, owned in sorted(self.owned.items())
                if owned.is_finished
            ),
        )

    def wake(self) -> None:
        """The permission was extended, slots are free, or the subscription goes on."""
        for owned in list(self.owned.values()):
            owned.wake()

    def retry_now(self) -> None:
        """Let messages that wait after a failure start again at once."""
        for owned in self.owned.values():
            for client in owned.clients:
                client.retry_now()

    def stop(self) -> None:
        """Stop all partitions gracefully."""
        for owned in self.owned.values():
            owned.stop()

    async def ended(self) -> None:
        """Until nothing runs, after `stop`."""
        for owned in [*self.owned.values(), *self._ending]:
            await owned.ended()

    async def kill(self) -> None:
        """End all tasks now; what was handled and not acknowledged is handled again elsewhere."""
        for owned in [*self.owned.values(), *self._ending]:
            await owned.kill()
