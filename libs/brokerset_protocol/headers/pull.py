"""Headers of pulls and of queries for single messages."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long, wire


class PullKey:
    """Wire names of a pull, for handlers that read `Command.ext` themselves."""

    CONSUMER_GROUP: Final = "consumerGroup"
    TOPIC: Final = "topic"
    QUEUE_ID: Final = "queueId"
    QUEUE_OFFSET: Final = "queueOffset"
    MAX_MSG_NUMS: Final = "maxMsgNums"
    SYS_FLAG: Final = "sysFlag"
    COMMIT_OFFSET: Final = "commitOffset"
    SUSPEND_TIMEOUT_MILLIS: Final = "suspendTimeoutMillis"
    SUBSCRIPTION: Final = "subscription"
    SUB_VERSION: Final = "subVersion"
    EXPRESSION_TYPE: Final = "expressionType"
    MAX_MSG_BYTES: Final = "maxMsgBytes"
    REQUEST_SOURCE: Final = "requestSource"
    LITE_TOPIC: Final = "liteTopic"
    PROXY_FORWARD_CLIENT_ID: Final = "proxyFrowardClientId"  # Java's spelling


class PullResponseKey:
    """Wire names of a pull's response; the first four must be there whatever the code is."""

    SUGGEST_WHICH_BROKER_ID: Final = "suggestWhichBrokerId"
    NEXT_BEGIN_OFFSET: Final = "nextBeginOffset"
    MIN_OFFSET: Final = "minOffset"
    MAX_OFFSET: Final = "maxOffset"
    OFFSET_DELTA: Final = "offsetDelta"
    TOPIC_SYS_FLAG: Final = "topicSysFlag"
    GROUP_SYS_FLAG: Final = "groupSysFlag"
    FORBIDDEN_TYPE: Final = "forbiddenType"


class PullSysFlag:
    """Bits of a pull's `sys_flag`. Source: `PullSysFlag`."""

    COMMIT_OFFSET: Final = 1
    SUSPEND: Final = 2
    SUBSCRIPTION: Final = 4
    CLASS_FILTER: Final = 8
    LITE_PULL: Final = 16


UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Extra field of QUERY_MESSAGE: the key is a message's UNIQ_KEY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessage(Header):
    """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361); `suspend_timeout_millis` bounds the long poll."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    subscription: str | None = None
    sub_version: Long
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    request_source: Int | None = None
    lite_topic: str | None = None
    """Reads the lite topic of this name, whose parent is `topic`."""
    proxy_forward_client_id: str | None = field(default=None, metadata=wire(PullKey.PROXY_FORWARD_CLIENT_ID))


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponse(Header):
    """Answer to a pull with code 0, 19, 20 or 21."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None
    group_position: Long | None = None
    """brokerset's own, for sessions of Shared groups (`PULL_GROUP_POSITION`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessage(Header):
    """QUERY_MESSAGE (12): by key, within two store times in milliseconds."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool | None = field(default=None, metadata=wire(UNIQUE_KEY_QUERY))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponse(Header):
    """Answer to QUERY_MESSAGE; the body is whole records."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessage(Header):
    """VIEW_MESSAGE_BY_ID (33): `offset` is the address in the commit log."""

    offset: Long
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueue(Header):
    """QUERY_CONSUME_QUEUE (321): `count` units from unit `index` on."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str | None = None
