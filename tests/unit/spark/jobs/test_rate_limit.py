"""`--max-bytes-per-second` holds for whole jobs: what the kernel says was read, against a clock of the test.

The clock moves only when a job sleeps. So bytes that a job reads without asking its throttle take no time at
all, and a job that reads any files so is too fast.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerset_rig.replica_stores import Log, write_replica
from brokerset_spark.commands.options import JobOptions
from brokerset_spark.jobs.audit import AuditOptions, audit
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.report import Report
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import VerifyOptions, verify
from brokerset_spark.stores.reading import Throttle

RATE = 500_000
LOG_BYTES = 6_000_000
FILE_BYTES = 1 << 20
SMALL_FILES = 150_000
"""Bytes of settings, marks, journals and of the process's own files; far less than the log."""

Run = Callable[[str, Path, int], Report]


class ReadingClock:
    """A clock that only sleep moves, and what was read when it began and after each sleep."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.began, self.own = self.now, 0
        self.first = self._look_up()
        self.ahead = 0.0
        """Most bytes that were read before their time had come."""

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    def look(self) -> None:
        """Compare what was read with the time that went by."""
        self.ahead = max(self.ahead, self.read - (self.now - self.began) * RATE)

    @property
    def read(self) -> int:
        return self._look_up() - self.first

    def _look_up(self) -> int:
        """All that this process ever read from files, copies inside the kernel too (`proc(5)`), but this."""
        text = Path("/proc/self/io").read_bytes()
        found = int(next(line.partition(b":")[2] for line in text.splitlines() if line.startswith(b"rchar")))
        before, self.own = self.own, self.own + len(text)
        return found - before


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed in order, with queues and index."""
    folder = tmp_path_factory.mktemp("rate")
    log = Log(file_size=FILE_BYTES)
    while log.end < LOG_BYTES:
        log.fill(500, size=2_000)
    plain = write_replica(folder / "plain", log, confirmed=log.end)
    options = MigrateOptions(
        to="commitlog", rewrite=True, queue_file_size=20 * 1_000, index_slots=256, index_units=1_024
    )
    migrate(LocalRunner(), str(plain), str(folder / "store"), options)
    return folder / "store"


def run_migrate(**given: object) -> Run:
    def run(store: str, scratch: Path, rate: int) -> Report:
        options = MigrateOptions(**{"index_slots": 256, "index_units": 1_024, **given})  # type: ignore[arg-type]
        return migrate(LocalRunner(), store, str(scratch / "target"), options, rate=rate)

    return run


def run_verify(store: str, scratch: Path, rate: int) -> Report:
    return verify(LocalRunner(), store, VerifyOptions(rate=rate, range_bytes=1 << 20))


def run_audit(store: str, scratch: Path, rate: int) -> Report:
    return audit(LocalRunner(), [store], AuditOptions(rate=rate))


@pytest.mark.parametrize(
    ("run", "passes", "at_once"),
    [
        pytest.param(run_migrate(to="controller"), 2, 0, id="migrate-copied"),
        pytest.param(run_migrate(to="dledger", rewrite=True), 3, 0, id="migrate-rewritten"),
        pytest.param(run_migrate(to="commitlog", queue_file_size=40_000), 3, 0, id="migrate-queues-rebuilt"),
        pytest.param(run_verify, 1, 2 * FILE_BYTES, id="verify"),
        pytest.param(run_audit, 1, 2 * FILE_BYTES, id="audit"),
    ],
)
def test_a_job_reads_no_faster_than_it_may(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, passes: int, at_once: int
) -> None:
    """Whenever it has slept, no more was read than the rate allows; and it is no slower than it must be.

    Verify and audit may read the newest file of a log twice at once: to find where the log ends, and whether
    anything newer lies behind that.
    """
    run(str(store), tmp_path / "first", 0)  # reads the modules that it needs
    clock = ReadingClock()
    monkeypatch.setattr(
        Throttle.__init__, "__kwdefaults__", {"clock": lambda: clock.now, "sleep": clock.sleep}
    )

    run(str(store), tmp_path / "second", RATE)
    clock.look()

    allowed = (clock.now - clock.began) * RATE
    assert clock.read >= passes * LOG_BYTES, "the log is read so many times, and all of it counts"
    assert clock.ahead <= SMALL_FILES + at_once
    assert allowed <= clock.read + SMALL_FILES


def test_the_rate_is_that_of_all_workers_together() -> None:
    """Each of the tasks that run at once gets its share, and together they have the whole."""
    shared = {"engine": "processes", "master": None, "report": None, "findings": None, "summary": None}
    limited = JobOptions(workers=4, max_bytes_per_second=1_000_003, as_json=False, **shared)  # type: ignore[arg-type]
    unlimited = JobOptions(workers=4, max_bytes_per_second=0, as_json=False, **shared)  # type: ignore[arg-type]

    assert limited.rate == 250_000
    assert unlimited.rate == 0


def test_without_workers_spark_has_the_cores_of_the_cluster() -> None:
    """Unless there is a rate, which is divided among as many tasks as run at once."""
    shared: dict[str, Any] = {
        "engine": "spark", "master": None, "report": None, "findings": None, "summary": None,
        "as_json": False,
    }  # fmt: skip

    def at_once(**given: Any) -> int:
        return JobOptions(workers=4, **given, **shared).tasks_at_once

    assert at_once(all_cores=True, max_bytes_per_second=0) == 0
    assert at_once(all_cores=True, max_bytes_per_second=100) == 4
    assert at_once(all_cores=False, max_bytes_per_second=0) == 4
