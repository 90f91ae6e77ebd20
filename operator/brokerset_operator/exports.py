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
from brokerset_operator.model.certificates import trust_config_map
from brokerset_operator.model.tls_stages import jobs_use_tls
from brokerset_operator.owners import NotOurs
from brokerset_operator.plan.objects import seconds
from brokerset_operator.reconcile_queue import GONE, Key
from brokerset_operator.resources.tls_files import server_name
from brokerset_operator.set_trust import trust_in
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.broker_access import BrokerTrust
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
from brokerset_spec.manifest import BrokerSet, ManifestError, read_manifest
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
            exported=None if broker_set is None else await self._exported(broker_set),
            taken_by=writer_of_target(live, there.items),
            jobs=mine.jobs,
            pods=mine.pods,
            maps=mine.config_maps,
            other=mine.other,
            image=self.image,
            spark_role=self.spark_role,
            now=self.means.clock.now_ms() / 1000,
        )

    async def _exported(self, broker_set: Object) -> ExportedSet:
        """The set as far as an export needs it. Raises a `KubeError`."""
        metadata = broker_set["metadata"]
        name, namespace = str(metadata["name"]), str(metadata["namespace"])
        serving = controllers_of(broker_set)
        name_servers = f"{names.namesrv_service(serving)}.{namespace}.svc:{names.NAMESRV_PORT}"
        try:
            manifest = read_manifest(broker_set)
        except ManifestError:
            return ExportedSet(name=name, name_servers=name_servers, problem=set_invalid(name))
        trust, problem = await self._trust(broker_set, manifest)
        return ExportedSet(
            name=name,
            name_servers=name_servers,
            trust=trust,
            checks_users=manifest.spec.acl.secret_name is not None and manifest.spec.acl.mode == ENFORCING,
            requires_certificates=manifest.spec.tls.clients_mode == "require",
            problem=problem,
            placement=placement_of(manifest),
        )

    async def _trust(
        self, broker_set: Object, manifest: BrokerSet
    ) -> tuple[BrokerTrust | None, tuple[str, str] | None]:
        """Whom a job that begins now has to trust, and what is wrong with that."""
        config_map = trust_config_map(manifest)
        if config_map is None:
            return None, None
        name, namespace = str(broker_set["metadata"]["name"]), str(broker_set["metadata"]["namespace"])
        chosen = f"{names.SET_LABEL}={name}"
        listing = await self.means.client.list(kinds.POD, namespace, labels=chosen, metadata_only=True)
        pods = list(listing.items)
        if (serving := controllers_of(broker_set)) != name:  # the job asks that set's name servers
            labels = ",".join(
                f"{key}={value}" for key, value in names.selector(serving, "controller").items()
            )
            others = await self.means.client.list(kinds.POD, namespace, labels=labels, metadata_only=True)
            pods += others.items
        if not jobs_use_tls(manifest, {str(pod["metadata"]["name"]): pod for pod in pods}):
            return None, None
        found, _ = await trust_in(self.means.client, broker_set)
        if found.given is None:
            waits = f"ConfigMap {config_map} is not there yet; the operator makes it with the set's pods"
            return None, (reasons.NO_TRUST, found.problem or waits)
        together = "" if serving == name else found.authorities
        return BrokerTrust(config_map, server_name(serving, namespace), together), None
