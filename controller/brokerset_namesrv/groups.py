"""One broker name with its living brokers: what the routing table keeps of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from brokerset_formats.config import DataVersion
from brokerset_namesrv.registrations import MinBrokerIdNotice


@dataclass(slots=True)
class Member:
    """One living broker, as it registered last."""

    address: str
    ha_address: str
    timeout_ms: int
    data_version: DataVersion
    updated_ms: int
    connection: Hashable | None
    filter_servers: tuple[str, ...] = ()


@dataclass(slots=True)
class Group:
    """The living brokers of one name."""

    name: str
    cluster: str
    acting_master: bool = False
    """Whether its brokers want the smallest id to stand in for a lost master."""

    zone: str | None = None
    members: dict[int, Member] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    """The topics in which the table has queues of this group."""

    def addresses(self) -> dict[int, str]:
        """Addresses by id, the smallest first."""
        return {number: self.members[number].address for number in sorted(self.members)}

    def face(self) -> tuple[object, ...]:
        """What routes show of this group, to see whether they changed."""
        servers = tuple(member.filter_servers for _, member in sorted(self.members.items()))
        return (tuple(self.addresses().items()), servers, self.acting_master, self.zone)

    def notice(
        self, *, offline_address: str | None = None, ha_address: str | None = None
    ) -> MinBrokerIdNotice:
        """Of its smallest id: who is left hears of a broker that went, the others hear of one that came."""
        addresses = self.addresses()
        smallest = min(addresses)
        if offline_address is None and len(addresses) > 1:
            receivers = tuple(address for number, address in addresses.items() if number != smallest)
        else:
            receivers = tuple(addresses.values())
        return MinBrokerIdNotice(
            self.name, smallest, addresses[smallest], offline_address, ha_address, receivers
        )
