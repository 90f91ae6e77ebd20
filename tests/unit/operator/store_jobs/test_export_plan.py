"""Exports: one run at a time, what its Job is made of, and what its end means for the status."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.unit.operator.store_jobs.worlds import (
    CREATED,
    NIGHT,
    ExportWorld,
    error,
    export_manifest,
    export_summary,
)

from brokerset_operator.export_metrics import export_measurements, export_metrics
from brokerset_operator.model.observed import Meta
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.observed import ExportedSet
from brokerset_operator.store_jobs.runs import LATE_SECONDS
from brokerset_spec.store_export_manifest import read_store_export

DAY = 86_400
MINUTE = int(NIGHT // 60)
EXECUTORS = {"instances": 2, "resources": {"requests": {"cpu": "2", "memory": "4Gi"}}}
GAP = {"code": "gap", "level": "warning", "text": "queue 3 begins at 70, and 10 was wanted"}


def container(world: ExportWorld) -> dict[str, Any]:
    (found,) = world.observed.jobs[world.job]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_a_run_is_one_job_whose_command_names_topics_target_and_name_servers() -> None:
    """No Job before the run is written down; the time of the schedule is in its name."""
    world = ExportWorld()
    plan = world.reconcile(now=NIGHT)

    assert plan.status["workflow"]["run"]["number"] == MINUTE
    assert not world.made
    assert world.begin() == f"lake-{MINUTE}"
    command = container(world)["command"]
    assert command[3:15] == [
        "lake",
        "--name-servers",
        "orders-namesrv.shop.svc:9876",
        "--topic=payments",
        "--target",
        "s3://lake/orders",
        "--format",
        "delta",
        "--schema",
        "raw",
        "--summary",
        "/dev/termination-log",
    ]
    assert world.condition("Exporting")[:2] == ("True", "Running")


def test_keys_are_variables_by_reference_and_nowhere_else() -> None:
    """Driver and executors have them from the Secret; the operator has never seen what is in it."""
    spec = export_manifest(executors=EXECUTORS)
    world = ExportWorld(manifest=read_store_export(spec), spark_role="ClusterRole/driver")
    world.begin()

    wanted = [{"secretRef": {"name": "lake-keys"}}]
    assert container(world)["envFrom"] == wanted
    (template,) = (each["data"]["executor.yaml"] for each in world.made if each["kind"] == "ConfigMap")
    pod = yaml.safe_load(template)
    assert pod["spec"]["containers"][0]["envFrom"] == wanted
    assert "affinity" not in pod["spec"], "without a volume executors may run anywhere"
    assert "lake-keys" not in json.dumps(world.observed.status)


def test_a_pattern_a_volume_and_compaction_are_in_the_command() -> None:
    """With a volume the executors run on the driver's node, since it may be mounted on one only."""
    spec = export_manifest(
        topicPattern="pay.*",
        target={"claimName": "lake", "path": "tables/orders"},
        compact=True,
        executors=EXECUTORS,
    )
    del spec["spec"]["topics"]
    world = ExportWorld(manifest=read_store_export(spec), spark_role="ClusterRole/driver")
    world.begin()

    command = container(world)["command"]
    assert "--topic-pattern=pay.*" in command
    assert command[command.index("--target") + 1] == "/target/tables/orders"
    assert "--compact" in command
    assert command[command.index("--workers") + 1] == "4", "two processors of each of two executors"
    (template,) = (each["data"]["executor.yaml"] for each in world.made if each["kind"] == "ConfigMap")
    assert "podAffinity" in template


