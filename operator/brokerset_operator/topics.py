"""Topics: created at the masters of their set, corrected when they drift, deleted as their policy says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from brokerset_formats.config import TopicConfig
from brokerset_kube import kinds
from brokerset_kube.errors import NotFound
from brokerset_operator.apply import Means, NotLeading, write_status
from brokerset_operator.brokers_view import Brokers, BrokerSilent, master_address
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.connecting import Connecting
from brokerset_operator.controllers_view import controllers_of, own_groups
from brokerset_operator.model import names
from brokerset_operator.owners import NotOurs, ensure_ours
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter
from brokerset_operator.set_access import (
    foreign_groups,
    has_finalizer,
    query_groups,
    set_finalizer,
    uids_of,
)
from brokerset_operator.set_reconciler import RESYNC_SPREAD
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_spec.manifest import ManifestError, read_manifest
from brokerset_spec.topic_manifest import Topic, read_topic

log = structlog.get_logger(__name__)

TOPIC: Final = "Topic"
"""Kind of the keys of these reconciles."""

FINALIZER: Final = f"{names.DOMAIN}/topic"
"""Keeps a Topic whose policy is Delete until its messages are gone from the brokers."""

READY: Final = "Ready"
WAIT_SECONDS: Final = 5.0
"""Pause before brokers are asked again that do not answer, or at queues that are not empty yet."""

PERMISSION_WORDS: Final = {6: "rw", 4: "r", 2: "w"}

DELETE_SECONDS: Final = 20.0
"""Time-out of deleting a topic at all brokers of a set; it is tried again then."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reconcile found: the condition Ready, and what goes with it."""

    ready: bool
    reason: str
    message: str
    groups: tuple[Mapping[str, Any], ...] = ()
    again_seconds: float | None = None
    """None: not before the next regular reconcile."""


