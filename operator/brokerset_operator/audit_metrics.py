"""Figures of StoreAudits for Prometheus, read from their status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from brokerset_operator.plan.objects import part, seconds
from brokerset_operator.round_queue import Key

PREFIX = "brokerset_audit_"


@dataclass(frozen=True, slots=True)
class AuditFigures:
    """What the last run of one StoreAudit found."""

    findings: Mapping[str, int] = field(default_factory=dict)
    errors: int | None = None
    bytes_read: int | None = None
    ended: float | None = None
    succeeded: float | None = None
    running: bool = False


def audit_figures(status: Mapping[str, Any]) -> AuditFigures:
    """Read them from a status."""
    last = part(status, "lastRun")
    return AuditFigures(
        findings={str(code): int(number) for code, number in sorted(part(status, "counts").items())},
        errors=last.get("errors"),
        bytes_read=last.get("bytesRead"),
        ended=seconds(last.get("completionTime")),
        succeeded=seconds(status.get("lastSuccessTime")),
        running=bool(part(part(status, "workflow"), "run")),
    )


def audit_metrics(audits: Mapping[Key, AuditFigures]) -> Iterable[Metric]:
    """The figures of all StoreAudits."""
    findings = GaugeMetricFamily(
        f"{PREFIX}findings",
        "Findings of the last run of a StoreAudit, by code.",
        labels=("namespace", "name", "code"),
    )
    for key, found in audits.items():
        for code, number in found.findings.items():
            findings.add_metric((key.namespace, key.name, code), number)
    yield findings
    for name, text, values in (
        ("errors", "Findings of the last run that are errors.", {k: a.errors for k, a in audits.items()}),
        ("bytes_read", "Bytes that the last run read.", {k: a.bytes_read for k, a in audits.items()}),
        ("last_run_timestamp_seconds", "When the last run ended.", {k: a.ended for k, a in audits.items()}),
        (
            "last_success_timestamp_seconds",
            "When a run ended last that read every replica and found no error.",
            {k: a.succeeded for k, a in audits.items()},
        ),
        ("running", "1 while a run is on.", {k: float(a.running) for k, a in audits.items()}),
    ):
        family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=("namespace", "name"))
        for key, value in values.items():
            if value is not None:
                family.add_metric((key.namespace, key.name), value)
        yield family
