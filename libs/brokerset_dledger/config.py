"""How one member of a DLedger group behaves: who the others are, time-outs, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """How one member behaves; the same on all members of a group, but for the id. Times are milliseconds.

    The defaults of the times are Java's (`DLedgerConfig`); `for_group_alone` has shorter ones.
    """

    group: str
    node_id: str
    peers: tuple[str, ...]
    """The ids of all members, this one included."""

    alone: bool = False
    """Whether all members are ours: then `DESIGN.md` promises more, and no other make is heard."""

    heartbeat: int = 2_000
    heartbeats_missed_max: int = 3
    """Intervals without a heartbeat before an election, or without a quorum before a leader steps down."""

    promise_heartbeats: int | None = None
    """Intervals for which a member that has heard a leader votes for nobody; None: as many as may be missed.

    The lease follows from it, and a leader whose process has ended is replaced no sooner. Fewer of them make
    both shorter, and need no fewer missed ones where only a heartbeat is late.
    """

    vote_interval: tuple[int, int] = (300, 1_000)
    """Between two attempts to be elected: drawn from this range."""

    vote_timeout: int = 2_000
    """How long a candidate waits for votes."""

    sync_before_ack: bool = True
    """Whether an entry counts only when it is on the disk (Java acknowledges what is in the page cache)."""

    uncommitted_max: int = 10_000
    """Entries that wait to be committed; then appends are refused."""

    push_timeout: int = 1_000
    """After so long without an answer entries are pushed again."""

    push_retry: int = 500
    """Pause after a comparison that failed."""

    push_bytes_max: int = 256 << 10
    """Bytes of the entries of one push, unless a single entry is larger."""

    in_flight_max: int = 1_000
    """Entries on their way to one follower."""

    pushes_in_flight_max: int = 1_000
    """Pushes on their way to one follower; what is appended meanwhile goes out together."""

    throttle_bytes: int = 300 << 20
    """A follower that lags by more gets no more than `throttle_rate`."""

    throttle_rate: int = 20 << 20
    """Bytes in a second."""

    commit_interval: int = 1_000
    """Between two messages that only tell a follower what is committed, when there is nothing to push."""

    waiting_pushes_max: int = 1_000
    """Pushes that came before those that precede them."""

    unsynced_max: int = 4_000
    """Pushes whose entries wait for the disk; more are refused, and pushed again."""

    transfer_lag_max: int = 1_000
    """Entries that a member may lack and still be handed the leadership."""

    transfer_wait: int = 1_000
    """How long the next leader waits for what it lacks."""

    transfer_timeout: int = 3_000
    """After so long a transfer whose outcome is unknown is over."""

    preferred_leaders: tuple[str, ...] = ()
    """Members that shall lead when they can (`preferredLeaderId`)."""

    @classmethod
    def for_group_alone(cls, group: str, node_id: str, peers: tuple[str, ...]) -> Self:
        """Settings of a member whose group is ours alone. `DESIGN.md` explains the times."""
        return cls(
            group=group,
            node_id=node_id,
            peers=peers,
            alone=True,
            heartbeat=37,
            heartbeats_missed_max=15,
            promise_heartbeats=5,
            vote_interval=(5, 35),
            vote_timeout=300,
            push_retry=200,
            commit_interval=100,
            pushes_in_flight_max=4,
        )

    @property
    def quorum(self) -> int:
        """More than half of the members."""
        return len(self.peers) // 2 + 1

    @property
    def others(self) -> tuple[str, ...]:
        """All members but this one."""
        return tuple(peer for peer in self.peers if peer != self.node_id)

    @property
    def silence_max(self) -> int:
        """So long a follower waits for its leader, and a leader for a quorum."""
        return self.heartbeat * self.heartbeats_missed_max

    @property
    def promise(self) -> int:
        """So long a member that has heard a leader votes for nobody; never longer than `silence_max`."""
        return self.heartbeat * min(
            self.promise_heartbeats or self.heartbeats_missed_max, self.heartbeats_missed_max
        )

    @property
    def lease(self) -> int:
        """From the sending of a heartbeat that a quorum answered; less than their promise: clocks drift."""
        return self.promise * 9 // 10
