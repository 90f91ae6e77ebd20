"""What the state of a DLedger member means for the broker's role. Pure.

A term counts as the master epoch that is one higher: Java's first leader leads term 0, and no master does in
epoch 0. A member's broker id is the number in its id plus one, as a Java broker has it
while it does not lead; who leads is 0 to name servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerset_broker.member.role import GroupNews
from brokerset_dledger.driver import MemberStatus
from brokerset_dledger.node import Role as LedgerRole
from brokerset_formats.lazy_dataclasses import dataclass

LEASE_SECONDS_MAX: Final = 3_600.0
"""A lease without an end is asked for again after this."""


def broker_id_of(member: str) -> int:
    """`n0` is 1."""
    return int(member.removeprefix("n")) + 1


def member_of(broker_id: int) -> str:
    """1 is `n0`."""
    return f"n{broker_id - 1}"


def epoch_of(term: int) -> int:
    """The master epoch of a term."""
    return term + 1


def news_of(status: MemberStatus, leader_address: str | None) -> GroupNews:
    """Who is master of the group in which epoch, as far as this member knows."""
    leader = status.leader_id
    return GroupNews(
        epoch=epoch_of(status.term),
        master_id=None if leader is None else broker_id_of(leader),
        master_address=leader_address,
        sync_state_set=frozenset(map(broker_id_of, in_sync(status))),
        set_epoch=0,
    )


def in_sync(status: MemberStatus) -> tuple[str, ...]:
    """The members that have all that is committed, as the leader knows; none for who does not lead."""
    if status.role is not LedgerRole.LEADER:
        return ()
    return tuple(
        member for member, index in sorted(status.watermarks.items()) if index >= status.committed_index
    )


@dataclass(frozen=True, slots=True)
class LedgerLease:
    """A leader's lease, which heartbeats of a quorum prolong; in place of the one that controllers give."""

    term: Callable[[], int]
    may_serve: Callable[[], bool]
    serves_until: Callable[[], float]
    """On the broker's monotonic clock, in seconds."""

    now: Callable[[], float]
    required: bool = True

    @property
    def epoch(self) -> int:
        """The master epoch of this member's term."""
        return epoch_of(self.term())

    @property
    def ends_at(self) -> float:
        """When it ends, or has to be asked for again."""
        return min(self.serves_until(), self.now() + LEASE_SECONDS_MAX)

    @property
    def is_short(self) -> bool:
        """It lasts less than a fifth of a second in groups of ours alone."""
        return True

    @property
    def given_up(self) -> bool:
        """A transfer ends it without being asked."""
        return False

    def valid(self, now: float, epoch: int) -> bool:
        """Whether this member leads in that epoch, and certainly nobody else in a newer one."""
        return epoch == self.epoch and self.may_serve()
