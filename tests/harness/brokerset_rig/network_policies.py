"""What NetworkPolicies of Kubernetes let in, judged without a cluster: the rules of its documentation, as a function.

Only what our policies use is known: rules of ingress, and ports by number. Anything else fails.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that connects, or that is connected to."""

    namespace: str
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outside:
    """Who comes from outside the cluster."""

    address: str


def allowed(source: Pod | Outside, target: Pod, port: int, policies: Iterable[Mapping[str, Any]]) -> bool:
    """Whether `source` may connect to `port` of `target`.

    A pod that no policy of its namespace selects takes everything, and else what a rule of any of them takes.
    """
    selecting = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == target.namespace
        and _selects(policy["spec"]["podSelector"], target.labels)
    ]
    assert all(spec["policyTypes"] == ["Ingress"] for spec in selecting)
    rules = [rule for spec in selecting for rule in spec["ingress"]]
    return not selecting or any(
        _names(rule, port) and _lets_in(rule, source, target.namespace) for rule in rules
    )


def _names(rule: Mapping[str, Any], port: int) -> bool:
    assert rule.keys() <= {"ports", "from"}
    assert all(each.keys() == {"port", "protocol"} and each["protocol"] == "TCP" for each in rule["ports"])
    return any(each["port"] == port for each in rule["ports"])


def _lets_in(rule: Mapping[str, Any], source: Pod | Outside, namespace: str) -> bool:
    """A rule without `from`, or with an empty one, is about everybody."""
    peers = rule.get("from") or []
    return not peers or any(_is_one(peer, source, namespace) for peer in peers)


def _is_one(peer: Mapping[str, Any], source: Pod | Outside, namespace: str) -> bool:
    assert peer.keys() <= {"ipBlock", "podSelector", "namespaceSelector"}
    assert peer
    if isinstance(source, Outside):
        networks = [ipaddress.ip_network(peer["ipBlock"]["cidr"])] if "ipBlock" in peer else []
        return any(ipaddress.ip_address(source.address) in network for network in networks)
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        right_space = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": source.namespace})
    else:
        right_space = source.namespace == namespace
    return right_space and _selects(peer.get("podSelector", {}), source.labels)


def _selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    expressions = selector.get("matchExpressions", ())
    assert all(each.keys() == {"key", "operator"} and each["operator"] == "Exists" for each in expressions)
    return labels.items() >= selector.get("matchLabels", {}).items() and all(
        each["key"] in labels for each in expressions
    )