def test_what_a_run_wrote_is_in_the_status() -> None:
    """Rows, bytes, lag and the sums of all runs; the next run goes on the day after."""
    world = ExportWorld()
    world.run(export_summary(rows=100, lag=4))
    world.run(export_summary(rows=50), now=NIGHT + DAY)

    status = world.status
    last = status["lastRun"]
    assert (last["result"], last["rows"], last["bytes"], last["lag"]) == ("Passed", 50, 500, 0)
    assert [each["rows"] for each in status["history"]] == [100]
    assert status["totals"] == {"runs": 2, "failures": 0, "rows": 150, "bytes": 1500, "gaps": 0}
    assert status["lastSuccessTime"] == last["completionTime"]
    assert status["target"] == "s3://lake/orders"
    assert world.condition("Exported")[:2] == ("True", "UpToDate")
    assert world.condition("Exporting")[:2] == ("False", "Idle")
    assert world.condition("Ready")[:2] == ("True", "Scheduled")
    assert not world.events


def test_a_gap_is_reported_and_counted_and_the_run_has_passed_all_the_same() -> None:
    """What is gone cannot be exported; everybody who asks hears of it."""
    world = ExportWorld()
    world.run(export_summary(GAP, gaps=60))

    status = world.status
    assert (status["lastRun"]["result"], status["lastRun"]["gaps"], status["totals"]["gaps"]) == (
        "Passed",
        60,
        60,
    )
    assert world.condition("Exported")[:2] == ("True", "GapsFound")
    assert [each["code"] for each in status["findings"]] == ["gap"]
    (told,) = world.events
    assert (told.reason, told.warning) == ("ExportGap", True)
    assert "queue 3 begins at 70" in told.message
    world.run(export_summary(), now=NIGHT + DAY)
    assert world.condition("Exported")[:2] == ("True", "UpToDate")
    assert world.status["totals"]["gaps"] == 60


def test_a_run_that_fails_says_why_and_the_next_one_begins_at_its_time() -> None:
    """Its Job stays as long as the run is remembered: people look at its log."""
    world = ExportWorld()
    name = world.begin()
    world.fail(name, message="the bucket is not there")
    world.reconcile(now=NIGHT + 60)

    assert world.condition("Exported")[:2] == ("False", "RunFailed")
    assert "the bucket is not there" in world.status["lastRun"]["message"]
    assert [each.reason for each in world.events] == ["ExportRunFailed"]
    assert world.status["totals"]["failures"] == 1
    assert name in world.observed.jobs
    world.run(export_summary(), now=NIGHT + DAY)
    assert world.condition("Exported")[0] == "True"
    assert name in world.observed.jobs


def test_errors_are_no_success() -> None:
    """A run that could not write something has come to a result, and has not passed."""
    world = ExportWorld()
    world.run(export_summary(error("unreadable")), code=1)

    assert world.status["lastRun"]["result"] == "FindingsFound"
    assert "lastSuccessTime" not in world.observed.status
    assert world.condition("Exported")[:2] == ("False", "ErrorsFound")
    assert [each.reason for each in world.events] == ["ExportError"]


def test_a_job_without_a_summary_has_failed() -> None:
    """Whatever its exit code says: nobody knows what it wrote."""
    world = ExportWorld()
    world.run("Killed")

    assert world.status["lastRun"]["result"] == "Failed"
    assert "Killed" in world.status["lastRun"]["message"]


def test_two_runs_are_never_on_at_once() -> None:
    """Neither a time of the schedule nor somebody's request begins a second one; the request waits."""
    world = ExportWorld(manifest=read_store_export(export_manifest(schedule="* * * * *")))
    first = world.begin()
    meta = replace(world.observed.meta, annotations={labels.EXPORT_NOW: "1"})
    world.reconcile(now=NIGHT + 60, meta=meta)
    world.reconcile(now=NIGHT + 125)

    assert list(world.observed.jobs) == [first]
    world.finish(first, export_summary())
    world.reconcile(now=NIGHT + 130)
    world.reconcile(now=NIGHT + 131)
    world.reconcile(now=NIGHT + 131)
    assert world.status["workflow"]["run"]["reason"] == "Request"
    assert len(world.observed.jobs) == 2


