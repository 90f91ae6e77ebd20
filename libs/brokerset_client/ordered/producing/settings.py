"""How a producer of ordered subjects batches, waits and gives up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brokerset_client.messages import BODY_SIZE_MAX
from brokerset_client.retry import Backoff

SEND_BACKOFF: Final = Backoff(first_ms=20, max_ms=2_000)
"""Failovers take a second or two: waiting longer would only add to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """All bounds of an `OrderedProducer`; times are in milliseconds."""

    messages_max: int = 10_000
    """Messages that were accepted and are neither confirmed nor failed; then `send` waits for room."""

    bytes_max: int = 64 * 1024 * 1024
    """The same in bytes; a single message may be larger."""

    subjects_max: int = 1_000
    """Subjects of one producer; sending to one more is refused."""

    batch_messages_max: int = 128
    """Messages in one request."""

    batch_bytes_max: int = 512 * 1024
    """Bytes from which on a request gets no further message."""

    body_size_max: int = BODY_SIZE_MAX
    """Larger bodies are refused before anything is sent."""

    compress_from_bytes: int = 4_096
    """Bodies from this size on are compressed, and travel alone: a batch has one sysFlag for all."""

    request_ms: int = 3_000
    """Longest wait for the answer to one attempt; then its outcome is unknown."""

    backoff: Backoff = field(default=SEND_BACKOFF)
    """Wait after a failed attempt, the first one included; between half of it and all of it is drawn."""

    not_open_first_ms: int = 10
    """Shortest wait after a broker said that the partition is not open yet."""

    not_open_max_ms: int = 50
    """Longest one."""

    route_wait_ms: int = 10_000
    """How long the controllers let a question for a newer route wait; 0: it is asked for each second."""

    control_ms: int = 5_000
    """Longest wait for the controllers' answer beyond that."""

    tries_max: int = 10
    """Under BestTried: attempts for one message, the first included."""

    best_tried_ms: int = 60_000
    """Under BestTried: a message that was not confirmed so long after it was accepted fails."""

    stray_after_ms: int = 2_000
    """Under BestTried: how long a message waits for its own partition to open before it takes another."""

    breaker_failures: int = 100
    """Failures in a row of a broker group after which BestTried messages avoid it."""

    breaker_open_ms: int = 5_000
    """How long they do; then some are let through."""

    breaker_successes: int = 20
    """Successes in a row after that which make it a usual group again."""

    gone_tries_max: int = 10
    """Attempts to settle a batch whose partition is in no route any more; then its outcome is lost."""

    def problems(self) -> list[str]:
        """What is wrong, one sentence each."""
        positive = (
            "messages_max",
            "bytes_max",
            "subjects_max",
            "batch_messages_max",
            "batch_bytes_max",
            "body_size_max",
            "compress_from_bytes",
            "request_ms",
            "not_open_first_ms",
            "control_ms",
            "tries_max",
            "best_tried_ms",
            "stray_after_ms",
            "breaker_failures",
            "breaker_open_ms",
            "breaker_successes",
            "gone_tries_max",
        )
        found = [f"{name} must be positive" for name in positive if getattr(self, name) <= 0]
        if self.not_open_max_ms < self.not_open_first_ms:
            found.append("not_open_max_ms must not be below not_open_first_ms")
        if not 0 <= self.route_wait_ms <= 10_000:
            found.append("route_wait_ms must be 0 to 10000")
        return found
