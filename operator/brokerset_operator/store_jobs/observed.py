"""What the operator sees of one object that becomes Jobs in one reconcile; values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brokerset_operator.model.observed import Meta, Object
from brokerset_operator.plan.conditions import Verdict
from brokerset_operator.store_jobs.broker_access import BrokerTrust
from brokerset_operator.store_jobs.outcomes import Outcome, outcome_of, pods_of
from brokerset_spec.pod_template import PodTemplate
from brokerset_spec.problems import Problem
from brokerset_spec.store_audit_manifest import StoreAudit
from brokerset_spec.store_export_manifest import StoreExport
from brokerset_spec.store_migration_manifest import StoreMigration


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJobs:
    """What is seen of every kind that becomes Jobs."""

    meta: Meta
    problems: tuple[Problem, ...] = ()
    """What is wrong with its manifest."""

    status: Mapping[str, object] = field(default_factory=dict)
    """As it was written in an earlier reconcile."""

    jobs: Mapping[str, Object] = field(default_factory=dict)
    """Its Jobs, by name."""

    pods: Mapping[str, Object] = field(default_factory=dict)
    """Pods of these Jobs."""

    maps: Mapping[str, Object] = field(default_factory=dict)
    """Its ConfigMaps, by name; their metadata is enough."""

    other: Mapping[str, Object] = field(default_factory=dict)
    """Further objects of it, by `<kind>/<name>`."""

    image: str
    """Image of jobs when the manifest names none."""

    spark_role: str = ""
    """`ClusterRole/<name>` or `Role/<name>` that drivers get; empty when there may be no executors."""

    now: float
    """Seconds since 1970."""

    @property
    def objects(self) -> dict[str, Object]:
        """All that belongs to its Jobs, by `<kind>/<name>`."""
        return {f"ConfigMap/{name}": each for name, each in self.maps.items()} | dict(self.other)

    def outcome(self, job: str) -> Outcome:
        """What has become of a Job."""
        return outcome_of(self.jobs.get(job), pods_of(job, self.pods))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRuns(ObservedJobs):
    """What is seen of every kind that has runs."""

    manifest: StoreAudit | StoreExport | None
    """None when it is invalid."""

    created: float
    """When the object was made, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A broker whose volume can be read."""

    group: str
    """RocketMQ's name of its group."""

    pod: str
    index: int
    """Number of the group in the set."""

    ordinal: int
    broker_id: int
    claim: str
    confirmed_offset: int | None = None
    """What the group's master said that all in sync have."""

    running: bool = True
    """Whether its pod is there to stay: it has a node, and is not on its way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedSet:
    """The BrokerSet that is audited."""

    name: str
    uid: str
    replicas: tuple[Replica, ...] = ()
    """Of the groups that are asked for, by group and ordinal."""

    views: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By group: what the controllers say of its master, epoch and in-sync set, as `audit reduce` reads it."""

    problem: tuple[str, str] | None = None
    """Why it cannot be audited now: in one word, and what to do."""

    placement: PodTemplate = field(default_factory=PodTemplate)
    """Where its own pods may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAudit(ObservedRuns):
    """A StoreAudit."""

    manifest: StoreAudit | None
    """None when it is invalid."""

    audited: AuditedSet | None = None
    """None when there is no such set."""

    results: Mapping[str, str | None] = field(default_factory=dict)
    """By Job: what the log of a map says; None when it says nothing that can be read."""

    report_is_shared: bool = False
    """Whether the volume of reports can be mounted on every node at once."""

    others: Mapping[str, Verdict] = field(default_factory=dict)
    """What other StoreAudits of the same set say of it, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSet:
    """The BrokerSet that is exported."""

    name: str
    name_servers: str
    """Address of its name servers, as `host:port`."""

    trust: BrokerTrust | None = None
    """Whom its jobs trust when they connect by TLS; None: they connect plain."""

    checks_users: bool = False
    """Whether it serves only who signs, or is on the way there."""

    requires_certificates: bool = False
    """Whether it serves only who shows a certificate, or is on the way there."""

    problem: tuple[str, str] | None = None
    """Why it cannot be exported now: in one word, and what to do."""

    placement: PodTemplate = field(default_factory=PodTemplate)
    """Where its own pods may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedExport(ObservedRuns):
    """A StoreExport."""

    manifest: StoreExport | None
    """None when it is invalid."""

    exported: ExportedSet | None = None
    """None when there is no such set."""

    taken_by: str | None = None
    """Name of another StoreExport whose table the target is; see `export_targets`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMigration(ObservedJobs):
    """A StoreMigration."""

    manifest: StoreMigration | None
    """None when it is invalid."""

    source_claim: Object | None = None
    target_claim: Object | None = None
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By claim: pods that use it and have not ended, without those of this StoreMigration."""

    taken_by: str | None = None
    """Name of a StatefulSet that has, or may make at any time, a broker on the target's volume."""
