"""Headers about offsets: of consumers, of queues, by time, and their reset."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffset(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetResponse(Header):
    """Answer to QUERY_CONSUMER_OFFSET."""

    offset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffset(Header):
    """UPDATE_CONSUMER_OFFSET (15), usually one-way."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffset(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29): `boundary_type` is LOWER (the default) or UPPER."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None
    lite_topic: str | None = None
    """Searches the lite topic of this name, whose parent is `topic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetResponse(Header):
    """Answer to SEARCH_OFFSET_BY_TIMESTAMP."""

    offset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffset(Header):
    """GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: Int
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetResponse(Header):
    """Answer to GET_MAX_OFFSET: the queue offset that the next message gets."""

    offset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffset(Header):
    """GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetResponse(Header):
    """Answer to GET_MIN_OFFSET."""

    offset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretime(Header):
    """GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeResponse(Header):
    """Answer to GET_EARLIEST_MSG_STORETIME: milliseconds, -1 for an empty queue."""

    timestamp: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffset(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220).

    `queue_id` -1 means all queues; a negative `timestamp` the end of each queue.
    """

    group: str
    topic: str
    queue_id: Int = -1
    offset: Long | None = None
    timestamp: Long
    is_force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatus(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCorrectionOffset(Header):
    """QUERY_CORRECTION_OFFSET (308); `filter_groups` are names with commas between them."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffset(Header):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False
