"""Ways of a set that lead over stages, in each of which its pods do without each other's next one. Pure.

A pod is in one stage from its start to its end, as its template says. Pods of two stages next to each other
always reach each other. So templates go on by one stage, in either direction, when every pod of the set is
in the stage of its template; and back at any time, as pods are in these two stages then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.observed import Object, Observed

PROCESSES: Final = frozenset({"controller", "broker", "namesrv"})
"""Components whose pods talk to each other."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The stages of one way, from 0 up, and how pods say in which one they are."""

    annotation: str
    """Of a pod and its template."""

    names: tuple[str, ...]
    """Name of each stage."""

    written: Callable[[str, int], str]
    """What a pod of a component has as annotation in a stage; empty for none. Stages of one component with
    the same annotation are the same to it: its pods are not replaced."""

    def name(self, stage: int) -> str:
        """Name of a stage, for people."""
        return self.names[stage]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a set is on its way."""

    now: int
    """Stage of its templates."""

    following: int
    """The stage that comes next; `now` where the way ends."""

    waits_for: str = ""
    """What goes on by itself, until the next stage can begin."""


def position(ladder: Ladder, observed: Observed, wanted: int) -> Position:
    """Where a set is that is to get to the stage `wanted`; one without pods is there from the start."""
    pods = {name: _of(ladder, pod.get("metadata") or {}) for name, pod in processes(observed.pods)}
    templates = [_of(ladder, metadata) for metadata in template_metadata(observed)]
    made = templates or list(pods.values())
    if not made:
        return Position(wanted, wanted)
    spans = [_span(ladder, *one) for one in made]
    # Templates differ only while a reconcile was interrupted that changes them: by one stage.
    highest, lowest = max(low for low, _ in spans), min(high for _, high in spans)
    now = highest if wanted >= highest else lowest
    if now == wanted:
        return Position(now, now)
    following = now + (1 if wanted > now else -1)
    here = [text == ladder.written(component, now) for component, text in made]
    ahead = {name for name, (component, text) in pods.items() if text == ladder.written(component, following)}
    others = sorted(
        name
        for name, (component, text) in pods.items()
        if name not in ahead and text != ladder.written(component, now)
    )
    changed = {
        name
        for name in ahead
        if ladder.written(pods[name][0], following) != ladder.written(pods[name][0], now)
    }
    # A way back: those that are made meanwhile are in one of the two stages as well.
    missing = [] if changed else sorted(_expected(observed.stateful_sets) - pods.keys())
    if others or missing or not all(here):
        first = (others or missing or ["a StatefulSet"])[0]
        return Position(now, following, f"{first} is not {ladder.name(now)} yet")
    return Position(now, following)


def processes(pods: Mapping[str, Object]) -> Iterator[tuple[str, Object]]:
    """The pods that talk to each other, by name."""
    for name, pod in pods.items():
        if component_of(pod.get("metadata") or {}) in PROCESSES:
            yield name, pod


def template_metadata(observed: Observed) -> Iterator[Mapping[str, Any]]:
    """Metadata of the pod templates of a set."""
    for each in observed.stateful_sets.values():
        yield ((each.get("spec") or {}).get("template") or {}).get("metadata") or {}


def component_of(metadata: Mapping[str, Any]) -> str:
    """Which kind of process a pod has."""
    return str((metadata.get("labels") or {}).get(names.COMPONENT_LABEL, ""))


def _of(ladder: Ladder, metadata: Mapping[str, Any]) -> tuple[str, str]:
    return component_of(metadata), str((metadata.get("annotations") or {}).get(ladder.annotation, ""))


def _span(ladder: Ladder, component: str, text: str) -> tuple[int, int]:
    """The stages that an annotation can stand for, from first to last."""
    found = [stage for stage in range(len(ladder.names)) if ladder.written(component, stage) == text]
    return (found[0], found[-1]) if found else (0, 0)


def _expected(stateful_sets: Mapping[str, Object]) -> set[str]:
    return {
        f"{name}-{ordinal}"
        for name, each in stateful_sets.items()
        for ordinal in range(int((each.get("spec") or {}).get("replicas", 1)))
    }
