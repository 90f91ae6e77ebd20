"""Consumers that take nothing: they wait to hear of messages, look at some, and ask who else waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_sim.ledger_clients import QUEUES, TOPIC, LedgerClient
from brokerset_sim.pop_clients import BATCH_SIZE_MAX
from brokerset_sim.pop_plan import GROUPS, NOTIFY_MS_MAX, ORDERED

if TYPE_CHECKING:
    from brokerset_sim.pop_world import PopPart

ANSWER_SECONDS = 0.6
"""Longer than it waits a client does not expect an answer."""


class Notified(LedgerClient):
    """The only one of its group that waits for notifications, so that each arrival is its own."""

    world: PopPart

    def __init__(self, world: PopPart, name: str) -> None:
        super().__init__(world, name)
        groups = (*GROUPS, ORDERED)
        self.group = groups[int(name.rpartition("-")[2]) % len(groups)]

    async def _act(self) -> None:
        queue_id = -1 if self.dice.random() < 0.7 else self.dice.randrange(QUEUES)
        chance = self.dice.random()
        if chance < 0.6:
            await self._wait(queue_id)
        elif chance < 0.8:
            await self._peek(queue_id)
        else:
            header = headers.PollingInfo(consumer_group=self.group, topic=TOPIC, queue_id=queue_id)
            await self._succeeds(Command(RequestCode.POLLING_INFO, header.to_ext()))

    async def _wait(self, queue_id: int) -> None:
        poll_ms = 0 if self.dice.random() < 0.3 else self.dice.randint(1, NOTIFY_MS_MAX)
        header = headers.Notification(
            consumer_group=self.group,
            topic=TOPIC,
            queue_id=queue_id,
            poll_time=poll_ms,
            born_time=0,
            order=self.group == ORDERED,
            attempt_id=self.name if self.group == ORDERED else None,
        )
        command = Command(RequestCode.NOTIFICATION, header.to_ext())
        reply = await self._ask(command, seconds=poll_ms / 1_000 + ANSWER_SECONDS)
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            self.last_acknowledged = self.world.loop.time()

    async def _peek(self, queue_id: int) -> None:
        header = headers.PeekMessage(
            consumer_group=self.group,
            topic=TOPIC,
            queue_id=queue_id,
            max_msg_nums=self.dice.randint(1, BATCH_SIZE_MAX),
        )
        reply = await self._ask(Command(RequestCode.PEEK_MESSAGE, header.to_ext()))
        if reply is not None and reply.code == ResponseCode.PULL_NOT_FOUND:
            self.last_acknowledged = self.world.loop.time()  # it is served
