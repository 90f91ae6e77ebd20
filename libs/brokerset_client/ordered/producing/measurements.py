"""What a producer measures, as plain values for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProducerCounters:
    """What happened to one subject's messages since the first of them; all only grow."""

    confirmed: int = 0
    failed: int = 0
    retried: int = 0
    """Requests that were sent again."""

    unknown: int = 0
    """Requests that ended without saying what became of their messages."""


@dataclass(frozen=True, slots=True)
class ProducerMeasurements:
    """One subject of a producer."""

    subject: str
    producer_id: str
    epoch: int
    """-1 until the controllers have given one."""

    unconfirmed: int
    """Messages that were accepted, and have neither been confirmed nor failed."""

    parked: int
    """Of those: messages without a partition, because it is sealed, or the route or an epoch is missing."""

    oldest_seconds: float
    """Since the oldest of them was accepted; 0.0: there is none."""

    confirmed: int
    failed: int
    retried: int
    unknown: int
