"""The command, as people and the operator start it, and the job on Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from brokerset_rig.store_reading import queue_problems, read_store
from brokerset_spark.commands.migrate import migrate as command
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.running import LocalRunner

Unpack = Callable[[str], Path]


def start(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(command, [str(each) for each in arguments])
    return done.exit_code, done.stdout, done.stderr


def test_a_migration_from_the_command_line(java_store: Unpack, tmp_path: Path) -> None:
    """Options arrive, the report goes to its file, and the exit code is 0; again, it is done already."""
    source, target = java_store("dledger/broker-0"), tmp_path / "target"
    arguments = (source, target, "--to", "controller", "--epochs", "terms", "--file-size", "256K",
                 "--identity", "c#b#3", "--report", tmp_path / "report.json", "--workers", "1")  # fmt: skip

    first, _, _ = start(*arguments)
    second, out, _ = start(*arguments, "--json")

    assert (first, second) == (0, 0)
    assert orjson.loads(out)["facts"]["state"] == "already done"
    assert (target / "brokerIdentity").read_text() == "c#b#3"
    assert [path.stat().st_size for path in (target / "commitlog").iterdir()] == [262_144]


def test_a_plan_from_the_command_line(java_store: Unpack, tmp_path: Path) -> None:
    """`--plan` says what would be done, and does nothing."""
    source = java_store("dledger/broker-0")

    code, out, _ = start(source, tmp_path / "target", "--to", "commitlog", "--plan", "--json")

    told = orjson.loads(out)["facts"]
    assert (code, told["state"], told["way"], told["layout"]) == (0, "planned", "rewrite", "dledger")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere", "target", "--to", "dledger"], 3, "is no folder"),
        (["SOURCE", "target", "--to", "dledger", "--from-time", "2026-11-22"], 2, "is no time"),
        (["SOURCE", "target", "--to", "dledger", "--from-offset", "9", "--until-offset", "9"], 2, "nothing"),
        (["SOURCE", "target", "--to", "commitlog", "--file-size", "200"], 2, "does not fit into files"),
        (["SOURCE", "target", "--to", "commitlog", "--from-time", "2030-01-01T00:00:00Z"], 2, "widen"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_an_exit_code(
    java_store: Unpack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    """3: no input; 2: it cannot be done. No target is left behind."""
    monkeypatch.chdir(tmp_path)
    source = str(java_store("dledger/broker-0"))

    found, out, err = start(*(source if each == "SOURCE" else each for each in arguments))

    assert (found, said in out + err) == (code, True), out + err
    assert not (tmp_path / "target").exists()


def test_times_may_be_written_in_two_ways(java_store: Unpack, tmp_path: Path) -> None:
    """ISO 8601 with a zone, or milliseconds."""
    source = java_store("classic/broker-0")
    stored = read_store(source)[1000].record.store_timestamp

    code, out, _ = start(
        source, tmp_path / "t", "--to", "commitlog", "--from-time", stored, "--plan", "--json"
    )
    other, told, _ = start(
        source,
        tmp_path / "t",
        "--to",
        "commitlog",
        "--from-time",
        "2026-11-21T09:04:00+00:00",
        "--plan",
        "--json",
    )

    assert (code, other) == (0, 0)
    assert orjson.loads(out)["facts"]["fromOffset"] > 0
    assert orjson.loads(told)["inputs"]["options"]["from_time_ms"] == 1_795_251_840_000


def test_several_processes_make_the_same_target(java_store: Unpack, tmp_path: Path) -> None:
    """Tasks know nothing of each other, so the order in which they end does not count."""
    source = java_store("classic/broker-0")
    options = MigrateOptions(to="dledger", rewrite=True, file_size=1 << 18)

    for workers in (0, 2):
        migrate(LocalRunner(workers), str(source), str(tmp_path / str(workers)), options)

    def content(target: Path) -> dict[str, bytes]:
        return {
            path.relative_to(target).as_posix(): path.read_bytes()
            for path in target.rglob("*")
            if path.is_file() and path.stat().st_size < 1 << 22
        }

    assert content(tmp_path / "0") == content(tmp_path / "2")
    assert queue_problems(tmp_path / "2") == []
