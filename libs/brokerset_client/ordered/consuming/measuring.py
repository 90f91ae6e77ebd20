"""Takes the measurements of a subscription."""

from __future__ import annotations

from brokerset_client.ordered.consuming.composite_pull_client import CompositePullClient, OwnedPartition
from brokerset_client.ordered.consuming.measurements import (
    BlockedKey,
    PartitionMeasurements,
    SubscriptionMeasurements,
)
from brokerset_client.ordered.consuming.pull_client import PullClient
from brokerset_client.ordered.consuming.registration import Registration


def measure(
    registration: Registration, composite: CompositePullClient, problem: str | None, refused: bool
) -> SubscriptionMeasurements:
    """A snapshot of one subscription."""
    now = registration.clock.monotonic()
    version = composite.version
    counters = registration.counters
    return SubscriptionMeasurements(
        subject=registration.subject,
        group=registration.group,
        session=registration.session,
        order_strategy=registration.strategy,
        consume_strategy=registration.options.consume_strategy,
        generation=-1 if version is None else version.generation,
        version=-1 if version is None else version.version,
        permission_seconds=registration.permission.remaining(now),
        paused=registration.paused,
        problem=problem,
        refused=refused,
        handled=counters.handled,
        failed=counters.failed,
        sent_back=counters.sent_back,
        dead=counters.dead,
        skipped=counters.skipped,
        too_late=counters.too_late,
        acks=counters.acks,
        fenced=counters.fenced,
        resynced=counters.resynced,
        expired=counters.expired,
        partitions=tuple(
            _measure_client(owned, client, now)
            for _, owned in sorted(composite.owned.items())
            for client in owned.clients
        ),
    )


def _measure_client(owned: OwnedPartition, client: PullClient, now: float) -> PartitionMeasurements:
    lanes = client.claim.lanes
    position = client.claim.group_position
    return PartitionMeasurements(
        partition_id=owned.partition.partition_id,
        topic=client.queue.topic,
        broker_group=client.queue.broker_group,
        queue_id=client.queue.queue_id,
        epoch=client.queue.epoch,
        state=_state(owned, client),
        position=position,
        pulled_to=-1 if lanes is None else lanes.pulled_to,
        lag=max(0, client.claim.max_offset - position)
        if lanes is not None and client.claim.max_offset >= 0
        else -1,
        unhandled=0 if lanes is None else lanes.unhandled,
        running=client.handlers.running,
        blocked=()
        if lanes is None
        else tuple(
            BlockedKey(
                logical_partition=lanes.item(lane.pull_sequence).lane,
                key=lanes.item(lane.pull_sequence).key,
                queue_offset=lanes.item(lane.pull_sequence).queue_offset,
                attempts=lane.attempts,
                blocked_seconds=max(0.0, now - lane.since),
                waiting=lane.waiting,
                reason=client.handlers.last_error.get(lane.lane, ""),
            )
            for lane in lanes.blocked()
        ),
    )


def _state(owned: OwnedPartition, client: PullClient) -> str:
    if client.is_dropped:
        return "fenced"
    if client.released:
        return "released"
    if owned.is_stopping:
        return "stopping"
    if owned.is_drained:
        return "drained"
    return "starting" if client.claim.lanes is None else "consuming"
