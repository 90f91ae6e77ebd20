"""Exports that cannot write, or must not: what their conditions say; and how one is stopped."""

from __future__ import annotations

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, Object, until
from tests.e2e.kubernetes.test_store_export import LAKE_CLAIM, RUN_SECONDS, lake_claim, status, wait_run

TOPIC = "-odd"
"""A name like an option of a command."""

NOWHERE = {"url": "s3://nowhere/lake", "credentials": {"secretName": "nowhere"}}
LAKE = {"claimName": LAKE_CLAIM, "path": "tables"}


def export(name: str, namespace: str, target: Object, **spec: object) -> Object:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreExport",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "brokerSetRef": {"name": "orders"},
            "topics": [TOPIC],
            "target": target,
            "limits": {"deadlineSeconds": 300},
            **spec,
        },
    }


def until_says(cluster: Cluster, namespace: str, name: str, kind: str, reason: str) -> str:
    """Wait until a condition has this reason; returns what it says."""

    def check() -> str:
        found = cluster.condition("storeexport", name, namespace, kind) or {}
        if found.get("reason") != reason:
            raise ValueError(f"{status(cluster, namespace, name)}")
        said: str = found["message"]
        return said

    return until(f"{kind} of {name} is {reason}", check, RUN_SECONDS, pause=0.5)


def pods(cluster: Cluster, namespace: str, name: str) -> list[Object]:
    """Of the runs of an export."""
    return cluster.items("pods", namespace, f"brokerset.io/job-owner={name}")


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_what_keeps_an_export_from_writing_is_in_its_conditions_and_who_goes_stops(
    cluster: Cluster, namespace: str
) -> None:
    """A storage that does not answer, and another export of the same table; then it writes all, and is stopped."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    client = orders.client()
    client.run("topic", "create", "--queues", "4", "--namesrv", client.namesrv, "--", TOPIC)
    client.run("send", "--file", "-", "--namesrv", client.namesrv, "--", TOPIC, given="body\n" * 100)
    keys = {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "nowhere-1",
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nowhere"}, "stringData": keys}
    first, second = export("lake", namespace, NOWHERE), export("second", namespace, NOWHERE)
    cluster.apply(secret, lake_claim(), first, namespace=namespace)
    cluster.annotate("storeexport", "lake", namespace, export_now="1")

    said = until_says(cluster, namespace, "lake", "Exported", "RunFailed")

    assert "the tables in s3://nowhere/lake cannot be opened" in said, said
    assert "caused by Connection refused" in said, said
    assert "What to do: check the target" in said, said
    events = [each for each in cluster.items("events", namespace) if each["reason"] == "ExportRunFailed"]
    assert "s3://nowhere/lake" in events[0]["message"]

    cluster.apply(second)
    cluster.annotate("storeexport", "second", namespace, export_now="1")
    said = until_says(cluster, namespace, "second", "Ready", "TargetTaken")
    assert "StoreExport lake writes s3://nowhere/lake" in said
    assert not pods(cluster, namespace, "second")

    cluster.patch(
        "storeexport", "second", namespace, {"spec": {"target": {**LAKE, "url": None, "credentials": None}}}
    )
    run = wait_run(cluster, namespace, -1, "second")
    assert (run["result"], run["rows"], run["lag"]) == ("Passed", 100, 0)

    cluster.patch("storeexport", "second", namespace, {"spec": {"schedule": "* * * * *"}})
    until("a run is on", lambda: status(cluster, namespace, "second")["phase"] == "Running", RUN_SECONDS)
    cluster.patch("storeexport", "second", namespace, {"spec": {"suspend": True}})
    until("it rests", lambda: status(cluster, namespace, "second")["phase"] == "Suspended", RUN_SECONDS)
    ended = status(cluster, namespace, "second")
    assert ended["lastRun"]["result"] == "Passed", "a run that is on goes on to its end"
    assert "nextScheduleTime" not in ended

    cluster.annotate("storeexport", "second", namespace, export_now="2")
    until(
        "its driver runs",
        lambda: any(each["status"].get("phase") == "Running" for each in pods(cluster, namespace, "second")),
        RUN_SECONDS,
    )
    cluster.delete("storeexport", "second", namespace=namespace, seconds=60)
    until("its pods are gone", lambda: not pods(cluster, namespace, "second"), 60)
    until(
        "its Jobs are gone", lambda: not cluster.items("jobs", namespace, "brokerset.io/job-owner=second"), 60
    )
    assert cluster.get("pvc", LAKE_CLAIM, namespace) is not None, "the table stays"
