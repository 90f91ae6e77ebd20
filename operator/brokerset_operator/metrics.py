"""The operator's measurements for Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from brokerset_kube.errors import Request
from brokerset_operator.audit_metrics import (
    AuditMeasurements,
    audit_measurements,
    audit_metrics,
    migration_metrics,
)
from brokerset_operator.export_metrics import ExportMeasurements, export_measurements, export_metrics
from brokerset_operator.model.retired import retired_groups
from brokerset_operator.reconcile_queue import Key, ReconcileQueue

RECONCILE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds in seconds: without a change it takes tens of milliseconds, with a switchover a second."""

CALL_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

PREFIX: Final = "brokerset_operator_"


class Measurements:
    """Counted while the operator works; `registry` shows them."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is the loop's time, in seconds."""
        self._now = now
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reconciles = Counter(
            f"{PREFIX}rounds", "Reconciles, by kind and outcome.", ("kind", "outcome"), registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            f"{PREFIX}round_seconds",
            "How long reconciles took.",
            ("kind",),
            buckets=RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self.calls = Counter(
            f"{PREFIX}api_requests",
            "Requests to the API server, by verb, resource and outcome.",
            ("verb", "resource", "outcome"),
            registry=self.registry,
        )
        self.call_seconds = Histogram(
            f"{PREFIX}api_request_seconds",
            "How long requests to the API server took.",
            ("verb",),
            buckets=CALL_BUCKETS,
            registry=self.registry,
        )
        self.events = Counter(
            f"{PREFIX}watch_events", "Events of watches, by resource.", ("resource",), registry=self.registry
        )
        self.leads = Gauge(f"{PREFIX}leads", "1 while this process leads.", registry=self.registry)
        self.kind_served = Gauge(
            f"{PREFIX}kind_served",
            "1 while the cluster serves a kind of ours and lets the operator read it, else 0.",
            ("kind",),
            registry=self.registry,
        )
        self.succeeded_at: dict[Key, float] = {}
        """When the last reconcile of each object succeeded, in the loop's time."""

        self.conditions: dict[Key, tuple[tuple[str, str, bool], ...]] = {}
        """Type, reason and whether it holds, of each condition of each object."""

        self.retired: dict[Key, tuple[str, frozenset[str]]] = {}
        """Groups that each set had, with the set whose controllers keep them."""

        self.audits: dict[Key, AuditMeasurements] = {}
        """What the last run of each StoreAudit found."""

        self.migrations: dict[Key, str] = {}
        """The phase of each StoreMigration."""

        self.exports: dict[Key, ExportMeasurements] = {}
        """What each StoreExport has written."""

        self._known: Callable[[Key], bool] = lambda key: True

    def call(self, request: Request, outcome: str, seconds: float) -> None:
        """A request to the API server is over."""
        self.calls.labels(request.verb, request.resource, outcome).inc()
        if request.verb != "watch":
            self.call_seconds.labels(request.verb).observe(seconds)

    def reconciled(self, key: Key, seconds: float, succeeded: bool) -> None:
        """A reconcile is over."""
        self.reconciles.labels(key.kind, "success" if succeeded else "failure").inc()
        self.reconcile_seconds.labels(key.kind).observe(seconds)
        if not self._known(key):
            self.forget(key)
        elif succeeded:
            self.succeeded_at[key] = self._now()

    def status(self, key: Key, status: Mapping[str, Any]) -> None:
        """A reconcile has found, or written, this status."""
        self.conditions[key] = tuple(
            (
                sys.intern(str(one["type"])),
                sys.intern(str(one.get("reason") or "")),
                one.get("status") == "True",
            )
            for one in status.get("conditions") or ()
        )
        controllers = status.get("controllers") or {}
        if groups := retired_groups(status):
            self.retired[key] = (str(controllers.get("set") or key.name), groups)
        else:
            self.retired.pop(key, None)

    def audit(self, key: Key, status: Mapping[str, Any]) -> None:
        """A reconcile of a StoreAudit has found, or written, this status."""
        self.status(key, status)
        self.audits[key] = audit_measurements(status)

    def migration(self, key: Key, status: Mapping[str, Any]) -> None:
        """A reconcile of a StoreMigration has found, or written, this status."""
        self.status(key, status)
        self.migrations[key] = str(status.get("phase") or "Pending")

    def export(self, key: Key, status: Mapping[str, Any]) -> None:
        """A reconcile of a StoreExport has found, or written, this status."""
        self.status(key, status)
        self.exports[key] = export_measurements(status)

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self.succeeded_at.pop(key, None)
        self.conditions.pop(key, None)
        self.retired.pop(key, None)
        self.audits.pop(key, None)
        self.migrations.pop(key, None)
        self.exports.pop(key, None)

    def watch_queue(self, queue: ReconcileQueue) -> None:
        """Show how full a queue is, and the age of each object's last success."""
        self._known = queue.schedule.known
        self.registry.register(_QueueView(self, queue, self._now))

    def last_success_seconds(self) -> float | None:
        """Age of the youngest success of all; None before the first."""
        return None if not self.succeeded_at else self._now() - max(self.succeeded_at.values())


class _QueueView(Collector):
    """Read when somebody scrapes."""

    def __init__(self, measurements: Measurements, queue: ReconcileQueue, now: Callable[[], float]) -> None:
        self._measurements = measurements
        self._queue = queue
        self._now = now

    def collect(self) -> Iterable[Metric]:
        now, schedule = self._now(), self._queue.schedule
        known = schedule.all_known()
        yield _gauge("objects", "Objects that people write and that this operator reconciles.", len(known))
        yield _gauge("rounds_running", "Reconciles that run.", len(self._queue.running))
        yield _gauge(
            "rounds_waiting", "Objects whose reconcile is due and waits for a worker.", schedule.waiting(now)
        )
        yield _gauge(
            "oldest_mark_seconds",
            "Age of the oldest change that no reconcile has seen yet.",
            schedule.oldest_seconds(now),
        )
        yield _gauge("marks_dropped", "Events dropped because there are too many objects.", schedule.dropped)
        age = GaugeMetricFamily(
            f"{PREFIX}last_success_age_seconds",
            "Time since the last reconcile of an object that succeeded.",
            labels=("kind", "namespace", "name"),
        )
        for key, at in self._measurements.succeeded_at.items():
            age.add_metric((key.kind, key.namespace, key.name), now - at)
        yield age
        holds = GaugeMetricFamily(
            f"{PREFIX}condition",
            "Conditions of objects: 1 while one is true, 0 while it is false.",
            labels=("kind", "namespace", "name", "type", "reason"),
        )
        for key, found in self._measurements.conditions.items():
            for kind, reason, value in found:
                holds.add_metric((key.kind, key.namespace, key.name, kind, reason), float(value))
        yield holds
        retired = GaugeMetricFamily(
            f"{PREFIX}group_retired",
            "1 for each group that a set had: nothing is left to read in it, and its brokers go or are gone.",
            labels=("namespace", "name", "brokerset_io_set", "broker_set"),
        )
        for key, (controllers, groups) in self._measurements.retired.items():
            for group in sorted(groups):
                retired.add_metric((key.namespace, key.name, controllers, group), 1.0)
        yield retired
        yield from audit_metrics(self._measurements.audits)
        yield from migration_metrics(self._measurements.migrations)
        yield from export_metrics(self._measurements.exports)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", text, value=value)
