"""What goes into the routing table and what comes out of it: registrations, refusals, removals, notices."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from brokerset_formats.config import DataVersion
from brokerset_protocol.bodies.routes import QueueData

NAME_LENGTH_MAX: Final = 255
"""Characters of a cluster, broker or topic name and of an address."""

FILTER_SERVERS_MAX: Final = 64
"""Filter servers of one broker; a registration with more is refused."""

HEARTBEAT_TIMEOUT_MS_MAX: Final = 3_600_000
"""Longest silence that a broker may ask for; a longer wish is lowered to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself in a REGISTER_BROKER request."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    topics: Mapping[str, QueueData]
    """Its queues by topic; their broker name is that of the registration."""

    data_version: DataVersion
    filter_servers: tuple[str, ...] | None = None
    """`None` leaves those of the last registration."""

    heartbeat_timeout_ms: int | None = None
    acting_master: bool | None = None
    """`None` from brokers that do not know the acting master (before 5.0)."""

    zone: str | None = None

    def problem(self) -> str | None:
        """What is wrong with it, whatever the table holds; `None` if nothing is."""
        for label, text in (
            ("clusterName", self.cluster),
            ("brokerName", self.broker_name),
            ("brokerAddr", self.address),
        ):
            if not text or len(text) > NAME_LENGTH_MAX:
                return f"{label} has {len(text)} characters, 1 to {NAME_LENGTH_MAX} allowed"
        if not _is_address(self.address):
            return f"brokerAddr {self.address!r} is not host:port"
        if len(self.ha_address) > NAME_LENGTH_MAX:
            return f"haServerAddr is longer than {NAME_LENGTH_MAX} characters"
        if self.broker_id < 0:
            return f"brokerId {self.broker_id} is negative"
        if len(self.filter_servers or ()) > FILTER_SERVERS_MAX:
            return f"more than {FILTER_SERVERS_MAX} filter servers"
        for topic in self.topics:
            if not topic or len(topic) > NAME_LENGTH_MAX:
                return f"a topic name has {len(topic)} characters, 1 to {NAME_LENGTH_MAX} allowed"
        return None


@dataclass(frozen=True, slots=True)
class MinBrokerIdNotice:
    """The smallest living id of a group has changed: what 905 shall tell, and to whom."""

    broker_name: str
    min_broker_id: int
    min_broker_address: str
    offline_broker_address: str | None
    ha_address: str | None
    receivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration was taken, or deliberately ignored."""

    ha_address: str | None = None
    """The master's, for a slave."""

    master_address: str | None = None
    """The master's, for a slave."""

    ignored: str | None = None
    """Why nothing was stored; Java answers such a registration with success."""

    first: bool = False
    """Whether this id was not known before."""

    notices: tuple[MinBrokerIdNotice, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A registration was not taken, and nothing changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Removal:
    """One broker has left the table."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    connection: Hashable | None
    """The one on which it registered last."""


@dataclass(frozen=True, slots=True)
class Removals:
    """Brokers that have left the table, and who is to be told."""

    removed: tuple[Removal, ...] = ()
    notices: tuple[MinBrokerIdNotice, ...] = ()


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(colon and host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
