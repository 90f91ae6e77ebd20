"""What requests need at controllers and name servers that have `authorizationEnabled`; Java checks nothing.

The rules are those of brokers for acts of the same kind. Requests that only members send need a Super user
whatever policies say: who registers as a broker, or joins the controllers, gets messages and passwords.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from brokerset_acl.deciding import Need
from brokerset_acl.needs import RULES, Rule, needs_of, topic_need
from brokerset_acl.policies import Action, Pattern, Resource, ResourceType
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected


@dataclass(frozen=True, slots=True)
class ServerRules:
    """What the requests of one kind of server need; a code that is nowhere needs `UPDATE` on the cluster."""

    open: frozenset[int]
    """Codes that are served whoever sends them."""

    rules: Mapping[int, Rule]

    of_clients: frozenset[int] = frozenset()
    """Codes that are served whoever sends them where policies are not asked."""

    reserved: Mapping[int, tuple[str, Rule]] = field(default_factory=dict)
    """A header field that counts only if the sender may do more: administer, or what the rule says."""

    def open_to_all(self, *, authorizes: bool) -> frozenset[int]:
        """The codes that are served whoever sends them; `authorizes`: whether policies are asked."""
        return self.open if authorizes else self.open | self.of_clients


_GET_OR_LIST: Final = (Action.GET, Action.LIST)
_ON_CLUSTER_GET: Final = Rule((Action.GET,))
_ON_CLUSTER_UPDATE: Final = Rule((Action.UPDATE,))
_ALL_TOPICS: Final = Rule(_GET_OR_LIST, every=ResourceType.TOPIC)
_MEMBERS: Final = Rule((Action.UPDATE,), super_only=True)
_ANY_USE: Final = (Action.PUB, Action.SUB, Action.GET)


def _on_subject(*actions: Action) -> Rule:
    return Rule(actions, topics=("subject",))


_CONSUMES: Final = Rule((Action.SUB,), topics=("subject",), groups=("consumerGroup",))


def _described(command: Command) -> Iterator[Need]:
    """Subjects by name, as who uses them sees them; without names all."""
    names: object = []
    if command.body:
        try:
            names = orjson.loads(command.body)
        except ValueError:
            names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Rejected(ResponseCode.INVALID_PARAMETER, 'the body is no JSON array of names, as ["orders"]')
    if not names:
        yield Need(Resource(ResourceType.TOPIC, None, Pattern.ANY), _GET_OR_LIST)
    for name in names:
        yield topic_need(name, _ANY_USE)


_C = RequestCode

_USERS: Final = {
    code: rule for code, rule in RULES.items() if _C.AUTH_CREATE_USER <= code <= _C.AUTH_LIST_ACL
}

CONTROLLER_RULES: Final = ServerRules(
    open=frozenset({_C.CONTROLLER_GET_METADATA_INFO, _C.BROKERSET_CONTROLLER_STATUS}),
    of_clients=frozenset(
        {
            _C.BROKERSET_SUBJECT_ROUTE,
            _C.BROKERSET_START_PRODUCER,
            _C.BROKERSET_CONSUMER_HEARTBEAT,
            _C.BROKERSET_ASSIGNMENT_CHANGED,
        }
    ),
    reserved={_C.BROKERSET_SUBJECT_ROUTE: ("create", _on_subject(Action.CREATE))},
    rules={
        # clients of ordered subjects
        _C.BROKERSET_SUBJECT_ROUTE: _on_subject(*_ANY_USE),
        _C.BROKERSET_START_PRODUCER: _on_subject(Action.PUB),
        _C.BROKERSET_CONSUMER_HEARTBEAT: _CONSUMES,
        _C.BROKERSET_ASSIGNMENT_CHANGED: _CONSUMES,
        _C.BROKERSET_DESCRIBE_SUBJECTS: Rule((), read=_described),
        # administrators
        _C.BROKERSET_CREATE_SUBJECT: _on_subject(Action.CREATE),
        _C.BROKERSET_SCALE_SUBJECT: _on_subject(Action.CREATE, Action.UPDATE),
        _C.BROKERSET_DELETE_SUBJECT: _on_subject(Action.DELETE),
        _C.BROKERSET_REMOVE_CONSUMER_GROUP: Rule((Action.DELETE,), groups=("consumerGroup",)),
        _C.CONTROLLER_GET_REPLICA_INFO: _ON_CLUSTER_GET,
        _C.CONTROLLER_GET_SYNC_STATE_DATA: _ON_CLUSTER_GET,
        _C.BROKERSET_GROUP_STATES: _ON_CLUSTER_GET,
        _C.GET_CONTROLLER_CONFIG: _ON_CLUSTER_GET,
        _C.UPDATE_CONTROLLER_CONFIG: _ON_CLUSTER_UPDATE,
        _C.CONTROLLER_ELECT_MASTER: _ON_CLUSTER_UPDATE,
        _C.CLEAN_BROKER_DATA: _ON_CLUSTER_UPDATE,
        _C.BROKERSET_FENCE_REPLICA: _ON_CLUSTER_UPDATE,
        _C.BROKERSET_TRANSFER_LEADER: _ON_CLUSTER_UPDATE,
        _C.BROKERSET_TAKE_SNAPSHOT: _ON_CLUSTER_UPDATE,
        **_USERS,
        # members; and who names addresses that become members
        _C.BROKER_HEARTBEAT: _MEMBERS,
        _C.CONTROLLER_ALTER_SYNC_STATE_SET: _MEMBERS,
        _C.CONTROLLER_REGISTER_BROKER: _MEMBERS,
        _C.CONTROLLER_GET_NEXT_BROKER_ID: _MEMBERS,
        _C.CONTROLLER_APPLY_BROKER_ID: _MEMBERS,
        _C.BROKERSET_GET_ACCESS: _MEMBERS,
        _C.BROKERSET_ADOPT_ACCESS: _MEMBERS,
        _C.BROKERSET_CHANGE_MEMBERS: _MEMBERS,
        _C.BROKERSET_REBUILD_GROUP: _MEMBERS,
    },
)
"""Of a controller (port 9878)."""

NAMESRV_RULES: Final = ServerRules(
    open=frozenset({_C.GET_ROUTEINFO_BY_TOPIC, _C.GET_KV_CONFIG}),
    rules={
        _C.GET_BROKER_CLUSTER_INFO: _ON_CLUSTER_GET,
        _C.GET_BROKER_MEMBER_GROUP: _ON_CLUSTER_GET,
        _C.GET_KVLIST_BY_NAMESPACE: _ON_CLUSTER_GET,
        _C.GET_NAMESRV_CONFIG: _ON_CLUSTER_GET,
        _C.PUT_KV_CONFIG: _ON_CLUSTER_UPDATE,
        _C.DELETE_KV_CONFIG: _ON_CLUSTER_UPDATE,
        _C.UPDATE_NAMESRV_CONFIG: _ON_CLUSTER_UPDATE,
        _C.WIPE_WRITE_PERM_OF_BROKER: _ON_CLUSTER_UPDATE,
        _C.ADD_WRITE_PERM_OF_BROKER: _ON_CLUSTER_UPDATE,
        _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _ALL_TOPICS,
        _C.GET_TOPICS_BY_CLUSTER: _ALL_TOPICS,
        _C.GET_SYSTEM_TOPIC_LIST_FROM_NS: _ALL_TOPICS,
        _C.GET_UNIT_TOPIC_LIST: _ALL_TOPICS,
        _C.GET_HAS_UNIT_SUB_TOPIC_LIST: _ALL_TOPICS,
        _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _ALL_TOPICS,
        _C.REGISTER_TOPIC_IN_NAMESRV: Rule((Action.CREATE,), topics=("topic",)),
        _C.DELETE_TOPIC_IN_NAMESRV: Rule((Action.DELETE,), topics=("topic",)),
        _C.REGISTER_BROKER: _MEMBERS,
        _C.UNREGISTER_BROKER: _MEMBERS,
        _C.QUERY_DATA_VERSION: _MEMBERS,
        _C.BROKER_HEARTBEAT: _MEMBERS,
    },
)
"""Of a name server (port 9876)."""


def needs_at_server(
    command: Command, rules: Mapping[int, Rule], clusters: Callable[[], Collection[str]]
) -> list[Need]:
    """Everything that a request needs. What concerns the cluster concerns all whose groups the server has;
    while it has none, policies for `Cluster:*` alone are enough. Raises `Rejected` for unreadable bodies."""
    found: list[Need] = []
    for need in needs_of(command, "", rules):
        if need.resource.type is not ResourceType.CLUSTER:
            found.append(need)
        elif names := sorted(clusters()):
            found += (replace(need, resource=Resource(ResourceType.CLUSTER, name)) for name in names)
        else:
            found.append(replace(need, resource=Resource(ResourceType.CLUSTER, None, Pattern.ANY)))
    return found
