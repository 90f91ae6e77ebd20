"""Jobs on a Spark whose executors are processes of their own: `python -m brokerset_rig.spark_steps CASE:FOLDER …`.

All cases run in one session, and each prints a line of JSON.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from brokerset_spark.jobs.audit.job import AuditOptions, audit
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.report import Report
from brokerset_spark.jobs.running import LocalRunner, Result, Row, Runner, SparkRunner
from brokerset_spark.jobs.session import open_session
from brokerset_spark.jobs.verify import VerifyOptions, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS: Final = "local-cluster[2,1,1024]"
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


class Watched(SparkRunner):
    """Counts steps and their rows; with `kill`, an executor is killed in the middle of each large step."""

    def __init__(self, spark: SparkSession, *, kill: bool = False) -> None:
        super().__init__(spark)
        self.steps: list[int] = []
        self.killed: list[int] = []
        self._kill, self._java = kill, java_of(spark)

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        """The same results."""
        self.steps += [len(rows)] if rows else []
        for number, result in enumerate(super().run(task, rows, reducer)):
            if self._kill and number == 0 and len(rows) > 8:
                victim = executors_of(self._java)[0]
                os.kill(victim, signal.SIGKILL)
                self.killed.append(victim)
            yield result


def java_of(spark: SparkSession) -> int:
    """Process of the driver's Java."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def executors_of(java: int) -> list[int]:
    """Processes of executors, oldest first; waits until one is there."""
    while not (found := [each for each in children_of(java) if _EXECUTOR in _read(each, "cmdline")]):
        os.sched_yield()
    return found


def children_of(parent: int) -> list[int]:
    """Processes that it has started and that run."""
    stats = {
        int(each.name): _read(int(each.name), "stat")
        for each in Path("/proc").iterdir()
        if each.name.isdigit()
    }
    return sorted(
        each for each, stat in stats.items() if stat and int(stat.rpartition(b")")[2].split()[1]) == parent
    )


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def workers_of(executor: int) -> list[int]:
    """Python processes in which an executor runs tasks: forked from one that it has started."""
    return [worker for daemon in children_of(executor) for worker in children_of(daemon)]


def peak_mib(process: int | str) -> int:
    """Most memory that a process has had."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def said(report: Report) -> dict[str, Any]:
    """What must not depend on who did the work."""
    value: dict[str, Any] = orjson.loads(report.to_json())
    for name in ("seconds", "bytesPerSecond", "inputs"):
        value.pop(name, None)
    value["findings"].sort(key=lambda each: orjson.dumps(each, option=orjson.OPT_SORT_KEYS))
    return value


def kills(folder: Path, spark: SparkSession) -> dict[str, Any]:
    """Each job without Spark, and on executors of which one is killed in the middle."""
    rate = 1 << 20
    stores = [str(folder / name) for name in ("a", "b")]

    def migrated(runner: Runner, target: str) -> object:
        options = MigrateOptions(to="dledger", rewrite=True, index_slots=64, index_units=256)
        migrate(runner, stores[0], str(folder / target), options, rate=rate)
        return orjson.loads((folder / f"{target}.brokerset-migration.json").read_bytes())["files"]

    checked = VerifyOptions(range_bytes=1 << 16, rate=rate)
    jobs: dict[str, Callable[[Runner, str], object]] = {
        "verify": lambda runner, _: said(verify(runner, stores[0], checked)),
        "audit": lambda runner, _: verdict(audit(runner, stores, AuditOptions(rate=rate))),
        "migrate": migrated,
    }
    found: dict[str, Any] = {}
    for name, job in jobs.items():
        runner = Watched(spark, kill=True)
        ours, wanted = job(runner, "ours"), job(LocalRunner(), "wanted")
        found[name] = {"same": ours == wanted, "killed": len(runner.killed)}
        if ours != wanted:
            found[name] |= {"ours": ours, "wanted": wanted}
    return found


def verdict(report: Report) -> list[Any]:
    """What an audit says."""
    return [report.facts["verdict"], [each["differing"] for each in report.facts["pairs"]],
            sorted((each.code, each.text) for each in report.findings)]  # fmt: skip


def driver(folder: Path, spark: SparkSession) -> dict[str, Any]:
    """`verify` of one store and `audit` of it and its replica, with what they cost, and what processes needed."""
    context: Any = spark.sparkContext
    tracker, jvm = context._jsc.sc().statusStore(), context._jvm
    found: dict[str, Any] = {}
    jobs: dict[str, Callable[[Runner], Report]] = {
        "verify": lambda runner: verify(runner, str(folder / "a")),
        "audit": lambda runner: audit(runner, [str(folder / "a"), str(folder / "b")]),
    }

    def stages() -> Any:
        """Newest first."""
        nothing = context._gateway.new_array(jvm.double, 0)
        return tracker.stageList(None, False, False, nothing, jvm.java.util.ArrayList())

    for name, job in jobs.items():
        if name == "audit" and not (folder / "b").exists():
            continue
        runner, begun = Watched(spark), time.monotonic()
        before = tracker.jobsList(None).size(), stages().size()
        report = job(runner)
        now, later = tracker.jobsList(None).size(), stages()
        news = [later.apply(number) for number in range(later.size())][: later.size() - before[1]]
        found[name] = {
            "seconds": round(time.monotonic() - begun, 1), "findings": [each.text for each in report.findings][:5],
            "errors": report.exit_code, "counters": report.counters, "steps": runner.steps,
            "jobs": now - before[0], "stages": len(news), "tasks": sum(each.numTasks() for each in news),
            "shuffle bytes": sum(each.shuffleWriteBytes() for each in news),
            "task seconds": round(sum(each.executorRunTime() for each in news) / 1000, 1),
        }  # fmt: skip
    java = java_of(spark)
    found["python MiB"], found["java MiB"] = peak_mib("self"), peak_mib(java)
    found["worker MiB"] = max(peak_mib(each) for one in executors_of(java) for each in workers_of(one))
    found["executor MiB"] = max(map(peak_mib, executors_of(java)))
    return found


def main() -> None:
    """See the module."""
    cases = {"kills": kills, "driver": driver}
    with open_session(workers=2, master=EXECUTORS) as spark:
        for wanted in sys.argv[1:]:
            case, _, folder = wanted.partition(":")
            print(orjson.dumps(cases[case](Path(folder), spark)).decode(), flush=True)


if __name__ == "__main__":
    main()
