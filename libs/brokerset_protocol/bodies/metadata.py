"""Lists of settings in requests, and requests about how queues are assigned.

Whole tables (21, 43, 45, 201) are those of `registration` and of `brokerset_formats.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from brokerset_formats.config import DataVersion, GroupTable, SubscriptionGroupConfig, TopicConfig
from brokerset_protocol.bodies.heartbeat import MessageModel
from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, compact, convert, rejected
from brokerset_protocol.bodies.queues import MessageQueue

ITEMS_MAX: Final = 10_000
"""Topics or groups that one request may create."""


def topic_config(data: bytes) -> TopicConfig:
    """Answer to GET_TOPIC_CONFIG (351). Raises `Rejected`."""
    return convert(TopicConfig.from_json, _Fields.from_json(data).fields, "TopicConfig")


def subscription_group_config(data: bytes) -> SubscriptionGroupConfig:
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), answer to 352. Raises `Rejected`."""
    return convert(
        SubscriptionGroupConfig.from_json, _Fields.from_json(data).fields, "SubscriptionGroupConfig"
    )


def group_table(data: bytes) -> GroupTable:
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201). Raises `Rejected`."""
    return convert(GroupTable.from_json, _Fields.from_json(data).fields, "GroupTable")


def data_version(data: bytes) -> DataVersion:
    """Body of QUERY_DATA_VERSION (322) and of its answer. Raises `Rejected`."""
    return convert(DataVersion.from_json, _Fields.from_json(data).fields, "DataVersion")


@dataclass(frozen=True, slots=True)
class _Fields(JsonBody):
    fields: Mapping[str, object]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.fields)

    def to_object(self) -> dict[str, object]:
        return dict(self.fields)


@dataclass(frozen=True, slots=True)
class TopicConfigList(JsonBody):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    topic_config_list: tuple[TopicConfig, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        items = _bounded(value, "topicConfigList")
        return cls(tuple(convert(TopicConfig.from_json, item.fields, item.what) for item in items))

    def to_object(self) -> dict[str, object]:
        return {"topicConfigList": [config.to_json() for config in self.topic_config_list]}


@dataclass(frozen=True, slots=True)
class SubscriptionGroupList(JsonBody):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: tuple[SubscriptionGroupConfig, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        items = _bounded(value, "groupConfigList")
        return cls(
            tuple(convert(SubscriptionGroupConfig.from_json, item.fields, item.what) for item in items)
        )

    def to_object(self) -> dict[str, object]:
        return {"groupConfigList": [config.to_json() for config in self.group_config_list]}


def _bounded(value: JsonObject, name: str) -> list[JsonObject]:
    items = value.objects(name)
    if len(items) > ITEMS_MAX:
        raise rejected(value.what, f"{len(items)} entries in {name}, at most {ITEMS_MAX} are taken")
    return items


@dataclass(frozen=True, slots=True)
class GroupForbidden(JsonBody):
    """Answer to UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool = True

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(value.text("group"), value.text("topic"), value.flag("readable", True))

    def to_object(self) -> dict[str, object]:
        return {"group": self.group, "readable": self.readable, "topic": self.topic}


class MessageRequestMode(StrEnum):
    """How consumers of a group get messages; in Java's order."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True)
class SetMessageRequestMode(JsonBody):
    """Body of SET_MESSAGE_REQUEST_MODE (401), and entry of the table of 402."""

    topic: str
    consumer_group: str
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: int = 0

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("topic"),
            value.text("consumerGroup"),
            value.word("mode", MessageRequestMode, MessageRequestMode.PULL),
            value.integer("popShareQueueNum", 0),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "consumerGroup": self.consumer_group,
            "mode": self.mode.value,
            "popShareQueueNum": self.pop_share_queue_num,
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class MessageRequestModeTable(JsonBody):
    """Answer to GET_ALL_MESSAGE_REQUEST_MODE (402), file messageRequestMode.json: by topic, then group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestMode]] = field(default_factory=dict)

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        table = value.inner("messageRequestModeMap")
        return cls(
            {
                topic: {
                    group: SetMessageRequestMode.from_object(mode)
                    for group, mode in table.object_items(topic)
                }
                for topic in table.names()
            }
            if table
            else {}
        )

    def to_object(self) -> dict[str, object]:
        return {
            "messageRequestModeMap": {
                topic: {group: mode.to_object() for group, mode in modes.items()}
                for topic, modes in self.message_request_mode_map.items()
            }
        }


@dataclass(frozen=True, slots=True)
class QueryAssignmentRequest(JsonBody):
    """Body of QUERY_ASSIGNMENT (400)."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel = MessageModel.CLUSTERING

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(
            value.text("topic"),
            value.text("consumerGroup"),
            value.text("clientId"),
            value.optional_text("strategyName"),
            value.word("messageModel", MessageModel, MessageModel.CLUSTERING),
        )

    def to_object(self) -> dict[str, object]:
        return compact(
            clientId=self.client_id,
            consumerGroup=self.consumer_group,
            messageModel=self.message_model.value,
            strategyName=self.strategy_name,
            topic=self.topic,
        )


@dataclass(frozen=True, slots=True)
class MessageQueueAssignment(JsonBody):
    """One queue that a client shall consume, and how."""

    message_queue: MessageQueue
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        queue = JsonObject(value.raw("messageQueue"), f"messageQueue of {value.what}")
        return cls(
            MessageQueue.from_object(queue),
            value.word("mode", MessageRequestMode, MessageRequestMode.PULL),
            value.text_map("attachments"),
        )

    def to_object(self) -> dict[str, object]:
        return {
            "attachments": self.attachments,
            "messageQueue": self.message_queue.to_object(),
            "mode": self.mode.value,
        }


@dataclass(frozen=True, slots=True)
class QueryAssignmentResponse(JsonBody):
    """Answer to QUERY_ASSIGNMENT (400)."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(tuple(map(MessageQueueAssignment.from_object, value.objects("messageQueueAssignments"))))

    def to_object(self) -> dict[str, object]:
        return {
            "messageQueueAssignments": [
                assignment.to_object() for assignment in self.message_queue_assignments
            ]
        }
