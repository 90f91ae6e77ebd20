"""What Prometheus is told about a set, where its operator is installed.

Rules look at one set only: they select by namespace and pod.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.observed import Operator
from brokerset_operator.resources.alerts import (
    BROKER_ALERTS,
    CONDITION_ALERTS,
    CONTROLLER_ALERTS,
    DLEDGER_ALERTS,
    OPERATOR_ALERTS,
    SET_ALERTS,
    Alert,
)
from brokerset_operator.resources.message_alerts import MESSAGE_ALERTS
from brokerset_operator.resources.ordered_alerts import (
    ORDERED_BROKER_ALERTS,
    ORDERED_CLIENT_ALERTS,
    ORDERED_CONTROLLER_ALERTS,
)
from brokerset_operator.resources.pop_alerts import POP_ALERTS
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.resources.tls_files import scrape_scheme

API_GROUP: Final = "monitoring.coreos.com"
POD_MONITOR: Final = f"{API_GROUP}/PodMonitor"
RULE: Final = f"{API_GROUP}/PrometheusRule"

ANY_SET: Final = 'brokerset_io_set!=""'
"""Selects pods of all sets: a PodMonitor of the operator puts this label on every sample."""

SET_TEXT: Final = "{{ $labels.brokerset_io_set }}"
NAME_TEXT: Final = "{{ $labels.name }}"
"""Names of sets in alerts about all of them: in metrics of pods, and in the operator's."""

OF_SETS: Final = 'kind="BrokerSet"'
"""Selects the operator's metrics about BrokerSets."""


def monitoring_objects(
    facts: SetFacts, installed: Operator, retired: Collection[str] = ()
) -> tuple[NewObject, ...]:
    """PodMonitor and PrometheusRule, if the manifest asks for them and the API server knows the kind.

    `retired` has the names of groups that the set had: nobody is told that they are down.
    """
    asked, found = facts.manifest.spec.monitoring, []
    if asked.pod_monitor and POD_MONITOR in installed.api_kinds:
        found.append(_pod_monitor(facts))
    groups = groups_of_set(
        facts.namespace, facts.name, facts.has_controllers, retired=retired, runbooks=installed.runbooks
    )
    if asked.rules and RULE in installed.api_kinds:
        found.append(
            facts.an_object(
                "PrometheusRule",
                facts.name,
                spec={"groups": groups},
            )
        )
    return tuple(found)


def _pod_monitor(facts: SetFacts) -> NewObject:
    return facts.an_object(
        "PodMonitor",
        facts.name,
        spec={
            "selector": {"matchLabels": {names.SET_LABEL: facts.name}},
            "podTargetLabels": [names.SET_LABEL, names.GROUP_LABEL, names.COMPONENT_LABEL],
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", **scrape_scheme(facts)}],
        },
    )


def groups_of_set(
    namespace: str,
    name: str,
    has_controllers: bool,
    *,
    retired: Collection[str] = (),
    runbooks: str = names.RUNBOOKS,
) -> list[dict[str, Any]]:
    """Rule groups about one set; without controllers of its own it has none about them."""
    brokers = rf"{name}-[0-9]+-[0-9]+"
    controllers = rf"{names.controller_set(name)}-[0-9]+"
    both = rf"{name}-([0-9]+|controller)-[0-9]+" if has_controllers else brokers
    parts = [
        ("controllers", controllers, (*CONTROLLER_ALERTS, *ORDERED_CONTROLLER_ALERTS)),
        ("brokers", brokers, (*BROKER_ALERTS, *MESSAGE_ALERTS, *POP_ALERTS, *ORDERED_BROKER_ALERTS)),
        ("dledger", brokers, DLEDGER_ALERTS),
        ("pods", both, SET_ALERTS),
    ]
    groups = [
        {
            "name": f"{namespace}/{name}/{what}",
            "rules": rules_of(
                alerts,
                pods=f'namespace="{namespace}",pod=~"{pods}"',
                groups=_but(retired),
                retired=f'exported_namespace="{namespace}",brokerset_io_set="{name}"',
                brokerset=name,
                runbooks=runbooks,
            ),
        }
        for what, pods, alerts in parts[0 if has_controllers else 1 :]
    ]
    # Prometheus renames the namespace that the operator tells: its own pod has one, too.
    own = f'{OF_SETS},exported_namespace="{namespace}",name="{name}"'
    conditions = rules_of(CONDITION_ALERTS, conditions=own, brokerset=name, runbooks=runbooks)
    return [*groups, {"name": f"{namespace}/{name}/conditions", "rules": conditions}]


def _but(groups: Collection[str]) -> str:
    """The part of a selector that leaves groups out."""
    listed = "|".join(re.escape(group) for group in sorted(groups)).replace("\\", r"\\")
    return f',broker_set!~"{listed}"' if listed else ""


def groups_of_all_sets() -> list[dict[str, Any]]:
    """Rule groups about all sets whose samples have the label of `ANY_SET`."""
    parts = (
        ("controllers", (*CONTROLLER_ALERTS, *ORDERED_CONTROLLER_ALERTS)),
        ("brokers", (*BROKER_ALERTS, *MESSAGE_ALERTS, *POP_ALERTS, *ORDERED_BROKER_ALERTS)),
        ("dledger", DLEDGER_ALERTS),
        ("pods", SET_ALERTS),
    )
    groups = [
        {"name": f"brokerset/{what}", "rules": rules_of(alerts, pods=ANY_SET, brokerset=SET_TEXT)}
        for what, alerts in parts
    ]
    conditions = rules_of(CONDITION_ALERTS, conditions=OF_SETS, brokerset=NAME_TEXT)
    return [*groups, {"name": "brokerset/conditions", "rules": conditions}]


def groups_of_operator() -> list[dict[str, Any]]:
    """Rule groups about the operator itself."""
    return [{"name": "brokerset/operator", "rules": rules_of(OPERATOR_ALERTS)}]


def groups_of_clients() -> list[dict[str, Any]]:
    """Rule groups about applications with ordered producers and consumers, of whatever set."""
    return [{"name": "brokerset/ordered-clients", "rules": rules_of(ORDERED_CLIENT_ALERTS)}]


def rules_of(
    alerts: Iterable[Alert],
    *,
    pods: str = "",
    groups: str = "",
    conditions: str = "",
    retired: str = "",
    brokerset: str | None = None,
    runbooks: str = names.RUNBOOKS,
) -> list[dict[str, Any]]:
    """Alerts as Prometheus' rules; `brokerset` is a label of each, the other texts are parts of selectors."""
    named = {} if brokerset is None else {"brokerset": brokerset}
    parts = {"<pods>": pods, "<groups>": pods + groups, "<conditions>": conditions, "<retired>": retired}
    return [
        {
            "alert": alert.name,
            "expr": re.sub("<[a-z]+>", lambda found: parts[found[0]], alert.expression),
            "for": f"{alert.minutes}m",
            "labels": {"severity": alert.severity, **named},
            "annotations": {
                "summary": alert.summary,
                "description": alert.description,
                "runbook_url": f"{runbooks}/{alert.name}",
            },
        }
        for alert in alerts
    ]
