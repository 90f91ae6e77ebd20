"""What a decision about one BrokerSet rests on, read at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient, Object
from brokerset_kube.errors import Forbidden, KubeError, NotFound
from brokerset_kube.kinds import Kind
from brokerset_operator.brokers_view import broker_addresses, observe_drain, observe_troubles, settings_at
from brokerset_operator.certificates_view import observe_certificates
from brokerset_operator.connecting import Connecting
from brokerset_operator.controllers_view import (
    ControllersView,
    controller_addresses,
    controllers_of,
    own_groups,
    query_controllers,
)
from brokerset_operator.ledger_view import Member, elects_itself, members_of, query_groups
from brokerset_operator.member_passwords import observe_passwords
from brokerset_operator.model import names
from brokerset_operator.model.observed import Drain, Meta, Observed, Operator
from brokerset_operator.model.password_rotation import concerns
from brokerset_operator.peers_view import observe_peers
from brokerset_operator.plan.objects import items, part, seconds, text
from brokerset_operator.plan.workflow import read_workflow
from brokerset_operator.resources.set_facts import uid_of_data
from brokerset_operator.set_signing import SetSigning, signing_of
from brokerset_operator.set_trust import trust_in
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_runtime.clock import Clock
from brokerset_spec.manifest import BrokerSet, ManifestError, Problem, read_manifest

log = structlog.get_logger(__name__)

CLUSTER_SECONDS: Final = 300.0
"""How long facts about the whole cluster are believed: its kinds, storage classes, refused rights."""

STORAGE_CLASSES_MAX: Final = 256
"""Storage classes that are remembered; all are forgotten when there are more."""

NODES_MAX: Final = 5000
"""Nodes whose addresses are remembered; all are forgotten when there are more."""

DRAINS_MAX: Final = 8
"""Groups that are asked in one reconcile whether they are drained; the highest index goes first."""

LISTED: Final[Mapping[str, Kind]] = {
    "stateful_sets": kinds.STATEFUL_SET,
    "pods": kinds.POD,
    "claims": kinds.CLAIM,
    "services": kinds.SERVICE,
    "endpoint_slices": kinds.ENDPOINT_SLICE,
    "config_maps": kinds.CONFIG_MAP,
}
"""Kinds that have a field of their own in `Observed`."""

OTHERS: Final = (
    kinds.SERVICE_ACCOUNT,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    kinds.DISRUPTION_BUDGET,
    kinds.NETWORK_POLICY,
)
"""Further kinds that a set is made of; the optional ones come on top where they exist."""


@dataclass(slots=True)
class ClusterFacts:
    """What is the same for all sets, asked for rarely; one for the process."""

    client: KubeClient
    clock: Clock
    _kinds: tuple[Kind, ...] = ()
    _kinds_at: float | None = None
    _classes: dict[str, Object | None] = field(default_factory=dict)
    _classes_at: float = 0.0
    _addresses: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    _addresses_at: float = 0.0
    _refused: dict[str, float] = field(default_factory=dict)

    async def optional_kinds(self) -> tuple[Kind, ...]:
        """The optional kinds that the cluster has."""
        now = self.clock.monotonic()
        if self._kinds_at is None or now - self._kinds_at >= CLUSTER_SECONDS:
            found = []
            for kind in kinds.OPTIONAL:
                if await self.client.serves(kind):
                    found.append(kind)
            self._kinds, self._kinds_at = tuple(found), now
        return self._kinds

    def forget_kinds(self) -> None:
        """Ask again which optional kinds there are: one of them seems to be gone."""
        self._kinds_at = None

    async def storage_class(self, name: str) -> Object | None:
        """A storage class; None if there is none, or if we may not read it."""
        now = self.clock.monotonic()
        if now - self._classes_at >= CLUSTER_SECONDS or len(self._classes) > STORAGE_CLASSES_MAX:
            self._classes, self._classes_at = {}, now
        if name not in self._classes:
            self._classes[name] = await self._get(kinds.STORAGE_CLASS, name)
        return self._classes[name]

    async def node(self, name: str) -> Object | None:
        """A node; None if we may not read it. Raises `NotFound` if there is none."""
        return await self._get(kinds.NODE, name, missing_is_none=False)

    async def node_addresses(self, name: str) -> tuple[tuple[str, str], ...]:
        """Type and address of each address of a node; none if it is not there, or may not be read."""
        now = self.clock.monotonic()
        if now - self._addresses_at >= CLUSTER_SECONDS or len(self._addresses) > NODES_MAX:
            self._addresses, self._addresses_at = {}, now
        if name not in self._addresses:
            found = await self._get(kinds.NODE, name)
            listed = items(part(found or {}, "status"), "addresses")
            self._addresses[name] = tuple((str(each["type"]), str(each["address"])) for each in listed)
        return self._addresses[name]

    async def _get(self, kind: Kind, name: str, *, missing_is_none: bool = True) -> Object | None:
        since = self._refused.get(kind.plural)
        if since is not None and self.clock.monotonic() - since < CLUSTER_SECONDS:
            return None
        try:
            found = await self.client.get(kind, name)
        except NotFound:
            if missing_is_none:
                return None
            raise
        except Forbidden as error:
            # A namespaced installation has no rights in the whole cluster, and does without.
            if since is None:
                log.info(
                    "right is missing; going on without", reason=error.message, right=error.request.right
                )
            self._refused[kind.plural] = self.clock.monotonic()
            return None
        self._refused.pop(kind.plural, None)
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation, and what carrying out a plan needs besides."""

    observed: Observed
    live: Object
    """The BrokerSet as it was read."""

    controllers: tuple[str, ...] = ()
    """Addresses of the controllers that answered, the leader first."""

    view: ControllersView = field(default_factory=ControllersView)
    """Everything that they said."""

    asked: Mapping[int, str] = field(default_factory=dict)
    """Addresses of all controllers that were asked, by number."""

    brokers: Mapping[str, str] = field(default_factory=dict)
    """Addresses of all brokers that were asked for their settings, by pod."""

    members: tuple[Member, ...] | None = None
    """Members of DLedger groups that were asked; None for a set whose groups have controllers."""

    signing: SetSigning = field(default_factory=SetSigning)
    """What the set's Secret is good for."""


