"""Sends the news of a changed smallest broker id to the brokers of the group."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from brokerset_acl.signatures import Sign
from brokerset_namesrv.processors import Counters
from brokerset_namesrv.registrations import MinBrokerIdNotice
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool
from brokerset_runtime.tls import Tls

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 1_000
"""Notices that wait to be sent; the next one is dropped and counted: brokers also ask on a timer (901)."""

CONNECT_SECONDS_MAX: Final = 0.3
"""Longest wait for a connection to a broker, as in Java; who cannot be reached learns it on a timer."""


class Notifier:
    """A queue of notices and the task that sends them."""

    def __init__(self, counters: Counters, tls: Tls | None = None, sign: Sign | None = None) -> None:
        self._counters = counters
        self._queue: asyncio.Queue[MinBrokerIdNotice] = asyncio.Queue(WAITING_MAX)
        self._pool = ConnectionPool(tls=tls, sign=sign)

    def tell(self, notices: tuple[MinBrokerIdNotice, ...]) -> None:
        """Have notices sent; never waits."""
        for notice in notices:
            try:
                self._queue.put_nowait(notice)
            except asyncio.QueueFull:
                self._counters.notices_dropped += 1

    def forget(self, address: str) -> None:
        """Close the connection to a broker that has left."""
        self._pool.forget(address)

    async def run(self) -> None:
        """Send notices one after the other, for as long as this task runs."""
        while True:
            notice = await self._queue.get()
            log.info(
                "smallest broker id changed",
                broker=notice.broker_name,
                id=notice.min_broker_id,
                receivers=len(notice.receivers),
            )
            await asyncio.gather(*(self._send(address, notice) for address in notice.receivers))

    async def close(self) -> None:
        """Close the connections to the brokers."""
        await self._pool.close()

    async def _send(self, address: str, notice: MinBrokerIdNotice) -> None:
        header = headers.NotifyMinBrokerIdChange(
            min_broker_id=notice.min_broker_id,
            broker_name=notice.broker_name,
            min_broker_addr=notice.min_broker_address,
            offline_broker_addr=notice.offline_broker_address,
            ha_broker_addr=notice.ha_address,
        )
        try:
            connection = await self._pool.get(address, CONNECT_SECONDS_MAX)
        except ConnectionClosed as error:
            self._counters.notices_dropped += 1
            log.info("broker not reached with a notice", address=address, reason=str(error))
            return
        connection.notify(Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header.to_ext()))
