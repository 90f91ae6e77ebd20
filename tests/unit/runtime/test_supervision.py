"""When a crashed process is started again, and what is kept of its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_runtime.supervision import (
    BackOff,
    Restart,
    bound_log,
    decide_restart,
    describe_exit,
    log_tail,
)

POLICY = BackOff(first_ms=100, factor=2, ceiling_ms=1000, forget_after_ms=60_000)


def test_the_pause_doubles_with_each_crash_up_to_a_ceiling() -> None:
    crashes, delays = 0, []
    for _ in range(6):
        restart = decide_restart(crashes, 5, POLICY)
        crashes = restart.crashes
        delays.append(restart.delay_ms)

    assert delays == [100, 200, 400, 800, 1000, 1000]


def test_a_process_that_ran_long_enough_starts_with_the_first_pause_again() -> None:
    assert decide_restart(7, 59_999, POLICY) == Restart(delay_ms=1000, crashes=8)
    assert decide_restart(7, 60_000, POLICY) == Restart(delay_ms=100, crashes=1)


def test_a_million_crashes_are_no_bigger_number() -> None:
    assert decide_restart(1_000_000, 0, POLICY).delay_ms == 1000


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (2, "ended with exit code 2"),
        (-9, "was ended by SIGKILL"),
        (-99, "was ended by signal 99"),
    ],
)
def test_the_end_of_a_process_is_said_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_log_that_grew_too_large_is_moved_away_while_it_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        bound_log(path, size_max=100)
        writer.write(b"y")
        bound_log(path, size_max=100)
        writer.write(b"z")

    assert path.read_bytes() == b"z"
    assert (tmp_path / "broker.log.1").read_bytes() == b"x" * 100 + b"y"


def test_only_whole_lines_of_the_end_of_a_log_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_text("".join(f"line {n:05d}\n" for n in range(10_000)))

    lines = log_tail(path).splitlines()

    assert lines[-1] == "line 09999"
    assert all(len(line) == 10 for line in lines)
    assert log_tail(tmp_path / "none.log") == ""
