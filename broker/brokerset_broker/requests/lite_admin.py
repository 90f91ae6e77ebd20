"""What administrators ask about lite topics, as far as it needs no POP: 200074, 200075, 200076.

Source: `LiteManagerProcessor`. Subscriptions are those of POP, so there are none.
"""

from __future__ import annotations

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.message_types import EXPIRATION, MessageType, type_of_topic
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_formats.light_queues import QUEUE_ID, lite_queue
from brokerset_protocol import headers
from brokerset_protocol.bodies.lite import BrokerLiteInfo, LiteTopicInfo, ParentTopicInfo
from brokerset_protocol.bodies.stats import TopicOffset
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import Connection, Handler


class LiteAdminProcessor:
    """Describes parents and their lite topics."""

    def __init__(
        self, *, live: LiveSettings, store: MessageStore, topics: TopicManager, offsets: OffsetManager
    ) -> None:
        self._live = live
        self._store = store
        self._topics = topics
        self._offsets = offsets

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.GET_BROKER_LITE_INFO: self.broker_info,
            RequestCode.GET_PARENT_TOPIC_INFO: self.parent_info,
            RequestCode.GET_LITE_TOPIC_INFO: self.lite_info,
        }

    def broker_info(self, connection: Connection, command: Command) -> Command:
        """How many light queues there are, and how long lite topics live by parent."""
        parents = {
            topic.topic_name: _minutes(topic)
            for topic in self._topics
            if type_of_topic(topic) is MessageType.LITE
        }
        body = BrokerLiteInfo(
            store_type="default",
            max_lmq_num=self._live.current.max_lmq_consume_queue_num,
            current_lmq_num=len(self._store.queues_table.light),
            cq_table_size=len(self._store.queues()),
            offset_table_size=len(self._offsets.replicated),
            topic_meta=parents,
        )
        return command.reply(body=body.to_json())

    def parent_info(self, connection: Connection, command: Command) -> Command:
        """How many lite topics a parent has, and how long they live."""
        config = self._parent(headers.GetParentTopicInfo.from_ext(command.ext).topic)
        light = self._store.queues_table.light
        prefix = lite_queue(config.topic_name, "")
        body = ParentTopicInfo(
            topic=config.topic_name,
            ttl=_minutes(config),
            lmq_num=len(light),
            lite_topic_count=sum(1 for name in light if name.startswith(prefix)),
        )
        return command.reply(body=body.to_json())

    def lite_info(self, connection: Connection, command: Command) -> Command:
        """The first and the next number of a lite topic, and when its last message was stored."""
        header = headers.GetLiteTopicInfo.from_ext(command.ext)
        config = self._parent(header.parent_topic)
        name = lite_queue(config.topic_name, header.lite_topic)
        end = self._store.queue_max(name, QUEUE_ID)
        stored_ms = self._store.store_time_at(name, QUEUE_ID, end - 1) if end else None
        ends = TopicOffset(self._store.queue_min(name, QUEUE_ID), end, stored_ms or 0)
        return command.reply(body=LiteTopicInfo(config.topic_name, header.lite_topic, ends).to_json())

    def _parent(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{topic}] not exist.")
        if type_of_topic(config) is not MessageType.LITE:
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"Topic [{topic}] type not match.")
        return config


def _minutes(config: TopicConfig) -> int:
    return int(config.attributes.get(EXPIRATION, "-1"))