def test_a_run_waits_for_the_driver_of_an_earlier_one() -> None:
    """A pod on a node that does not answer may still write, and nobody knows; the status names it."""
    pod = {
        "metadata": {
            "name": "lake-7-x",
            "labels": {},
            "ownerReferences": [{"kind": "Job", "name": "lake-7"}],
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": "job", "state": {"running": {}}}]},
    }
    world = ExportWorld(pods={"lake-7-x": pod})
    plan = world.reconcile(now=NIGHT)

    assert "run" not in plan.status["workflow"]
    assert "pod lake-7-x" in world.condition("Ready")[2]
    assert plan.requeue_seconds <= 10
    world.observed = replace(world.observed, pods={})
    assert world.begin(NIGHT + 10) == f"lake-{MINUTE}"


def test_a_job_that_somebody_deleted_is_made_again_when_its_driver_has_ended() -> None:
    """The driver ends after its Job has gone, and not at all on a node that is lost: two would write."""
    world = ExportWorld()
    name = world.begin()
    pod = {
        "metadata": {"name": f"{name}-x", "labels": {}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "job", "state": {"running": {}}}]},
    }
    world.observed = replace(world.observed, jobs={}, pods={f"{name}-x": pod})
    world.reconcile(now=NIGHT + 10)

    assert not world.observed.jobs
    assert f"pod {name}-x" in world.condition("Exporting")[2]
    world.observed = replace(world.observed, pods={})
    world.reconcile(now=NIGHT + 20)
    assert list(world.observed.jobs) == [name]


def test_a_pattern_comes_to_the_job_as_it_is_and_names_no_variable() -> None:
    """Kubernetes would put the keys of the storage into the command line, and so into logs and the status."""
    manifest = export_manifest(topics=None, topicPattern="a$$|b$(AWS_SECRET_ACCESS_KEY)")
    del manifest["spec"]["topics"]
    world = ExportWorld(manifest=read_store_export(manifest))
    world.begin()

    command = container(world)["command"]
    assert "--topic-pattern=a$$$$|b$$(AWS_SECRET_ACCESS_KEY)" in command


def test_a_target_that_another_export_has_is_said_and_asked_about_again() -> None:
    """No run begins; one that is on goes on, and the other StoreExport waits for it."""
    world = ExportWorld(taken_by="older")
    plan = world.reconcile(now=NIGHT)

    assert world.condition("Ready")[:2] == ("False", "TargetTaken")
    assert "StoreExport older writes s3://lake/orders" in world.condition("Ready")[2]
    assert "run" not in plan.status["workflow"]
    assert plan.requeue_seconds <= 30
    world.observed = replace(world.observed, taken_by=None)
    name = world.begin(NIGHT + 20)
    world.observed = replace(world.observed, taken_by="older")
    world.finish(name, export_summary())
    world.reconcile(now=NIGHT + 40)
    assert world.status["lastRun"]["result"] == "Passed"
    world.reconcile(now=NIGHT + 41)
    assert world.condition("Ready")[1] == "TargetTaken"


def test_a_run_that_takes_too_long_ends_when_its_job_has() -> None:
    """Its Job's time is over as well, and its log is what people want."""
    world = ExportWorld(manifest=read_store_export(export_manifest(limits={"deadlineSeconds": 60})))
    name = world.begin()
    world.reconcile(now=NIGHT + 61)
    assert world.status["phase"] == "Running"
    world.reconcile(now=NIGHT + 61 + LATE_SECONDS)

    assert world.status["lastRun"]["result"] == "Failed"
    assert "limits.deadlineSeconds, 60 s" in world.status["lastRun"]["message"]
    plan = world.reconcile(now=NIGHT + DAY)
    assert "run" not in plan.status["workflow"], "its Job has not ended"
    assert f"Job {name}" in world.condition("Ready")[2]


