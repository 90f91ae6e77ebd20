"""When to try again: which answers allow it, how often, and after how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from brokerset_protocol.codes import ResponseCode

RETRIABLE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Answers after which another queue or broker may do better (`DefaultMQProducer.retryResponseCodes`)."""

PASSING_CODES: Final = frozenset(
    {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY}
)
"""Answers of a broker that cannot serve at the moment: it was demoted, has no lease, starts or stops."""

ANSWER_RETRIES: Final = 2
"""Further attempts after another answer that may be retried (Java's default)."""

STALE_ROUTE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.GO_AWAY,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Answers that may mean that mastership moved: the route is read again before the next attempt."""

COMMIT_AGAIN_CODES: Final = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.GO_AWAY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers to a commit of an offset after which the same, or the next master, may store it."""

FIRST_DELAY_LEVEL = 3
"""Delay level of the first redelivery: 10 s with the default levels; each further one is one level higher."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing waits: `first_ms`, then each `factor` times longer, at most `max_ms`."""

    first_ms: int = 20
    factor: float = 2.0
    max_ms: int = 1000

    def delay_ms(self, failures: int) -> int:
        """How long to wait after so many failures in a row (from 1)."""
        if failures <= 0:
            return 0
        # The exponent is bounded before the power is taken: failures may count for days.
        return min(self.max_ms, int(self.first_ms * self.factor ** min(failures - 1, 40)))


@dataclass(frozen=True, slots=True)
class SendRetry:
    """How a producer tries again; the time-out of the send bounds everything.

    A lost connection and the answers in `PASSING_CODES` are what a failover looks like to a client, so by
    default they are retried for as long as the time-out of the send allows. Other answers that another queue
    or broker may not give (`RETRIABLE_CODES`) are retried `ANSWER_RETRIES` times, all other answers never. A
    message whose answer was lost may be stored already, and a retry stores it once more.
    """

    retries: int | None = None
    """Further attempts at most (Java's `retryTimesWhenSendFailed`, there 2); None: see above."""

    backoff: Backoff = Backoff(max_ms=200)
    """Wait before the second, third, … further attempt; the first further one follows at once."""

    def decide_delay_ms(self, attempts: int, code: int | None, remaining_ms: int) -> int | None:
        """Milliseconds until the next attempt, or None: give up.

        `attempts` were made, the last one failed with answer `code` (None: connection lost, or no master).
        """
        if remaining_ms <= 0 or attempts > self._retries_max(code):
            return None
        delay_ms = self.backoff.delay_ms(attempts - 1)
        return delay_ms if delay_ms < remaining_ms else None

    def _retries_max(self, code: int | None) -> float:
        if code is not None and code not in RETRIABLE_CODES:
            return 0
        if self.retries is not None:
            return self.retries
        return math.inf if code is None or code in PASSING_CODES else ANSWER_RETRIES


def redelivery_level(reconsume_times: int) -> int:
    """The delay level that a client asks for when it resends a failed message itself."""
    return FIRST_DELAY_LEVEL + reconsume_times
