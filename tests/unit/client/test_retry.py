"""When another attempt is made, and after how long."""

from __future__ import annotations

import pytest

from brokerset_client.errors import SendFailed
from brokerset_client.retry import PASSING_CODES, RETRIABLE_CODES, Backoff, SendRetry, redelivery_level


def test_the_codes_are_those_that_java_retries() -> None:
    assert sorted(RETRIABLE_CODES) == [1, 2, 14, 16, 17, 204, 205, 1500]


@pytest.mark.parametrize("code", [None, 2, 14, 1500])
def test_a_lost_connection_and_a_broker_that_cannot_serve_are_retried_until_the_time_is_over(
    code: int | None,
) -> None:
    """Attempt after attempt, with waits that grow: at least ten, and at most thirty, within 3 s."""
    elapsed_ms = 0
    delays: list[int] = []
    while (delay_ms := SendRetry().decide_delay_ms(len(delays) + 1, code, 3000 - elapsed_ms)) is not None:
        delays.append(delay_ms)
        elapsed_ms += delay_ms

    assert delays[:5] == [0, 20, 40, 80, 160]
    assert 10 <= len(delays) <= 30
    assert 3000 - elapsed_ms <= 200


@pytest.mark.parametrize("code", sorted(RETRIABLE_CODES - PASSING_CODES))
def test_answers_that_another_queue_may_not_give_are_retried_twice(code: int) -> None:
    retry = SendRetry()

    assert [retry.decide_delay_ms(attempts, code, 1000) for attempts in (1, 2, 3)] == [0, 20, None]


@pytest.mark.parametrize("code", [None, 1, 14])
def test_a_given_number_of_retries_bounds_all_failures(code: int | None) -> None:
    retry = SendRetry(retries=2)

    assert [retry.decide_delay_ms(attempts, code, 1000) for attempts in (1, 2, 3)] == [0, 20, None]
    assert SendRetry(retries=0).decide_delay_ms(1, code, 1000) is None


@pytest.mark.parametrize(
    ("attempts", "code", "remaining_ms"), [(1, 13, 1000), (1, 29, 1000), (1, 14, 0), (2, 14, 20)]
)
def test_final_answers_and_too_little_time_end_a_send(attempts: int, code: int, remaining_ms: int) -> None:
    assert SendRetry().decide_delay_ms(attempts, code, remaining_ms) is None


def test_equal_attempts_in_a_row_are_counted_in_the_text_of_a_failure() -> None:
    failed = SendFailed("t", ["lost", "refused", "refused", "refused", "lost"])

    assert str(failed).endswith("after 5 attempts: lost; refused (3 times); lost")
    assert len(failed.attempts) == 5


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
