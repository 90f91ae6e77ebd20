"""Headers of consumer group administration and statistics at a broker."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscriptionGroupConfig(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroup(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): a page for newer slaves; without fields everything is meant."""

    group_seq: Int | None = None
    data_version: str | None = None
    max_group_num: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupResponse(Header):
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    total_group_num: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroup(Header):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStats(Header):
    """GET_CONSUME_STATS (208); `topic_list` is joined by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsInBroker(Header):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpan(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicsByConsumer(Header):
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubscriptionByConsumer(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateGroupForbidden(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool | None = None
