"""A StoreAudit, a StoreMigration and a StoreExport as plans see them, and Jobs in every state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from brokerset_operator.model.actions import ApplyObject, DeleteObject, EmitEvent
from brokerset_operator.model.observed import Meta
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.audit_plan import AuditPlan, plan_audit
from brokerset_operator.store_jobs.broker_access import BrokerTrust
from brokerset_operator.store_jobs.export_plan import plan_export
from brokerset_operator.store_jobs.migration_plan import plan_migration
from brokerset_operator.store_jobs.observed import (
    AuditedSet,
    ExportedSet,
    ObservedAudit,
    ObservedExport,
    ObservedMigration,
    Replica,
)
from brokerset_operator.store_jobs.sequence import JobPlan
from brokerset_spec.store_audit_manifest import read_store_audit
from brokerset_spec.store_export_manifest import read_store_export
from brokerset_spec.store_migration_manifest import read_store_migration

CREATED = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()
"""A Monday noon."""

NIGHT = datetime(2026, 3, 3, 3, 0, tzinfo=UTC).timestamp()
UID = "0a0a"


VIEW = {"brokerName": "orders-0", "masterId": 1, "masterEpoch": 4, "syncStateSet": [1, 2, 3]}


def audit_manifest(**spec: Any) -> dict[str, Any]:
    """A StoreAudit of the set `orders`, each night at three."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreAudit",
        "metadata": {"name": "nightly"},
        "spec": {"brokerSetRef": {"name": "orders"}, "schedule": "0 3 * * *", **spec},
    }


def replica(ordinal: int, index: int = 0, **more: Any) -> Replica:
    """A broker of `orders`."""
    pod = f"orders-{index}-{ordinal}"
    return Replica(
        group=f"orders-{index}",
        pod=pod,
        index=index,
        ordinal=ordinal,
        broker_id=ordinal + 1,
        claim=f"data-{pod}",
        confirmed_offset=4096,
        **more,
    )


def observed_audit(**more: Any) -> ObservedAudit:
    """The StoreAudit `nightly` before its first run: three brokers run."""
    given: dict[str, Any] = {
        "meta": Meta(name="nightly", namespace="shop", uid=UID, generation=1),
        "manifest": read_store_audit(audit_manifest()),
        "created": CREATED,
        "audited": AuditedSet(
            name="orders",
            uid="5e7",
            replicas=tuple(replica(ordinal) for ordinal in range(3)),
            views={"orders-0": VIEW},
        ),
        "image": "brokerset-spark:1",
        "now": CREATED + 60,
    }
    return ObservedAudit(**{**given, **more})


def migration_manifest(**spec: Any) -> dict[str, Any]:
    """A StoreMigration of the volume `old-broker` to the first broker of `orders`."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreMigration",
        "metadata": {"name": "take-over"},
        "spec": {
            "source": {"claimName": "old-broker"},
            "target": {"broker": {"set": {"name": "orders"}}},
            **spec,
        },
    }


def claim(name: str, size: str = "20Gi") -> dict[str, Any]:
    """A volume claim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}"},
        "spec": {"resources": {"requests": {"storage": size}}},
    }


def observed_migration(**more: Any) -> ObservedMigration:
    """The StoreMigration `take-over` before anything was done."""
    given: dict[str, Any] = {
        "meta": Meta(name="take-over", namespace="shop", uid=UID, generation=1),
        "manifest": read_store_migration(migration_manifest()),
        "source_claim": claim("old-broker"),
        "image": "brokerset-spark:1",
        "now": CREATED,
    }
    return ObservedMigration(**{**given, **more})


