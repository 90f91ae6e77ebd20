"""Runs many seeds on all processors, replays one, or measures what the simulation covers."""

from __future__ import annotations

import argparse
import concurrent.futures
import concurrent.futures.process
import faulthandler
import functools
import os
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter

from brokerset_sim.deferred_alone import simulate_alone
from brokerset_sim.deferred_groups import simulate_deferred_group
from brokerset_sim.deferred_world import simulate_deferred
from brokerset_sim.dledger_cluster import DLedgerCluster
from brokerset_sim.history import Violation
from brokerset_sim.ledger_world import simulate_ledger
from brokerset_sim.ordered_world import simulate_ordered
from brokerset_sim.plan import draw_replicating
from brokerset_sim.pop_alone import simulate_pop_alone
from brokerset_sim.pop_world import simulate_pop, simulate_pop_ledger
from brokerset_sim.world import Outcome, simulate

COVERED = ("brokerset_raft", "brokerset_controller")
NOT_SIMULATED = (
    "*/transport.py",
    "*/app.py",
    "*/__main__.py",
    "*/metrics.py",
    "*/fresh_asker.py",
    "*/command_line.py",
    "*/node_folder.py",
)
"""Real sockets, real files, the command line: `tests/integration` and `tests/e2e` cover them."""

COVERAGE_PERCENT_MIN = 90


DLEDGER = {"dledger": True, "dledger-mixed": False}
"""Whether the members of the group are said to be ours alone."""

DLEDGER_MS = 6_000

WHOLE = "dledger-brokers"

ORDERED = "ordered"

DEFERRED = {
    "deferred": simulate_deferred,
    "deferred-alone": simulate_alone,
    "deferred-groups": simulate_deferred_group,
    "pop": simulate_pop,
    "pop-dledger": simulate_pop_ledger,
    "pop-alone": simulate_pop_alone,
}
"""Transactions and timer messages: of a DLedger group, of a broker without one, or in controller mode; and
popped messages, of the same three."""

WORLDS = ("controllers", "groups", *DLEDGER, WHOLE, ORDERED, *DEFERRED)
"""Controllers and the membership of brokers, broker groups that replicate, DLedger groups (their core alone,
or whole brokers), ordered subjects with their clients, transactions and timer messages, or pops."""

COUNTS_SHOWN = (
    "acknowledged",
    "answer: 10 ",
    "answer: 1003 ",
    "answer: 210",
    "answer: 310 ",
    "attempt stored twice",
    "check",
    "started from scratch",
    "cache lost",
    "dead letter",
    "disorder",
    "effect",
    "truncated",
    "elected: ",
    "end acknowledged",
    "event: ",
    "expanded",
    "fault: ",
    "fenced",
    "half",
    "handled",
    "handler ",
    "overlap",
    "pop: ",
    "forward",
    "held",
    "hold expired",
    "lease lapsed",
    "lose ",
    "loss",
    "metadata ",
    "raft: ",
    "rebuilt",
    "recalled",
    "replica compared",
    "retention",
    "role: ",
    "shrunk",
    "scaled",
    "sealed",
    "sent back",
    "snapshot: ",
    "timer",
    "switchover ",
    "told ",
    "weak send ",
)
"""What a run of many seeds tells of what happened in it."""


def _simulated(world: str, seed: int, *, show: bool = False) -> Outcome:
    if world in DLEDGER:
        return _simulated_dledger(seed, alone=DLEDGER[world])
    if world == WHOLE:
        return simulate_ledger(seed, show=show)
    if world in DEFERRED:
        return DEFERRED[world](seed, show=show)
    if world == ORDERED:
        return simulate_ordered(seed, show=show)
    return simulate(seed, draw_replicating(seed) if world == "groups" else None, show=show)


def _simulated_dledger(seed: int, *, alone: bool) -> Outcome:
    cluster = DLedgerCluster(seed, alone=alone)
    failure: Violation | None = None
    try:
        cluster.run(DLEDGER_MS)
        cluster.heal()
    except AssertionError as error:
        failure = Violation("DLedger", str(error))
        failure.__cause__ = error
    counts = Counter({"acknowledged": len(cluster.acked), "elected: leaders": len(cluster.leaders)})
    trace = f"{zlib.crc32(repr((cluster.now, cluster.leaders)).encode()):08x}"
    return Outcome(seed, failure, trace, cluster.steps, cluster.now / 1_000, len(cluster.committed), counts)


