"""A controller of the world `ordered`: the production service of subjects over a model of the agreed log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from brokerset_controller.broker_masters import RegisteredMasters
from brokerset_controller.liveness import Beat, Liveness, ReplicaKey
from brokerset_controller.machine import Change, ReplicasMachine
from brokerset_controller.measurements import Measurements
from brokerset_controller.replicas.state import Group
from brokerset_controller.subject_processors import SubjectProcessors
from brokerset_controller.subject_service import SubjectService
from brokerset_raft.engine import EngineStatus
from brokerset_runtime.remoting.connection import Handlers
from brokerset_sim.network import Endpoint, SimAsker
from brokerset_sim.ordered_agreement import ModelEngine
from brokerset_sim.ordered_plan import OrderedPlan
from brokerset_sim.ordered_time import RatedProcess
from brokerset_spec.controller_settings import ControllerSettings

if TYPE_CHECKING:
    from brokerset_sim.ordered_brokers import BrokerNode
    from brokerset_sim.ordered_world import OrderedWorld

SERVICE_PORT: Final = 9_878
RETIRE_SECONDS: Final = 5.0
"""How long sealed partitions are kept; less than people would, so that it happens."""


class ControllerHost:
    """One member of the controllers' group, whether it runs or not."""

    def __init__(self, world: OrderedWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.host = world.new_host(f"c{node_id}")
        self.address = f"{self.host.name}:{SERVICE_PORT}"
        self.process: RatedProcess | None = None
        self.engine: ModelEngine | None = None
        self.service: SubjectService | None = None
        self.starts = 0
        self._settings = _settings(world.plan)
        self._liveness = Liveness()

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    def start_if_down(self) -> None:
        """Run it again, unless it runs."""
        if not self.up:
            self.start()

    def start(self) -> None:
        """Run the process."""
        world = self.world
        self.starts += 1
        process = RatedProcess(world.loop, f"c{self.node_id}.{self.starts}", self.host, world.process_died)
        process.node = self
        self.process = process
        world.note("start", process.name)
        process.spawn(process.call(self._main, process), vital=True)

    def kill(self) -> None:
        """End the process."""
        process = self.process
        if process is None or not process.alive:
            return
        self.world.note("kill", process.name)
        if self.engine is not None:
            self.world.agreement.gone(self.engine)
        process.kill()
        self.world.network.gone(process, silent=False)
        self.world.graveyard.append(process)
        self.engine = self.service = None

    def heard(self, node: BrokerNode) -> None:
        """A broker's heartbeat arrives."""
        process = self.process
        if process is None or not process.alive or process.paused or node.broker is None:
            return
        beat = Beat(address=node.address, epoch=node.broker.epoch, timeout_ms=3_000)
        key = ReplicaKey(node.group.name, node.broker_id)
        self._liveness.heard(key, beat, None, process.clock.monotonic())

    async def _main(self, process: RatedProcess) -> None:
        world = self.world
        machine = ReplicasMachine()
        self._liveness = Liveness()
        engine = ModelEngine(world.agreement, self.node_id, process, machine, self._changed)
        service = SubjectService(
            settings=lambda: self._settings,
            engine=engine,
            machine=machine.ordered,
            masters=RegisteredMasters(machine, self._liveness, process.clock),
            clock=process.clock,
            asker=SimAsker(world.network, process),
            source=world.random_for(f"controller {process.name}"),
            measurements=Measurements(),
        )

        def applied(change: Change) -> None:
            if change.after is not None and _master_of(change.after) != _master_of(change.before):
                service.master_changed(change.after.broker_name)

        machine.listeners.append(applied)
        self.engine, self.service = engine, service
        world.agreement.start(engine)
        handlers = cast(Handlers, SubjectProcessors(service).handlers())
        world.network.listen(Endpoint(process, self.address, handlers))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run())

    def _changed(self, status: EngineStatus) -> None:
        if self.service is not None:
            self.service.role_changed()


def _settings(plan: OrderedPlan) -> ControllerSettings:
    margin = round(plan.permission * 1000 / 6)
    return replace(
        ControllerSettings(),
        consumer_permission=round(plan.permission * 1000),
        consumer_stop_margin=margin,
        consumer_wait_margin=margin,
        consumer_heartbeat_interval=round(plan.heartbeat * 1000),
        sealed_partition_retention=round(RETIRE_SECONDS * 1000),
        request_timeout=3_000,
    )


def _master_of(group: Group | None) -> tuple[int, str] | None:
    if group is None or group.master_id is None:
        return None
    return group.master_epoch, group.replicas[group.master_id].address
