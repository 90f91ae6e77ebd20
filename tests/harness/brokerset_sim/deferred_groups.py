"""A group in controller mode with transactions and timer messages: whole brokers that replicate real stores.

Controllers elect masters from the in-sync set. Everything that a member has runs: registration, leases,
handshakes with their truncation, metadata in the log, the gateway, switchovers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from brokerset_broker.member import group_member
from brokerset_broker.member.group_member import GroupMember
from brokerset_controller.replicas.events import Event, MasterElected, SyncStateSetAltered
from brokerset_controller.replicas.state import Group
from brokerset_sim.deferred_group_chaos import DeferredGroupChaos
from brokerset_sim.deferred_group_checker import DeferredGroupChecker
from brokerset_sim.deferred_group_controllers import Controllers
from brokerset_sim.deferred_group_node import GroupNode
from brokerset_sim.deferred_group_plan import DeferredGroupPlan, draw_deferred_group
from brokerset_sim.deferred_world import DeferredWorld, small_wheels
from brokerset_sim.ha_network import SimHaNetwork
from brokerset_sim.history import Violation
from brokerset_sim.ledger_plan import LedgerPlan
from brokerset_sim.ledger_world import PROCESS_DIED, simulate_ledger
from brokerset_sim.loop import OWNER
from brokerset_sim.page_files import PageFiles
from brokerset_sim.process import Process, real_error
from brokerset_sim.world import Outcome

if TYPE_CHECKING:
    from brokerset_sim.ledger_node import LedgerNode


class DeferredGroupsWorld(DeferredWorld):
    """A run. Make one, await `run`, read `failure`."""

    draw: Callable[[int], LedgerPlan] = staticmethod(draw_deferred_group)
    checker: DeferredGroupChecker

    def __init__(
        self, seed: int, plan: LedgerPlan, place: Path, hosts: dict[str, PageFiles], *, show: bool = False
    ) -> None:
        assert isinstance(plan, DeferredGroupPlan)
        self.group_plan = plan
        self.lost: dict[str, None] = {}
        """Members whose page cache is gone, until the controllers have heard of it."""

        super().__init__(seed, plan, place, hosts, show=show)
        self.ha = SimHaNetwork(self.network, self.loop, self.checker)
        self.controllers = Controllers(self)

    def _make_checker(self) -> DeferredGroupChecker:
        return DeferredGroupChecker(self, self.group_plan)

    def _make_node(self, number: int, files: PageFiles) -> GroupNode:
        return GroupNode(self, number, files)

    def _make_chaos(self) -> DeferredGroupChaos:
        return DeferredGroupChaos(self)

    # -- for parts --------------------------------------------------------------------------------------

    def agreed(self, was: Group | None, now: Group | None, event: Event) -> None:
        """The controllers have agreed on something."""
        if now is None:
            return
        match event:
            case SyncStateSetAltered() if was is not None:
                self.counts["expanded"] += bool(now.sync_state_set - was.sync_state_set)
                self.counts["shrunk"] += bool(was.sync_state_set - now.sync_state_set)
            case MasterElected():
                self.counts[f"elected: {event.reason}"] += 1
            case _:
                pass
        in_sync = {node.name for node in self.in_sync()}
        self.lost = {name: None for name in self.lost if name in in_sync}

    def in_sync(self) -> list[LedgerNode]:
        """The members of the in-sync set that is agreed on."""
        group = self.controllers.group
        if group is None:
            return []
        addresses = [group.replicas[each].address for each in sorted(group.sync_state_set)]
        return [node for node in self.nodes if node.address in addresses]

    def may_lose_cache(self) -> list[LedgerNode]:
        """Whose host may lose what it has not flushed, so that nothing which counts is lost.

        Slaves, while a master that has lost nothing is in sync: every set that is on its way has that.
        """
        group, in_sync = self.controllers.group, self.in_sync()
        if group is None or group.master_id is None:
            return []
        address = group.replicas[group.master_id].address
        master = next((node for node in in_sync if node.address == address), None)
        if master is None or not master.up or master.name in self.lost:
            return []
        return [node for node in self.nodes if node is not master and not node.leads]

    def truncated(self, node: LedgerNode, offset: int) -> None:
        """A member has removed the end of its log."""
        self.note("truncated", node.name, offset)
        self.counts["truncated"] += 1

    def process_died(self, process: Process, error: BaseException) -> None:
        """A process ended by itself."""
        if process.node is None or isinstance(process.node, GroupNode):
            super().process_died(process, error)
        else:
            self.fail(Violation(PROCESS_DIED, f"{process} ended: {real_error(error)!r}"))

    def on_disk(self, node: LedgerNode, position: int, size: int) -> bytes:
        """What a member has there of the log; with synchronous flushing, on its disk."""
        return self._on_disk(node, node.files.folder / "commitlog", position, size)

    # -- the run ----------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        self.controllers.start()
        await super()._tell()

    def heal_clients(self) -> None:
        """All clients and controllers run; people start a broker again whose disk has failed."""
        super().heal_clients()
        self.controllers.heal()
        for node in self.nodes:
            if node.files.has_failed and node.up:
                self.stop(node, power=False)

    def _describe(self) -> str:
        found = [f"{self._left()}; {self.controllers.group}"]
        for node in self.nodes:
            broker = node.broker
            member: GroupMember | None = broker.member if broker is not None else None
            if member is None or broker is None or not node.up:
                found.append(f"{node.name} down")
                continue
            role = member.core.role
            found.append(
                f"{node.name} {role.role} {role.epoch}, {self.checker.end_of(broker)} of"
                f" {member.log.max_offset}, delayed {broker.delay.progress()}, {member.problems()},"
                f" {member.replication.status()}"
            )
        return "; ".join(found)

    def _settled(self) -> bool:
        """Whether all members have the same, confirmed and in their queues, and no message waits."""
        brokers = [node.broker for node in self.nodes if node.broker is not None]
        if not self._one_leads() or any(self._left().values()) or len(self.in_sync()) < len(self.nodes):
            return False
        behind = any(
            begin < end
            for node in self.nodes
            if node.leads and node.broker is not None
            for begin, end in node.broker.delay.progress().values()
        )
        ends = {broker.store.max_offset for broker in brokers} | {
            self.checker.end_of(broker) for broker in brokers
        }
        return len(ends) == 1 and not behind

    async def _end(self) -> None:
        await super()._end()
        await self.controllers.end()


@contextlib.contextmanager
def simulated_boots() -> Iterator[None]:
    """Members ask the host of their process for its boot."""

    def boot_id() -> str:
        owner = OWNER.get()
        return owner.host.boot_id if isinstance(owner, Process) else ""

    with mock.patch.object(group_member, "boot_id", boot_id):
        yield


def simulate_deferred_group(
    seed: int, plan: DeferredGroupPlan | None = None, *, show: bool = False
) -> Outcome:
    """Run one seed from beginning to end."""
    with small_wheels(), simulated_boots():
        return simulate_ledger(seed, plan, show=show, kind=DeferredGroupsWorld)
