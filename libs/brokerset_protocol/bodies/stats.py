"""Measurements about topics, queues and groups, as brokers answer administrators.

Maps with queues as keys are written as Java writes them, with bare objects as keys, and read in any style.
"""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody, OrEmpty, OrZero
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.bodies.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicOffset(JsonBody):
    """One queue's ends; `last_update_timestamp` is the store time of its last message, 0 for none."""

    min_offset: OrZero
    max_offset: OrZero
    last_update_timestamp: OrZero


@dataclass(frozen=True, slots=True)
class TopicStats(JsonBody):
    """Answer to GET_TOPIC_STATS_INFO (202)."""

    offset_table: dict[MessageQueue, TopicOffset]
    topic_put_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class OffsetWrapper(JsonBody):
    """How far a group is in one queue; `last_timestamp` is the store time of the last consumed message."""

    broker_offset: OrZero
    consumer_offset: OrZero
    pull_offset: int = 0
    last_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStats(JsonBody):
    """Answer to GET_CONSUME_STATS (208)."""

    offset_table: dict[MessageQueue, OffsetWrapper]
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(JsonBody):
    """Answer to GET_BROKER_CONSUME_STATS (317): for each group its statistics, topic by topic."""

    broker_addr: OrEmpty
    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(JsonBody):
    """Store times in one queue: of its first, last and next unconsumed message; the lag in milliseconds."""

    message_queue: MessageQueue
    min_time_stamp: OrZero
    max_time_stamp: OrZero
    consume_time_stamp: OrZero
    delay_time: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeTimeSpan(JsonBody):
    """Answer to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: tuple[QueueTimeSpan, ...]


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(JsonBody):
    """One metric over one span: how many, how many a second, the average of each."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


_NOTHING = BrokerStatsItem()


@dataclass(frozen=True, slots=True)
class BrokerStatsData(JsonBody):
    """Answer to VIEW_BROKER_STATS_DATA (315)."""

    stats_minute: BrokerStatsItem = _NOTHING
    stats_hour: BrokerStatsItem = _NOTHING
    stats_day: BrokerStatsItem = _NOTHING


@dataclass(frozen=True, slots=True)
class ConsumeQueueUnit(JsonBody):
    """One unit of a queue: where its record is, the hash of its tags, whether a group's filter matches."""

    physic_offset: OrZero
    physic_size: OrZero
    tags_code: OrZero
    eval: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponse(JsonBody):
    """Answer to QUERY_CONSUME_QUEUE (321)."""

    queue_data: tuple[ConsumeQueueUnit, ...]
    max_queue_index: OrZero
    min_queue_index: OrZero
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
