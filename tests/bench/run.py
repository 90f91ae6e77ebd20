"""Our broker and Java's, one after the other in one run, through the load generator of `tests/peers`.

`run.py [--size small|full] [--out FILE] [--only ours|java]` prints a table with the ratio of each figure and the goal. Only the ratios
mean something: both brokers had the same machine, the same hour, the same load. Then the controllers (`controller.py`). Exit status 1 only
if an answer was wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerset_rig import stack
from brokerset_rig.measuring import arguments, makes, markdown, middle, ratio, shown, wrong_answers

PEERS_BENCH = stack.PEERS / "bench"
SMALL_CASES = "send-1k-sync1,send-1k-sync64,send-1k-4x64,send-1k-batch32,pull-1k,e2e-1k"
STOLEN_CORES_MAX = 0.1
"""Above this the table says so: a virtual machine whose host is busy measures its host."""
SYNC_CASES = "send-1k-sync1,send-1k-sync16,send-1k-sync64,send-1k-batch32"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: where its figure is, and what the design asks of the ratio."""

    label: str
    entry: str
    read: Callable[[dict[str, Any]], float | None]
    unit: str
    goal: str
    good: Callable[[float], bool]


def rate(entry: dict[str, Any]) -> float | None:
    return middle(entry, "perSecond")


def cpu(entry: dict[str, Any]) -> float | None:
    """Microseconds of server CPU for each message."""
    cores, per_second = middle(entry, "serverCores"), rate(entry)
    return cores / per_second * 1e6 if cores and per_second else None


def loaded(entry: dict[str, Any]) -> float | None:
    memory = entry.get("memoryAfter")
    return float(memory[0]["anonMiB"]) if memory else None


def at_least(ratio: float) -> Callable[[float], bool]:
    return lambda value: value >= ratio


def at_most(ratio: float) -> Callable[[float], bool]:
    return lambda value: value <= ratio


ROWS = [
    Row("send 1 KB, one at a time", "async/send-1k-sync1", rate, "/s", "≥ 2 ×", at_least(2)),
    Row("… p50", "async/send-1k-sync1", lambda e: middle(e, "p50ms"), "ms", "", at_most(1)),
    Row("send 1 KB, window 16", "async/send-1k-sync16", rate, "/s", "", at_least(1)),
    Row("send 1 KB, window 64", "async/send-1k-sync64", rate, "/s", "", at_least(1)),
    Row("send 1 KB, 4 connections × 64", "async/send-1k-4x64", rate, "/s", "≥ 2 ×", at_least(2)),
    Row("… CPU for each message", "async/send-1k-4x64", cpu, "µs", "≤ 1/2", at_most(0.5)),
    Row("send 100 B, window 64", "async/send-100b-sync64", rate, "/s", "", at_least(1)),
    Row("send in batches of 32 × 1 KB", "async/send-1k-batch32", rate, "/s", "≥ 1.2 ×", at_least(1.2)),
    Row("… CPU for each message", "async/send-1k-batch32", cpu, "µs", "≤ 1/2", at_most(0.5)),
    Row("send in batches of 32 × 100 B", "async/send-100b-batch32", rate, "/s", "", at_least(1)),
    Row("raw pull 1 KB", "async/pull-1k", rate, "/s", "≥ 1 ×", at_least(1)),
    Row("… CPU for each message", "async/pull-1k", cpu, "µs", "≤ 1/2", at_most(0.5)),
    Row("end to end at 1,000/s, p50", "async/e2e-1k", lambda e: middle(e, "p50ms"), "ms", "≤ 0.5 ms", at_most(0.5)),
    Row("… p99", "async/e2e-1k", lambda e: middle(e, "p99ms"), "ms", "≤ 1 ×", at_most(1)),
    Row("SYNC_FLUSH, one at a time", "sync/send-1k-sync1", rate, "/s", "", at_least(1)),
    Row("SYNC_FLUSH, window 16", "sync/send-1k-sync16", rate, "/s", "", at_least(1)),
    Row("SYNC_FLUSH, window 64", "sync/send-1k-sync64", rate, "/s", "", at_least(1)),
    Row("SYNC_FLUSH, batches of 32", "sync/send-1k-batch32", rate, "/s", "", at_least(1)),
    Row("anonymous memory, idle", "start", lambda e: middle(e, "anonMiB"), "MiB", "≤ 1/6", at_most(1 / 6)),
    Row("anonymous memory, loaded", "async/send-1k-4x64", loaded, "MiB", "≤ 1/8", at_most(1 / 8)),
    Row("start to first acknowledged send", "start", lambda e: middle(e, "firstAnswerMs"), "ms", "≤ 1/8", at_most(1 / 8)),
]  # fmt: skip


