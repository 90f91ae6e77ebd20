"""What clients tell brokers about themselves: groups, subscriptions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody, Wire

SUB_ALL: Final = "*"
"""The expression that every message matches."""


class ConsumeType(StrEnum):
    """How a group consumes; in Java's order."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each member gets every message, or the group shares them; in Java's order."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without offsets begins; in Java's order."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ExpressionType:
    """Languages of filter expressions."""

    TAG: Final = "TAG"
    SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class SubscriptionData(JsonBody):
    """What a group wants of a topic; `sub_version` is the client's clock in milliseconds.

    `code_set` holds the Java hashes of the tags; both sets are empty for `*`.
    """

    topic: str
    sub_string: str = SUB_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = ExpressionType.TAG
    class_filter_mode: bool = False
    filter_class_source: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerData(JsonBody):
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class ProducerData(JsonBody):
    """One producer group of a client."""

    group_name: str


@dataclass(frozen=True, slots=True)
class HeartbeatData(JsonBody):
    """Body of HEART_BEAT (34). `without_sub` says that subscriptions were left out as unchanged (V2)."""

    client_id: Annotated[str, Wire("clientID")]
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


@dataclass(frozen=True, slots=True)
class CheckClientRequest(JsonBody):
    """Body of CHECK_CLIENT_CONFIG (46): can the broker filter by this expression?"""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class QuerySubscriptionResponse(JsonBody):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
