"""Lists of settings in requests, and requests about how queues are assigned.

Whole tables (21, 43, 45, 201) are those of `registration` and of `brokerset_formats.config`.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Annotated, Final

from brokerset_formats.config import DataVersion, GroupTable, SubscriptionGroupConfig, TopicConfig
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody, LooseText, Most, parse, read_as
from brokerset_protocol.bodies.heartbeat import MessageModel
from brokerset_protocol.bodies.queues import MessageQueue

ITEMS_MAX: Final = 10_000
"""Topics or groups that one request may create."""


def topic_config(data: bytes) -> TopicConfig:
    """Answer to GET_TOPIC_CONFIG (351). Raises `Rejected`."""
    return read_as(TopicConfig, parse(data, "TopicConfig"), "TopicConfig")


def subscription_group_config(data: bytes) -> SubscriptionGroupConfig:
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), answer to 352. Raises `Rejected`."""
    return read_as(SubscriptionGroupConfig, parse(data, "SubscriptionGroupConfig"), "SubscriptionGroupConfig")


def group_table(data: bytes) -> GroupTable:
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201). Raises `Rejected`."""
    return read_as(GroupTable, parse(data, "GroupTable"), "GroupTable")


def data_version(data: bytes) -> DataVersion:
    """Body of QUERY_DATA_VERSION (322) and of its answer. Raises `Rejected`."""
    return read_as(DataVersion, parse(data, "DataVersion"), "DataVersion")


@dataclass(frozen=True, slots=True)
class TopicConfigList(JsonBody):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    topic_config_list: Annotated[tuple[TopicConfig, ...], Most(ITEMS_MAX)]


@dataclass(frozen=True, slots=True)
class SubscriptionGroupList(JsonBody):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: Annotated[tuple[SubscriptionGroupConfig, ...], Most(ITEMS_MAX)]


@dataclass(frozen=True, slots=True)
class GroupForbidden(JsonBody):
    """Answer to UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool = True


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


@dataclass(frozen=True, slots=True)
class MessageRequestModeTable(JsonBody):
    """Answer to GET_ALL_MESSAGE_REQUEST_MODE (402), file messageRequestMode.json: by topic, then group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestMode]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryAssignmentRequest(JsonBody):
    """Body of QUERY_ASSIGNMENT (400)."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel = MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True)
class MessageQueueAssignment(JsonBody):
    """One queue that a client shall consume, and how."""

    message_queue: MessageQueue
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, LooseText] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryAssignmentResponse(JsonBody):
    """Answer to QUERY_ASSIGNMENT (400); with None the client keeps what it has."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None
