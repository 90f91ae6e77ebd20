"""Which objects belong into a report, and what of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from brokerset_cli.kubernetes.sets import Object, items, part
from brokerset_kube import kinds

KINDS: Final = (
    (kinds.POD, False),
    (kinds.STATEFUL_SET, False),
    (kinds.SERVICE, False),
    (kinds.CONFIG_MAP, False),
    (kinds.CLAIM, False),
    (kinds.ENDPOINT_SLICE, False),
    (kinds.DISRUPTION_BUDGET, False),
    (kinds.NETWORK_POLICY, False),
    (kinds.POD_MONITOR, True),
    (kinds.PROMETHEUS_RULE, True),
)
"""Kinds that a set is made of, and whether a cluster may well lack the kind. Secrets are not read."""

EVENTS: Final = kinds.Kind("v1", "Event", "events")
"""Events of both APIs: the server shows them as either kind, and each API fills other fields."""

DEPLOYMENT: Final = kinds.Kind("apps/v1", "Deployment", "deployments")


def belongs(event: Object, name: str, known: Collection[str]) -> bool:
    """Whether an event is about a set or something of it, also something that is gone."""
    about = part(event, "involvedObject") or part(event, "regarding")
    kind, of = str(about.get("kind", "")), str(about.get("name", ""))
    if kind in ("BrokerSet", "Topic"):
        return of == name or kind == "Topic"
    shape = rf"(?:data-)?{re.escape(name)}-(?:controller|namesrv|\d+)(?:-\d+)?"
    return of in known or bool(re.fullmatch(shape, of))


def event_time(event: Object) -> str:
    """When it happened last, as text that sorts."""
    series = part(event, "series").get("lastObservedTime")
    created = part(event, "metadata").get("creationTimestamp")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or created or "")


def event_line(event: Object) -> str:
    """An event as people read it."""
    about = part(event, "involvedObject") or part(event, "regarding")
    count = part(event, "series").get("count") or event.get("count") or 1
    many = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
    message = " ".join(str(event.get("message") or event.get("note") or "").split())
    kind = f"{about.get('kind', '')}/{about.get('name', '')}"
    return f"{event_time(event)} {event.get('type', '')} {kind} {event.get('reason', '')}: {message}{many}"


def of_this_set(objects: Iterable[Object], name: str) -> list[Object]:
    """The Topics or Subjects that name a set."""
    return [each for each in objects if part(part(each, "spec"), "brokerSetRef").get("name") == name]


def node_facts(nodes: Iterable[Object], pods: Iterable[Object]) -> list[dict[str, Any]]:
    """What matters of the nodes that have pods of a set."""
    used = {part(pod, "spec").get("nodeName") for pod in pods}
    found = []
    for node in nodes:
        meta, spec, status = part(node, "metadata"), part(node, "spec"), part(node, "status")
        if meta.get("name") not in used:
            continue
        zones = {key: value for key, value in part(meta, "labels").items() if "topology." in key}
        found.append(
            {
                "name": meta.get("name"),
                "created": meta.get("creationTimestamp"),
                "zones": zones,
                "taints": items(spec, "taints"),
                "unschedulable": bool(spec.get("unschedulable")),
                "conditions": items(status, "conditions"),
                "allocatable": part(status, "allocatable"),
                "nodeInfo": part(status, "nodeInfo"),
            }
        )
    return found


def operator_facts(deployments: Sequence[Object], pods: Sequence[Object]) -> dict[str, Any]:
    """The operator's objects, as they are."""
    return {"deployments": list(deployments), "pods": list(pods)}
