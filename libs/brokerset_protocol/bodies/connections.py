"""Who is connected, and what a relayed request to a client brings back."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Annotated, ClassVar

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import Absent, JsonBody, LooseText, OrEmpty, OrZero, Wire
from brokerset_protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from brokerset_protocol.bodies.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class Connection(JsonBody):
    """One client's connection; `client_addr` is `ip:port`, `language` the name of `Language`."""

    client_id: str
    client_addr: OrEmpty
    language: Annotated[str, Absent("OTHER")]
    version: OrZero


@dataclass(frozen=True, slots=True)
class ProducerConnection(JsonBody):
    """Answer to GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: tuple[Connection, ...]


@dataclass(frozen=True, slots=True)
class ConsumerConnection(JsonBody):
    """Answer to GET_CONSUMER_CONNECTION_LIST (203); subscriptions by topic."""

    connection_set: tuple[Connection, ...]
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


@dataclass(frozen=True, slots=True)
class ProducerInfo(JsonBody):
    """One member of a producer group; `last_update_timestamp` is its last heartbeat, milliseconds."""

    client_id: str
    remote_ip: Annotated[OrEmpty, Wire("remoteIP")]
    language: Annotated[str, Absent("OTHER")]
    version: OrZero
    last_update_timestamp: OrZero


@dataclass(frozen=True, slots=True)
class ProducerTable(JsonBody):
    """Answer to GET_ALL_PRODUCER_INFO (328): members by group."""

    data: dict[str, tuple[ProducerInfo, ...]]


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo(JsonBody):
    """What a push consumer holds of one queue; counts, offsets, and milliseconds of its clock."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: Annotated[int, Wire("cachedMsgSizeInMiB")] = 0
    locked: bool = False
    last_lock_timestamp: int = 0
    dropped: Annotated[bool, Wire("droped")] = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    constants: ClassVar[dict[str, object]] = {
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


@dataclass(frozen=True, slots=True)
class ConsumeRates(JsonBody):
    """What a consumer did of one topic (Java's `ConsumeStatus`): means in milliseconds, messages a second
    over the last minute, and messages that failed in the last hour."""

    pull_rt: Annotated[float, Wire("pullRT")] = 0.0
    pull_tps: Annotated[float, Wire("pullTPS")] = 0.0
    consume_rt: Annotated[float, Wire("consumeRT")] = 0.0
    consume_ok_tps: Annotated[float, Wire("consumeOKTPS")] = 0.0
    consume_failed_tps: Annotated[float, Wire("consumeFailedTPS")] = 0.0
    consume_failed_msgs: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(JsonBody):
    """Answer of a client to GET_CONSUMER_RUNNING_INFO (307)."""

    properties: dict[str, LooseText] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeRates] = field(default_factory=dict)
    user_consumer_info: dict[str, LooseText] = field(default_factory=dict)
    jstack: str | None = None

    constants: ClassVar[dict[str, object]] = {"mqPopTable": {}}


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

    consume_result: Annotated[ConsumeResult, Absent(ConsumeResult.CR_RETURN_NULL)]
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0