def throughput(
    server: stack.Server, out: Path, name: str, size: str, cases: str | None, prewarm: float
) -> None:
    command = [sys.executable, str(PEERS_BENCH / "throughput.py"), "--broker", server.address, "--pids", str(server.pid),
               "--name", name, "--out", str(out), "--prewarm", str(prewarm)]  # fmt: skip
    if size == "small":
        command += ["--runs", "1", "--seconds", "3", "--warm", "1", "--backlog", "300000"]
    if cases:
        command += ["--cases", cases]
    subprocess.run(command, check=True)


def start_time(server: stack.Server, out: Path, name: str, size: str) -> None:
    env = {**os.environ, **server.environment}
    runs = ["--runs", "1", "--rest", "3"] if size == "small" else ["--runs", "5"]
    store = server.folder / "broker-0"
    subprocess.run(
        [sys.executable, str(PEERS_BENCH / "start.py"), "--kind", "broker", "--address", server.address, *runs,
         "--clean", str(store), "--name", name, "--out", str(out), "--", *server.command],
        check=True, env=env,
    )  # fmt: skip


def measure(who: str, flush: str, out: Path, size: str) -> None:
    """Every figure of one broker (`ours` or `java`) with one way of flushing (`async` or `sync`)."""
    os.environ.setdefault("BROKER_HEAP", "2g")
    name_server = stack.our_namesrv if who == "ours" else stack.java_namesrv
    broker = stack.our_broker if who == "ours" else stack.java_broker
    prewarm = 2.0 if who == "ours" else (6.0 if size == "small" else 12.0)
    cases = (SMALL_CASES if size == "small" else None) if flush == "async" else SYNC_CASES
    with stack.Workspace("bench") as folder:
        ports = stack.free_ports(2, below=2)
        settings = {"flushDiskType": f"{flush.upper()}_FLUSH"}
        with name_server(folder, ports[0]) as namesrv:
            if flush == "async":
                start_time(broker(folder, ports[1], namesrv.address, settings), out, f"{who}/start", size)
            with broker(folder, ports[1], namesrv.address, settings) as server:
                throughput(server, out, f"{who}/{flush}", size, cases, prewarm)


def stolen(entry: dict[str, Any] | None) -> float:
    """Cores that the hypervisor took away while this was measured."""
    return (middle(entry, "stolenCores") or 0.0) if entry else 0.0


def table(results: dict[str, Any]) -> str:
    rows = []
    for row in ROWS:
        ours_entry, java_entry = results.get(f"ours/{row.entry}"), results.get(f"java/{row.entry}")
        ours = row.read(ours_entry) if ours_entry else None
        java = row.read(java_entry) if java_entry else None
        if ours is None:
            continue
        judged = ours if row.goal.endswith("ms") else ours / java if java else None
        verdict = (
            "" if judged is None or not row.goal else ("reached" if row.good(judged) else "**not reached**")
        )
        taken = (stolen(java_entry), stolen(ours_entry))
        disturbed = f"{taken[0]:.2f}, {taken[1]:.2f}" if max(taken) > STOLEN_CORES_MAX else ""
        measured = (shown(java, row.unit), shown(ours, row.unit), ratio(ours, java))
        rows.append((row.label, *measured, row.goal, verdict, disturbed))
    columns = ("what", "Java", "ours", "ours / Java", "goal", "", "cores stolen from Java, from ours")
    return markdown(columns, rows, texts=(0, 4, 5, 6))


def main() -> int:
    options = arguments(__doc__, "bench.json").parse_args()
    who_is_measured = makes(options)
    if options.only is None:
        options.out.unlink(missing_ok=True)
    subprocess.run([str(stack.PEERS / "bin" / "fetch")], check=True, stdout=subprocess.DEVNULL)
    for flush in ("async", "sync"):
        for who in who_is_measured:
            measure(who, flush, options.out, options.size)
    results = json.loads(options.out.read_text())
    print(f"\n{table(results)}\n")
    # A process of its own: what a hundred thousand requests leave behind here would count as the fake brokers' time.
    command = [sys.executable, str(Path(__file__).with_name("controller.py")), "--size", options.size,
               "--out", str(options.out.with_name(f"{options.out.stem}-controller.json"))]  # fmt: skip
    controllers = subprocess.run(command + (["--only", options.only] if options.only else []))
    wrong = wrong_answers(results)
    if wrong:
        print(f"wrong answers in: {', '.join(wrong)}")
    return 1 if wrong or controllers.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
