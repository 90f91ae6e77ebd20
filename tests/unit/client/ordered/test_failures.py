"""What becomes of a message whose handler failed."""

from __future__ import annotations

import pytest

from brokerset_client.ordered.consuming.failures import (
    AfterFailure,
    FailurePolicy,
    PoisonPolicy,
    RetryHere,
    SendBack,
    Skip,
    decide_after_failure,
    spaced,
)
from brokerset_client.retry import Backoff

HERE, SENT_BACK = False, True


def decided(
    sends_back: bool,
    policy: FailurePolicy | None = None,
    *,
    attempt: int = 1,
    reconsume_times: int = 0,
) -> AfterFailure:
    return decide_after_failure(
        sends_back,
        policy or FailurePolicy(),
        attempt=attempt,
        reconsume_times=reconsume_times,
        chance=0.5,
    )


def test_strict_tries_again_here_with_growing_waits() -> None:
    """A message of a Strict subject stays where it is; waits double up to their bound (statement 38)."""
    waits = [decided(HERE, attempt=attempt) for attempt in (1, 2, 3, 20)]

    assert waits == [RetryHere(0.1), RetryHere(0.2), RetryHere(0.4), RetryHere(30.0)]


def test_waits_have_jitter_within_a_fifth() -> None:
    """Lanes that failed together do not all retry together, and none at once (statement 41)."""
    backoff = Backoff(first_ms=100, factor=2.0, max_ms=1_000)

    assert spaced(backoff, 1, 0.0) == pytest.approx(0.08)
    assert spaced(backoff, 1, 1.0) == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("poison", "then"),
    [
        (PoisonPolicy.BLOCK, RetryHere(30.0)),
        (PoisonPolicy.DEAD_LETTER, SendBack(dead=True)),
        (PoisonPolicy.SKIP, Skip()),
    ],
)
def test_the_subscription_says_what_becomes_of_poison(poison: PoisonPolicy, then: AfterFailure) -> None:
    """After the last attempt of a Strict message its policy decides; blocking is the default."""
    policy = FailurePolicy(attempts_max=10, poison=poison)

    assert isinstance(decided(HERE, policy, attempt=9), RetryHere)
    assert decided(HERE, policy, attempt=10) == then
    assert FailurePolicy().poison is PoisonPolicy.BLOCK


def test_best_tried_sends_back_and_gives_up_in_the_end() -> None:
    """Each failure makes a copy for retry, the one after the last retry a dead letter (statement 39)."""
    policy = FailurePolicy(reconsume_max=3)

    copies = [decided(SENT_BACK, policy, reconsume_times=times) for times in range(5)]

    assert [copy == SendBack(dead=True) for copy in copies] == [False, False, False, True, True]


def test_policies_that_cannot_be_are_said() -> None:
    """A policy without any attempt is refused with its reason."""
    assert FailurePolicy().problems() == []
    assert len(FailurePolicy(attempts_max=0, reconsume_max=-1).problems()) == 2
