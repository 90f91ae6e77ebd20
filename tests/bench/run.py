"""Our broker next to Java's, and next to itself without its native core, in pairs of runs: `python -m tests.bench.run`.

Each case is run on one side after the other, in `--rounds` rounds that begin with another side each; what counts is the
median of the ratios of a round, and their spread. Before each case the machine must be quiet; while a case runs, what
others use is measured, and shown when it is more than 5 % of a core. `--against PATH` and `--with KEY=VALUE` add another
checkout and other settings; with `--sides native --against PATH` two commits of ours are compared. `--record` keeps the
results in `docs/benchmarks/history.jsonl`, from which `make generate` makes the page. Exit status 1 if an answer was wrong,
or if `--strict` was given and others use the machine; nothing is judged by time.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.bench import (
    history,
    message_cases,
    pop_cases,
    priority,
    quiet,
    replicas,
    report,
    secure_cases,
    sides,
)
from tests.bench.cases import BROKER_CASES, LOADED_CASES, Case, Context, Size, prewarm
from tests.bench.generator import Generator, Run, WrongAnswer
from tests.bench.goals import FLOOR
from tests.bench.message_cases import MESSAGE_CASES
from tests.bench.pop_cases import POP_CASES
from tests.bench.quiet import Observation, Patience
from tests.bench.secure_cases import SECURE_CASES, Secured
from tests.bench.sides import Running, Side

from brokerset_formats import native
from brokerset_rig import stack, stores
from brokerset_rig.measuring import memory_mib

GIB = 1 << 30
SIZES = {
    "smoke": Size(rounds=1, seconds=1.0, warm=0.2, backlog=50_000, load_bytes=GIB // 4, timers=5_000),
    "small": Size(rounds=1, seconds=2.5, warm=0.5, backlog=300_000, load_bytes=GIB, timers=20_000),
    "full": Size(rounds=5, seconds=2.5, warm=0.5, backlog=300_000, load_bytes=4 * GIB, timers=50_000),
}
T = TypeVar("T")
ERRORS = (WrongAnswer, stack.StackError, OSError, subprocess.SubprocessError)
GROUPS = ("start", "broker", "loaded", "messages", "pop", "secure", "replicas", "slave")
WAIT_SECONDS = 20.0
"""How long the machine may take to become quiet."""

TRIES = 2
"""Runs of a case on a side in one round, when others disturb them; the quietest counts."""

THAW_SECONDS = 0.2
"""What a process that stood still has to catch up with."""

IDLE_SECONDS = 2.0


class Bench:
    """One run of everything that was asked for."""

    def __init__(self, options: argparse.Namespace, measured: Sequence[Side], size: Size) -> None:
        self.options = options
        self.sides = list(measured)
        self.size = size
        self.patience = Patience(options.wait, options.strict)
        self.load = Generator(stores.loadgen(), priority.GENERATOR_CORE if options.pin else None)
        self.observed: dict[str, list[Observation]] = {}
        self.failed: list[str] = []
        self.record = history.new_record(
            asdict(size),
            {side.name: described(side) for side in measured},
            measured[0].name,
            priority.description(permitted(), options.pin),
        )

    def run(self) -> None:
        """Every group of cases."""
        groups = {"start": self.starts, "broker": self.brokers, "loaded": self.loaded, "messages": self.messages,
                  "pop": self.pops, "secure": self.secure, "replicas": self.groups, "slave": self.slaves}  # fmt: skip
        for name in self.options.groups:
            begun = time.monotonic()
            try:
                groups[name]()
            except ERRORS as error:
                self.failed.append(f"{name}: {error}")  # what other groups have measured is worth keeping
            print(f"{name} took {time.monotonic() - begun:.0f} s", flush=True)

    def observe(self, case: str, side: Side, run: Callable[[], Run]) -> None:
        """Run it, and once more when others disturbed it; add what came out."""
        runs: list[Run] = []
        for _ in range(TRIES if self.size.rounds > 1 else 1):
            try:
                runs.append(run())
            except ERRORS as error:
                self.failed.append(f"{case}, {side.name}: {error}")
                print(self.failed[-1], flush=True)
                break
            if runs[-1].use.disturbance <= quiet.OTHERS_CORES_MAX:
                break
        if runs:
            self.add(case, side, min(runs, key=lambda one: one.use.disturbance))

    def add(self, case: str, side: Side, run: Run) -> None:
        """Note the values of a run."""
        for metric, value in run.values.items():
            self.record.add(case, metric, side.name, value)
        self.record.add(case, "generatorCores", side.name, run.generator)
        seen = self.observed.setdefault(case, [])
        seen.append(Observation(side.name, run.use, run.generator))
        self.record.remarks[case] = quiet.remarks(seen)
        if run.values.get("rolled") == 0:
            self.record.remarks[case].append(f"the log did not roll ({side.name})")
        values = ", ".join(f"{metric} {value:,.5g}" for metric, value in run.values.items())
        disturbed = f"others {run.use.others:.2f}, stolen {run.use.stolen:.2f}"
        print(f"{case}, {side.name}: {values}; cores: generator {run.generator:.2f}, {disturbed}", flush=True)

    def brokers(self) -> None:
        """One broker of each side, for each way of flushing."""
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            self.cases([case for case in BROKER_CASES if case.flush == flush], {"flushDiskType": flush})

    def loaded(self) -> None:
        """End to end while the disk is busy."""
        self.cases(list(LOADED_CASES), {"flushDiskType": "ASYNC_FLUSH"})

    def messages(self) -> None:
        """Transactions, timers and filtered pulls."""
        settings = {"flushDiskType": "ASYNC_FLUSH", **message_cases.SETTINGS}
        self.cases(list(MESSAGE_CASES), settings, message_cases.prewarm)

    def pops(self) -> None:
        """Pops and their acks, and pops that wait."""
        self.cases(list(POP_CASES), {"flushDiskType": "ASYNC_FLUSH"}, pop_cases.prewarm)

    def secure(self) -> None:
        """Sends and pulls by TLS, each request signed."""
        with stack.Workspace("bench-secure") as folder:
            secured = Secured(folder)
            settings = {"flushDiskType": "ASYNC_FLUSH", **secured.settings}
            self.cases(list(SECURE_CASES), settings, secure_cases.prewarm, secured)

    def cases(
        self,
        cases: list[Case],
        settings: Mapping[str, str],
        warm_up: Callable[[Running, Context], None] = prewarm,
        secured: Secured | None = None,
    ) -> None:
        """Cases in all rounds, each on all sides in turn."""
        chosen = [case for case in cases if not self.options.cases or case.name in self.options.cases]
        if not chosen:
            return
        with (
            stack.Workspace("bench") as folder,
            self.started(folder, settings, secured) as brokers,
        ):
            load = self.load if secured is None else replace(self.load, flags=secured.flags)
            context = Context(load, self.size, {})
            for running in brokers:
                running.thaw()
                warm_up(running, context)
                running.freeze()
            for number in range(self.size.rounds):
                for case in chosen:
                    self.case(case, rotated(brokers, number), context, folder)
            if chosen[0] in BROKER_CASES and settings["flushDiskType"] == "ASYNC_FLUSH":
                self.memory("loadedMiB", brokers)

    def started(
        self, folder: Path, settings: Mapping[str, str], secured: Secured | None
    ) -> AbstractContextManager[list[Running]]:
        """A broker of every side."""
        if secured is None:
            return sides.started(self.sides, folder, settings, pin=self.options.pin)
        measured = [secured.side(side) for side in self.sides]
        return sides.started(measured, folder, settings, pin=self.options.pin, access=secured.administrator)

    def case(self, case: Case, brokers: Sequence[Running], context: Context, folder: Path) -> None:
        """One case in one round."""
        sides.sync_disk(folder)
        quiet.await_quiet(self.patience)
        if case.floor is not None:
            self.record.add(case.name, "perSecond", FLOOR, case.floor(folder))
        for running in brokers:
            sides.sync_disk(folder)
            running.thaw()
            time.sleep(THAW_SECONDS)
            self.observe(case.name, running.side, partial(case.act, running, context))
            running.freeze()

    def memory(self, metric: str, brokers: Sequence[Running]) -> None:
        """Pages of each broker that are no pages of files."""
        for running in brokers:
            value = sum(memory_mib(pid)["anonymous"] for pid in running.tree())
            self.record.add("memory", metric, running.side.name, value)

    def starts(self) -> None:
        """From the start of a process to its first acknowledged send, with its files in the page cache and without."""
        for (
            side
        ) in self.sides:  # once unmeasured: Python writes its bytecode, and files come into the page cache
            with stack.Workspace("bench-start") as folder, sides.started([side], folder, {}, pin=False):
                pass
        for number in range(self.size.rounds):
            for metric in ("warmMs", "coldMs"):
                quiet.await_quiet(self.patience)
                for side in rotated(self.sides, number):
                    if metric == "coldMs":
                        side.evict_files()
                    with (
                        stack.Workspace("bench-start") as folder,
                        sides.started([side], folder, {}, pin=self.options.pin) as brokers,
                    ):
                        self.record.add("start", metric, side.name, brokers[0].started_ms)
                        print(f"start, {side.name}: {metric} {brokers[0].started_ms:.0f}", flush=True)
                        if metric == "warmMs":
                            brokers[0].thaw()
                            time.sleep(IDLE_SECONDS)
                            self.memory("idleMiB", brokers)

    def groups(self) -> None:
        """Three replicas, one side after the other."""
        size, pin = self.size, self.options.pin
        for number in range(self.size.rounds):
            for side in rotated(self.sides, number):
                quiet.await_quiet(self.patience)
                try:
                    for case, run in replicas.sends(side, self.load, size.seconds, size.warm, pin=pin):
                        self.add(case, side, run)
                except ERRORS as error:
                    self.failed.append(f"replicas, {side.name}: {error}")

    def slaves(self) -> None:
        """An empty slave, one side after the other, and the floor below it."""
        size = min(self.size.load_bytes, 2 * GIB)
        for number in range(self.size.rounds):
            self.record.add("empty-slave", "MiBps", FLOOR, replicas.copy_floor(min(size, GIB)))
            for side in rotated(self.sides, number):
                quiet.await_quiet(self.patience)
                copy = partial(replicas.empty_slave, side, self.load, size, pin=self.options.pin)
                self.observe("empty-slave", side, copy)


def rotated(sequence: Sequence[T], number: int) -> list[T]:
    """In the order of this round: nobody always comes first, or after the same one."""
    first = number % len(sequence)
    return [*sequence[first:], *sequence[:first]]


def permitted() -> bool:
    """Whether sessions may be raised, tried on a process that does nothing."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        return priority.raise_session(process.pid)
    finally:
        process.kill()
        process.wait()


