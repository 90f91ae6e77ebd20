"""Faults of a group that has transactions and timer messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from brokerset_sim.ledger_chaos import LedgerChaos

if TYPE_CHECKING:
    from brokerset_sim.deferred_world import DeferredWorld
    from brokerset_sim.ledger_node import LedgerNode


class DeferredChaos(LedgerChaos):
    """Also ends producers, sets clocks, and fills disks."""

    _world: DeferredWorld

    def _break_more(self, fault: str, node: LedgerNode) -> None:
        match fault:
            case "kill producer":
                self._asking.append(self._world.loop.create_task(self._kill_producer()))
            case "set clock":
                self._set_clock(node)
            case "full disk":
                node.files.full = True
                self._later(setattr, node.files, "full", False)
            case _:
                super()._break_more(fault, node)

    async def _kill_producer(self) -> None:
        """Another one of the same kind takes its place after a while."""
        number = self._dice.randrange(len(self._world.clients))
        self._world.kill_client(number, silent=self._dice.random() < 0.5)
        await asyncio.sleep(self._dice.random() * self._world.plan.down_max)
        self._world.replace_client(number)

    def _set_clock(self, node: LedgerNode) -> None:
        world, most = self._world, self._world.deferred.clock_ms
        world.checker.latest_ms()
        node.host.clock_error_ms = self._dice.randint(-most, most)
        world.checker.latest_ms()
        world.checker.clock_set(node)
