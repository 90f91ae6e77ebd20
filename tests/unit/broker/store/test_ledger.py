"""A DLedger's log on the disk: as Java's, and right after whatever was written, truncated, or cut off."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.ledger import FileLedger
from brokerset_dledger.ledger import LedgerRefused
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, INDEX_UNIT_SIZE, CurrentTerm, LedgerEntry, LedgerRun
from brokerset_protocol.bodies.dledger import DLedgerCode
from brokerset_sim.dledger_cluster import FILE_SIZE, SimLedger

INDEX_BYTES = 16 * INDEX_UNIT_SIZE

Open = Callable[[], FileLedger]


@pytest.fixture
def reopen(tmp_path: Path) -> Open:
    """Opens the log of the test's folder as a start does, whatever state its files are in."""

    def open_ledger() -> FileLedger:
        ledger = FileLedger(
            tmp_path / "dledger-n0",
            data_file_bytes=FILE_SIZE,
            index_file_bytes=INDEX_BYTES,
            record_of_term=lambda: b"term",
        )
        ledger.write_term(ledger.open())
        return ledger

    return open_ledger


def entries_of(ledger: FileLedger | SimLedger) -> list[LedgerEntry]:
    if ledger.end_index < 0:
        return []
    return [ledger.entry(index) for index in range(ledger.begin_index, ledger.end_index + 1)]


def test_entries_are_read_again_after_a_start(reopen: Open) -> None:
    """Whether the log was closed or not."""
    ledger = reopen()
    written = [ledger.append_body(1, b"x" * size) for size in (10, 200, 700, 300, 5)]
    ledger.commit(3)

    assert entries_of(reopen()) == written

    ledger.write_term(CurrentTerm(1, "n0"))
    ledger.close()
    again = reopen()
    assert entries_of(again) == written
    assert again.committed_index == 3


def test_an_entry_that_does_not_fit_begins_the_next_file(reopen: Open, tmp_path: Path) -> None:
    """Behind it: the magic -1, the free bytes, and zeros, as Java leaves them."""
    ledger = reopen()
    ledger.append_body(1, b"x" * 800)
    second = ledger.append_body(1, b"y" * 200)

    assert second.position == FILE_SIZE
    end = ENTRY_HEAD_SIZE + 800
    data = (tmp_path / "dledger-n0" / "data" / f"{0:020d}").read_bytes()
    assert data[end : end + 8] == b"\xff\xff\xff\xff" + (FILE_SIZE - end).to_bytes(4, "big")
    assert not any(data[end + 8 :])


def test_eight_bytes_stay_for_the_mark(reopen: Open) -> None:
    """An entry may come as near to the end of the file as that."""
    fits, over = FILE_SIZE - 8 - ENTRY_HEAD_SIZE, FILE_SIZE - 7 - ENTRY_HEAD_SIZE
    ledger = reopen()
    assert ledger.append_body(1, b"x" * fits).position == 0

    with pytest.raises(LedgerRefused) as refused:
        ledger.append_body(1, b"x" * over)

    assert refused.value.code is DLedgerCode.UNEXPECTED_ARGUMENT


def test_what_is_written_is_completed_first(tmp_path: Path) -> None:
    """A record gets the offset at which it will stand."""

    def patch(record: memoryview, position: int) -> None:
        record[0:8] = (position + ENTRY_HEAD_SIZE).to_bytes(8, "big")

    ledger = FileLedger(tmp_path / "d", data_file_bytes=FILE_SIZE, record_of_term=bytes, patch=patch)
    ledger.open()
    ledger.append_body(1, bytes(30))

    assert ledger.append_body(1, bytes(20)).body[:8] == (30 + 2 * ENTRY_HEAD_SIZE).to_bytes(8, "big")


