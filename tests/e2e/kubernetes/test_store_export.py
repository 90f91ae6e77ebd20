"""A lake that fills itself each minute, while brokers and executors are killed: the table equals the topic."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final

import pytest
from tests.e2e.kubernetes.deployed import RATE, Deployed
from tests.e2e.kubernetes.killing import kill_process
from tests.e2e.kubernetes.rig import AT_ONCE, Cluster, Object, client_pod, say, until
from tests.e2e.kubernetes.test_store_jobs import operator_figures

MINUTES: Final = int(os.environ.get("BROKERSET_E2E_EXPORT_MINUTES", "10"))
"""How long the schedule goes on; fewer for whoever writes a test, and one kill of a master then."""

MASTERS_KILLED: Final = 2 if MINUTES > 3 else 1

RUN_SECONDS: Final = 240.0
"""A run: the driver starts, then an executor, and both read some thousand messages."""

TOPIC: Final = "events"
LAKE_CLAIM: Final = "lake"
READER: Final = "lake-reader"
EXECUTORS: Final = "brokerset.io/job-owner=lake,spark-role=executor"
WORKING: Final = "Starting Python task execution"
"""What an executor's log has from when it reads."""

TOLD: Final = ("ExportRunFailed", "ExportError")
"""Events of runs that have not passed."""

COMPARE: Final = """
import asyncio, json, sys
from collections import Counter
from deltalake import DeltaTable
from brokerset_client import PullConsumer

async def topic(namesrv, name):
    found = {}
    async with PullConsumer("comparers", namesrv=namesrv, auto_commit=False) as consumer:
        for queue in await consumer.queues(name):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    found[queue.broker_name, queue.queue_id, message.queue_offset] = message.body
                offset = result.next_queue_offset
    return found

rows = DeltaTable("/lake/tables/messages").to_pyarrow_table(
    columns=["brokerName", "queueId", "queueOffset", "body"]
).to_pylist()
places = Counter((row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)
table = {(row["brokerName"], row["queueId"], row["queueOffset"]): row["body"] for row in rows}
there = asyncio.run(topic(sys.argv[1], sys.argv[2]))
print(json.dumps({
    "rows": len(rows),
    "messages": len(there),
    "twice": [list(place) for place, number in places.items() if number > 1][:10],
    "missing": [list(place) for place in sorted(there.keys() - table.keys())][:10],
    "further": [list(place) for place in sorted(table.keys() - there.keys())][:10],
    "other": [list(place) for place in sorted(there.keys() & table.keys()) if there[place] != table[place]][:10],
}))
"""
"""In a pod with the table and the way to the brokers: what one has and the other has not."""


def export(namespace: str, **spec: Any) -> Object:
    """A StoreExport of the topic, each minute, with an executor."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreExport",
        "metadata": {"name": "lake", "namespace": namespace},
        "spec": {
            "brokerSetRef": {"name": "orders"},
            "topics": [TOPIC],
            "target": {"claimName": LAKE_CLAIM, "path": "tables"},
            "schedule": "* * * * *",
            "successfulRunsHistoryLimit": 20,
            "executors": {
                "instances": 1,
                "resources": {"requests": {"cpu": "200m"}, "limits": {"cpu": 1, "memory": "1200Mi"}},
            },
            "limits": {"deadlineSeconds": 300},
            **spec,
        },
    }


def lake_claim() -> Object:
    """The volume of the table, which is mounted on one node at a time."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": LAKE_CLAIM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def status(cluster: Cluster, namespace: str, name: str = "lake") -> Object:
    """Of a StoreExport; empty before the operator has seen it."""
    found: Object = cluster.must_get("storeexport", name, namespace).get("status") or {}
    return found


def until_reading(cluster: Cluster, namespace: str) -> tuple[int, str]:
    """Wait until an executor works on a task; returns the number of its run, and its pod."""

    def check() -> tuple[int, str]:
        for pod in cluster.items("pods", namespace, EXECUTORS):
            name = pod["metadata"]["name"]
            if pod["status"].get("phase") == "Running" and WORKING in cluster.logs(name, namespace):
                return int(pod["metadata"]["labels"]["brokerset.io/run"]), name
        raise ValueError(f"{status(cluster, namespace)}")

    return until("an executor works on a task", check, RUN_SECONDS, pause=0.2)


def wait_run(cluster: Cluster, namespace: str, after: int, name: str = "lake") -> Object:
    """Wait until a later run than this has ended."""

    def check() -> Object:
        run: Object = status(cluster, namespace, name)["lastRun"]
        if run["number"] <= after:
            raise ValueError(f"{run}")
        return run

    return until("a run has ended", check, RUN_SECONDS, pause=1.0)


