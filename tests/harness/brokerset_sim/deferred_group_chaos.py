"""Faults of a group in controller mode that has transactions and timer messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import ElectMaster
from brokerset_sim.deferred_chaos import DeferredChaos
from brokerset_sim.deferred_group_controllers import GROUP, QuickController

if TYPE_CHECKING:
    from brokerset_sim.deferred_groups import DeferredGroupsWorld
    from brokerset_sim.ledger_node import LedgerNode


class DeferredGroupChaos(DeferredChaos):
    """Breaks controllers and replication besides, and lets administrators ask for elections."""

    _world: DeferredGroupsWorld

    def _break(self, fault: str) -> None:
        if fault != "power" or self._world.plan.sync_flush:
            super()._break(fault)
            return
        victims = self._world.may_lose_cache()
        if victims:
            node = self._dice.choice(victims)
            self._world.note("fault", fault, node.name)
            self._world.counts["fault: power, not flushed"] += 1
            self._world.lost[node.name] = None
            self._world.stop(node, power=True)

    def _break_more(self, fault: str, node: LedgerNode) -> None:
        world, dice = self._world, self._dice
        controllers = world.controllers
        match fault:
            case "elect":
                self._asking.append(world.loop.create_task(self._elect()))
            case "break replication":
                world.ha.break_some(lambda: dice.random() < 0.5)
            case "isolate leader":
                others = [each.host.name for each in world.nodes if each is not node]
                others += [each.host.name for each in controllers.nodes]
                self._cut_hosts(node.host.name, others)
            case "kill controller" | "power controller":
                controller = dice.choice(controllers.nodes)
                controller.stop(power=fault == "power controller")
                self._later(controllers.start)
            case "pause controller":
                self._pause_controller(controllers.leader() or dice.choice(controllers.nodes))
            case "cut off controller":
                leader = controllers.leader() or dice.choice(controllers.nodes)
                self._cut_hosts(
                    leader.host.name, [each.host.name for each in controllers.nodes if each is not leader]
                )
            case _:
                super()._break_more(fault, node)

    def _cut_hosts(self, name: str, others: list[str]) -> None:
        pairs = [pair for other in others for pair in ((name, other), (other, name))]
        for pair in pairs:
            self._world.network.cut(*pair)
        self._later(self._world.network.mend, *pairs)

    def _pause_controller(self, controller: QuickController) -> None:
        process = controller.process
        if process is not None and process.alive:
            process.pause()
            self._later(process.unpause)

    async def _elect(self) -> None:
        """Somebody wants another master; it is elected if it is in sync."""
        world = self._world
        leader, group = world.controllers.leader(), world.controllers.group
        if leader is None or group is None or not group.replicas:
            return
        header = ElectMaster(
            cluster_name=group.cluster_name,
            broker_name=GROUP,
            broker_id=self._dice.choice(sorted(group.replicas)),
            designate_elect=True,
        )
        await self._tell(
            leader.service_address, Command(RequestCode.CONTROLLER_ELECT_MASTER, header.to_ext())
        )
