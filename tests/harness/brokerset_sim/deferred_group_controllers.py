"""The controllers of a group of whole brokers: the production ones, on simulated hosts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from brokerset_controller.replicas.apply import broker_name_of
from brokerset_controller.replicas.codec import decode_event
from brokerset_controller.replicas.state import Group
from brokerset_raft.configuration import Configuration, Member
from brokerset_sim.controller_node import RAFT_PORT, SERVICE_PORT, ControllerNode
from brokerset_sim.history import Violation
from brokerset_sim.process import Host, Process, real_error
from brokerset_spec.controller_settings import ControllerSettings

if TYPE_CHECKING:
    from brokerset_sim.deferred_groups import DeferredGroupsWorld
    from brokerset_sim.world import World

GROUP: Final = "orders"


class QuickController(ControllerNode):
    """One controller, with short times."""

    def _settings(self) -> ControllerSettings:
        return replace(
            super()._settings(),
            scan_not_active_broker_interval=100,
            scan_inactive_master_interval=150,
            probe_timeout=100,
            request_timeout=1_000,
        )


class Controllers:
    """All of them, and what they agree on; to each it is the world. Raft itself is checked elsewhere."""

    def __init__(self, world: DeferredGroupsWorld) -> None:
        self._world = world
        self.loop, self.network, self.plan = world.loop, world.network, world.group_plan
        self.graveyard: list[Process] = []
        self.counts: Counter[str] = world.counts
        self.witness = self
        self.group: Group | None = None
        """What is agreed on."""

        self._applied = 0
        names = [f"c{number}" for number in range(self.plan.controllers)]
        members = [
            Member(number, f"{name}:{RAFT_PORT}", f"{name}:{SERVICE_PORT}")
            for number, name in enumerate(names)
        ]
        self.initial = Configuration(tuple(members))
        self.nodes = [QuickController(cast("World", self), member.node_id) for member in members]

    @property
    def addresses(self) -> str:
        """As brokers are told them."""
        return ";".join(node.service_address for node in self.nodes)

    def leader(self) -> QuickController | None:
        """The one that leads, if one does."""
        leading = [node for node in self.nodes if node.engine is not None and node.engine.status.leading]
        return max(leading, key=lambda node: node.engine.status.term, default=None)  # type: ignore[union-attr]  # filtered

    def start(self) -> None:
        """Run all that do not run."""
        for node in self.nodes:
            if not node.up:
                node.start()

    def heal(self) -> None:
        """All run, and their disks are quick."""
        for node in self.nodes:
            if node.process is not None:
                node.process.unpause()
        self.start()

    async def end(self) -> None:
        """Kill them, and wait until nothing of them is left."""
        for node in self.nodes:
            node.stop(power=False)
        for process in self.graveyard:
            await process.ended()

    # -- to each controller it is the world -------------------------------------------------------------

    def random_for(self, label: str) -> random.Random:
        """Dice of one part."""
        return self._world.random_for(label)

    def new_host(self, name: str) -> Host:
        """Another machine."""
        host = Host(name)
        self.network.add_host(host)
        return host

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""
        self._world.note(kind, *what)

    def process_died(self, process: Process, error: BaseException) -> None:
        """A process ended by itself."""
        self._world.fail(Violation("processes live", f"{process} ended: {real_error(error)!r}"))

    def power_lost(self, node: ControllerNode) -> None:
        """A disk lost what was not synced."""

    def applied(self, node: ControllerNode, index: int, data: bytes) -> None:
        """A controller applied a command."""
        if index <= self._applied or node.machine is None:
            return
        self._applied = index
        event = decode_event(data)
        if broker_name_of(event) == GROUP and (now := node.machine.groups.get(GROUP)) != self.group:
            was, self.group = self.group, now
            self.counts[f"event: {type(event).__name__}"] += 1
            self.note("event", index, type(event).__name__)
            self._world.agreed(was, now, event)
