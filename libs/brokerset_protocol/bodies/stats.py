"""Measurements about topics, queues and groups, as brokers answer administrators.

Maps with queues as keys are written as Java writes them, with bare objects as keys, and read in any style.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact
from brokerset_protocol.bodies.queues import MessageQueue, queue_keyed, queue_object_items


@dataclass(frozen=True, slots=True)
class TopicOffset(JsonBody):
    """One queue's ends; `last_update_timestamp` is the store time of its last message, 0 for none."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("minOffset", 0),
            value.integer("maxOffset", 0),
            value.integer("lastUpdateTimestamp", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "lastUpdateTimestamp": self.last_update_timestamp,
            "maxOffset": self.max_offset,
            "minOffset": self.min_offset,
        }


@dataclass(frozen=True, slots=True)
class TopicStats(JsonBody):
    """Answer to GET_TOPIC_STATS_INFO (202)."""

    object_keys: ClassVar[bool] = True

    offset_table: dict[MessageQueue, TopicOffset]
    topic_put_tps: float = 0.0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        items = queue_object_items(value, "offsetTable")
        return cls(
            {queue: TopicOffset.from_object(entry) for queue, entry in items}, value.number("topicPutTps")
        )

    def to_object(self) -> dict[str, object]:
        table = {queue: offset.to_object() for queue, offset in self.offset_table.items()}
        return {"offsetTable": queue_keyed(table), "topicPutTps": self.topic_put_tps}


@dataclass(frozen=True, slots=True)
class OffsetWrapper(JsonBody):
    """How far a group is in one queue; `last_timestamp` is the store time of the last consumed message."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_timestamp: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("brokerOffset", 0),
            value.integer("consumerOffset", 0),
            value.integer("pullOffset", 0),
            value.integer("lastTimestamp", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_timestamp,
            "pullOffset": self.pull_offset,
        }


@dataclass(frozen=True, slots=True)
class ConsumeStats(JsonBody):
    """Answer to GET_CONSUME_STATS (208)."""

    object_keys: ClassVar[bool] = True

    offset_table: dict[MessageQueue, OffsetWrapper]
    consume_tps: float = 0.0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        items = queue_object_items(value, "offsetTable")
        return cls(
            {queue: OffsetWrapper.from_object(entry) for queue, entry in items}, value.number("consumeTps")
        )

    def to_object(self) -> dict[str, object]:
        table = {queue: offset.to_object() for queue, offset in self.offset_table.items()}
        return {"consumeTps": self.consume_tps, "offsetTable": queue_keyed(table)}


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(JsonBody):
    """Answer to GET_BROKER_CONSUME_STATS (317): for each group its statistics, topic by topic."""

    object_keys: ClassVar[bool] = True

    broker_addr: str
    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    total_diff: int = 0
    total_inflight_diff: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        groups = [
            {name: tuple(map(ConsumeStats.from_object, group.objects(name))) for name in group.names()}
            for group in value.objects("consumeStatsList")
        ]
        return cls(
            value.text("brokerAddr", ""),
            tuple(groups),
            value.integer("totalDiff", 0),
            value.integer("totalInflightDiff", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "brokerAddr": self.broker_addr,
            "consumeStatsList": [
                {name: [entry.to_object() for entry in stats] for name, stats in group.items()}
                for group in self.consume_stats_list
            ],
            "totalDiff": self.total_diff,
            "totalInflightDiff": self.total_inflight_diff,
        }


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(JsonBody):
    """Store times in one queue: of its first, last and next unconsumed message; the lag in milliseconds."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        queue = JsonObject(value.raw("messageQueue"), f"messageQueue of {value.what}")
        return cls(
            MessageQueue.from_object(queue),
            value.integer("minTimeStamp", 0),
            value.integer("maxTimeStamp", 0),
            value.integer("consumeTimeStamp", 0),
            value.integer("delayTime", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "consumeTimeStamp": self.consume_time_stamp,
            "delayTime": self.delay_time,
            "maxTimeStamp": self.max_time_stamp,
            "messageQueue": self.message_queue.to_object(),
            "minTimeStamp": self.min_time_stamp,
        }


@dataclass(frozen=True, slots=True)
class ConsumeTimeSpan(JsonBody):
    """Answer to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: tuple[QueueTimeSpan, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(tuple(map(QueueTimeSpan.from_object, value.objects("consumeTimeSpanSet"))))

    def to_object(self) -> dict[str, object]:
        return {"consumeTimeSpanSet": [span.to_object() for span in self.consume_time_span_set]}


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(JsonBody):
    """One figure over one span: how many, how many a second, the average of each."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.integer("sum", 0), value.number("tps"), value.number("avgpt"))

    def to_object(self) -> dict[str, object]:
        return {"avgpt": self.avgpt, "sum": self.sum, "tps": self.tps}


_NOTHING = BrokerStatsItem()


@dataclass(frozen=True, slots=True)
class BrokerStatsData(JsonBody):
    """Answer to VIEW_BROKER_STATS_DATA (315)."""

    stats_minute: BrokerStatsItem = _NOTHING
    stats_hour: BrokerStatsItem = _NOTHING
    stats_day: BrokerStatsItem = _NOTHING

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        items = [value.inner(name) for name in ("statsMinute", "statsHour", "statsDay")]
        return cls(*(BrokerStatsItem.from_object(item) if item else _NOTHING for item in items))

    def to_object(self) -> dict[str, object]:
        return {
            "statsDay": self.stats_day.to_object(),
            "statsHour": self.stats_hour.to_object(),
            "statsMinute": self.stats_minute.to_object(),
        }


@dataclass(frozen=True, slots=True)
class ConsumeQueueUnit(JsonBody):
    """One unit of a queue: where its record is, the hash of its tags, whether a group's filter matches."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("physicOffset", 0),
            value.integer("physicSize", 0),
            value.integer("tagsCode", 0),
            value.flag("eval"),
            value.optional_text("extendDataJson"),
            value.optional_text("bitMap"),
            value.optional_text("msg"),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            bitMap=self.bit_map,
            eval=self.eval,
            extendDataJson=self.extend_data_json,
            msg=self.msg,
            physicOffset=self.physic_offset,
            physicSize=self.physic_size,
            tagsCode=self.tags_code,
        )


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponse(JsonBody):
    """Answer to QUERY_CONSUME_QUEUE (321)."""

    queue_data: tuple[ConsumeQueueUnit, ...]
    max_queue_index: int
    min_queue_index: int
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        subscription = value.inner("subscriptionData")
        return cls(
            tuple(map(ConsumeQueueUnit.from_object, value.objects("queueData"))),
            value.integer("maxQueueIndex", 0),
            value.integer("minQueueIndex", 0),
            SubscriptionData.from_object(subscription) if subscription else None,
            value.optional_text("filterData"),
        )

    def to_object(self) -> dict[str, object]:
        subscription = self.subscription_data
        return compact(
            filterData=self.filter_data,
            maxQueueIndex=self.max_queue_index,
            minQueueIndex=self.min_queue_index,
            queueData=[unit.to_object() for unit in self.queue_data],
            subscriptionData=subscription.to_object() if subscription else None,
        )
