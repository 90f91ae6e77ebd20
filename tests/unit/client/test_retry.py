"""When another attempt is made, and after how long."""

from __future__ import annotations

import pytest

from brokerset_client.retry import RETRIABLE_CODES, Backoff, SendRetry, redelivery_level


def test_the_codes_are_those_that_java_retries() -> None:
    assert sorted(RETRIABLE_CODES) == [1, 2, 14, 16, 17, 204, 205, 1500]


@pytest.mark.parametrize(
    ("attempts", "code", "remaining_ms", "delay_ms"),
    [
        (1, 14, 1000, 0),
        (1, None, 1000, 0),
        (2, 1, 1000, 20),
        (3, 1, 1000, None),
        (1, 13, 1000, None),
        (1, 29, 1000, None),
        (1, 14, 0, None),
        (2, 14, 20, None),
    ],
)
def test_two_retries_within_the_time_for_answers_that_may_change(
    attempts: int, code: int | None, remaining_ms: int, delay_ms: int | None
) -> None:
    assert SendRetry().decide_delay_ms(attempts, code, remaining_ms) == delay_ms


def test_waits_grow_up_to_a_bound() -> None:
    backoff = Backoff(first_ms=10, factor=2.0, max_ms=100)

    assert [backoff.delay_ms(failures) for failures in (0, 1, 2, 3, 4, 5, 10**9)] == [
        0,
        10,
        20,
        40,
        80,
        100,
        100,
    ]


def test_redeliveries_start_at_the_third_level() -> None:
    assert [redelivery_level(times) for times in (0, 1, 15)] == [3, 4, 18]
