"""Reconciles a StoreMigration: observe it, its volumes and its Jobs; decide; do it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_kube import kinds
from brokerset_kube.client import Object
from brokerset_kube.errors import NotFound
from brokerset_operator.apply import Means
from brokerset_operator.model import names
from brokerset_operator.plan.objects import items, part
from brokerset_operator.reconcile_queue import GONE, Key
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.migration_plan import plan_migration
from brokerset_operator.store_jobs.observed import ObservedMigration
from brokerset_operator.store_reconciler import belongings, meta_of, pause, read_or_problems, settle
from brokerset_spec.store_migration_manifest import StoreMigration, read_store_migration

MIGRATION: Final = labels.MIGRATION
"""Kind of the keys of these reconciles."""


@dataclass(slots=True)
class MigrationReconciler:
    """Reconciles one StoreMigration at a time."""

    means: Means
    resync_seconds: float
    image: str
    spark_role: str = ""
    on_status: Callable[[Key, Mapping[str, Any]], None] = lambda key, status: None
    """Called with the status of a StoreMigration after each reconcile that has found one."""

    randomness: random.Random = field(default_factory=random.Random)

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises `RetryAfter` or a `KubeError` for what may be better next time.
        """
        try:
            live = await self.means.client.get(kinds.STORE_MIGRATION, key.name, key.namespace)
        except NotFound:
            return GONE
        if live["metadata"].get("deletionTimestamp"):
            return None  # what it owns goes by itself; the volumes stay
        plan = plan_migration(await self._observe(live))
        await settle(kinds.STORE_MIGRATION, key, live, plan, self.means, self.on_status)
        return pause(plan, self.resync_seconds, self.randomness)

    async def _observe(self, live: Object) -> ObservedMigration:
        meta = meta_of(live)
        migration, problems = read_or_problems(read_store_migration, live)
        executors = migration is not None and migration.spec.executors.instances > 0
        mine = await belongings(
            self.means, MIGRATION, meta.name, meta.namespace, uid=meta.uid, executors=executors
        )
        source, target, users, taken = None, None, {}, None
        if migration is not None:
            source = await self._claim(migration.spec.source.claim_name, meta.namespace)
            target = await self._claim(migration.target_claim, meta.namespace)
            users = await self._users(meta.namespace, meta.name)
            taken = await self._taken_by(migration, meta.namespace)
        return ObservedMigration(
            meta=meta,
            manifest=migration,
            problems=problems,
            status=live.get("status") or {},
            source_claim=source,
            target_claim=target,
            users=users,
            taken_by=taken,
            jobs=mine.jobs,
            pods=mine.pods,
            other={**mine.other, **{f"ConfigMap/{name}": one for name, one in mine.config_maps.items()}},
            image=self.image,
            spark_role=self.spark_role,
            now=self.means.clock.now_ms() / 1000,
        )

    async def _claim(self, name: str, namespace: str) -> Object | None:
        try:
            return await self.means.client.get(kinds.CLAIM, name, namespace)
        except NotFound:
            return None

    async def _users(self, namespace: str, own: str) -> dict[str, tuple[str, ...]]:
        """By claim: pods that use it and have not ended."""
        listing = await self.means.client.list(kinds.POD, namespace)
        return users_of(listing.items, own)

    async def _taken_by(self, migration: StoreMigration, namespace: str) -> str | None:
        broker = migration.spec.target.broker
        if broker is None:
            return None
        name = names.group_set(broker.set.name, broker.group)
        try:
            found = await self.means.client.get(kinds.STATEFUL_SET, name, namespace)
        except NotFound:
            return None
        replicas = part(found, "spec").get("replicas", 1)
        return name if isinstance(replicas, int) and replicas > broker.replica else None


def users_of(pods: tuple[Object, ...], own: str) -> dict[str, tuple[str, ...]]:
    """By claim: pods that use it and have not ended, without those of the migration `own`."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        chosen = metadata.get("labels") or {}
        mine = (chosen.get(labels.STORE_JOB), chosen.get(labels.OWNER)) == ("migration", own)
        if mine or part(pod, "status").get("phase") in ("Succeeded", "Failed"):
            continue
        for volume in items(part(pod, "spec"), "volumes"):
            claim = part(volume, "persistentVolumeClaim").get("claimName")
            if claim:
                found.setdefault(str(claim), []).append(str(metadata["name"]))
    return {claim: tuple(sorted(using)) for claim, using in found.items()}
