"""What an application chooses for a push consumer, and what its listener answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from brokerset_client.messages import MessageView
from brokerset_client.offset_window import WindowLimits
from brokerset_client.positions import DEFAULT_FOLDER
from brokerset_protocol.queue_allocation import Allocation, allocate_averagely

UNLIMITED = 2**31 - 1


class ConsumeStatus(Enum):
    """What became of the messages that a listener got."""

    SUCCESS = "SUCCESS"
    """They are done."""

    RECONSUME_LATER = "RECONSUME_LATER"
    """They failed: deliver them again, after the broker's growing delay (orderly: after a moment, in
    order)."""


@dataclass(frozen=True, slots=True)
class Later:
    """`RECONSUME_LATER` with a wish when."""

    delay_level: int = 0
    """Delay level of the redelivery; 0: by the number of failures; below 0: to the dead-letter topic at
    once."""

    suspend_ms: int = 1000
    """Orderly consumers only: how long the queue pauses before the same messages come again."""

    after_seconds: float | None = None
    """POP consumers only: exactly so long, whatever the delay level says."""


Verdict = ConsumeStatus | Later | None
"""What a listener returns; None means SUCCESS. An exception means RECONSUME_LATER, and is logged."""

MessageListener = Callable[[MessageView], Awaitable[Verdict]]
BatchListener = Callable[[Sequence[MessageView]], Awaitable[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Bounds over all queues of one consumer; at one, fetching pauses."""

    messages_max: int = 50_000
    bytes_max: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """Numbers of a push consumer; the defaults are Java's where it has them."""

    workers: int = 20
    """Listeners that run at the same time (concurrent mode)."""

    batch_max: int = 1
    """Messages that a batch listener gets at once, at most; all of one queue."""

    pull_batch: int = 32
    """Messages asked for in one pull; brokers give at most 32 by default."""

    queue_limits: WindowLimits = field(default_factory=WindowLimits)
    """Unfinished messages of one queue."""

    client_limits: ClientLimits = field(default_factory=ClientLimits)
    """Unfinished messages of all queues."""

    max_reconsume_times: int = -1
    """Failures after which a message goes to the dead-letter topic; -1: 16, orderly: never."""

    listener_timeout: float = 900.0
    """Seconds after which a listener is cancelled and its messages count as failed."""

    close_timeout: float = 30.0
    """Seconds that `close` waits for running listeners."""

    commit_timeout: float = 10.0
    """Seconds that an offset which has to be stored is sent again while no master takes it: at `close`, when
    an orderly consumer gives a queue away, and when a queue goes on at another offset. Elections take a
    second or two."""

    commit_seconds: float = 5.0
    """How often offsets are stored."""

    rebalance_seconds: float = 20.0
    """How often queues are divided again without an occasion."""

    lock_seconds: float = 20.0
    """How often orderly consumers renew their queue locks; brokers give them away after 60 s."""

    lock_valid_seconds: float = 30.0
    """Without a renewal for so long an orderly consumer stops to handle the queue."""

    retry_locally_seconds: float = 5.0
    """Wait before a failed message that could be given back to nobody is tried again here."""

    allocation: Allocation = allocate_averagely
    """How the group divides queues; every member must use the same."""

    offsets_folder: Path = DEFAULT_FOLDER
    """Where broadcasting groups keep their offsets."""

    def reconsume_max(self, *, orderly: bool) -> int:
        """The effective number of failures before the dead-letter topic."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return UNLIMITED if orderly else 16