def export_manifest(**spec: Any) -> dict[str, Any]:
    """A StoreExport of a topic of the set `orders`, each night at three."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreExport",
        "metadata": {"name": "lake"},
        "spec": {
            "brokerSetRef": {"name": "orders"},
            "topics": ["payments"],
            "target": {"url": "s3://lake/orders", "credentials": {"secretName": "lake-keys"}},
            "schedule": "0 3 * * *",
            **spec,
        },
    }


def observed_export(**more: Any) -> ObservedExport:
    """The StoreExport `lake` before its first run."""
    given: dict[str, Any] = {
        "meta": Meta(name="lake", namespace="shop", uid=UID, generation=1),
        "manifest": read_store_export(export_manifest()),
        "created": CREATED,
        "exported": ExportedSet(name="orders", name_servers="orders-namesrv.shop.svc:9876"),
        "image": "brokerset-spark:1",
        "now": CREATED + 60,
    }
    return ObservedExport(**{**given, **more})


TRUST = BrokerTrust("orders-authorities", "orders-namesrv.shop.svc")
"""Of the set `orders` when it takes TLS alone."""


def enforcing_set() -> ExportedSet:
    """The set `orders` when it takes TLS alone and checks users."""
    return ExportedSet(
        name="orders", name_servers="orders-namesrv.shop.svc:9876", trust=TRUST, checks_users=True
    )


def export_summary(*findings: Mapping[str, Any], rows: int = 100, lag: int = 0, gaps: int = 0) -> str:
    """What an export says at its end."""
    found = json.loads(summary(*findings))
    counters = {"export.rows": rows, "export.bytes": rows * 10, "export.files": 1, "export.lag": lag}
    return json.dumps({**found, "job": "lake", "counters": {**counters, "export.gaps": gaps}})


def summary(*findings: Mapping[str, Any], clean: bool | None = None, read: int = 1000) -> str:
    """What a job says at its end."""
    errors = sum(each["level"] == "error" for each in findings)
    return json.dumps(
        {
            "schemaVersion": 1,
            "job": "audit",
            "clean": errors == 0 if clean is None else clean,
            "findingsTotal": len(findings),
            "bytesRead": read,
            "findings": list(findings),
        }
    )


def error(code: str = "damage", **more: Any) -> dict[str, Any]:
    """An error that an audit found."""
    return {
        "code": code,
        "level": "error",
        "text": "no sound record",
        "store": "/stores/orders-0-1/store",
        "file": "commitlog/00000000000000000000",
        "offset": 1234,
        **more,
    }


def finished(
    job: Mapping[str, Any], message: str = "", *, code: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Job that was made, and its pod, which has ended."""
    name = job["metadata"]["name"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-x",
            "creationTimestamp": "2026-03-03T03:00:01Z",
            "ownerReferences": [{"kind": "Job", "name": name}],
        },
        "status": {
            "containerStatuses": [
                {
                    "name": "job",
                    "state": {"terminated": {"exitCode": code, "message": message, "reason": "Error"}},
                }
            ]
        },
    }
    return {**job, "metadata": {**job["metadata"], "uid": f"uid-{name}"}}, pod


def failed(job: Mapping[str, Any], reason: str, message: str) -> dict[str, Any]:
    """A Job that has failed for good."""
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
    return {
        **job,
        "metadata": {**job["metadata"], "uid": f"uid-{job['metadata']['name']}"},
        "status": {"conditions": [condition]},
    }


class JobWorld:
    """Carries out plans on values, as an operator and a cluster would: one `round` after another."""

    observed: Any

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.events: list[EmitEvent] = []
        self.plans: list[Any] = []

    def decide(self) -> Any:
        """The plan for what is observed."""
        raise NotImplementedError

    def reconcile(self, **changes: Any) -> Any:
        """Plan, do it, and remember the status."""
        self.observed = replace(self.observed, **changes)
        plan = self.decide()
        tables = {name: dict(getattr(self.observed, name)) for name in ("jobs", "maps", "other")}
        for action in plan.actions:
            match action:
                case ApplyObject(manifest):
                    self.made.append(dict(manifest))
                    table, key = tables[self._table(manifest["kind"])], self._key(manifest)
                    assert manifest["kind"] != "Job" or key not in table, "a Job is made once"
                    table[key] = dict(manifest)
                case DeleteObject(ref):
                    key = ref.name if ref.kind in ("Job", "ConfigMap") else f"{ref.kind}/{ref.name}"
                    tables[self._table(ref.kind)].pop(key, None)
                case EmitEvent():
                    self.events.append(action)
        self.observed = replace(self.observed, status=plan.status, **tables)
        self.plans.append(plan)
        return plan

    @staticmethod
    def _table(kind: str) -> str:
        return {"Job": "jobs", "ConfigMap": "maps"}.get(kind, "other")

    @staticmethod
    def _key(manifest: Mapping[str, Any]) -> str:
        kind, name = manifest["kind"], str(manifest["metadata"]["name"])
        return name if kind in ("Job", "ConfigMap") else f"{kind}/{name}"

    def finish(self, name: str, message: str = "", *, code: int = 0) -> None:
        """Let a Job end."""
        job, pod = finished(self.observed.jobs[name], message, code=code)
        self.observed = replace(
            self.observed,
            jobs={**self.observed.jobs, name: job},
            pods={**self.observed.pods, pod["metadata"]["name"]: pod},
        )

    def fail(self, name: str, reason: str = "BackoffLimitExceeded", message: str = "too often") -> None:
        """Let a Job fail for good."""
        job = failed(self.observed.jobs[name], reason, message)
        self.observed = replace(self.observed, jobs={**self.observed.jobs, name: job})

    def condition(self, kind: str) -> tuple[str, str, str]:
        """A condition of the status."""
        found = next(each for each in self.observed.status["conditions"] if each["type"] == kind)
        return found["status"], found["reason"], found["message"]


