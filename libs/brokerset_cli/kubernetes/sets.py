"""A BrokerSet and its pods as typed values, read from what the API says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brokerset_cli.kubernetes import names

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of the status."""

    type: str
    status: str
    reason: str
    message: str
    since: str


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod, as people ask about it."""

    name: str
    uid: str
    word: str
    """Its state in one word: Running, Pending, Terminating, CrashLoopBackOff, …"""

    ready: bool
    restarts: int
    node: str | None
    container: str
    component: str
    resource: str | None
    """StatefulSet of a broker's group."""

    image: str
    config_hash: str
    """What the operator made of the settings and the template that the pod was made from."""

    @property
    def make(self) -> tuple[str, str]:
        """Differs between a pod from before a change and one from after it."""
        return self.config_hash, self.image


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker as the controllers know it, and its pod; one of both may be missing."""

    id: int | None
    pod: str | None
    role: str
    in_sync: bool
    max_offset: int | None
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker group."""

    name: str
    resource: str
    """Its StatefulSet."""

    epoch: int | None
    master_id: int | None
    master_pod: str | None
    in_sync: tuple[int, ...]
    brokers: tuple[BrokerView, ...]
    term: int | None = None
    """Of a DLedger."""

    @property
    def ids(self) -> str:
        """The numbers of its brokers, for people."""
        known = sorted(each.id for each in self.brokers if each.id is not None)
        return ", ".join(str(each) for each in known) or "not known yet"

    def broker(self, broker_id: int) -> BrokerView | None:
        """The broker with this id."""
        return next((each for each in self.brokers if each.id == broker_id), None)


@dataclass(frozen=True, slots=True)
class ControllersView:
    """The controllers, as they describe themselves."""

    leader: int | None
    ready: int
    replicas: int
    voters: tuple[int, ...]
    of: str | None
    """The other set whose controllers these are; None for own ones."""


