"""Table of connected producers: who can be asked about a transaction, who waits for a reply.

Source: `ProducerManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from brokerset_broker.tables.channels import Channel, Client
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock


@dataclass(slots=True)
class _Group:
    clients: dict[Channel, Client] = field(default_factory=dict)
    next_turn: int = 0


PICKED_MAX: Final = 1_000
"""Channels of a group of which one is looked for that may be asked; the next time others."""


class ProducerTable:
    """Producer groups with their live clients."""

    groups_max = 50_000
    """Groups with connected producers; one more is refused."""

    clients_max = 20_000
    """Producers of one group; one more is refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._groups_of: dict[Channel, dict[str, None]] = {}
        self._channels: dict[str, Channel] = {}

    def register(self, group: str, channel: Channel, client_id: str, language: int, version: int) -> bool:
        """Note a heartbeat; return whether the client is new in the group. Raises `Rejected` at a limit."""
        entry = self._groups.get(group)
        if entry is None:
            if len(self._groups) >= self.groups_max:
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY, f"{self.groups_max} producer groups are connected already"
                )
            entry = self._groups[group] = _Group()
        client = entry.clients.get(channel)
        if client is None and len(entry.clients) >= self.clients_max:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"the producer group[{group}] has {self.clients_max} clients already",
            )
        now = self._clock.monotonic()
        if client is None or client.client_id != client_id:
            if client is not None:
                self._forget_id(client.client_id, channel)
            entry.clients[channel] = Client(channel, client_id, language, version, now)
            self._groups_of.setdefault(channel, {})[group] = None
            self._channels[client_id] = channel
            return client is None
        client.last_seen = now
        self._channels.setdefault(client_id, channel)  # of two with one id, the younger one may have closed
        return False

    def unregister(self, group: str, channel: Channel) -> bool:
        """Take one client out of a group; return whether it was there."""
        entry = self._groups.get(group)
        client = entry.clients.pop(channel, None) if entry is not None else None
        if entry is None or client is None:
            return False
        if not entry.clients:
            del self._groups[group]
        groups = self._groups_of[channel]
        del groups[group]
        if not groups:
            del self._groups_of[channel]
        if not any(self._groups[other].clients[channel].client_id == client.client_id for other in groups):
            self._forget_id(client.client_id, channel)
        return True

    def _forget_id(self, client_id: str, channel: Channel) -> None:
        if self._channels.get(client_id) is channel:
            del self._channels[client_id]

    def closed(self, channel: Channel) -> None:
        """Take a closed channel out of all groups."""
        for group in list(self._groups_of.get(channel, ())):
            self.unregister(group, channel)

    def expire(self, idle_seconds_max: float) -> list[Client]:
        """Take out and return clients without a heartbeat for so long."""
        oldest = self._clock.monotonic() - idle_seconds_max
        gone = [
            (name, client)
            for name, entry in self._groups.items()
            for client in entry.clients.values()
            if client.last_seen < oldest
        ]
        for name, client in gone:
            self.unregister(name, client.channel)
        return [client for _, client in gone]

    def clients(self, group: str) -> list[Client] | None:
        """The connected producers of a group, `None` if there are none."""
        entry = self._groups.get(group)
        return list(entry.clients.values()) if entry is not None else None

    def groups(self) -> Iterator[tuple[str, list[Client]]]:
        """All groups with their producers."""
        return ((name, list(entry.clients.values())) for name, entry in self._groups.items())

    def channel_of(self, client_id: str) -> Channel | None:
        """The channel of a client, for replies to its requests; `None` if it is not connected."""
        return self._channels.get(client_id)

    def any_of(self, group: str, is_fit: Callable[[Channel], bool]) -> bool:
        """Whether a channel of the group is fit; nobody's turn changes."""
        entry = self._groups.get(group)
        return entry is not None and any(is_fit(channel) for channel in entry.clients)

    def pick(self, group: str, may: Callable[[Channel], bool] = lambda _channel: True) -> Channel | None:
        """One channel of the group, another one each time, for questions about transactions; of `PICKED_MAX`
        the first that `may` be asked."""
        entry = self._groups.get(group)
        if entry is None:
            return None
        channels = list(entry.clients)
        for _ in range(min(len(channels), PICKED_MAX)):
            entry.next_turn += 1
            channel = channels[entry.next_turn % len(channels)]
            if may(channel):
                return channel
        return None
