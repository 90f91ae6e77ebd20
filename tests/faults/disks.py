"""Brokers on disks that really fail: `disks.py [--runs 10] [--seed N] [--only log,queue,...]`.

* `log`, `queue`: an ext4 on a loop device whose thin backing file gets no more space, so writing back fails with EIO and the kernel drops
  the pages. The broker works under load, fails, the space comes back, it is started again on the same boot, works on, and the file
  system is unmounted and mounted, so that nothing of the page cache is left. `queue` has the commit log on another, sound file system.
* `settle`: the same disk, and a preallocated file whose bytes end anywhere in a page: what the page cache has and the disk lacks is
  brought there.
* `syncs`: fsync, fdatasync, msync and pwrite fail at random (LD_PRELOAD) in a broker that is killed or ended, and started again.
* `master-full`, `slave-full`: the disk of one broker of a group of two has no room for a while; now and then it is killed meanwhile.

In the end each acknowledged message is there with its body at the queue offset that the answer named, queues are dense, no offset was
given twice, CRCs are right, keys are found; in the group, all logs are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from brokerset_bench.probes import Prober
from brokerset_broker.store import mapping
from brokerset_rig import stack
from brokerset_rig.acked_load import QUEUES, Ledger, create_topic, verify, write
from brokerset_rig.failing_disks import (
    MIB,
    DiskError,
    FailingSyncs,
    KeptPages,
    SmallDisk,
    ThinDisk,
    enter_own_namespace,
    missing,
)
from brokerset_rig.judged_load import judged_load
from brokerset_rig.own_group import OwnGroup
from brokerset_rig.stack import StackError
from brokerset_runtime.logs import configure_logs
from brokerset_spec.plan import broker_folder

WRITERS = 2
FAIL_SECONDS_MAX = 25.0
"""Within this time a broker on a broken disk has noticed: queues are synced every 10 s."""

ROOM = {"diskMaxUsedSpaceRatio": "100", "diskSpaceCleanForciblyRatio": "100", "diskSpaceWarningLevelRatio": "100",
        "cleanFileForciblyEnable": "false"}  # fmt: skip
"""Nothing is deleted, nor refused, before the disk is really full."""

SMALL = {"mappedFileSizeCommitLog": str(4 * 1024 * 1024), "maxMessageSize": str(1024 * 1024),
         "mappedFileSizeConsumeQueue": "60000", "maxHashSlotNum": "10000", "maxIndexNum": "40000", **ROOM}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run."""

    acknowledged: int
    lost: int
    twice: int
    note: str


