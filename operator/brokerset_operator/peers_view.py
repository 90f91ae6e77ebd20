"""What is read of the sets with which a set shares controllers: stages of their pods, and whom they trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient, Object
from brokerset_kube.errors import NotFound
from brokerset_operator.controllers_view import controllers_of
from brokerset_operator.model import access_stages, names, tls_stages
from brokerset_operator.model.peers import PeerSet
from brokerset_operator.plan.objects import part
from brokerset_operator.set_trust import authorities_of
from brokerset_spec.manifest import BrokerSet, ManifestError, read_manifest


async def observe_peers(
    client: KubeClient, live: Object, manifest: BrokerSet | None, objects: Sequence[Mapping[str, Object]]
) -> tuple[PeerSet, ...]:
    """The set whose controllers serve this one, or those that use this one's controllers.

    `objects` are the set's own pods and StatefulSets: one that knows neither TLS nor users, and never has,
    asks for nobody. Raises a `KubeError` if the API server does not tell.
    """
    name, namespace = str(live["metadata"]["name"]), live["metadata"]["namespace"]
    serving = controllers_of(live)
    if serving != name:
        try:
            found = await client.get(kinds.BROKER_SET, serving, namespace)
        except NotFound:
            return ()
        return (await _peer(client, found, "controller"),)
    if manifest is None or not (_keeps_others_out(manifest) or any(map(_in_a_stage, objects))):
        return ()
    listing = await client.list(kinds.BROKER_SET, namespace)
    using = [
        each
        for each in listing.items
        if each["metadata"]["name"] != name
        and controllers_of(each) == name
        and not each["metadata"].get("deletionTimestamp")
    ]
    ordered = sorted(using, key=lambda each: str(each["metadata"]["name"]))
    return tuple([await _peer(client, each, "broker") for each in ordered])


async def _peer(client: KubeClient, live: Object, component: str) -> PeerSet:
    name, namespace = str(live["metadata"]["name"]), live["metadata"]["namespace"]
    selector = ",".join(f"{key}={value}" for key, value in names.selector(name, component).items())
    pods = await client.list(kinds.POD, namespace, labels=selector)
    sets = await client.list(kinds.STATEFUL_SET, namespace, labels=selector)
    templates = [part(part(each, "spec"), "template") for each in sets.items]
    try:
        manifest = read_manifest(dict(live))
    except ManifestError:
        manifest = None
    known = await authorities_of(client, live)
    return PeerSet(
        name=name,
        manifest=manifest,
        pods=tuple(part(each, "metadata") for each in (*pods.items, *templates)),
        authorities=known.text,
        trust_problem=known.problem,
    )


def _keeps_others_out(manifest: BrokerSet) -> bool:
    return bool(manifest.spec.tls.sources) or manifest.spec.acl.secret_name is not None


def _in_a_stage(objects: Mapping[str, Object]) -> bool:
    """Whether one of some pods, or a template, does something about TLS or users."""
    found = (
        part(each, "metadata") if "template" not in part(each, "spec") else _of_template(each)
        for each in objects.values()
    )
    wanted = {tls_stages.ANNOTATION, access_stages.ANNOTATION}
    return any(wanted & part(metadata, "annotations").keys() for metadata in found)


def _of_template(stateful_set: Object) -> Mapping[str, Any]:
    return part(part(part(stateful_set, "spec"), "template"), "metadata")
