"""Reconciles a StoreAudit: observe it, its set and its Jobs; decide; do it; tell the set's condition."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from brokerset_kube import kinds
from brokerset_kube.client import Object
from brokerset_kube.errors import Conflict, NotFound
from brokerset_operator.apply import Means, write_status
from brokerset_operator.controllers_view import (
    ControllersView,
    controller_addresses,
    controllers_of,
    query_controllers,
)
from brokerset_operator.model import names
from brokerset_operator.model.observed import Meta
from brokerset_operator.owners import NotOurs
from brokerset_operator.plan.conditions import Verdict, condition, find, verdict_of
from brokerset_operator.plan.objects import items, part, seconds
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter
from brokerset_operator.set_access import connecting_to
from brokerset_operator.set_reconciler import SET
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.audit_plan import AuditPlan, combined, plan_audit
from brokerset_operator.store_jobs.observed import AuditedSet, ObservedAudit, Replica
from brokerset_operator.store_jobs.outcomes import last_object, outcome_of, pods_of
from brokerset_operator.store_reconciler import (
    Belongings,
    belongings,
    carry_out,
    meta_of,
    pause,
    placement_of,
    read_or_problems,
    set_invalid,
    set_of,
    settle,
)
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_spec.manifest import ManifestError, read_manifest
from brokerset_spec.store_audit_manifest import StoreAudit, read_store_audit

log = structlog.get_logger(__name__)

AUDIT: Final = labels.AUDIT
"""Kind of the keys of these reconciles."""

LOG_BYTES_MAX: Final = 4 << 20
"""Most that is read of a Job's log; a map that a ConfigMap takes is smaller."""

MEMBERS: Final = 10_000
"""Most StoreAudits of which it is remembered which set they are about."""


@dataclass(slots=True)
class AuditIndex:
    """Which sets StoreAudits are about, from their events."""

    _sets: dict[Key, Key] = field(default_factory=dict)

    def saw(self, live: Mapping[str, Any]) -> None:
        """A StoreAudit as it is now."""
        metadata = live["metadata"]
        namespace = str(metadata.get("namespace") or "")
        name = str(part(part(live, "spec"), "brokerSetRef").get("name") or "")
        if len(self._sets) < MEMBERS:
            self._sets[Key(AUDIT, namespace, metadata["name"])] = Key(SET, namespace, name)

    def forget(self, key: Key) -> Key | None:
        """A StoreAudit is gone; returns the set that it was about."""
        return self._sets.pop(key, None)

    def of_set(self, namespace: str, name: str) -> tuple[Key, ...]:
        """The StoreAudits of a set."""
        wanted = Key(SET, namespace, name)
        return tuple(key for key, audited in self._sets.items() if audited == wanted)


