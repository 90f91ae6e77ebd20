"""Replies to requests: a member of a consumer group whose handler returns the reply to each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from brokerset_client.errors import ReplyNotTaken
from brokerset_client.instance import ClientInstance
from brokerset_client.instance_user import InstanceUser
from brokerset_client.messages import MessageView
from brokerset_client.producer import SEND_SECONDS, Producer
from brokerset_client.push_consumer import PushConsumer
from brokerset_client.push_settings import PushSettings
from brokerset_formats.properties import Property
from brokerset_protocol.bodies.heartbeat import SUB_ALL, ConsumeFromWhere, ExpressionType

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply with more than a body."""

    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


RequestHandler = Callable[[MessageView], Awaitable[Answer | bytes | None]]
"""Gets a request and returns the reply to it; None sends none. After an exception the request comes again."""


def is_request(message: MessageView) -> bool:
    """Whether somebody waits, or has waited, for a reply to this message."""
    return bool(message.properties.get(Property.REPLY_TO_CLIENT))


class Replier(InstanceUser):
    """Consumes topics for a group, and replies to the requests among their messages.

    A request is consumed when its sender has the reply, and also when the sender has gone: `undelivered`
    counts these. When the handler fails, or no broker can be reached, the request comes again, maybe to
    another member. Use it with `async with`, or await `start` and `close`; call `subscribe` before or after.
    """

    def __init__(
        self,
        group: str,
        handler: RequestHandler,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        timeout: float = SEND_SECONDS,
        consume_from: ConsumeFromWhere | None = None,
        settings: PushSettings | None = None,
    ) -> None:
        """`timeout` in seconds bounds each reply's way to the sender."""
        super().__init__(namesrv, instance)
        self._handler = handler
        self._producer = Producer(group, instance=self.instance, timeout=timeout)
        self.consumer = PushConsumer(
            group,
            instance=self.instance,
            listener=self._handle,
            consume_from=consume_from,
            settings=settings,
        )
        """The member of the group."""
        self.replied = 0
        """Requests whose sender has the reply."""
        self.undelivered = 0
        """Replies that nobody took: their senders had gone, or waited no more."""

    def subscribe(
        self, topic: str, expression: str = SUB_ALL, *, expression_type: str = ExpressionType.TAG
    ) -> None:
        """Take requests from `topic`; see `PushConsumer.subscribe`."""
        self.consumer.subscribe(topic, expression, expression_type=expression_type)

    async def start(self) -> None:
        """Join the group. Raises `NameServerUnavailable`."""
        await super().start()
        try:
            await self._producer.start()
            await self.consumer.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let running handlers finish and send their replies, then leave the group."""
        await self.consumer.close()
        await self._producer.close()
        await super().close()

    async def _handle(self, message: MessageView) -> None:
        made = await self._handler(message)
        if made is None:
            return
        if not is_request(message):
            log.warning("reply to a message that is no request is not sent", message=str(message))
            return
        answer = made if isinstance(made, Answer) else Answer(made)
        try:
            await self._producer.reply_to(
                message,
                answer.body,
                tags=answer.tags,
                keys=answer.keys,
                properties=answer.properties,
            )
        except ReplyNotTaken as error:
            self.undelivered += 1
            log.info("reply not taken", message=str(message), reason=str(error))
        else:
            self.replied += 1
