"""A model of what the operator's plan acts on: StatefulSets, pods, claims, controllers, broker groups.

It is small, runs on whole seconds, and does what the real things promise, in the least convenient order: pods
take their time, controllers notice deaths late, brokers catch up slowly, addresses are used again. It knows
nothing of the plan. `Kubernetes.observe` shows it as the operator sees it, parts of it a few seconds old.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from brokerset_operator.model import actions, names
from brokerset_operator.model.access_stages import ANNOTATION as ACCESS
from brokerset_operator.model.access_stages import POLICIES_LOG_FORMAT, SECRET_ANNOTATION
from brokerset_operator.model.observed import (
    Controllers,
    Drain,
    MemberPasswords,
    Meta,
    Object,
    Observed,
    Operator,
)
from brokerset_operator.model.tls_stages import ANNOTATION as TLS_STAGE
from brokerset_operator.resources.set_facts import OWNER_UID
from brokerset_protocol.bodies.controllers import ControllerMember, ControllerStatus, GroupState, ReplicaState
from brokerset_sim.kubernetes_wanted import (
    NAME,
    NAMESPACE,
    READ_AND_WRITE,
    UID,
    certificates_of,
    permission_of,
    settings_of,
    started_with,
)
from brokerset_spec.manifest import BrokerSet, read_manifest

Action = TypeVar("Action", bound=actions.Action)

START: Final = 1_700_000_000.0

LAG_SECONDS_MAX: Final = 3
"""How old a part of what is observed may be."""

NOTICED_SECONDS: Final = 2
"""How long controllers take for alive what is dead."""

BAD_IMAGE: Final = "bad"
"""Pods with this image never start."""

ADDRESSES: Final = 12
"""Addresses that pods share, so that they are used again soon."""


class Refused(Exception):
    """The other side did not do what an action asked for."""


@dataclass(slots=True)
class Volume:
    """What a claim has on it."""

    claim: str
    uid: str
    size: str
    class_name: str
    broker_id: int | None = None
    incarnation: int = 0
    log: int = 0
    """Messages on it."""

    raft: bool = False
    """Whether a controller has its log on it."""

    made_at: float = START
    life: str = ""
    """UID of the set in whose time a controller got its log."""

    follows_set: bool = False
    """Whether it goes with its StatefulSet."""


@dataclass(slots=True)
class Pod:
    """A pod with the process in it."""

    name: str
    uid: str
    keeper: str
    ordinal: int
    hash: str
    image: str
    revision: str
    expected: int
    joins: bool
    volume: Volume
    ip: str
    runs_at: float
    """When its process runs; it may die and come back in the same pod."""

    settings: dict[str, str]
    """What its process runs with; read from the file when it starts, changed while it runs."""

    permission: int = READ_AND_WRITE
    """What its file says that its group permits."""

    orphaned: bool = False
    """Whether its StatefulSet was deleted without it, and none has adopted it since."""

    tls: str | None = None
    """Its stage of TLS, as its template has it."""

    access: tuple[tuple[str, str], ...] = ()
    """Its annotations about access control."""

    node: str = "node-0"
    registered: bool = False
    ends_at: float | None = None
    deleted_at: float | None = None
    lost_node: bool = False
    ready_since: float | None = None

    def runs(self, now: float) -> bool:
        """Whether its process does anything."""
        return now >= self.runs_at and not self.lost_node and self.image != BAD_IMAGE


@dataclass(slots=True)
class Replica:
    """A broker as the controllers know it."""

    address: str
    incarnation: int
    pod_uid: str
    last_seen: float
    catches_up_at: float = 0.0


@dataclass(slots=True)
class Group:
    """A broker group as the controllers know it."""

    name: str
    expected: int = 0
    next_id: int = 1
    master: int | None = None
    epoch: int = 0
    in_sync: set[int] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    replicas: dict[int, Replica] = field(default_factory=dict)
    acknowledged: int = 0
    unread: int = 0
    permission: int = READ_AND_WRITE
    fault_at: float = 0.0
    """When something happened to it that nobody had planned."""


HEARD_SECONDS: Final = 10.0
"""How long brokers take to hear of other users: longer than a pod takes to be replaced."""

_View = tuple[float, dict[str, Any], Controllers, dict[str, GroupState], dict[str, dict[str, str]]]


class Kubernetes:
    """A cluster with one BrokerSet."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = START
        self.image = "v1"
        self.annotations: dict[str, str] = {}
        self.uid = UID
        self.created = START
        self.generation = 0
        self.status: dict[str, Any] = {}
        self.spec: dict[str, Any] = {}
        self.manifest: BrokerSet
        self.sets: dict[str, dict[str, Any]] = {}
        self.config_maps: dict[str, dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, Pod] = {}
        self.volumes: dict[str, Volume] = {}
        self.groups: dict[str, Group] = {}
        self.members: dict[int, bool] = {}
        self.leader: int | None = None
        self.caught_up_at: dict[int, float] = {}
        self.controllers_fault_at = 0.0
        self.log_format = POLICIES_LOG_FORMAT
        """What controllers say that they read."""
        self.stored_passwords: tuple[str, ...] = ()
        """Secrets whose passwords the controllers accept, the newest one first; empty: those of settings."""
        self.stored_before: tuple[str, ...] = ()
        self.stored_at = START
        """When it changed from what was before."""

        self.expandable = True
        self.missing_nodes: set[str] = set()
        self._uids = 0
        self._addresses = 0
        self._views: list[_View] = []
        self.fresh_from = START
        """Objects are seen as of this time or later."""

        self.asked_at = START
        """When the round before ended: controllers are asked in each, so their answers are newer."""

    # -- what people do -----------------------------------------------------------------------------------

    def apply_manifest(self, **spec: Any) -> None:
        """Change fields of the manifest."""
        self.spec |= spec
        document = {
            "apiVersion": "brokerset.io/v1alpha1",
            "kind": "BrokerSet",
            "metadata": {"name": NAME},
            "spec": self.spec,
        }
        self.manifest = read_manifest(document)
        self.generation += 1

    def delete_set(self, **spec: Any) -> None:
        """Delete it, with volumes that stay, and apply it again with some fields changed."""
        for name in self.pods:
            assert not self.pods[name].volume.follows_set, "its volumes go with it"
        self.pods, self.sets, self.config_maps, self.slices = {}, {}, {}, {}
        self.status, self.generation, self.leader = {}, 0, None
        self.now += 5.0
        self.uid, self.created, self.fresh_from = self._uid(), self.now, self.now
        self._views.clear()
        self.apply_manifest(**spec)

    @property
    def by_members(self) -> bool:
        """Whether groups are DLedgers, which elect their masters without controllers."""
        return self.manifest.is_dledger

    @property
    def agreed(self) -> bool:
        """Whether somebody tells of the groups."""
        return self.by_members or self.leader is not None

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One second passes."""
        self.now += 1.0
        self._end_pods()
        self._keep_sets()
        self._run_controllers()
        run_broker, run_group = (
            (self._run_member, self._run_ledger) if self.by_members else (self._run_broker, self._run_group)
        )
        for each in self.broker_pods():
            run_broker(each)
        if self.agreed:
            for group in self.groups.values():
                run_group(group)
        for pod in self.pods.values():
            ready = self.is_ready(pod)
            pod.ready_since = (pod.ready_since or self.now) if ready else None
        self._views.append((self.now, self._objects(), self._said(), self._states(), self._told()))
        del self._views[: -LAG_SECONDS_MAX - 1]

    def _uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"

    def _end_pods(self) -> None:
        for name, pod in list(self.pods.items()):
            if pod.ends_at is not None and self.now >= pod.ends_at and not pod.lost_node:
                del self.pods[name]

    def _keep_sets(self) -> None:
        for name, found in self.sets.items():
            replicas = found["spec"]["replicas"]
            for pod in self.pods.values():
                if pod.keeper == name:
                    pod.orphaned = False
                    if pod.ordinal >= replicas:
                        self.end_pod(pod)
            self._roll_name_servers(name, found)
            for ordinal in range(replicas):
                pod_name = f"{name}-{ordinal}"
                if pod_name not in self.pods and self.rng.random() < 0.7:
                    self._make_pod(name, found, ordinal)

    def _roll_name_servers(self, name: str, found: Mapping[str, Any]) -> None:
        """Kubernetes itself replaces old ones, the highest first, and waits until each is ready."""
        pods = [pod for pod in self.pods.values() if pod.keeper == name == names.namesrv_set(NAME)]
        for pod in sorted(pods, key=lambda pod: -pod.ordinal):
            if pod.revision != found["status"]["updateRevision"]:
                self.end_pod(pod)
                return
            if not self.is_ready(pod):
                return

    def end_pod(self, pod: Pod) -> None:
        """Somebody deletes a pod."""
        if pod.ends_at is None:
            pod.deleted_at = self.now
            pod.ends_at = self.now + self.rng.randint(1, 3)

    def _make_pod(self, keeper: str, found: Mapping[str, Any], ordinal: int) -> None:
        name = f"{keeper}-{ordinal}"
        claim = names.claim_of(name)
        if claim not in self.volumes:
            template = found["spec"]["volumeClaimTemplates"][0]["spec"]
            size = template["resources"]["requests"]["storage"]
            self.volumes[claim] = Volume(claim, self._uid(), size, "standard", made_at=self.now)
        policy = found["spec"]["persistentVolumeClaimRetentionPolicy"]
        self.volumes[claim].follows_set = policy["whenDeleted"] == "Delete"
        settings = settings_of(self.config_maps.get(keeper, {}))
        if not settings:
            return  # it waits for its settings
        used = {pod.ip for pod in self.pods.values()}
        while True:
            self._addresses += 1
            ip = f"10.0.0.{self._addresses % ADDRESSES}"
            if ip not in used:
                break
            if len(used) >= ADDRESSES:
                ip = f"10.0.1.{self._addresses}"
                break
        template = found["spec"]["template"]
        self.pods[name] = Pod(
            name=name,
            uid=self._uid(),
            keeper=keeper,
            ordinal=ordinal,
            hash=template["metadata"]["annotations"][names.HASH_ANNOTATION],
            image=template["spec"]["containers"][0]["image"],
            revision=found["status"]["updateRevision"],
            expected=int(settings.get("expectedReplicas", 0)),
            joins=settings.get("raftJoin") == "true",
            volume=self.volumes[claim],
            ip=ip,
            runs_at=self.now + self.rng.randint(1, 3),
            settings=started_with(keeper, settings),
            permission=permission_of(settings),
            tls=template["metadata"]["annotations"].get(TLS_STAGE),
            access=tuple(
                (name, text)
                for name, text in template["metadata"]["annotations"].items()
                if name in (ACCESS, SECRET_ANNOTATION)
            ),
        )

    def crash(self, pod: Pod) -> None:
        """Its process ends, and starts again in the same pod; its file there may be old for a while."""
        pod.runs_at, pod.registered = self.now + self.rng.randint(1, 4), False
        settings = settings_of(self.config_maps.get(pod.keeper, {}))
        pod.permission = permission_of(settings)
        if settings and self.rng.random() < 0.5:
            pod.settings = started_with(pod.keeper, settings)

    # -- controllers --------------------------------------------------------------------------------------

    def controller_pods(self) -> dict[int, Pod]:
        """Pods of controllers by number."""
        keeper = names.controller_set(NAME)
        return {pod.ordinal: pod for pod in self.pods.values() if pod.keeper == keeper}

    def living_controllers(self) -> set[int]:
        """Numbers of controllers that run and have data."""
        found = self.controller_pods()
        return {
            n for n, pod in found.items() if pod.runs(self.now) and pod.volume.raft and pod.ends_at is None
        }

    def _run_controllers(self) -> None:
        for n, pod in self.controller_pods().items():
            if pod.runs(self.now) and not pod.volume.raft and not pod.joins:
                older = [each.claim for each in self.volumes.values() if each.raft and each.life != self.uid]
                assert not older, f"{pod.name} begins another group than that of {older}"
                pod.volume.raft, pod.volume.life = True, self.uid
                if not self.members:
                    replicas = self.sets[pod.keeper]["spec"]["replicas"]
                    self.members = dict.fromkeys(range(replicas), True)
                self.caught_up_at[n] = self.now
        living = self.living_controllers()
        voters = {n for n, votes in self.members.items() if votes}
        if len(voters & living) * 2 <= len(voters) or not voters:
            self.leader = None
        elif self.leader not in voters & living:
            self.leader = min(voters & living)
        for n, pod in sorted(self.controller_pods().items()):
            if self.leader is not None and pod.runs(self.now) and self.members.get(n) is False:
                pod.volume.raft, pod.volume.life = True, self.uid  # a learner receives the log

    def caught_up(self) -> set[int]:
        """Controllers that have everything."""
        return {n for n in self.living_controllers() if self.caught_up_at.get(n, 0.0) <= self.now}

    def broker_pods(self) -> list[Pod]:
        """Pods of brokers, by name."""
        others = (names.controller_set(NAME), names.namesrv_set(NAME))
        found = (pod for pod in self.pods.values() if pod.keeper not in others)
        return sorted(found, key=lambda pod: pod.name)

    # -- brokers ------------------------------------------------------------------------------------------

    def group_of(self, pod: Pod) -> Group:
        """The group that a broker's pod belongs to; it is made when it is first asked for."""
        index = int(pod.keeper.rpartition("-")[2])
        return self.groups.setdefault(f"{NAME}-{index}", Group(f"{NAME}-{index}"))

    def _run_broker(self, pod: Pod) -> None:
        group = self.group_of(pod)
        if not pod.runs(self.now) or pod.ends_at is not None:
            pod.registered = pod.registered and pod.runs(self.now) and pod.ends_at is None
            return
        volume = pod.volume
        if not pod.registered:
            if self.leader is None or self.rng.random() < 0.3:
                return
            if volume.broker_id is None:
                volume.broker_id, volume.incarnation = group.next_id, 0
                group.next_id += 1
            elif volume.broker_id not in group.replicas:
                return  # a retired id
            volume.incarnation += 1
            if not self.living(group):
                group.permission = pod.permission  # what was told at run time ended with the last process
            old = group.replicas.get(volume.broker_id)
            wait = self.rng.choice((0, 1, 1, 2, 8))
            group.replicas[volume.broker_id] = Replica(
                f"{pod.ip}:{names.REMOTING_PORT}", volume.incarnation, pod.uid, self.now, self.now + wait
            )
            group.expected = pod.expected
            pod.registered = True
            if old is not None and group.master == volume.broker_id:
                group.master = None  # another start ends a mastership
            elif group.master is not None and len(group.in_sync) > 1:
                group.in_sync.discard(volume.broker_id)  # without a master nobody could take it in again
        if volume.broker_id in group.replicas:
            group.replicas[volume.broker_id].last_seen = self.now

    def _run_member(self, pod: Pod) -> None:
        """A member of a DLedger is its volume; it takes part as soon as it runs."""
        group, volume = self.group_of(pod), pod.volume
        if not pod.runs(self.now) or pod.ends_at is not None:
            pod.registered = False
            return
        broker_id = volume.broker_id = pod.ordinal + 1
        if not pod.registered:
            volume.incarnation += 1
            wait = self.rng.choice((0, 1, 1, 2, 8))
            address = f"{pod.ip}:{names.REMOTING_PORT}"
            group.replicas[broker_id] = Replica(
                address, volume.incarnation, pod.uid, self.now, self.now + wait
            )
            group.expected = group.expected or pod.expected
            group.in_sync.discard(broker_id)
            pod.registered = True
        group.replicas[broker_id].last_seen = self.now

    def _run_ledger(self, group: Group) -> None:
        """More than half elect the one of them with the longest log."""
        living, quorum = self.living(group), group.expected // 2 + 1
        group.in_sync &= living
        if group.master not in group.in_sync:
            group.master = None
            if len(living) < quorum:
                return
            self._elect(group, max(living, key=lambda n: (self._log(group, n), -n)))
        assert group.master is not None, "it was elected"
        for n in sorted(living - group.in_sync):
            if group.replicas[n].catches_up_at <= self.now:
                self._volume(group, n).log = self._log(group, group.master)
                group.in_sync.add(n)
        if len(group.in_sync) >= quorum:
            group.acknowledged = self._log(group, group.master) + 1
            group.unread += group.permission == 6 and self.rng.random() < 0.5
            for n in sorted(group.in_sync):
                self._volume(group, n).log = group.acknowledged
        if group.unread and self.rng.random() < 0.7:
            group.unread -= 1
        self._lead_service(group)

    def living(self, group: Group) -> set[int]:
        """Ids whose processes really run, and are registered."""
        found = {pod.uid: pod for pod in self.pods.values() if pod.registered and pod.ends_at is None}
        return {
            n for n, r in group.replicas.items() if r.pod_uid in found and found[r.pod_uid].runs(self.now)
        }

    def volume_of(self, group: Group, broker_id: int) -> Volume | None:
        """The volume that an id is on."""
        prefix = names.claim_of(f"{group.name}-")
        mine = (volume for claim, volume in sorted(self.volumes.items()) if claim.startswith(prefix))
        return next((volume for volume in mine if volume.broker_id == broker_id), None)

    def _run_group(self, group: Group) -> None:
        living = self.living(group)
        seen = {n for n, r in group.replicas.items() if self.now - r.last_seen < NOTICED_SECONDS}
        if group.epoch == 0:
            if len(living) >= max(1, group.expected):
                self._elect(group, min(living))
            return
        if group.master is None or group.master not in seen:
            able = sorted((group.in_sync & living) - group.fenced)
            if able:
                self._elect(group, max(able, key=lambda n: (self._log(group, n), -n)))
            else:
                group.master = None
            return
        if group.master not in living:
            return
        for n in sorted(group.in_sync - living):
            if n not in seen:
                group.in_sync.discard(n)
        for n in sorted(living - group.in_sync - group.fenced):
            if group.replicas[n].catches_up_at <= self.now:
                self._volume(group, n).log = self._log(group, group.master)
                group.in_sync.add(n)
        if group.in_sync <= living and len(group.in_sync) >= self.minimum_of(group):
            group.acknowledged = self._log(group, group.master) + 1
            group.unread += group.permission == 6 and self.rng.random() < 0.5
            for n in sorted(group.in_sync):
                self._volume(group, n).log = group.acknowledged
        if group.unread and self.rng.random() < 0.7:
            group.unread -= 1
        self._lead_service(group)

    def minimum_of(self, group: Group) -> int:
        """How many must be in sync for the living master of a group to take sends."""
        uid = group.replicas[group.master].pod_uid if group.master is not None else None
        pod = next(pod for pod in self.pods.values() if pod.uid == uid)
        return int(pod.settings["minInSyncReplicas"])

    def _elect(self, group: Group, broker_id: int) -> None:
        group.epoch += 1
        group.master = broker_id
        group.in_sync = {broker_id}
        for n, replica in group.replicas.items():
            if n != broker_id:
                replica.catches_up_at = max(replica.catches_up_at, self.now + self.rng.choice((0, 1)))

    def _volume(self, group: Group, broker_id: int) -> Volume:
        found = self.volume_of(group, broker_id)
        assert found is not None, "a broker that lives has a volume"
        return found

    def _log(self, group: Group, broker_id: int) -> int:
        return self._volume(group, broker_id).log

    def _lead_service(self, group: Group) -> None:
        found = self.slices.get(f"{group.name}-master")
        if found is not None and group.master is not None and self.rng.random() < 0.6:
            ip = group.replicas[group.master].address.partition(":")[0]
            self._point(found, ip, group.epoch)

    @staticmethod
    def _point(found: dict[str, Any], ip: str, epoch: int) -> None:
        found["endpoints"] = [{"addresses": [ip]}]
        found["metadata"].setdefault("annotations", {})[names.EPOCH_ANNOTATION] = str(epoch)

    def is_ready(self, pod: Pod) -> bool:
        """Whether its readiness probe succeeds."""
        if not pod.runs(self.now) or pod.ends_at is not None:
            return False
        if pod.keeper == names.controller_set(NAME):
            return self.leader is not None and pod.volume.raft and pod.ordinal in self.members
        if pod.keeper == names.namesrv_set(NAME):
            return True
        group = self.group_of(pod)  # `readyOnlyInSync`: a slave that catches up is not ready
        if self.by_members:
            return pod.registered and group.master is not None
        serves = pod.volume.broker_id == group.master or pod.volume.broker_id in group.in_sync | group.fenced
        return pod.registered and group.master is not None and serves

    # -- what the operator sees ---------------------------------------------------------------------------

    def observe(self) -> tuple[Observed, float]:
        """What is seen now, parts of it some seconds old, and how old the oldest part is."""
        objects = self.rng.choice([v for v in self._views if v[0] >= self.fresh_from] or self._views[-1:])
        said = self.rng.choice([v for v in self._views if v[0] > self.asked_at] or self._views[-1:])
        self.fresh_from = max(self.fresh_from, objects[0])  # a watch never goes back
        dropped = {name for name in self.groups if name not in self.manifest.broker_names}
        return (
            Observed(
                meta=Meta(
                    name=NAME,
                    namespace=NAMESPACE,
                    uid=self.uid,
                    generation=self.generation,
                    annotations=dict(self.annotations),
                    created=self.created,
                ),
                manifest=self.manifest,
                status=self.status,
                operator=Operator(image=self.image),
                stateful_sets=objects[1]["sets"],
                pods=objects[1]["pods"],
                claims=objects[1]["claims"],
                config_maps=objects[1]["config_maps"],
                endpoint_slices=objects[1]["slices"],
                storage_classes={"standard": {"allowVolumeExpansion": self.expandable}},
                missing_nodes=frozenset(self.missing_nodes),
                controllers=said[2],
                groups=said[3],
                drains={
                    name: Drain(unread=self.groups[name].unread, permission=self.groups[name].permission)
                    for name in sorted(dropped)
                    if (self.by_members or said[2].leader is not None)
                    and self.groups[name].master is not None
                },
                settings=said[4],
                certificates=certificates_of(self.manifest, self.now),
                passwords=self._passwords() if said[2].leader is not None else None,
                now=self.now,
            ),
            min(objects[0], said[0]),
        )

    def observe_now(self) -> Observed:
        """Everything as it is at this moment."""
        self._views.append((self.now, self._objects(), self._said(), self._states(), self._told()))
        before, self.fresh_from = self.fresh_from, self.now
        self._views, kept = self._views[-1:], self._views[:-1]
        found, _ = self.observe()
        self._views, self.fresh_from = kept, before
        return found

    def _objects(self) -> dict[str, Any]:
        return {
            "sets": {name: _copied(found) for name, found in self.sets.items()},
            "pods": {name: self._pod_object(pod) for name, pod in self.pods.items()},
            "claims": {name: self._claim_object(volume) for name, volume in self.volumes.items()},
            "config_maps": {name: _copied(found) for name, found in self.config_maps.items()},
            "slices": {name: _copied(found) for name, found in self.slices.items()},
        }

    def _pod_object(self, pod: Pod) -> Object:
        ready = self.is_ready(pod)
        meta: dict[str, Any] = {
            "name": pod.name,
            "uid": pod.uid,
            "labels": {"controller-revision-hash": pod.revision, names.COMPONENT_LABEL: _component(pod)},
            "annotations": {
                names.HASH_ANNOTATION: pod.hash,
                **({TLS_STAGE: pod.tls} if pod.tls is not None else {}),
                **dict(pod.access),
            },
            "ownerReferences": [] if pod.orphaned else [{"kind": "StatefulSet", "name": pod.keeper}],
        }
        if pod.deleted_at is not None:
            meta["deletionTimestamp"] = _time(pod.deleted_at + 5)
        waiting = {"reason": "CrashLoopBackOff"} if pod.image == BAD_IMAGE and self.now >= pod.runs_at else {}
        return {
            "metadata": meta,
            "spec": {"nodeName": pod.node, "containers": [{"name": "main", "image": pod.image}]},
            "status": {
                "phase": "Running",
                "podIP": pod.ip,
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True" if ready else "False",
                        "lastTransitionTime": _time(pod.ready_since or pod.runs_at),
                    }
                ],
                "containerStatuses": [{"name": "main", "state": {"waiting": waiting} if waiting else {}}],
            },
        }

    @staticmethod
    def _claim_object(volume: Volume) -> Object:
        owners = [{"kind": "StatefulSet", "name": "?"}] if volume.follows_set else []
        return {
            "metadata": {
                "name": volume.claim,
                "uid": volume.uid,
                "ownerReferences": owners,
                "annotations": {OWNER_UID: UID},
                "creationTimestamp": _time(volume.made_at),
            },
            "spec": {
                "storageClassName": volume.class_name,
                "resources": {"requests": {"storage": volume.size}},
            },
            "status": {"capacity": {"storage": volume.size}},
        }

    def _said(self) -> Controllers:
        living = self.living_controllers()
        empty = {
            n
            for n, pod in self.controller_pods().items()
            if pod.runs(self.now) and not pod.volume.raft and pod.joins
        }
        members = tuple(ControllerMember(n, "", "", votes) for n, votes in sorted(self.members.items()))
        answers = {
            n: ControllerStatus(
                n,
                "follower",
                1,
                self.leader,
                n == self.leader,
                1,
                1,
                1,
                0,
                members if n in living else (),
                log_format=self.log_format,
            )
            for n in sorted(living | empty)
        }
        if self.leader is None:
            return Controllers(answers=answers, waiting_to_join=frozenset(empty))
        return Controllers(
            answers=answers,
            waiting_to_join=frozenset(empty),
            leader=self.leader,
            members=dict(self.members),
            caught_up=frozenset(self.caught_up() & self.members.keys()),
        )

    def _told(self) -> dict[str, dict[str, str]]:
        """Settings of the brokers that answer."""
        return {
            pod.name: dict(pod.settings)
            for pod in self.broker_pods()
            if pod.runs(self.now) and pod.ends_at is None
        }

    def _states(self) -> dict[str, GroupState]:
        if not self.agreed:
            return {}
        told = self.groups.items()
        return {name: self._state(group) for name, group in told if not self.by_members or self.living(group)}

    def _state(self, group: Group) -> GroupState:
        living = self.living(group)
        alive = {
            n: n in living if self.by_members else self.now - replica.last_seen < NOTICED_SECONDS
            for n, replica in group.replicas.items()
        }
        return GroupState(
            cluster_name="DefaultCluster",
            broker_name=group.name,
            owner=None if self.by_members else UID,
            expected_replicas=group.expected,
            next_broker_id=group.next_id,
            master_id=group.master,
            master_epoch=group.epoch,
            sync_state_set=tuple(sorted(group.in_sync)),
            sync_state_set_epoch=0,
            suspects=(),
            losses=(),
            replicas=tuple(
                ReplicaState(
                    n,
                    replica.address,
                    "",
                    replica.incarnation,
                    "",
                    "alive" if alive[n] else "dead",
                )
                for n, replica in sorted(group.replicas.items())
            ),
            fenced=tuple(sorted(group.fenced)),
        )

    def accepted(self, pod: Pod) -> set[str]:
        """Secrets with whose passwords a pod lets others in: brokers hear of a change a moment later."""
        own = dict(pod.access).get(SECRET_ANNOTATION, "")
        heard = _component(pod) == "controller" or self.now - self.stored_at >= HEARD_SECONDS
        return set((self.stored_passwords if heard else self.stored_before) or (own,))

    def _passwords(self) -> MemberPasswords:
        mine, stored = self.manifest.spec.acl.secret_name, self.stored_passwords
        changed = mine in stored[:1] if stored else all(mine in self.accepted(p) for p in self.pods.values())
        return MemberPasswords(
            changed=changed,
            everywhere=changed and all(mine in self.accepted(pod) for pod in self.pods.values()),
            former=len(stored) > 1,
        )

    # -- what the operator does ---------------------------------------------------------------------------

    def carry_out(self, action: actions.Action) -> None:
        """Do one thing, as the API server, the controllers or the brokers would. Raises `Refused`."""
        match action:
            case actions.ApplyObject():
                self._apply(action.manifest)
            case actions.DeletePod():
                pod = self.pods.get(action.name)
                if pod is not None and pod.uid == action.uid:
                    self.end_pod(pod)
                    if action.force:
                        del self.pods[pod.name]
            case actions.DeleteObject():
                self._delete(action)
            case actions.ResizeClaim():
                if not self.expandable:
                    raise Refused("the class does not allow that")
                if action.name not in self.volumes:
                    raise Refused("the claim is gone")
                self.volumes[action.name].size = action.size
            case actions.PointMasterService():
                found = self.slices[action.service]
                self._point(found, action.pod_ip, action.epoch)
            case actions.EmitEvent():
                pass
            case actions.ChangePasswords(secret):
                before = self.stored_passwords[:1] or tuple(self._signed_with())
                if before != (secret,):
                    self._store((secret, *before[:1]))
            case actions.EndFormerPasswords():
                self._store(())
            case actions.TellSettings():
                found_pod = self.broker_at(action.address)
                if found_pod is None or found_pod.settings["brokerName"] != action.group:
                    raise Refused("nobody answers, or somebody else")
                found_pod.settings |= action.settings
            case actions.AddController() | actions.PromoteController():
                self._change_members(action)
            case actions.RemoveController() | actions.MoveLeadership():
                self._change_members(action)
            case _:
                self._ask_group(action)

    def _store(self, secrets: tuple[str, ...]) -> None:
        self.stored_before, self.stored_passwords, self.stored_at = self.stored_passwords, secrets, self.now

    def _signed_with(self) -> set[str]:
        """Secrets of the pods."""
        return {str(dict(pod.access).get(SECRET_ANNOTATION)) for pod in self.pods.values()}

    def broker_at(self, address: str) -> Pod | None:
        """The pod whose broker answers at an address."""
        found = (pod for pod in self.pods.values() if f"{pod.ip}:{names.REMOTING_PORT}" == address)
        return next((pod for pod in found if pod.runs(self.now) and pod.ends_at is None), None)

    def _apply(self, manifest: Mapping[str, Any]) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        tables = {"StatefulSet": self.sets, "ConfigMap": self.config_maps, "EndpointSlice": self.slices}
        table, old = tables[kind], tables[kind].get(name)
        new = _copied(manifest)
        new["metadata"] = {**new["metadata"], "uid": old["metadata"]["uid"] if old else self._uid()}
        if kind == "EndpointSlice" and old is not None:
            new = {**new, "endpoints": old.get("endpoints", [])}
            kept = old["metadata"].get("annotations", {})
            new["metadata"]["annotations"] = {**kept, **new["metadata"].get("annotations", {})}
        if kind == "StatefulSet":
            if old is not None:
                fixed = ("volumeClaimTemplates",)
                if any(old["spec"][k] != new["spec"][k] for k in fixed):
                    raise Refused("claim templates cannot be changed")
            generation = old["metadata"]["generation"] + 1 if old else 1
            template = new["spec"]["template"]
            revision = f"{template['metadata']['annotations']}{template['spec']}"
            new["metadata"]["generation"] = generation
            new["status"] = {"observedGeneration": generation, "updateRevision": revision}
            follows = new["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
            for volume in self.volumes.values():
                if volume.claim.startswith(names.claim_of(f"{name}-")):
                    volume.follows_set = follows
        table[name] = new

    def _delete(self, action: actions.DeleteObject) -> None:
        name = action.ref.name
        if action.ref.kind == "PersistentVolumeClaim":
            volume = self.volumes.get(name)
            if volume is not None and volume.uid == action.ref.uid:
                del self.volumes[name]
            return
        tables = {"StatefulSet": self.sets, "ConfigMap": self.config_maps, "EndpointSlice": self.slices}
        table = tables[action.ref.kind]
        found = table.get(name)
        if found is None or found["metadata"]["uid"] != action.ref.uid:
            return
        del table[name]
        if action.ref.kind != "StatefulSet":
            return
        for pod in self.pods.values():
            if pod.keeper == name and action.orphan:
                pod.orphaned = True
            elif pod.keeper == name:
                self.end_pod(pod)
        if action.orphan:
            return
        for claim, volume in list(self.volumes.items()):
            if volume.follows_set and claim.startswith(names.claim_of(f"{name}-")):
                del self.volumes[claim]

    def _change_members(self, action: actions.Action) -> None:
        if self.leader is None:
            raise Refused("nobody leads")
        match action:
            case actions.AddController(node_id=n):
                self.members.setdefault(n, False)
                self.caught_up_at[n] = self.now + self.rng.randint(0, 4)
            case actions.PromoteController(node_id=n):
                if n not in self.caught_up() or n not in self.members:
                    raise Refused("it is behind")
                self.members[n] = True
            case actions.RemoveController(node_id=n):
                self.members.pop(n, None)
                if self.leader == n:
                    self.leader = None
            case actions.MoveLeadership(to_node_id=n):
                if n not in self.living_controllers() or not self.members.get(n):
                    raise Refused("it cannot lead")
                self.leader = n
            case _:
                raise AssertionError(action)

    def _ask_group(self, action: actions.Action) -> None:
        assert isinstance(
            action, actions.SwitchOver | actions.Fence | actions.CleanBroker | actions.SetPermission
        )
        group = self.groups.get(action.group)
        if not self.agreed or group is None:
            raise Refused("nobody leads, or there is no such group")
        asked = isinstance(action, actions.Fence | actions.CleanBroker)
        assert not (asked and self.by_members), "a DLedger has no fences, and forgets nobody"
        living = self.living(group)
        match action:
            case actions.SwitchOver(to_broker_id=to, epoch=epoch):
                able = (group.in_sync & living) - group.fenced - {group.master}
                if (
                    epoch != group.epoch
                    or group.master not in living
                    or not able
                    or (to or min(able)) not in able
                ):
                    raise Refused("nobody to hand over to")
                others = set(group.in_sync)
                self._elect(group, to or min(able))
                group.in_sync = others if self.rng.random() < 0.7 else group.in_sync
            case actions.Fence(broker_id=n, fenced=True):
                left = group.in_sync - {n}
                if n == group.master or not left or n not in group.replicas:
                    raise Refused("it is master, or the last one in sync")
                if n in group.in_sync and left == {group.master} and not action.force:
                    raise Refused("only the master would stay in sync")
                group.fenced.add(n)
                group.in_sync.discard(n)
            case actions.Fence(broker_id=n):
                group.fenced.discard(n)
            case actions.CleanBroker(broker_id=n):
                if n in living or n in group.in_sync:
                    raise Refused("it is alive, or in sync")
                group.replicas.pop(n, None)
                group.fenced.discard(n)
            case actions.SetPermission(permission=permission):
                group.permission = permission


def _component(pod: Pod) -> str:
    named = pod.keeper.rpartition("-")[2]
    return named if named in ("controller", "namesrv") else "broker"


def _copied(value: Any) -> Any:
    """A deep copy of what JSON can hold."""
    if value is None or isinstance(value, str | int | float):  # most are
        return value
    if isinstance(value, dict | Mapping):  # asking for a Mapping alone takes as long as all the rest
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def _time(now: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
