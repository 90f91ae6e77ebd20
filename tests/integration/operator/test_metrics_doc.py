"""The page about metrics and the metrics of a live operator are the same."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from prometheus_client import generate_latest

from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, broker_set, condition, operator, simple_plan, until

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.M)

Families = dict[str, tuple[str, frozenset[str], str]]
"""Type, labels and text of each metric."""


AUDIT = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "StoreAudit",
    "metadata": {"name": "nightly", "namespace": NAMESPACE},
    "spec": {"brokerSetRef": {"name": "orders"}, "schedule": "0 3 * * *"},
    "status": {
        "lastRun": {
            "number": 1,
            "result": "FindingsFound",
            "startTime": "2026-03-03T03:00:00Z",
            "completionTime": "2026-03-03T03:01:00Z",
            "errors": 1,
            "bytesRead": 10,
            "brokers": [{"pod": "orders-0-1", "group": "orders-0", "result": "Accused"}],
        },
        "lastSuccessTime": "2026-03-02T03:01:00Z",
        "counts": {"damage": 1},
    },
}
"""One that has run before."""

MIGRATION = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "StoreMigration",
    "metadata": {"name": "take-over", "namespace": NAMESPACE},
    "spec": {"source": {"claimName": "old"}, "target": {"claimName": "new"}},
}


EXPORT = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "StoreExport",
    "metadata": {"name": "lake", "namespace": NAMESPACE},
    "spec": {
        "brokerSetRef": {"name": "orders"},
        "topics": ["payments"],
        "target": {"url": "s3://lake/orders"},
        "schedule": "0 3 * * *",
    },
    "status": {
        "lastRun": {
            "number": 1,
            "result": "Passed",
            "startTime": "2026-03-03T03:00:00Z",
            "completionTime": "2026-03-03T03:01:00Z",
            "lag": 3,
        },
        "lastSuccessTime": "2026-03-03T03:01:00Z",
    },
}
"""One that has run before."""


def plan_with_a_past(observed: Observed) -> Plan:
    """The set had another group."""
    found = simple_plan(observed)
    workflow = {"groups": [{"index": 1, "name": "orders-1", "replicas": 0}]}
    return replace(found, status={**found.status, "workflow": workflow})


def documented() -> Families:
    section = PAGE.read_text().split("\n## Operator\n")[1].split("\n## ")[0]
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)), text)
        for name, kind, labels, text in ROW.findall(section)
    }


def exported(scrape: str) -> Families:
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", scrape, re.M))
    found = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", scrape, re.M):
        samples = re.findall(rf"^{name}(?:_bucket)?(?:\{{(.*)\}})? \S+$", scrape, re.M)
        assert samples, f"{name} has no sample here: let the test make one"
        labels = frozenset(re.findall(r'(\w+)="', samples[0])) - {"le"}
        if not name.endswith("_created"):
            found[name] = (kind, labels, helps[name])
    return found


def test_the_page_lists_the_metrics_of_the_operator_and_no_others() -> None:
    """Name, type, labels and the beginning of the text are equal, each way."""

    async def scrape() -> str:
        async with FakeKube() as kube, operator(kube, plan_with_a_past) as running:
            kube.put(broker_set())
            kube.put(AUDIT)
            kube.put(MIGRATION)
            kube.put(EXPORT)
            await until(lambda: condition(kube.get("brokersets", "orders", NAMESPACE), "Ready"))
            await until(lambda: condition(kube.get("storeaudits", "nightly", NAMESPACE), "Ready"))
            await until(lambda: running.process.measurements.succeeded_at)
            await until(lambda: running.process.measurements.audits)
            await until(lambda: running.process.measurements.migrations)
            await until(lambda: running.process.measurements.exports)
            return generate_latest(running.process.measurements.registry).decode()

    page, live = documented(), exported(asyncio.run(scrape()))

    assert page.keys() == live.keys()
    for name, (kind, labels, text) in live.items():
        assert page[name][:2] == (kind, labels), name
        assert page[name][2].startswith(text), name
