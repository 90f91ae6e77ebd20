"""How one raft node behaves: time-outs in ticks, and its limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """How one node behaves; the same on all nodes of a group, but for the id."""

    node_id: int
    election_ticks: int = 6
    """Least ticks without a leader before an election; the time-out is drawn from one to two times this."""

    heartbeat_ticks: int = 1
    in_flight_max: int = 64
    """Most append messages on their way to one follower."""

    append_entries_max: int = 4096
    """Most entries in one append message: empty ones have no bytes."""

    append_bytes_max: int = 1 << 20
    """Most bytes of data in one append message, unless a single entry is larger."""

    uncommitted_bytes_max: int = 16 << 20
    """Most bytes of data that wait to be committed; then proposals are refused."""

    reads_max: int = 4096
    """Most reads that wait to be confirmed."""

    chunk_bytes: int = 1 << 20
    """Bytes of a piece of a snapshot."""

    promote_lag_max: int = 100
    """A learner may vote when it lags by fewer entries than this."""

    committed_bytes_max: int = 4 << 20
    """Most bytes of data of committed entries in one `Ready`, unless a single entry is larger."""

    kept_entries: int = 1000
    """Most entries below a new snapshot that stay in memory, for followers that are a little behind."""

    kept_bytes: int = 4 << 20
    """Most bytes of data of those entries."""
