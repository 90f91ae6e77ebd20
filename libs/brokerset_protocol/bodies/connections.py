"""Who is connected, and what a relayed request to a client brings back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Self

from brokerset_protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact
from brokerset_protocol.bodies.queues import MessageQueue, queue_keyed, queue_object_items


@dataclass(frozen=True, slots=True)
class Connection(JsonBody):
    """One client's connection; `client_addr` is `ip:port`, `language` the name of `Language`."""

    client_id: str
    client_addr: str
    language: str
    version: int

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("clientId"),
            value.text("clientAddr", ""),
            value.text("language", "OTHER"),
            value.integer("version", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ProducerConnection(JsonBody):
    """Answer to GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: tuple[Connection, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(tuple(map(Connection.from_object, value.objects("connectionSet"))))

    def to_object(self) -> dict[str, object]:
        return {"connectionSet": [connection.to_object() for connection in self.connection_set]}


@dataclass(frozen=True, slots=True)
class ConsumerConnection(JsonBody):
    """Answer to GET_CONSUMER_CONNECTION_LIST (203); subscriptions by topic."""

    connection_set: tuple[Connection, ...]
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        subscriptions = value.object_items("subscriptionTable")
        return cls(
            tuple(map(Connection.from_object, value.objects("connectionSet"))),
            {topic: SubscriptionData.from_object(data) for topic, data in subscriptions},
            value.word("consumeType", ConsumeType, ConsumeType.CONSUME_PASSIVELY),
            value.word("messageModel", MessageModel, MessageModel.CLUSTERING),
            value.word("consumeFromWhere", ConsumeFromWhere, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "connectionSet": [connection.to_object() for connection in self.connection_set],
            "consumeFromWhere": self.consume_from_where.value,
            "consumeType": self.consume_type.value,
            "messageModel": self.message_model.value,
            "subscriptionTable": {topic: data.to_object() for topic, data in self.subscription_table.items()},
        }


@dataclass(frozen=True, slots=True)
class ProducerInfo(JsonBody):
    """One member of a producer group; `last_update_timestamp` is its last heartbeat, milliseconds."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_timestamp: int

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("clientId"),
            value.text("remoteIP", ""),
            value.text("language", "OTHER"),
            value.integer("version", 0),
            value.integer("lastUpdateTimestamp", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_timestamp,
            "remoteIP": self.remote_ip,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ProducerTable(JsonBody):
    """Answer to GET_ALL_PRODUCER_INFO (328): members by group."""

    data: dict[str, tuple[ProducerInfo, ...]]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        groups = value.inner("data")
        names = groups.names() if groups else []
        return cls(
            {name: tuple(map(ProducerInfo.from_object, groups.objects(name))) for name in names}
            if groups
            else {}
        )

    def to_object(self) -> dict[str, object]:
        return {"data": {group: [info.to_object() for info in infos] for group, infos in self.data.items()}}


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo(JsonBody):
    """What a push consumer holds of one queue; counts, offsets, and milliseconds of its clock."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    locked: bool = False
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.integer("commitOffset", 0),
            value.integer("cachedMsgMinOffset", 0),
            value.integer("cachedMsgMaxOffset", 0),
            value.integer("cachedMsgCount", 0),
            value.integer("cachedMsgSizeInMiB", 0),
            value.flag("locked"),
            value.integer("lastLockTimestamp", 0),
            value.flag("droped"),
            value.integer("lastPullTimestamp", 0),
            value.integer("lastConsumeTimestamp", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "cachedMsgCount": self.cached_msg_count,
            "cachedMsgMaxOffset": self.cached_msg_max_offset,
            "cachedMsgMinOffset": self.cached_msg_min_offset,
            "cachedMsgSizeInMiB": self.cached_msg_size_in_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consume_timestamp,
            "lastLockTimestamp": self.last_lock_timestamp,
            "lastPullTimestamp": self.last_pull_timestamp,
            "locked": self.locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(JsonBody):
    """Answer of a client to GET_CONSUMER_RUNNING_INFO (307)."""

    object_keys: ClassVar[bool] = True

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        queues = queue_object_items(value, "mqTable")
        return cls(
            value.text_map("properties"),
            tuple(map(SubscriptionData.from_object, value.objects("subscriptionSet"))),
            {queue: ProcessQueueInfo.from_object(info) for queue, info in queues},
            value.text_map("userConsumerInfo"),
            value.optional_text("jstack"),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            jstack=self.jstack,
            mqPopTable={},
            mqTable=queue_keyed({queue: info.to_object() for queue, info in self.mq_table.items()}),
            properties=self.properties,
            statusTable={},
            subscriptionSet=[data.to_object() for data in self.subscription_set],
            userConsumerInfo=self.user_consumer_info,
        )


class ConsumeResult(StrEnum):
    """How a directly consumed message ended; in Java's order."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult(JsonBody):
    """Answer of a client to CONSUME_MESSAGE_DIRECTLY (309); the time is in milliseconds."""

    consume_result: ConsumeResult
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.word("consumeResult", ConsumeResult, ConsumeResult.CR_RETURN_NULL),
            value.flag("order"),
            value.flag("autoCommit", True),
            value.optional_text("remark"),
            value.integer("spentTimeMills", 0),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            autoCommit=self.auto_commit,
            consumeResult=self.consume_result.value,
            order=self.order,
            remark=self.remark,
            spentTimeMills=self.spent_time_mills,
        )
