"""Headers about connected clients: heartbeats, members of groups, requests relayed to a client."""

from __future__ import annotations

from dataclasses import field

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Header):
    """HEART_BEAT (34): everything is in the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Header):
    """Extra fields of a heartbeat's answer; V2 must not be announced unless it is served."""

    is_support_heart_beat_v2: bool | None = field(default=None, metadata=wire("IS_SUPPORT_HEART_BEAT_V2"))
    is_sub_change: bool | None = field(default=None, metadata=wire("IS_SUB_CHANGE"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClient(Header):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(metadata=wire("clientID"))
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroup(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChanged(Header):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client, one-way."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionList(Header):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionList(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfo(Header):
    """GET_CONSUMER_RUNNING_INFO (307), relayed by the broker to the client that is named."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResult(Header):
    """CONSUME_MESSAGE_DIRECTLY (309), relayed by the broker with the message as body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchMq(Header):
    """LOCK_BATCH_MQ (41): everything is in the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockBatchMq(Header):
    """UNLOCK_BATCH_MQ (42): everything is in the body."""
