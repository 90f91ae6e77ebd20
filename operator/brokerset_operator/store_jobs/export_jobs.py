"""The Job of a run of an export: its pod drives Spark, executors are pods next to it."""

from __future__ import annotations

from typing import Final

from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.broker_access import BrokerAccess, BrokerTrust
from brokerset_operator.store_jobs.job_objects import STATUS_FILE, engine_options
from brokerset_operator.store_jobs.job_parts import JobFacts, Mounted
from brokerset_operator.store_jobs.observed import ObservedExport
from brokerset_operator.store_jobs.schedule import Run
from brokerset_spec.store_export_manifest import (
    BrokerCredentials,
    ExportCatalog,
    ExportSpec,
    ExportTarget,
)

TARGET_MOUNT: Final = "/target"


def export_job_name(export: str, run: int) -> str:
    """Name of the Job of a run."""
    return f"{export}-{run}"


def export_job(observed: ObservedExport, run: Run) -> JobFacts:
    """The Job of a run. It goes on where the last commit of the table is, so it may be killed at any time."""
    export, exported = observed.manifest, observed.exported
    assert export is not None, "an invalid manifest is not carried out"
    assert exported is not None, "a run ends when its set is gone"
    spec = export.spec
    command = ["lake", "--name-servers", exported.name_servers]
    command += [f"--topic={topic}" for topic in spec.topics]  # a name may begin with -
    if spec.topic_pattern is not None:
        # Kubernetes puts variables in for $(NAME), also of Secrets, and makes one $ of two.
        command.append(f"--topic-pattern={spec.topic_pattern.replace('$', '$$')}")
    command += ["--target", address_of(spec.target), "--format", spec.target.format, "--schema", spec.schema_]
    command += _catalog_options(spec.target.catalog)
    if spec.avro is not None:
        command += ["--registry", spec.avro.registry]
        command += [] if spec.avro.subject is None else ["--subject", spec.avro.subject]
    if spec.json_columns:
        columns = ", ".join(f"{column.name} {column.type}" for column in spec.json_columns)
        command += ["--json-columns", columns]
    if spec.vacuum_hours is not None:
        command += ["--vacuum-hours", str(spec.vacuum_hours)]
    if spec.compact:
        command.append("--compact")
    command += ["--summary", STATUS_FILE]
    claim = spec.target.claim_name
    mounts = (
        [] if claim is None else [Mounted(name="target", claim=claim, path=TARGET_MOUNT, read_only=False)]
    )
    return JobFacts(
        kind=labels.EXPORT,
        owner=export.metadata.name,
        uid=observed.meta.uid,
        namespace=observed.meta.namespace,
        name=export_job_name(export.metadata.name, run.number),
        run=run.number,
        step=labels.LAKE,
        image=spec.image or observed.image,
        command=[*command, *engine_options("spark", spec.limits, spec.executors)],
        limits=spec.limits,
        deadline_seconds=int(run.started + spec.limits.deadline_seconds - observed.now),
        mounts=mounts,
        placement=exported.placement,
        engine="spark",
        executors=spec.executors,
        secrets=_secrets(spec),
        access=_access(spec.credentials, exported.trust),
    )


def _access(credentials: BrokerCredentials | None, trust: BrokerTrust | None) -> BrokerAccess:
    if credentials is None:
        return BrokerAccess(trust)
    return BrokerAccess(trust, credentials.secret_name, credentials.certificate_secret_name)


def address_of(target: ExportTarget) -> str:
    """Of the table, as the job takes it."""
    return target.url if target.url is not None else f"{TARGET_MOUNT}/{target.path}"


def _catalog_options(catalog: ExportCatalog | None) -> list[str]:
    """Those of an Iceberg table; what is secret is in variables."""
    if catalog is None:
        return []
    found = [
        "--catalog",
        catalog.name,
        "--table",
        catalog.table,
        "--catalog-property",
        f"type={catalog.type}",
    ]
    for name, value in (("uri", catalog.uri), ("warehouse", catalog.warehouse)):
        found += [] if value is None else ["--catalog-property", f"{name}={value}"]
    return found


def _secrets(spec: ExportSpec) -> tuple[str, ...]:
    """Names of the Secrets, each once."""
    owners = (spec.target, spec.target.catalog, spec.avro)
    keys = (owner.credentials for owner in owners if owner is not None)
    return tuple(dict.fromkeys(each.secret_name for each in keys if each is not None))
