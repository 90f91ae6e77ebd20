"""The log in memory: bounds, terms, cuts, compaction, configurations."""

from __future__ import annotations

import pytest

from brokerset_raft.configuration import Configuration
from brokerset_raft.log import RaftLog
from brokerset_raft.messages import Entry, EntryKind, SnapshotMeta
from brokerset_sim.core_cluster import member

GROUP = Configuration((member(1), member(2)))
LARGER = Configuration((member(1), member(2), member(3)))


def entry(index: int, term: int, data: bytes = b"x") -> Entry:
    return Entry(index, term, EntryKind.DATA, data)


def change(index: int, term: int, configuration: Configuration) -> Entry:
    return Entry(index, term, EntryKind.CONFIGURATION, configuration.encode())


def meta(index: int, term: int) -> SnapshotMeta:
    return SnapshotMeta(index, term, GROUP, 0, 0)


def test_empty_log_starts_before_the_first_entry() -> None:
    """Nothing is there but index 0 of term 0."""
    log = RaftLog(None, [])

    assert (log.first_index, log.last_index, log.last_term) == (1, 0, 0)
    assert (log.term(0), log.term(1)) == (0, None)


def test_entries_that_the_snapshot_covers_are_dropped() -> None:
    """A crash may leave entries on the disk that the snapshot has."""
    log = RaftLog(meta(2, 1), [entry(1, 1), entry(2, 1), entry(3, 2)])

    assert (log.first_index, log.last_index, log.term(2), log.term(1)) == (3, 3, 1, None)


@pytest.mark.parametrize("entries", [[entry(4, 1)], [entry(3, 1), entry(5, 1)], [entry(3, 2), entry(4, 1)]])
def test_gap_or_falling_term_is_refused(entries: list[Entry]) -> None:
    """A log with a hole must not be taken for one."""
    with pytest.raises(ValueError, match="entr"):
        RaftLog(meta(2, 1), entries)


def test_slice_holds_at_least_one_entry_and_no_more_bytes_than_allowed() -> None:
    """An entry that is larger than a message may be still travels, alone."""
    log = RaftLog(None, [entry(1, 1, b"abcd"), entry(2, 1, b"ef"), entry(3, 1, b"gh")])

    assert [e.index for e in log.slice(1, 3, 3)] == [1]
    assert [e.index for e in log.slice(1, 3, 6)] == [1, 2]
    assert [e.index for e in log.slice(2, 3, 100)] == [2, 3]
    assert log.slice(4, 3, 100) == ()


def test_conflict_names_the_first_missing_or_other_entry() -> None:
    """What the log has already is never cut by an old message."""
    log = RaftLog(None, [entry(1, 1), entry(2, 1), entry(3, 2)])

    assert log.conflict([entry(1, 1), entry(2, 1)]) is None
    assert log.conflict([entry(2, 1), entry(3, 3)]) == 3
    assert log.conflict([entry(3, 2), entry(4, 2)]) == 4


def test_agreement_skips_whole_terms() -> None:
    """One refusal is enough for each term that differs."""
    log = RaftLog(None, [entry(1, 1), entry(2, 3), entry(3, 3), entry(4, 3)])

    assert log.agreement(4, 2) == (1, 1)
    assert log.agreement(9, 3) == (4, 3)
    assert log.agreement(3, 0) == (0, 0)


def test_cut_takes_the_configuration_back() -> None:
    """A change that is cut off was never in force."""
    log = RaftLog(None, [entry(1, 1), change(2, 1, LARGER)])
    assert log.configuration_at(2, GROUP) == LARGER

    log.truncate(2)

    assert log.configuration_at(1, GROUP) == GROUP
    assert log.configuration_index == 0


def test_compaction_keeps_terms_and_configuration() -> None:
    """What the snapshot covers is gone, what follows is as it was."""
    log = RaftLog(None, [entry(1, 1), change(2, 1, LARGER), entry(3, 2)])

    log.compact(SnapshotMeta(2, 1, LARGER, 0, 0))
    log.compact(SnapshotMeta(1, 1, GROUP, 0, 0))

    assert (log.first_index, log.term(2), log.term(3), log.last_term) == (3, 1, 2, 2)
    assert log.configuration_at(3, GROUP) == LARGER
    assert log.snapshot == SnapshotMeta(2, 1, LARGER, 0, 0)


def test_compaction_can_keep_a_tail() -> None:
    """A follower that lags by less than the tail needs no snapshot."""
    log = RaftLog(None, [entry(1, 1), entry(2, 1), entry(3, 2), entry(4, 2)])

    log.compact(meta(3, 2), keep_entries=2, keep_bytes=100)

    assert (log.first_index, log.last_index, log.term(1), log.term(2)) == (2, 4, 1, 1)
    log.compact(meta(4, 2), keep_entries=2, keep_bytes=1)
    assert log.first_index == 4


def test_foreign_snapshot_replaces_everything() -> None:
    """The log of a node that gets a snapshot is worth nothing."""
    log = RaftLog(None, [entry(1, 1), change(2, 1, LARGER)])

    log.replace(meta(9, 4))

    assert (log.first_index, log.last_index, log.last_term) == (10, 9, 4)
    assert log.configuration_at(9, LARGER) == GROUP
