"""Headers of the POP family; their codes exceed 16 bits, so they come with JSON headers only."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessage(Header):
    """POP_MESSAGE (200050): `queue_id` -1 means any; `init_mode` 0 starts at the oldest, 1 at the newest."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: Int
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageResponse(Header):
    """Answer to POP_MESSAGE; the body is whole records."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AckMessage(Header):
    """ACK_MESSAGE (200051)."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    lite_topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekMessage(Header):
    """PEEK_MESSAGE (200052)."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTime(Header):
    """CHANGE_MESSAGE_INVISIBLETIME (200053). With `suspend` the message does not count as consumed once more
    when it comes back."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long
    lite_topic: str | None = None
    suspend: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeResponse(Header):
    """Answer to CHANGE_MESSAGE_INVISIBLETIME."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification(Header):
    """NOTIFICATION (200054): asks whether a pop would find something."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationResponse(Header):
    """Answer to NOTIFICATION."""

    has_msg: bool = False
    polling_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfo(Header):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoResponse(Header):
    """Answer to POLLING_INFO."""

    polling_num: Int