def compare(cluster: Cluster, namespace: str, namesrv: str) -> Object:
    """What the topic and the table have, asked in a pod of the jobs' image."""
    pod = client_pod(READER, cluster.spark_image, cluster.provider.pull_policy)
    spec = pod["spec"]
    volume = {"name": "lake", "persistentVolumeClaim": {"claimName": LAKE_CLAIM, "readOnly": True}}
    spec["volumes"].append(volume)
    spec["containers"][0]["volumeMounts"].append({"name": "lake", "mountPath": "/lake"})
    cluster.apply(pod, namespace=namespace)
    cluster.wait_pod(READER, namespace, 60)
    said = cluster.execute(READER, namespace, "python", "-", namesrv, TOPIC, given=COMPARE)
    found: Object = json.loads(said)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_the_table_equals_the_topic_while_masters_and_an_executor_are_killed(
    chart: Cluster, namespace: str
) -> None:
    """Each minute a run; two lose the master that they read from, one its executor; none is lost or there twice."""
    chart.install("--set", "spark.executors=true")
    chart.apply(lake_claim(), namespace=namespace)
    orders = Deployed(chart, namespace)
    orders.create(controllers={"replicas": 1})
    orders.wait_settled(3, 1)
    kills: dict[int, str] = {}
    with orders.load(TOPIC, scan=True) as load:
        chart.apply(export(namespace))
        end = time.monotonic() + 60 * MINUTES
        wait_run(chart, namespace, 0)
        for _ in range(MASTERS_KILLED):
            number, _ = until_reading(chart, namespace)
            kills[number] = kill_master(orders)
            load.goes_on(int(RATE))
            orders.wait_settled(3, 1)
            wait_run(chart, namespace, number - 1)
        number, victim = until_reading(chart, namespace)
        chart.delete("pod", victim, namespace=namespace, **AT_ONCE)
        kills[number] = victim
        wait_run(chart, namespace, number - 1)
        while time.monotonic() < end:
            wait_run(chart, namespace, status(chart, namespace)["lastRun"]["number"])
        sent = load.finish()
        chart.patch("storeexport", "lake", namespace, {"spec": {"suspend": True}})
        until("no run is on", lambda: status(chart, namespace)["phase"] == "Suspended", RUN_SECONDS)
        last = status(chart, namespace)["lastRun"]["number"]
        chart.annotate("storeexport", "lake", namespace, export_now="1")
        run = wait_run(chart, namespace, last)
        found = compare(chart, namespace, load.client.namesrv)
        figures = operator_figures(chart, load.client.pod, namespace)

    seen = status(chart, namespace)
    say(f"{seen['totals']}; killed {kills}; {found}; sends {sent}")
    for each in (seen["lastRun"], *seen["history"]):
        say(f"run {each}")
    assert len(kills) == MASTERS_KILLED + 1, "one kill in a run"
    assert (run["result"], run["lag"], run["gaps"]) == ("Passed", 0, 0)
    assert found["rows"] == found["messages"] == seen["totals"]["rows"] >= sent["acked"]
    assert [found[kind] for kind in ("twice", "missing", "further", "other")] == [[], [], [], []]
    assert seen["totals"]["runs"] >= MINUTES // 2, "a run that takes longer than a minute leaves one out"
    check_said(chart, namespace, figures)


def kill_master(orders: Deployed) -> str:
    """Kill the master's process, and wait until another one leads; returns its pod."""
    epoch, master = orders.epoch(), orders.master()
    if not kill_process(orders, master):
        orders.delete_pods(master, force=True)
    until("another master leads", lambda: orders.epoch() > epoch, 60)
    return master


def check_said(cluster: Cluster, namespace: str, figures: str) -> None:
    """Conditions, metrics and Events say what the table says."""
    seen = status(cluster, namespace)
    conditions = {each["type"]: (each["status"], each["reason"]) for each in seen["conditions"]}
    assert conditions == {
        "Ready": ("True", "Suspended"),
        "Exporting": ("False", "Idle"),
        "Exported": ("True", "UpToDate"),
    }
    labels = f'{{broker_set="orders",name="lake",namespace="{namespace}"}}'
    for name, value in (("rows_total", "rows"), ("failures_total", "failures"), ("runs_total", "runs")):
        assert f"brokerset_storeexport_{name}{labels} {float(seen['totals'][value])}" in figures
    told = [each for each in cluster.items("events", namespace) if each["reason"] in TOLD]
    assert len(told) == seen["totals"]["failures"]
