"""Where records go, with numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from brokerset_formats.epochs import history_of
from brokerset_spark.jobs.migrate import MigrateOptions
from brokerset_spark.jobs.migrate.placing import EpochStarts, Moves, Piece, Placer, RecordTooLong
from brokerset_spark.jobs.migrate.plan import (
    LogEnd,
    decide_way,
    find_log_end,
    first_epochs,
    scan_end,
    starts_at_zero,
)
from brokerset_spark.jobs.migrate.tallies import Tally
from brokerset_spark.kernels import Stop


def place(placer: Placer, sizes: list[int], *, start: int = 0, source: int = 0) -> list[int]:
    """Records in a row from `start` on."""
    long = np.array(sizes, np.int32)
    offsets = start + np.concatenate(([0], np.cumsum(long[:-1], dtype=np.int64)))
    return [int(each) for each in placer.place(source, offsets, long, source_head=0)]


@pytest.mark.parametrize(("last", "closed"), [(92, False), (93, True)])
def test_a_record_leaves_room_for_the_blank_one(last: int, closed: bool) -> None:
    """A record of exactly the free bytes less 8 still fits; one more byte closes the file."""
    placer = Placer(0, 200, target_head=0)

    offsets = place(placer, [100, last])

    assert offsets == ([0, 100] if not closed else [0, 200])
    assert [file.closed for file in placer.files] == ([False] if not closed else [True, False])
    assert placer.end == (192 if not closed else 293)


def test_entries_have_their_head_before_the_record() -> None:
    """In a DLedger a record begins 48 behind its entry, and counts 48 more."""
    placer = Placer(1000, 1000, target_head=48)

    offsets = place(placer, [100, 696, 100])

    assert offsets == [1048, 1196, 2048]
    assert [(file.base, file.used, file.count, file.first_index) for file in placer.files] == [
        (1000, 892, 2, 0),
        (2000, 148, 1, 2),
    ]


def test_a_file_is_made_of_pieces_of_several_source_files() -> None:
    """Each piece names where its first record begins and its last one ends."""
    placer = Placer(0, 1000, target_head=0)

    place(placer, [100, 100], start=50, source=3)
    place(placer, [100, 900, 100], start=4096, source=4)

    assert placer.files[0].pieces == [Piece(3, 50, 250, 2), Piece(4, 4096, 4196, 1)]
    assert placer.files[1].pieces == [Piece(4, 4196, 5096, 1)]
    assert placer.files[2].pieces == [Piece(4, 5096, 5196, 1)]
    assert placer.count == 5


def test_a_record_that_fits_no_file_is_named() -> None:
    """Instead of a file without records, and permanently."""
    with pytest.raises(RecordTooLong, match="a record of 93 bytes does not fit into files of 100"):
        place(Placer(0, 100, target_head=0), [50, 93])


def test_moves_know_only_what_was_placed() -> None:
    """Offsets that lie between records, or were left out, have no new place."""
    moves = Moves.wanted(np.array([300, 100, 150, 100], np.int64))

    moves.learn(np.array([100, 200], np.int64), np.array([7, 8], np.int64))
    moves.learn(np.array([300], np.int64), np.array([9], np.int64))

    assert moves.look_up(np.array([100, 150, 300, 400], np.int64)).tolist() == [7, -1, 9, -1]


def test_marks_go_to_the_first_record_behind_them() -> None:
    """An epoch begins with the first record that is left of it; behind the last one at the end."""
    epochs = EpochStarts([0, 150, 500])

    epochs.learn(np.array([100, 200], np.int64), np.array([1000, 1100], np.int64))
    epochs.close(1200)

    assert epochs.found == {0: 1000, 150: 1100, 500: 1200}


@pytest.mark.parametrize(
    ("layout", "options", "copies", "ledger", "closes"),
    [
        ("commitlog", MigrateOptions(to="controller"), True, False, False),
        ("commitlog", MigrateOptions(to="controller", file_size=1024), True, False, False),
        ("commitlog", MigrateOptions(to="controller", file_size=2048), False, False, False),
        ("commitlog", MigrateOptions(to="dledger"), True, False, True),
        ("commitlog", MigrateOptions(to="dledger", rewrite=True), False, True, False),
        ("commitlog", MigrateOptions(to="dledger", drop_topics=("x",)), False, False, True),
        ("dledger", MigrateOptions(to="commitlog"), False, False, False),
        ("both", MigrateOptions(to="dledger"), False, True, False),
    ],
)
def test_files_are_copied_whenever_offsets_stay(
    layout: str, options: MigrateOptions, copies: bool, ledger: bool, closes: bool
) -> None:
    """A rewrite happens only where a record's offset or the choice of records changes."""
    way = decide_way(layout, 1024, options)

    assert (way.copies, way.ledger, way.closes) == (copies, ledger, closes)


