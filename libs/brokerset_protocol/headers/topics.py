"""Headers of topic administration at a broker."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(Header):
    """UPDATE_AND_CREATE_TOPIC (17); `attributes` is `+key=value,-key`."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(Header):
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfig(Header):
    """GET_TOPIC_CONFIG (351)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfig(Header):
    """GET_ALL_TOPIC_CONFIG (21): a page for newer slaves; without fields everything is meant."""

    topic_seq: Int | None = None
    data_version: str | None = None
    max_topic_num: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigResponse(Header):
    """Answer to GET_ALL_TOPIC_CONFIG."""

    total_topic_num: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicStatsInfo(Header):
    """GET_TOPIC_STATS_INFO (202)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWho(Header):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetParentTopicInfo(Header):
    """GET_PARENT_TOPIC_INFO (200075)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetLiteTopicInfo(Header):
    """GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str
    lite_topic: str
