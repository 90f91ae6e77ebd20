"""Which bytes go next to a slave."""

from __future__ import annotations

from brokerset_broker.member.ha.transfer import Chunk, first_offset, handshake_epochs, next_chunk
from brokerset_formats.epochs import EpochHistory, history_of

HISTORY = history_of([(1, 0), (3, 150), (4, 290)])


def test_a_chunk_ends_with_the_epoch() -> None:
    """A chunk never crosses an epoch, and carries the label of its own."""
    assert next_chunk(HISTORY, 100, 300, 1_000, 500) == Chunk(100, 50, 1, 0)
    assert next_chunk(HISTORY, 150, 300, 1_000, 500) == Chunk(150, 140, 3, 150)


def test_a_chunk_ends_with_the_file() -> None:
    """A chunk never crosses a file of the log."""
    assert next_chunk(HISTORY, 290, 500, 100, 500) == Chunk(290, 10, 4, 290)


def test_a_chunk_has_at_most_the_size() -> None:
    """A chunk is no bigger than asked for, or than the log has."""
    assert next_chunk(HISTORY, 0, 300, 1_000, 20) == Chunk(0, 20, 1, 0)
    assert next_chunk(HISTORY, 295, 300, 1_000, 20) == Chunk(295, 5, 4, 290)


def test_a_heartbeat_names_the_next_byte() -> None:
    """At the end of the log the size is 0, the epoch the current one."""
    assert next_chunk(HISTORY, 300, 300, 1_000, 20) == Chunk(300, 0, 4, 290)


def test_without_epochs_nothing_can_be_sent() -> None:
    """A log without any epoch has no label; what lies before the first one has the first one's."""
    assert next_chunk(EpochHistory(), 0, 10, 100, 10) is None
    assert next_chunk(history_of([(2, 50)]), 0, 90, 100, 70) == Chunk(0, 50, 2, 50)


def test_where_sending_begins() -> None:
    """At the first acknowledgement; for an empty log at the first file, or the last if it wants that."""
    assert first_offset(70, 0, 300, 100, last_file=True) == 70
    assert first_offset(0, 100, 350, 100, last_file=False) == 100
    assert first_offset(0, 100, 350, 100, last_file=True) == 300


def test_a_handshake_carries_the_newest_epochs() -> None:
    """A Java slave takes 1,000 epochs, and the newest are those that decide."""
    found = handshake_epochs(history_of((n, n * 10) for n in range(1, 1_500)))

    assert len(found) == 1_000
    assert found[-1] == (1_499, 14_990)
