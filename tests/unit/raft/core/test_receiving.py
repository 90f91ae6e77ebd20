"""The follower's side of a snapshot transfer."""

from __future__ import annotations

from brokerset_raft.configuration import Configuration
from brokerset_raft.messages import SnapshotChunk, SnapshotMeta
from brokerset_raft.receiving import Receiving


def test_pieces_of_two_snapshots_are_never_put_together() -> None:
    """A piece of another snapshot that would follow what is stored is not taken."""
    first = SnapshotMeta(5, 1, Configuration(), 20, 1)
    second = SnapshotMeta(9, 1, Configuration(), 20, 2)
    receiving = Receiving()
    assert receiving.accept(2, SnapshotChunk(1, first, 0, b"0123456789")) is None
    assert receiving.stored(first, 10) == 2

    assert receiving.accept(2, SnapshotChunk(1, second, 10, b"0123456789")) == 0
    assert receiving.take() is None

    assert receiving.accept(2, SnapshotChunk(1, first, 10, b"0123456789")) is None
    assert receiving.installing