async def _anybody(live: Object) -> Object:
    return live


async def observe(
    client: KubeClient,
    facts: ClusterFacts,
    clock: Clock,
    *,
    namespace: str,
    name: str,
    installed: Operator,
    admit: Callable[[Object], Awaitable[Object]] = _anybody,
) -> Seen | None:
    """Read one set; None if it is not there. Raises a `KubeError` unless the API server tells everything.

    Controllers and brokers that do not answer are simply not in the result. `admit` is called with the
    BrokerSet before anything else is read; it may raise, or return it as it is after having been changed.
    """
    try:
        return await _observe(client, facts, clock, namespace, name, installed, admit)
    except* KubeError as group:
        problem = first_of(group)
        if group.subgroup(NotFound) is not None:
            facts.forget_kinds()  # a list is only missing when its kind is
    raise problem


def optional_names(found: Iterable[Kind]) -> frozenset[str]:
    """Kinds as `Operator.api_kinds` has them."""
    return frozenset(f"{kind.group}/{kind.kind}" for kind in found)


def first_of(group: BaseExceptionGroup[KubeError]) -> KubeError:
    """One of several errors that happened at the same time; the others mostly say the same."""
    error = group.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


async def _observe(
    client: KubeClient,
    facts: ClusterFacts,
    clock: Clock,
    namespace: str,
    name: str,
    installed: Operator,
    admit: Callable[[Object], Awaitable[Object]],
) -> Seen | None:
    try:
        live = await client.get(kinds.BROKER_SET, name, namespace)
    except NotFound:
        return None
    live = await admit(live)
    optional = await facts.optional_kinds()
    others = (*OTHERS, *optional)
    selector = f"{names.SET_LABEL}={name}"
    serving = controllers_of(live)
    async with asyncio.TaskGroup() as group:
        others_pods = None
        if serving != name:
            shared = ",".join(
                f"{key}={value}" for key, value in names.selector(serving, "controller").items()
            )
            others_pods = group.create_task(_by_name(client, kinds.POD, namespace, shared))
        named = {
            field_name: group.create_task(_by_name(client, kind, namespace, selector))
            for field_name, kind in LISTED.items()
        }
        trusting = group.create_task(trust_in(client, live))
        further = {
            kind.kind: group.create_task(_by_name(client, kind, namespace, selector)) for kind in others
        }
    lists = {field_name: task.result() for field_name, task in named.items()}
    manifest, problems = _read(live)
    now = clock.now_ms() / 1000
    pods = lists["pods"]
    trust, authorities = trusting.result()
    # A set that goes over to another set's controllers still has its own, which are not asked any more.
    controllers = pods if others_pods is None else others_pods.result()
    signing = await signing_of(client, live, {**pods, **controllers}.values())
    connecting = Connecting(trust.towards({**pods, **controllers}), signing.sign)
    async with asyncio.TaskGroup() as group:
        asked = controller_addresses(controllers)
        observing = group.create_task(query_controllers(asked, connecting))
        members = members_of(live, pods) if elects_itself(live) else None
        telling = group.create_task(query_groups(members or (), connecting))
        asking = group.create_task(observe_troubles(pods, connecting))
        brokers = broker_addresses(pods)
        settings = group.create_task(settings_at(brokers, connecting))
        classes = group.create_task(_storage_classes(facts, lists["claims"], manifest))
        nodes = group.create_task(_nodes(facts, pods, now))
        keeping = group.create_task(observe_certificates(client, live, manifest, lists["config_maps"]))
        sharing = group.create_task(observe_peers(client, live, manifest, (pods, lists["stateful_sets"])))
        addresses = group.create_task(_node_addresses(facts, pods, manifest))
    view = observing.result()
    if members is not None:
        view = replace(view, groups=telling.result(), by_members=True)
    certificates, certificate = keeping.result()
    troubles = asking.result()
    stuck, missing = nodes.result()
    meta, status = _meta(live), live.get("status") or {}
    groups = view.groups
    if members is None:
        groups = own_groups(
            view.groups,
            names_of_own=_group_names(manifest, status),
            uids=(meta.uid, uid_of_data(meta.name, meta.uid, lists["claims"])),
        )
    observed = Observed(
        meta=meta,
        manifest=manifest,
        problems=problems,
        status=status,
        operator=replace(installed, api_kinds=optional_names(optional)),
        other={
            f"{kind}/{name}": item for kind, task in further.items() for name, item in task.result().items()
        }
        | ({} if certificate is None else {f"Certificate/{certificate['metadata']['name']}": certificate}),
        storage_classes=classes.result(),
        nodes=stuck,
        node_addresses=addresses.result(),
        missing_nodes=missing,
        controllers=view.controllers,
        groups=groups,
        conflicts={pod: trouble.text for pod, trouble in troubles.items() if trouble.refused},
        troubles={pod: str(trouble) for pod, trouble in troubles.items()},
        settings=settings.result(),
        drains=await _drains(going(manifest, status, groups), connecting),
        tls_trust_problem=trust.problem,
        certificates=certificates,
        access_problem=signing.problem,
        authorities=authorities.text,
        peers=sharing.result(),
        now=now,
        stateful_sets=lists["stateful_sets"],
        pods=pods,
        claims=lists["claims"],
        services=lists["services"],
        endpoint_slices=lists["endpoint_slices"],
        config_maps=lists["config_maps"],
    )
    if manifest is not None and concerns(observed):
        observed = replace(observed, passwords=await observe_passwords(signing, view, brokers))
    return Seen(observed, live, view.addresses, view, asked, brokers, members, signing)


