"""A plugin for pytest: a test that is a coroutine runs on a loop of its own.

* The loop is asyncio's on steady time (`brokerset_rig.steady_time`): a machine that stops the process costs no lease and no
  time-out. A fixture `loop_factory` gives another one, and `pytest.mark.virtual` one whose clock jumps.
* On a real loop the test has `SECONDS_MAX`, or nearly all of what its own `pytest.mark.timeout` allows if that is more.
* A fixture that returns an async context manager is entered on that loop, and the test gets what it yields.
* What was given to `at_end` is called when the test has ended, on that loop: uvloop's does not close while a process that
  it started runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final

import pytest

from brokerset_rig.steady_time import SteadyLoop, counting
from brokerset_sim.loop import VirtualLoop

SECONDS_MAX: Final = 30.0

OWN_LIMIT_PART: Final = 0.9
"""Of a test's own time limit: it ends with a trace of what it waited for, before the limit ends it from outside."""

_ends: list[Callable[[], object]] = []


def at_end(action: Callable[[], object]) -> None:
    """Call this when the test that runs has ended, whether it passed or not."""
    _ends.append(action)


def pytest_configure(config: pytest.Config) -> None:
    """The marker needs no entry in pyproject.toml."""
    config.addinivalue_line("markers", "virtual: a test that runs on virtual time")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine; other tests run as ever."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures = pyfuncitem.funcargs
    virtual = pyfuncitem.get_closest_marker("virtual") is not None
    factory: Any = VirtualLoop if virtual else fixtures.get("loop_factory", SteadyLoop)
    wanted = {name: fixtures[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    with counting(), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_whole(pyfuncitem.obj, wanted, None if virtual else _seconds(pyfuncitem)))
    return True


def _seconds(test: pytest.Function) -> float:
    """What the test has: those that start many processes say themselves how long that may take."""
    own = test.get_closest_marker("timeout")
    return (
        max(SECONDS_MAX, OWN_LIMIT_PART * float(own.args[0])) if own is not None and own.args else SECONDS_MAX
    )


async def _whole(test: Any, fixtures: dict[str, Any], seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds), AsyncExitStack() as entered:
            for name, value in fixtures.items():
                if isinstance(value, AbstractAsyncContextManager):
                    fixtures[name] = await entered.enter_async_context(value)
            await test(**fixtures)
    finally:
        while _ends:
            _ends.pop()()
