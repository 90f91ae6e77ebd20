"""What replication asks of the membership: who the master is, another in-sync set, another master."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from brokerset_broker.member.role import RoleState
from brokerset_formats.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MasterTarget:
    """Where the master's HA port is, and who it must be."""

    ha_address: str
    is_ours: bool
    """Whether it is one of our brokers, so that the extended handshake is used."""


class ProposalEnd(Enum):
    """How a proposal of an in-sync set ended."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """A controller that leads refused it; whether an earlier try was carried out is not known."""

    UNKNOWN = "unknown"
    """No answer, or one that says nothing."""


@dataclass(frozen=True, slots=True)
class ProposalResult:
    """The answer to 1001. `sync_state_set` and `set_epoch` are what is in force now, if that was told."""

    end: ProposalEnd
    sync_state_set: frozenset[int] = frozenset()
    set_epoch: int = 0
    remark: str = ""


class GroupLink(Protocol):
    """What replication asks of the membership."""

    async def find_master(self, change: RoleState) -> MasterTarget:
        """Ask the master who it is. Raises `brokerset_broker.member.ha.links.LinkClosed` with the reason."""

    async def propose(
        self, sync_state_set: frozenset[int], set_epoch: int, master_epoch: int, nonces: Mapping[int, str]
    ) -> ProposalResult:
        """Ask the controllers for another in-sync set (1001), based on the one with `set_epoch`.

        `nonces` are the starts of our own brokers whose acknowledgements it rests on, by id.
        """

    def relieve(self, epoch: int, needed: int, *, begin: bool) -> bool:
        """As master of `epoch` that hears no replica, have another one lead, who needs `needed` replicas.

        Returns whether that is being tried; without `begin` it is not begun. The set must stay as it is
        meanwhile, for the successor must be in it.
        """

    def ask_soon(self) -> None:
        """Ask the controllers soon what is in force (1004)."""
