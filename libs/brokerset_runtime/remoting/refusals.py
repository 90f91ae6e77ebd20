"""Ends connections whose requests are refused again and again.

A refusal costs little, but a request costs less to send: who may do nothing could keep a server busy with
one connection. A client whose rights were forgotten sees the reason in each answer before its connection
ends, and connects again.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.remoting.connection import Connection

log = structlog.get_logger(__name__)

WINDOW_SECONDS: Final = 10.0
"""Time in which refusals of one connection are counted together, from the first of them."""

_STATE: Final = "refusals"


class RefusalBound:
    """Counts refusals by connection, and closes one that had `most` of them in `WINDOW_SECONDS`; 0: never."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._throttle = LogThrottle()

    def count(self, connection: Connection) -> None:
        """One more. The connection is closed after what it is answered in this turn of the loop."""
        if not self._most:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        since, number = connection.state.get(_STATE, (now, 0))
        if now - since >= WINDOW_SECONDS:
            since, number = now, 0
        number += 1
        connection.state[_STATE] = (since, number)
        if number != self._most:
            return
        loop.call_soon(connection.close)
        suppressed = self._throttle.admit(now)
        if suppressed is not None:
            log.warning(
                "connection closed: too many of its requests were refused",
                peer=connection.peer,
                refused=number,
                seconds=WINDOW_SECONDS,
                next_step="see `request denied` for who it is, and refusalsMax",
                suppressed=suppressed,
            )
