"""What clients tell brokers about themselves: groups, subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact

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

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("topic"),
            value.text("subString", SUB_ALL),
            frozenset(value.texts("tagsSet")),
            frozenset(value.integers("codeSet")),
            value.integer("subVersion", 0),
            value.text("expressionType", ExpressionType.TAG),
            value.flag("classFilterMode"),
            value.optional_text("filterClassSource"),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            classFilterMode=self.class_filter_mode,
            codeSet=sorted(self.code_set),
            expressionType=self.expression_type,
            filterClassSource=self.filter_class_source,
            subString=self.sub_string,
            subVersion=self.sub_version,
            tagsSet=sorted(self.tags_set),
            topic=self.topic,
        )


@dataclass(frozen=True, slots=True)
class ConsumerData(JsonBody):
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("groupName"),
            value.word("consumeType", ConsumeType, ConsumeType.CONSUME_PASSIVELY),
            value.word("messageModel", MessageModel, MessageModel.CLUSTERING),
            value.word("consumeFromWhere", ConsumeFromWhere, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
            tuple(map(SubscriptionData.from_object, value.objects("subscriptionDataSet"))),
            value.flag("unitMode"),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "consumeFromWhere": self.consume_from_where.value,
            "consumeType": self.consume_type.value,
            "groupName": self.group_name,
            "messageModel": self.message_model.value,
            "subscriptionDataSet": [data.to_object() for data in self.subscription_data_set],
            "unitMode": self.unit_mode,
        }


@dataclass(frozen=True, slots=True)
class ProducerData(JsonBody):
    """One producer group of a client."""

    group_name: str

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.text("groupName"))

    def to_object(self) -> dict[str, object]:
        return {"groupName": self.group_name}


@dataclass(frozen=True, slots=True)
class HeartbeatData(JsonBody):
    """Body of HEART_BEAT (34). `without_sub` says that subscriptions were left out as unchanged (V2)."""

    client_id: str
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("clientID"),
            tuple(map(ProducerData.from_object, value.objects("producerDataSet"))),
            tuple(map(ConsumerData.from_object, value.objects("consumerDataSet"))),
            value.integer("heartbeatFingerprint", 0),
            value.flag("withoutSub"),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "clientID": self.client_id,
            "consumerDataSet": [data.to_object() for data in self.consumer_data_set],
            "heartbeatFingerprint": self.heartbeat_fingerprint,
            "producerDataSet": [data.to_object() for data in self.producer_data_set],
            "withoutSub": self.without_sub,
        }


@dataclass(frozen=True, slots=True)
class CheckClientRequest(JsonBody):
    """Body of CHECK_CLIENT_CONFIG (46): can the broker filter by this expression?"""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        subscription = JsonObject(value.raw("subscriptionData"), f"subscriptionData of {value.what}")
        return cls(
            value.text("clientId"),
            value.text("group"),
            SubscriptionData.from_object(subscription),
            value.optional_text("namespace"),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            clientId=self.client_id,
            group=self.group,
            namespace=self.namespace,
            subscriptionData=self.subscription_data.to_object(),
        )


@dataclass(frozen=True, slots=True)
class QuerySubscriptionResponse(JsonBody):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        subscription = value.inner("subscriptionData")
        return cls(
            value.text("group"),
            value.text("topic"),
            SubscriptionData.from_object(subscription) if subscription else None,
        )

    def to_object(self) -> dict[str, object]:
        subscription = self.subscription_data
        return compact(
            group=self.group,
            subscriptionData=subscription.to_object() if subscription else None,
            topic=self.topic,
        )
