"""A migration whose tasks run on a real Spark: the same target, and errors that keep their names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner

from brokerset_rig.replica_stores import Log, write_replica
from brokerset_spark.commands.migrate import migrate as command
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.report import EXIT_FAILED, JobFailed
from brokerset_spark.jobs.running import LocalRunner, Result, Row, SparkRunner
from brokerset_spark.jobs.verify import VerifyOptions, verify

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REWRITE = MigrateOptions(to="dledger", rewrite=True, index_slots=64, index_units=256)

TASKS = """
import os, time
from pathlib import Path
from brokerset_spark.jobs.running import Result

def meet(row):
    '''Waits until as many tasks are here at once as the row says; tells how many were.'''
    place = Path(row["place"])
    mine = place / str(row["number"])
    mine.touch()
    deadline = time.monotonic() + 30
    while len(list(place.iterdir())) < row["wanted"] and time.monotonic() < deadline:
        time.sleep(0.01)
    here = len(list(place.iterdir()))
    while row["wanted"] > 1 and here < row["wanted"] and time.monotonic() < deadline:
        here = max(here, len(list(place.iterdir())))
    if row["wanted"] == 1:
        mine.unlink()
    yield Result({"here": here})

def surprise(row):
    raise KeyError("nobody foresaw this")
    yield
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A log of six files."""
    log = Log()
    log.fill(1_400)
    return write_replica(tmp_path / "source", log, confirmed=log.end)


@pytest.fixture
def tasks(spark: SparkSession, tmp_path: Path) -> str:
    """A module of tasks that executors find."""
    path = tmp_path / "tasks_on_spark.py"
    path.write_text(TASKS)
    spark.sparkContext.addPyFile(str(path))
    return "tasks_on_spark"


def content(target: Path) -> dict[str, bytes]:
    """All files of a target."""
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file() and path.stat().st_size < 1 << 26
    }


def record(target: Path) -> object:
    """Sizes and digests of all files, as they stand next to the target."""
    return orjson.loads(target.with_name(f"{target.name}.brokerset-migration.json").read_bytes())["files"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--to", "controller"], id="copied"),
        pytest.param(["--to", "dledger", "--rewrite"], id="rewritten"),
        pytest.param(["--to", "commitlog", "--file-size", "128K"], id="cut-again"),
    ],
)
def test_the_target_is_the_same_as_from_processes(
    spark: SparkSession, source: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """Byte by byte, and so is what the record next to it says of every file."""
    common = [str(source), *arguments, "--index-slots", "64", "--index-units", "256", "--workers", "2"]
    codes = []
    for engine in ("processes", "spark"):
        rest = [*common[:1], str(tmp_path / engine), *common[1:], "--engine", engine]
        codes.append(CliRunner().invoke(command, rest).exit_code)

    assert codes == [0, 0]
    wanted = content(tmp_path / "processes")
    assert len(wanted) > 8
    assert content(tmp_path / "spark") == wanted
    assert record(tmp_path / "spark") == record(tmp_path / "processes")


class Disturbed(SparkRunner):
    """Lets something happen between the scan and what follows."""

    disturb: Callable[[], None] = staticmethod(lambda: None)

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        yield from super().run(task, rows, reducer)
        if task.endswith(":scan"):
            type(self).disturb()


def test_a_task_that_finds_bad_bytes_ends_the_job_by_name(
    spark: SparkSession, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No target, a staging folder with what was done, and exit code 2; the next start goes on there."""
    migrate(LocalRunner(), str(source), str(tmp_path / "smooth"), REWRITE)
    target, victim = tmp_path / "target", sorted((source / "commitlog").iterdir())[3]
    whole, times = victim.read_bytes(), victim.stat()

    def damage() -> None:
        data = bytearray(whole)
        data[4] ^= 0xFF  # the magic of the first record
        victim.write_bytes(data)

    monkeypatch.setattr(Disturbed, "disturb", staticmethod(damage))
    monkeypatch.setattr("brokerset_spark.jobs.running.SparkRunner", Disturbed)
    arguments = [str(source), str(target), "--to", "dledger", "--rewrite", "--index-slots", "64",
                 "--index-units", "256", "--engine", "spark", "--workers", "2"]  # fmt: skip

    failed = CliRunner().invoke(command, arguments)

    assert failed.exit_code == EXIT_FAILED
    assert f"commitlog/{victim.name} has changed since it was scanned: 0 records" in failed.stderr
    assert "Py4J" not in failed.stderr
    assert not target.exists()
    journal = (tmp_path / "target.brokerset-staging" / "journal.jsonl").read_bytes().splitlines()
    done = [orjson.loads(line)["key"] for line in journal]
    assert len([key for key in done if key.startswith("scan:")]) == len(
        list((source / "commitlog").iterdir())
    )

    victim.write_bytes(whole)
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    monkeypatch.undo()
    again = CliRunner().invoke(command, arguments)

    assert again.exit_code == 0, again.stderr
    assert content(target) == content(tmp_path / "smooth")
    kept = orjson.loads(target.with_name("target.brokerset-migration.json").read_bytes())
    assert kept["facts"]["tasksDoneBefore"] >= len(done) - 1
    assert not (tmp_path / "target.brokerset-staging").exists()


