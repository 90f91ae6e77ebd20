"""Cases of a replicated group: sends that all of three replicas have, and an empty slave that copies a log.

Groups are started one after the other in each round. Stopped ones would be given up by their controllers, and nine JVMs
that wait would use a third of a core.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.bench import floors, generator, machine, priority, replication, sides
from tests.bench.cases import BODY
from tests.bench.generator import Generator, Run
from tests.bench.sides import Side

from brokerset_bench.server_process import ServerProcess
from brokerset_bench.sets import BenchSet
from brokerset_rig import stack

WINDOWS = (1, 16, 64)
REPLICAS = 3
PREWARM_SECONDS = {"java": 10.0, "ours": 2.0}
COPY_SECONDS_MAX = 300.0
POLL_SECONDS = 0.02
MIB = 1 << 20
LOG_FILE_BYTES = 1 << 30
"""An empty slave of Java's need not get more than the last file."""


@contextmanager
def planned(side: Side, replicas: int, log_file_bytes: int, *expected: str, pin: bool) -> Iterator[BenchSet]:
    """A group of this side that is not started yet; ends what was started of it."""
    with replication.topology(side.make, replicas, log_file_bytes, 0, *expected) as group:
        for process in (*group.controllers, *group.brokers, *group.others):
            if side.make == "ours":
                process.arguments = (side.python, *process.arguments[1:])
            arguments = list(process.arguments)
            process.arguments = tuple(priority.pinned(arguments, priority.SERVER_CORE if pin else None))
            process.environment = {**process.environment, **side.variables}
        yield group


def start(group: BenchSet, brokers: list[ServerProcess]) -> str:
    """Start it; returns the address of the master, when all brokers are in sync and it serves."""
    view = replication.start(group, brokers)
    sides.await_first_send(port_of(view.master))
    for process in (*group.controllers, *group.brokers):
        if process.running:
            priority.raise_session(process.pid)
    return view.master


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def cpu_seconds(group: BenchSet) -> float:
    """Processor time of the brokers so far, with all below them."""
    return machine.tree_seconds(machine.processes(), [process.pid for process in group.brokers])


def sends(
    side: Side, load: Generator, seconds: float, warm: float, *, pin: bool
) -> Iterator[tuple[str, Run]]:
    """Sends that wait for all of three replicas, by case."""
    with planned(side, REPLICAS, LOG_FILE_BYTES // 4, pin=pin) as group:
        master = start(group, list(group.brokers))
        topic = generator.new_topic(port_of(master), "prewarm")
        prewarm = {"size": BODY, "window": 64, "seconds": PREWARM_SECONDS[side.make], "warm": 0}
        load.answer(master, "send", topic, prewarm)
        for window in WINDOWS:
            topic = generator.new_topic(port_of(master), "send")
            flags = {"size": BODY, "window": window, "seconds": seconds, "warm": warm}
            runs = [("send", topic, flags)]
            yield f"replicas-{window}", load.measured(master, lambda: cpu_seconds(group), runs)


def empty_slave(side: Side, load: Generator, size: int, *, pin: bool) -> Run:
    """A replica without any data that is started next to a master with `size` bytes of log."""
    # A group of ours waits for all expected replicas before its first election; here the second one comes later.
    with planned(side, 2, LOG_FILE_BYTES, "expectedReplicas=1", pin=pin) as group:
        master, slave = group.brokers
        address = start(group, [master])
        topic = generator.new_topic(port_of(address), "copied")
        flags = {"size": 4096, "count": max(1, size // (4096 + 120)), "batch": 8, "window": 16}
        load.answer(address, "send", topic, flags)
        target = generator.log_end(port_of(address))
        shutil.rmtree(replication.store_of(slave), ignore_errors=True)
        sides.sync_disk(replication.store_of(master))  # the slave's bytes are not to wait for the master's
        before = machine.snapshot()
        slave.start()
        priority.raise_session(slave.pid)
        samples = copied(slave, target, before.at + COPY_SECONDS_MAX)
        after = machine.snapshot()
        values = {
            "MiBps": steady_rate(samples, target),
            "caughtUpSeconds": samples[-1][0] - before.at,
        }
        return Run(values, machine.usage(before, after), 0.0)


def copied(slave: ServerProcess, target: int, deadline: float) -> list[tuple[float, int]]:
    """When the slave had how much of the log, until it has all. Raises `StackError`."""
    samples: list[tuple[float, int]] = []
    port = port_of(slave.address)
    while time.monotonic() < deadline:
        if not slave.running:
            raise stack.StackError(f"{slave.name} has ended:\n{slave.log_tail()}")
        with suppress(OSError, KeyError, ValueError):
            end = generator.log_end(port)
            if not samples or end != samples[-1][1]:
                samples.append((time.monotonic(), end))
            if end >= target:
                return samples
        time.sleep(POLL_SECONDS)
    raise stack.StackError(
        f"the slave has {samples[-1:]} of {target} bytes after {COPY_SECONDS_MAX:g} s:\n{slave.log_tail()}"
    )


def steady_rate(samples: list[tuple[float, int]], target: int) -> float:
    """MiB a second between the first tenth and the last one."""
    low = next(sample for sample in samples if sample[1] >= target * 0.1)
    high = next(sample for sample in samples if sample[1] >= target * 0.9)
    if low == high:
        # All of it came between two samples; then the wait before the first of them counts as well.
        low = samples[max(0, samples.index(high) - 1)]
    return (high[1] - low[1]) / MIB / max(high[0] - low[0], POLL_SECONDS)


def copy_floor(size: int) -> float:
    """What a slave cannot beat: bytes over loopback into a file, in MiB a second."""
    with stack.Workspace("copy-floor") as folder:
        return floors.copied_mib_per_second(folder, size)
