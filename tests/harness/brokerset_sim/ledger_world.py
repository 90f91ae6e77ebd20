"""One simulated DLedger group: whole brokers, clients, one network, one virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.folder import StoreUnusable
from brokerset_broker.store.ledger import FileLedger
from brokerset_broker.store.message_store import MessageStore
from brokerset_formats.dledger import INDEX_UNIT_SIZE
from brokerset_formats.hosts import Host as RecordHost
from brokerset_sim import loop
from brokerset_sim.history import Violation
from brokerset_sim.ledger_chaos import LedgerChaos
from brokerset_sim.ledger_checker import LedgerChecker
from brokerset_sim.ledger_clients import QUEUES, TOPIC, Committer, LedgerClient, Producer, Reader
from brokerset_sim.ledger_node import LedgerNode, SimBroker
from brokerset_sim.ledger_plan import LedgerPlan, draw_ledger
from brokerset_sim.loop import VirtualLoop, run
from brokerset_sim.network import Network, Weather
from brokerset_sim.page_files import PageFiles, on_page_files
from brokerset_sim.process import Process, real_error
from brokerset_sim.world import Outcome, logs_as_trace

PROGRESS = "progress after the faults"
PROCESS_DIED = "processes live"
PROCESS_ENDS = "tasks of a killed process end"

LOOK_SECONDS = 0.02
"""Between two examinations of all members."""

START_SECONDS = 3.0
HEALING_SECONDS = 8.0
ENDING_SECONDS = 30.0
"""Until all tasks of killed processes are gone: a run that waits for more would never end."""

EXPIRED_SECONDS = 1_500_000_000
"""A time of a file's last change, in seconds since 1970, that is long ago for everybody's clock."""

IDLE_TURNS_MAX = 10_000
"""Turns of the loop without any time: far more than anything here needs."""

INDEX_FILE_BYTES = INDEX_UNIT_SIZE * 256

MEMORY = Path("/dev/shm")


class LedgerWorld:
    """A run. Make one, await `run`, read `failure`."""

    draw: Callable[[int], LedgerPlan] = staticmethod(draw_ledger)
    """The plan of a seed."""

    settling_seconds = HEALING_SECONDS
    """Longest time until nothing is left to be done, once clients send nothing more."""

    def __init__(
        self, seed: int, plan: LedgerPlan, place: Path, hosts: dict[str, PageFiles], *, show: bool = False
    ) -> None:
        self.seed = seed
        self.plan = plan
        running = asyncio.get_running_loop()
        assert isinstance(running, VirtualLoop)
        self.loop = running
        self.show = show
        self.failure: Violation | None = None
        self.counts: Counter[str] = Counter()
        self.events = 0
        self.trace = 0
        self.quiet = False
        """Clients send nothing more."""

        self.healing = False
        self.divide = 0
        """Where the DLedger's log begins, behind an old one."""

        self.graveyard: list[tuple[Process, SimBroker | None]] = []
        self._ending: dict[Process, None] = {}
        self._restarts: list[asyncio.Task[None]] = []
        self._story: asyncio.Task[None] | None = None
        self.clients_made = 0
        self.dead_clients: list[Process] = []
        self.checker = self._make_checker()
        self.network = Network(self.loop, self.random_for("network"), self.checker)
        self.network.weather = Weather(delay_max=0.004)
        self.peers = ";".join(f"n{i}-10.0.0.{i + 1}:40911" for i in range(plan.members))
        self.nodes: list[LedgerNode] = []
        for number in range(plan.members):
            name = f"host-{number}"
            hosts[name] = PageFiles(place / name, self.random_for(f"pages {name}"))
            self.nodes.append(self._make_node(number, hosts[name]))
        self.clients: list[LedgerClient] = []
        for kind, count in self._kinds_of_clients():
            for number in range(count):
                self.clients.append(kind(self, f"{kind.__name__.lower()}-{number}"))
        self.chaos = self._make_chaos()

    # -- parts, of which worlds with more have others ---------------------------------------------------

    def _make_checker(self) -> LedgerChecker:
        return LedgerChecker(self)

    def _make_node(self, number: int, files: PageFiles) -> LedgerNode:
        return LedgerNode(self, number, files)

    def _kinds_of_clients(self) -> Iterable[tuple[type[LedgerClient], int]]:
        return (Producer, self.plan.producers), (Reader, 2), (Committer, 1)

    def _make_chaos(self) -> LedgerChaos:
        return LedgerChaos(self)

    # -- for parts ----------------------------------------------------------------------------------------

    def random_for(self, label: str) -> random.Random:
        """Dice of one part, so that another throw somewhere does not change all others."""
        return random.Random(f"{self.seed}/ledger/{label}")

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""
        self.events += 1
        line = f"{self.loop.time():.4f} {kind} {' '.join(map(str, what))}"
        self.trace = zlib.crc32(line.encode(), self.trace)
        if self.show:
            print(line)

    def fail(self, violation: Violation) -> None:
        """Something that must never happen did: the run ends."""
        if self.failure is None:
            self.failure = violation
            self.note("violated", violation)
            if self._story is not None:
                self._story.cancel()

    def process_died(self, process: Process, error: BaseException) -> None:
        """A process ended by itself."""
        if process in self._ending:
            return
        cause = real_error(error)
        node: LedgerNode | None = process.node
        if (
            node is not None
            and node.files.has_failed
            and isinstance(cause, StoreUnusable | StoreRefused | OSError)
        ):
            self.note("died", process.name, type(cause).__name__)
            self.counts["died of its disk"] += 1
            power = self.plan.sync_flush and self.random_for(f"died {process.name}").random() < 0.3
            self.loop.call_soon(self._restart_dead, node, process, power)
            return
        violation = Violation(PROCESS_DIED, f"{process} ended: {cause!r}")
        violation.__cause__ = cause
        self.fail(violation)

    def on_disk(self, node: LedgerNode, position: int, size: int) -> bytes:
        """What a member has there of the DLedger's log; with synchronous flushing, on its disk."""
        return self._on_disk(node, node.files.folder / f"dledger-{node.name}" / "data", position, size)

    def _on_disk(self, node: LedgerNode, folder: Path, position: int, size: int) -> bytes:
        start = position - position % self.plan.file_bytes
        path = folder / f"{start:020d}"
        if not path.exists():
            return b""
        if self.plan.sync_flush:
            return bytes(
                node.files.synced(path, self.plan.file_bytes)[position - start : position - start + size]
            )
        with path.open("rb") as stream:
            stream.seek(position - start)
            return stream.read(size)

    # -- faults -------------------------------------------------------------------------------------------

    def stop(self, node: LedgerNode, *, power: bool) -> None:
        """Kill a process; it is started again after a while."""
        node.stop(power=power)
        self._restarts.append(self.loop.create_task(self._restart(node)))

    def _restart_dead(self, node: LedgerNode, process: Process, power: bool) -> None:
        if node.process is process and process.alive:
            self.stop(node, power=power)

    async def end(self, node: LedgerNode) -> None:
        """End a process in order; it is started again after a while."""
        process = node.process
        if process is None or not node.up or process in self._ending or node.broker is None:
            return
        self._ending[process] = None
        await node.end()
        await self._restart(node)

    async def _restart(self, node: LedgerNode) -> None:
        await asyncio.sleep(
            self.random_for(f"restart {node.name} {node.starts}").random() * self.plan.down_max
        )
        if not node.up:
            node.start()

    def delete_files(self, node: LedgerNode) -> None:
        """Let the oldest file be expired, and an administrator ask for the deletion of such."""
        broker, process = node.broker, node.process
        assert broker is not None
        assert process is not None
        files = broker.store.log.files.files
        if files:
            os.utime(files[0].path, (EXPIRED_SECONDS, EXPIRED_SECONDS))
            broker.store.retention.request()
            process.spawn(process.call(broker.store.retention.check))

    # -- the run ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Both phases. What was violated is in `failure`."""
        self._story = self.loop.create_task(self._tell())
        try:
            await self._story
        except asyncio.CancelledError:
            if self.failure is None:
                raise
        except Violation as violation:
            self.failure = self.failure or violation
        finally:
            await self._end()

    async def _tell(self) -> None:
        plan = self.plan
        if plan.old_messages:
            await self._make_old_log()
        for node in self.nodes:
            node.start()
        watch = self.loop.create_task(self._watch())
        try:
            await self._until(lambda: any(node.leads for node in self.nodes), START_SECONDS, "nobody leads")
            for client in self.clients:
                client.start()
            self.network.weather = Weather(delay_max=0.004, lost=plan.lost, late=plan.late, reset=plan.reset)
            await self.chaos.run(plan.seconds)
            await self._heal()
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for node in self.nodes:
                self.checker.examine(node)

    async def _until(self, reached: Any, seconds: float, what: str) -> None:
        deadline = self.loop.time() + seconds
        while not reached():
            if self.loop.time() >= deadline:
                raise Violation(PROGRESS, f"{what}: {self._describe()}")
            await asyncio.sleep(0.05)

    def _describe(self) -> str:
        found = []
        for node in self.nodes:
            member = node.member
            if member is None:
                found.append(f"{node.name} down")
                continue
            status, role = member.driver.status, member.core.role
            found.append(
                f"{node.name} {status.role} term {status.term} leader {status.leader_id}, entries"
                f" {status.begin_index}..{status.end_index}, committed {status.committed_index}, role"
                f" {role.role} {role.epoch}, problem {member.problem()!r}"
            )
        return "; ".join(found)

    async def _heal(self) -> None:
        self.note("heal")
        self.healing = True
        self.chaos.stop()
        self.network.heal()
        self.network.weather = Weather(delay_max=0.004)
        for node in self.nodes:
            node.slow.stall_chance = 0.0
            node.files.fail_sync = node.files.full = False
            if node.process is not None:
                node.process.unpause()
        await self._until(self._one_leads, HEALING_SECONDS, "nobody leads, or somebody is down")
        healed = self.loop.time()
        writers = [client for client in self.clients if not isinstance(client, Reader)]
        await self._until(
            lambda: all(client.last_acknowledged > healed for client in writers),
            HEALING_SECONDS,
            "a client gets nothing acknowledged",
        )
        self.quiet = True
        await self._until(self._settled, self.settling_seconds, "members do not come to the same end")
        self.checker.compare()
        self.note("progress")

    def _one_leads(self) -> bool:
        """Whether all members run, and one of them leads."""
        return all(node.member is not None for node in self.nodes) and sum(n.leads for n in self.nodes) == 1

    def _settled(self) -> bool:
        """Whether one leads, all members have dispatched the same, and no delayed message waits."""
        brokers = [node.broker for node in self.nodes if node.broker is not None]
        if len(brokers) < len(self.nodes) or sum(node.leads for node in self.nodes) != 1:
            return False
        ends = {broker.store.ledger.end_index for broker in brokers}
        behind = any(
            begin < end
            for node in self.nodes
            if node.leads and node.broker is not None
            for begin, end in node.broker.delay.progress().values()
        )
        return len(ends) == 1 and all(broker.store.is_dispatched for broker in brokers) and not behind

    async def _make_old_log(self) -> None:
        """Give all members the same commit log from before the DLedger."""
        for node in self.nodes:
            settings = node.settings(enable_dledger_commit_log=False)
            store = MessageStore(settings, node.clock)
            store.set_store_host(RecordHost.from_text("10.0.0.1", 10_911))
            store.load()
            store.start()
            for number in range(self.plan.old_messages):
                store.append(
                    TOPIC,
                    number % QUEUES,
                    f"old-{number}".encode().ljust(1_500, b"x"),
                    b"",
                    flag=0,
                    sys_flag=0,
                    born_timestamp=1,
                    born_host=RecordHost.from_text("10.0.0.9", 9).encode(),
                )
            self.divide = store.max_offset + -store.max_offset % self.plan.file_bytes
            await store.close()

    async def _end(self) -> None:
        await self.chaos.end()
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        for node in self.nodes:
            if node.process is not None and node.process.alive:
                node.process.kill()
                self.graveyard.append((node.process, node.broker))
        for process in (*(client.process for client in self.clients), *self.dead_clients, self.chaos.process):
            process.kill()
            await self._ended(process)
        for process, broker in self.graveyard:
            await self._ended(process)
            if broker is not None and not broker.store.abandoned:
                broker.store.abandon()

    async def _ended(self, process: Process) -> None:
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                await process.ended()
        except TimeoutError:
            self.failure = self.failure or Violation(PROCESS_ENDS, f"{process} does not: {process.tasks()}")