def test_errors_of_tasks_keep_their_kind(spark: SparkSession, tasks: str, tmp_path: Path) -> None:
    """As they come from processes; what nobody foresaw is a job that failed, with the name of the error."""
    runner = SparkRunner(spark, 2)
    row = {"source": str(tmp_path), "staging": str(tmp_path / "s"), "rate": 0,
           "files": [{"from": "missing", "to": "store/missing"}]}  # fmt: skip

    with pytest.raises(FileNotFoundError, match="missing"):
        list(runner.run("brokerset_spark.jobs.migrate.cloning:clone", [row]))
    with pytest.raises(JobFailed, match="KeyError: 'nobody foresaw this'"):
        list(runner.run(f"{tasks}:surprise", [{}, {}, {}]))
    with pytest.raises(JobFailed, match="no_such_module"):
        list(runner.run("no_such_module:task", [{}]))


def test_as_many_tasks_at_once_as_asked_for(spark: SparkSession, tasks: str, tmp_path: Path) -> None:
    """Two meet where two may run; where one may, no task sees another, though Spark has room for two."""
    for at_once in (2, 1):
        place = tmp_path / str(at_once)
        place.mkdir()
        rows = [{"place": str(place), "number": number, "wanted": at_once} for number in range(2)]
        found = [each.row["here"] for each in SparkRunner(spark, at_once).run(f"{tasks}:meet", rows)]
        assert found == [at_once] * 2
        shutil.rmtree(place)


def test_results_may_be_left_unread(spark: SparkSession, tasks: str, tmp_path: Path) -> None:
    """Whoever stops asking ends what still runs, and can go on with other work."""
    rows = [{"place": str(tmp_path), "number": number, "wanted": 1} for number in range(40)]
    runner = SparkRunner(spark, 2)
    results = runner.run(f"{tasks}:meet", rows)

    assert next(results).row["here"] >= 1
    results.close()  # type: ignore[attr-defined]

    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert len(list(runner.run(f"{tasks}:meet", rows[:3]))) == 3


def test_a_step_is_one_spark_job(spark: SparkSession, source: Path) -> None:
    """However many rows it has: as many jobs as steps, as Spark's status tracker counts them."""
    steps: list[tuple[str, int]] = []

    class Counting(SparkRunner):
        def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
            steps.extend([(task, len(rows))] if rows else [])
            yield from super().run(task, rows, reducer)

    tracker = spark.sparkContext.statusTracker()
    jobs: set[int] = set()
    add = spark.sparkContext.setJobGroup

    def note(group: str, description: str, interruptOnCancel: bool = False) -> None:
        groups.append(group)
        add(group, description, interruptOnCancel)

    groups: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spark.sparkContext, "setJobGroup", note)
        verify(Counting(spark), str(source), VerifyOptions(range_bytes=1 << 14))
    for group in groups:
        jobs |= set(tracker.getJobIdsForGroup(group))

    assert max(count for _, count in steps) > 20
    assert len(jobs) == len(steps) == len(groups)