@dataclass(slots=True)
class TopicReconciler:
    """Reconciles one Topic at a time."""

    means: Means
    index: ClaimIndex
    resync_seconds: float
    on_status: Callable[[Key, Mapping[str, Any]], None] = lambda key, status: None
    """Called with the status of a Topic after each reconcile that has found one."""

    randomness: random.Random = field(default_factory=random.Random)

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises `RetryAfter` or a `KubeError` for what may be better next time.
        """
        try:
            try:
                live = await self.means.client.get(kinds.TOPIC, key.name, key.namespace)
            except NotFound:
                self.index.forget(key)
                return GONE
            self.index.saw(TOPIC, live)
            if live["metadata"].get("deletionTimestamp"):
                try:
                    await self._delete(key, live)
                except BrokerSilent as error:
                    await self._tell(key, live, Verdict(False, "DeletionWaits", str(error)))
                    raise
                return None
            return await self._reconcile(key, live)
        except NotOurs:
            return self.resync_seconds
        except TimeoutError as error:
            raise RetryAfter(f"deleting took longer than {DELETE_SECONDS:g} s") from error

    async def _reconcile(self, key: Key, live: Mapping[str, Any]) -> float:
        try:
            topic = read_topic(dict(live))
        except ManifestError as error:
            verdict = Verdict(False, "InvalidSpec", str(error))
            name = str((live.get("spec") or {}).get("topicName") or key.name)
        else:
            name = topic.topic_name
            deletes = topic.spec.deletion_policy == "Delete"
            if has_finalizer(live, FINALIZER) != deletes:
                live = await set_finalizer(kinds.TOPIC, live, FINALIZER, deletes, self.means)
            verdict = await self._verdict(key, live, topic)
        await self._tell(key, live, verdict, name)
        regular = self.resync_seconds * (1 - RESYNC_SPREAD * self.randomness.random())
        return regular if verdict.again_seconds is None else min(regular, verdict.again_seconds)

    async def _tell(
        self, key: Key, live: Mapping[str, Any], verdict: Verdict, name: str | None = None
    ) -> None:
        name = name or str((live.get("spec") or {}).get("topicName") or key.name)
        status = self._status(live, name, verdict)
        await write_status(kinds.TOPIC, live, status, self.means)
        self.on_status(key, status)

    async def _verdict(self, key: Key, live: Mapping[str, Any], topic: Topic) -> Verdict:
        older = self.index.older(key)
        if older is not None:
            text = f"{older.kind} {older.name} was there first for {topic.topic_name}; delete one of the two"
            return Verdict(False, "NameTaken", text, again_seconds=None)
        name = topic.spec.broker_set_ref.name
        try:
            broker_set = await self.means.client.get(kinds.BROKER_SET, name, key.namespace)
            ensure_ours(broker_set, self.means)
            manifest = read_manifest(broker_set)
        except NotFound:
            where = f"in namespace {key.namespace}"
            text = f"there is no BrokerSet {name} {where}; create it, or correct brokerSetRef"
            return Verdict(False, "BrokerSetMissing", text)
        except ManifestError:
            return Verdict(
                False, "BrokerSetInvalid", f"the BrokerSet {name} is invalid; see its condition Ready"
            )
        unknown = sorted(set(topic.spec.groups) - set(manifest.broker_names))
        if unknown:
            have = ", ".join(manifest.broker_names)
            text = f"BrokerSet {name} has no group {', '.join(unknown)}, only {have}; correct spec.groups"
            return Verdict(False, "GroupUnknown", text)
        view = await query_groups(broker_set, self.means)
        if not view.agreed:
            serving = controllers_of(broker_set)
            text = f"no controller of {serving} leads; see the BrokerSet's condition ControllersReady"
            return Verdict(False, "ControllersSilent", text, again_seconds=WAIT_SECONDS)
        wanted = topic.spec.groups or manifest.broker_names
        groups = {group: state for group in wanted if (state := view.groups.get(group)) is not None}
        foreign = await foreign_groups(broker_set, groups, self.means)
        if foreign:
            text = f"not of this set: {', '.join(foreign)}; see condition IdentityConflict of {name}"
            return Verdict(False, "BrokerSetInvalid", text, again_seconds=WAIT_SECONDS)
        return await self._at_groups(live, topic, wanted, groups, view.connecting)

    async def _at_groups(
        self,
        live: Mapping[str, Any],
        topic: Topic,
        wanted: tuple[str, ...],
        groups: Mapping[str, GroupState],
        connecting: Connecting,
    ) -> Verdict:
        found: list[dict[str, Any]] = []
        problems: list[tuple[str, str]] = []
        async with Brokers(connecting) as brokers:
            for group in wanted:
                state = groups.get(group)
                address = None if state is None else master_address(state)
                if address is None:
                    problems.append(("NoMaster", f"{group} has no living master"))
                    continue
                try:
                    config, problem = await self._at_broker(live, topic, group, address, brokers)
                except BrokerSilent as error:
                    problems.append(("BrokerSilent", str(error)))
                    continue
                found.append(
                    {
                        "name": group,
                        "readQueues": config.read_queue_nums,
                        "writeQueues": config.write_queue_nums,
                        "permission": PERMISSION_WORDS.get(config.perm, str(config.perm)),
                    }
                )
                if problem is not None:
                    problems.append(("QueuesNotEmpty", problem))
        shown = tuple(found)
        if problems:
            text = "; ".join(text for _, text in problems)
            return Verdict(False, problems[0][0], text, shown, WAIT_SECONDS)
        return Verdict(True, "AsWanted", f"{len(shown)} groups have the topic as wanted", shown)

    async def _at_broker(
        self, live: Mapping[str, Any], topic: Topic, group: str, address: str, brokers: Brokers
    ) -> tuple[TopicConfig, str | None]:
        """Make one master's topic what is wanted; returns what it is then, and why it is not all of it."""
        current = await brokers.topic(address, topic.topic_name)
        read, write = topic.spec.queues.read, topic.spec.queues.write
        problem = None
        if current is not None and read < current.read_queue_nums:
            # Broker and clients would just stop reading these queues, with what is in them.
            left = await self._left_behind(brokers, address, topic.topic_name, read)
            if left:
                problem = (
                    f"{group} keeps {current.read_queue_nums} read queues: those from {read} on hold {left} "
                    "messages that nobody has read; they go when consumers have read them"
                )
                read = current.read_queue_nums
        config = TopicConfig(
            topic.topic_name,
            read_queue_nums=read,
            write_queue_nums=write,
            perm=topic.permission,
            order=topic.spec.order,
            attributes=topic.attributes,
        )
        if current is None:
            await self._put(brokers, address, config)
            await self.means.events.emit(live, "TopicCreated", f"created {topic.topic_name} at {group}")
        elif _shape(current) != _shape(config) or not topic.attributes.items() <= current.attributes.items():
            await self._put(brokers, address, config)
            was, now = _words(current), _words(config)
            fewer = read < current.read_queue_nums or write < current.write_queue_nums
            text = f"changed {topic.topic_name} at {group}: was {was}, is {now}"
            await self.means.events.emit(
                live, "QueuesShrunk" if fewer else "TopicCorrected", text, warning=fewer
            )
        return config, problem

    async def _put(self, brokers: Brokers, address: str, config: TopicConfig) -> None:
        if not self.means.leads():
            raise NotLeading("this operator leads no more")
        await brokers.put_topic(address, config)
        log.info("topic put", topic=config.topic_name, broker=address, config=_words(config))

    @staticmethod
    async def _left_behind(brokers: Brokers, address: str, topic: str, first_queue: int) -> int:
        """Messages in the queues from `first_queue` on that would not be read any more."""
        lags, held = await asyncio.gather(brokers.lags(address), brokers.ends(address, topic))
        behind: dict[int, int] = {}
        for (_, queue), lag in lags.items():
            if queue.topic == topic and queue.queue_id >= first_queue:
                behind[queue.queue_id] = max(lag, behind.get(queue.queue_id, 0))
        # A queue that no group has ever read is unread as a whole.
        return sum(
            behind.get(queue_id, messages) for queue_id, messages in held.items() if queue_id >= first_queue
        )

    # -- deletion -----------------------------------------------------------------------------------------

    async def _delete(self, key: Key, live: Mapping[str, Any]) -> None:
        """Delete the topic if the policy says so, then let the object go."""
        if not has_finalizer(live, FINALIZER):
            return
        spec = live.get("spec") or {}
        name = str(spec.get("topicName") or key.name)
        # Whoever turned the policy to Retain before deleting keeps the messages.
        if spec.get("deletionPolicy") == "Delete" and not await self._is_kept(key):
            async with asyncio.timeout(DELETE_SECONDS):
                await self._delete_at_brokers(key, str(spec["brokerSetRef"]["name"]), name)
        await set_finalizer(kinds.TOPIC, live, FINALIZER, False, self.means)
        self.index.forget(key)

    async def _is_kept(self, key: Key) -> bool:
        """Whether another object stands for the same topic; asked for, since its event may be on its way."""
        listing = await self.means.client.list(kinds.TOPIC, key.namespace)
        for item in listing.items:
            self.index.saw(TOPIC, item)
        return bool(self.index.others(key))

    async def _delete_at_brokers(self, key: Key, set_name: str, topic: str) -> None:
        try:
            broker_set = await self.means.client.get(kinds.BROKER_SET, set_name, key.namespace)
        except NotFound:
            return  # brokers and messages are gone, or belong to nobody any more
        ensure_ours(broker_set, self.means)
        view = await query_groups(broker_set, self.means)
        if not view.agreed:
            serving = controllers_of(broker_set)
            raise BrokerSilent(
                f"no controller of {serving} leads, so the topic {topic} cannot be deleted yet"
            )
        # Shared controllers know groups of other sets, which may have a topic of the same name.
        groups = view.groups
        if not view.by_members:
            groups = own_groups(view.groups, names_of_own=(), uids=await uids_of(broker_set, self.means))
        try:
            wanted = read_manifest(broker_set).broker_names
        except ManifestError:
            wanted = tuple(groups)
        if view.by_members and (silent := [name for name in wanted if name not in groups]):
            raise BrokerSilent(
                f"no member of {', '.join(silent)} answers, so the topic {topic} cannot be deleted yet"
            )
        if not self.means.leads():
            raise NotLeading("this operator leads no more")
        async with Brokers(view.connecting) as brokers:
            for name, state in groups.items():
                master = master_address(state)
                if master is None and name not in wanted:
                    continue  # nothing is left of it but volumes
                if master is None:
                    raise BrokerSilent(
                        f"{name} has no living master, so the topic {topic} cannot be deleted yet"
                    )
                await brokers.delete_topic(master, topic)  # its slaves follow
            others = [state for name, state in view.groups.items() if name not in groups]
            for cluster in dict.fromkeys(state.cluster_name for state in groups.values()):
                sharing = [state for state in others if state.cluster_name == cluster]
                if any([await self._may_have(brokers, state, topic) for state in sharing]):
                    continue  # name servers forget a whole cluster's topic: routes of another set would go
                for address in view.addresses:
                    host = address.rpartition(":")[0]
                    await brokers.forget_topic(f"{host}:{names.NAMESRV_PORT}", topic, cluster)
        log.info("topic deleted", topic=topic, set=f"{key.namespace}/{set_name}")

    @staticmethod
    async def _may_have(brokers: Brokers, state: GroupState, topic: str) -> bool:
        """Whether a group has a topic, as far as its master tells."""
        address = master_address(state)
        if address is None:
            return True
        try:
            return await brokers.topic(address, topic) is not None
        except BrokerSilent:
            return True

    def _status(self, live: Mapping[str, Any], name: str, verdict: Verdict) -> dict[str, Any]:
        before = live.get("status") or {}
        status = "True" if verdict.ready else "False"
        conditions = before.get("conditions") or ()
        old: Mapping[str, Any] = next((one for one in conditions if one.get("type") == READY), {})
        moment = datetime.fromtimestamp(self.means.clock.now_ms() // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        generation = int(live["metadata"].get("generation") or 1)
        found: dict[str, Any] = {
            "observedGeneration": generation,
            "phase": "Ready" if verdict.ready else verdict.reason,
            "topicName": name[:127],
            "conditions": [
                {
                    "type": READY,
                    "status": status,
                    "observedGeneration": generation,
                    "reason": verdict.reason,
                    "message": verdict.message[:4096],
                    "lastTransitionTime": since or moment,
                }
            ],
        }
        kind = (live.get("spec") or {}).get("messageType")
        if isinstance(kind, str):
            found["messageType"] = kind[:16]
        if verdict.groups:
            found["groups"] = [dict(group) for group in verdict.groups]
        return found


def _shape(config: TopicConfig) -> tuple[int, int, int, bool]:
    return config.read_queue_nums, config.write_queue_nums, config.perm, config.order


def _words(config: TopicConfig) -> str:
    order = ", ordered" if config.order else ""
    order += "".join(f", {name}={value}" for name, value in sorted(config.attributes.items()))
    permission = PERMISSION_WORDS.get(config.perm, str(config.perm))
    return f"{config.read_queue_nums} read and {config.write_queue_nums} write queues, {permission}{order}"
