"""What becomes of a message whose handler failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from brokerset_client.retry import Backoff

JITTER: Final = 0.2
"""Part of a wait by which it varies, so that lanes that failed together do not retry together."""

HANDLER_BACKOFF: Final = Backoff(first_ms=100, factor=2.0, max_ms=30_000)


class PoisonPolicy(StrEnum):
    """What an Exclusive subscription of a Strict subject does with what has failed `attempts_max` times."""

    BLOCK = "Block"
    """It is tried again without end, and its lane waits. Nothing is lost, and nothing is out of order."""

    DEAD_LETTER = "DeadLetter"
    """A copy goes to the dead letters of the group, and the lane goes on."""

    SKIP = "Skip"
    """The lane goes on, and the message is handled no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """How a subscription treats failures."""

    backoff: Backoff = HANDLER_BACKOFF
    """Waits between attempts of a message here."""

    attempts_max: int = 16
    """Attempts here after which `poison` decides (Strict, and Exclusive); 1 or more."""

    poison: PoisonPolicy = PoisonPolicy.BLOCK
    reconsume_max: int = 16
    """Copies for retry after which a message goes to the dead letters (BestTried, or Shared)."""

    def problems(self) -> list[str]:
        """What cannot be, in words for its author."""
        found = []
        if self.attempts_max < 1:
            found.append(f"attempts_max is {self.attempts_max}: a message has 1 attempt or more")
        if self.reconsume_max < 0:
            found.append(f"reconsume_max is {self.reconsume_max}: it cannot be negative")
        return found


@dataclass(frozen=True, slots=True)
class RetryHere:
    """The message stays the first of its lane."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class SendBack:
    """A copy goes to the retry topic, or to the dead letters; then the message is done."""

    dead: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """The message is done, unhandled."""


AfterFailure = RetryHere | SendBack | Skip


def decide_after_failure(
    sends_back: bool,
    policy: FailurePolicy,
    *,
    attempt: int,
    reconsume_times: int,
    chance: float,
) -> AfterFailure:
    """What to do after `attempt` (from 1) has failed.

    `sends_back`: messages of the subscription go to the retry topic; else they are tried again here.
    `reconsume_times` counts the copies before this one. `chance` is random, from 0.0 up to 1.0.
    """
    if sends_back:
        return SendBack(dead=reconsume_times >= policy.reconsume_max)
    if attempt >= policy.attempts_max:
        match policy.poison:
            case PoisonPolicy.DEAD_LETTER:
                return SendBack(dead=True)
            case PoisonPolicy.SKIP:
                return Skip()
            case PoisonPolicy.BLOCK:
                pass
    return RetryHere(spaced(policy.backoff, attempt, chance))


def spaced(backoff: Backoff, failures: int, chance: float) -> float:
    """Seconds to wait after so many failures in a row, with jitter."""
    return backoff.delay_ms(failures) / 1000 * (1 + JITTER * (2 * chance - 1))