@dataclass(slots=True)
class AuditReconciler:
    """Reconciles one StoreAudit at a time."""

    means: Means
    index: AuditIndex
    resync_seconds: float
    image: str
    spark_role: str = ""
    on_status: Callable[[Key, Mapping[str, Any]], None] = lambda key, status: None
    """Called with the status of a StoreAudit after each reconcile that has found one."""

    on_set: Callable[[Key], None] = lambda key: None
    """Called with a set whose condition has changed."""

    randomness: random.Random = field(default_factory=random.Random)

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises `RetryAfter` or a `KubeError` for what may be better next time.
        """
        try:
            try:
                live = await self.means.client.get(kinds.STORE_AUDIT, key.name, key.namespace)
            except NotFound:
                await self._gone(key)
                return GONE
            self.index.saw(live)
            if live["metadata"].get("deletionTimestamp"):
                return None  # what it owns goes by itself
            return await self._reconcile(key, live)
        except NotOurs:
            return self.resync_seconds

    async def _reconcile(self, key: Key, live: Object) -> float:
        observed, broker_set = await self._observe(live)
        plan = plan_audit(observed)
        await settle(kinds.STORE_AUDIT, key, live, plan, self.means, self.on_status)
        if broker_set is not None:
            await self._tell_set(broker_set, plan)
        return pause(plan, self.resync_seconds, self.randomness)

    # -- reading ------------------------------------------------------------------------------------------

    async def _observe(self, live: Object) -> tuple[ObservedAudit, Object | None]:
        meta = meta_of(live)
        audit, problems = read_or_problems(read_store_audit, live)
        executors = audit is not None and audit.spec.executors.instances > 0
        mine = await belongings(
            self.means, AUDIT, meta.name, meta.namespace, uid=meta.uid, executors=executors
        )
        broker_set = await set_of(live, self.means)
        audited, others = None, {}
        if broker_set is not None and audit is not None:
            audited = await self._audited(broker_set, audit)
        if broker_set is not None:
            others = await self._others(meta, broker_set["metadata"]["name"])
        observed = ObservedAudit(
            meta=meta,
            manifest=audit,
            problems=problems,
            status=live.get("status") or {},
            created=seconds(live["metadata"].get("creationTimestamp")) or 0.0,
            audited=audited,
            jobs=mine.jobs,
            pods=mine.pods,
            maps=mine.config_maps,
            other=mine.other,
            results=await self._results(meta, mine),
            report_is_shared=await self._is_shared(meta, audit),
            others=others,
            image=self.image,
            spark_role=self.spark_role,
            now=self.means.clock.now_ms() / 1000,
        )
        return observed, broker_set

    async def _audited(self, broker_set: Object, audit: StoreAudit) -> AuditedSet:
        """The set as far as an audit needs it."""
        metadata = broker_set["metadata"]
        name, uid = str(metadata["name"]), str(metadata["uid"])
        try:
            manifest = read_manifest(broker_set)
        except ManifestError:
            return AuditedSet(name=name, uid=uid, problem=set_invalid(name))
        if manifest.is_dledger:
            said = (
                f"the groups of BrokerSet {name} are DLedgers, and audits of running brokers are for groups"
                " with controllers: give `brokerset store audit` copies of the stores"
            )
            return AuditedSet(name=name, uid=uid, problem=(reasons.SET_UNSUPPORTED, said))
        unknown = sorted(set(audit.spec.groups) - set(manifest.broker_names))
        if unknown:
            have = ", ".join(manifest.broker_names)
            said = f"BrokerSet {name} has no group {', '.join(unknown)}, only {have}; correct spec.groups"
            return AuditedSet(name=name, uid=uid, problem=(reasons.GROUP_UNKNOWN, said))
        placement = placement_of(manifest)
        pods, view = await self._observe_set(broker_set)
        if view.controllers.leader is None:
            serving = controllers_of(broker_set)
            said = f"no controller of {serving} leads; see the BrokerSet's condition ControllersReady"
            problem = reasons.CONTROLLERS_SILENT, said
            return AuditedSet(name=name, uid=uid, problem=problem, placement=placement)
        wanted = audit.spec.groups or manifest.broker_names
        replicas: list[Replica] = []
        views: dict[str, Mapping[str, object]] = {}
        for index, group in enumerate(manifest.broker_names):
            state = view.groups.get(group)
            if group in wanted and state is not None:
                replicas += replicas_of(name, index, group, state, pods)
                views[group] = {
                    "brokerName": group,
                    "masterId": state.master_id,
                    "masterEpoch": state.master_epoch,
                    "syncStateSet": sorted(state.sync_state_set),
                }
        return AuditedSet(name=name, uid=uid, replicas=tuple(replicas), views=views, placement=placement)

    async def _observe_set(self, broker_set: Object) -> tuple[dict[str, Object], ControllersView]:
        """The set's pods, and what the controllers that serve it say."""
        metadata = broker_set["metadata"]
        name, namespace, serving = metadata["name"], metadata["namespace"], controllers_of(broker_set)
        pods = await self._pods(namespace, f"{names.SET_LABEL}={name}")
        asked = pods
        if serving != name:
            chosen = names.selector(serving, "controller")
            asked = await self._pods(namespace, ",".join(f"{key}={value}" for key, value in chosen.items()))
        connecting = await connecting_to(broker_set, asked, self.means)
        return pods, await query_controllers(controller_addresses(asked), connecting)

    async def _pods(self, namespace: str, selector: str) -> dict[str, Object]:
        listing = await self.means.client.list(kinds.POD, namespace, labels=selector)
        return {str(pod["metadata"]["name"]): pod for pod in listing.items}

    async def _results(self, meta: Meta, mine: Belongings) -> dict[str, str | None]:
        """What Jobs of replicas say that are done, and whose ConfigMap is not there yet."""
        found: dict[str, str | None] = {}
        for name, job in mine.jobs.items():
            if labels.step_of(job) == labels.REDUCE:
                continue
            outcome = outcome_of(job, pods_of(name, mine.pods))
            if outcome.state != "done" or _is_kept(job, mine):
                continue
            said = await self.means.client.log(outcome.pod, meta.namespace, limit_bytes=LOG_BYTES_MAX)
            found[name] = last_object(said)
        return found

    async def _is_shared(self, meta: Meta, audit: StoreAudit | None) -> bool:
        """Whether the volume of reports can be mounted wherever replicas are read."""
        if audit is None or audit.spec.report.claim_name is None:
            return False
        try:
            claim = await self.means.client.get(kinds.CLAIM, audit.spec.report.claim_name, meta.namespace)
        except NotFound:
            return False
        return "ReadWriteMany" in (part(claim, "spec").get("accessModes") or ())

    async def _others(self, meta: Meta, set_name: str) -> dict[str, Verdict]:
        """What other StoreAudits say of the same set."""
        listing = await self.means.client.list(kinds.STORE_AUDIT, meta.namespace)
        return {
            str(item["metadata"]["name"]): verdict
            for item in listing.items
            if item["metadata"]["name"] != meta.name
            and part(part(item, "spec"), "brokerSetRef").get("name") == set_name
            and not item["metadata"].get("deletionTimestamp")
            and (verdict := _verdict(item)) is not None
        }

    # -- the set's condition ------------------------------------------------------------------------------

    async def _tell_set(self, broker_set: Object, plan: AuditPlan) -> None:
        """Write the set's condition, and say what is new."""
        await self._put_condition(broker_set, plan.on_set)
        await carry_out(plan.set_events, broker_set, self.means)

    async def _put_condition(self, broker_set: Object, wanted: Verdict | None) -> None:
        metadata, status = broker_set["metadata"], broker_set.get("status") or {}
        before = find(status, reasons.AUDIT_PASSED)
        if verdict_of(before) == wanted:
            return
        kept = [dict(one) for one in items(status, "conditions") if one.get("type") != reasons.AUDIT_PASSED]
        if wanted is not None:
            now = self.means.clock.now_ms() / 1000
            generation = int(metadata.get("generation") or 1)
            kept.append(condition(status, reasons.AUDIT_PASSED, wanted, generation=generation, now=now))
        written = await write_status(kinds.BROKER_SET, broker_set, {**status, "conditions": kept}, self.means)
        if written is not None:
            self.on_set(Key(SET, metadata["namespace"], metadata["name"]))

    async def _gone(self, key: Key) -> None:
        """What others say of its set is the whole truth now."""
        audited = self.index.forget(key)
        if audited is None:
            return
        try:
            broker_set = await self.means.client.get(kinds.BROKER_SET, audited.name, audited.namespace)
        except NotFound:
            return
        meta = Meta(name=key.name, namespace=key.namespace, uid="", generation=0)
        try:
            await self._put_condition(broker_set, combined(None, await self._others(meta, audited.name)))
        except Conflict as error:
            self.index.saw(
                {
                    "metadata": {"name": key.name, "namespace": key.namespace},
                    "spec": {"brokerSetRef": {"name": audited.name}},
                }
            )
            raise RetryAfter(str(error)) from error


