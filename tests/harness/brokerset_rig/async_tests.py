"""A plugin for pytest: a test that is a coroutine runs on a loop of its own.

* The loop is asyncio's; a fixture `loop_factory` gives another one, and `pytest.mark.virtual` one whose clock jumps.
* On a real loop the test has `SECONDS_MAX`.
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

from brokerset_sim.loop import VirtualLoop

SECONDS_MAX: Final = 30.0

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
    factory: Any = VirtualLoop if virtual else fixtures.get("loop_factory", asyncio.new_event_loop)
    wanted = {name: fixtures[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_whole(pyfuncitem.obj, wanted, None if virtual else SECONDS_MAX))
    return True


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
