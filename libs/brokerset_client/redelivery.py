"""Gives failed messages back: to the broker that has them, else by sending them again to the retry topic.

Sources: `DefaultMQPushConsumerImpl.sendMessageBack`, `ConsumeMessageOrderlyService.sendMessageBack`.
"""

from __future__ import annotations

import structlog

from brokerset_client import calls
from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView
from brokerset_client.producer import Producer
from brokerset_client.retry import redelivery_level
from brokerset_formats import names
from brokerset_formats.properties import Property

log = structlog.get_logger(__name__)

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
"""Producer group of what a client sends on its own account."""


class Redelivery:
    """The way back for one consumer group."""

    def __init__(self, instance: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._instance = instance
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._producer = Producer(INNER_PRODUCER_GROUP, instance=instance)
        self.fallbacks = 0
        """Messages that no broker took back, and that were sent again."""

    async def start(self) -> None:
        """Be able to send."""
        await self._producer.start()

    async def close(self) -> None:
        """Finish what is being sent."""
        await self._producer.close()

    async def give_back(self, message: MessageView, delay_level: int) -> bool:
        """Let the group get `message` again later. False if that failed: it must be tried again here."""
        try:
            route = await self._instance.route(message.stored_topic)
            address = route.master(message.broker_name) or message.store_host.text
            await calls.send_back(
                self._instance,
                address,
                self._group,
                message,
                delay_level=delay_level,
                max_reconsume_times=self._max_reconsume_times,
            )
        except ClientError as error:
            log.warning(
                "message was not taken back, it is sent again", message=str(message), reason=str(error)
            )
            self.fallbacks += 1
            return await self.send_again(message, message.reconsume_times + 1)
        return True

    async def send_again(self, message: MessageView, reconsume_times: int) -> bool:
        """Send a copy to the group's retry topic, counting so many failures. False if that failed."""
        try:
            await self._producer.send(self.copy_of(message, reconsume_times))
        except ClientError as error:
            log.warning("message could not be sent again", message=str(message), reason=str(error))
            return False
        return True

    def copy_of(self, message: MessageView, reconsume_times: int) -> Message:
        """What `send_again` sends. Raises `MessageUnreadable`."""
        properties = dict(message.properties)
        properties.pop(Property.TRAN_MSG, None)
        properties[Property.RETRY_TOPIC] = message.topic
        properties[Property.ORIGIN_MESSAGE_ID] = message.origin_message_id
        properties[Property.RECONSUME_TIME] = str(reconsume_times)
        properties[Property.MAX_RECONSUME_TIMES] = str(self._max_reconsume_times)
        return Message(
            topic=names.retry_topic(self._group),
            body=message.body,
            flag=message.flag,
            delay_level=redelivery_level(message.reconsume_times),
            system_properties=properties,
        )
