"""How far `verify` reads a store, and who says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig.made_stores import Place, damage, locked_elsewhere, message, write_log
from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import verify
from brokerset_spark.jobs.verify.options import VerifyOptions
from brokerset_spark.jobs.verify.plan import find_target
from brokerset_spark.stores.folder import LocalFolder


class GroupNews(LocalFolder):
    """A store whose broker tells how far it is confirmed, as over the stream."""

    confirmed = 0

    def confirmed_offset(self) -> int:
        return self.confirmed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[GroupNews, list[Place]]]:
    places = write_log(tmp_path / "store", [message(n) for n in range(60)])
    folder = GroupNews(tmp_path / "store")
    yield folder, places
    folder.close()
    shutil.rmtree(tmp_path / "store")


@pytest.mark.parametrize("aborted", [False, True])
def test_what_a_broker_confirms_is_the_bound_whether_or_not_it_left_a_mark_that_it_runs(
    store: tuple[GroupNews, list[Place]], aborted: bool
) -> None:
    """Its file `abort` may come or go while the files are listed."""
    folder, places = store
    folder.confirmed = places[30].offset
    if aborted:
        (folder.root / "abort").touch()

    target = find_target(folder, VerifyOptions())

    assert target.live
    assert (target.ending.whole, target.ending.claimed) == (places[30].offset, places[30].offset)
    assert target.witnesses == ()


def test_a_bound_that_is_given_counts_more(store: tuple[GroupNews, list[Place]]) -> None:
    folder, places = store
    folder.confirmed = places[30].offset

    target = find_target(folder, VerifyOptions(bound=places[10].offset))

    assert target.ending.claimed == places[10].offset


def test_nothing_is_read_behind_the_last_file(store: tuple[GroupNews, list[Place]]) -> None:
    """The files were listed before the broker was asked, and it has gone on."""
    folder, _ = store
    folder.confirmed = 10**9

    assert find_target(folder, VerifyOptions()).ending.claimed == 4096 * 3


def test_zeros_right_before_the_bound_are_damage_if_a_whole_record_proves_the_bound(tmp_path: Path) -> None:
    """Nobody is writing there: the record that may be being written is the one behind the bound."""
    places = write_log(tmp_path, [message(n) for n in range(40)], file_size=1 << 14)
    (tmp_path / "abort").touch()
    (tmp_path / "lock").touch()
    lost = places[-2]
    damage(lost, 0, bytes(len(lost.data)))
    with locked_elsewhere(tmp_path / "lock"):
        report = verify(LocalRunner(), str(tmp_path))

    assert report.facts["live"]
    errors = [each for each in report.findings if each.level is Level.ERROR]
    assert [(each.code, each.offset, each.end) for each in errors] == [
        ("chain-gap", lost.offset, places[-1].offset)
    ]


def test_zeros_right_before_what_a_broker_confirms_may_be_being_written(
    store: tuple[GroupNews, list[Place]],
) -> None:
    """What is confirmed may end inside a record, so only a bound that is one's end or beginning is exact."""
    folder, places = store
    folder.confirmed = places[30].offset

    assert not find_target(folder, VerifyOptions()).exact


def test_nobody_is_kept_from_opening_a_store_that_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that starts at any moment gets its lock: who holds it is asked, and it is never taken."""
    write_log(tmp_path, [message(n) for n in range(10)])
    (tmp_path / "abort").touch()
    (tmp_path / "lock").touch()
    monkeypatch.setattr("fcntl.lockf", lambda *_: pytest.fail("the lock was taken"))

    assert not find_target(LocalFolder(tmp_path), VerifyOptions()).live


def test_a_long_log_has_long_ranges(
    store: tuple[GroupNews, list[Place]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to whole files: the driver keeps a range for each task, and starts each."""
    folder, places = store
    folder.confirmed = places[-1].offset
    options = VerifyOptions(range_bytes=64)
    many = len(find_target(folder, options).scan_rows([]))

    monkeypatch.setattr("brokerset_spark.jobs.verify.plan.RANGES_MAX", 8)
    rows = find_target(folder, options).scan_rows([])

    assert many > 4 * len(rows)
    assert len(rows) <= 8 + len({row["path"] for row in rows})
    assert rows.bytes == sum(row["end"] - row["start"] for row in rows) == folder.confirmed
