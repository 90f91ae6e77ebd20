"""What Topics and Subjects have in common: asking about the groups of their set, and their finalizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokerset_kube import kinds
from brokerset_kube.kinds import Kind
from brokerset_operator.apply import Means, NotLeading
from brokerset_operator.connecting import Connecting
from brokerset_operator.controllers_view import (
    ControllersView,
    controller_addresses,
    controllers_of,
    query_controllers,
)
from brokerset_operator.ledger_view import elects_itself, query_members
from brokerset_operator.model import names
from brokerset_operator.resources.set_facts import uid_of_data
from brokerset_operator.set_signing import signing_of
from brokerset_operator.set_trust import trust_in
from brokerset_protocol.bodies.controllers import GroupState


async def query_groups(broker_set: Mapping[str, Any], means: Means) -> ControllersView:
    """Ask who tells of a set's groups: the controllers that serve it, or the members of its DLedgers."""
    metadata, by_members = broker_set["metadata"], elects_itself(broker_set)
    chosen = (
        {names.SET_LABEL: metadata["name"]}
        if by_members
        else names.selector(controllers_of(broker_set), "controller")
    )
    selector = ",".join(f"{key}={value}" for key, value in chosen.items())
    listing = await means.client.list(kinds.POD, metadata["namespace"], labels=selector)
    pods = {str(pod["metadata"]["name"]): pod for pod in listing.items}
    connecting = await connecting_to(broker_set, pods, means)
    if by_members:
        return await query_members(broker_set, pods, connecting)
    return await query_controllers(controller_addresses(pods), connecting)


async def connecting_to(
    broker_set: Mapping[str, Any], pods: Mapping[str, Mapping[str, Any]], means: Means
) -> Connecting:
    """How to reach the pods of a set, `pods` being those that are asked; who cannot sign is refused there."""
    tls = (await trust_in(means.client, broker_set))[0].towards(pods)
    return Connecting(tls, (await signing_of(means.client, broker_set, pods.values())).sign)


async def foreign_groups(
    broker_set: Mapping[str, Any], groups: Mapping[str, GroupState], means: Means
) -> list[str]:
    """Those of the groups that belong to another set, though some may be called like this one's."""
    uid = broker_set["metadata"]["uid"]
    doubtful = {name: state.owner for name, state in groups.items() if state.owner not in (None, uid)}
    if not doubtful:
        return []
    uids = await uids_of(broker_set, means)
    return [name for name, owner in doubtful.items() if owner not in uids]


async def uids_of(broker_set: Mapping[str, Any], means: Means) -> tuple[str, str]:
    """UIDs that a set's groups may be bound to: its own, and that of the set which made its volumes."""
    metadata = broker_set["metadata"]
    listing = await means.client.list(
        kinds.CLAIM, metadata["namespace"], labels=f"{names.SET_LABEL}={metadata['name']}"
    )
    claims = {str(claim["metadata"]["name"]): claim for claim in listing.items}
    return metadata["uid"], uid_of_data(metadata["name"], metadata["uid"], claims)


def has_finalizer(live: Mapping[str, Any], finalizer: str) -> bool:
    """Whether an object waits for us when it is deleted."""
    return finalizer in (live["metadata"].get("finalizers") or ())


async def set_finalizer(
    kind: Kind, live: Mapping[str, Any], finalizer: str, wanted: bool, means: Means
) -> Mapping[str, Any]:
    """Let an object wait for us when it is deleted, or not any more; returns it as it is then."""
    if not means.leads():
        raise NotLeading("this operator leads no more")
    metadata = live["metadata"]
    others = [name for name in metadata.get("finalizers") or () if name != finalizer]
    return await means.client.merge_patch(
        kind,
        metadata["name"],
        metadata["namespace"],
        {"metadata": {"finalizers": [*others, finalizer] if wanted else others}},
        resource_version=metadata["resourceVersion"],
    )
