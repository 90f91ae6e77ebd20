"""Kernels and jobs of `brokerset_spark` on generated stores: `spark.py [--size small|full] [--cases a,b] [--json FILE]`.

Everything is read from the page cache: first runs are not counted. `cp`, `sha256sum` and `memcpy` are measured in the same run, on the same files; only
ratios to them mean something on another machine. The best of some runs is taken. Peak memory is that of one process with numpy and
(compiled) numba, or of a job's processes together. Exit status 1 if a case failed; nothing is judged by time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

spark_store: Any = import_module("spark_store")  # both are next to this file, in no package
spark_cases: Any = import_module("spark_cases")

SIZES = {"small": 128 << 20, "full": 1 << 30}
BODIES = (1024, 100)
FILES = 4
RUNS = 3
CASE_SECONDS_MAX = 300.0
"""A process that lives longer than this is killed, and its case has failed."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What came out for one case. MB are 10^6 bytes of commit log."""

    case: str
    body: int
    processes: int
    mb_per_second: float = 0.0
    records_per_second: float = 0.0
    mb_per_cpu_second: float = 0.0
    rss_mib: float = 0.0
    failure: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--size", choices=sorted(SIZES), default="full", help="128 MiB or 1 GiB for each store"
    )
    parser.add_argument("--cases", default="", help="names, separated by commas; all without it")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--bodies", default=",".join(map(str, BODIES)))
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument(
        "--folder", type=Path, help="where the stores are made (and removed); a temporary folder without it"
    )
    parser.add_argument("--json", type=Path, help="write all figures there, too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(json.loads(args.child))
    figures = list(measure_all(args))
    show(figures, args)
    if args.json:
        args.json.write_text(
            json.dumps(
                {"host": host(), "size": SIZES[args.size], "figures": [asdict(f) for f in figures]}, indent=1
            )
        )
    return 1 if any(each.failure for each in figures) else 0


def measure_all(args: argparse.Namespace) -> Iterator[Figure]:
    """All cases on all stores, the baselines first."""
    wanted = args.cases.split(",") if args.cases else list(spark_cases.CASES)
    if unknown := set(wanted) - set(spark_cases.CASES):
        raise SystemExit(
            f"no such cases: {', '.join(sorted(unknown))}; there are {', '.join(spark_cases.CASES)}"
        )
    names = [name for name in spark_cases.CASES if name in wanted or name == "cp"]
    with tempfile.TemporaryDirectory(prefix="brokerset-bench-", dir=args.folder) as place:
        for body in map(int, args.bodies.split(",")):
            total, store = SIZES[args.size], Path(place, f"store-{body}")
            made = spark_store.make_store(
                store, body_size=body, total=total - total // 64, file_size=total // FILES
            )
            print(
                f"bodies of {body} bytes: {made.records} records in {made.files} files, {made.bytes} bytes",
                file=sys.stderr,
            )
            for name in names:
                for processes in map(int, args.processes.split(",")):
                    if processes in spark_cases.CASES[name].processes:
                        yield measure(name, body, processes, store, Path(place), args.runs)
            shutil.rmtree(store)


def measure(name: str, body: int, processes: int, store: Path, place: Path, runs: int) -> Figure:
    """One case in so many processes at once."""
    print(f"  {name} x{processes}", file=sys.stderr, flush=True)
    figure = Figure(name, body, processes)
    try:
        with ExitStack() as stack:
            parts = 1 if spark_cases.CASES[name].is_job else processes
            work = {"case": name, "store": str(store), "parts": parts, "workers": processes}
            children = [
                stack.enter_context(
                    started({**work, "part": part, "scratch": str(place / f"scratch-{part}")})
                )
                for part in range(parts)
            ]
            for each in children:
                hear(each)
            best: list[dict[str, float]] = []
            for _ in range(runs):
                for each in children:
                    tell(each, "go")
                answers = [hear(each) for each in children]
                took = max(answer["wall"] for answer in answers)
                total = {
                    key: sum(answer[key] for answer in answers) for key in ("bytes", "records", "cpu", "rss")
                }
                best.append({"wall": took, **total})
            for each in children:
                tell(each, "end")
    except (RuntimeError, subprocess.SubprocessError) as error:
        return Figure(name, body, processes, failure=str(error))
    fast = min(best, key=lambda run: run["wall"])
    return Figure(
        figure.case, body, processes,
        fast["bytes"] / fast["wall"] / 1e6, fast["records"] / fast["wall"],
        max(run["bytes"] / max(run["cpu"], 1e-9) for run in best) / 1e6, max(run["rss"] for run in best) / len(children),
    )  # fmt: skip


@contextmanager
def started(work: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A process for one part; it is gone when the context ends."""
    command = [sys.executable, __file__, "--child", json.dumps(work)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watch = threading.Timer(CASE_SECONDS_MAX, process.kill)
        watch.start()
        try:
            yield process
            process.wait()
        finally:
            watch.cancel()
            process.kill()


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> dict[str, float]:
    """What a process answers; RuntimeError if it failed."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ANSWER "):
            found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
            if "failure" in found:
                raise RuntimeError(found["failure"])
            return found
    raise RuntimeError("the process ended without an answer; its own messages are above")


def child(description: dict[str, Any]) -> int:
    """Run one case whenever told to, first once to get warm."""
    work = spark_cases.Work(
        Path(description["store"]),
        Path(description["scratch"]),
        description["part"],
        description["parts"],
        description["workers"],
    )
    run = spark_cases.CASES[description["case"]].run
    try:
        for word in chain(["warm"], sys.stdin):
            if word.strip() == "end":
                break
            shutil.rmtree(work.scratch, ignore_errors=True)
            work.scratch.mkdir(parents=True)
            others, cpu, begin = started_usage()[0], own_cpu(), time.perf_counter()
            amount = run(work)
            wall = time.perf_counter() - begin
            cpu = own_cpu() - cpu
            after, most = started_usage()
            answer = {
                "wall": wall,
                "cpu": cpu + after - others,
                "rss": most,
                "bytes": amount.bytes,
                "records": amount.records,
            }
            print("ANSWER " + json.dumps(answer), flush=True)
    except Exception as error:  # the edge of the process: whoever started it shall know
        traceback.print_exc()
        print("ANSWER " + json.dumps({"failure": f"{type(error).__name__}: {error}"[:500]}), flush=True)
        return 1
    finally:
        shutil.rmtree(work.scratch, ignore_errors=True)
        work.closing.close()
    return 0


def own_cpu() -> float:
    """CPU seconds of this process and those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def started_usage() -> tuple[float, float]:
    """CPU seconds of the processes that this one started, directly or not, and peak MiB of all of them.

    Of those that have ended only the CPU time counts. `getrusage` would not see grandchildren that live, and
    gives a child the peak of its parent.
    """
    parents: dict[int, int] = {}
    cpu: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            cpu[int(folder.name)] = sum(map(int, fields[11:15])) / tick
    wanted = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return sum(cpu[pid] for pid in wanted - {os.getpid()}), sum(map(peak, wanted))


def peak(pid: int) -> float:
    """MiB that a process had at most."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def host() -> dict[str, Any]:
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": os.cpu_count(),
        "model": model,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def show(figures: list[Figure], args: argparse.Namespace) -> None:
    """Print a table for each store."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    for body in dict.fromkeys(each.body for each in figures):
        rows = [each for each in figures if each.body == body]
        copies = {each.processes: each for each in rows if each.case == "cp"}
        table = Table(
            title=f"bodies of {body} bytes, {SIZES[args.size] >> 20} MiB, page cache, best of {args.runs}"
        )
        for name in (
            "case",
            "processes",
            "MB/s",
            "records/s",
            "of cp",
            "MB per CPU s",
            "of cp ",
            "goal",
            "RSS MiB",
        ):
            table.add_column(name, justify="left" if name == "case" else "right")
        for each in rows:
            if each.failure:
                table.add_row(
                    each.case,
                    str(each.processes),
                    "failed",
                    "",
                    "",
                    "",
                    "",
                    "",
                    "",
                    each.failure,
                )
                continue
            copy = copies.get(each.processes)
            wall = f"{each.mb_per_second / copy.mb_per_second:.2f}" if copy and copy.mb_per_second else ""
            cpu = (
                f"{each.mb_per_cpu_second / copy.mb_per_cpu_second:.2f}"
                if copy and copy.mb_per_cpu_second
                else ""
            )
            table.add_row(
                each.case, str(each.processes), f"{each.mb_per_second:,.0f}", f"{each.records_per_second:,.0f}", wall,
                f"{each.mb_per_cpu_second:,.0f}", cpu, goal(each, copy), f"{each.rss_mib:,.0f}",
            )  # fmt: skip
        console.print(table)


def goal(figure: Figure, copy: Figure | None) -> str:
    """What was asked for, and whether it was reached."""
    goals = spark_cases.CASES[figure.case].goals
    if (wanted := goals.get(f"mb-{figure.body}")) is not None:
        return f"{wanted:,.0f} MB {mark(figure.mb_per_cpu_second >= wanted)}"
    if (share := goals.get(f"cp-{figure.body}")) is not None and copy and copy.mb_per_cpu_second:
        return f"{share} cp {mark(figure.mb_per_cpu_second >= share * copy.mb_per_cpu_second)}"
    return ""


def mark(good: bool) -> str:
    return "✓" if good else "✗"


if __name__ == "__main__":
    sys.exit(main())
