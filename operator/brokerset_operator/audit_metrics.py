"""Measurements of StoreAudits and StoreMigrations for Prometheus, read from their status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from brokerset_operator.plan.objects import items, part
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.run_metrics import LABELS, RunMeasurements, gauge, of_runs, run_metrics

PREFIX: Final = "brokerset_audit_"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditMeasurements(RunMeasurements):
    """What the last run of one StoreAudit found."""

    findings: Mapping[str, int] = field(default_factory=dict)
    brokers: tuple[tuple[str, str, str], ...] = ()
    """Group, pod, and how it fared."""

    errors: int | None = None
    bytes_read: int | None = None


def audit_measurements(status: Mapping[str, Any]) -> AuditMeasurements:
    """Read them from a status."""
    last = part(status, "lastRun")
    return AuditMeasurements(
        **of_runs(status),
        findings={str(code): int(number) for code, number in sorted(part(status, "counts").items())},
        brokers=tuple(
            (str(each.get("group")), str(each.get("pod")), str(each.get("result")))
            for each in items(last, "brokers")
        ),
        errors=last.get("errors"),
        bytes_read=last.get("bytesRead"),
    )


def audit_metrics(audits: Mapping[Key, AuditMeasurements]) -> Iterable[Metric]:
    """The measurements of all StoreAudits."""
    findings = GaugeMetricFamily(
        f"{PREFIX}findings", "Findings of the last run of a StoreAudit, by code.", labels=(*LABELS, "code")
    )
    brokers = GaugeMetricFamily(
        f"{PREFIX}replica",
        "1 for how a replica fared in the last run: Compared, Accused or Unread.",
        labels=(*LABELS, "group", "replica", "result"),
    )
    for key, found in audits.items():
        labels = (key.namespace, key.name, found.broker_set)
        for code, number in found.findings.items():
            findings.add_metric((*labels, code), number)
        for group, pod, fared in found.brokers:
            brokers.add_metric((*labels, group, pod, fared), 1)
    yield findings
    yield brokers
    yield gauge(
        f"{PREFIX}errors", "Findings of the last run that are errors.", audits, lambda one: one.errors
    )
    yield gauge(f"{PREFIX}bytes_read", "Bytes that the last run read.", audits, lambda one: one.bytes_read)
    yield from run_metrics(PREFIX, "StoreAudit", "read every replica and found no error", audits)


def migration_metrics(phases: Mapping[Key, str]) -> Iterable[Metric]:
    """The phases of all StoreMigrations."""
    family = GaugeMetricFamily(
        "brokerset_migration_phase",
        "1 for the phase of a StoreMigration.",
        labels=("namespace", "name", "phase"),
    )
    for key, phase in phases.items():
        family.add_metric((key.namespace, key.name, phase), 1)
    yield family
