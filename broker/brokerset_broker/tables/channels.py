"""Connected clients as the client tables see them: a channel to write to, and who is at its other end."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from brokerset_protocol.commands import Command

CLIENT_ID_SIZE_MAX = 1024
"""Characters of a client id; Java clients make about 40 of address, process and start time."""


class Channel(Hashable, Protocol):
    """The part of a remoting connection that the tables and their processors use."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port at the other end."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the other end to read."""
        ...

    def notify(self, command: Command) -> None:
        """Send a one-way request."""
        ...

    async def call(self, command: Command, timeout: float) -> Command:
        """Send a request and wait for its answer, `timeout` in seconds."""
        ...


@dataclass(slots=True)
class Client:
    """One client instance on one channel, as a member of a group."""

    channel: Channel
    client_id: str
    language: int
    version: int

    last_seen: float
    """Seconds of the monotonic clock at the last heartbeat."""

    @property
    def address(self) -> str:
        """`ip:port` of the other end, as administrators see it."""
        return f"{self.channel.peer[0]}:{self.channel.peer[1]}"
