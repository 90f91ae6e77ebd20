"""What StoreAudits and StoreMigrations have in common: reading their Jobs, carrying out a plan."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from brokerset_kube import kinds
from brokerset_kube.client import Object
from brokerset_kube.errors import AlreadyExists, Conflict, KubeError
from brokerset_kube.kinds import Kind, kind_named
from brokerset_operator.apply import Means, NotLeading
from brokerset_operator.model.actions import ApplyObject, DeleteObject, EmitEvent
from brokerset_operator.model.observed import Meta
from brokerset_operator.observe import first_of
from brokerset_operator.store_jobs import labels

log = structlog.get_logger(__name__)

FURTHER: Final = (kinds.SERVICE_ACCOUNT, kinds.ROLE_BINDING)
"""What executors take besides ConfigMaps."""

Action = ApplyObject | DeleteObject | EmitEvent


@dataclass(frozen=True, slots=True)
class Belongings:
    """Everything that belongs to one StoreAudit or StoreMigration, by name."""

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
