"""What the reconciles of the kinds that become Jobs have in common: reading, carrying out a plan, telling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from pydantic import ValidationError

from brokerset_kube import kinds
from brokerset_kube.client import Object
from brokerset_kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from brokerset_kube.kinds import Kind, kind_named
from brokerset_operator.apply import Means, NotLeading, write_status
from brokerset_operator.model.actions import ApplyObject, DeleteObject, EmitEvent
from brokerset_operator.model.observed import Meta
from brokerset_operator.observe import first_of
from brokerset_operator.owners import ensure_ours
from brokerset_operator.plan.objects import part
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.set_reconciler import RESYNC_SPREAD
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.sequence import JobPlan
from brokerset_spec.manifest import BrokerSet, ManifestError
from brokerset_spec.pod_template import PodTemplate
from brokerset_spec.problems import Problem

log = structlog.get_logger(__name__)

FURTHER: Final = (kinds.SERVICE_ACCOUNT, kinds.ROLE_BINDING, kinds.NETWORK_POLICY)
"""What executors take besides ConfigMaps."""

Action = ApplyObject | DeleteObject | EmitEvent
Manifest = TypeVar("Manifest")


@dataclass(frozen=True, slots=True)
class Belongings:
    """Everything that belongs to one object, by name."""

    jobs: Mapping[str, Object]
    pods: Mapping[str, Object]
    config_maps: Mapping[str, Object]
    other: Mapping[str, Object]
    """By `<kind>/<name>`."""


async def belongings(
    means: Means, kind: str, name: str, namespace: str, *, uid: str, executors: bool
) -> Belongings:
    """Read what belongs to an object. Raises a `KubeError`.

    What an earlier object of that name has left is not among it; Kubernetes removes that by itself.
    """
    chosen = labels.selector(kind, name)
    asked = (kinds.JOB, kinds.POD, kinds.CONFIG_MAP, *(FURTHER if executors else ()))

    async def listed(one: Kind) -> list[Object]:
        small = one not in (kinds.JOB, kinds.POD)
        listing = await means.client.list(one, namespace, labels=chosen, metadata_only=small)
        # Where metadata alone is asked for, an item says that it is metadata, not what it belongs to.
        return [{**item, "apiVersion": one.api_version, "kind": one.kind} for item in listing.items]

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {one: group.create_task(listed(one)) for one in asked}
    except* KubeError as errors:
        problem = first_of(errors)
        raise problem from None
    found = {one: task.result() for one, task in tasks.items()}
    other = {
        f"{one.kind}/{item['metadata']['name']}": item
        for one in asked
        if one in FURTHER
        for item in _owned(found[one], uid)
    }
    return Belongings(
        _by_name(_owned(found[kinds.JOB], uid)),
        _by_name(found[kinds.POD]),
        _by_name(_owned(found[kinds.CONFIG_MAP], uid)),
        other,
    )


async def carry_out(
    actions: Iterable[Action],
    live: Mapping[str, Any],
    means: Means,
    *,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Do what a plan says, in its order. Raises `NotLeading`, or the first `KubeError`.

    `about` is what Events are about, if not the object itself.
    """
    namespace = live["metadata"]["namespace"]
    logger = log.bind(owner=f"{live['kind']}/{namespace}/{live['metadata']['name']}")
    for action in actions:
        if not means.leads():
            raise NotLeading("this operator leads no more")
        match action:
            case ApplyObject(manifest) if manifest["kind"] in ("Job", "PersistentVolumeClaim"):
                # What is in them cannot be changed: whoever made one of that name made the same.
                try:
                    await means.client.create(manifest)
                except AlreadyExists:
                    continue
                logger.info("made", object=f"{manifest['kind']}/{manifest['metadata']['name']}")
            case ApplyObject(manifest):
                await means.client.apply(dict(manifest))
            case DeleteObject(ref, why):
                kind = kind_named(ref.api_version, ref.kind)
                try:
                    await means.client.delete(kind, ref.name, namespace, uid=ref.uid)
                except Conflict:
                    continue  # another one of that name by now
                logger.info("deleted", object=f"{ref.kind}/{ref.name}", reason=why)
            case EmitEvent():
                await means.events.emit(about or live, action.reason, action.message, warning=action.warning)


async def settle(
    kind: Kind,
    key: Key,
    live: Object,
    plan: JobPlan,
    means: Means,
    on_status: Callable[[Key, Mapping[str, Any]], None],
) -> None:
    """Carry out a plan and write its status. Raises as `carry_out`.

    The status is written all the same when an action fails: it says what is going to be done.
    """
    failure: KubeError | None = None
    try:
        await carry_out(plan.actions, live, means)
    except KubeError as error:
        failure = error
    await write_status(kind, live, plan.status, means)
    on_status(key, plan.status)
    if failure is not None:
        raise failure


def pause(plan: JobPlan, resync_seconds: float, randomness: random.Random) -> float:
    """Seconds until the next reconcile."""
    return min(resync_seconds * (1 - RESYNC_SPREAD * randomness.random()), plan.requeue_seconds)


def read_or_problems(
    reader: Callable[[dict[str, Any]], Manifest], live: Mapping[str, Any]
) -> tuple[Manifest | None, tuple[Problem, ...]]:
    """The manifest of an object, or what is wrong with it."""
    try:
        return reader(dict(live)), ()
    except ManifestError as error:
        return None, tuple(error.problems)


async def set_of(live: Mapping[str, Any], means: Means) -> Object | None:
    """The BrokerSet that an object names; None when there is none. Raises `NotOurs` and `KubeError`."""
    name = str(part(part(live, "spec"), "brokerSetRef").get("name") or "")
    if not name:
        return None
    try:
        found = await means.client.get(kinds.BROKER_SET, name, live["metadata"]["namespace"])
    except NotFound:
        return None
    ensure_ours(found, means)
    return found


def placement_of(manifest: BrokerSet) -> PodTemplate:
    """Where the pods of a set may run."""
    try:
        return PodTemplate.model_validate(manifest.spec.pod_template)
    except ValidationError:
        return PodTemplate()


def set_invalid(name: str) -> tuple[str, str]:
    """What is said when the set's manifest is invalid."""
    return reasons.SET_INVALID, f"the BrokerSet {name} is invalid; see its condition Ready"


def meta_of(live: Mapping[str, Any]) -> Meta:
    """What the API server says of an object itself."""
    metadata = live["metadata"]
    return Meta(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 1),
        annotations=dict(metadata.get("annotations") or {}),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def _owned(found: Iterable[Object], uid: str) -> list[Object]:
    return [
        item
        for item in found
        if any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or ())
    ]


def _by_name(found: Iterable[Object]) -> dict[str, Object]:
    return {str(item["metadata"]["name"]): item for item in found}
