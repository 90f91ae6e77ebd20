"""What a process and all below it have used, from `/proc`: a Spark job is a driver, Java and Python workers."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    """What a process is in a Spark application."""

    DRIVER = "driver"
    """The Python program that began it."""

    JVM = "jvm"
    """Java of the driver."""

    EXECUTOR = "executor"
    """Java of an executor outside the driver."""

    WORKER = "worker"
    """Python that runs tasks, or plans a data source."""


@dataclass(frozen=True, slots=True)
class Usage:
    """A process now."""

    kind: Kind
    cpu_seconds: float
    """With children that have ended and were waited for."""
    peak_mib: float
    """Most resident memory that it had so far; pages that are shared count in each process."""


def usage_below(root: int) -> dict[int, Usage]:
    """By process id; those that ended meanwhile are left out."""
    parents: dict[int, int] = {}
    cpu: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            cpu[int(folder.name)] = sum(map(int, fields[11:15])) / tick
    wanted = {root}
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    found = {}
    for pid in wanted:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
            found[pid] = Usage(_kind(command, is_root=pid == root), cpu.get(pid, 0.0), peak / 1024)
    return found


def _kind(command: list[bytes], *, is_root: bool) -> Kind:
    if is_root:
        return Kind.DRIVER
    if not command[0].endswith(b"java"):
        return Kind.WORKER
    return Kind.EXECUTOR if any(b"CoarseGrainedExecutorBackend" in each for each in command) else Kind.JVM


def peaks(found: dict[int, Usage]) -> dict[str, float]:
    """The largest process of each kind, in MiB."""
    most: dict[str, float] = {}
    for each in found.values():
        most[each.kind.value] = max(most.get(each.kind.value, 0.0), each.peak_mib)
    return most
