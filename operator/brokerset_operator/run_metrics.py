"""Measurements for Prometheus of every kind that has runs, read from its status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from brokerset_operator.plan.objects import part, seconds
from brokerset_operator.reconcile_queue import Key

LABELS: Final = ("namespace", "name", "broker_set")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasurements:
    """What is known of the runs of one object."""

    broker_set: str = ""
    result: str = ""
    duration: float | None = None
    ended: float | None = None
    succeeded: float | None = None
    expected_since: float | None = None
    period: int | None = None
    running: bool = False


Measured = TypeVar("Measured", bound=RunMeasurements)
Value = Callable[[Measured], float | None]


def of_runs(status: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `RunMeasurements`, from a status."""
    last, work = part(status, "lastRun"), part(status, "workflow")
    begun, ended = seconds(last.get("startTime")), seconds(last.get("completionTime"))
    succeeded = seconds(status.get("lastSuccessTime"))
    scheduled = work.get("begun")
    return {
        "broker_set": str(work.get("set") or ""),
        "result": str(last.get("result") or ""),
        "duration": None if begun is None or ended is None else ended - begun,
        "ended": ended,
        "succeeded": succeeded,
        "expected_since": max(float(scheduled), succeeded or 0.0) if scheduled else None,
        "period": (work.get("period") or None) if scheduled else None,
        "running": bool(part(work, "run")),
    }


def run_metrics(
    prefix: str, kind: str, passed: str, found: Mapping[Key, RunMeasurements]
) -> Iterable[Metric]:
    """What is told of all objects of a kind; `passed` says what a run is that has passed."""
    result = GaugeMetricFamily(
        f"{prefix}last_run", f"1 for how the last run of a {kind} ended.", labels=(*LABELS, "result")
    )
    for key, one in found.items():
        if one.result:
            result.add_metric((key.namespace, key.name, one.broker_set, one.result), 1)
    yield result
    values: tuple[tuple[str, str, Value[RunMeasurements]], ...] = (
        ("duration_seconds", "How long the last run took.", lambda one: one.duration),
        ("last_run_timestamp_seconds", "When the last run ended.", lambda one: one.ended),
        (
            "last_success_timestamp_seconds",
            f"When a run ended last that {passed}.",
            lambda one: one.succeeded,
        ),
        (
            "expected_since_timestamp_seconds",
            "Since when a run that passes is waited for: the last one, or when the schedule began.",
            lambda one: one.expected_since,
        ),
        ("period_seconds", "Longest pause between two runs of the schedule.", lambda one: one.period),
        ("running", "1 while a run is on.", lambda one: float(one.running)),
    )
    for name, text, value in values:
        yield gauge(f"{prefix}{name}", text, found, value)


def gauge(name: str, text: str, found: Mapping[Key, Measured], value: Value[Measured]) -> Metric:
    """One value of each object that has it."""
    return _filled(GaugeMetricFamily(name, text, labels=LABELS), found, value)


def counter(name: str, text: str, found: Mapping[Key, Measured], value: Value[Measured]) -> Metric:
    """The same, of what only grows."""
    return _filled(CounterMetricFamily(name, text, labels=LABELS), found, value)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, found: Mapping[Key, Measured], value: Value[Measured]
) -> Metric:
    for key, one in found.items():
        current = value(one)
        if current is not None:
            family.add_metric((key.namespace, key.name, one.broker_set), current)
    return family