def _meta(live: Mapping[str, Any]) -> Meta:
    metadata = live["metadata"]
    return Meta(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 1),
        annotations=dict(metadata.get("annotations") or {}),
        deleting=bool(metadata.get("deletionTimestamp")),
        created=seconds(metadata.get("creationTimestamp")),
    )


def _read(live: Mapping[str, Any]) -> tuple[BrokerSet | None, tuple[Problem, ...]]:
    try:
        return read_manifest(dict(live)), ()
    except ManifestError as error:
        return None, tuple(error.problems)


def _group_names(manifest: BrokerSet | None, status: Mapping[str, Any]) -> frozenset[str]:
    """Broker names of groups that a set has, or had as far as it remembers."""
    remembered = (text(one.get("name")) for one in items(part(status, "workflow"), "groups"))
    wanted = manifest.broker_names if manifest is not None else ()
    return frozenset(wanted) | {name for name in remembered if name is not None}


async def _by_name(client: KubeClient, kind: Kind, namespace: str, selector: str) -> dict[str, Object]:
    listing = await client.list(kind, namespace, labels=selector)
    return {str(item["metadata"]["name"]): item for item in listing.items}


async def _storage_classes(
    facts: ClusterFacts, claims: Mapping[str, Object], manifest: BrokerSet | None
) -> dict[str, Object]:
    used = {(claim.get("spec") or {}).get("storageClassName") for claim in claims.values()}
    if manifest is not None:
        used.add(manifest.spec.storage.class_name)
    found: dict[str, Object] = {}
    for name in sorted(name for name in used if name):
        storage_class = await facts.storage_class(name)
        if storage_class is not None:
            found[name] = storage_class
    return found