def replicas_of(
    set_name: str, index: int, group: str, state: GroupState, pods: Mapping[str, Object]
) -> list[Replica]:
    """The brokers of a group that are registered and have a pod, by ordinal."""
    resource = names.group_set(set_name, index)
    by_address = {str(part(pod, "status").get("podIP") or ""): name for name, pod in pods.items()}
    confirmed = next(
        (replica.confirm_offset for replica in state.replicas if replica.broker_id == state.master_id), None
    )
    found = []
    for replica in state.replicas:
        pod = by_address.get(replica.address.rpartition(":")[0].strip("[]"))
        prefix, _, ordinal = (pod or "").rpartition("-")
        if pod is None or prefix != resource or not ordinal.isdecimal():
            continue
        live = pods[pod]
        gone = part(live, "metadata").get("deletionTimestamp") is not None
        found.append(
            Replica(
                group=group,
                pod=pod,
                index=index,
                ordinal=int(ordinal),
                broker_id=replica.broker_id,
                claim=names.claim_of(pod),
                confirmed_offset=confirmed,
                running=not gone and bool(part(live, "spec").get("nodeName")),
            )
        )
    return sorted(found, key=lambda each: each.ordinal)


def _verdict(live: Mapping[str, Any]) -> Verdict | None:
    found = verdict_of(find(part(live, "status"), reasons.AUDIT_PASSED))
    return None if found is None or found[1] == reasons.NOT_RUN else found


def _is_kept(job: Object, mine: Belongings) -> bool:
    """Whether what a Job said is in its ConfigMap already."""
    pod = (job["metadata"].get("labels") or {}).get(labels.AUDITED_POD)
    return any(
        labels.run_of(each) == labels.run_of(job)
        and labels.step_of(each) == labels.step_of(job)
        and (each["metadata"].get("annotations") or {}).get(labels.AUDITED_POD) == pod
        for each in mine.config_maps.values()
    )