@contextlib.contextmanager
def _small_files() -> Iterator[None]:
    """Index files of a DLedger that are small: Java's have 100 MB, all of which a copy has to read."""
    with mock.patch.dict(FileLedger.__init__.__kwdefaults__, {"index_file_bytes": INDEX_FILE_BYTES}):
        yield


def simulate_ledger(
    seed: int,
    plan: LedgerPlan | None = None,
    *,
    show: bool = False,
    kind: type[LedgerWorld] = LedgerWorld,
) -> Outcome:
    """Run one seed of a world from beginning to end."""
    place = Path(tempfile.mkdtemp(prefix="ledger-world-", dir=MEMORY if MEMORY.is_dir() else None))
    hosts: dict[str, PageFiles] = {}
    shown: list[LedgerWorld] = []

    async def main() -> Outcome:
        world = kind(seed, plan or kind.draw(seed), place, hosts, show=show)
        if show:
            print(world.plan)
            shown.append(world)
        await world.run()
        checker, counts = world.checker, world.counts
        counts["elected: leaders"] += len(checker.leaders)
        counts["role: master"] += len(checker.masters)
        counts["reads of leaders"] += checker.reads
        trace = f"{world.trace:08x}"
        return Outcome(
            seed, world.failure, trace, world.events, world.loop.time(), len(checker.acked), counts
        )

    try:
        with (
            on_page_files(place, hosts),
            mock.patch.object(loop, "IDLE_TURNS_MAX", IDLE_TURNS_MAX),
            _small_files(),
            logs_as_trace((lambda level, event: shown[0].note("log", level, event)) if show else None),
        ):
            return run(main())
    finally:
        shutil.rmtree(place, ignore_errors=True)
