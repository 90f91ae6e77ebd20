"""Lines that strangers cause are written once a second, with the number left out."""

from __future__ import annotations

from brokerset_runtime.log_throttle import LINE_SECONDS, LogThrottle


def test_the_first_line_is_written_and_the_next_one_says_how_many_were_left_out() -> None:
    throttle = LogThrottle()

    written = [throttle.admit(100.0 + number * LINE_SECONDS / 4) for number in range(10)]

    assert written == [0, None, None, None, 3, None, None, None, 3, None]


def test_a_line_after_a_quiet_time_leaves_nothing_out() -> None:
    throttle = LogThrottle()

    assert throttle.admit(0.0) == 0
    assert throttle.admit(10 * LINE_SECONDS) == 0
