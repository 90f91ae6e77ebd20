"""What is observed, put together: each pod with its broker, each group with its numbers, the controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import SwitchOver
from brokerset_operator.model.observed import Meta, Object, Observed
from brokerset_operator.plan.objects import items, kept_by_stateful_set, part, seconds, text
from brokerset_operator.plan.pods import Keeper, Pod, Template, read_keeper, read_pod
from brokerset_operator.plan.workflow import GroupWork, Workflow, read_workflow
from brokerset_operator.resources.set_facts import OWNER_UID, owner_uid_of
from brokerset_operator.resources.wanted import Shape
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_spec.manifest import BrokerSet

ALIVE: Final = "alive"
DEAD: Final = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One numbered broker of a group: its pod, and the replica that runs in it."""

    ordinal: int
    pod: Pod | None
    replica: ReplicaState | None
    """The living replica at the pod's address; None while the pod's broker has not registered."""

    in_sync: bool
    fenced: bool
    master: bool
    remembered_id: int | None
    """Id on its volume, as last seen."""

    @property
    def broker_id(self) -> int | None:
        """Its id, if it is known."""
        return self.replica.broker_id if self.replica is not None else self.remembered_id

    @property
    def settled(self) -> bool:
        """Whether its pod runs, undisturbed, and its broker is alive and in sync."""
        return self.replica is not None and self.in_sync and self.pod is not None and not self.pod.terminating

    @property
    def can_lead(self) -> bool:
        """Whether it can become master at once."""
        ready = self.settled and not self.fenced and not self.master
        return ready and self.replica is not None and not self.replica.stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A broker group that the manifest wants, or that is still there."""

    index: int
    name: str
    """Broker name."""

    resource: str
    """Name of its StatefulSet and of most of its objects."""

    wanted: int
    """How many brokers the manifest wants; 0 for a group that is to go."""

    keeper: Keeper | None
    state: GroupState | None
    """As the leading controller says; None while nobody says it, or for a group that is not known yet."""

    brokers: Mapping[int, Broker]
    """By ordinal: those with a pod, and those below `current`."""

    claims: Mapping[int, Object]
    """By ordinal."""

    work: GroupWork
    known: bool
    """Whether the work was written down in an earlier reconcile."""

    foreign: str | None
    """Owner of the group, if that is another BrokerSet."""

    conflicts: Mapping[str, str]
    """Of its pods, see `Observed.conflicts`."""

    @property
    def dropped(self) -> bool:
        """Whether the manifest no longer has it."""
        return self.wanted == 0

    @property
    def current(self) -> int:
        """How many pods the StatefulSet may have by now; what was asked for lately counts, seen or not."""
        seen = self.keeper.replicas if self.keeper is not None else 0
        return max(seen, self.work.replicas)

    @property
    def master(self) -> Broker | None:
        """The living master, if its pod is known."""
        return next((broker for broker in self.brokers.values() if broker.master), None)

    @property
    def living_in_sync(self) -> frozenset[int]:
        """Ids that are alive and in sync, fenced ones left out."""
        if self.state is None:
            return frozenset()
        living = {each.broker_id for each in self.state.replicas if each.standing == ALIVE}
        return frozenset(self.state.sync_state_set) & living - frozenset(self.state.fenced)

    @property
    def virgin(self) -> bool:
        """Whether it never had a master, so nobody ever was told that it keeps a message."""
        led = self.state is not None and (self.state.master_epoch > 0 or bool(self.state.sync_state_set))
        return not self.work.led and not led

    def successor(self, limit: int, *, without: int | None = None) -> Broker | None:
        """The best that can take over: wanted, then with the longest log, then the first.

        Only those with a lower ordinal than `limit` count, and not the one `without`.
        """
        found = [b for n, b in self.brokers.items() if n < limit and n != without and b.can_lead]
        return min(
            found,
            key=lambda b: (
                b.ordinal >= self.wanted,
                -(b.replica.max_offset or 0) if b.replica is not None else 0,
                b.ordinal,
            ),
            default=None,
        )

    def switch_over(self, to: Broker, why: str) -> SwitchOver:
        """Let a broker of a group that has a master take over, in the epoch that this was decided on."""
        assert self.state is not None, "its master is known"
        return SwitchOver(self.name, to.broker_id, self.state.master_epoch, why)

    def named_in(self, annotation: str | None) -> bool:
        """Whether an annotation's list names it, by its broker name or its StatefulSet's."""
        listed = [part.strip() for part in (annotation or "").split(",")]
        return self.name in listed or self.resource in listed

    @property
    def contested(self) -> str | None:
        """Why nothing of it may be touched: data that belongs to somebody else, or is there twice."""
        if self.foreign is not None:
            return f"the group {self.name} belongs to the BrokerSet with UID {self.foreign}"
        if self.conflicts:
            pod, why = min(self.conflicts.items())
            return f"{pod}: {why}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFacts:
    """The set's controllers."""

    own: bool
    """Whether the set runs them itself."""

    wanted: int
    keeper: Keeper | None
    first: int
    """How many the set was made with; 0 when that is not remembered."""

    pods: Mapping[int, Pod]
    formed: bool
    """Whether they have ever led."""

    claims: Mapping[int, str]
    """Names of their claims, by number."""

    retained: Mapping[int, str]
    """Of these, those that a deleted set of the same name left."""

    blank: bool
    """Whether each of them was found to have no data."""

    leader: int | None
    voters: frozenset[int]
    members: Mapping[int, bool]
    answering: frozenset[int]
    """Those that answered and have data."""

    waiting: frozenset[int]
    """Those that answered that they have none, and wait to be added."""

    caught_up: frozenset[int]

    last_known: frozenset[int]
    """Who votes, as the one with the longest log knows it, led or not."""

    @property
    def current(self) -> int:
        """How many pods the StatefulSet has."""
        return self.keeper.replicas if self.keeper is not None else 0

    @property
    def joins(self) -> bool:
        """Whether one without data waits until it is added, for it must not vote with forgotten votes."""
        return self.formed or (bool(self.retained) and not self.blank)

    @property
    def first_pods(self) -> int:
        """How many pods there are until they have led for the first time.

        Volumes of a deleted set know their members: as many start as may be needed for a majority of these.
        """
        if self.joins and self.retained:
            return max(self.current, 1 + max(self.claims))
        return self.first or self.current or self.wanted

    @property
    def led(self) -> bool:
        """Whether what they say is agreed; nothing is disturbed otherwise."""
        return self.leader is not None

    @property
    def voting(self) -> frozenset[int]:
        """Voters that answer and have data."""
        return self.voters & self.answering

    @property
    def whole(self) -> bool:
        """Whether all that are wanted vote, answer and have everything, and nobody else is a member."""
        everyone = frozenset(range(self.wanted))
        return (
            self.led
            and frozenset(self.members) == everyone == self.voters
            and everyone <= self.answering
            and everyone <= self.caught_up | {self.leader}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it; only for a valid manifest."""

    observed: Observed
    manifest: BrokerSet
    workflow: Workflow
    """As an earlier reconcile has written it."""

    controllers: ControllerFacts
    groups: Mapping[int, GroupFacts]
    """By index, ascending."""

    memory: Workflow
    """What is to be remembered, as far as it is decided."""

    shape: Shape | None = None
    """What is to be there now, as soon as it is decided."""

    objects: tuple[Object, ...] = ()
    """What the set of that shape consists of."""

    templates: Mapping[str, Template] = field(default_factory=dict)
    """The newest pod templates by StatefulSet."""

    @property
    def meta(self) -> Meta:
        """Of the BrokerSet."""
        return self.observed.meta

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.observed.now

    @property
    def led(self) -> bool:
        """Whether what is known of groups is agreed: by controllers, or by the members of each DLedger."""
        return self.manifest.is_dledger or self.controllers.led

    @property
    def name_servers(self) -> Mapping[int, Pod]:
        """Pods that serve names: the controllers', or those of name servers that run by themselves."""
        return _pods_of(self.observed, names.namesrv_set(self.meta.name)) or self.controllers.pods

    def work_of(self, group: GroupFacts) -> GroupWork:
        """What is remembered of a group, with what is decided by now."""
        return self.memory.groups.get(group.index, group.work)

    def group_named(self, name: str) -> GroupFacts | None:
        """The group with this broker name, or whose StatefulSet has this name."""
        return next((g for g in self.groups.values() if name in (g.name, g.resource)), None)


def gather(observed: Observed) -> Facts:
    """Put together what is observed; it must have a valid manifest."""
    manifest = observed.manifest
    assert manifest is not None, "an invalid manifest is not carried out"
    workflow = read_workflow(observed.status)
    made = (index for index, work in workflow.groups.items() if work.replicas)
    indices = sorted({*range(len(manifest.broker_names)), *_indices_there(observed), *made})
    return Facts(
        observed=observed,
        manifest=manifest,
        workflow=workflow,
        memory=workflow,
        controllers=_controllers(observed, manifest, workflow),
        groups={index: _group(observed, manifest, workflow, index) for index in indices},
    )


def renamed(facts: Facts) -> list[tuple[int, str, str]]:
    """Return index, old and new name of groups that the manifest calls otherwise than they were made."""
    return [
        (index, work.name, name)
        for index, name in enumerate(facts.manifest.broker_names)
        if (work := facts.workflow.groups.get(index)) is not None and work.name != name
    ]


def _indices_there(observed: Observed) -> Iterable[int]:
    """Indices of groups that have a StatefulSet, or a pod: its StatefulSet may be gone without it."""
    prefix = f"{observed.meta.name}-"
    for name in (*observed.stateful_sets, *(pod.rpartition("-")[0] for pod in observed.pods)):
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isdecimal():
            yield int(number)


def _group(observed: Observed, manifest: BrokerSet, workflow: Workflow, index: int) -> GroupFacts:
    listed = manifest.broker_names
    remembered = workflow.groups.get(index)
    resource = names.group_set(observed.meta.name, index)
    name = listed[index] if index < len(listed) else remembered.name if remembered else resource
    wanted = manifest.spec.replicas if index < len(listed) else 0
    work = remembered or GroupWork(name=name, expected=manifest.spec.replicas, replicas=0)
    found = observed.stateful_sets.get(resource)
    state = observed.groups.get(name)
    pods = _pods_of(observed, resource)
    seen = read_keeper(found) if found is not None else None
    ordinals = sorted({*pods, *range(max(seen.replicas if seen else 0, work.replicas))})
    owner = state.owner if state is not None else None
    foreign = (
        owner if owner is not None and owner not in (observed.meta.uid, owner_uid_of(observed)) else None
    )
    return GroupFacts(
        index=index,
        name=name,
        resource=resource,
        wanted=wanted,
        keeper=seen,
        state=state,
        brokers={n: _broker(n, pods.get(n), state, work) for n in ordinals},
        claims=_claims_of(observed, resource),
        work=work,
        known=remembered is not None,
        foreign=foreign,
        conflicts={pod.name: why for pod in pods.values() if (why := observed.conflicts.get(pod.name))},
    )


def _broker(ordinal: int, pod: Pod | None, state: GroupState | None, work: GroupWork) -> Broker:
    replica = None
    if state is not None and pod is not None and pod.ip is not None:
        here = [r for r in state.replicas if r.standing == ALIVE and _host(r.address) == pod.ip]
        # Two living replicas cannot be at one address: one of them has just moved, and is told of too early.
        replica = here[0] if len(here) == 1 else None
    broker_id = replica.broker_id if replica is not None else work.ids.get(ordinal)
    return Broker(
        ordinal=ordinal,
        pod=pod,
        replica=replica,
        in_sync=state is not None and broker_id in state.sync_state_set,
        fenced=state is not None and broker_id in state.fenced,
        master=state is not None and replica is not None and replica.broker_id == state.master_id,
        remembered_id=work.ids.get(ordinal),
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _pods_of(observed: Observed, resource: str) -> dict[int, Pod]:
    found = {}
    for name in sorted(observed.pods):
        pod = read_pod(observed.pods[name])
        if pod is not None and name == f"{resource}-{pod.ordinal}":
            found[pod.ordinal] = pod
    return dict(sorted(found.items()))


def _claims_of(observed: Observed, resource: str) -> dict[int, Object]:
    prefix = names.claim_of(f"{resource}-")
    found = {
        int(number): observed.claims[name]
        for name in observed.claims
        if name.startswith(prefix) and (number := name.removeprefix(prefix)).isdecimal()
    }
    return dict(sorted(found.items()))


def _controllers(observed: Observed, manifest: BrokerSet, workflow: Workflow) -> ControllerFacts:
    said = observed.controllers
    resource = names.controller_set(observed.meta.name)
    found = observed.stateful_sets.get(resource)
    own = manifest.spec.controllers.ref is None and manifest.controllers_wanted > 0
    pods = _pods_of(observed, resource) if own else {}
    ending = frozenset(number for number, pod in pods.items() if pod.terminating)
    claims = _claims_of(observed, resource)
    retained = {n: claim for n, claim in claims.items() if own and _is_retained(observed, claim)}
    longest = max(said.answers.values(), key=lambda one: (one.last_index, one.term), default=None)
    return ControllerFacts(
        own=own,
        wanted=manifest.spec.controllers.replicas if own else len(said.members),
        keeper=read_keeper(found) if found is not None else None,
        first=workflow.controller_replicas,
        pods=pods,
        formed=_formed(observed, resource, remembered=bool(retained or workflow.controller_replicas))
        or said.leader is not None,
        claims=_names(claims),
        retained=_names(retained),
        blank=workflow.blank_controllers,
        leader=said.leader,
        voters=frozenset(node_id for node_id, votes in said.members.items() if votes),
        members=said.members,
        answering=frozenset(said.answers) - said.waiting_to_join - ending,
        waiting=said.waiting_to_join,
        caught_up=said.caught_up,
        last_known=frozenset(member.node_id for member in longest.members if member.voter)
        if longest
        else frozenset(),
    )


def _is_retained(observed: Observed, claim: Object) -> bool:
    """Whether a deleted set made a claim: it is older than the set, and its data belongs to another UID.

    Claims that are made later get the same UID, for they belong to the same data.
    """
    meta, since = part(claim, "metadata"), observed.meta.created
    uid, made = text(part(meta, "annotations").get(OWNER_UID)), seconds(meta.get("creationTimestamp"))
    older = made is not None and since is not None and made < since
    return older and uid not in (None, observed.meta.uid)


def _names(claims: Mapping[int, Object]) -> dict[int, str]:
    return {number: str(part(claim, "metadata").get("name")) for number, claim in claims.items()}


def _formed(observed: Observed, resource: str, *, remembered: bool) -> bool:
    """Whether status says so, or, should somebody have emptied it, the settings of the controllers."""
    if part(observed.status, "controllers").get("formed") is True:
        return True
    if remembered:
        return False  # nobody has emptied it; the settings of a set that comes back say so from the start
    files = part(observed.config_maps.get(resource, {}), "data").values()
    return any(line.strip() == "raftJoin=true" for file in files for line in str(file).splitlines())


def claims_are_free(group: GroupFacts) -> bool:
    """Return whether no claim of a group would go with its StatefulSet."""
    return not any(kept_by_stateful_set(claim) for claim in group.claims.values())


def slice_target(observed: Observed, service: str) -> tuple[str | None, int]:
    """Return the address that a `-master` Service leads to, and the epoch that it was written with."""
    found = observed.endpoint_slices.get(service, {})
    addresses = [
        str(address) for endpoint in items(found, "endpoints") for address in endpoint.get("addresses") or ()
    ]
    written = str(part(part(found, "metadata"), "annotations").get(names.EPOCH_ANNOTATION, "0"))
    return (addresses[0] if addresses else None), int(written) if written.isdecimal() else 0
