"""What the machine does, read off `/proc`: processor time of ours, of other programs, of the host that takes it away."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")
KERNEL_THREADS = 2
"""The process that all kernel threads are children of."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    parent: int
    seconds: float
    """Processor time with all its threads, and that of children that have ended and were waited for."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Seconds so far; only differences mean something."""

    at: float
    busy: float
    """Of all cores together in processes, kernel threads with them; not in interrupts."""

    stolen: float
    kernel: float
    own: float
    """Of this process and all below it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Cores that were used between two snapshots."""

    others: float
    """Programs that have nothing to do with the measurement."""

    stolen: float
    """Taken away by the hypervisor."""

    @property
    def disturbance(self) -> float:
        """What the measured programs could not have."""
        return self.others + self.stolen


def parse_process(text: str) -> Process:
    """From the text of `/proc/PID/stat`; a name may have spaces and parentheses in it."""
    fields = text.rpartition(")")[2].split()
    return Process(int(fields[1]), sum(map(int, fields[11:15])) / TICK)


def processes() -> dict[int, Process]:
    """The process table; what ends meanwhile is left out."""
    found = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = parse_process((entry / "stat").read_text())
    return found


def descendants(table: Mapping[int, Process], roots: Iterable[int]) -> list[int]:
    """The roots that are there, and everything below them."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, process in table.items():
        children[process.parent].append(pid)
    found: dict[int, None] = {}
    pending = [root for root in roots if root in table]
    while pending:
        pid = pending.pop()
        if pid not in found:
            found[pid] = None
            pending += children[pid]
    return list(found)


def tree_seconds(table: Mapping[int, Process], roots: Iterable[int]) -> float:
    """Processor time of these processes and all below them."""
    return sum(table[pid].seconds for pid in descendants(table, roots))


def parse_machine(line: str) -> tuple[float, float]:
    """Busy and stolen seconds, from the first line of `/proc/stat`."""
    user, nice, system, _idle, _wait, _irq, _softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system) / TICK, steal / TICK


def snapshot() -> Snapshot:
    """The machine now."""
    table = processes()
    busy, stolen = parse_machine((PROC / "stat").read_text().partition("\n")[0])
    kernel = sum(process.seconds for process in table.values() if process.parent == KERNEL_THREADS)
    return Snapshot(time.monotonic(), busy, stolen, kernel, tree_seconds(table, [os.getpid()]))


def usage(before: Snapshot, after: Snapshot) -> Usage:
    """Cores between the two; counters of ticks may make others slightly negative, which is nothing."""
    seconds = max(after.at - before.at, 1e-3)
    ours = (after.own - before.own) + (after.kernel - before.kernel)
    others = after.busy - before.busy - ours
    return Usage(max(0.0, others / seconds), max(0.0, (after.stolen - before.stolen) / seconds))