@dataclass(frozen=True, slots=True)
class Request:
    """The operator's answer to what an annotation asks for."""

    value: str
    state: str
    message: str
    fenced: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether the operator is still at it."""
        return self.state in names.OPEN


@dataclass(frozen=True, slots=True)
class ExternalView:
    """Where clients outside the cluster get in."""

    name_servers: str
    masters: Mapping[str, str]
    """Address by broker name of the group."""

    brokers: Mapping[str, str]
    """Address by pod."""

    waiting: str
    """What has no address yet; empty when all is there."""


@dataclass(frozen=True, slots=True)
class SetView:
    """A BrokerSet: what was asked for and what is."""

    name: str
    namespace: str
    generation: int
    observed_generation: int | None
    """None when no operator has looked at it yet."""

    resource_version: str
    annotations: Mapping[str, str]
    replicas: int
    strategy: str
    phase: str
    in_sync: str
    conditions: tuple[Condition, ...]
    controllers: ControllersView
    groups: tuple[GroupView, ...]
    requests: Mapping[str, Request]
    pods: tuple[PodView, ...]
    external: ExternalView | None = None
    """None when nobody outside is let in."""

    @property
    def place(self) -> str:
        """How commands name it wherever they are typed, as `orders -n shop`."""
        return f"{self.name} -n {self.namespace}" if self.namespace else self.name

    @property
    def ready(self) -> bool:
        """Whether the condition Ready holds for the manifest as it is now."""
        found = self.condition(names.READY)
        return found is not None and found.status == "True" and self.observed_generation == self.generation

    @property
    def paused(self) -> bool:
        """Whether the operator was told to do nothing."""
        return self.annotations.get(names.PAUSED) == "true"

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((each for each in self.conditions if each.type == kind), None)

    def group(self, name: str) -> GroupView | None:
        """The group with this name, or whose StatefulSet has it."""
        return next((each for each in self.groups if name in (each.name, each.resource)), None)

    def pod(self, name: str | None) -> PodView | None:
        """The pod of this name, if it is there."""
        return next((each for each in self.pods if each.name == name), None)


def read_set(given: Object, pods: Iterable[Object] = ()) -> SetView:
    """Read a BrokerSet; `pods` are all of its pods. What is missing or has another shape is left out."""
    meta, spec, status = part(given, "metadata"), part(given, "spec"), part(given, "status")
    name = str(meta.get("name", ""))
    found = tuple(sorted((read_pod(each) for each in pods), key=lambda pod: _natural(pod.name)))
    seen = (read_condition(each) for each in items(status, "conditions"))
    return SetView(
        name=name,
        namespace=str(meta.get("namespace", "")),
        generation=_whole(meta.get("generation")) or 0,
        observed_generation=_whole(status.get("observedGeneration")),
        resource_version=str(meta.get("resourceVersion", "")),
        annotations={str(key): str(value) for key, value in part(meta, "annotations").items()},
        replicas=_whole(spec.get("replicas")) or 0,
        strategy=str(part(spec, "update").get("strategy", "automatic")),
        phase=str(status.get("phase", "")) or "Unknown",
        in_sync=str(status.get("inSync", "")),
        conditions=tuple(seen),
        controllers=_controllers(spec, part(status, "controllers")),
        groups=_groups(name, spec, status, found),
        requests={
            key: _request(part(part(status, "requests"), key)) for key in sorted(part(status, "requests"))
        },
        pods=found,
        external=_external(part(status, "external")),
    )


def _external(given: Object) -> ExternalView | None:
    if not given:
        return None
    return ExternalView(
        name_servers=str(given.get("nameServers", "")),
        masters={str(one.get("group")): str(one.get("address")) for one in items(given, "masters")},
        brokers={str(one.get("pod")): str(one.get("address")) for one in items(given, "brokers")},
        waiting=str(given.get("waiting", "")),
    )


def read_condition(given: Object) -> Condition:
    """Read a condition."""
    keys = ("type", "status", "reason", "message", "lastTransitionTime")
    return Condition(*(str(given.get(key, "")) for key in keys))


def read_pod(given: Object) -> PodView:
    """Read a pod."""
    meta, spec, status = part(given, "metadata"), part(given, "spec"), part(given, "status")
    labels = part(meta, "labels")
    containers = items(status, "containerStatuses")
    conditions = [read_condition(each) for each in items(status, "conditions")]
    first: Object = next(iter(items(spec, "containers")), {})
    resource, node = labels.get(names.GROUP_LABEL), spec.get("nodeName")
    return PodView(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        word=_word(meta, status, containers),
        ready=any(each.type == "Ready" and each.status == "True" for each in conditions),
        restarts=sum(_whole(each.get("restartCount")) or 0 for each in containers),
        node=str(node) if node else None,
        container=str(first.get("name", "")),
        component=str(labels.get(names.COMPONENT_LABEL, "")),
        resource=str(resource) if resource else None,
        image=str(first.get("image", "")),
        config_hash=str(part(meta, "annotations").get(names.CONFIG_HASH, "")),
    )


def part(given: Object, key: str) -> Object:
    """The object below a key; an empty one when there is none."""
    found = given.get(key)
    return found if isinstance(found, Mapping) else {}


def items(given: Object, key: str) -> list[Object]:
    """The objects in the list below a key."""
    found = given.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _word(meta: Object, status: Object, containers: Sequence[Object]) -> str:
    if meta.get("deletionTimestamp"):
        return "Terminating"
    for each in containers:
        for state in ("waiting", "terminated"):
            reason = part(part(each, "state"), state).get("reason")
            if reason:
                return str(reason)
    return str(status.get("phase", "Unknown"))


def _controllers(spec: Object, status: Object) -> ControllersView:
    asked = part(spec, "controllers")
    of = part(asked, "ref").get("name")
    return ControllersView(
        leader=_whole(status.get("leader")),
        ready=_whole(status.get("ready")) or 0,
        replicas=_whole(status.get("replicas")) or _whole(asked.get("replicas")) or 0,
        voters=_ids(status.get("voters")),
        of=str(of) if of else None,
    )


def _groups(name: str, spec: Object, status: Object, pods: Sequence[PodView]) -> tuple[GroupView, ...]:
    listed = [str(each) for each in spec.get("brokerNames") or ()]
    listed = listed or [f"{name}-{n}" for n in range(_whole(spec.get("groups")) or 1)]
    resources = {group: f"{name}-{index}" for index, group in enumerate(listed)}
    known = {str(each.get("name")): each for each in items(status, "groups")}
    return tuple(
        _group(group, resources.get(group) or _resource(group, known[group]), known.get(group, {}), pods)
        for group in dict.fromkeys((*listed, *known))
    )


def _resource(name: str, status: Object) -> str:
    """StatefulSet of a group that the manifest does not list any more: that of its pods."""
    pods = (str(each["pod"]) for each in items(status, "brokers") if each.get("pod"))
    return next((pod.rpartition("-")[0] for pod in pods), name)


def _group(name: str, resource: str, status: Object, pods: Sequence[PodView]) -> GroupView:
    in_sync, master = _ids(status.get("inSync")), part(status, "master")
    brokers = [_broker(each, in_sync) for each in items(status, "brokers")]
    placed = {each.pod for each in brokers}
    # A pod whose broker is not alive at its address, or not registered yet, has no id in the status.
    brokers += [
        BrokerView(None, pod.name, "", False, None, None)
        for pod in pods
        if pod.resource == resource and pod.name not in placed
    ]
    brokers.sort(key=lambda each: (each.pod is None, _natural(each.pod or ""), each.id or 0))
    pod = master.get("pod")
    return GroupView(
        name=name,
        resource=resource,
        epoch=_whole(status.get("epoch")),
        term=_whole(status.get("term")),
        master_id=_whole(master.get("id")),
        master_pod=str(pod) if pod else None,
        in_sync=in_sync,
        brokers=tuple(brokers),
    )


def _broker(given: Object, in_sync: Sequence[int]) -> BrokerView:
    broker_id, pod, end = _whole(given.get("id")), given.get("pod"), _whole(given.get("maxOffset"))
    return BrokerView(
        id=broker_id,
        pod=str(pod) if pod else None,
        role=str(given.get("role", "")),
        in_sync=broker_id in in_sync,
        max_offset=end if end is not None and end >= 0 else None,  # -1: it has not said it
        lag_bytes=_whole(given.get("lagBytes")),
    )


def _request(given: Object) -> Request:
    fenced = given.get("fenced")
    return Request(
        value=str(given.get("value", "")),
        state=str(given.get("state", "")),
        message=str(given.get("message", "")),
        fenced=tuple(str(each) for each in fenced) if isinstance(fenced, list) else (),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ids(value: object) -> tuple[int, ...]:
    return (
        tuple(number for each in value if (number := _whole(each)) is not None)
        if isinstance(value, list)
        else ()
    )


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order in which `orders-10` comes after `orders-9`."""
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in name.split("-"))
