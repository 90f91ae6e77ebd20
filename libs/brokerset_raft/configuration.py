"""Who belongs to a raft group, how many make a majority, and which changes are allowed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import orjson

MEMBERS_MAX = 9
"""Most members, learners included."""

NODE_ID_MAX = (1 << 63) - 1
"""Largest id: what a long of Java holds."""

ADDRESS_LENGTH_MAX = 300
"""Most characters of an address: the longest name that DNS knows, with a port, is shorter."""


class ConfigurationRefused(ValueError):
    """A change of the members is not allowed; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node: its id and where it is reached."""

    node_id: int
    raft_address: str
    """`host:port` of the raft transport."""

    service_address: str
    """`host:port` that clients of the state machine use: for a controller, its remoting address."""

    voter: bool = True
    """A learner receives the log and neither votes nor counts."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """All members, by ascending id. Empty for a node that waits to be added to a running group."""

    members: tuple[Member, ...] = ()

    @property
    def voters(self) -> tuple[int, ...]:
        """Ids of those who vote."""
        return tuple(member.node_id for member in self.members if member.voter)

    @property
    def learners(self) -> tuple[int, ...]:
        """Ids of those who only learn."""
        return tuple(member.node_id for member in self.members if not member.voter)

    @property
    def majority(self) -> int:
        """Fewest voters that are more than half, also of an even number."""
        return len(self.voters) // 2 + 1

    def is_majority(self, node_ids: Iterable[int]) -> bool:
        """Whether these nodes, of which those who do not vote are ignored, are more than half."""
        return len(set(node_ids) & set(self.voters)) >= self.majority

    def member(self, node_id: int) -> Member | None:
        """The member with this id."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def with_learner(self, member: Member) -> Configuration:
        """With a new learner, or another address for an existing member, which keeps its vote."""
        # What cannot be written down must not be agreed on: every node would fail over it, again and again.
        if not 0 <= member.node_id <= NODE_ID_MAX:
            raise ConfigurationRefused(f"node id {member.node_id} is not between 0 and {NODE_ID_MAX}")
        for address in (member.raft_address, member.service_address):
            if len(address) > ADDRESS_LENGTH_MAX or not address.isprintable():
                raise ConfigurationRefused(
                    f"{address[:80]!r} is no address of at most {ADDRESS_LENGTH_MAX} printable characters"
                )
        known = self.member(member.node_id)
        if known is None and len(self.members) >= MEMBERS_MAX:
            raise ConfigurationRefused(f"the group has {MEMBERS_MAX} members, the most there can be")
        voter = known.voter if known is not None else False
        return self._with(Member(member.node_id, member.raft_address, member.service_address, voter))

    def with_voter(self, node_id: int) -> Configuration:
        """With a learner that votes from now on."""
        known = self.member(node_id)
        if known is None:
            raise ConfigurationRefused(f"node {node_id} is no member; add it as a learner first")
        return self._with(Member(known.node_id, known.raft_address, known.service_address, True))

    def without(self, node_id: int) -> Configuration:
        """Without a member; the last voter cannot leave."""
        if self.member(node_id) is None:
            raise ConfigurationRefused(f"node {node_id} is no member")
        if self.voters == (node_id,):
            raise ConfigurationRefused(f"node {node_id} is the last voter; a group needs one")
        return Configuration(tuple(member for member in self.members if member.node_id != node_id))

    def _with(self, member: Member) -> Configuration:
        others = [known for known in self.members if known.node_id != member.node_id]
        return Configuration(tuple(sorted([*others, member], key=lambda each: each.node_id)))

    def encode(self) -> bytes:
        """As JSON, for entries and snapshots."""
        return orjson.dumps([[m.node_id, m.raft_address, m.service_address, m.voter] for m in self.members])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError` for bytes that `encode` did not make."""
        rows: Any = orjson.loads(data)
        try:
            return cls(
                tuple(
                    Member(int(i), str(raft), str(service), bool(voter)) for i, raft, service, voter in rows
                )
            )
        except TypeError as error:
            raise ValueError(f"not a configuration: {data[:80]!r}") from error
