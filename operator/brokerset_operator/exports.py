"""Reconciles a StoreExport: observe it, its set and its Jobs; decide; do it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_kube import kinds
from brokerset_kube.client import Object
from brokerset_kube.errors import NotFound
from brokerset_operator.apply import Means
from brokerset_operator.controllers_view import controllers_of
from brokerset_operator.model import names
from brokerset_operator.owners import NotOurs
from brokerset_operator.plan.objects import seconds
from brokerset_operator.reconcile_queue import GONE, Key
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.export_plan import plan_export
from brokerset_operator.store_jobs.export_targets import writer_of_target
from brokerset_operator.store_jobs.observed import ExportedSet, ObservedExport
from brokerset_operator.store_reconciler import (
    belongings,
    meta_of,
    pause,
    placement_of,
    read_or_problems,
    set_invalid,
    set_of,
    settle,
)
from brokerset_spec.manifest import ManifestError, read_manifest
from brokerset_spec.set_parts import ENFORCING
from brokerset_spec.store_export_manifest import read_store_export

EXPORT: Final = labels.EXPORT
"""Kind of the keys of these reconciles."""


@dataclass(slots=True)
class ExportReconciler:
    """Reconciles one StoreExport at a time."""

    means: Means
    resync_seconds: float
    image: str
    spark_role: str = ""
    on_status: Callable[[Key, Mapping[str, Any]], None] = lambda key, status: None
    """Called with the status of a StoreExport after each reconcile that has found one."""

    randomness: random.Random = field(default_factory=random.Random)

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises a `KubeError` for what may be better next time.
        """
        try:
            live = await self.means.client.get(kinds.STORE_EXPORT, key.name, key.namespace)
        except NotFound:
            return GONE
        if live["metadata"].get("deletionTimestamp"):
            return None  # what it owns goes by itself; the table stays
        try:
            plan = plan_export(await self._observe(live))
        except NotOurs:
            return self.resync_seconds
        await settle(kinds.STORE_EXPORT, key, live, plan, self.means, self.on_status)
        return pause(plan, self.resync_seconds, self.randomness)

    async def _observe(self, live: Object) -> ObservedExport:
        meta = meta_of(live)
        export, problems = read_or_problems(read_store_export, live)
        broker_set = await set_of(live, self.means)
        there = await self.means.client.list(kinds.STORE_EXPORT, meta.namespace)
        # Also what executors of earlier runs took: the manifest may have none any more.
        mine = await belongings(
            self.means, EXPORT, meta.name, meta.namespace, uid=meta.uid, executors=bool(self.spark_role)
        )
        return ObservedExport(
            meta=meta,
            manifest=export,
            problems=problems,
            status=live.get("status") or {},
            created=seconds(live["metadata"].get("creationTimestamp")) or 0.0,
            exported=None if broker_set is None else exported_set(broker_set),
            taken_by=writer_of_target(live, there.items),
            jobs=mine.jobs,
            pods=mine.pods,
            maps=mine.config_maps,
            other=mine.other,
            image=self.image,
            spark_role=self.spark_role,
            now=self.means.clock.now_ms() / 1000,
        )


def exported_set(broker_set: Object) -> ExportedSet:
    """The set as far as an export needs it."""
    metadata = broker_set["metadata"]
    name = str(metadata["name"])
    host = f"{names.namesrv_service(controllers_of(broker_set))}.{metadata['namespace']}.svc"
    name_servers = f"{host}:{names.NAMESRV_PORT}"
    try:
        manifest = read_manifest(broker_set)
        placement = placement_of(manifest)
    except ManifestError:
        return ExportedSet(name=name, name_servers=name_servers, problem=set_invalid(name))
    if manifest.spec.tls.mode == ENFORCING:
        text = (
            f"the BrokerSet {name} takes TLS alone, and exports connect without: give it tls.mode: permissive"
        )
        problem = reasons.SET_UNSUPPORTED, text
        return ExportedSet(name=name, name_servers=name_servers, problem=problem)
    if manifest.spec.acl.secret_name is not None and manifest.spec.acl.mode == ENFORCING:
        text = f"the BrokerSet {name} checks who signs, and exports do not: give it acl.mode: permissive"
        return ExportedSet(name=name, name_servers=name_servers, problem=(reasons.SET_UNSUPPORTED, text))
    return ExportedSet(name=name, name_servers=name_servers, placement=placement)