async def _nodes(
    facts: ClusterFacts, pods: Mapping[str, Object], now: float
) -> tuple[dict[str, Object], frozenset[str]]:
    """Nodes of pods that should have ended by now, and which of these nodes are not there."""
    asked = {
        str(pod["spec"]["nodeName"])
        for pod in pods.values()
        if (gone_by := seconds(pod["metadata"].get("deletionTimestamp"))) is not None
        and gone_by < now
        and (pod.get("spec") or {}).get("nodeName")
    }
    found: dict[str, Object] = {}
    missing = set()
    for name in sorted(asked):
        try:
            node = await facts.node(name)
        except NotFound:
            missing.add(name)
            continue
        if node is not None:
            found[name] = node
    return found, frozenset(missing)


async def _node_addresses(
    facts: ClusterFacts, pods: Mapping[str, Object], manifest: BrokerSet | None
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Addresses of the nodes that the set's pods are on, if clients outside are told them."""
    external = manifest.spec.external if manifest is not None else None
    if external is None or external.type != "NodePort":
        return {}
    used = {text(part(pod, "spec").get("nodeName")) for pod in pods.values()}
    return {name: await facts.node_addresses(name) for name in sorted(filter(None, used))}


def going(
    manifest: BrokerSet | None, status: Mapping[str, Any], groups: Mapping[str, GroupState]
) -> list[GroupState]:
    """Return the groups that go next: still there, not in the manifest, the highest index first, not many.

    Controllers know groups for good; which of them have brokers is remembered in the status.
    """
    wanted = set(manifest.broker_names) if manifest is not None else set(groups)
    there = sorted(read_workflow(status).groups.items(), reverse=True)
    names_there = [work.name for _, work in there if work.replicas and work.name not in wanted]
    return [groups[name] for name in names_there if name in groups][:DRAINS_MAX]


async def _drains(leaving: list[GroupState], connecting: Connecting) -> dict[str, Drain]:
    """What is left to read in groups."""
    observed = await asyncio.gather(*(observe_drain(state, connecting) for state in leaving))
    return {
        state.broker_name: drain for state, drain in zip(leaving, observed, strict=True) if drain is not None
    }
