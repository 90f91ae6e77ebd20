"""What the plan remembers from round to round: `status.workflow`, as typed values.

Who may write a status may write anything, so what cannot be read counts as not remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

Number = TypeVar("Number", int, float)

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """A pod that is deleted by us to be made anew. Written down one round before it is deleted."""

    pod: str
    uid: str
    since: float
    """When that was decided, in seconds since 1970."""

    broker_id: int | None = None
    incarnation: int = 0
    """Start of the broker that was seen last; the new pod's is higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A broker that leaves its group by scale-in."""

    ordinal: int
    since: float = 0.0
    """When that was decided, in seconds since 1970."""

    broker_id: int | None = None
    """None when it never had one."""

    claim_uid: str | None = None
    """The claim that goes with it, when an annotation asked for that; None: it stays."""

    claim_resource: str = ""
    """Name of that claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """What is remembered of a broker group; it stays when the group goes, for its volumes stay too."""

    name: str
    """Broker name."""

    expected: int
    """Number of brokers at the group's first creation."""

    replicas: int
    """Most pods that the StatefulSet was allowed to have since it was last seen with fewer."""

    led: bool = False
    """Whether it ever had a master: then it may have messages."""

    whole: bool = False
    """Whether all its brokers ever were in sync at once: until then it is being created."""

    ids: Mapping[int, int] = field(default_factory=dict)
    """Broker id on the volume of each ordinal, as last seen alive."""

    replacing: Replacing | None = None
    leaving: Leaving | None = None

    aside: tuple[int, ...] = ()
    """Ids that were fenced by scale-in and whose volume was kept."""

    orphans: Mapping[int, float] = field(default_factory=dict)
    """Ids that seem to have no volume any more, with the time since when."""

    drain_since: float | None = None
    empty_since: float | None = None
    """Since when nobody has anything left to read in a group that is drained."""

    opening: bool = False
    """Whether a drain was called off, and the group is being made writable again."""

    astray_since: float | None = None
    """Since when the `-master` Service contradicts the controllers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """All of it."""

    controllers: Replacing | None = None
    """The controller that is being replaced."""

    controller_replicas: int = 0
    """Controllers that the set was made with: these are the first members."""

    blank_controllers: bool = False
    """Whether the controllers' volumes, which a deleted set left, were found to have no data."""

    groups: Mapping[int, GroupWork] = field(default_factory=dict)
    """By index."""


def read_workflow(status: Mapping[str, Any]) -> Workflow:
    """Return what `status.workflow` says."""
    given = _mapping(status.get("workflow"))
    groups = {}
    for item in _sequence(given.get("groups")):
        index = _number(item.get("index"))
        name = item.get("name")
        if index is not None and isinstance(name, str) and name:
            groups[int(index)] = _read_group(name, item)
    return Workflow(
        controllers=_read_replacing(given.get("controller")),
        controller_replicas=int(_number(given.get("controllerReplicas")) or 0),
        blank_controllers=given.get("blankControllers") is True,
        groups=dict(sorted(groups.items())),
    )


def write_workflow(workflow: Workflow) -> dict[str, Any]:
    """Return `status.workflow`; equal values give equal results."""
    found: dict[str, Any] = {}
    if workflow.controllers is not None:
        found["controller"] = _write_replacing(workflow.controllers)
    if workflow.controller_replicas:
        found["controllerReplicas"] = workflow.controller_replicas
    if workflow.blank_controllers:
        found["blankControllers"] = True
    found["groups"] = [_write_group(index, work) for index, work in sorted(workflow.groups.items())]
    return found


def _read_group(name: str, item: Mapping[str, Any]) -> GroupWork:
    return GroupWork(
        name=name,
        expected=int(_number(item.get("expectedReplicas")) or 0),
        replicas=int(_number(item.get("replicas")) or 0),
        led=item.get("led") is True,
        whole=item.get("whole") is True,
        ids=_pairs(item.get("ids"), "ordinal", "id", int),
        replacing=_read_replacing(item.get("replacing")),
        leaving=_read_leaving(item.get("leaving")),
        aside=tuple(int(n) for n in _items(item.get("aside")) if _number(n) is not None),
        orphans=_pairs(item.get("orphans"), "id", "since", float),
        drain_since=_number(item.get("drainSince")),
        empty_since=_number(item.get("emptySince")),
        opening=item.get("opening") is True,
        astray_since=_number(item.get("astraySince")),
    )


def _write_group(index: int, work: GroupWork) -> dict[str, Any]:
    found: dict[str, Any] = {
        "index": index,
        "name": work.name,
        "expectedReplicas": work.expected,
        "replicas": work.replicas,
        "led": work.led,
        "whole": work.whole,
        "ids": [{"ordinal": ordinal, "id": broker_id} for ordinal, broker_id in sorted(work.ids.items())],
    }
    if work.replacing is not None:
        found["replacing"] = _write_replacing(work.replacing)
    if work.leaving is not None:
        found["leaving"] = _write_leaving(work.leaving)
    if work.aside:
        found["aside"] = list(work.aside)
    if work.orphans:
        found["orphans"] = [{"id": key, "since": since} for key, since in sorted(work.orphans.items())]
    if work.opening:
        found["opening"] = True
    times = (
        ("drainSince", work.drain_since),
        ("emptySince", work.empty_since),
        ("astraySince", work.astray_since),
    )
    return found | {name: value for name, value in times if value is not None}


def _read_replacing(value: object) -> Replacing | None:
    given = _mapping(value)
    pod, uid, since = given.get("pod"), given.get("uid"), _number(given.get("since"))
    if not isinstance(pod, str) or not isinstance(uid, str) or since is None:
        return None
    broker_id = _number(given.get("id"))
    return Replacing(
        pod=pod,
        uid=uid,
        since=since,
        broker_id=None if broker_id is None else int(broker_id),
        incarnation=int(_number(given.get("incarnation")) or 0),
    )


def _write_replacing(value: Replacing) -> dict[str, Any]:
    found: dict[str, Any] = {"pod": value.pod, "uid": value.uid, "since": value.since}
    if value.broker_id is not None:
        found |= {"id": value.broker_id, "incarnation": value.incarnation}
    return found


def _read_leaving(value: object) -> Leaving | None:
    given = _mapping(value)
    ordinal, broker_id = _number(given.get("ordinal")), _number(given.get("id"))
    if ordinal is None:
        return None
    uid, name = given.get("claimUid"), given.get("claim")
    named = isinstance(uid, str) and isinstance(name, str)
    return Leaving(
        ordinal=int(ordinal),
        since=_number(given.get("since")) or 0.0,
        broker_id=None if broker_id is None else int(broker_id),
        claim_uid=str(uid) if named else None,
        claim_resource=str(name) if named else "",
    )


def _write_leaving(value: Leaving) -> dict[str, Any]:
    found: dict[str, Any] = {"ordinal": value.ordinal, "since": value.since}
    if value.broker_id is not None:
        found["id"] = value.broker_id
    if value.claim_uid is not None:
        found |= {"claim": value.claim_resource, "claimUid": value.claim_uid}
    return found


def _pairs(value: object, key: str, item: str, kind: Callable[[float], Number]) -> dict[int, Number]:
    found = {}
    for given in _sequence(value):
        left, right = _number(given.get(key)), _number(given.get(item))
        if left is not None and right is not None:
            found[int(left)] = kind(right)
    return dict(sorted(found.items()))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else NOTHING


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _sequence(value: object) -> list[Mapping[str, Any]]:
    return [item for item in _items(value) if isinstance(item, Mapping)]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
