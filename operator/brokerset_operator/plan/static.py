"""Rule 2: every object is there as it must be now, and none that is no longer wanted.

An object is sent only when that changes something: when what is there lacks a part of what is wanted, because
it is new or somebody else has changed it, or was sent from another manifest (a field that was taken out is
seen by that alone). What the API server adds by default is no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from brokerset_kube.patches import covers, digest
from brokerset_operator.model import names
from brokerset_operator.model.actions import ApplyObject, DeleteObject, ObjectRef
from brokerset_operator.model.observed import Object, Observed
from brokerset_operator.plan.facts import Facts
from brokerset_operator.plan.objects import items, owned_by, part
from brokerset_operator.plan.steps import At, Stage, Steps
from brokerset_operator.plan.volumes import keep_volumes
from brokerset_operator.resources.external_access import closed, is_open
from brokerset_operator.resources.set_facts import API_VERSIONS

SENT_ANNOTATION: Final = f"{names.DOMAIN}/sent"
"""Hash of the manifest that an object was last sent from."""

OTHERS: Final = frozenset({"PodMonitor", "PrometheusRule", "Certificate"})
"""Kinds of other projects, which may refuse ours: nothing that brokers need waits for them."""


def keep_objects(facts: Facts) -> Steps:
    """Let volumes grow, send what differs, delete what is too much.

    What may be refused goes last: objects of another project's kinds, and ways in from outside.
    """
    observed = facts.observed
    held = yield from keep_volumes(facts, stateful_sets(facts.objects))
    there = dict(_there(observed))
    for manifest in facts.objects:
        kind, name = str(manifest["kind"]), str(part(manifest, "metadata")["name"])
        if kind == "StatefulSet" and name in held:
            continue
        found = there.get((kind, name))
        send = to_send(manifest, found)
        if send is None:
            continue
        if not (kind in OTHERS or is_open(manifest)):
            yield send
            continue
        if found is None and kind not in OTHERS and (inner := closed(manifest)) is not None:
            yield ApplyObject(with_mark(inner))
        yield At(Stage.REFUSABLE, send)
    # StatefulSets, and claims, are never deleted by this.
    yield from delete_unwanted(facts, API_VERSIONS.keys() - {"StatefulSet"})


def delete_unwanted(facts: Facts, of_kinds: Collection[str]) -> Steps:
    """Delete the set's own objects of some kinds that it is not to have."""
    wanted = {(str(each["kind"]), str(part(each, "metadata")["name"])) for each in facts.objects}
    for (kind, name), found in _there(facts.observed):
        if kind in of_kinds and (kind, name) not in wanted and _may_go(facts, found):
            uid = part(found, "metadata").get("uid")
            ref = ObjectRef(
                str(found.get("apiVersion") or API_VERSIONS[kind]), kind, name, str(uid) if uid else None
            )
            yield DeleteObject(ref, "the manifest no longer asks for it")


def stateful_sets(objects: Iterable[Object]) -> dict[str, Object]:
    """Return the StatefulSets among objects, by name."""
    return {str(each["metadata"]["name"]): each for each in objects if each["kind"] == "StatefulSet"}


def to_send(manifest: Mapping[str, Any], found: Object | None) -> ApplyObject | None:
    """Return what makes an object as it is wanted; None when it is."""
    marked = with_mark(manifest)
    return None if is_as_sent(found, marked) else ApplyObject(marked)


def with_mark(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest that carries the hash of itself."""
    meta = part(manifest, "metadata")
    annotations = {**part(meta, "annotations"), SENT_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**meta, "annotations": annotations}}


def is_as_sent(found: Object | None, marked: Mapping[str, Any]) -> bool:
    """Return whether all of a marked manifest is there; more may be, by defaults and other writers."""
    # An object in a list of the API has no kind of its own.
    return found is not None and covers(
        found, {key: value for key, value in marked.items() if key not in ("apiVersion", "kind")}
    )


def _there(observed: Observed) -> Iterator[tuple[tuple[str, str], Object]]:
    tables: tuple[tuple[str, Mapping[str, Object]], ...] = (
        ("StatefulSet", observed.stateful_sets),
        ("Service", observed.services),
        ("EndpointSlice", observed.endpoint_slices),
        ("ConfigMap", observed.config_maps),
    )
    for kind, table in tables:
        for name in sorted(table):
            yield (kind, name), table[name]
    for key in sorted(observed.other):
        kind, _, name = key.partition("/")
        yield (kind, name), observed.other[key]


def _may_go(facts: Facts, found: Object) -> bool:
    """Whether an object is our own, and nobody needs it any more."""
    meta = part(found, "metadata")
    labels = part(meta, "labels")
    observed = facts.observed
    ours = labels.get("app.kubernetes.io/managed-by") == names.FIELD_MANAGER
    if not ours or not owned_by(found, observed.meta.uid) or meta.get("deletionTimestamp") is not None:
        return False
    if meta.get("name") == names.authority(observed.meta.name) and _is_mounted(observed, str(meta["name"])):
        return False
    group = labels.get(names.GROUP_LABEL)
    if group is not None and any(pod.startswith(f"{group}-") for pod in observed.pods):
        return False
    # A set that goes over to another set's controllers keeps its own until somebody removes them.
    return labels.get(names.COMPONENT_LABEL) != "controller" or facts.controllers.keeper is None


def _is_mounted(observed: Observed, config_map: str) -> bool:
    """Whether a pod has a ConfigMap as a volume: it could not be started again without it."""
    return any(
        part(volume, "configMap").get("name") == config_map
        for pod in observed.pods.values()
        for volume in items(part(pod, "spec"), "volumes")
    )
