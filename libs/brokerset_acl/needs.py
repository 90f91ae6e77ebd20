"""What each request needs: any of some actions on every resource that its header or its body names.

Source: RocketMQ's `DefaultAuthorizationContextBuilder` and the annotations of its request headers. Where Java
checks nothing although something is changed or shown, this asks for more; `DESIGN.md` has the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from brokerset_acl.deciding import Need
from brokerset_acl.policies import Action, Pattern, Resource, ResourceType
from brokerset_formats.names import (
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    is_retry_topic,
    ordered_retry_topic,
    reply_topic,
)
from brokerset_formats.pop.names import normal_topic, split_retry_v2
from brokerset_protocol.bodies.heartbeat import CheckClientRequest, HeartbeatData
from brokerset_protocol.bodies.metadata import (
    QueryAssignmentRequest,
    SetMessageRequestMode,
    SubscriptionGroupList,
    TopicConfigList,
    subscription_group_config,
)
from brokerset_protocol.bodies.pop import BatchAckMessages
from brokerset_protocol.bodies.queues import LockBatchRequest
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected

NEEDS_MAX: Final = 5_000
"""Topics and groups that one request of a Normal user may name: each is compared with every entry."""

SECRET_TOPICS: Final = frozenset({f"{SYSTEM_TOPIC_PREFIX}BROKERSET_METADATA"})
"""Topics that no policy opens: passwords are among what they hold."""

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_GET, _SUB, _UPDATE = (Action.GET,), (Action.SUB,), (Action.UPDATE,)
_CREATE, _PUT = (Action.CREATE,), (Action.CREATE, Action.UPDATE)
_SUB_OR_GET: Final = (Action.SUB, Action.GET)


@dataclass(frozen=True, slots=True)
class Rule:
    """What the requests of a code need. With `fields` each of these names a resource; where none is given,
    and without `fields`, the cluster is accessed, unless `free_without`."""

    actions: tuple[Action, ...]
    topics: tuple[str, ...] = ()
    """Header fields with a topic."""

    groups: tuple[str, ...] = ()
    """Header fields with a group."""

    separators: Mapping[str, str] | None = None
    """Field -> what separates several names in it."""

    every: ResourceType | None = None
    """Everything of a type is accessed."""

    read: Callable[[Command], Iterable[Need]] | None = None
    """Reads what is needed from the request instead. May raise `Rejected` for a body that cannot be read.
    `actions` then are those that change something for others, which make a request an administrative act."""

    free_without: bool = False
    """Whether a request that names nothing needs nothing."""

    replies: bool = False
    """Whether the reply topic of the cluster needs nothing, since whoever is asked has to answer."""

    popped: bool = False
    """Whether a topic may be a retry topic of POP, of the request's group and another topic."""

    super_only: bool = False
    """Whether no policy is enough, for what the cluster's own processes ask."""


def _on_topic(*actions: Action) -> Rule:
    return Rule(actions, topics=("topic",))


def _on_cluster(*actions: Action) -> Rule:
    return Rule(actions)


def _on_both(*actions: Action, group: str = "consumerGroup", popped: bool = False) -> Rule:
    return Rule(actions, topics=("topic",), groups=(group,), popped=popped)


def _on_group(*actions: Action, field: str = "consumerGroup", free_without: bool = False) -> Rule:
    return Rule(actions, groups=(field,), free_without=free_without)


# -- bodies -----------------------------------------------------------------------------------------------


def _heartbeat(command: Command) -> Iterator[Need]:
    for consumer in HeartbeatData.from_json(command.body).consumer_data_set:
        yield group_need(consumer.group_name, _SUB)
        for subscription in consumer.subscription_data_set:
            if not is_retry_topic(subscription.topic):
                yield topic_need(subscription.topic, _SUB)


def _locks(command: Command) -> Iterator[Need]:
    asked = LockBatchRequest.from_json(command.body)
    yield group_need(asked.consumer_group, _SUB)
    for topic in {queue.topic for queue in asked.mq_set}:
        yield topic_need(topic, _SUB)


def _batch_acks(command: Command) -> Iterator[Need]:
    for ack in BatchAckMessages.from_json(command.body).acks:
        yield group_need(ack.consumer_group, _SUB)
        yield topic_need(ack.topic, _SUB)


def _assignment(command: Command) -> Iterator[Need]:
    asked = QueryAssignmentRequest.from_json(command.body)
    yield group_need(asked.consumer_group, _SUB)
    yield topic_need(asked.topic, _SUB)


