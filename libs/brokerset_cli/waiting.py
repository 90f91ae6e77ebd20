"""Waiting for what other processes do: they set no event, so they are asked again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

PAUSE_SECONDS: Final = 0.05
"""Pause between two probes."""

T = TypeVar("T")


async def until(probe: Callable[[], Awaitable[T]], seconds_max: float, pause: float = PAUSE_SECONDS) -> T:
    """Probe until an answer is true; returns it, or the last one when time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while not (answer := await probe()) and loop.time() < deadline:  # noqa: ASYNC110  # see above
        await asyncio.sleep(pause)
    return answer
