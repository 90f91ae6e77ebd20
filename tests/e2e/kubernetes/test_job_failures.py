"""Jobs that fail say why where people look, and stay with their logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.kubernetes.rig import Cluster, Object, until
from tests.e2e.kubernetes.test_store_migration import (
    OLD_CLAIM,
    RUN_SECONDS,
    migration,
    put_old_store,
    stop_old_broker,
)

JOB = "take-over-migrate"
DEADLINE_SECONDS = 120
TOO_LARGE = {"instances": 1, "resources": {"requests": {"cpu": 64}}}
"""No node of a test has so many processors."""


@pytest.fixture
def with_executors(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose chart allows executors; it is put back."""
    cluster.install("--set", "spark.executors=true")
    yield cluster
    cluster.install()


def empty_volume() -> Object:
    """The old broker's volume, without a store."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": OLD_CLAIM},
        "spec": spec,
    }


def failed(cluster: Cluster, namespace: str) -> str:
    """Wait until the migration has failed; returns what its condition says, and an Event."""
    found = cluster.wait_condition(
        "storemigration",
        "take-over",
        namespace,
        "Ready",
        "False",
        reason="MigrationFailed",
        seconds=RUN_SECONDS,
    )
    (ready,) = (each for each in found["status"]["conditions"] if each["type"] == "Ready")
    events = cluster.items("events", namespace)
    assert ready["message"] in [each["message"] for each in events if each["reason"] == "MigrationFailed"]
    return str(ready["message"])


def failed_pods(cluster: Cluster, namespace: str) -> list[Object]:
    """The pods of the Job, which has failed."""
    job = cluster.must_get("job", JOB, namespace)
    assert {each["type"] for each in job["status"]["conditions"] if each["status"] == "True"} >= {"Failed"}
    assert job["spec"]["ttlSecondsAfterFinished"] == 7 * 86_400, "as the guide says"
    return cluster.items("pods", namespace, f"batch.kubernetes.io/job-name={JOB}")


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_a_migration_that_fails_says_why_in_a_sentence(cluster: Cluster, namespace: str) -> None:
    """In its condition, in an Event and as the termination message of pods that stay with their logs."""
    cluster.apply(empty_volume(), migration(namespace, engine="spark"), namespace=namespace)

    said = failed(cluster, namespace)

    assert said.startswith("migrate of /source/store, /target/store failed: "), said
    assert ". What to do: " in said
    pods = failed_pods(cluster, namespace)
    assert len(pods) == 2, "a Job has two tries"
    for pod in pods:
        (status,) = pod["status"]["containerStatuses"]
        assert said.startswith(status["state"]["terminated"]["message"])
        assert "What to do: " in cluster.logs(pod["metadata"]["name"], namespace)
    assert any(pod["metadata"]["name"] in said for pod in pods), "it is told which log has more"


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_executors_that_find_no_room_are_named_and_the_driver_stays(
    with_executors: Cluster, namespace: str
) -> None:
    """While it waits, and when its time is over; Kubernetes would delete the pod at its Job's deadline."""
    cluster = with_executors
    limits = {"deadlineSeconds": DEADLINE_SECONDS}
    spec = {"engine": "spark", "executors": TOO_LARGE, "limits": limits}
    put_old_store(cluster, namespace)
    stop_old_broker(cluster, namespace)
    cluster.apply(migration(namespace, options={"rewrite": True}, **spec), namespace=namespace)

    def waits() -> bool:
        ready = cluster.condition("storemigration", "take-over", namespace, "Ready")
        return ready is not None and "Insufficient cpu" in ready["message"]

    until("it is told that an executor finds no room", waits, DEADLINE_SECONDS)
    said = failed(cluster, namespace)

    assert said.startswith("it took longer than limits.deadlineSeconds"), said
    assert "executor brokerset-store-" in said
    assert "Insufficient cpu" in said
    late = [
        pod for pod in failed_pods(cluster, namespace) if pod["status"].get("reason") == "DeadlineExceeded"
    ]
    assert late
    for pod in late:
        (status,) = pod["status"]["containerStatuses"]
        assert "it was told to end (SIGTERM)" in status["state"]["terminated"]["message"]
        assert cluster.logs(pod["metadata"]["name"], namespace)
