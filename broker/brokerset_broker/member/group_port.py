"""What a member of a group in controller mode has of the network: requests, and the port for slaves."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from brokerset_broker.member.ha.links import HaNetwork
from brokerset_broker.member.ha.tcp_links import TcpHaNetwork
from brokerset_broker.requests.access_control import broker_sign
from brokerset_runtime.peer_requests import Asker, PoolRequester
from brokerset_runtime.remoting import ConnectionPool
from brokerset_runtime.tls import Tls
from brokerset_spec.broker_settings import BrokerSettings


class GroupPort(Protocol):
    """A protocol, so that a simulated network can stand in for sockets."""

    @property
    def number(self) -> int:
        """Of the port for slaves."""

    @property
    def asker(self) -> Asker:
        """Asks controllers, other members, and whom a request is forwarded to."""

    @property
    def network(self) -> HaNetwork:
        """Connections between master and slaves."""

    def listen(self) -> None:
        """Take slaves from now on; `network` knows what becomes of them."""

    async def close(self) -> None:
        """End all connections."""


class TcpGroupPort:
    """The real one: `listener` is bound to the port for slaves."""

    def __init__(
        self, listener: socket.socket, settings: Callable[[], BrokerSettings], tls: Tls | None = None
    ) -> None:
        """Touches nothing before `listen`; until then the socket is the caller's."""
        self._listener = listener
        self._settings = settings
        self._pool = ConnectionPool(tls=tls, sign=broker_sign(settings()))
        self.number: int = listener.getsockname()[1]
        self.asker: Asker = PoolRequester(self._pool)
        self.network = TcpHaNetwork(
            host=settings().bind_address,
            port=self.number,
            rate=self._rate,
            tls=tls if tls is not None and tls.at_ha_port else None,
        )

    def listen(self) -> None:
        self.network.listen_on(self._listener)

    async def close(self) -> None:
        self.network.close()
        await self._pool.close()

    def _rate(self) -> int:
        settings = self._settings()
        return settings.max_ha_transfer_byte_in_second if settings.ha_flow_control_enable else 0
