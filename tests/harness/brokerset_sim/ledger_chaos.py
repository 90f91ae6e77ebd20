"""Faults of a DLedger group, one after the other, as the plan says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brokerset_protocol.bodies.dledger import DLedgerRequestCode, LeadershipTransferRequest
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import SwitchOver
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.network import SimAsker
from brokerset_sim.process import Host, Process

if TYPE_CHECKING:
    from brokerset_sim.ledger_node import LedgerNode
    from brokerset_sim.ledger_world import LedgerWorld

ASK_SECONDS = 3.0


class LedgerChaos:
    """What breaks the world, and heals each fault after a while."""

    def __init__(self, world: LedgerWorld) -> None:
        self._world = world
        self._dice = world.random_for("chaos")
        host = Host("10.0.2.1")
        world.network.add_host(host)
        self.process = Process(world.loop, "admin", host, world.process_died)
        self._asker = SimAsker(world.network, self.process)
        self._undoing: list[asyncio.Task[None]] = []
        self._asking: list[asyncio.Task[None]] = []

    async def run(self, seconds: float) -> None:
        """Break things for so long."""
        plan, left = self._world.plan, seconds
        while (pause := self._dice.expovariate(1 / plan.pause)) < left:
            await asyncio.sleep(pause)
            left -= pause
            if plan.faults:
                self._break(self._dice.choice(plan.faults))
        await asyncio.sleep(left)

    def stop(self) -> None:
        """Nothing more is undone later: all is healed at once."""
        for task in self._undoing:
            task.cancel()

    async def end(self) -> None:
        """Wait for everything that was begun."""
        self.stop()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._undoing, *self._asking, return_exceptions=True)

    def _later(self, undo: object, *what: object) -> None:
        async def work() -> None:
            await asyncio.sleep(self._dice.random() * self._world.plan.hold_max)
            undo(*what)  # type: ignore[operator]  # a bound method

        self._undoing.append(self._world.loop.create_task(work()))

    def _leader(self) -> LedgerNode:
        leading = [node for node in self._world.nodes if node.leads and node.up]
        return self._dice.choice(leading or self._world.nodes)

    def _break(self, fault: str) -> None:
        world, dice = self._world, self._dice
        node = self._leader() if "leader" in fault else dice.choice(world.nodes)
        world.note("fault", fault, node.name)
        world.counts[f"fault: {fault}"] += 1
        match fault:
            case "kill" | "kill leader":
                world.stop(node, power=False)
            case "power" | "power leader":
                world.stop(node, power=True)
            case "power all":
                for each in world.nodes:
                    world.stop(each, power=True)
            case "end" | "end leader":
                self._asking.append(world.loop.create_task(world.end(node)))
            case "pause" | "pause leader":
                if node.process is not None and node.up:
                    node.process.pause()
                    self._later(node.process.unpause)
            case "cut" | "cut one way":
                other = dice.choice([each for each in world.nodes if each is not node])
                self._cut(node, [other], both=fault == "cut")
            case "cut off leader" | "cut off leader one way":
                others = [each for each in world.nodes if each is not node]
                self._cut(node, others, both=fault == "cut off leader")
            case "slow disk":
                node.slow.stall_chance = 0.5
                self._later(setattr, node.slow, "stall_chance", world.plan.stalls)
            case "failing disk":
                if node.up:
                    node.files.fail_sync = True
            case "transfer":
                self._asking.append(world.loop.create_task(self._transfer(node)))
            case "switchover":
                self._asking.append(world.loop.create_task(self._switch_over()))
            case "break connections":
                world.network.break_connections(node.host)
            case "delete files":
                if node.broker is not None and node.up:
                    world.delete_files(node)
            case _:
                self._break_more(fault, node)

    def _break_more(self, fault: str, node: LedgerNode) -> None:
        """Faults of worlds that have more of them."""
        raise AssertionError(f"unknown fault {fault}, at {node.name}")

    def _cut(self, node: LedgerNode, others: Sequence[LedgerNode], *, both: bool) -> None:
        network = self._world.network
        inwards = self._dice.random() < 0.5
        pairs = []
        for other in others:
            if both or not inwards:
                pairs.append((node.host.name, other.host.name))
            if both or inwards:
                pairs.append((other.host.name, node.host.name))
        for pair in pairs:
            network.cut(*pair)
        self._later(network.mend, *pairs)

    async def _transfer(self, wanted: LedgerNode) -> None:
        leader = self._leader()
        request = LeadershipTransferRequest(
            group="orders",
            remote_id=leader.name,
            local_id=leader.name,
            transfer_id=leader.name,
            transferee_id=wanted.name,
            term=0 if leader.member is None else leader.member.driver.term,
        )
        await self._tell(
            leader.member_address, Command(DLedgerRequestCode.LEADERSHIP_TRANSFER, body=request.to_json())
        )

    async def _switch_over(self) -> None:
        header = SwitchOver(broker_name="orders")
        await self._tell(self._leader().address, Command(RequestCode.BROKERSET_SWITCH_OVER, header.to_ext()))

    async def _tell(self, address: str, command: Command) -> None:
        try:
            reply = await self._asker.ask(address, command, ASK_SECONDS)
            self._world.counts[f"answer: {command.code} {reply.code}"] += 1
        except (ConnectionClosed, RequestTimeout):
            self._world.counts[f"answer: {command.code} None"] += 1
