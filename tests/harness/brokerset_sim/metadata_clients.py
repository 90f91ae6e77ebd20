"""Administrators and consumers of the simulation that change metadata, and remember what they were told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.clients import SEND_SECONDS, RoutedClient
from brokerset_sim.metadata_checker import Key
from brokerset_sim.metadata_watch import CHANGE

if TYPE_CHECKING:
    from brokerset_sim.world import World

STANDING = "standing"
"""The topic that nobody deletes."""

GROUPS = ("g0", "g1")
QUEUES = 3
TOPICS_AT_ONCE = 3
"""Topics that are changed in a period; later ones leave them as they are."""

PERIOD_SECONDS = 5.0
VALUES_MAX = 16_000
"""Numbers that a topic's settings can show."""

DELETE_CHANCE = 0.35


class MetadataClient(RoutedClient):
    """One machine with an administrator, and a consumer that commits."""

    def __init__(self, world: World, name: str, group: str) -> None:
        super().__init__(world, name, group)
        self._ready = False

    def start(self) -> None:
        """Change things until the world becomes quiet."""
        self.process.spawn(self.process.call(self._administer))
        self.process.spawn(self.process.call(self._consume))

    def _topic(self) -> str:
        """One that is changed in these seconds."""
        period = int(self.world.loop.time() / PERIOD_SECONDS)
        return f"t{period}-{self.dice.randrange(TOPICS_AT_ONCE)}"

    async def _pause(self) -> None:
        await asyncio.sleep(self.dice.expovariate(1 / self.world.plan.metadata_pause))

    async def _administer(self) -> None:
        while not self.world.quiet and not self._ready:
            await self._pause()
            self._ready = await self._put_topic(STANDING) and all(
                [await self._put_group(name) for name in GROUPS]
            )
        while not self.world.quiet:
            await self._pause()
            topic = self._topic()
            dice = self.dice.random()
            if dice < 0.1:
                await self._put_group(self.dice.choice(GROUPS))
            elif dice < 0.1 + DELETE_CHANCE:
                header = headers.DeleteTopic(topic=topic)
                await self._change(
                    ("topic", topic), None, Command(RequestCode.DELETE_TOPIC_IN_BROKER, header.to_ext())
                )
            else:
                await self._put_topic(topic)

    async def _consume(self) -> None:
        while not self.world.quiet:
            await self._pause()
            if not self._ready:
                continue
            topic = STANDING if self.dice.random() < 0.6 else self._topic()
            group, queue_id = self.dice.choice(GROUPS), self.dice.randrange(QUEUES)
            number = self.world.metadata.next_number()
            header = headers.UpdateConsumerOffset(
                consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=number
            )
            command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())
            await self._change(("offset", topic, group, str(queue_id)), number, command, number)

    async def _put_topic(self, topic: str) -> bool:
        number = self.world.metadata.next_number()
        value = 1 + number % VALUES_MAX
        header = headers.CreateTopic(
            topic=topic,
            default_topic="",
            read_queue_nums=value,
            write_queue_nums=4,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        return await self._change(("topic", topic), value, command, number)

    async def _put_group(self, group: str) -> bool:
        number = self.world.metadata.next_number()
        body = orjson.dumps(SubscriptionGroupConfig(group, retry_max_times=number).to_json())
        command = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        return await self._change(("group", group), number, command, number)

    async def _change(self, key: Key, value: int | None, command: Command, number: int | None = None) -> bool:
        """Ask for a change; whether it was told to be stored. Anything else may come about, or not."""
        address = self._where()
        if address is None:
            return False
        watch = self.world.metadata
        number = watch.next_number() if number is None else number
        command.ext[CHANGE] = str(number)
        change = watch.begin(self.group, number, key, value)
        try:
            reply = await self._asker.ask(address, command, SEND_SECONDS)
        except (ConnectionClosed, RequestTimeout):
            self._forget_route(0.7)
            await asyncio.sleep(0.02)
            return False
        if reply.code == ResponseCode.SUCCESS:
            self.last_acknowledged = self.world.loop.time()
            watch.client_answered(self.group, change)
            return True
        self.world.witness.counts["metadata not told"] += 1
        self._forget_route(0.4)
        await asyncio.sleep(0.05)
        return False
