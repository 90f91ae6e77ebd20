"""A controller of the simulation: the real engine, storage, rules and processors on a simulated host."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from brokerset_controller.liveness import Liveness
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.processors import Processors
from brokerset_controller.service import ControllerService
from brokerset_raft.configuration import Configuration
from brokerset_raft.driver import RaftEngine, RaftSettings
from brokerset_raft.storage import INITIAL_NAME, Loaded, LogDamaged, Storage
from brokerset_sim.disk import DiskHandle, FrozenDisk, SimDisk
from brokerset_sim.history import Violation
from brokerset_sim.network import Endpoint, SimAsker, SimRaftTransport
from brokerset_sim.process import HostClock, Process
from brokerset_sim.raft_checker import NEVER_FORGOTTEN
from brokerset_spec.controller_settings import ControllerSettings

if TYPE_CHECKING:
    from brokerset_sim.world import World

T = TypeVar("T")

RAFT_PORT = 9877
SERVICE_PORT = 9878


class SlowDisk:
    """Implements `RunBlocking`: work takes virtual time, before it has an effect or after."""

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self.stall_chance = 0.0
        self.stall_max = 1.0

    async def __call__(self, work: Callable[[], T]) -> T:
        choice = self._random.random()
        if choice < self.stall_chance:
            await asyncio.sleep(self._random.random() * self.stall_max)
        elif choice > 0.7:
            await asyncio.sleep(0.001 + self._random.random() * 0.004)
        result = work()
        await asyncio.sleep(0.0005 + self._random.random() * 0.002)
        return result


class WatchedMachine:
    """The state machine as the engine sees it; the world looks on."""

    def __init__(
        self, inner: ReplicasMachine, applied: Callable[[int, bytes], None], restored: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._applied = applied
        self._restored = restored

    def apply(self, index: int, data: bytes) -> object:
        outcome = self._inner.apply(index, data)
        self._applied(index, data)
        return outcome

    def snapshot(self) -> bytes:
        return self._inner.snapshot()

    def restore(self, data: bytes) -> None:
        self._restored()
        self._inner.restore(data)


class ControllerNode:
    """One member of the controllers' group, whether it runs or not."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.name = f"c{node_id}"
        self.removed = False
        self.node_id = node_id
        self.host = world.new_host(f"c{node_id}")
        self.disk = SimDisk(world.random_for(f"disk c{node_id}"))
        self.slow = SlowDisk(world.random_for(f"delay c{node_id}"))
        self.raft_address = f"{self.host.name}:{RAFT_PORT}"
        self.service_address = f"{self.host.name}:{SERVICE_PORT}"
        self.process: Process | None = None
        self.engine: RaftEngine | None = None
        self.machine: ReplicasMachine | None = None
        self.service: ControllerService | None = None
        self.crash_at: int | None = None
        """Number of the disk's operation before which the process dies."""

        self.crash_loses_power = False
        self.joins = False
        self.starts = 0
        self._handle: DiskHandle | None = None
        self._loaded: tuple[int, Loaded | None] | None = None
        self._started: Process | None = None
        """The newest process that has read its disk."""

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    def durable(self) -> Loaded | None:
        """What the disk surely keeps; None for an empty one. Raises `Violation` for a damaged one."""
        if self._loaded is None or self._loaded[0] != self.disk.version:
            files = self.disk.durable()
            try:
                loaded = Storage(FrozenDisk(files)).load() if files else None
            except LogDamaged as error:
                raise Violation(NEVER_FORGOTTEN, f"{self.name} could not start again: {error}") from error
            self._loaded = (self.disk.version, loaded)
        return self._loaded[1]

    def start(self) -> None:
        """Run the process, on what the disk holds."""
        assert not self.up
        world = self.world
        self.starts += 1
        process = Process(world.loop, f"c{self.node_id}.{self.starts}", self.host, world.process_died)
        process.node = self
        self.process = process
        self._handle = self.disk.handle(self._before_change)
        world.note("start", process.name)
        process.spawn(process.call(self._main, process, self._handle), vital=True)

    def stop(self, *, power: bool) -> None:
        """Kill the process; with `power`, the host loses it and what was not synced."""
        process = self.process
        if process is not None and process.alive:
            self.world.note("kill", process.name, power)
            assert self._handle is not None
            self._handle.gone = True
            process.kill()
            self.world.network.gone(process, silent=power)
            self.world.graveyard.append(process)
            self.engine = self.machine = self.service = None
        if power:
            self.disk.lose_power()
            self.world.power_lost(self)

    async def _main(self, process: Process, handle: DiskHandle) -> None:
        world = self.world
        settings = self._settings()
        machine = ReplicasMachine()
        transport = SimRaftTransport(world.network, process)
        engine = RaftEngine(
            node_id=self.node_id,
            initial=Configuration() if self._told_to_join() else world.initial,
            storage=Storage(handle),
            state_machine=WatchedMachine(
                machine, lambda index, data: world.applied(self, index, data), lambda: self._restored(process)
            ),
            transport=transport,
            random_source=random.Random(world.random_for(f"raft {process.name}").random()),
            settings=RaftSettings(
                tick_seconds=settings.raft_tick / 1000,
                election_ticks=settings.raft_election_ticks,
                snapshot_entries=world.plan.snapshot_entries,
            ),
            run_blocking=self.slow,
            on_change=lambda status: service.engine_changed(status),
        )
        clock = HostClock(world.loop, self.host)
        service = ControllerService(
            settings=settings,
            engine=engine,
            machine=machine,
            liveness=Liveness(),
            clock=clock,
            asker=SimAsker(world.network, process),
        )
        processors = Processors(service, settings)
        self.engine, self.machine, self.service = engine, machine, service
        await engine.start()
        self._started = process
        world.network.listen_raft(self.raft_address, transport, engine.receive)
        world.network.listen(
            Endpoint(process, self.service_address, processors.handlers(), service.connection_closed)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.run())
            group.create_task(service.run())

    def _told_to_join(self) -> bool:
        """Whether its settings say so: to all, once a group was formed, for a folder that was emptied."""
        return self.joins or INITIAL_NAME in self.disk.content()

    def _settings(self) -> ControllerSettings:
        world = self.world
        return ControllerSettings(
            controller_peers=";".join(f"n{m.node_id}-{m.service_address}" for m in world.initial.members),
            raft_peers=";".join(f"n{m.node_id}-{m.raft_address}" for m in world.initial.members),
            controller_self_id=f"n{self.node_id}",
            raft_join=self._told_to_join(),
            raft_tick=world.plan.tick_ms,
            scan_not_active_broker_interval=500,
            scan_inactive_master_interval=700,
            probe_timeout=300,
            request_timeout=3_000,
            enable_elect_unclean_master=world.plan.unclean,
        )

    def _restored(self, process: Process) -> None:
        what = "installed" if self._started is process else "read at a start"
        self.world.witness.counts[f"snapshot: {what}"] += 1

    def _before_change(self) -> None:
        if self.crash_at is not None and self.disk.operations >= self.crash_at:
            self.crash_at = None
            self.stop(power=self.crash_loses_power)
            self.world.crashed(self)
