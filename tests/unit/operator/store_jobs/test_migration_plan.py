"""What is done about a StoreMigration: pure, one reconcile after another."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.store_jobs.worlds import (
    MigrationWorld,
    claim,
    copying,
    error,
    failed,
    migration_manifest,
    observed_migration,
    summary,
)

from brokerset_operator.migrations import users_of
from brokerset_operator.store_jobs import reasons
from brokerset_spec.store_migration_manifest import read_store_migration


def test_a_migration_copies_reads_back_and_is_ready() -> None:
    """The volume is made as the StatefulSet of the set would ask for it, and nothing is done afterwards."""
    world = MigrationWorld()

    assert world.reconcile().status["phase"] == "Running"
    assert world.made == []
    world.reconcile()
    assert [each["kind"] for each in world.made] == ["PersistentVolumeClaim", "Job"]
    volume, job = world.made
    assert volume["metadata"]["name"] == "data-orders-0-0"
    assert volume["metadata"]["labels"]["brokerset.io/set"] == "orders"
    assert "ownerReferences" not in volume["metadata"], "it outlives the migration"
    assert volume["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert world.condition(reasons.READY)[:2] == ("False", reasons.MIGRATING)

    world.finish(job["metadata"]["name"], summary(read=7000))
    assert world.reconcile().status["phase"] == "Verifying"
    world.reconcile()
    verify = world.made[-1]
    assert verify["metadata"]["name"] == "take-over-verify"
    world.finish("take-over-verify", summary(read=9000))
    last = world.reconcile()

    assert (last.status["phase"], *world.condition(reasons.READY)[:2]) == (
        "Succeeded",
        "True",
        reasons.SUCCEEDED,
    )
    assert (last.status["bytesRead"], last.status["targetClaim"]) == (7000, "data-orders-0-0")
    assert [each.reason for each in world.events] == [
        "MigrationRunning",
        "MigrationVerifying",
        "MigrationSucceeded",
    ]
    assert world.reconcile(source_claim=None).actions == ()
    assert world.observed.status == last.status


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source_claim": None}, reasons.SOURCE_MISSING),
        ({"users": {"old-broker": ("old-0",)}}, reasons.IN_USE),
        ({"users": {"data-orders-0-0": ("orders-0-0",)}}, reasons.IN_USE),
        ({"taken_by": "orders-0"}, reasons.TARGET_TAKEN),
        ({"image": ""}, reasons.NO_IMAGE),
        ({"manifest": None}, reasons.INVALID_SPEC),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_made_while_something_is_in_the_way(changes: dict[str, Any], reason: str) -> None:
    """It is said what, and the migration begins when that is over."""
    world = MigrationWorld()

    plan = world.reconcile(**changes)
    world.reconcile()

    assert plan.status["phase"] == "Pending"
    assert world.condition(reasons.READY)[:2] == ("False", reason)
    assert world.made == []
    world.reconcile(**{name: getattr(observed_migration(), name) for name in changes})
    assert world.phase == "Running"


def test_a_broker_that_starts_on_a_volume_ends_the_job() -> None:
    """A store that somebody writes is not copied on; the next Job goes on when it is free."""
    world = copying()
    assert world.observed.jobs

    world.reconcile(users={"old-broker": ("old-0",)})

    assert world.observed.jobs == {}
    assert world.phase == "Pending"
    world.reconcile(users={})
    world.reconcile()
    assert list(world.observed.jobs) == ["take-over-migrate"]


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (summary(error(code="crc-mismatch")), 1, "crc-mismatch"),
        ("Killed", 0, "gave no summary"),
        (summary(clean=False), 1, "errors"),
    ],
    ids=["errors", "no summary", "errors that found no room"],
)
def test_what_went_wrong_ends_a_migration_for_good(message: str, code: int, text: str) -> None:
    """With the worst of it in its condition; whoever corrects the cause creates another one."""
    world = copying()

    world.finish("take-over-migrate", message, code=code)
    world.reconcile()

    assert (world.phase, world.condition(reasons.READY)[1]) == ("Failed", reasons.MIGRATION_FAILED)
    assert text in world.condition(reasons.READY)[2]
    assert world.reconcile().actions == ()


def test_a_job_that_fails_is_told_with_its_reason() -> None:
    """A deadline, or a pod that ended twice."""
    world = copying()
    job = failed(world.observed.jobs["take-over-migrate"], "DeadlineExceeded", "was active too long")

    world.reconcile(jobs={"take-over-migrate": job})

    assert "DeadlineExceeded" in world.condition(reasons.READY)[2]


def test_what_a_migration_waited_for_is_told_when_its_time_is_over() -> None:
    """Its executors are gone before the driver has ended, and another try may have begun since."""
    world = copying()
    name = "take-over-migrate"
    driver = {"metadata": {"name": "d", "ownerReferences": [{"kind": "Job", "name": name}]}, "status": {}}
    waiting = {"state": {"waiting": {"reason": "ErrImagePull"}}}
    executor = {
        "metadata": {
            "name": "e-1",
            "labels": {"spark-role": "executor"},
            "ownerReferences": [{"kind": "Pod", "name": "d"}],
        },
        "status": {"containerStatuses": [waiting]},
    }
    world.reconcile(pods={"d": driver, "e-1": executor})
    assert world.condition(reasons.READY)[2] == "the store is copied; executor e-1: ErrImagePull"

    world.reconcile(pods={"d": driver})
    late = {**driver, "status": {"reason": "DeadlineExceeded"}}
    world.reconcile(pods={"d": late})
    ended = {"terminated": {"exitCode": 143, "message": "Error: it was told to end\nWhat to do: nothing"}}
    made = "2026-11-24T07:28:00Z"
    again = {
        "metadata": {**driver["metadata"], "name": "d-2", "creationTimestamp": made},
        "status": {"containerStatuses": [{"name": "job", "state": ended}]},
    }
    world.reconcile(pods={"d": late, "d-2": again})
    world.reconcile(pods={"d": late})
    world.reconcile(jobs={name: failed(world.observed.jobs[name], "DeadlineExceeded", "was active too long")})

    told = "it took longer than limits.deadlineSeconds (kubectl logs d); before, executor e-1: ErrImagePull"
    assert (world.condition(reasons.READY)[1], world.condition(reasons.READY)[2]) == (
        reasons.MIGRATION_FAILED,
        told,
    )
    assert world.events[-1].message == told


def test_an_executor_that_runs_at_last_is_told_no_more() -> None:
    world = copying()
    driver = {
        "metadata": {"name": "d", "ownerReferences": [{"kind": "Job", "name": "take-over-migrate"}]},
        "status": {},
    }
    meta = {
        "name": "e-1",
        "labels": {"spark-role": "executor"},
        "ownerReferences": [{"kind": "Pod", "name": "d"}],
    }
    waiting, runs = (
        {"containerStatuses": [{"state": {each: {"reason": "x"}}}]} for each in ("waiting", "running")
    )

    world.reconcile(pods={"d": driver, "e-1": {"metadata": meta, "status": waiting}})
    assert world.condition(reasons.READY)[2] == "the store is copied; executor e-1: x"
    world.reconcile(pods={"d": driver, "e-1": {"metadata": meta, "status": runs}})
    assert world.condition(reasons.READY)[2] == "the store is copied"


def test_errors_in_the_new_store_are_no_success() -> None:
    """What was copied is read by a Job of its own, and not believed before."""
    world = copying()
    world.finish("take-over-migrate", summary())
    world.reconcile()
    world.reconcile()

    world.finish("take-over-verify", summary(error(code="chain-gap")), code=1)
    world.reconcile()

    assert (world.phase, world.condition(reasons.READY)[1]) == ("Failed", reasons.VERIFICATION_FAILED)


def test_options_become_those_of_the_command() -> None:
    """Each is handed over, sizes in bytes."""
    options = {"rewrite": True, "fileSize": "64Mi", "sinceMilliseconds": 1000, "topics": ["a", "b"]}
    given = migration_manifest(mode="dledger", options=options, limits={"maxBytesPerSecond": "10Mi"})
    world = copying(manifest=read_store_migration(given), target_claim=claim("data-orders-0-0"))

    (job,) = world.made
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = " ".join(container["command"])
    assert command == (
        "python -m brokerset_spark migrate /source/store /target/store --to dledger --rewrite"
        " --file-size 67108864 --from-time 1000 --keep-topic a --keep-topic b --summary /dev/termination-log"
        " --engine processes --workers 1 --max-bytes-per-second 10485760"
    )


def test_who_uses_a_volume_is_every_pod_that_has_not_ended() -> None:
    """But for the migration's own."""

    def pod(name: str, claim_name: str, phase: str = "Running", **labels: str) -> dict[str, Any]:
        chosen = {f"brokerset.io/{key.replace('_', '-')}": value for key, value in labels.items()}
        return {
            "metadata": {"name": name, "labels": chosen},
            "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]},
            "status": {"phase": phase},
        }

    found = users_of(
        (
            pod("a", "one"),
            pod("b", "one", phase="Pending"),
            pod("c", "one", phase="Succeeded"),
            pod("d", "two", store_job="migration", job_owner="take-over"),
            pod("e", "two", store_job="audit", job_owner="take-over"),
        ),
        "take-over",
    )

    assert found == {"one": ("a", "b"), "two": ("e",)}
