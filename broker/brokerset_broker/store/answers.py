"""Answers to those who wait for a log: callbacks, which may come from anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def give(callback: Callable[[T], None], value: T) -> None:
    """Call `callback(value)`; one that raises ends neither the answers of the others nor what follows them.

    The loop's handler reports what it raised, as it does for every other callback of the loop.
    """
    try:
        callback(value)
    except Exception as error:  # the edge of a session: one bad answer harms nobody else
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"an answer failed: {error!r}", "exception": error}
        )
