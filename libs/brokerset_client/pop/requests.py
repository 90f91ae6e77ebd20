"""The requests of a POP consumer to the masters of brokers; each raises `ClientError`s."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from brokerset_client import calls
from brokerset_client.errors import BrokerUnreachable, HandleRefused, RequestRefused
from brokerset_client.instance import CALL_SECONDS, ClientInstance
from brokerset_client.pop.batch_acks import batch_acks
from brokerset_client.pop.popped import PoppedMessage, popped_messages
from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.bodies.pop import BatchAckMessages
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected

ANSWER_SECONDS: Final = 5.0
"""How long after the end of a long poll its answer is waited for."""

POP_MAX: Final = 32
"""Messages that brokers give in one answer, at most."""

GONE_CODES: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE})
"""What brokers answer to a handle that names nothing which is out with its holder."""

_EMPTY_CODES: Final = frozenset(
    {ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND}
)

INIT_OLDEST: Final = 0
INIT_NEWEST: Final = 1
ANY_QUEUE: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Where a consumer pops: the queues of one topic at one broker."""

    topic: str
    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PopWish:
    """What is asked of a source. Times are milliseconds."""

    count: int
    invisible_ms: int
    wait_ms: int
    """How long the broker may wait for a message; 0: it answers at once."""
    attempt_id: str | None = None
    """Ordered pops: repeated when an answer was lost, so that the broker gives the same messages again."""


@dataclass(frozen=True, slots=True)
class Popped:
    """What a pop brought."""

    messages: list[PoppedMessage]
    refused_by_filter: list[PoppedMessage]
    """Given out by the broker, which compares hashes of tags, and not what was subscribed to."""
    waiters_full: bool = False
    """The broker has no room for one more long poll (209)."""


class PopBroker(Protocol):
    """What the parts of a POP consumer want of brokers."""

    async def pop(self, source: Source, subscription: SubscriptionData, wish: PopWish) -> Popped:
        """POP_MESSAGE (200050)."""
        ...

    async def ack(self, broker: str, messages: Sequence[PoppedMessage], timeout: float) -> None:
        """ACK_MESSAGE (200051) for one, BATCH_ACK_MESSAGE (200151) for several of one broker."""
        ...

    async def change(
        self, message: PoppedMessage, invisible_ms: int, timeout: float, *, uncounted: bool = False
    ) -> None:
        """CHANGE_MESSAGE_INVISIBLETIME (200053)."""
        ...

    async def dead_letter(self, message: PoppedMessage) -> None:
        """CONSUMER_SEND_MSG_BACK (36), to the group's dead-letter topic."""
        ...

    def stale(self, topic: str) -> None:
        """A broker of this topic may have moved, or may not know this consumer: see to both soon."""
        ...