class Load:
    """Writers on one broker."""

    def __init__(self, port: int, source: random.Random) -> None:
        self._port = port
        self._source = source
        self._threads: list[threading.Thread] = []
        self._round = 0
        self.ledger = Ledger()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write as long as the block runs."""
        self._round += 1
        self.ledger.stop.clear()
        threads = [
            threading.Thread(
                target=write,
                args=(self._port, writer, self._round, self.ledger, self._source.getrandbits(32)),
            )
            for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ledger.stop.set()
            for thread in threads:
                thread.join()

    def acknowledged(self, count: int) -> None:
        """Wait until so many more are acknowledged. Raises `StackError`."""
        goal = self.ledger.count + count
        until(lambda: self.ledger.count >= goal, f"{count} more messages are acknowledged")

    def refused(self) -> None:
        """Wait until nothing is acknowledged any more. Raises `StackError`."""

        def stopped() -> bool:
            before, refused = self.ledger.count, self.ledger.refused
            time.sleep(0.3)  # what is waited for is that nothing happens
            return self.ledger.count == before and self.ledger.refused > refused

        until(stopped, "the broker has noticed that its disk fails")

    def outcome(self, note: str) -> Outcome:
        """Compare what was acknowledged with everything that there is."""
        problems = verify(self._port, self.ledger, [0] * QUEUES, self._source)
        twice = len(self.ledger.twice)
        for problem in problems[:5]:
            print(f"  {problem}", flush=True)
        return Outcome(self.ledger.count, len(problems) - twice, twice, note)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + FAIL_SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise StackError(f"not within {FAIL_SECONDS_MAX:g} s: {what}")
        time.sleep(0.02)


def end(broker: stack.Server, source: random.Random) -> str:
    """As a crash does, or in order as far as that is possible."""
    how = source.choice([signal.SIGKILL, signal.SIGTERM])
    broker.stop(how)
    return how.name


def thin(work: Path, source: random.Random, *, queue: bool) -> Outcome:
    """The cases `log` and `queue`."""
    (port,) = stack.free_ports(1, below=2)
    sync = source.random() < 0.5
    settings = {**SMALL, "flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"}
    with ThinDisk(work) as disk:
        settings["storePathRootDir"] = str(disk.folder / "store")
        folder = work if queue else disk.folder / "store"
        settings["storePathCommitLog"] = str(folder / "commitlog")
        broker = stack.our_broker(work / "broker", port, "", settings)
        load = Load(port, source)
        with broker:
            create_topic(port)  # makes the folder of the log
            kept = nullcontext() if sync else KeptPages(Path(settings["storePathCommitLog"]))
            with kept:  # what only the page cache has may be lost without SYNC_FLUSH
                with load.running():
                    load.acknowledged(2000)
                    disk.fill()
                    load.refused()
                disk.make_room()
                note = f"{settings['flushDiskType']}, {end(broker, source)}"
                if sync and source.random() < 0.5:
                    disk.evict()
                    note += ", evicted before the restart"
                broker.start()
            with load.running():
                load.acknowledged(500)
            note += f", then {end(broker, source)} and evicted"
            disk.evict()
            broker.start()
            with load.running():
                load.acknowledged(100)
            return load.outcome(note)


def log(work: Path, source: random.Random) -> Outcome:
    """The commit log, queues and index are on the disk that fails."""
    return thin(work, source, queue=False)


def queue(work: Path, source: random.Random) -> Outcome:
    """Queues and index alone are on the disk that fails."""
    return thin(work, source, queue=True)


def settle(work: Path, source: random.Random) -> Outcome:
    """A file without a broker, so that each end of its bytes is as likely."""
    size, end = 4 * MIB, source.randrange(1, 4 * MIB)
    content = source.randbytes(end)
    with ThinDisk(work) as disk:
        path = disk.folder / "store" / "log"
        path.parent.mkdir()
        with ExitStack() as locked:
            with path.open("wb", buffering=0) as stream:
                os.posix_fallocate(stream.fileno(), 0, size)
                locked.enter_context(KeptPages(path.parent))
                disk.fill()
                stream.write(content)
                try:
                    os.fsync(stream.fileno())
                except OSError:
                    disk.make_room()
                else:
                    raise StackError("the disk took what it has no room for")
            mapped = source.random() < 0.5
            if not mapped:
                locked.close()
            lacking = mapping.settle(path, 0)
        disk.evict()
        kept = path.read_bytes() == content + bytes(size - end)
    return Outcome(end, 0 if kept else 1, 0, f"{'mapped, ' * mapped}{lacking:,} bytes were not on the disk")


def syncs(work: Path, source: random.Random) -> Outcome:
    """Calls fail at random, a few times in a row."""
    (port,) = stack.free_ports(1, below=2)
    faults = FailingSyncs(work)
    broker = stack.our_broker(work, port, "", {**SMALL, "flushDiskType": "SYNC_FLUSH"})
    broker.environment.update(faults.environment)
    load = Load(port, source)
    notes = []
    with broker:
        create_topic(port)
        for _ in range(3):
            with load.running():
                load.acknowledged(300)
                part = source.choice(["/commitlog/", "/consumequeue/", "/index/", "/store/"])
                faults.begin(part, source.choice([1000, 200, 20]))
                time.sleep(source.uniform(0.05, 1.0))  # the random moment is what is tested
            how = end(broker, source)
            notes.append(f"{part} {how}")
            if source.random() < 0.3:  # a start may meet it, too: then it ends, or serves
                try:
                    broker.start()
                    broker.stop(signal.SIGKILL)
                except StackError:
                    broker.stop(signal.SIGKILL)
            faults.end()
            broker.start()
        return load.outcome(", ".join(notes))


def full(work: Path, source: random.Random, *, master: bool) -> Outcome:
    """The cases `master-full` and `slave-full`."""
    del work  # a group has a folder of its own
    settings = tuple(f"{key}={value}" for key, value in SMALL.items())
    with ExitStack() as stack_of_disks:
        group = OwnGroup("disks", replicas=2, settings=settings)
        disks = {
            broker.address: stack_of_disks.enter_context(
                SmallDisk(broker_folder(group.folder, broker.name) / "store", 96)
            )
            for broker in group.set.brokers
        }
        with group:
            return asyncio.run(_full(group, disks, source, master))


async def _full(group: OwnGroup, disks: dict[str, SmallDisk], source: random.Random, master: bool) -> Outcome:
    async with Prober() as prober:
        async with judged_load(group, prober, "disks", rate=1500) as load:
            look = await group.look(prober)
            broker = next(b for b in group.set.brokers if (b.address == look.master) is master)
            disk = disks[broker.address]
            await load.more_acknowledged(500)
            disk.fill(source.randrange(0, 6 * 1024 * 1024))
            note = f"{broker.name} full"
            await asyncio.sleep(source.uniform(2.0, 5.0))  # about 2 MB/s are written: it gets full meanwhile
            if source.random() < 0.5:
                broker.send(signal.SIGKILL)
                while broker.running:  # noqa: ASYNC110  # a process sets no event
                    await asyncio.sleep(0.02)
                broker.start()
                await asyncio.sleep(source.uniform(0.5, 2.0))
                note += ", killed and started meanwhile"
            disk.make_room()
            for each in group.set.brokers:
                if not each.running:
                    note += f", {each.name} had ended"
                    each.start()
            await group.all_in_sync(prober)
            await load.more_acknowledged(200)
        if wrong := group.tracebacks():
            raise StackError(f"unexpected exceptions are in {', '.join(wrong)}")
        return Outcome(load.verdict.acked, 0, 0, note)


def master_full(work: Path, source: random.Random) -> Outcome:
    """The master's disk is full for a while."""
    return full(work, source, master=True)


