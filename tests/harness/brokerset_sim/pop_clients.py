"""Consumers that pop: slow, forgetful, repetitive and mortal, until all is healed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from brokerset_client.pop.batch_acks import batch_acks
from brokerset_client.pop.popped import PoppedMessage, popped_messages
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.pop.handles import Handle
from brokerset_protocol import headers
from brokerset_protocol.bodies.pop import BatchAckMessages
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_sim.ledger_clients import QUEUES, TOPIC, LedgerClient
from brokerset_sim.pop_plan import GROUPS, ORDERED, WAIT_MS_MAX

if TYPE_CHECKING:
    from brokerset_sim.pop_world import PopPart

SLOW_SECONDS: Final = 0.06
CHANGES_MS: Final = (0, 40, 250, 900)
"""Invisible times that messages get instead of theirs."""

BATCH_SIZE_MAX: Final = 9


class Popper(LedgerClient):
    """Pops messages of one group, and does to each whatever a consumer may do."""

    world: PopPart
    mortal = True
    ordered = False

    def __init__(self, world: PopPart, name: str) -> None:
        super().__init__(world, name)
        self._attempt: str | None = None
        self.group = GROUPS[int(name.rstrip("+").rpartition("-")[2]) % len(GROUPS)]

    async def _run(self) -> None:
        body = orjson.dumps(SubscriptionGroupConfig(self.group).to_json())
        group = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        while not await self._succeeds(group):  # noqa: ASYNC110  # of a request
            await asyncio.sleep(0.02)
        while True:
            await asyncio.sleep(self.dice.random() * 0.03)
            await self._act()

    async def _act(self) -> None:
        dice, plan = self.dice, self.world.pop_plan
        header = headers.PopMessage(
            consumer_group=self.group,
            topic=TOPIC,
            queue_id=-1 if dice.random() < 0.8 else dice.randrange(QUEUES),
            max_msg_nums=dice.randint(1, BATCH_SIZE_MAX),
            invisible_time=dice.choice(plan.invisible_ms),
            poll_time=0 if dice.random() < 0.4 else dice.randint(1, WAIT_MS_MAX),
            born_time=0,
            init_mode=0,
            order=self.ordered,
            attempt_id=self._attempt,
        )
        reply = await self._ask(Command(RequestCode.POP_MESSAGE, header.to_ext()))
        if reply is None:
            return
        self._next_attempt()
        if reply.code == ResponseCode.POLLING_TIMEOUT:
            self.last_acknowledged = self.world.loop.time()  # it is served
        if reply.code != ResponseCode.SUCCESS:
            return
        messages = popped_messages(
            reply.body,
            headers.PopMessageResponse.from_ext(reply.ext),
            topic=TOPIC,
            group=self.group,
            broker=self.world.broker_name,
            ordered=self.ordered,
            now=self.world.loop.time(),
        )
        self._spawn(self._work(messages))

    def _next_attempt(self) -> None:
        """A pop was answered: the next one is another attempt."""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.process.spawn(work)

    # -- what becomes of messages -------------------------------------------------------------------------

    async def _work(self, messages: Sequence[PoppedMessage]) -> None:
        dice = self.dice
        careless = 0.0 if self.world.healing else self.world.pop_plan.careless
        good = [message for message in messages if dice.random() >= careless]
        for message in messages:
            if message not in good:
                self._spawn(self._mistreat(message))
        await asyncio.sleep(dice.random() * SLOW_SECONDS)
        if len(good) > 1 and dice.random() < 0.5:
            await self._ack_batch(good)
            return
        for message in good:
            if dice.random() < 0.15:
                self._spawn(self._ack(message, message.handle))
            await self._ack(message, message.handle)

    async def _mistreat(self, message: PoppedMessage) -> None:
        """Be late, change the invisible time, use old handles, or forget it."""
        dice, handle = self.dice, message.handle
        chance = dice.random()
        if chance < 0.25:
            return
        if chance < 0.5:
            await asyncio.sleep(handle.invisible_time / 1_000 * (0.7 + dice.random() * 0.8))
            await self._ack(message, handle)
            return
        await asyncio.sleep(dice.random() * SLOW_SECONDS)
        changed = await self._change(message, handle)
        if chance < 0.6:
            self._spawn(self._ack(message, handle))
        if changed is not None and chance < 0.85:
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * SLOW_SECONDS)
                changed = await self._change(message, changed) or changed
            await asyncio.sleep(dice.random() * SLOW_SECONDS)
            await self._ack(message, changed)

    async def _ack(self, message: PoppedMessage, handle: Handle) -> None:
        header = headers.AckMessage(
            consumer_group=self.group,
            topic=message.source,
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
        )
        await self._acked(Command(RequestCode.ACK_MESSAGE, header.to_ext()), 1)

    async def _ack_batch(self, messages: Sequence[PoppedMessage]) -> None:
        body = BatchAckMessages(self.world.broker_name, tuple(batch_acks(messages))).to_json()
        await self._acked(Command(RequestCode.BATCH_ACK_MESSAGE, {}, body), len(messages))

    async def _acked(self, command: Command, count: int) -> None:
        if await self._succeeds(command):
            self.world.counts["pop: acknowledged"] += count

    async def _change(self, message: PoppedMessage, handle: Handle) -> Handle | None:
        """The handle that the message has then; None if nobody says so."""
        header = headers.ChangeInvisibleTime(
            consumer_group=self.group,
            topic=message.source,
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
            invisible_time=self.dice.choice(CHANGES_MS),
            suspend=self.dice.random() < 0.3,
        )
        reply = await self._ask(Command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext()))
        if reply is None or reply.code != ResponseCode.SUCCESS or "popTime" not in reply.ext:
            return None  # also what was acknowledged before
        read = headers.ChangeInvisibleTimeResponse.from_ext(reply.ext)
        return replace(
            handle,
            start_offset=handle.queue_offset,
            pop_time=read.pop_time,
            invisible_time=read.invisible_time,
            revive_queue=read.revive_qid,
        )


class OrderedPopper(Popper):
    """Pops in order; repeats an attempt whose answer was lost."""

    ordered = True

    def __init__(self, world: PopPart, name: str) -> None:
        super().__init__(world, name)
        self.group = ORDERED
        self._next_attempt()

    def _next_attempt(self) -> None:
        self._count += 1
        self._attempt = f"{self.name}-{self._count}"
