"""Queues as values and as keys of maps; locks, members of groups, lists of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import orjson

from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact, dump, parse


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(JsonBody):
    """One queue of a topic at one broker; ordered as Java sorts them for a rebalance."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.text("topic"), value.text("brokerName"), value.integer("queueId"))

    def to_object(self) -> dict[str, object]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def queue_keyed(table: Mapping[MessageQueue, object]) -> orjson.Fragment:
    """A map with queues as keys, as Java writes it: `{{"brokerName":…}:value,…}`. No JSON by itself."""
    entries = (dump(queue.to_object()) + b":" + dump(value) for queue, value in table.items())
    return orjson.Fragment(b"{" + b",".join(entries) + b"}")


def queue_items(value: JsonObject, name: str) -> list[tuple[MessageQueue, object]]:
    """The entries of a map with queues as keys: bare objects (Java), or texts that hold their JSON."""
    return [
        (MessageQueue.from_object(JsonObject(parse(key.encode(), name), name)), entry)
        for key, entry in value.items(name)
    ]


def queue_object_items(value: JsonObject, name: str) -> list[tuple[MessageQueue, JsonObject]]:
    """The same for values that are objects."""
    return [(queue, JsonObject(entry, name)) for queue, entry in queue_items(value, name)]


@dataclass(frozen=True, slots=True)
class LockBatchRequest(JsonBody):
    """Body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    mq_set: frozenset[MessageQueue]
    only_this_broker: bool = False

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("consumerGroup"),
            value.text("clientId"),
            frozenset(map(MessageQueue.from_object, value.objects("mqSet"))),
            value.flag("onlyThisBroker"),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "mqSet": [queue.to_object() for queue in sorted(self.mq_set)],
            "onlyThisBroker": self.only_this_broker,
        }


@dataclass(frozen=True, slots=True)
class LockBatchResponse(JsonBody):
    """Answer to LOCK_BATCH_MQ: the queues that the client holds now."""

    lock_ok_mq_set: frozenset[MessageQueue]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(frozenset(map(MessageQueue.from_object, value.objects("lockOKMQSet"))))

    def to_object(self) -> dict[str, object]:
        return {"lockOKMQSet": [queue.to_object() for queue in sorted(self.lock_ok_mq_set)]}


@dataclass(frozen=True, slots=True)
class ConsumerIdList(JsonBody):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: tuple[str, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.texts("consumerIdList"))

    def to_object(self) -> dict[str, object]:
        return {"consumerIdList": list(self.consumer_id_list)}


@dataclass(frozen=True, slots=True)
class TopicList(JsonBody):
    """Names of topics; `broker_addr` only in the answer to GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""

    topic_list: tuple[str, ...]
    broker_addr: str | None = None

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.texts("topicList"), value.optional_text("brokerAddr"))

    def to_object(self) -> dict[str, object]:
        return compact(brokerAddr=self.broker_addr, topicList=list(self.topic_list))


@dataclass(frozen=True, slots=True)
class GroupList(JsonBody):
    """Names of consumer groups: answer to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: tuple[str, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.texts("groupList"))

    def to_object(self) -> dict[str, object]:
        return {"groupList": list(self.group_list)}


@dataclass(frozen=True, slots=True)
class KVTable(JsonBody):
    """A table of texts: runtime info (28), KV configuration (219), ordered topics (103)."""

    table: dict[str, str]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.text_map("table"))

    def to_object(self) -> dict[str, object]:
        return {"table": self.table}