def _quietly(world: str, seed: int) -> tuple[int, str | None, float, int, Counter[str]]:
    begun = time.perf_counter()
    try:
        outcome = _simulated(world, seed)
    except Exception as error:  # the edge of a run: the other seeds shall go on
        return seed, f"the run itself failed: {error!r}", time.perf_counter() - begun, 0, Counter()
    failure = None if outcome.failure is None else str(outcome.failure)
    return seed, failure, time.perf_counter() - begun, outcome.events, outcome.counts


def run_many(world: str, first: int, count: int, processes: int) -> int:
    """Run seeds of one world side by side; returns how many failed."""
    begun = time.perf_counter()
    bad: list[int] = []
    events = 0
    counts: Counter[str] = Counter()
    slowest = 0.0
    done = 0
    try:
        with concurrent.futures.ProcessPoolExecutor(processes, initializer=faulthandler.enable) as pool:
            results = pool.map(functools.partial(_quietly, world), range(first, first + count), chunksize=5)
            for done, (seed, failure, seconds, seen, counted) in enumerate(results, 1):
                events += seen
                counts += counted
                slowest = max(slowest, seconds)
                if failure is not None:
                    bad.append(seed)
                    print(f"{world}, seed {seed}: {failure[:600]}", flush=True)
                if done % 100 == 0:
                    print(f"{done} of {count} seeds, {time.perf_counter() - begun:.0f} s", flush=True)
    except concurrent.futures.process.BrokenProcessPool:
        # Which seed it was nobody knows. A crash has written its stack; without one it was a signal.
        print(f"{world}: a worker has ended; {done} of {count} seeds were done, from {first} on", flush=True)
        return len(bad) + 1
    print(
        f"{world}: {count} seeds in {time.perf_counter() - begun:.1f} s, {len(bad)} failed"
        f" {bad if bad else ''}; {events} events, {counts['event']} commands, slowest seed {slowest:.2f} s"
    )
    for what in sorted(each for each in counts if each.startswith(COUNTS_SHOWN)):
        print(f"{counts[what]:9} {what}")
    for seed in bad:
        print(f"replay: python tests/simulation/run.py --world {world} --seed {seed} --trace")
    return len(bad)


def replay(world: str, seed: int, *, trace: bool) -> int:
    """Run one seed; returns 1 if it failed."""
    outcome = _simulated(world, seed, show=trace)
    print(f"seed {seed}: {outcome.events} events, {outcome.commands} commands, trace {outcome.trace}")
    if outcome.failure is None:
        return 0
    print(outcome.failure)
    if outcome.failure.__cause__ is not None:
        traceback.print_exception(outcome.failure.__cause__)
    return 1


def run_here(world: str, first: int, count: int) -> int:
    """Run seeds in this process, one after the other, as measuring needs it; returns how many failed."""
    bad = [seed for seed in range(first, first + count) if _quietly(world, seed)[1] is not None]
    print(f"{world}: {count} seeds, failed: {bad}")
    return len(bad)


def cover(first: int, count: int) -> int:
    """Run seeds and print which lines of the controllers' code they run; returns the program's end code."""
    with tempfile.TemporaryDirectory() as folder:
        tool = [sys.executable, "-m", "coverage"]
        data = f"--data-file={folder}/coverage"
        run = [
            *tool,
            "run",
            "--rcfile=/dev/null",
            data,
            f"--source={','.join(COVERED)}",
            f"--omit={','.join(NOT_SIMULATED)}",
        ]
        asked = [
            __file__,
            "--world",
            WORLDS[0],
            "--first",
            str(first),
            "--seeds",
            str(count),
            "--processes",
            "1",
        ]
        ended = subprocess.run([*run, *asked], check=False).returncode
        report = [*tool, "report", "--rcfile=/dev/null", data, "--show-missing"]
        counted = subprocess.run([*report, f"--fail-under={COVERAGE_PERCENT_MIN}"], check=False).returncode
    print(
        f"not counted: {', '.join(NOT_SIMULATED)}; at least {COVERAGE_PERCENT_MIN} % of the rest is demanded"
    )
    return ended or counted


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--world", choices=WORLDS, help="only this one; to replay a seed: controllers")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="replay this one alone")
    parser.add_argument("--trace", action="store_true", help="print every event of the replay")
    parser.add_argument("--coverage", action="store_true", help="measure instead of hurrying")
    asked = parser.parse_args()
    if asked.seed is not None:
        return replay(asked.world or WORLDS[0], asked.seed, trace=asked.trace)
    if asked.coverage:
        return cover(asked.first, asked.seeds)
    worlds = WORLDS if asked.world is None else (asked.world,)
    if asked.processes == 1:
        return sum(run_here(world, asked.first, asked.seeds) for world in worlds)
    return sum(run_many(world, asked.first, asked.seeds, asked.processes) for world in worlds)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
