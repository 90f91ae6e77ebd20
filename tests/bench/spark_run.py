"""Spark and the lake, measured: `python -m tests.bench.spark_run [--size ci|full] [--parts read,send,lake,stores] [--record]`.

Reads and writes of a topic beside a plain loop of our client, exports of it with 1 and 2 executors, jobs on store files
beside `cp`, and the memory of all processes. Only ratios of one run mean something on another machine. `--record` adds
the run to `docs/benchmarks/history.jsonl`, from which `make generate` makes the tables of `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from tests.bench import history, spark_report
from tests.bench import spark_topics as topics
from tests.bench.history import Record
from tests.bench.spark_topics import BODY, QUEUES, TOPIC, Measured, apart

from brokerset_rig import stack

STORE_JOBS: Final = "cp,verify,migrate-copy,migrate-rewrite,export"
PARTS: Final = ("read", "send", "lake", "stores")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    messages: int
    """Of 1 KiB, in the topic that is read and exported."""
    sent: int
    """By each run of a sink."""
    runs: int
    stores: str
    """`--size` of `spark.py`."""


SIZES: Final = {"ci": Size(20_000, 10_000, 1, "small"), "full": Size(400_000, 200_000, 3, "full")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="ci")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--record", action="store_true", help=f"add the results to {history.FILE}")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    size, begun = SIZES[options.size], time.monotonic()
    record = history.new_record(asdict(size), spark_report.SIDES, spark_report.BASE, [])
    with tempfile.TemporaryDirectory(prefix="brokerset-bench-") as folder:
        if {"read", "send", "lake"} & set(parts):
            measure_topics(record, size, parts, Path(folder))
        if "stores" in parts:
            measure_stores(record, size, Path(folder))
    print(f"\n{spark_report.results(record.cases)}\n\n{(time.monotonic() - begun) / 60:.1f} minutes")
    if options.record:
        history.append(stack.ROOT / history.FILE, record)
    return 0


def measure_topics(record: Record, size: Size, parts: list[str], folder: Path) -> None:
    """All sides of reading, sending and exporting, one after the other, on one broker."""
    with broker(folder / "broker", (TOPIC, "loop", "sink-1", "sink-2")) as server:
        if {"read", "lake"} & set(parts):
            apart(topics.fill, server, TOPIC, size.messages)

        def measure(
            case: str, side: str, messages: int, work: Callable[..., Measured], *given: object
        ) -> None:
            print(f"  {case} {side}", file=sys.stderr, flush=True)
            add(record, case, side, messages, apart(work, server, *given))

        if "read" in parts:
            measure("spark-read", "loop", size.messages, topics.loop_reads, size.messages, size.runs)
            measure("spark-read", "alone", size.messages, topics.source_reads, size.messages, size.runs)
            for side, cores in (("one", 1), ("two", 2)):
                measure(
                    "spark-read", side, size.messages, topics.spark_reads, size.messages, size.runs, cores
                )
        if "send" in parts:
            measure("spark-send", "loop", size.sent, topics.loop_sends, "loop", size.sent, size.runs)
            for side, cores in (("one", 1), ("two", 2)):
                measure(
                    "spark-send",
                    side,
                    size.sent,
                    topics.spark_sends,
                    f"sink-{cores}",
                    size.sent,
                    size.runs,
                    cores,
                )
        if "lake" in parts:
            for side, executors in (("one", 1), ("two", 2)):
                measure(
                    "spark-lake", side, size.messages, topics.lake_exports,
                    size.messages, size.runs, str(folder), executors,
                )  # fmt: skip


def add(record: Record, case: str, side: str, messages: int, found: Measured) -> None:
    """A side's runs, in the units of the report: MB are 10^6 bytes of bodies."""
    for seconds, cpu_seconds in zip(found.seconds, found.cpu_seconds, strict=True):
        record.add(case, "perSecond", side, messages / seconds)
        record.add(case, "mbPerSecond", side, messages * BODY / seconds / 1e6)
        record.add(case, "mbPerCpuSecond", side, messages * BODY / max(cpu_seconds, 0.01) / 1e6)
    for kind, most in found.peak_mib.items():
        record.add(case, f"{kind}MiB", side, most)


def measure_stores(record: Record, size: Size, folder: Path) -> None:
    """The jobs of `spark.py` on files, beside `cp`; processes of this machine, as no record enters a JVM."""
    target = folder / "stores.json"
    command = [
        sys.executable, str(Path(__file__).with_name("spark.py")), "--size", size.stores, "--cases", STORE_JOBS,
        "--bodies", str(BODY), "--runs", str(size.runs),
        "--folder", str(folder), "--json", str(target),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1800)
    for each in json.loads(target.read_text())["figures"]:
        if each.get("kernels") == "pure":
            continue
        case, side = f"store-{each['case']}", {1: "one", 2: "two"}[each["processes"]]
        record.add(case, "perSecond", side, each["records_per_second"] or None)
        record.add(case, "mbPerSecond", side, each["mb_per_second"])
        record.add(case, "mbPerCpuSecond", side, each["mb_per_cpu_second"])
        record.add(case, "allMiB", side, each["rss_mib"])


@contextmanager
def broker(folder: Path, made: tuple[str, ...]) -> Iterator[str]:
    """A name server and a broker in a process of their own; the name server's address."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=topics.serve, args=(theirs, str(folder), made))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join(30)
        process.kill()


if __name__ == "__main__":
    assert QUEUES % 2 == 0  # two executors have the same work
    sys.exit(main())
