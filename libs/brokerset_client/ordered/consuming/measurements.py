"""What a consumer measures, as plain values for commands and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key that fails, and stops what shares its logical partition."""

    logical_partition: int
    """-1: messages that say none."""

    key: str | None
    queue_offset: int
    attempts: int
    blocked_seconds: float
    """Since it failed first."""

    waiting: int
    """Messages behind it that were pulled."""

    reason: str


@dataclass(frozen=True, slots=True)
class PartitionMeasurements:
    """One queue that the session consumes: of a partition, or of its retry topic."""

    partition_id: int
    topic: str
    broker_group: str
    queue_id: int
    epoch: int
    state: str
    """`starting`, `consuming`, `stopping`, `drained`, `released` or `fenced`."""

    position: int
    """Queue offset below which the group has acknowledged everything; -1 until it is known."""

    pulled_to: int
    """Behind what the session has pulled: a queue offset, in a Shared group a pull sequence."""

    lag: int
    """Messages that the group has not acknowledged, as far as the last answer of the broker said; -1: not
    known."""

    unhandled: int
    """Of those that were pulled."""

    running: int
    blocked: tuple[BlockedKey, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionMeasurements:
    """One subject and group."""

    subject: str
    group: str
    session: str
    order_strategy: str
    consume_strategy: str
    generation: int
    """-1 before the first assignment, as is `version`."""

    version: int
    permission_seconds: float
    """What is left of the permission to consume; 0.0: nothing runs."""

    paused: bool
    problem: str | None
    """Why the last heartbeat failed; None if it did not."""

    refused: bool
    """Whether the controllers refused it for what subject and subscription are, which does not pass."""

    handled: int
    failed: int
    sent_back: int
    dead: int
    skipped: int
    too_late: int
    acks: int
    fenced: int
    resynced: int
    expired: int
    partitions: tuple[PartitionMeasurements, ...]
