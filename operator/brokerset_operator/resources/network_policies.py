"""Who may connect to which port of a set's pods: one NetworkPolicy for each kind of pod.

| ports | who is let in |
| --- | --- |
| Raft, HA, DLedger | pods of the same kind of the set |
| 9878 | pods of sets of the namespace, the operator, `spec.networkPolicy.orderedClients` |
| 9876, 9879, 10911, 10909 | everybody, or with `clients` these, pods of sets and jobs, the operator |
| 8080 | everybody, or with `http` these and jobs; the node, and so the kubelet's probes, always |

Pods of *all* sets of the namespace are one group here: sets share controllers, whose news reach brokers at
their remoting port. Who makes pods in the namespace can give them any label, so nothing tells sets apart
anyway. Nothing is said about what pods may connect to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.resources import brokers, controllers, external_access, name_servers
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.store_jobs.labels import STORE_JOB
from brokerset_spec.network_peers import LabelSelector, NetworkPeer

Peer = dict[str, Any]
"""An entry of `from` in a rule."""

SETS: Final[Peer] = {"podSelector": {"matchExpressions": [{"key": names.SET_LABEL, "operator": "Exists"}]}}
"""Controllers, name servers and brokers of all sets of the namespace."""

JOBS: Final[Peer] = {"podSelector": {"matchExpressions": [{"key": STORE_JOB, "operator": "Exists"}]}}
"""Pods of jobs on store files in the namespace, with those of their Spark executors."""

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""Every namespace has its own name in it."""


def network_objects(facts: SetFacts) -> tuple[NewObject, ...]:
    """The policies of controllers, of name servers that run by themselves, and of brokers."""
    found = []
    external = tuple(external_access.name_server_ports(facts).values())
    if facts.has_controllers:
        rules = [
            _clients(facts, names.NAMESRV_PORT, *external),
            _rule([names.CONTROLLER_PORT], _of_controllers(facts)),
            _http(facts),
            _rule([names.RAFT_PORT], [_members(facts, controllers.COMPONENT)]),
        ]
        found.append(_policy(facts, controllers.COMPONENT, rules))
    if facts.has_name_servers:
        rules = [_clients(facts, names.NAMESRV_PORT, *external), _http(facts)]
        found.append(_policy(facts, name_servers.COMPONENT, rules))
    log = names.DLEDGER_PORT if facts.manifest.is_dledger else names.HA_PORT
    rules = [
        _clients(facts, names.REMOTING_PORT, names.FAST_PORT),
        _http(facts),
        _rule([log], [_members(facts, brokers.COMPONENT)]),
    ]
    found.append(_policy(facts, brokers.COMPONENT, rules))
    return tuple(found)


def _clients(facts: SetFacts, *ports: int) -> NewObject:
    given = facts.manifest.spec.network_policy.clients
    own = [SETS, JOBS, *_operator(facts)]
    return _rule(ports, None if given is None else [*own, *map(_peer, given)])


def _http(facts: SetFacts) -> NewObject:
    given = facts.manifest.spec.network_policy.http
    return _rule([names.HTTP_PORT], None if given is None else [JOBS, *map(_peer, given)])


def _of_controllers(facts: SetFacts) -> list[Peer] | None:
    """Everybody where nobody said from where the operator comes: it must reach controllers."""
    operator, given = _operator(facts), facts.manifest.spec.network_policy.ordered_clients
    return [SETS, *operator, *map(_peer, given or ())] if operator else None


def _operator(facts: SetFacts) -> list[Peer]:
    pods = facts.operator_pods
    if pods is None:
        return []
    return [
        {
            "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: pods.namespace}},
            "podSelector": {"matchLabels": dict(pods.labels)},
        }
    ]


def _peer(given: NetworkPeer) -> Peer:
    found: Peer = {}
    if given.ip_block is not None:
        found["ipBlock"] = {"cidr": given.ip_block.cidr}
    if given.namespace_selector is not None:
        found["namespaceSelector"] = _selector(given.namespace_selector)
    if given.pod_selector is not None:
        found["podSelector"] = _selector(given.pod_selector)
    return found


def _selector(given: LabelSelector) -> dict[str, Any]:
    return {"matchLabels": dict(given.match_labels)} if given.match_labels else {}


def _members(facts: SetFacts, component: str) -> Peer:
    return {"podSelector": {"matchLabels": names.selector(facts.name, component)}}


def _rule(ports: Sequence[int], peers: Sequence[Peer] | None) -> NewObject:
    """None lets everybody in, which an empty `from` would do as well: at each port somebody is named."""
    assert peers is None or peers, "an empty list would let everybody in"
    among: Mapping[str, Any] = {} if peers is None else {"from": list(peers)}
    return {**among, "ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def _policy(facts: SetFacts, component: str, rules: list[NewObject]) -> NewObject:
    return facts.an_object(
        "NetworkPolicy",
        f"{facts.name}-{component}",
        component=component,
        spec={
            "podSelector": {"matchLabels": names.selector(facts.name, component)},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    )
