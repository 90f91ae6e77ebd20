"""Measurements of StoreAudits and StoreMigrations for Prometheus, read from their status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from brokerset_operator.plan.objects import items, part, seconds
from brokerset_operator.reconcile_queue import Key

PREFIX: Final = "brokerset_audit_"

LABELS: Final = ("namespace", "name", "broker_set")


@dataclass(frozen=True, slots=True)
class AuditMeasurements:
    """What the last run of one StoreAudit found."""

    broker_set: str = ""
    result: str = ""
    findings: Mapping[str, int] = field(default_factory=dict)
    brokers: tuple[tuple[str, str, str], ...] = ()
    """Group, pod, and how it fared."""

    errors: int | None = None
    bytes_read: int | None = None
    duration: float | None = None
    ended: float | None = None
    succeeded: float | None = None
    expected_since: float | None = None
    period: int | None = None
    running: bool = False


def audit_measurements(status: Mapping[str, Any]) -> AuditMeasurements:
    """Read them from a status."""
    last, work = part(status, "lastRun"), part(status, "workflow")
    begun, ended = seconds(last.get("startTime")), seconds(last.get("completionTime"))
    succeeded = seconds(status.get("lastSuccessTime"))
    scheduled = work.get("begun")
    return AuditMeasurements(
        broker_set=str(work.get("set") or ""),
        result=str(last.get("result") or ""),
        findings={str(code): int(number) for code, number in sorted(part(status, "counts").items())},
        brokers=tuple(
            (str(each.get("group")), str(each.get("pod")), str(each.get("result")))
            for each in items(last, "brokers")
        ),
        errors=last.get("errors"),
        bytes_read=last.get("bytesRead"),
        duration=None if begun is None or ended is None else ended - begun,
        ended=ended,
        succeeded=succeeded,
        expected_since=max(float(scheduled), succeeded or 0.0) if scheduled else None,
        period=(work.get("period") or None) if scheduled else None,
        running=bool(part(work, "run")),
    )


def audit_metrics(audits: Mapping[Key, AuditMeasurements]) -> Iterable[Metric]:
    """The measurements of all StoreAudits."""
    findings = GaugeMetricFamily(
        f"{PREFIX}findings", "Findings of the last run of a StoreAudit, by code.", labels=(*LABELS, "code")
    )
    result = GaugeMetricFamily(
        f"{PREFIX}last_run", "1 for how the last run of a StoreAudit ended.", labels=(*LABELS, "result")
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
        if found.result:
            result.add_metric((*labels, found.result), 1)
        for group, pod, fared in found.brokers:
            brokers.add_metric((*labels, group, pod, fared), 1)
    yield findings
    yield result
    yield brokers
    for name, text, values in (
        ("errors", "Findings of the last run that are errors.", {k: a.errors for k, a in audits.items()}),
        ("bytes_read", "Bytes that the last run read.", {k: a.bytes_read for k, a in audits.items()}),
        ("duration_seconds", "How long the last run took.", {k: a.duration for k, a in audits.items()}),
        ("last_run_timestamp_seconds", "When the last run ended.", {k: a.ended for k, a in audits.items()}),
        (
            "last_success_timestamp_seconds",
            "When a run ended last that read every replica and found no error.",
            {k: a.succeeded for k, a in audits.items()},
        ),
        (
            "expected_since_timestamp_seconds",
            "Since when a run that passes is waited for: the last one, or when the schedule began.",
            {k: a.expected_since for k, a in audits.items()},
        ),
        (
            "period_seconds",
            "Longest pause between two runs of the schedule.",
            {k: a.period for k, a in audits.items()},
        ),
        ("running", "1 while a run is on.", {k: float(a.running) for k, a in audits.items()}),
    ):
        family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=LABELS)
        for key, value in values.items():
            if value is not None:
                family.add_metric((key.namespace, key.name, audits[key].broker_set), value)
        yield family


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
