"""A BrokerSet as a tree for people, and as JSON for scripts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.sets import (
    BrokerView,
    Condition,
    ControllersView,
    ExternalView,
    GroupView,
    PodView,
    SetView,
)
from brokerset_cli.output import counted

BRANCH: Final = "├─ "
LAST: Final = "└─ "
TRUNK: Final = "│  "
GAP: Final = "   "

GOOD: Final = (names.READY, names.CONTROLLERS_READY)
"""Conditions that are good when they hold; all the others are good when they do not."""

Node = tuple[str, Sequence[Any]]
"""A line, and the nodes below it."""


def problems(seen: SetView) -> list[str]:
    """What is not as it should be; empty when all is well."""
    found = []
    if seen.observed_generation is None:
        found.append("no operator has looked at this set yet")
    elif seen.observed_generation != seen.generation:
        found.append(
            f"the operator has seen generation {seen.observed_generation} of the manifest, "
            f"not yet {seen.generation}"
        )
    if seen.paused:
        found.append(f"paused by the annotation {names.PAUSED}")
    for each in seen.conditions:
        if not is_good(each) and each.type not in (names.PROGRESSING, "Degraded"):
            found.append(f"{each.type}: {each.reason}: {each.message}")
    return found


def is_good(condition: Condition) -> bool:
    """Whether a condition is as one wants it; progress is neither good nor bad and counts as good."""
    if condition.type == names.PROGRESSING:
        return True
    return (condition.status == "True") == (condition.type in GOOD)


def lines(seen: SetView) -> list[str]:
    """The whole tree, a line each, with colours; `click.echo` drops those where nobody looks."""
    nodes: list[Node] = [_conditions(seen), _controllers(seen)]
    nodes += [_group(seen, group) for group in seen.groups]
    if seen.external is not None:
        nodes.append(_external(seen.external))
    if seen.requests:
        rows = [
            f"{key} {each.value or '(nobody)'}: {each.state}: {each.message}"
            for key, each in seen.requests.items()
        ]
        nodes.append(("requests", [(row, ()) for row in rows]))
    color = "green" if seen.ready else "red"
    head = f"{click.style(seen.name, bold=True)}  {click.style(seen.phase, fg=color)}"
    head += f"  {seen.in_sync or '-'} in sync  namespace {seen.namespace}"
    if seen.observed_generation != seen.generation:
        head += click.style(
            f"  generation {seen.generation}, seen {seen.observed_generation or 'none'}", fg="yellow"
        )
    if seen.paused:
        head += click.style("  paused", fg="yellow")
    return [head, *_drawn(nodes, "")]


def summary(sets: Sequence[SetView]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Columns and rows of a table with a line for each set."""
    columns = ("namespace", "name", "ready", "phase", "groups", "in sync", "masters", "lag")
    rows: list[tuple[object, ...]] = [
        (
            each.namespace,
            each.name,
            "yes" if each.ready else "no",
            each.phase,
            len(each.groups),
            each.in_sync or "-",
            ",".join(group.master_pod or "-" for group in each.groups),
            max((b.lag_bytes or 0 for g in each.groups for b in g.brokers), default=0),
        )
        for each in sets
    ]
    return columns, rows


def as_json(seen: SetView) -> dict[str, Any]:
    """The same for scripts, with camelCase names."""
    return {
        "name": seen.name,
        "namespace": seen.namespace,
        "ready": seen.ready,
        "phase": seen.phase,
        "paused": seen.paused,
        "generation": seen.generation,
        "observedGeneration": seen.observed_generation,
        "problems": problems(seen),
        "conditions": [_camel(asdict(each)) for each in seen.conditions],
        "controllers": {
            **_camel(asdict(seen.controllers)),
            "pods": [_camel(asdict(pod)) for pod in seen.pods if pod.component == names.CONTROLLER],
        },
        "nameServers": [_camel(asdict(pod)) for pod in seen.pods if pod.component == names.NAME_SERVER],
        "groups": [
            {
                **_camel({key: value for key, value in asdict(group).items() if key != "brokers"}),
                "brokers": [
                    {
                        **_camel(asdict(broker)),
                        "podState": _camel(asdict(pod))
                        if (pod := seen.pod(broker.pod)) is not None
                        else None,
                    }
                    for broker in group.brokers
                ],
            }
            for group in seen.groups
        ],
        "external": _camel(asdict(seen.external)) if seen.external is not None else None,
        "requests": {key: _camel(asdict(each)) for key, each in seen.requests.items()},
    }


# -- branches ----------------------------------------------------------------------------------------------