def _request_mode(command: Command) -> Iterator[Need]:
    wanted = SetMessageRequestMode.from_json(command.body)
    yield group_need(wanted.consumer_group, _UPDATE)
    yield topic_need(wanted.topic, _UPDATE)


def _client_check(command: Command) -> Iterator[Need]:
    asked = CheckClientRequest.from_json(command.body)
    yield group_need(asked.group, _SUB)
    yield topic_need(asked.subscription_data.topic, _SUB)


def _topics(command: Command) -> Iterator[Need]:
    for topic in TopicConfigList.from_json(command.body).topic_config_list:
        yield topic_need(topic.topic_name, _CREATE)


def _group(command: Command) -> Iterator[Need]:
    yield group_need(subscription_group_config(command.body).group_name, _PUT)


def _groups(command: Command) -> Iterator[Need]:
    for group in SubscriptionGroupList.from_json(command.body).group_config_list:
        yield group_need(group.group_name, _PUT)


# -- the table --------------------------------------------------------------------------------------------

_C = RequestCode

RULES: Final[Mapping[int, Rule]] = {
    _C.SEND_MESSAGE: _on_topic(Action.PUB),
    _C.SEND_MESSAGE_V2: Rule((Action.PUB,), topics=("b",)),
    _C.SEND_BATCH_MESSAGE: Rule((Action.PUB,), topics=("b",)),
    _C.SEND_REPLY_MESSAGE: Rule((Action.PUB,), topics=("topic",), free_without=True, replies=True),
    _C.SEND_REPLY_MESSAGE_V2: Rule((Action.PUB,), topics=("b",), free_without=True, replies=True),
    _C.RECALL_MESSAGE: _on_topic(Action.PUB),
    _C.END_TRANSACTION: Rule((Action.PUB,), topics=("topic",), free_without=True),
    _C.RESUME_CHECK_HALF_MESSAGE: _on_topic(Action.UPDATE),
    _C.CONSUMER_SEND_MSG_BACK: _on_group(Action.SUB, field="group"),
    _C.PULL_MESSAGE: _on_both(Action.SUB),
    _C.LITE_PULL_MESSAGE: _on_both(Action.SUB),
    _C.POP_MESSAGE: _on_both(Action.SUB, popped=True),
    _C.PEEK_MESSAGE: _on_both(Action.SUB, popped=True),
    _C.ACK_MESSAGE: _on_both(Action.SUB, popped=True),
    _C.CHANGE_MESSAGE_INVISIBLETIME: _on_both(Action.SUB, popped=True),
    _C.NOTIFICATION: _on_both(Action.SUB, popped=True),
    _C.BATCH_ACK_MESSAGE: Rule((), read=_batch_acks),
    _C.POLLING_INFO: _on_both(Action.GET, popped=True),
    _C.HEART_BEAT: Rule((), read=_heartbeat),
    _C.UNREGISTER_CLIENT: _on_group(Action.SUB, free_without=True),
    _C.CHECK_CLIENT_CONFIG: Rule((), read=_client_check),
    _C.GET_CONSUMER_LIST_BY_GROUP: _on_group(*_SUB_OR_GET),
    _C.QUERY_CONSUMER_OFFSET: _on_both(*_SUB_OR_GET),
    _C.UPDATE_CONSUMER_OFFSET: _on_both(Action.SUB, Action.UPDATE),
    _C.LOCK_BATCH_MQ: Rule((), read=_locks),
    _C.UNLOCK_BATCH_MQ: Rule((), read=_locks),
    _C.QUERY_ASSIGNMENT: Rule((), read=_assignment),
    _C.SET_MESSAGE_REQUEST_MODE: Rule(_UPDATE, read=_request_mode),
    _C.GET_ALL_MESSAGE_REQUEST_MODE: _on_cluster(Action.GET),
    _C.BROKERSET_CLAIM_QUEUE: _on_both(Action.SUB),
    _C.BROKERSET_ACKNOWLEDGE: _on_both(Action.SUB),
    _C.BROKERSET_RELEASE_QUEUE: _on_both(Action.SUB),
    _C.BROKERSET_SEND_BACK: _on_both(Action.SUB),
    _C.BROKERSET_SUBJECT_QUEUES: _on_cluster(Action.UPDATE),
    # what is stored, and where queues end
    _C.QUERY_MESSAGE: _on_topic(*_SUB_OR_GET),
    _C.VIEW_MESSAGE_BY_ID: _on_topic(*_SUB_OR_GET),
    _C.GET_MAX_OFFSET: _on_topic(*_SUB_OR_GET),
    _C.GET_MIN_OFFSET: _on_topic(*_SUB_OR_GET),
    _C.SEARCH_OFFSET_BY_TIMESTAMP: _on_topic(*_SUB_OR_GET),
    _C.GET_EARLIEST_MSG_STORETIME: _on_topic(*_SUB_OR_GET),
    _C.QUERY_CONSUME_QUEUE: _on_both(Action.GET),
    # topics and groups
    _C.UPDATE_AND_CREATE_TOPIC: _on_topic(Action.CREATE),
    _C.UPDATE_AND_CREATE_TOPIC_LIST: Rule(_CREATE, read=_topics),
    _C.DELETE_TOPIC_IN_BROKER: _on_topic(Action.DELETE),
    _C.GET_TOPIC_CONFIG: _on_topic(Action.GET),
    _C.GET_TOPIC_STATS_INFO: _on_topic(Action.GET),
    _C.GET_ALL_TOPIC_CONFIG: Rule((Action.GET, Action.LIST), every=_TOPIC),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Rule((Action.GET, Action.LIST), every=_TOPIC),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Rule(_PUT, read=_group),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Rule(_PUT, read=_groups),
    _C.DELETE_SUBSCRIPTIONGROUP: _on_group(Action.DELETE, field="groupName"),
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: _on_group(Action.GET, field="group"),
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Rule((Action.GET, Action.LIST), every=_GROUP),
    _C.UPDATE_AND_GET_GROUP_FORBIDDEN: _on_both(Action.UPDATE, group="group"),
    _C.INVOKE_BROKER_TO_RESET_OFFSET: _on_both(Action.UPDATE, group="group"),
    _C.CLONE_GROUP_OFFSET: Rule(_UPDATE, topics=("topic",), groups=("destGroup",)),
    # who consumes and how far
    _C.GET_CONSUME_STATS: Rule(
        _GET, topics=("topic", "topicList"), groups=("consumerGroup",), separators={"topicList": ";"}
    ),
    _C.GET_CONSUMER_CONNECTION_LIST: _on_group(Action.GET),
    _C.GET_CONSUMER_RUNNING_INFO: _on_group(Action.GET),
    _C.CONSUME_MESSAGE_DIRECTLY: _on_both(Action.SUB),
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _on_both(Action.GET, group="group"),
    _C.QUERY_TOPIC_CONSUME_BY_WHO: _on_topic(Action.GET),
    _C.QUERY_TOPICS_BY_CONSUMER: _on_group(Action.GET, field="group"),
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: _on_both(Action.GET, group="group"),
    _C.QUERY_CONSUME_TIME_SPAN: _on_both(Action.GET, group="group"),
    _C.QUERY_CORRECTION_OFFSET: Rule(
        _GET, topics=("topic",), groups=("filterGroups", "compareGroup"), separators={"filterGroups": ","}
    ),
    _C.GET_PARENT_TOPIC_INFO: _on_topic(Action.GET),
    _C.GET_LITE_TOPIC_INFO: Rule(_GET, topics=("parentTopic",)),
    # the broker as a whole
    _C.GET_PRODUCER_CONNECTION_LIST: _on_cluster(Action.GET),
    _C.GET_ALL_PRODUCER_INFO: _on_cluster(Action.GET),
    _C.GET_BROKER_CONSUME_STATS: _on_cluster(Action.GET),
    _C.GET_ALL_CONSUMER_OFFSET: _on_cluster(Action.GET),
    _C.GET_ALL_DELAY_OFFSET: _on_cluster(Action.GET),
    _C.GET_TIMER_CHECK_POINT: _on_cluster(Action.GET),
    _C.GET_TIMER_METRICS: _on_cluster(Action.GET),
    _C.GET_BROKER_LITE_INFO: _on_cluster(Action.GET),
    _C.GET_BROKER_CONFIG: _on_cluster(Action.GET),
    _C.GET_BROKER_RUNTIME_INFO: _on_cluster(Action.GET),
    _C.VIEW_BROKER_STATS_DATA: _on_cluster(Action.GET),
    _C.GET_BROKER_HA_STATUS: _on_cluster(Action.GET),
    _C.GET_BROKER_EPOCH_CACHE: _on_cluster(Action.GET),
    _C.UPDATE_BROKER_CONFIG: _on_cluster(Action.UPDATE),
    _C.CLEAN_UNUSED_TOPIC: _on_cluster(Action.UPDATE),
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: _on_cluster(Action.UPDATE),
    _C.DELETE_EXPIRED_COMMITLOG: _on_cluster(Action.UPDATE),
    _C.POP_ROLLBACK: _on_cluster(Action.UPDATE),
    _C.NOTIFY_BROKER_ROLE_CHANGED: _on_cluster(Action.UPDATE),
    _C.BROKERSET_SWITCH_OVER: _on_cluster(Action.UPDATE),
    # users and policies
    _C.AUTH_CREATE_USER: _on_cluster(Action.UPDATE),
    _C.AUTH_UPDATE_USER: _on_cluster(Action.UPDATE),
    _C.AUTH_DELETE_USER: _on_cluster(Action.UPDATE),
    _C.AUTH_GET_USER: _on_cluster(Action.GET),
    _C.AUTH_LIST_USER: _on_cluster(Action.GET),
    _C.AUTH_CREATE_ACL: _on_cluster(Action.UPDATE),
    _C.AUTH_UPDATE_ACL: _on_cluster(Action.UPDATE),
    _C.AUTH_DELETE_ACL: _on_cluster(Action.UPDATE),
    _C.AUTH_GET_ACL: _on_cluster(Action.GET),
    _C.AUTH_LIST_ACL: _on_cluster(Action.GET),
}
"""The rule of every code that a broker serves; any other one needs `UPDATE` on the cluster."""

