"""Topics: created at the masters of their set, corrected when they drift, deleted as their policy says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog

from brokerset_formats.config import TopicConfig
from brokerset_kube import kinds
from brokerset_kube.errors import NotFound
from brokerset_operator.brokers_view import Brokers, BrokerSilent, master_address
from brokerset_operator.claim_reconciler import (
    ClaimReconciler,
    Stopped,
    at_masters,
    valid_manifest,
)
from brokerset_operator.connecting import Connecting
from brokerset_operator.controllers_view import controllers_of, own_groups
from brokerset_operator.model import claim_reasons, names
from brokerset_operator.model.verdict import WAIT_SECONDS, Verdict, status_with
from brokerset_operator.owners import ensure_ours
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.set_access import query_groups, uids_of
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_spec.manifest import ManifestError, read_manifest
from brokerset_spec.topic_manifest import Topic, read_topic

log = structlog.get_logger(__name__)

TOPIC: Final = "Topic"
"""Kind of the keys of these reconciles."""

FINALIZER: Final = f"{names.DOMAIN}/topic"
"""Keeps a Topic whose policy is Delete until its messages are gone from the brokers."""

PERMISSION_WORDS: Final = {6: "rw", 4: "r", 2: "w"}


class TopicReconciler(ClaimReconciler[Topic, tuple[Mapping[str, Any], ...]]):
    """Reconciles one Topic at a time; details are its groups, as the status shows them."""

    KIND = kinds.TOPIC
    FINALIZER = FINALIZER

    def _read(self, live: dict[str, Any]) -> Topic:
        return read_topic(live)

    def _waits_for_deletion(self, manifest: Topic) -> bool:
        return manifest.spec.deletion_policy == "Delete"

    async def _serve(
        self, key: Key, live: Mapping[str, Any], manifest: Topic
    ) -> tuple[Verdict, tuple[Mapping[str, Any], ...] | None]:
        name = manifest.spec.broker_set_ref.name
        broker_set = await self._set_of(key, name)
        known = valid_manifest(broker_set).broker_names
        unknown = sorted(set(manifest.spec.groups) - set(known))
        if unknown:
            have = ", ".join(known)
            text = f"BrokerSet {name} has no group {', '.join(unknown)}, only {have}; correct spec.groups"
            raise Stopped("GroupUnknown", text)
        view = await self._view_of(broker_set)
        wanted = manifest.spec.groups or known
        groups = await self._own_groups(broker_set, view, wanted)
        return await self._at_groups(live, manifest, wanted, groups, view.connecting)

    async def _at_groups(
        self,
        live: Mapping[str, Any],
        topic: Topic,
        wanted: tuple[str, ...],
        groups: Mapping[str, GroupState],
        connecting: Connecting,
    ) -> tuple[Verdict, tuple[Mapping[str, Any], ...]]:
        found: list[Mapping[str, Any]] = []

        async def act(group: str, address: str) -> None:
            config, problem = await self._at_broker(live, topic, group, address, brokers)
            found.append(
                {
                    "name": group,
                    "readQueues": config.read_queue_nums,
                    "writeQueues": config.write_queue_nums,
                    "permission": PERMISSION_WORDS.get(config.perm, str(config.perm)),
                }
            )
            if problem is not None:
                raise Stopped("QueuesNotEmpty", problem)

        async with Brokers(connecting) as brokers:
            problems = await at_masters(wanted, groups, act)
        if problems:
            text = "; ".join(text for _, text in problems)
            return Verdict(False, problems[0][0], text, WAIT_SECONDS), tuple(found)
        text = f"{len(found)} groups have the topic as wanted"
        return Verdict(True, claim_reasons.AS_WANTED, text), tuple(found)

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
        self._ensure_leading()
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

    async def _delete_at_set(self, key: Key, live: Mapping[str, Any]) -> None:
        spec = live.get("spec") or {}
        # Whoever turned the policy to Retain before deleting keeps the messages.
        if spec.get("deletionPolicy") == "Delete":
            await self._delete_at_brokers(key, str(spec["brokerSetRef"]["name"]), _topic_name(live))

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
        self._ensure_leading()
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

    def _status(
        self,
        live: Mapping[str, Any],
        verdict: Verdict,
        moment: str,
        details: tuple[Mapping[str, Any], ...] | None,
    ) -> dict[str, Any]:
        found = {**status_with(live, verdict, moment), "topicName": _topic_name(live)[:127]}
        kind = (live.get("spec") or {}).get("messageType")
        if isinstance(kind, str):
            found["messageType"] = kind[:16]
        if details:
            found["groups"] = [dict(group) for group in details]
        return found


def _topic_name(live: Mapping[str, Any]) -> str:
    return str((live.get("spec") or {}).get("topicName") or live["metadata"]["name"])


def _shape(config: TopicConfig) -> tuple[int, int, int, bool]:
    return config.read_queue_nums, config.write_queue_nums, config.perm, config.order


def _words(config: TopicConfig) -> str:
    order = ", ordered" if config.order else ""
    order += "".join(f", {name}={value}" for name, value in sorted(config.attributes.items()))
    permission = PERMISSION_WORDS.get(config.perm, str(config.perm))
    return f"{config.read_queue_nums} read and {config.write_queue_nums} write queues, {permission}{order}"
