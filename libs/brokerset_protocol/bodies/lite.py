"""What brokers tell administrators of lite topics."""

from __future__ import annotations

from dataclasses import field

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody
from brokerset_protocol.bodies.stats import TopicOffset


@dataclass(frozen=True, slots=True)
class BrokerLiteInfo(JsonBody):
    """Answer to GET_BROKER_LITE_INFO (200074); `topic_meta` has minutes by parent."""

    store_type: str
    max_lmq_num: int
    current_lmq_num: int
    lite_subscription_count: int = 0
    order_info_count: int = 0
    cq_table_size: int = 0
    offset_table_size: int = 0
    event_map_size: int = 0
    topic_meta: dict[str, int] = field(default_factory=dict)
    group_meta: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParentTopicInfo(JsonBody):
    """Answer to GET_PARENT_TOPIC_INFO (200075); `ttl` in minutes, -1 if they last."""

    topic: str
    ttl: int
    lmq_num: int
    lite_topic_count: int
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiteTopicInfo(JsonBody):
    """Answer to GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str
    lite_topic: str
    topic_offset: TopicOffset
    subscriber: tuple[str, ...] = ()
    sharding_to_broker: bool = True