_UNKNOWN: Final = _on_cluster(Action.UPDATE)


def needs_of(command: Command, cluster: str, rules: Mapping[int, Rule] = RULES) -> list[Need]:
    """Everything that a request needs. Raises `Rejected` for a body that cannot be read."""
    rule = rules.get(command.code, _UNKNOWN)
    if rule.read is not None:
        return list(dict.fromkeys(rule.read(command)))
    if rule.every is not None:
        return [Need(Resource(rule.every, None, Pattern.ANY), rule.actions)]
    groups = [name for field in rule.groups for name in _names(command, rule, field)]
    topics = [name for field in rule.topics for name in _names(command, rule, field)]
    if rule.replies:
        topics = [name for name in topics if name != reply_topic(cluster)]
    found = [group_need(name, rule.actions) for name in groups]
    for topic in topics:
        found += _topic_needs(topic, groups[0] if groups else "", rule)
    if not found and not rule.free_without:
        whole = Resource(ResourceType.CLUSTER, cluster)
        found.append(Need(whole, _on_all(rule.actions), super_only=rule.super_only))
    return list(dict.fromkeys(found))


def check_number(needs: Sequence[Need]) -> None:
    """Raise `Rejected` for a request that names too much to be checked."""
    if len(needs) > NEEDS_MAX:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"{len(needs)} topics and groups in one request, at most {NEEDS_MAX} are checked",
        )


