"""What requests of POP consumers are checked for, in Java's order, with its codes and texts.

Source: processors of PopMessage, Notification, PeekMessage and PollingInfo of 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from brokerset_broker.filters import FilterError
from brokerset_broker.requests.admission import PERM_READ, Admission
from brokerset_broker.tables.consumer_filters import CompiledFilter, ConsumerFilters, is_sql
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.light_queues import is_light
from brokerset_formats.names import RETRY_PREFIX
from brokerset_protocol.bodies.heartbeat import ExpressionType, SubscriptionData
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subscriptions import KEPT_SIZE_MAX, filter_codes, parse
from brokerset_runtime.remoting import Connection

FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

EXPRESSIONS_MAX: Final = 4_096
"""Parsed subscriptions that are kept; the table is emptied when it is full, also of `KEPT_SIZE_MAX`
characters."""


class Subscribed(NamedTuple):
    """What a request wants of its topic."""

    data: SubscriptionData
    codes: frozenset[int] | None
    """Hash codes of the wanted tags; None for all."""

    wanted_only: CompiledFilter | None
    """Examines properties, with an SQL filter."""


class PopChecks:
    """Topic, group and subscription of a request."""

    def __init__(
        self,
        *,
        topics: TopicManager,
        groups: GroupManager,
        admission: Admission,
        ordered: OrderedTables,
        filters: ConsumerFilters | None,
    ) -> None:
        """`filters` are those by SQL92; without them there are none."""
        self._topics = topics
        self._groups = groups
        self._admission = admission
        self._ordered = ordered
        self._filters = filters
        self._expressions: dict[tuple[str, str], Subscribed] = {}
        self._expressions_size = 0

    def check_broker(self, what: str) -> None:
        """Raise `Rejected` if the broker may not be read; `what` the request does."""
        if not self._admission.permission & PERM_READ:
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"the broker[{self._admission.name}] {what} message is forbidden"
            )

    def check(
        self, connection: Connection, group: str, topic: str, queue_id: int
    ) -> tuple[TopicConfig, SubscriptionGroupConfig]:
        """The configurations of topic and group. Raises `Rejected`."""
        config = self._topics.get(topic)
        if config is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}"
            )
        if not config.readable:
            raise Rejected(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
        if queue_id >= config.read_queue_nums:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}] consumer:[{connection.peer[0]}:{connection.peer[1]}]",
            )
        group_config = self._groups.get_or_create(group)
        if group_config is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, {FAQ}",
            )
        if not group_config.consume_enable:
            raise Rejected(ResponseCode.NO_PERMISSION, "subscription group no permission, " + group)
        if self._groups.is_read_forbidden(group, topic):
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] is forbidden for topic[{topic}]"
            )
        self._check_kind(topic)
        return config, group_config

    def _check_kind(self, topic: str) -> None:
        """Refuse what cannot be popped here, though Java tries."""
        if topic.startswith(RETRY_PREFIX):
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"{topic} is a retry topic: a pop of the topic that its messages come from reads it, too",
            )
        if is_light(topic):
            raise Rejected(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"{topic} is a light queue: pull from it, or pop its topic",
            )
        if self._ordered.is_subject(topic):
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"{topic} is an ordered subject: only owners of its partitions get messages",
            )

    def still_exists(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the checks that passed when a request came would pass still, as far as it matters."""
        config, group_config = self._topics.get(topic), self._groups.get(group)
        return (
            config is not None
            and config.readable
            and queue_id < config.read_queue_nums
            and group_config is not None
            and group_config.consume_enable
        )

    def read_queues(self, topic: str) -> int:
        """Read queues of a topic; 0 if there is none of that name."""
        config = self._topics.get(topic)
        return config.read_queue_nums if config is not None else 0

    def subscription(self, topic: str, ext: Mapping[str, str]) -> Subscribed:
        """What a request wants (`exp`, `expType`). Raises `Rejected`."""
        expression = ext.get("exp") or "*"
        kind = ext.get("expType") or ExpressionType.TAG
        if kind != ExpressionType.TAG:
            return self._by_properties(topic, kind, expression)
        key = (topic, expression)
        found = self._expressions.get(key)
        if found is None:
            data = parse(topic, expression)
            found = Subscribed(data, filter_codes(data), None)
            self._expressions_size += len(expression)
            if len(self._expressions) >= EXPRESSIONS_MAX or self._expressions_size > KEPT_SIZE_MAX:
                self._expressions.clear()
                self._expressions_size = len(expression)
            self._expressions[key] = found
        return found

    def _by_properties(self, topic: str, kind: str, expression: str) -> Subscribed:
        if self._filters is None or not is_sql(kind):
            raise _unreadable(f"The broker does not support consumer to filter message by {kind[:100]}")
        try:
            compiled = self._filters.compile(expression)
        except FilterError as error:
            raise _unreadable(error.remark) from None
        data = SubscriptionData(topic, expression, expression_type=kind)
        return Subscribed(data, None, compiled)


def _unreadable(reason: str) -> Rejected:
    return Rejected(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {reason}"
    )
