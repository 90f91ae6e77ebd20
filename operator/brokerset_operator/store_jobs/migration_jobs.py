"""The objects of a migration: the target's volume, the Job that copies, and the one that reads it back."""

from __future__ import annotations

from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.plan.objects import requested
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.job_objects import STATUS_FILE, engine_options
from brokerset_operator.store_jobs.job_parts import JobFacts, Mounted
from brokerset_operator.store_jobs.observed import ObservedMigration
from brokerset_spec.store_job_parts import Executors, bytes_of
from brokerset_spec.store_migration_manifest import StoreMigration

SOURCE_MOUNT: Final = "/source"
TARGET_MOUNT: Final = "/target"

RUN: Final = 1
"""A migration has one run; further tries of its Job go on where the one before stopped."""


def migrate_job_name(migration: str) -> str:
    """Name of the Job that copies."""
    return f"{migration}-migrate"


def verify_job_name(migration: str) -> str:
    """Name of the Job that reads the new store."""
    return f"{migration}-verify"


def target_claim(observed: ObservedMigration) -> NewObject:
    """The target's volume, as the StatefulSet of its group would ask for it; it outlives the migration."""
    migration = manifest_of(observed)
    target = migration.spec.target
    size = target.storage.size or requested(observed.source_claim or {})
    spec: NewObject = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": size}},
    }
    if target.storage.class_name is not None:
        spec["storageClassName"] = target.storage.class_name
    metadata: NewObject = {"name": migration.target_claim, "namespace": observed.meta.namespace}
    if target.broker is not None:
        name = target.broker.set.name
        metadata["labels"] = names.labels(name, "broker", names.group_set(name, target.broker.group))
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def migrate_job(observed: ObservedMigration) -> JobFacts:
    """The Job that copies."""
    migration = manifest_of(observed)
    spec = migration.spec
    options = spec.options
    command = ["migrate", _source(migration), _target(migration), "--to", spec.mode]
    if options.rewrite:
        command.append("--rewrite")
    size = bytes_of(options.file_size)
    if size is not None:
        command += ["--file-size", str(size)]
    if options.since_milliseconds is not None:
        command += ["--from-time", str(options.since_milliseconds)]
    for topic in options.topics:
        command += ["--keep-topic", topic]
    command += ["--summary", STATUS_FILE]
    mounts = [
        Mounted(name="source", claim=spec.source.claim_name, path=SOURCE_MOUNT),
        Mounted(name="target", claim=migration.target_claim, path=TARGET_MOUNT, read_only=False),
    ]
    return _facts(
        observed,
        name=migrate_job_name(migration.metadata.name),
        step=labels.MIGRATE,
        command=[*command, *engine_options(spec.engine, spec.limits, spec.executors)],
        mounts=mounts,
        engine=spec.engine,
        executors=spec.executors,
    )


def verify_job(observed: ObservedMigration) -> JobFacts:
    """The Job that reads the new store."""
    migration = manifest_of(observed)
    spec = migration.spec
    command = ["verify", _target(migration), "--summary", STATUS_FILE]
    return _facts(
        observed,
        name=verify_job_name(migration.metadata.name),
        step=labels.VERIFY,
        command=[*command, *engine_options("processes", spec.limits, Executors())],
        mounts=[Mounted(name="target", claim=migration.target_claim, path=TARGET_MOUNT)],
    )


def manifest_of(observed: ObservedMigration) -> StoreMigration:
    """The manifest, which must be valid."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    return observed.manifest


def _source(migration: StoreMigration) -> str:
    return f"{SOURCE_MOUNT}/{migration.spec.source.path}"


def _target(migration: StoreMigration) -> str:
    return f"{TARGET_MOUNT}/{migration.spec.target.path}"


def _facts(observed: ObservedMigration, **more: Any) -> JobFacts:
    migration = manifest_of(observed)
    return JobFacts(
        kind=labels.MIGRATION,
        owner=migration.metadata.name,
        uid=observed.meta.uid,
        namespace=observed.meta.namespace,
        run=RUN,
        image=migration.spec.image or observed.image,
        limits=migration.spec.limits,
        deadline_seconds=migration.spec.limits.deadline_seconds,
        **more,
    )