class PopRequests:
    """`PopBroker` for one group, over the connections of an instance."""

    def __init__(
        self, instance: ClientInstance, group: str, *, init_mode: int = INIT_NEWEST, ordered: bool = False
    ) -> None:
        self._instance = instance
        self._group = group
        self._init_mode = init_mode
        self._ordered = ordered
        self._single_only: dict[str, None] = {}
        """Addresses of brokers that know no batch ack (before RocketMQ 5.1)."""

    async def pop(self, source: Source, subscription: SubscriptionData, wish: PopWish) -> Popped:
        """Ask any queue of a source. A broker that has nothing answers empty when its time is over."""
        address = await self._master(source.topic, source.broker)
        header = headers.PopMessage(
            consumer_group=self._group,
            topic=source.topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=wish.count,
            invisible_time=wish.invisible_ms,
            poll_time=wish.wait_ms,
            # 0 stands for the moment in which the broker reads it. With ours, a broker whose clock is ahead
            # would take every poll for one whose time is over.
            born_time=0,
            init_mode=self._init_mode,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=self._ordered,
            attempt_id=wish.attempt_id,
        )
        command = Command(RequestCode.POP_MESSAGE, header.to_ext())
        answer = await self._instance.call(address, command, wish.wait_ms / 1000 + ANSWER_SECONDS)
        if answer.code in _EMPTY_CODES:
            return Popped([], [], waiters_full=answer.code == ResponseCode.POLLING_FULL)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(answer.code, answer.remark or "no reason given", address)
        try:
            read = headers.PopMessageResponse.from_ext(answer.ext)
        except Rejected as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"unreadable answer to a pop: {error.remark}", address
            ) from error
        messages = popped_messages(
            answer.body,
            read,
            topic=source.topic,
            group=self._group,
            broker=source.broker,
            ordered=self._ordered,
            now=asyncio.get_running_loop().time(),
        )
        tags = subscription.tags_set
        if not tags:
            return Popped(messages, [])
        return Popped(
            [message for message in messages if message.tags in tags],
            [message for message in messages if message.tags not in tags],
        )

    async def ack(self, broker: str, messages: Sequence[PoppedMessage], timeout: float) -> None:
        """Acknowledge messages of one broker. Raises `HandleRefused` for a single one that is not ours any
        more, and `RequestRefused` if a batch was refused as a whole or in part."""
        address = await self._master(messages[0].topic, broker)
        if len(messages) > 1 and address not in self._single_only:
            body = BatchAckMessages(broker, tuple(batch_acks(messages))).to_json()
            answer = await self._instance.call(
                address, Command(RequestCode.BATCH_ACK_MESSAGE, {}, body), min(timeout, CALL_SECONDS)
            )
            if answer.code == ResponseCode.SUCCESS:
                return
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._single_only[address] = None
            raise RequestRefused(answer.code, answer.remark or "no reason given", address)
        for message in messages:
            header = headers.AckMessage(
                consumer_group=self._group,
                topic=message.source,
                queue_id=message.handle.queue_id,
                extra_info=message.handle.encode(),
                offset=message.handle.queue_offset,
            )
            await self._about(message, address, RequestCode.ACK_MESSAGE, header, timeout)

    async def change(
        self, message: PoppedMessage, invisible_ms: int, timeout: float, *, uncounted: bool = False
    ) -> None:
        """Let the invisible time end so long after now; `message` gets its new handle.

        `uncounted`: the next delivery counts as the same one. Raises `HandleRefused`.
        """
        handle = message.handle
        address = await self._master(message.topic, handle.broker)
        header = headers.ChangeInvisibleTime(
            consumer_group=self._group,
            topic=message.source,
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
            suspend=uncounted,
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        begun = asyncio.get_running_loop().time()
        answer = await self._about(message, address, code, header, timeout)
        message.expires_at = begun + invisible_ms / 1000
        try:
            read = headers.ChangeInvisibleTimeResponse.from_ext(answer.ext)
        except Rejected:
            return  # an ordered message that was done already: brokers answer without a header
        message.handle = replace(
            handle,
            start_offset=handle.queue_offset,  # it is a delivery of its own now
            pop_time=read.pop_time,
            invisible_time=read.invisible_time,
            revive_queue=read.revive_qid,
            log_offset=None,
        )

    async def dead_letter(self, message: PoppedMessage) -> None:
        """Have the broker copy the message to the group's dead-letter topic; it is not acknowledged yet."""
        address = await self._master(message.topic, message.handle.broker)
        await calls.send_back(
            self._instance, address, self._group, message, delay_level=-1, max_reconsume_times=0
        )

    def stale(self, topic: str) -> None:
        """Read the route again, and say who we are, in the background."""
        self._instance.refresh_soon(topic)
        self._instance.heartbeat_soon()

    async def _about(
        self, message: PoppedMessage, address: str, code: RequestCode, header: headers.Header, timeout: float
    ) -> Command:
        answer = await self._instance.call(
            address, Command(code, header.to_ext()), min(timeout, CALL_SECONDS)
        )
        remark = answer.remark or "no reason given"
        if answer.code in GONE_CODES:
            raise HandleRefused(message.message_id, answer.code, remark, address)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(answer.code, remark, address)
        return answer

    async def _master(self, topic: str, broker: str) -> str:
        address = (await self._instance.route(topic)).master(broker)
        if address is None:
            raise BrokerUnreachable(broker, f"it has no master for {topic} now, who would serve pops")
        return address
