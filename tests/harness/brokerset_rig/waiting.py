"""Waiting for what no event tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

SECONDS_MAX: Final = 20.0


async def until(
    condition: Callable[[], object], seconds: float = SECONDS_MAX, *, pause: float = 0.005
) -> None:
    """Return when the condition holds. Raises `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(pause)