def _conditions(seen: SetView) -> Node:
    rows = []
    for each in seen.conditions:
        shown = "yes" if each.status == "True" else "no" if each.status == "False" else "?"
        color = "green" if is_good(each) else "red"
        if each.type == names.PROGRESSING:
            color = "yellow" if each.status == "True" or each.reason == names.REASON_PAUSED else "green"
        rows.append((each.type, click.style(shown, fg=color), each.reason, each.message))
    empty: Sequence[Node] = [("none yet: no operator has looked at this set", ())]
    return "conditions", [(row, ()) for row in _aligned(rows)] or empty


def _external(known: ExternalView) -> Node:
    rows = _aligned([*known.masters.items(), *known.brokers.items()])
    if known.waiting:
        rows.append(click.style(known.waiting, fg="yellow"))
    return f"outside  name servers {known.name_servers or '-'}", [(row, ()) for row in rows]


def _controllers(seen: SetView) -> Node:
    known: ControllersView = seen.controllers
    pods = [pod for pod in seen.pods if pod.component == names.CONTROLLER]
    if known.of is not None:
        return f"controllers  those of BrokerSet {known.of}", ()
    if name_servers := [pod for pod in seen.pods if pod.component == names.NAME_SERVER]:
        ready = sum(pod.ready for pod in name_servers)
        cells = _aligned([(pod.name, *_pod_cells(pod)) for pod in name_servers])
        return f"name servers  {ready}/{len(name_servers)} ready", [(row, ()) for row in cells]
    head = f"controllers  {known.ready}/{known.replicas} answer"
    rows = []
    for pod in pods:
        number = pod.name.rpartition("-")[2]
        node_id = int(number) if number.isdecimal() else None
        role = (
            "leader" if node_id == known.leader else "votes" if node_id in known.voters else "does not vote"
        )
        color = "green" if role == "leader" else None if role == "votes" else "yellow"
        rows.append((pod.name, click.style(role, fg=color), *_pod_cells(pod)))
    if known.leader is None:
        head += click.style(", none leads", fg="red")
    return head, [(row, ()) for row in _aligned(rows)]


def _group(seen: SetView, group: GroupView) -> Node:
    head = click.style(group.name, bold=True)
    if group.resource != group.name:
        head += f" ({group.resource})"
    if group.epoch is not None:
        head += f"  epoch {group.epoch}"
    if group.term is not None:
        head += f"  term {group.term}"
    if group.master_id is None:
        head += click.style("  no master", fg="red")
    else:
        head += f"  master {group.master_id}"
    enough = len(group.in_sync) >= seen.replicas
    head += click.style(f"  {len(group.in_sync)} in sync", fg=None if enough else "yellow")
    rows = [_broker_cells(seen, group, broker) for broker in group.brokers]
    return head, [(row, ()) for row in _aligned(rows)]


def _broker_cells(seen: SetView, group: GroupView, broker: BrokerView) -> tuple[str, ...]:
    pod = seen.pod(broker.pod)
    role = broker.role or "not registered"
    color = {"master": "green", "slave": None, "fenced": "yellow"}.get(role, "red")
    in_sync = "in sync" if broker.in_sync else "not in sync" if broker.id is not None else ""
    lag = (
        "" if broker.lag_bytes is None or broker.id == group.master_id else f"lag {_bytes(broker.lag_bytes)}"
    )
    end = "" if broker.max_offset is None else f"end {broker.max_offset:,}"
    cells = _pod_cells(pod) if pod is not None else (click.style("no pod", fg="yellow"), "", "")
    return (
        broker.pod or "-",
        f"id {broker.id}" if broker.id is not None else "id -",
        click.style(role, fg=color),
        click.style(in_sync, fg=None if broker.in_sync else "yellow"),
        end,
        lag,
        *cells,
    )


def _pod_cells(pod: PodView) -> tuple[str, str, str]:
    word = pod.word if pod.ready or pod.word != "Running" else "not ready"
    return (
        click.style(word, fg=None if pod.ready and pod.word == "Running" else "yellow"),
        pod.node or "no node",
        counted(pod.restarts, "restart") if pod.restarts else "",
    )


# -- drawing -----------------------------------------------------------------------------------------------


def _drawn(nodes: Sequence[Node], indent: str) -> list[str]:
    found = []
    for number, (text, below) in enumerate(nodes):
        last = number == len(nodes) - 1
        found.append(f"{indent}{LAST if last else BRANCH}{text}")
        found += _drawn(below, indent + (GAP if last else TRUNK))
    return found


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(click.unstyle(row[n])) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(
            cell + " " * (width - len(click.unstyle(cell)))
            for cell, width in zip(row, widths, strict=True)
            if width
        ).rstrip()
        for row in rows
    ]


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _camel(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "".join(word if n == 0 else word.capitalize() for n, word in enumerate(key.split("_"))): value
        for key, value in given.items()
    }
