"""The StoreAudit manifest: compares the replicas of a BrokerSet on a schedule; typed, with every default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_spec.manifest_parts import (
    API_VERSION,
    GroupNames,
    ObjectName,
    Part,
    ruled,
)
from brokerset_spec.manifest_reader import ManifestReader, put_name, refer_to_set
from brokerset_spec.problems import Problem, listed_twice
from brokerset_spec.store_job_parts import (
    JOB_RULES,
    Executors,
    FolderPath,
    JobMetadata,
    Limits,
    ScheduledSpec,
    engine_problems,
    resources_problems,
)

KIND: Final = "StoreAudit"

EXAMPLES: Final = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": "{name: nightly}",
    "name": "nightly",
    "spec": "{brokerSetRef: {name: orders}}",
    "brokerSetRef": "{name: orders}",
}
"""What to write for a field that is missing."""


class AuditReport(Part):
    """Where whole reports are kept; the status has a summary of each run all the same."""

    claim_name: ObjectName | None = None
    """A volume for reports and pages; none keeps neither."""

    path: FolderPath = "audits"
    """Folder within it."""

    keep_runs: Annotated[int, Field(ge=1, le=1000)] = 30
    """Reports that are kept; then the oldest is written over."""


class AuditSpec(ScheduledSpec):
    """What is wanted; everything but the set has a default."""

    model_config = ConfigDict(json_schema_extra=ruled(*JOB_RULES))

    groups: GroupNames = ()
    """Names of the broker groups that are audited; none means all."""

    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    """When a run is due and one is on: the new one is left out, or takes its place."""

    full_every_days: Annotated[int, Field(ge=0, le=365)] = 7
    """After so many days everything is read again, also what has not changed; 0: in every run."""

    engine: Literal["processes", "spark"] = "processes"
    """What reads: processes of one pod for each replica, or Spark in it."""

    executors: Executors = Executors()
    """Spark executors in pods of their own, for each replica, on its node."""

    limits: Limits = Limits()
    report: AuditReport = AuditReport()


class StoreAudit(Part):
    """Compares the replicas of a BrokerSet, byte by byte, on a schedule."""

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["StoreAudit"]
    metadata: JobMetadata
    spec: AuditSpec
    status: Any = None
    """Written by the operator; not read."""


def check_store_audit(audit: StoreAudit) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest: contradictions."""
    spec = audit.spec
    return [
        *_contradictions(spec),
        *engine_problems(spec.engine, spec.executors),
        *resources_problems(spec.limits, spec.executors, spec.engine),
    ]


def _contradictions(spec: AuditSpec) -> Iterable[Problem]:
    yield from listed_twice("spec.groups", spec.groups, "list each group once")


def _complete(rest: dict[str, Any]) -> None:
    put_name(rest)
    refer_to_set(rest)


read_store_audit: Final = ManifestReader(
    model=StoreAudit,
    api_version=API_VERSION,
    kind=KIND,
    outline="metadata: {name: …}, spec: …",
    examples=EXAMPLES,
    check=check_store_audit,
    complete=_complete,
).read
"""Check a manifest; see `ManifestReader.read`."""
