"""Clients of a DLedger group: producers, readers, and a consumer that commits; they ask any member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig import wire
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.ledger_checker import Register
from brokerset_sim.network import SimAsker
from brokerset_sim.process import Host, Process

if TYPE_CHECKING:
    from brokerset_sim.ledger_node import LedgerNode
    from brokerset_sim.ledger_world import LedgerWorld

TOPIC: Final = "t"
QUEUES: Final = 2
GROUP: Final = "g"
ASK_SECONDS: Final = 0.4
PAUSE_SECONDS: Final = 0.015
"""Of a client between two requests, in the mean."""

DELAYED_EACH: Final = 12
"""Of so many messages one is delayed."""

TOPIC_EACH: Final = 15
"""After so many commits the consumer makes another topic."""


class LedgerClient:
    """One machine with a client."""

    mortal = False
    """Whether its process may be killed; another one takes its place then."""

    def __init__(self, world: LedgerWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.dice = world.random_for(f"client {name}")
        world.clients_made += 1
        host = Host(f"10.0.1.{world.clients_made}")
        world.network.add_host(host)
        self.process = Process(world.loop, name, host, world.process_died)
        self.last_acknowledged = -1.0
        self._asker = SimAsker(world.network, self.process)
        self._route: LedgerNode | None = None
        self._count = 0

    def start(self) -> None:
        """Work until the world becomes quiet."""
        self.process.spawn(self.process.call(self._run))

    async def _run(self) -> None:
        while not self.world.quiet:
            await asyncio.sleep(self.dice.expovariate(1 / PAUSE_SECONDS))
            await self._act()

    async def _act(self) -> None:
        raise NotImplementedError

    def _where(self) -> LedgerNode:
        """The member that is asked: by the route that this client has, or any."""
        if self._route is None:
            leading = [node for node in self.world.nodes if node.leads]
            knows = leading and self.dice.random() < 0.7
            self._route = self.dice.choice(leading if knows else self.world.nodes)
        return self._route

    async def _ask(
        self, command: Command, node: LedgerNode | None = None, seconds: float = ASK_SECONDS
    ) -> Command | None:
        """The answer, None if there is none; after anything but a success another member is asked."""
        target = node or self._where()
        reply: Command | None = None
        try:
            reply = await self._asker.ask(target.address, command, seconds)
        except (ConnectionClosed, RequestTimeout):
            await asyncio.sleep(0.01)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            self._route = None
        self.world.counts[f"answer: {command.code} {None if reply is None else reply.code}"] += 1
        return reply

    async def _succeeds(self, command: Command) -> bool:
        reply = await self._ask(command)
        done = reply is not None and reply.code == ResponseCode.SUCCESS
        if done:
            self.last_acknowledged = self.world.loop.time()
        return done


class Producer(LedgerClient):
    """Sends messages, each once."""

    async def _act(self) -> None:
        self._count += 1
        body = f"{self.name}-{self._count} ".encode().ljust(self.dice.choice((40, 200, 1_500)), b"x")
        properties = "WAIT\x01true\x02"
        if self._count % DELAYED_EACH == 0:
            properties += "DELAY\x011\x02"
        ext = wire.send_ext(TOPIC, self._count % QUEUES, properties)
        if await self._succeeds(Command(RequestCode.SEND_MESSAGE_V2, ext, body)):
            self.world.counts["acknowledged"] += 1


class Reader(LedgerClient):
    """Reads queues again and again from anywhere, and asks for their ends."""

    async def _act(self) -> None:
        queue_id = self.dice.randrange(QUEUES)
        node = None if self.dice.random() < 0.6 else self.dice.choice(self.world.nodes)
        if self.dice.random() < 0.4:
            ext = {"topic": TOPIC, "queueId": str(queue_id)}
            reply = await self._ask(Command(RequestCode.GET_MAX_OFFSET, ext), node)
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self._count = int(reply.ext["offset"])
            return
        offset = self.dice.randint(max(0, self._count - 20), self._count)
        command = Command(RequestCode.PULL_MESSAGE, wire.pull_ext(TOPIC, queue_id, offset, count=8))
        await self._ask(command, node)


class Committer(LedgerClient):
    """A consumer that commits offsets, and an administrator who makes topics."""

    async def _run(self) -> None:
        body = orjson.dumps(SubscriptionGroupConfig(GROUP).to_json())
        group = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        while not (await self._succeeds(group) and await self._make(TOPIC)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await super()._run()

    async def _act(self) -> None:
        self._count += 1
        if self._count % TOPIC_EACH == 0:
            await self._make(f"made-{self._count}")
            return
        queue_id = self.dice.randrange(QUEUES)
        register = self.world.checker.offsets.setdefault((GROUP, TOPIC, queue_id), Register())
        header = headers.UpdateConsumerOffset(
            consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, commit_offset=self._count
        )
        register.unclear[self._count] = None
        if await self._succeeds(Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())):
            register.acked = self._count
            register.unclear.pop(self._count)
            self.world.counts["committed offset"] += 1

    async def _make(self, topic: str) -> bool:
        header = headers.CreateTopic(
            topic=topic,
            default_topic="",
            read_queue_nums=4,
            write_queue_nums=4,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )
        made = await self._succeeds(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()))
        if made:
            self.world.checker.topics[topic] = None
            self.world.counts["made topic"] += 1
        return made
