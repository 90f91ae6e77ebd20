"""Measurements of StoreExports for Prometheus, read from their status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.metrics_core import Metric

from brokerset_operator.plan.objects import part
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.run_metrics import RunMeasurements, counter, gauge, of_runs, run_metrics

PREFIX: Final = "brokerset_storeexport_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportMeasurements(RunMeasurements):
    """What one StoreExport has written."""

    lag: int | None = None
    """Messages that the last run left for the next one."""

    rows: int = 0
    written: int = 0
    gaps: int = 0
    runs: int = 0
    failures: int = 0


def export_measurements(status: Mapping[str, Any]) -> ExportMeasurements:
    """Read them from a status."""
    last, totals = part(status, "lastRun"), part(status, "totals")
    return ExportMeasurements(
        **of_runs(status),
        lag=last.get("lag"),
        rows=totals.get("rows") or 0,
        written=totals.get("bytes") or 0,
        gaps=totals.get("gaps") or 0,
        runs=totals.get("runs") or 0,
        failures=totals.get("failures") or 0,
    )


def export_metrics(exports: Mapping[Key, ExportMeasurements]) -> Iterable[Metric]:
    """The measurements of all StoreExports."""
    yield from run_metrics(PREFIX, "StoreExport", "wrote what there was", exports)
    yield gauge(
        f"{PREFIX}lag_messages",
        "Messages that the last run left for the next one.",
        exports,
        lambda one: one.lag,
    )
    yield counter(f"{PREFIX}rows", "Rows that runs have written.", exports, lambda one: one.rows)
    yield counter(f"{PREFIX}bytes", "Bytes that runs have written.", exports, lambda one: one.written)
    yield counter(
        f"{PREFIX}gap_messages",
        "Messages that were gone before a run could read them.",
        exports,
        lambda one: one.gaps,
    )
    yield counter(f"{PREFIX}runs", "Runs that have ended.", exports, lambda one: one.runs)
    yield counter(f"{PREFIX}failures", "Runs that have not passed.", exports, lambda one: one.failures)
