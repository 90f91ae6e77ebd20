"""What an application chooses for a POP consumer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.requests import POP_MAX
from brokerset_client.push_settings import UNLIMITED, Later, Verdict

PopListener = Callable[[PoppedMessage], Awaitable[Verdict]]
PopBatchListener = Callable[[Sequence[PoppedMessage]], Awaitable[Verdict]]

BACKOFF_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Java's waits after the first, second, … failure (`popDelayLevel`)."""

ORDERED_BACKOFF_SECONDS: Final = (1, 2, 5, 10, 30)
"""The same for ordered consumers: all later messages of the queue wait, too."""

LEVEL_SECONDS: Final = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""What the delay levels from 1 on mean with default settings of a broker."""

INVISIBLE_SECONDS_MIN: Final = 0.5
INVISIBLE_SECONDS_MAX: Final = 12 * 3600.0
"""The longest invisible time that RocketMQ's proxy allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopSettings:
    """Numbers of a POP consumer; the defaults are Java's where it has them."""

    invisible_seconds: float = 60.0
    """How long a message is this consumer's alone; renewed while a listener has it."""

    renew: bool = True
    """Whether invisible times are renewed; without it a listener has `invisible_seconds` at most."""

    workers: int = 20
    """Listeners that run at the same time. Ordered: at most one for each queue."""

    batch_max: int = 1
    """Messages that a batch listener gets at once, at most; ordered: all of one queue."""

    pop_batch: int = POP_MAX
    """Messages asked for in one pop; brokers give at most 32."""

    in_hand_max: int = 96
    """Messages that wait or are worked on at which no more are asked for (`popThresholdForQueue`, over all
    queues). Long polls that wait by then may bring `pop_batch` each on top."""

    wait_seconds: float = 15.0
    """How long a broker may wait for a message before it answers; one such request waits at each broker for
    each topic."""

    backoff_seconds: tuple[float, ...] = ()
    """Waits until a message comes again after its first, second, … failure, the last for all later ones;
    empty: `BACKOFF_SECONDS`, ordered `ORDERED_BACKOFF_SECONDS`."""

    max_reconsume_times: int = -1
    """Failures after which a message goes to the dead-letter topic; -1: 16, ordered: never."""

    listener_timeout: float = 900.0
    """Seconds after which a listener is cancelled and its messages count as failed."""

    close_timeout: float = 30.0
    """Seconds that `close` waits for running listeners and their acks."""

    def problems(self) -> list[str]:
        """What cannot be, in words for who wrote it."""
        found = []
        if not INVISIBLE_SECONDS_MIN <= self.invisible_seconds <= INVISIBLE_SECONDS_MAX:
            found.append(
                f"invisible_seconds must be between {INVISIBLE_SECONDS_MIN} and {INVISIBLE_SECONDS_MAX:.0f}"
            )
        if not 1 <= self.pop_batch <= POP_MAX:
            found.append(f"pop_batch must be between 1 and {POP_MAX}")
        if self.workers < 1 or self.batch_max < 1 or self.in_hand_max < 1:
            found.append("workers, batch_max and in_hand_max must be at least 1")
        if self.wait_seconds < 0:
            found.append("wait_seconds must not be negative")
        if any(seconds < 0 for seconds in self.backoff_seconds):
            found.append("backoff_seconds must not be negative")
        return found

    def reconsume_max(self, *, ordered: bool) -> int:
        """The effective number of failures before the dead-letter topic."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return UNLIMITED if ordered else 16


def decide_wait(settings: PopSettings, later: Later, times_before: int, *, ordered: bool) -> float | None:
    """Seconds until a failed message comes again; None: to the dead-letter topic.

    The group had it `times_before` without success before this failure. What the listener wishes goes first:
    `after_seconds`, then a delay level.
    """
    if later.delay_level < 0 or times_before >= settings.reconsume_max(ordered=ordered):
        return None
    if later.after_seconds is not None:
        return max(0.0, min(later.after_seconds, INVISIBLE_SECONDS_MAX))
    if later.delay_level > 0:
        return float(LEVEL_SECONDS[min(later.delay_level, len(LEVEL_SECONDS)) - 1])
    waits = settings.backoff_seconds or (ORDERED_BACKOFF_SECONDS if ordered else BACKOFF_SECONDS)
    return waits[min(times_before, len(waits) - 1)]