def described(side: Side) -> str:
    """What a side is, for the record."""
    if side.make == "java":
        return "RocketMQ 5.5.0"
    code = "from brokerset_formats import native; print(native.description)"
    done = subprocess.run(
        [side.python, "-c", code], capture_output=True, text=True, env={**os.environ, **side.variables}
    )
    if done.returncode:
        raise SystemExit(f"side {side.name} cannot run: {done.stderr.strip().splitlines()[-1]}")
    own = ",".join(f"{key}={value}" for key, value in side.settings.items())
    parts = [history.commit_of(side.checkout), f"native core {done.stdout.strip()}", own]
    return ", ".join(part for part in parts if part)


def chosen_sides(options: argparse.Namespace) -> list[Side]:
    """The sides that are asked for; the first one is the base."""
    found = [sides.SIDES[name] for name in options.sides or sides.SIDES]
    if options.sides is None and native.core is None:
        found.remove(sides.NATIVE)
        print(f"without the side `native`: the native core is {native.description}", flush=True)
    ours = next((side for side in reversed(found) if side.make == "ours"), sides.PYTHON)
    if options.against is not None:
        checkout = options.against.resolve()
        other = replace(
            ours, name=f"{ours.name} of {history.commit_of(checkout) or checkout.name}", checkout=checkout
        )
        found.insert(0, other) if sides.JAVA not in found else found.append(other)
    found += [sides.parse_variant(text, ours) for text in options.settings]
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ends the process with a message for what does not fit."""

    def names(known: Sequence[str]) -> Callable[[str], list[str]]:
        def split(text: str) -> list[str]:
            if wrong := [name for name in text.split(",") if name not in known]:
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(wrong)}; known: {', '.join(known)}")
            return text.split(",")

        return split

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--rounds", type=int, help="pairs; by default as the size says")
    parser.add_argument("--seconds", type=float, help="of each run; by default as the size says")
    parser.add_argument("--sides", type=names(list(sides.SIDES)), help="the first one is the base")
    parser.add_argument("--groups", type=names(GROUPS), help=f"of {', '.join(GROUPS)}")
    cases = [case.name for case in (*BROKER_CASES, *LOADED_CASES, *MESSAGE_CASES, *POP_CASES, *SECURE_CASES)]
    parser.add_argument("--cases", type=names(cases), default=[], help="only these of one broker")
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="a checkout of another commit, one more side"
    )
    parser.add_argument("--with", dest="settings", action="append", default=[], metavar="KEY=VALUE,…",
                        help="ours with other settings, one more side")  # fmt: skip
    parser.add_argument("--pin", action="store_true", help="servers on core 0, the load generator on core 1")
    parser.add_argument(
        "--strict", action="store_true", help="refuse to measure while others use the machine"
    )
    parser.add_argument("--wait", type=float, default=WAIT_SECONDS, metavar="SECONDS",
                        help="for a quiet machine before each case (%(default)g)")  # fmt: skip
    parser.add_argument("--record", action="store_true", help=f"add the results to {history.FILE}")
    parser.add_argument("--out", type=Path, default=stack.ROOT / "build" / "bench.jsonl")
    options = parser.parse_args(arguments)
    if options.groups is None:
        options.groups = ["broker"] if options.size == "smoke" else list(GROUPS)
    return options


def main() -> int:
    options = parse()
    size = SIZES[options.size]
    size = replace(size, rounds=options.rounds or size.rounds, seconds=options.seconds or size.seconds)
    measured = chosen_sides(options)
    if any(side.make == "java" for side in measured):
        subprocess.run([str(stack.PEERS / "bin" / "fetch")], check=True, stdout=subprocess.DEVNULL)
    # Servers lead sessions of their own, some stand still: they are ended whatever ends this.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    bench = Bench(options, measured, size)
    refused, target = "", options.out
    try:
        bench.run()
        target = stack.ROOT / history.FILE if options.record else target  # only what came to its end
    except quiet.MachineBusy as error:
        refused = str(error)
    finally:
        end(bench, target, refused)
    return 1 if bench.failed or refused else 0


def end(bench: Bench, target: Path, refused: str) -> None:
    """Keep and print what was measured, whatever ended it."""
    if bench.record.cases:
        history.append(target, bench.record)
        print(f"\n{report.results(bench.record)}\n")
    for title, lines in (
        ("goals that are missed", report.missed(bench.record)),
        ("disturbed", report.disturbances(bench.record)),
        ("set", bench.record.notes),
        ("failed", bench.failed),
        ("refused", [refused] if refused else []),
    ):
        for line in lines:
            print(f"{title}: {line}")


if __name__ == "__main__":
    sys.exit(main())