def _on_all(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """What stands for actions on a resource that is not named: the same on everything."""
    return _GET if {Action.GET, Action.LIST, Action.SUB}.issuperset(actions) else _UPDATE


def _names(command: Command, rule: Rule, field: str) -> list[str]:
    text = command.ext.get(field, "")
    separator = (rule.separators or {}).get(field)
    names = [text] if separator is None else text.split(separator)
    return [name for name in names if name.strip()]


def _topic_needs(topic: str, group: str, rule: Rule) -> list[Need]:
    """A retry topic of the request's group and one other topic needs both; its name alone may also be that of
    another group's."""
    real = normal_topic(group, topic) if group and rule.popped else topic
    ordered_prefix = ordered_retry_topic(group, "")
    if group and topic.startswith(ordered_prefix) and topic != ordered_prefix:
        real = topic.removeprefix(ordered_prefix)
    if real == topic:
        return [topic_need(topic, rule.actions)]
    return [topic_need(real, rule.actions), group_need(group, rule.actions)]


def group_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Needs something of a group, which may be named by its retry topic."""
    return Need(Resource(_GROUP, name.removeprefix(RETRY_PREFIX)), actions)


def topic_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Needs something of a topic. A retry topic belongs to its group: sending to it is part of consuming."""
    if is_retry_topic(name):
        parts = split_retry_v2(name)
        allowed = tuple(dict.fromkeys(Action.SUB if each is Action.PUB else each for each in actions))
        return group_need(name if parts is None else parts[0], allowed)
    return Need(Resource(_TOPIC, name), actions, super_only=name in SECRET_TOPICS)
