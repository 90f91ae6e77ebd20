"""Ways of a set that lead over stages, in each of which its pods do without each other's next one. Pure.

A pod is in one stage from its start to its end, as its template says. Pods of two stages next to each other
always reach each other. So templates go on by one stage, in either direction, when every pod of the set is
in the stage of its template; and back at any time, as pods are in these two stages then. Sets that share
controllers wait for each other's pods, too (`kept_by`): these are never further apart than those of one set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.observed import Object, Observed
from brokerset_operator.model.peers import PeerSet
from brokerset_spec.manifest import BrokerSet

PROCESSES: Final = frozenset({"controller", "broker", "namesrv"})
"""Components whose pods talk to each other."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The stages of one way, from 0 up, and how pods say in which one they are."""

    annotation: str
    """Of a pod and its template."""

    wanted: Callable[[BrokerSet], int]
    """Where a set is to get."""

    names: tuple[str, ...]
    """Name of each stage."""

    written: Callable[[str, int], str]
    """What a pod of a component has as annotation in a stage; empty for none. Stages of one component with
    the same annotation are the same to it: its pods are not replaced."""

    alike: Mapping[str, str] = field(default_factory=dict)
    """Annotations that say to sets that share controllers no more than others do: those come first."""

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


def position(
    ladder: Ladder, observed: Observed, wanted: int, left_out: frozenset[int] = frozenset()
) -> Position:
    """Where a set is that is to get to the stage `wanted`; one without pods is there from the start.

    `left_out` are stages that the set does not have, because nothing would change in them.
    """
    has = [stage for stage in range(len(ladder.names)) if stage not in left_out]
    pods = {name: _of(ladder, pod.get("metadata") or {}) for name, pod in processes(observed.pods)}
    templates = [_of(ladder, metadata) for metadata in template_metadata(observed)]
    made = templates or list(pods.values())
    if not made:
        return _start(ladder, observed.peers, wanted, has)
    spans = [_span(ladder, *one, has) for one in made]
    # Templates differ only while a reconcile was interrupted that changes them: by one stage.
    highest, lowest = max(low for low, _ in spans), min(high for _, high in spans)
    now = highest if wanted >= highest else lowest
    if wanted <= now and shut_out_by(ladder, observed.peers, _last_alike(now, has, ladder)) is not None:
        # A step back was begun when another set had begun to go on: the less open one counts.
        wanted = min(s for s in has if s > now)
    if now == wanted:
        return Position(now, now)
    following = min(s for s in has if s > now) if wanted > now else max(s for s in has if s < now)
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


def kept_by(ladder: Ladder, peers: Iterable[PeerSet], at: Position) -> PeerSet | None:
    """The first of the sets that share controllers whose pods do not do with ours in the following stage."""
    for peer in peers:
        lowest, highest = _reach(ladder, peer)
        if at.following > at.now and lowest < at.following - 1:
            return peer
        if at.following < at.now and highest > at.following + 1:
            return peer
    return None


def shut_out_by(ladder: Ladder, peers: Iterable[PeerSet], stage: int) -> PeerSet | None:
    """The first of the sets that share controllers which is too far ahead for pods in a stage."""
    return next((peer for peer in peers if _reach(ladder, peer)[1] > stage + 1), None)


def comes_along(ladder: Ladder, peer: PeerSet, at: Position) -> bool:
    """Whether a set that keeps ours from the following stage is on a way that ends it."""
    if peer.manifest is None:
        return False
    wanted = ladder.wanted(peer.manifest)
    return wanted >= at.following - 1 if at.following > at.now else wanted <= at.following + 1


def _last_alike(stage: int, has: list[int], ladder: Ladder) -> int:
    """The last stage in which pods do what they do in one that the set has."""
    return min((s for s in has if s > stage), default=len(ladder.names)) - 1


def _start(ladder: Ladder, peers: Iterable[PeerSet], wanted: int, has: list[int]) -> Position:
    """The stage of a set's first pods: the one that is wanted, if pods of other sets do with it."""
    most = min((_reach(ladder, peer)[0] + 1 for peer in peers), default=wanted)
    stage = max((s for s in has if s <= min(most, wanted)), default=wanted)
    return Position(stage, wanted if stage == wanted else min(s for s in has if s > stage))


def _reach(ladder: Ladder, peer: PeerSet) -> tuple[int, int]:
    """The stage that all pods of another set have reached, and the highest that one of them has.

    Pods that are not there yet are made for the manifest.
    """
    seen = [_of(ladder, metadata) for metadata in peer.pods if component_of(metadata) in PROCESSES]
    spans = [
        _span(ladder, component, ladder.alike.get(text, text), range(len(ladder.names)))
        for component, text in seen
    ]
    if not spans:
        return (0 if peer.manifest is None else ladder.wanted(peer.manifest)), 0
    return min(high for _, high in spans), max(low for low, _ in spans)


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


def _span(ladder: Ladder, component: str, text: str, has: Iterable[int]) -> tuple[int, int]:
    """The stages that an annotation can stand for, from first to last.

    One that a newer operator wrote counts as the last, so that templates go back by single stages from there.
    """
    stages = list(has)
    found = [stage for stage in stages if ladder.written(component, stage) == text]
    if not found:
        found = stages[-1:] if text else stages[:1]
    return found[0], found[-1]


def _expected(stateful_sets: Mapping[str, Object]) -> set[str]:
    return {
        f"{name}-{ordinal}"
        for name, each in stateful_sets.items()
        for ordinal in range(int((each.get("spec") or {}).get("replicas", 1)))
    }
