"""`export` as a command: its options reach the job, and its exit codes are those of all jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from brokerset_rig.replica_stores import Log, flip, write_replica
from brokerset_spark.commands.options import Moment
from brokerset_spark.commands.table import main


@pytest.fixture
def log() -> Log:
    """A log of several files."""
    made = Log()
    made.fill(500)
    return made


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", "--workers", "1", *map(str, arguments)])


def told(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_an_export_and_its_additions_by_command(tmp_path: Path, log: Log) -> None:
    """Columns, offsets and the earlier manifest do what the help says."""
    store, target = write_replica(tmp_path / "store", log), tmp_path / "out"
    middle = log.starts[200]

    first = call(store, target, "--columns", "keys,commitLogOffset", "--until-offset", middle, "--json")
    again = call(store, target, "--columns", "keys,commitLogOffset", "--until-offset", middle, "--json")
    second = call(
        store,
        target,
        "--columns",
        "keys,commitLogOffset",
        "--since-manifest",
        target / "_manifest.json",
        "--json",
    )

    assert [result.exit_code for result in (first, again, second)] == [0, 0, 0], first.output
    assert told(first)["counters"]["messages"] == 200
    assert told(again)["facts"]["alreadyThere"]
    assert told(second)["counters"]["messages"] == len(log.starts) - 200
    assert sorted(pq.read_table(target)["commitLogOffset"].to_pylist()) == log.starts


def test_exit_codes_tell_damage_from_failure_from_missing_input(tmp_path: Path, log: Log) -> None:
    """1 with findings and no export, 0 when they are passed over, 2 for what cannot be, 3 without a store."""
    store = write_replica(tmp_path / "store", log)
    flip(store, log.starts[100] + 120)

    assert call(store, tmp_path / "out").exit_code == 1
    assert not (tmp_path / "out").exists()
    assert call(store, tmp_path / "out", "--on-corrupt", "skip").exit_code == 0
    assert call(store, tmp_path / "out", "--topic", "other").exit_code == 2
    assert call(store, tmp_path / "new", "--columns", "nothing").exit_code == 2
    assert call(tmp_path / "none", tmp_path / "new").exit_code == 3
    assert call(store, tmp_path / "new", "--from", "yesterday").exit_code == 2


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1790000000000", 1_790_000_000_000),
        ("2026-11-22", 1_795_305_600_000),
        ("2026-11-22T01:00:00", 1_795_309_200_000),
        ("2026-11-22T01:00:00+01:00", 1_795_305_600_000),
        ("2026-11-22T00:00:00Z", 1_795_305_600_000),
    ],
)
def test_times_are_read_in_utc(text: str, milliseconds: int) -> None:
    """Milliseconds and ISO 8601; what names no zone is UTC."""
    assert Moment().convert(text, None, None) == milliseconds


def test_what_is_no_time_is_refused() -> None:
    """The error says how to write one; a migration's times name their zone."""
    with pytest.raises(click.BadParameter, match="write 2026-11-22"):
        Moment().convert("tomorrow", None, None)

    with pytest.raises(click.BadParameter, match="write 2026-11-22T07:00:00Z"):
        Moment(needs_zone=True).convert("2026-11-22", None, None)