def result(path: str, end: int, stop: Stop, records: int, *, closed: bool = False) -> dict[str, object]:
    return {"path": path, "end": end, "stop": int(stop), "records": records, "closed": closed}


def test_the_log_ends_where_a_file_is_open() -> None:
    """Files that were made in advance hold nothing; one with records behind a hole is damage."""
    whole = result("a", 100, Stop.BLANK, 5, closed=True)
    last = result("b", 150, Stop.EMPTY, 2)
    ahead = result("c", 200, Stop.EMPTY, 0)
    torn = result("b", 150, Stop.BAD_CRC, 2)
    behind = result("c", 250, Stop.EMPTY, 3)

    def end(
        *results: dict[str, object], dispatched: int = -1, aborted: bool = False, until: int = 2**63 - 1
    ) -> LogEnd:
        found = scan_end(results)
        return find_log_end(found, until=until, dispatched=dispatched, aborted=aborted, committed=None)

    assert (end(whole, last, ahead).offset, end(whole, last, ahead).clean) == (150, True)
    assert (end(whole, torn).offset, end(whole, torn).clean) == (150, False)
    assert "c goes on behind" in end(whole, torn, behind).problem
    assert "queues point behind it (to 160)" in end(whole, torn, dispatched=160).problem
    assert end(whole, torn, dispatched=160, aborted=True).problem == ""
    assert end(whole, torn, dispatched=160, until=150).problem == ""


def test_the_new_log_begins_at_0_only_if_every_queue_does() -> None:
    """Blank units point to offset 0, which must then lie before the log."""
    dense, cut = Tally(3, 1, 1, 3, 0, 2, 9), Tally(3, 1, 1, 9, 2, 4, 9)
    hole = Tally(3, 1, 1, 5, 0, 3, 9)

    assert starts_at_zero({("a", 0): dense}, {}, ())
    assert not starts_at_zero({("a", 0): dense, ("a", 1): cut}, {}, ())
    assert not starts_at_zero({("a", 0): hole}, {}, ())
    assert not starts_at_zero({("a", 0): dense}, {("b", 0): 5}, ())
    assert starts_at_zero({("a", 0): dense, ("gone", 0): cut}, {}, ("gone",))


def test_epochs_without_records_go_and_the_first_begins_with_the_log() -> None:
    """Of epochs that begin at the same place after a cut the newest stays."""
    known = history_of([(1, 0), (2, 500), (5, 900)])
    moved = {0: 4096, 500: 4096, 900: 4300}

    kept = first_epochs(MigrateOptions(), known, [], moved, 4096, 5000)
    single = first_epochs(MigrateOptions(epochs="single"), known, [], moved, 4096, 5000)
    terms = first_epochs(MigrateOptions(epochs="terms"), None, [(3, 10), (8, 900)], {10: 0, 900: 700}, 0, 800)

    assert [(e.epoch, e.start_offset) for e in kept.entries] == [(2, 4096), (5, 4300)]
    assert [(e.epoch, e.start_offset) for e in single.entries] == [(1, 4096)]
    assert [(e.epoch, e.start_offset) for e in terms.entries] == [(1, 0), (2, 700)]