def test_a_run_whose_time_is_over_says_what_it_waited_for() -> None:
    """At the deadline Kubernetes deletes the pod that said so; people would read of a deadline alone."""
    world = ExportWorld(manifest=read_store_export(export_manifest(limits={"deadlineSeconds": 60})))
    name = world.begin()
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": "secret lake-keys not found"}}
    pod = {
        "metadata": {"name": f"{name}-x", "labels": {}, "ownerReferences": [{"kind": "Job", "name": name}]},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "job", "state": waiting}]},
    }
    world.reconcile(now=NIGHT + 20, pods={f"{name}-x": pod})
    assert "secret lake-keys not found" in world.condition("Exporting")[2]
    world.reconcile(now=NIGHT + 61)
    world.reconcile(now=NIGHT + 63, pods={})
    world.fail(name, "DeadlineExceeded", "Job was active longer than specified deadline")
    world.reconcile(now=NIGHT + 65)

    said = world.status["lastRun"]["message"]
    assert "limits.deadlineSeconds, 60 s" in said
    assert "secret lake-keys not found" in said


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exported": None}, reasons.SET_MISSING),
        ({"image": ""}, reasons.NO_IMAGE),
        ({"manifest": read_store_export(export_manifest(executors=EXECUTORS))}, reasons.EXECUTORS_FORBIDDEN),
        (
            {"exported": ExportedSet(name="x", name_servers="x", problem=(reasons.SET_INVALID, "see it"))},
            reasons.SET_INVALID,
        ),
        ({"manifest": None}, reasons.INVALID_SPEC),
        ({"manifest": read_store_export(export_manifest(schedule="61 * * * *"))}, reasons.INVALID_SPEC),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_runs_while_something_is_wrong(changes: dict[str, Any], reason: str) -> None:
    """The condition Ready says what."""
    world = ExportWorld(**changes)
    world.reconcile(now=NIGHT)
    world.reconcile()

    assert world.condition("Ready")[:2] == ("False", reason)
    assert not world.made


def test_a_resting_export_runs_on_request_only() -> None:
    """`suspend` is about the schedule."""
    world = ExportWorld(manifest=read_store_export(export_manifest(suspend=True)))
    world.reconcile(now=NIGHT)
    world.reconcile(now=NIGHT + DAY)
    assert world.condition("Ready")[:2] == ("True", "Suspended")
    assert not world.made

    world.observed = replace(
        world.observed,
        meta=Meta(
            name="lake", namespace="shop", uid="0a0a", generation=1, annotations={labels.EXPORT_NOW: "1"}
        ),
    )
    world.begin(NIGHT + DAY + 5)
    assert len(world.made) == 1


def test_jobs_and_rights_of_runs_that_nobody_remembers_go() -> None:
    """One successful run is remembered besides the last; executors' rights go with their run."""
    spec = export_manifest(successfulRunsHistoryLimit=1, executors=EXECUTORS)
    world = ExportWorld(manifest=read_store_export(spec), spark_role="ClusterRole/driver")
    for day in range(4):
        world.run(export_summary(), now=NIGHT + day * DAY)
        world.reconcile(now=NIGHT + day * DAY + 60)

    assert sorted(world.observed.jobs) == [f"lake-{MINUTE + day * 1440}" for day in (2, 3)]
    assert world.observed.maps == {}
    assert world.observed.other == {}


def test_metrics_count_rows_failures_and_the_last_success() -> None:
    """From the status alone, so an operator that starts tells the same."""
    world = ExportWorld(created=CREATED)
    world.reconcile(now=NIGHT - 60)
    world.run(export_summary(GAP, rows=100, lag=4, gaps=2))
    key = Key(labels.EXPORT, "shop", "lake")
    found = {
        sample.name.removeprefix("brokerset_storeexport_"): sample.value
        for metric in export_metrics({key: export_measurements(world.observed.status)})
        for sample in metric.samples
        if sample.labels["broker_set"] == "orders"
    }

    assert (found["rows_total"], found["bytes_total"], found["gap_messages_total"]) == (100, 1000, 2)
    assert (found["lag_messages"], found["runs_total"], found["failures_total"]) == (4, 1, 0)
    assert found["last_success_timestamp_seconds"] == NIGHT + 30
    assert (found["period_seconds"], found["running"]) == (DAY, 0)
