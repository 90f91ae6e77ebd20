"""Copying a log to a replica, ours and Java's AutoSwitchHA one after the other: `replication.py [--size small|full] [--only ours|java]`.

Three things: an empty replica until it has caught up; how far it is behind while the master is written to; sends that are answered when all
of three replicas have them. Next to them what ours does when the log goes by TLS (`catch-up-tls`), which takes `sendfile` from it, and what
sendfile over loopback, and cp, do without any broker. Uses the scripts and the load generator of `tests/peers`. Only ratios of one run mean
something. Exit status 1 when an answer was wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerset_bench.probes import GroupView, NoAnswer, Prober
from brokerset_bench.server_process import ServerProcess
from brokerset_bench.sets import BenchSet, java_set, our_set
from brokerset_rig import stack
from brokerset_rig.certificates import Certificates
from brokerset_rig.measuring import arguments, makes, markdown, middle, ratio, shown, wrong_answers

PEERS_BENCH = stack.PEERS / "bench"
LOADGEN = Path("/tmp/brokerset-loadgen")
"""Where the scripts of `tests/peers` build the load generator."""

GIBIBYTE = 1 << 30
CASES = "send-1k-sync1,send-1k-sync16,send-1k-sync64,send-1k-batch32"
WHOLE_SECONDS_MAX = 120.0
HEAP = "1g"
BY_TLS = "ours-tls"
"""Ours, with TLS at the HA port."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    gib: float
    runs: int
    seconds: float


SIZES = {"small": Size(0.6, 1, 4), "full": Size(2.0, 3, 8)}


@contextmanager
def topology(who: str, replicas: int, log_file_bytes: int, port: int, *expected: str) -> Iterator[BenchSet]:
    """A set that is planned and not started, `expected` being more settings of ours; ends what was started in it."""
    with stack.Workspace("replication") as folder:
        if who != "java":
            if who == BY_TLS:
                expected += (f"tlsConfigFile={_between_members(folder)}",)
            given = (f"mappedFileSizeCommitLog={log_file_bytes}", *expected)
            bench = our_set(folder, replicas=replicas, settings=given, port=port, network=None)
        else:
            values = {"mappedFileSizeCommitLog": str(log_file_bytes), "allAckInSyncStateSet": "true"}
            bench = java_set(folder, stack.PEERS, replicas=replicas, settings=values, port=port, heap=HEAP)
        try:
            yield bench
        finally:
            bench.end()


def _between_members(folder: Path) -> Path:
    """A TLS configuration that members use among each other; clients and controllers stay in plain text."""
    return Certificates(folder / "certificates", "bench").config(
        tls_server_mode="permissive", tls_enable="false", tls_members_trustCertPath="authority.pem"
    )


def until(what: str, look: Callable[[Prober], Any]) -> Any:
    """Ask until there is an answer that is true."""

    async def ask() -> Any:
        deadline = time.monotonic() + WHOLE_SECONDS_MAX
        async with Prober() as prober:
            while True:
                problem = "not yet"
                try:
                    if found := await look(prober):
                        return found
                except NoAnswer as error:
                    problem = str(error)
                if time.monotonic() >= deadline:
                    raise stack.StackError(f"not in {WHOLE_SECONDS_MAX:g} s: {what}: {problem}")
                await asyncio.sleep(0.1)

    return asyncio.run(ask())


def start(bench: BenchSet, brokers: Sequence[ServerProcess]) -> GroupView:
    """Start the controllers and these brokers; returns the first look with a master and all of them in sync."""
    for process in (*bench.others, *bench.controllers, *brokers):
        process.start()

    async def look(prober: Prober) -> GroupView | None:
        if gone := next((process for process in brokers if not process.running), None):
            raise stack.StackError(f"{gone.name} has ended:\n{gone.log_tail()}")
        found = await prober.group(bench.controller_addresses, bench.group)
        return found if found.master and len(found.in_sync) == len(brokers) else None

    view = until(f"{len(brokers)} brokers in sync", look)
    assert isinstance(view, GroupView)
    return view


def store_of(broker: ServerProcess) -> Path:
    """Both makes have the store next to the settings, which are the last argument."""
    return Path(broker.arguments[-1]).parent / "store"


def catch_up(who: str, size: Size, out: Path, port: int) -> None:
    """An empty replica of a full master, and its distance under load."""
    # A group of ours waits for all expected replicas before its first election; here the second one comes later, and is new each time.
    with topology(who, 2, GIBIBYTE, port, "expectedReplicas=1") as bench:
        master, slave = bench.brokers
        start(bench, [master])
        subprocess.run(
            [sys.executable, str(PEERS_BENCH / "replication.py"), "--out", str(out), "--name", f"{who}/replication",
             "--master", master.address, "--slave", slave.address, "--master-pid", str(master.pid), "--clean", str(store_of(slave)),
             "--gib", str(size.gib), "--runs", str(size.runs), "--loadgen", str(LOADGEN), "--", *slave.arguments],
            check=True, env={**os.environ, **slave.environment},
        )  # fmt: skip


