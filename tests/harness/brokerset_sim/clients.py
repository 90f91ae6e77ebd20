"""Producers and consumers of the simulation: they believe old routes, retry, and remember every answer."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.log_checker import Placed
from brokerset_sim.network import SimAsker
from brokerset_sim.process import Process
from brokerset_sim.replica_log import SimRecord

if TYPE_CHECKING:
    from brokerset_sim.world import World

ATTEMPT = "simAttempt"
MESSAGE = "simMessage"
SIZE = "simSize"
OFFSET = "simOffset"
END = "simEnd"
EPOCH = "simEpoch"
RECORDS = "simRecords"
NEXT = "simNext"

SEND_SECONDS = 3.5
"""Longer than a broker lets a send wait for replicas."""

ROUTE_SECONDS = (0.3, 3.0, 30.0)
"""How old a client lets its route become; Java's ask each 30 s."""


class RoutedClient:
    """One machine with clients of one group: where they believe the master to be."""

    def __init__(self, world: World, name: str, group: str) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.host = world.new_host(name)
        self.dice = world.random_for(f"client {name}")
        self.process = Process(world.loop, name, self.host, world.process_died)
        self.process.node = self
        self.last_acknowledged = -1.0
        """When something was acknowledged last."""

        self._asker = SimAsker(world.network, self.process)
        self._route: str | None = None
        self._route_at = 0.0
        self._route_seconds = self.dice.choice(ROUTE_SECONDS)

    def start(self) -> None:
        """Do what clients do until the world becomes quiet."""
        raise NotImplementedError

    def _where(self) -> str | None:
        """The master as this client knows it; sometimes it asks any other broker instead."""
        now = self.world.loop.time()
        if self._route is None or now - self._route_at > self._route_seconds:
            self._route, self._route_at = self.world.names.master(self.group), now
        if self._route is None or self.dice.random() < 0.05:
            return self._anybody()
        return self._route

    def _anybody(self) -> str | None:
        known = self.world.names.all(self.group)
        return self.dice.choice(known) if known else None

    def _forget_route(self, chance: float) -> None:
        """Ask for the route again, or stay with the old one."""
        if self.dice.random() < chance:
            self._route = None


class Client(RoutedClient):
    """Producers and a consumer."""

    def __init__(self, world: World, name: str, group: str) -> None:
        super().__init__(world, name, group)
        self._position = 0
        self._numbers = itertools.count(1 + 1_000_000 * (1 + len(world.clients)))

    def lost(self, offset: int) -> None:
        """An election was recorded that may have lost what lies behind `offset`: read it again."""
        self._position = min(self._position, offset)

    def start(self) -> None:
        """Send and read until the world becomes quiet."""
        for _ in range(self.world.plan.lanes):
            self.process.spawn(self.process.call(self._produce))
        self.process.spawn(self.process.call(self._consume))

    # -- sending ------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        plan = self.world.plan
        while not self.world.quiet:
            await asyncio.sleep(self.dice.expovariate(1 / plan.send_pause))
            message = next(self._numbers)
            size = 32 + self.dice.randrange(plan.record_bytes)
            for _ in range(self.dice.choice((1, 1, 3))):
                if await self._send(message, size):
                    break

    async def _send(self, message: int, size: int) -> bool:
        address = self._where()
        if address is None:
            return False
        attempt = next(self._numbers)
        ext = {ATTEMPT: str(attempt), MESSAGE: str(message), SIZE: str(size)}
        try:
            reply = await self._asker.ask(address, Command(RequestCode.SEND_MESSAGE, ext), SEND_SECONDS)
        except (ConnectionClosed, RequestTimeout):
            self._forget_route(0.7)
            await asyncio.sleep(0.02)
            return False
        if reply.code == ResponseCode.SUCCESS:
            self.last_acknowledged = self.world.loop.time()
            self.world.watch.client_answered(self.group, attempt, message, int(reply.ext[OFFSET]))
            return True
        self._forget_route(0.4)
        await asyncio.sleep(0.05)
        return False

    # -- reading ------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        while not self.world.quiet:
            await asyncio.sleep(self.dice.random() * 0.4)
            address = self._where() if self.dice.random() < 0.5 else self._anybody()
            if address is None:
                continue
            try:
                if self.dice.random() < 0.2:
                    await self._asker.ask(address, Command(RequestCode.LOCK_BATCH_MQ), 1.0)
                    continue
                if self.dice.random() < 0.3:
                    await self._ask_end(address)
                    continue
                command = Command(RequestCode.PULL_MESSAGE, {OFFSET: str(self._position)})
                reply = await self._asker.ask(address, command, 1.0)
            except (ConnectionClosed, RequestTimeout):
                self._forget_route(0.5)
                continue
            if reply.code != ResponseCode.SUCCESS:
                continue
            found = [_placed(text) for text in reply.ext[RECORDS].split(";") if text]
            self.world.watch.consumed(self.group, address, found)
            self._position = max(self._position, int(reply.ext[NEXT]))

    async def _ask_end(self, address: str) -> None:
        """As one does who begins at the end, reads to the end, or watches how far a group is behind."""
        before, asked_at = self.world.watch.logs(self.group).furthest_answered(), self.world.loop.time()
        reply = await self._asker.ask(address, Command(RequestCode.GET_MAX_OFFSET), 1.0)
        if reply.code == ResponseCode.SUCCESS:
            self.world.watch.ends_at(self.group, address, int(reply.ext[OFFSET]), before, asked_at)


def shown(placed: Placed) -> str:
    """A record for an answer to a pull."""
    record = placed.record
    return f"{record.offset}:{record.size}:{record.message}:{record.number}:{placed.epoch}"


def _placed(text: str) -> Placed:
    *record, epoch = map(int, text.split(":"))
    return Placed(SimRecord(*record), epoch)
