"""SIGTERM and SIGINT of a process: the first asks for an orderly end, a later one ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

AGAIN_SECONDS: Final = 0.5
"""Only a signal that comes at least so long after the first one is a second order.

When a parent is killed, the kernel sends the signal of its death once for each of the parent's threads,
which must not turn an orderly end into an abrupt one.
"""


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; end the process without further ado at a later one.

    Must be called on the running loop of the main thread.
    """
    loop = asyncio.get_running_loop()
    first: list[float] = []

    def signalled(number: int) -> None:
        if not first:
            first.append(loop.time())
            stop.set()
        elif loop.time() - first[0] >= AGAIN_SECONDS:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, int(number))
