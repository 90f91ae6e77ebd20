"""Who may reach which port of a set's pods, where the cluster enforces NetworkPolicies."""

from __future__ import annotations

from typing import Any

from brokerset_operator.model import names
from brokerset_operator.resources import brokers, controllers, external_access
from brokerset_operator.resources.set_facts import NewObject, SetFacts


def network_objects(facts: SetFacts) -> tuple[NewObject, ...]:
    """Raft and HA ports are for the set's own pods; all others are open.

    The controller port is open because brokers of sets that share these controllers, administrators and the
    operator use it. Nothing is said about what pods may reach.
    """
    found = []
    if facts.has_controllers:
        everybody = {name: port for name, port in controllers.PORTS.items() if name != "raft"}
        everybody |= external_access.controller_ports(facts)
        found.append(_policy(facts, controllers.COMPONENT, everybody, names.RAFT_PORT))
    everybody = {name: port for name, port in brokers.PORTS.items() if name != "ha"}
    found.append(_policy(facts, brokers.COMPONENT, everybody, names.HA_PORT))
    return tuple(found)


def _policy(facts: SetFacts, component: str, everybody: dict[str, int], own: int) -> NewObject:
    members: dict[str, Any] = {"matchLabels": names.selector(facts.name, component)}
    return facts.an_object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        f"{facts.name}-{component}",
        component=component,
        spec={
            "podSelector": members,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [_port(port) for port in everybody.values()]},
                {"from": [{"podSelector": members}], "ports": [_port(own)]},
            ],
        },
    )


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
