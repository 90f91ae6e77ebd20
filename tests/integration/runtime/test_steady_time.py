"""The time of tests: what a process cannot use does not count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from brokerset_rig.steady_time import SteadyLoop, SteadyUvloop
from brokerset_runtime.clock import SystemClock

STOP_SECONDS = 0.4


@pytest.fixture(params=[SteadyLoop, SteadyUvloop], autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


def stop_the_process() -> None:
    time.sleep(STOP_SECONDS)  # as a machine does that has no time for this process


async def test_a_stop_of_the_process_costs_no_lease_and_no_time_out() -> None:
    """A timer that the stop has made due waits for the rest of its time."""
    loop, clock = asyncio.get_running_loop(), SystemClock()
    began, promised, real = loop.time(), clock.monotonic(), time.monotonic()
    fired: list[float] = []
    loop.call_later(STOP_SECONDS / 2, lambda: fired.append(loop.time() - began))
    cancelled = loop.call_later(STOP_SECONDS / 4, fired.append, -1.0)

    async with asyncio.timeout(STOP_SECONDS):
        stop_the_process()
        assert loop.time() - began < STOP_SECONDS / 4
        assert clock.monotonic() - promised < STOP_SECONDS / 4
        cancelled.cancel()
        await asyncio.sleep(STOP_SECONDS * 3 / 4)

    assert len(fired) == 1
    assert STOP_SECONDS / 2 - 0.002 <= fired[0] < STOP_SECONDS * 3 / 4
    assert time.monotonic() - real >= STOP_SECONDS * 7 / 4 - 0.05


async def test_a_timer_cancelled_while_it_waits_for_the_rest_never_comes() -> None:
    loop = asyncio.get_running_loop()
    fired: list[bool] = []
    timer = loop.call_later(0.1, fired.append, True)
    loop.call_later(0.05, stop_the_process)
    loop.call_later(0.08, timer.cancel)
    await asyncio.sleep(0.15)
    assert timer.cancelled()
    assert not fired