@pytest.mark.parametrize("seed", range(12))
def test_it_does_what_the_simulated_log_does(reopen: Open, seed: int) -> None:
    """Appends, truncations, commits, retention and starts in any order, compared with the model."""
    source = random.Random(seed)
    ledger, model = reopen(), SimLedger()
    other = SimLedger()
    for step in range(300):
        match source.choice(
            ("body", "body", "body", "append", "run", "truncate", "commit", "start", "elsewhere", "retention")
        ):
            case "body":
                body = source.randbytes(source.choice((1, 40, 300, 900)))
                assert ledger.append_body(step, body) == model.append_body(step, body)
            case "append":
                entry = LedgerEntry(model.end_index + 1, step, model.position_of(70), b"z" * 22)
                model.append(entry)
                ledger.append(entry)
            case "run":
                leader = SimLedger()
                leader.entries = model.entries[-1:]
                for _ in range(source.randint(1, 20)):
                    leader.append_body(step, b"r" * source.randint(0, 90))
                run = leader.run(model.end_index + 1, leader.end_index, 10_000)
                model.append_run(run, run.check())
                ledger.append_run(run, run.check())
            case "truncate" if model.entries:
                entry = source.choice(model.entries[max(0, model.committed_index - model.begin_index) :])
                if source.random() < 0.5:
                    entry = LedgerEntry(entry.index, step, entry.position, b"another")
                before = entry.index - 1
                known = model.entry(entry.index) == entry
                follows = model.begin_index <= before <= model.committed_index
                if known or follows or entry.position % FILE_SIZE == 0:
                    model.truncate(entry)
                    ledger.truncate(entry)
                else:
                    with pytest.raises(LedgerRefused, match="in the middle of a file"):
                        ledger.truncate(entry)
            case "elsewhere" if source.random() < 0.1:
                other.entries = []
                entry = LedgerEntry(
                    source.choice((0, step + 1_000)), step, source.randrange(50) * FILE_SIZE, b"e"
                )
                model.entries, model.committed_index = [entry], -1
                ledger.truncate(entry)
            case "commit":
                index = source.randint(0, max(0, model.end_index + 1))
                if index >= model.begin_index:
                    model.commit(index)
                    ledger.commit(index)
            case "start":
                ledger.write_term(CurrentTerm(step, None))
                ledger.write_checkpoint()
                ledger = reopen()
            case "retention":
                files = {entry.position // FILE_SIZE for entry in model.entries}
                if ledger.delete_first_files(1):
                    model.entries = [e for e in model.entries if e.position // FILE_SIZE > min(files)]
        assert entries_of(ledger) == model.entries, step
        if model.entries:
            low, high = sorted(source.randint(model.begin_index, model.end_index) for _ in range(2))
            bytes_max = source.choice((1, 200, 10_000))
            assert ledger.run(low, high, bytes_max) == model.run(low, high, bytes_max)
            assert ledger.position(low) == model.position(low)
        assert (ledger.end_index, ledger.end_term) == (model.end_index, model.end_term)
        assert ledger.begin_index == model.begin_index
        if model.committed_index >= model.begin_index >= 0:
            assert ledger.committed_index == model.committed_index, step
            last = ledger.entry(ledger.committed_index)
            assert ledger.committed_position == last.position + last.size


@pytest.mark.parametrize("lost", ["index", "unit", "tail"])
def test_what_a_crash_leaves_is_mended(reopen: Open, tmp_path: Path, lost: str) -> None:
    """The index is made again from the entries; half an entry is none."""
    ledger = reopen()
    written = [ledger.append_body(1, b"x" * 100) for _ in range(25)]
    ledger.write_term(CurrentTerm(1, None))
    folder = tmp_path / "dledger-n0"
    match lost:
        case "index":
            shutil.rmtree(folder / "index")
        case "unit":
            ledger._index.files[0].map[20 * INDEX_UNIT_SIZE % INDEX_BYTES :] = bytes(
                INDEX_BYTES - 20 * INDEX_UNIT_SIZE % INDEX_BYTES
            )
        case "tail":
            file = ledger.files.files[-1]
            start = written[-1].position - file.start
            file.map[start + 20 : start + 40] = bytes(20)
            written.pop()

    assert entries_of(reopen()) == written


def test_an_entry_without_its_record_is_not_taken_up(reopen: Open, tmp_path: Path) -> None:
    """A power failure may leave a head whose record never came to the disk; what follows goes with it."""
    ledger = reopen()
    first, torn = ledger.append_body(1, b"whole"), ledger.append_body(1, b"gone")
    ledger.append_body(1, b"whole")
    ledger.files.files[0].map[torn.record_offset : torn.record_offset + 4] = bytes(4)

    again = FileLedger(
        tmp_path / "dledger-n0",
        data_file_bytes=FILE_SIZE,
        index_file_bytes=INDEX_BYTES,
        record_of_term=bytes,
        is_whole=lambda record: record == b"whole",
    )
    again.open()

    assert entries_of(again) == [first]


def test_a_power_failure_may_take_files_of_entries_that_were_not_synced(reopen: Open, tmp_path: Path) -> None:
    """The log ends with what was synced, and goes on there; an entry behind a gap is damage all the same."""
    ledger = reopen()
    synced = [ledger.append_body(1, b"x" * 50) for _ in range(3)]
    end = ledger.write_position
    lost = [ledger.append_body(1, b"y" * (FILE_SIZE // 3)) for _ in range(9)]
    files = ledger.files.files
    assert files[-1].start - end > FILE_SIZE
    last = lost[-1]
    head = files[-1].map[: last.position + last.size - files[-1].start]
    for file in files:
        file.clear(max(0, end - file.start))

    def after_power_failure() -> FileLedger:
        again = FileLedger(
            tmp_path / "dledger-n0",
            data_file_bytes=FILE_SIZE,
            index_file_bytes=INDEX_BYTES,
            record_of_term=lambda: b"term",
        )
        again.open(settle=True)
        return again

    files[-1].map[: len(head)] = head
    with pytest.raises(StoreCorrupt, match="more than a file before it"):
        after_power_failure()
    files[-1].clear(0)
    with pytest.raises(StoreCorrupt, match="more than a file before it"):
        reopen()

    found = after_power_failure()
    assert entries_of(found) == synced
    assert found.append_body(2, b"z").index == synced[-1].index + 1
    assert [file.start for file in found.files.files] == [0]
    assert entries_of(reopen())[:3] == synced


def test_what_stands_behind_a_truncation_is_never_taken_up_again(reopen: Open) -> None:
    """Also where an old entry would follow the new one by position, index and term."""
    ledger = reopen()
    first = ledger.append_body(1, b"a" * 50)
    ledger.commit(first.index)
    old = [ledger.append_body(3, b"b" * 50) for _ in range(3)]
    new = LedgerEntry(old[0].index, 2, old[0].position, b"c" * 50)
    ledger.write_term(CurrentTerm(4, None))

    ledger.truncate(new)

    assert entries_of(reopen()) == [first, new]


def test_a_member_without_its_term_does_not_start(reopen: Open, tmp_path: Path) -> None:
    """It may have voted, and would vote again."""
    ledger = reopen()
    ledger.append_body(1, b"x")

    ledger.write_term(CurrentTerm(1, "n1"))
    for name in ("currterm", "currterm.bak"):
        (tmp_path / "dledger-n0" / name).unlink(missing_ok=True)

    with pytest.raises(StoreCorrupt, match="may have voted"):
        reopen()


@pytest.mark.parametrize("index", [0, 1_000])
def test_an_empty_log_begins_where_the_leader_says(reopen: Open, index: int) -> None:
    """The first truncation that a new member gets puts the leader's first entry into it."""
    ledger = reopen()
    entry = LedgerEntry(index, 7, 3 * FILE_SIZE, b"first")

    ledger.truncate(entry)
    ledger.append(LedgerEntry(index + 1, 7, 3 * FILE_SIZE + entry.size, b"second"))
    ledger.write_term(CurrentTerm(7, None))

    assert entries_of(reopen()) == entries_of(ledger)
    assert [each.body for each in entries_of(ledger)] == [b"first", b"second"]


def test_nothing_uncommitted_is_read(reopen: Open) -> None:
    """Readers see bytes below the committed position only."""
    ledger = reopen()
    first, second = ledger.append_body(1, b"a" * 50), ledger.append_body(1, b"b" * 50)
    ledger.commit(first.index)

    assert bytes(ledger.read(first.record_offset, 50) or b"") == b"a" * 50
    assert ledger.read(second.record_offset, 50) is None


def files_of(folder: Path) -> dict[str, bytes]:
    """The bytes of a log's data and index."""
    return {
        f"{part}/{file.name}": file.read_bytes()
        for part in ("data", "index")
        for file in sorted((folder / part).iterdir())
    }


@pytest.mark.parametrize("bytes_max", [1, 300, 10_000])
def test_a_follower_of_runs_has_the_same_files(tmp_path: Path, bytes_max: int) -> None:
    """Byte for byte as the leader's, over many files of both kinds."""
    leader, follower = (
        FileLedger(
            tmp_path / name,
            data_file_bytes=FILE_SIZE,
            index_file_bytes=INDEX_BYTES,
            record_of_term=lambda: b"term",
        )
        for name in ("leader", "follower")
    )
    leader.open()
    follower.open()
    leader.begin_term(1)
    for number in range(100):
        record = bytes([number]) * (number % 70)
        if number % 3:
            leader.append_body(2, record)
        else:
            leader.append(LedgerEntry(leader.end_index + 1, 2, leader.room(len(record)), record))

    while follower.end_index < leader.end_index:
        run = leader.run(follower.end_index + 1, leader.end_index, bytes_max)
        assert len(run.data) <= max(bytes_max, 200)
        follower.append_run(run, run.check())

    assert entries_of(follower) == entries_of(leader)
    assert files_of(tmp_path / "follower") == files_of(tmp_path / "leader")
    assert (follower.end_term, follower.write_position) == (leader.end_term, leader.write_position)


@pytest.mark.parametrize(
    ("first", "position", "problem"),
    [(4, 3 * 58, "4 does not follow 2"), (3, 3 * 58 + 1, "do not belong"), (3, FILE_SIZE, "do not belong")],
)
def test_a_run_that_does_not_belong_here(reopen: Open, first: int, position: int, problem: str) -> None:
    """It is refused, and nothing changes."""
    ledger = reopen()
    written = [ledger.append_body(1, b"x" * 10) for _ in range(3)]
    data = b"".join(
        LedgerEntry(first + number, 1, position + number * 58, b"y" * 10).encode() for number in range(2)
    )
    run = LedgerRun(first, 2, position, data)

    with pytest.raises(LedgerRefused, match=problem):
        ledger.append_run(run, run.check())

    assert entries_of(reopen()) == written


def test_a_run_that_goes_beyond_the_file(reopen: Open) -> None:
    """A leader with larger files sends what this log cannot have so."""
    ledger = reopen()
    data = b"".join(LedgerEntry(number, 1, number * 58, b"y" * 10).encode() for number in range(20))
    run = LedgerRun(0, 20, 0, data)

    with pytest.raises(LedgerRefused, match="its files have 1024 bytes"):
        ledger.append_run(run, run.check())

    assert ledger.end_index == -1


def test_no_run_where_the_index_is_damaged(reopen: Open) -> None:
    """The leader says so instead of sending what is not an entry."""
    ledger = reopen()
    for _ in range(3):
        ledger.append_body(1, b"x" * 10)
    ledger._index.files[0].map[INDEX_UNIT_SIZE : 2 * INDEX_UNIT_SIZE] = bytes(INDEX_UNIT_SIZE)

    with pytest.raises(LedgerRefused, match="entry 1") as refused:
        ledger.run(1, 2, 10_000)

    assert refused.value.code is DLedgerCode.DISK_ERROR
    with pytest.raises(LedgerRefused):
        ledger.run(0, 3, 10_000)