def sends(who: str, size: Size, out: Path, port: int) -> None:
    """Sends that wait for all of three replicas."""
    with topology(who, 3, GIBIBYTE // 4, port) as bench:
        look = start(bench, bench.brokers)
        pids = ",".join(str(broker.pid) for broker in bench.brokers)
        subprocess.run(
            [sys.executable, str(PEERS_BENCH / "throughput.py"), "--broker", look.master, "--pids", pids, "--name", f"{who}/all-in-sync",
             "--out", str(out), "--cases", CASES, "--runs", str(size.runs), "--seconds", str(size.seconds),
             "--prewarm", "2" if who == "ours" else "10"],
            check=True, env={**os.environ, "LOADGEN": str(LOADGEN)},
        )  # fmt: skip


def floors(out: Path) -> None:
    """What disk and loopback do without any broker."""
    with stack.Workspace("replication-floor") as folder:
        subprocess.run([sys.executable, str(PEERS_BENCH / "floor.py"), str(out), str(folder)], check=True)
        source = folder / "source"
        with source.open("wb") as stream:
            for _ in range(1024):
                stream.write(os.urandom(1 << 20))
        rates = []
        for number in range(3):
            target = folder / f"copy-{number}"
            before = time.monotonic()
            # A plain copy through the page cache; a file system that only notes the same blocks twice would say nothing.
            subprocess.run(["cp", "--reflink=never", str(source), str(target)], check=True)
            rates.append(1024 / (time.monotonic() - before))
            target.unlink()
        results = json.loads(out.read_text())
        results["cp"] = {"MiBps": round(sorted(rates)[1], 1)}
        out.write_text(json.dumps(results, indent=1) + "\n")


ROWS = [
    ("empty replica, steady rate", "replication/catch-up", "steadyMiBps", "MiB/s"),
    ("… all of it, from the start of its process", "replication/catch-up", "overallMiBps", "MiB/s"),
    ("… first bytes after", "replication/catch-up", "firstBytesSeconds", "s"),
    ("… caught up after", "replication/catch-up", "startToCaughtUpSeconds", "s"),
    ("… cores of both", "replication/catch-up", "serverCores", ""),
    *((f"lag, window {window}, {share}", f"replication/lag#window{window}", f"{share}KiB", "KiB")
      for window in (1, 16, 64) for share in ("p50", "p99")),
    *((label if key == "perSecond" else f"… {key.removesuffix('ms')}", f"all-in-sync/{case}", key, "/s" if key == "perSecond" else "ms")
      for label, case in (("send 1 KB to 3 replicas, one at a time", "send-1k-sync1"), ("… window 16", "send-1k-sync16"),
                          ("… window 64", "send-1k-sync64"), ("… batches of 32", "send-1k-batch32"))
      for key in ("perSecond", "p50ms", "p99ms")),
]  # fmt: skip


def value_of(results: dict[str, Any], who: str, entry: str, key: str) -> float | None:
    """One figure; None when it was not measured."""
    name, _, part = entry.partition("#")
    found = results.get(f"{who}/{name}")
    if found is not None and part:
        found = found.get(part)
    return None if found is None else middle(found, key)


def table(results: dict[str, Any]) -> str:
    """Java's, ours, the ratio; then the floors."""
    rows: list[tuple[str, ...]] = []
    for label, entry, key, unit in ROWS:
        java, ours = (value_of(results, who, entry, key) for who in ("java", "ours"))
        rows.append((label, shown(java, unit), shown(ours, unit), ratio(ours, java)))
    ours = value_of(results, "ours", "replication/catch-up", "steadyMiBps")
    for label, key, unit in (
        ("by TLS: empty replica, steady rate", "steadyMiBps", "MiB/s"),
        ("… cores of both", "serverCores", ""),
    ):
        plain, by_tls = (value_of(results, who, "replication/catch-up", key) for who in ("ours", BY_TLS))
        if plain and by_tls:
            rows.append((label, "", shown(by_tls, unit), f"{by_tls / plain:.2f} of ours in plain text"))
    for label, entry, key in (
        ("floor: sendfile over loopback", "floor", "sendfileMiBps"),
        ("floor: TCP over loopback", "floor", "tcpMiBps"),
        ("floor: appends to a file", "floor", "appendMiBps"),
        ("floor: cp", "cp", "MiBps"),
    ):
        rate = middle(results.get(entry, {}), key)
        if rate is not None:
            share = f"steady rate is {ours / rate:.2f} of it" if ours and rate else ""
            rows.append((label, "", shown(rate, "MiB/s"), share))
    return markdown(("what", "Java", "ours", "ours / Java"), rows)


def main() -> int:
    parser = arguments(__doc__, "bench-replication.json", SIZES)
    parser.add_argument("--parts", default="catch-up,catch-up-tls,sends,floors")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    who_is_measured = makes(options)
    if options.only is None:
        options.out.unlink(missing_ok=True)
    size, parts = SIZES[options.size], options.parts.split(",")
    subprocess.run(["go", "build", "-o", str(LOADGEN), "."], cwd=stack.PEERS / "loadgen", check=True)
    for who in who_is_measured:
        if "catch-up" in parts:
            catch_up(who, size, options.out, options.port)
        if who == "ours" and "catch-up-tls" in parts:
            catch_up(BY_TLS, size, options.out, options.port)
        if "sends" in parts:
            sends(who, size, options.out, options.port)
    if "floors" in parts:
        floors(options.out)
    results = json.loads(options.out.read_text())
    print(f"\n{table(results)}\n")
    wrong = wrong_answers(results)
    if wrong:
        print(f"wrong answers, or never caught up, in: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
