"""What users of consensus see, whichever engine stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from brokerset_raft.configuration import Configuration, Member


class Role(Enum):
    """What a node is in its current term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
    LEARNER = "learner"


class EngineError(Exception):
    """A request could not be carried out."""


class NotLeader(EngineError):
    """Nothing was done: another node leads, if `leader_id` is known."""

    def __init__(self, leader_id: int | None) -> None:
        known = "no leader is known; ask again soon" if leader_id is None else f"node {leader_id} leads"
        super().__init__(f"not the leader; {known}")
        self.leader_id = leader_id


class OutcomeUnknown(EngineError):
    """Leadership was lost, or the time was up, before the entry was seen to be committed: it may still be."""


class Overloaded(EngineError):
    """Nothing was done: too many proposals or reads wait already."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A look at one node."""

    node_id: int
    role: Role
    term: int
    leader_id: int | None
    leading: bool
    """Leader whose own no-op is committed and applied: its state is current, and it may answer."""

    last_index: int
    commit_index: int
    applied_index: int
    snapshot_index: int
    configuration: Configuration
    match_indexes: dict[int, int]
    """On the leader: the last synced index of each member, itself included."""

    heard: frozenset[int] = frozenset()
    """On the leader: itself and the members that it heard lately; the index of another may be an old one."""


class StateMachine(Protocol):
    """What the entries change. All methods run on the loop's thread, never concurrently."""

    def apply(self, index: int, data: bytes) -> object:
        """Carry out a committed command; never fails, and gives the same result on every node."""

    def snapshot(self) -> bytes:
        """The whole state."""

    def restore(self, data: bytes) -> None:
        """Replace the whole state by a snapshot's."""


class Engine(Protocol):
    """One node of a replicated state machine."""

    @property
    def status(self) -> EngineStatus:
        """What this node knows now."""

    async def propose(self, data: bytes, timeout: float | None = None) -> object:
        """Commit and apply a command; returns what `StateMachine.apply` returned for it on this node.

        Raises `NotLeader`, `Overloaded` (nothing done) or `OutcomeUnknown`.
        """

    async def read_barrier(self, timeout: float | None = None) -> None:
        """Return when the state machine has all that was committed anywhere before this call.

        Raises `NotLeader`, `Overloaded` or `OutcomeUnknown`.
        """

    async def add_learner(self, member: Member) -> None:
        """Commit a new learner, or a member's new addresses. Raises `ConfigurationRefused` as well."""

    async def promote(self, node_id: int) -> None:
        """Let a learner vote, once it has caught up. Raises `ConfigurationRefused` as well."""

    async def remove(self, node_id: int) -> None:
        """Remove a member. Raises `ConfigurationRefused` as well."""

    async def transfer(self, node_id: int) -> None:
        """Make another voter leader; returns when this node no longer leads. Raises `OutcomeUnknown`."""

    async def take_snapshot(self) -> int:
        """Write a snapshot of the applied state now and drop the log below; returns its index."""
