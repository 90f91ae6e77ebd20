"""Where a log ends: damage is told from an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_formats.checkpoints import StoreCheckpoint, SyncedOffsets
from brokerset_formats.queue_units import QueueUnit
from brokerset_rig.made_stores import Place, damage, message, write_log
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.ending import LogWalk, QueueClaim, StoreState, decide_lost
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import Log, look
from brokerset_spark.stores.reading import Outcome, read_range, split
from brokerset_spark.stores.tail import align, bound_of

STATES: tuple[StoreState, ...] = ("closed", "left", "live")


def made(
    store: Path, count: int = 60, *, size: int = 4096, entries: bool = False
) -> tuple[LocalFolder, list[Place], Log]:
    places = write_log(store, [message(n) for n in range(count)], file_size=size, entries=entries)
    folder = LocalFolder(store)
    return folder, places, look(folder).ledger if entries else look(folder).commit_log


def end_of(place: Place) -> int:
    return place.offset + len(place.data)


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("behind", [1, 2, 20])
def test_whole_records_behind_a_bad_one_prove_damage(
    tmp_path: Path, state: StoreState, behind: int, entries: bool
) -> None:
    """However few they are, whatever state the store is in; the place and their number are told."""
    folder, places, log = made(tmp_path, 40, size=1 << 14, entries=entries)
    bad = places[-1 - behind]
    damage(bad)

    end = LogWalk(folder, log, entries=entries, crc=True).find_end(state)

    shift = 48 if entries else 0
    assert end.offset == end_of(places[-1])
    assert [(hole.begin, hole.end) for hole in end.holes] == [(bad.offset - shift, end_of(bad))]
    assert (end.behind, end.whole) == (behind, bad.offset - shift)


@pytest.mark.parametrize("state", STATES)
def test_a_last_file_whose_first_record_is_zeros_is_damaged(tmp_path: Path, state: StoreState) -> None:
    """It is not one that was made in advance: whole records follow in it."""
    folder, places, log = made(tmp_path)
    in_last = [each for each in places if each.file == places[-1].file]
    damage(in_last[0], 0, bytes(len(in_last[0].data)))

    end = LogWalk(folder, log, crc=True).find_end(state)

    assert end.offset == end_of(places[-1])
    assert [(hole.begin, hole.stop) for hole in end.holes] == [(in_last[0].offset, Stop.BLANK)]
    assert end.behind == len(in_last) - 1


def test_records_of_the_same_millisecond_are_not_old(tmp_path: Path) -> None:
    """A burst of messages with one store time behind a bad record is no left-over of a truncated log."""
    records = [message(n, store_timestamp=1_795_000_000_000) for n in range(20)]
    places = write_log(tmp_path, records, file_size=1 << 14)
    damage(places[10])
    folder = LocalFolder(tmp_path)

    end = LogWalk(folder, look(folder).commit_log, crc=True).find_end("left")

    assert (end.behind, end.offset) == (9, end_of(places[-1]))


@pytest.mark.parametrize("state", STATES)
def test_older_records_behind_the_end_are_none_of_the_log(tmp_path: Path, state: StoreState) -> None:
    """What was truncated and never wiped is older than what was written over its beginning."""
    folder, places, _ = made(tmp_path, 40, size=1 << 14)
    changed = message(20, body=b"newer", store_timestamp=1_796_000_000_000)
    write_log(tmp_path / "other", [message(n) for n in range(20)] + [changed], file_size=1 << 14)
    content = bytearray(places[0].file.read_bytes())
    end = places[20].position + changed.size
    content[:end] = (tmp_path / "other" / "commitlog" / places[0].file.name).read_bytes()[:end]
    places[0].file.write_bytes(bytes(content))

    found = LogWalk(folder, look(folder).commit_log, crc=True).find_end(state)

    assert (found.offset, found.holes) == (end, ())


def test_a_bad_last_record_is_torn_after_a_crash_and_damage_in_a_closed_store(tmp_path: Path) -> None:
    """Nothing is torn in a store that was closed in order."""
    folder, places, log = made(tmp_path, 40, size=1 << 14)
    damage(places[-1])

    for state in ("left", "live"):
        torn = LogWalk(folder, log, crc=True).find_end(state)
        assert (torn.offset, torn.holes) == (places[-1].offset, ())
    closed = LogWalk(folder, log).find_end("closed")
    assert [hole.begin for hole in closed.holes] == [places[-1].offset]


def test_a_record_that_turns_into_zeros_is_damage_in_a_closed_store(tmp_path: Path) -> None:
    """However little of it is left: its size and magic are no middle of a record that was truncated."""
    folder, places, log = made(tmp_path, 40, size=1 << 14)
    damage(places[-1], 12, bytes(len(places[-1].data) - 12))

    end = LogWalk(folder, log).find_end("closed")

    assert [hole.begin for hole in end.holes] == [places[-1].offset]


@pytest.mark.parametrize(
    ("position", "data", "debris"),
    [(0, bytes(50), True), (7, b"\x55" * 100, True), (7, b"", False), (0, b"", False)],
)
def test_bytes_behind_the_end_that_are_no_record_are_told(
    tmp_path: Path, position: int, data: bytes, debris: bool
) -> None:
    """In a closed store, too, where without size and magic they may be what a truncation left; of less than
    those, and zeros behind, nobody can say that a record began there."""
    folder, places, log = made(tmp_path, 40, size=1 << 14)
    last = places[-1]
    damage(last, position, data or bytes(len(last.data) - position))
    if data == b"" and position:
        damage(last, 0, bytes(position))

    ends = [LogWalk(folder, log, crc=True).find_end(state) for state in ("closed", "left", "live")]

    assert [(end.offset, end.holes) for end in ends] == [(last.offset, ())] * 3
    assert [end.debris for end in ends] == [debris, debris, False]


def test_a_file_of_a_crashed_broker_without_any_record_is_damage_unless_it_has_zeros_only(
    tmp_path: Path,
) -> None:
    """Files that are made in advance have zeros; something else in one was a record."""
    folder, places, log = made(tmp_path)
    last = places[-1].file
    before = [each for each in places if each.file != last][-1]
    size = last.stat().st_size

    last.write_bytes(bytes(size))
    assert LogWalk(folder, log, crc=True).find_end("left").holes == ()

    last.write_bytes(bytes(300) + b"\xa7" * (size - 300))
    end = LogWalk(folder, log, crc=True).find_end("left")
    assert [(hole.begin, hole.end) for hole in end.holes] == [
        (end_of(before) // size * size + size, end.offset)
    ]


class Writing(LocalFolder):
    """A broker finishes a record, and writes more, after it was read for the first time."""

    def __init__(self, root: Path, late: Path, whole: bytes) -> None:
        super().__init__(root)
        self._late, self._whole = late, whole

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        count = super().read_into(path, position, target)
        if self._whole and position + count > 3000:
            self._late.write_bytes(self._whole)
            self._whole = b""
        return count


def test_a_record_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    """What was torn when it was read, and is whole with others behind it a moment later, was being
    written."""
    _, places, _ = made(tmp_path, 40, size=1 << 14)
    whole = places[0].file.read_bytes()
    one = places[30]
    places[0].file.write_bytes(whole[: one.position + 60].ljust(len(whole), b"\0"))
    folder = Writing(tmp_path, places[0].file, whole)

    end = LogWalk(folder, look(folder).commit_log, crc=True).find_end("live")

    assert (end.offset, end.holes) == (end_of(places[-1]), ())


def test_a_damaged_size_before_a_bound_is_damage(tmp_path: Path) -> None:
    """A record that claims to go on behind the bound is not the last one if whole ones follow it."""
    folder, places, log = made(tmp_path, 40, size=1 << 14)
    damage(places[20], 0, (1 << 20).to_bytes(4, "big"))
    bound = places[30].offset

    for exact in (False, True):
        (wanted,) = split(log.files, 1 << 20, bound=bound, exact_bound=exact)
        outcome = Outcome(0, 0)
        assert sum(len(chunk.starts) for chunk in read_range(folder, wanted, outcome)) == 20
        assert outcome.stop is Stop.BAD_SIZE
    assert align(folder, log, bound) == bound


def test_bounds_tell_what_is_held_back_and_lost(tmp_path: Path) -> None:
    """Of a store with `abort` that nobody has open, records behind what is confirmed are counted."""
    folder, places, _ = made(tmp_path)
    (tmp_path / "abort").touch()
    checkpoint = StoreCheckpoint(confirm_phy_offset=places[40].offset)
    (tmp_path / "checkpoint").write_bytes(checkpoint.encode())

    assert bound_of(folder, look(folder)).held_back == 20
    places[-1].file.unlink()
    (tmp_path / "checkpoint").write_bytes(StoreCheckpoint(confirm_phy_offset=end_of(places[-1])).encode())
    lost = bound_of(folder, look(folder)).lost

    assert lost is not None
    assert (lost.begin, lost.end, lost.crash) == (int(places[-1].file.name), end_of(places[-1]), False)


def claim(*units: tuple[int, int], messages: int = 1) -> QueueClaim:
    return QueueClaim("queue a/0", tuple(QueueUnit(offset, size, 0) for offset, size in units), messages)


@pytest.mark.parametrize(
    ("claims", "checkpoint", "state", "expected"),
    [
        ([], None, "closed", None),
        ([claim((1000, 50))], None, "closed", (1050, False)),
        ([claim((1000, 50))], None, "left", (1050, True)),  # power was lost before it was on disk
        ([claim((1 << 40, 50))], None, "closed", None),  # one unit that points nowhere is damaged itself
        ([claim((1200, 50), (1250, 50), messages=2)], None, "closed", (1300, False)),
        ([claim((1200, 50), (1210, 50), messages=2)], None, "closed", None),
        ([claim((4096, 50))], None, "left", (4146, False)),  # a file does not vanish
        ([claim((1000, 50))], StoreCheckpoint(physic_msg_timestamp=99_000), "left", (1050, False)),
        ([claim((1000, 50))], StoreCheckpoint(physic_msg_timestamp=52_000), "left", (1050, True)),
        ([], StoreCheckpoint(marks=SyncedOffsets(1100, 1000, 1000)), "left", (1100, False)),
        ([], StoreCheckpoint(marks=SyncedOffsets(1000, 1000, 1000)), "closed", None),
    ],
)
def test_what_a_crash_explains(
    claims: list[QueueClaim],
    checkpoint: StoreCheckpoint | None,
    state: StoreState,
    expected: tuple[int, bool] | None,
) -> None:
    """What was only in memory may be gone after a crash; never what was on disk, a file, or of a closed
    store."""
    found = decide_lost(1000, 4096, claims, checkpoint, 50_000, state)

    assert (None if found is None else (found.end, found.crash)) == expected
