"""Numbers of a consumer of ordered subjects, and what a subscription chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brokerset_client.ordered.consuming.failures import FailurePolicy
from brokerset_client.ordered.consuming.lanes import LaneLimits
from brokerset_client.retry import Backoff
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy

REQUEST_BACKOFF: Final = Backoff(first_ms=50, factor=2.0, max_ms=2_000)

WATCH_MS_MAX: Final = 10_000
"""Longest wait for another assignment that controllers accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedConsumerSettings:
    """Bounds and waits; those in seconds are seconds."""

    pull_batch: int = 50
    """Messages asked for in one pull; brokers may give fewer."""

    suspend_ms: int = 15_000
    """How long a broker may keep a pull until there is something; never longer than the permission."""

    request_seconds: float = 5.0
    """Time-out of every request; of a pull, in addition to `suspend_ms`."""

    lanes: LaneLimits = field(default_factory=LaneLimits)
    """Bounds of one partition."""

    handlers_max: int = 256
    """Handlers of one subscription that run at the same time, over all its partitions."""

    threads_max: int = 16
    """Handlers of one subscription that are plain functions and run at the same time, each in a thread."""

    handling_seconds: float = 300.0
    """Time for one attempt; a handler that takes longer, or that answers no sooner, has failed."""

    ack_batch: int = 50
    """Queue offsets that are acknowledged at once while handlers run."""

    ack_seconds: float = 1.0
    """A handled message is acknowledged so soon, if nothing is in its way; sooner if nothing runs."""

    heartbeat_seconds: float = 5.0
    """Until the controllers have said how often."""

    watch_ms: int = 10_000
    """How long the controllers may keep a request that waits for another assignment."""

    deadline_check_seconds: float = 0.1
    """How often handlers are compared with their deadlines."""

    release_attempts: int = 3
    """Requests to release a queue; its epoch is overtaken in any case."""

    retry_finished_seconds: float = 7_500.0
    """A drained partition gets no copies for retry any more when its retry queue was empty for so long, and
    no copy was made: longer than the longest delay of the brokers, two hours, and what they are late."""

    trouble: Backoff = REQUEST_BACKOFF
    """Waits after requests that failed."""

    def problems(self) -> list[str]:
        """What cannot be, in words for its author."""
        found = [
            f"{name} is {value}: it must be positive"
            for name, value in (
                ("pull_batch", self.pull_batch),
                ("suspend_ms", self.suspend_ms),
                ("request_seconds", self.request_seconds),
                ("handlers_max", self.handlers_max),
                ("threads_max", self.threads_max),
                ("handling_seconds", self.handling_seconds),
                ("ack_batch", self.ack_batch),
                ("ack_seconds", self.ack_seconds),
                ("heartbeat_seconds", self.heartbeat_seconds),
                ("deadline_check_seconds", self.deadline_check_seconds),
                ("release_attempts", self.release_attempts),
                ("retry_finished_seconds", self.retry_finished_seconds),
                ("unhandled_max", self.lanes.unhandled_max),
                ("span_max", self.lanes.span_max),
                ("running_max", self.lanes.running_max),
            )
            if value <= 0
        ]
        if not 0 < self.watch_ms <= WATCH_MS_MAX:
            found.append(f"watch_ms is {self.watch_ms}: controllers allow 1 to {WATCH_MS_MAX}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """What one subscription wants."""

    tags: str = "*"
    """Tags joined by ` || `, or `*`; what has another one counts as handled."""

    order_strategy: OrderStrategy | None = None
    """What the subject must be; another one is refused by the controllers. None: as it is."""

    consume_strategy: ConsumeStrategy = ConsumeStrategy.EXCLUSIVE
    """Shared: all members of the group are given messages of all partitions, in no order, and what fails goes
    to the retry topic. Members of one group choose the same."""

    failures: FailurePolicy = field(default_factory=FailurePolicy)