def slave_full(work: Path, source: random.Random) -> Outcome:
    """The slave's disk is full for a while."""
    return full(work, source, master=False)


CASES: dict[str, Callable[[Path, random.Random], Outcome]] = {
    "log": log, "queue": queue, "settle": settle, "syncs": syncs, "master-full": master_full, "slave-full": slave_full,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each case")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", default=",".join(CASES), help="some of: " + ",".join(CASES))
    options = parser.parse_args()
    lacking = missing()
    if lacking is None:
        enter_own_namespace()
    print(f"disks: {options.runs} runs of each case, seed {options.seed}", flush=True)
    configure_logs("error", json=False)
    wanted = options.only.split(",")
    if lacking is not None:
        wanted = [name for name in wanted if name == "syncs"]
        print(f"LEFT OUT: every case but `syncs`, because {lacking}", flush=True)
    failed = False
    for name in wanted:
        total = [0, 0, 0]
        for number in range(options.runs):
            source = random.Random(f"{options.seed} {name} {number}")
            began = time.monotonic()
            with stack.Workspace(f"disks-{name}") as work:
                outcome = CASES[name](work, source)
            for at, value in enumerate((outcome.acknowledged, outcome.lost, outcome.twice)):
                total[at] += value
            seconds = time.monotonic() - began
            print(f"{name} {number}: {outcome} in {seconds:.1f} s", flush=True)
        acknowledged, lost, twice = total
        print(
            f"{name}: {options.runs} runs, {acknowledged:,} acknowledged, {lost} lost or wrong, {twice} offsets given twice",
            flush=True,
        )
        failed = failed or lost > 0 or twice > 0
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DiskError, StackError) as error:
        print(f"disks: {error}", flush=True)
        sys.exit(1)
