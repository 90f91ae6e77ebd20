"""Connections between master and slave, as protocols: a simulated network can stand in for sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from brokerset_broker.store.replica_log import ReplicaLog
from brokerset_protocol.ha_packets import Ack, MasterHandshake, SlaveHandshake, TransferHeader


class LinkClosed(Exception):
    """The connection ended, for whatever reason; the text says which."""


class PeerRefused(LinkClosed):
    """This end closed the connection because of what the peer sent."""


def no_handshake(seconds: float) -> str:
    """Why a connection without a first packet ends. A slave of RocketMQ 4.x is silent for 5 s, then tells an
    offset."""
    return (
        f"no handshake in {seconds:g} s, as of a slave without controllers (RocketMQ 4.x, or"
        " brokerRole=SLAVE): set enableControllerMode there, or keep it away from this group"
    )


class SlaveLink(Protocol):
    """The master's end of a connection."""

    @property
    def peer(self) -> str:
        """`host:port` of the slave, for logs."""

    async def handshake(self) -> SlaveHandshake:
        """Wait for the slave's first packet. Raises `LinkClosed`; for bytes that are none `PeerRefused`."""

    async def send_handshake(self, packet: MasterHandshake) -> None:
        """Answer it. Raises `LinkClosed`."""

    def on_ack(self, listener: Callable[[Ack], None]) -> None:
        """Have `listener` called for acknowledgements; of several in one piece only the last counts."""

    def on_close(self, listener: Callable[[str], None]) -> None:
        """Have `listener` called once, with the reason, when the connection has ended."""

    async def send(self, header: TransferHeader, log: ReplicaLog) -> None:
        """Send a header and `header.size` bytes of the log from `header.offset`; returns when the kernel has
        taken them, so that a slow slave holds up only its own task. Raises `LinkClosed`."""

    def close(self, reason: str) -> None:
        """End the connection; may be called again."""


class MasterLink(Protocol):
    """The slave's end of a connection."""

    @property
    def peer(self) -> str:
        """`host:port` of the master, for logs."""

    async def shake_hands(self, packet: SlaveHandshake) -> MasterHandshake:
        """Send our handshake and wait for the answer. Raises `LinkClosed`."""

    def receive_into(
        self, log: ReplicaLog, on_header: Callable[[TransferHeader], Awaitable[None] | None]
    ) -> None:
        """Begin to receive: bodies go into `log.room()`, then `log.received()` is called.

        `on_header` is called before the bytes behind a header are taken; what it returns is awaited first,
        and what it raises closes the connection. A header without a body is passed on as well.
        """

    def send_ack(self, packet: Ack) -> None:
        """Acknowledge. Never waits; a slave whose master does not read is closed when too much waits."""

    async def closed(self) -> str:
        """Wait for the end of the connection; returns the reason."""

    def close(self, reason: str) -> None:
        """End the connection; may be called again."""


class HaNetwork(Protocol):
    """Makes links."""

    async def connect(self, address: str, timeout: float) -> MasterLink:
        """Connect to a master's HA port. Raises `LinkClosed`."""

    def on_slave(self, listener: Callable[[SlaveLink], None]) -> None:
        """Have `listener` called for each connection that slaves make to this broker's HA port."""
