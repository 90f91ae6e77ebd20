"""Ranges of logs: every record exactly once, wherever a log is cut and whatever is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from brokerset_rig.made_stores import STORES, Place, damage, expected, message, unpack_fixture, write_log
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.ending import LogWalk
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import Log, look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Outcome, Range, Throttle, read_range, split
from brokerset_spark.stores.tail import bound_of


def log_of(store: Path, entries: bool = False) -> Log:
    facts = look(open_folder(str(store)))
    return facts.ledger if entries else facts.commit_log


def read(folder: LocalFolder, wanted: Range, **options: object) -> tuple[list[int], Outcome]:
    outcome = Outcome(-1, -1)
    offsets: list[int] = []
    for chunk in read_range(folder, wanted, outcome, **options):  # type: ignore[arg-type]
        offsets += (chunk.starts + chunk.base).tolist()
        for start, size in zip(chunk.starts.tolist(), chunk.sizes.tolist(), strict=True):
            assert int.from_bytes(chunk.data[start : start + 4].tobytes(), "big") == size
    return offsets, outcome


@pytest.mark.long
@pytest.mark.parametrize("entries", [False, True])
def test_every_cut(tmp_path: Path, entries: bool) -> None:
    """Two ranges that meet at any byte have every record of the file once, and meet at a record."""
    places = write_log(tmp_path, [message(n) for n in range(40)], file_size=1 << 14, entries=entries)
    log, folder = log_of(tmp_path, entries), LocalFolder(tmp_path)
    end, file = LogWalk(folder, log, entries=entries).measure().offset, log.files[0]

    for at in range(1, end):
        first = Range(file.path, file.base, file.size, 0, at, entries, end)
        second = Range(file.path, file.base, file.size, at, end, entries, end)
        offsets, before = read(folder, first)
        rest, after = read(folder, second)

        assert offsets + rest == [each.offset for each in places], at
        assert before.end == after.begin
        assert (before.stop, after.stop) == (Stop.RANGE_END, Stop.RANGE_END)
        assert after.found == bool(rest)


@pytest.mark.parametrize("entries", [False, True])
def test_small_pieces(tmp_path: Path, entries: bool) -> None:
    """Records that are longer than what is read at once are read whole, over all files of a log."""
    records = [message(n, body=b"x" * (n * 37 % 900)) for n in range(60)]
    places = write_log(tmp_path, records, entries=entries)
    log, folder = log_of(tmp_path, entries), LocalFolder(tmp_path)
    assert len(log.files) > 5

    for piece in (64, 100, 333, 5000):
        found: list[int] = []
        for wanted in split(
            log.files, 700, entries=entries, bound=LogWalk(folder, log, entries=entries).measure().offset
        ):
            offsets, _ = read(folder, wanted, piece=piece, crc=True)
            found += offsets
        assert found == [each.offset for each in places], piece


def test_record_longer_than_the_search_window(tmp_path: Path) -> None:
    """A range that begins before a record of a megabyte finds it, though no search window holds it."""
    records = [message(n, body=bytes(range(256)) * 4 * (1024 if n == 3 else 1)) for n in range(6)]
    places = write_log(tmp_path, records, file_size=2 << 20)
    folder, file = LocalFolder(tmp_path), log_of(tmp_path).files[0]
    end = LogWalk(folder, log_of(tmp_path)).measure().offset

    for at in (places[2].offset + 1, places[3].offset, places[3].offset + 1):
        offsets, outcome = read(folder, Range(file.path, 0, file.size, at, end, bound=end))

        assert offsets == [each.offset for each in places if each.offset >= at]
        assert outcome.begin == offsets[0]


def test_range_inside_one_record(tmp_path: Path) -> None:
    """A range in which no record begins says so, and where the next one begins."""
    places = write_log(tmp_path, [message(n, body=b"x" * 3000) for n in range(3)], file_size=1 << 14)
    folder, file = LocalFolder(tmp_path), log_of(tmp_path).files[0]
    inside = Range(file.path, 0, file.size, places[1].offset + 100, places[1].offset + 200)

    offsets, outcome = read(folder, inside)

    assert (offsets, outcome.found) == ([], False)
    assert outcome.begin == outcome.end == places[2].offset


def damaged_log(tmp_path: Path, *numbers: int) -> tuple[list[Place], Log, LocalFolder]:
    places = write_log(tmp_path, [message(n) for n in range(60)], file_size=1 << 14)
    for number in numbers:
        damage(places[number])
    return places, log_of(tmp_path), LocalFolder(tmp_path)


@pytest.mark.parametrize("step", [1, 97, 500, 1 << 14])
def test_damage_is_named_once(tmp_path: Path, step: int) -> None:
    """However a log is cut, damaged records are named, and all others are read once."""
    places, log, folder = damaged_log(tmp_path, 12, 13, 30)
    end = places[-1].offset + len(places[-1].data)
    found: list[int] = []
    skipped: list[tuple[int, int, Stop]] = []
    last = 0
    for wanted in split(log.files, max(step, 50), bound=end):
        offsets, outcome = read(folder, wanted, resync=True)
        found += offsets
        skipped += outcome.skipped
        assert outcome.begin == last
        last = outcome.end

    bad = {12, 13, 30}
    assert found == [each.offset for number, each in enumerate(places) if number not in bad]
    assert skipped == [
        (places[12].offset, places[14].offset, Stop.BAD_MAGIC),
        (places[30].offset, places[31].offset, Stop.BAD_MAGIC),
    ]


@pytest.mark.parametrize("step", [50, 500])
def test_damage_stops(tmp_path: Path, step: int) -> None:
    """Without passing over, exactly the ranges that own damage stop at it."""
    places, log, folder = damaged_log(tmp_path, 30)

    stops = []
    for wanted in split(log.files, step, bound=places[-1].offset + len(places[-1].data)):
        _, outcome = read(folder, wanted)
        if outcome.stop is not Stop.RANGE_END:
            stops.append((outcome.end, outcome.stop))

    assert stops == [(places[30].offset, Stop.BAD_MAGIC)]


def test_wrong_crc(tmp_path: Path) -> None:
    """A changed body is seen with `crc`, and only then."""
    places = write_log(tmp_path, [message(n, body=b"hello") for n in range(9)], file_size=4096)
    damage(places[4], places[4].data.index(b"hello"), b"j")
    folder, file = LocalFolder(tmp_path), log_of(tmp_path).files[0]
    wanted = Range(file.path, 0, file.size, 0, places[-1].offset)

    assert read(folder, wanted)[1].stop is Stop.RANGE_END
    _, outcome = read(folder, wanted, crc=True)
    assert (outcome.end, outcome.stop) == (places[4].offset, Stop.BAD_CRC)


def test_hole_of_zeros(tmp_path: Path) -> None:
    """Zeros inside a log are damage, zeros behind it are its end."""
    places = write_log(tmp_path, [message(n) for n in range(60)], file_size=1 << 14)
    damage(places[20], 0, bytes(len(places[20].data)))
    folder, file = LocalFolder(tmp_path), log_of(tmp_path).files[0]
    whole = Range(file.path, 0, file.size, 0, file.size)

    offsets, outcome = read(folder, whole, resync=True)

    assert len(offsets) == 59
    assert outcome.skipped == [(places[20].offset, places[21].offset, Stop.EMPTY)]
    assert (outcome.stop, outcome.end) == (Stop.EMPTY, places[-1].offset + len(places[-1].data))


def test_false_blank(tmp_path: Path) -> None:
    """A blank record that claims the rest of a file in which records follow is damage."""
    places, log, folder = damaged_log(tmp_path)
    damage(places[20], 0, bytes.fromhex("00000100cbd43194"))
    end = places[-1].offset + len(places[-1].data)

    _, outcome = read(folder, split(log.files, 3000, bound=end)[0])

    assert (outcome.end, outcome.stop) == (places[20].offset, Stop.BAD_SIZE)


def test_stale_records_behind_a_blank(tmp_path: Path) -> None:
    """What lies behind the blank record of a file is read by nobody, though it looks like records."""
    store = tmp_path / "store"
    places = write_log(store, [message(n) for n in range(60)], file_size=1 << 14)
    end = places[20].position
    with places[0].file.open("r+b") as file:
        file.seek(end)
        file.write(((1 << 14) - end).to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    (store / "commitlog" / f"{1 << 14:020d}").write_bytes(bytes(1 << 14))
    log, folder = log_of(store), LocalFolder(store)

    found: list[int] = []
    for wanted in split(log.files[:1], 400):
        found += read(folder, wanted)[0]

    assert found == [each.offset for each in places[:20]]
    assert LogWalk(folder, log).measure().offset == 1 << 14


def test_file_shorter_than_its_name_says(tmp_path: Path) -> None:
    """A file that was cut after it was listed ends its range where its bytes end, and nothing dies of it."""
    places, log, folder = damaged_log(tmp_path)
    os.truncate(places[0].file, places[10].position + 20)
    offsets, outcome = read(folder, split(log.files, 1 << 14)[0], piece=1024)
    assert offsets == [each.offset for each in places[:10]]
    assert (outcome.end, outcome.stop) == (places[10].offset, Stop.BAD_SIZE)

    os.truncate(places[0].file, places[9].position)
    offsets, outcome = read(folder, split(log.files, 1 << 14)[0], piece=1024)
    assert offsets == [each.offset for each in places[:9]]
    assert (outcome.end, outcome.stop) == (places[9].offset, Stop.EMPTY)


def test_bound_inside_a_record(tmp_path: Path) -> None:
    """Nothing is read of a record that goes on behind the bound."""
    places, log, folder = damaged_log(tmp_path)

    for cut in (1, 8, 50, len(places[10].data) - 1):
        offsets, outcome = read(folder, split(log.files, 1 << 14, bound=places[10].offset + cut)[0])

        assert offsets == [each.offset for each in places[:10]]
        assert (outcome.end, outcome.stop) == (places[10].offset, Stop.SHORT)


@pytest.mark.parametrize("size", [2**31 - 1, 200 << 20])
def test_endless_record(tmp_path: Path, size: int) -> None:
    """A size that no record has is damage, and does not fill the memory."""
    places, log, folder = damaged_log(tmp_path)
    damage(places[10], 0, size.to_bytes(4, "big"))
    with places[0].file.open("r+b") as file:
        file.truncate(size + (1 << 20))
    wanted = Range(log.files[0].path, 0, size + (1 << 20), 0, size + (1 << 20))

    _, outcome = read(folder, wanted, piece=1 << 12)

    assert (outcome.end, outcome.stop) == (places[10].offset, Stop.BAD_SIZE)


@pytest.mark.parametrize(("archive", "broker"), STORES)
def test_stores_of_java(tmp_path: Path, archive: str, broker: str) -> None:
    """What the Java broker gave out is found in its store, at the same offsets and sizes, cut anywhere."""
    root = unpack_fixture(tmp_path, archive)
    folder = LocalFolder(root / broker / "store")
    facts = look(folder)
    bound = bound_of(folder, facts, mode="end").offset
    given = expected(root)

    for size in (100_000, 1 << 20):
        found: dict[int, int] = {}
        for log, entries in ((facts.commit_log, False), (facts.ledger, True)):
            for wanted in split(log.files, size, entries=entries, bound=bound):
                outcome = Outcome(0, 0)
                for chunk in read_range(folder, wanted, outcome, crc=True):
                    pairs = zip((chunk.starts + chunk.base).tolist(), chunk.sizes.tolist(), strict=True)
                    for offset, record_size in pairs:
                        assert offset not in found
                        found[offset] = record_size
                assert outcome.stop in (Stop.RANGE_END, Stop.BLANK)

        assert {offset: found.get(offset) for offset in given} == {
            offset: line["storeSize"] for offset, line in given.items()
        }
        behind = max(given)
        if archive != "killed":  # which was given out before the broker was killed
            assert all(offset > behind or offset in given for offset in found)


def test_throttle() -> None:
    """Reading waits until what was read is within the rate, and unused time is saved up for one second
    only."""
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(4):
        throttle.took(1000)
    assert slept == [1.0, 1.0, 1.0, 1.0]

    now[0] += 60
    throttle.took(1000)
    assert len(slept) == 4
    throttle.took(500)
    assert slept[4:] == [0.5]


def test_dropped_cache(tmp_path: Path) -> None:
    """With `drop_cache` every byte that was read is given back to the kernel, in whole pages."""
    places, log, folder = damaged_log(tmp_path)
    given_back: list[tuple[int, int]] = []

    class Watched(LocalFolder):
        def forget(self, path: str, position: int, size: int) -> None:
            super().forget(path, position, size)
            given_back.append((position, position + size))

    end = places[-1].offset + len(places[-1].data)
    list(
        read_range(
            Watched(tmp_path),
            split(log.files, 1 << 14, bound=end)[0],
            Outcome(0, 0),
            piece=1000,
            drop_cache=True,
        )
    )

    covered = np.zeros(end, bool)
    for begin, until in given_back:
        covered[begin:until] = True
    assert covered.all()
    assert folder is not None
