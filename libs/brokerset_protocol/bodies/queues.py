"""Queues as values and as keys of maps; locks, members of groups, lists of names, offsets by queue."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody, LooseText, Wire
from brokerset_protocol.errors import Rejected


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(JsonBody):
    """One queue of a topic at one broker; ordered as Java sorts them for a rebalance."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class LockBatchRequest(JsonBody):
    """Body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    mq_set: frozenset[MessageQueue]
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockBatchResponse(JsonBody):
    """Answer to LOCK_BATCH_MQ: the queues that the client holds now."""

    lock_ok_mq_set: Annotated[frozenset[MessageQueue], Wire("lockOKMQSet")]


@dataclass(frozen=True, slots=True)
class ConsumerIdList(JsonBody):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicList(JsonBody):
    """Names of topics; `broker_addr` only in the answer to GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""

    topic_list: tuple[str, ...]
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class GroupList(JsonBody):
    """Names of consumer groups: answer to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KVTable(JsonBody):
    """A table of texts: runtime info (28), KV configuration (219), ordered topics (103)."""

    table: dict[str, LooseText]


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(JsonBody):
    """The offsets after a reset: answer to 222, body of RESET_CONSUMER_CLIENT_OFFSET (220)."""

    offset_table: dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class ResetQueueForCpp(JsonBody):
    """One queue of `ResetOffsetBodyForCpp`: Java's `MessageQueueForC`."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class ResetOffsetBodyForCpp(JsonBody):
    """Body of RESET_CONSUMER_CLIENT_OFFSET (220) to clients in C++, which read no maps with queues as
    keys."""

    offset_table: tuple[ResetQueueForCpp, ...]


def reset_offsets_from(body: bytes) -> dict[MessageQueue, int]:
    """The offsets of a RESET_CONSUMER_CLIENT_OFFSET (220) in either form; Java's brokers choose by the
    administrator's language, not the client's. Raises `Rejected`."""
    try:
        return ResetOffsetBody.from_json(body).offset_table
    except Rejected as plain:
        try:
            listed = ResetOffsetBodyForCpp.from_json(body).offset_table
        except Rejected:
            raise plain from None
    return {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in listed}


@dataclass(frozen=True, slots=True)
class GetConsumerStatusBody(JsonBody):
    """How far clients are: of one client (221) in `message_queue_table`, by client id (223)."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffsetBody(JsonBody):
    """Answer to QUERY_CORRECTION_OFFSET (308): by queue id."""

    correction_offsets: dict[int, int]
