"""Clocks."""

from __future__ import annotations

import time

import pytest

from brokerset_runtime.clock import Clock, ManualClock, SystemClock


def test_the_systems_clock_tells_the_time_of_day_in_milliseconds() -> None:
    clock: Clock = SystemClock()

    before, now, after = time.time(), clock.now_ms(), time.time()

    assert before * 1000 - 1 <= now <= after * 1000 + 1
    assert clock.monotonic() <= clock.monotonic()


def test_a_manual_clock_moves_only_when_told() -> None:
    clock: Clock
    clock = manual = ManualClock(now_ms=1000)

    manual.advance(1500)

    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


def test_the_wall_clock_may_jump_alone() -> None:
    clock = ManualClock(now_ms=1000)

    clock.jump(-500)

    assert (clock.now_ms(), clock.monotonic()) == (500, 0.0)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