class MigrationWorld(JobWorld):
    """A StoreMigration."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.observed: ObservedMigration = observed_migration(**more)

    def decide(self) -> JobPlan:
        """Its plan; a volume that it made is there."""
        target = self.observed.other.get("PersistentVolumeClaim/data-orders-0-0")
        self.observed = replace(self.observed, target_claim=self.observed.target_claim or target)
        return plan_migration(self.observed)

    @property
    def phase(self) -> object:
        """Of the status."""
        return self.observed.status["phase"]


def copying(**more: Any) -> MigrationWorld:
    """A migration whose Job that copies was made."""
    world = MigrationWorld(**more)
    world.reconcile()
    world.reconcile()
    return world


class AuditWorld(JobWorld):
    """A StoreAudit."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.observed: ObservedAudit = observed_audit(**more)

    def decide(self) -> AuditPlan:
        """Its plan."""
        return plan_audit(self.observed)

    def finish(self, name: str, message: str = "", *, code: int = 0, result: str | None = None) -> None:
        """Let a Job end, with this in its log."""
        super().finish(name, message, code=code)
        self.observed = replace(self.observed, results={**self.observed.results, name: result})

    def names(self, step: str) -> list[str]:
        """The Jobs of a step that are there."""
        return sorted(name for name, job in self.observed.jobs.items() if labels.step_of(job) == step)

    def map_all(self) -> None:
        """Go on until all maps are there and the comparison is on."""
        self.reconcile()
        for name in self.names(labels.MAP):
            self.finish(name, result='{"mapVersion":1}')
        self.reconcile()
        self.reconcile()
        self.reconcile()

    def run(self, *findings: Mapping[str, Any]) -> AuditPlan:
        """A whole run that finds this."""
        self.reconcile()
        self.map_all()
        for name in self.names(labels.REDUCE):
            if name not in {
                pod["metadata"]["ownerReferences"][0]["name"] for pod in self.observed.pods.values()
            }:
                self.finish(name, summary(*findings), code=int(bool(findings)))
        plan: AuditPlan = self.reconcile()
        return plan


class ExportWorld(JobWorld):
    """A StoreExport."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.observed: ObservedExport = observed_export(**more)

    def decide(self) -> JobPlan:
        """Its plan."""
        return plan_export(self.observed)

    @property
    def status(self) -> dict[str, Any]:
        """What was written last."""
        return dict(self.observed.status)

    @property
    def job(self) -> str:
        """The newest Job that is there."""
        return max(self.observed.jobs)

    def begin(self, now: float = NIGHT) -> str:
        """Go on until the Job of a run is there; returns its name."""
        self.reconcile(now=now)
        self.reconcile()
        return self.job

    def run(self, said: str, *, now: float = NIGHT, code: int = 0) -> JobPlan:
        """A whole run that says this."""
        self.finish(self.begin(now), said, code=code)
        plan: JobPlan = self.reconcile(now=now + 30)
        return plan
