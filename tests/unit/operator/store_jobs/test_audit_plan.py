"""What is done about a StoreAudit: pure, one reconcile after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.store_jobs.worlds import (
    CREATED,
    NIGHT,
    AuditWorld,
    audit_manifest,
    error,
    observed_audit,
    replica,
    summary,
)

from brokerset_operator.model.actions import ApplyObject, DeleteObject
from brokerset_operator.model.observed import Meta
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.audit_plan import plan_audit
from brokerset_operator.store_jobs.observed import AuditedSet
from brokerset_operator.store_jobs.runs import GIVEN_UP_SECONDS, LATE_SECONDS
from brokerset_spec.store_audit_manifest import read_store_audit

DAY = 86_400.0


def meta(**annotations: str) -> Meta:
    return Meta(
        name="nightly",
        namespace="shop",
        uid="0a0a",
        generation=1,
        annotations={f"brokerset.io/{name.replace('_', '-')}": value for name, value in annotations.items()},
    )


def asked(value: str = "1") -> Meta:
    return meta(audit_now=value)


def manifest(**spec: Any) -> dict[str, Any]:
    return {"manifest": read_store_audit(audit_manifest(**spec))}


# -- when ---------------------------------------------------------------------------------------------------


def test_before_its_time_nothing_is_done_and_the_next_look_is_at_its_time() -> None:
    """A new StoreAudit does not make up for nights before it was there."""
    found = plan_audit(observed_audit(now=NIGHT - 60))

    assert found.actions == ()
    assert found.status["nextScheduleTime"] == "2026-03-03T03:00:00Z"
    assert 60 <= found.requeue_seconds <= 61


def test_a_calm_audit_stays_as_it_is() -> None:
    """The same look gives the same status, and no action."""
    world = AuditWorld()

    first, second = world.reconcile(), world.reconcile()

    assert second.actions == ()
    assert second.status == first.status


def test_a_run_is_written_down_one_round_before_its_first_job() -> None:
    """Whoever comes after a crash finds it in the status, and begins no other."""
    world = AuditWorld()

    first = world.reconcile(now=NIGHT)
    assert first.actions == ()
    assert first.status["phase"] == "Running"
    assert first.requeue_seconds < 1

    world.reconcile(now=NIGHT + 1)
    assert world.names(labels.MAP) == [f"nightly-{int(NIGHT // 60)}-0-{n}" for n in range(3)]

    assert world.reconcile(now=NIGHT + 2).actions == ()


def test_a_time_that_passed_without_an_operator_is_made_up_for_once() -> None:
    """However many nights it was gone."""
    world = AuditWorld()
    world.reconcile()

    world.reconcile(now=NIGHT + 5 * DAY + 3600)

    assert world.observed.status["lastScheduleTime"] == "2026-03-08T03:00:00Z"
    world.run()
    assert world.reconcile().status["phase"] == "Idle"


def test_a_schedule_in_a_time_zone_follows_its_clocks() -> None:
    """Three in the morning of Berlin is two in the morning of the world in winter, one in summer."""
    winter = plan_audit(observed_audit(**manifest(timeZone="Europe/Berlin")))
    summer = plan_audit(observed_audit(**manifest(timeZone="Europe/Berlin"), now=CREATED + 60 * DAY))

    assert winter.status["nextScheduleTime"].endswith("T02:00:00Z")
    assert summer.status["nextScheduleTime"].endswith("T01:00:00Z")


def test_a_changed_schedule_begins_when_it_was_changed() -> None:
    """What the new one would have wanted before is not made up for."""
    world = AuditWorld()
    world.reconcile()

    world.reconcile(now=CREATED + 7200, **manifest(schedule="0 13 * * *"))

    assert world.observed.status["phase"] == "Idle"
    assert world.observed.status["nextScheduleTime"] == "2026-03-03T13:00:00Z"


def test_suspended_it_runs_only_when_asked() -> None:
    """The annotation counts once for each value."""
    world = AuditWorld(**manifest(suspend=True))
    assert world.reconcile(now=NIGHT).status["phase"] == "Suspended"

    world.reconcile(meta=asked())
    assert world.observed.status["phase"] == "Running"
    world.run()

    assert world.reconcile().status["phase"] == "Suspended"
    assert world.plans[-1].status["lastRun"]["reason"] == "Request"


@pytest.mark.parametrize(("policy", "runs"), [("Forbid", 1), ("Replace", 2)])
def test_a_run_that_is_due_while_one_is_on_is_left_out_or_takes_its_place(policy: str, runs: int) -> None:
    """Forbid leaves it out; Replace ends the Jobs of the one that is on."""
    world = AuditWorld(**manifest(schedule="0 * * * *", concurrencyPolicy=policy))
    world.reconcile(now=CREATED + 3600)
    world.reconcile()
    first = world.names(labels.MAP)

    plan = world.reconcile(now=CREATED + 7200)

    assert world.observed.status["workflow"]["runs"] == runs  # type: ignore[index]
    gone = {action.ref.name for action in plan.actions if isinstance(action, DeleteObject)}
    assert gone == (set(first) if policy == "Replace" else set())
    if policy == "Replace":
        assert world.observed.status["history"][0]["result"] == reasons.REPLACED  # type: ignore[index]


# -- what it takes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"audited": None}, reasons.SET_MISSING),
        ({"image": ""}, reasons.NO_IMAGE),
        ({"audited": AuditedSet(name="orders", uid="1")}, reasons.NOBODY_REGISTERED),
        (
            {
                "audited": AuditedSet(
                    name="orders", uid="1", problem=(reasons.CONTROLLERS_SILENT, "none leads")
                )
            },
            reasons.CONTROLLERS_SILENT,
        ),
        (manifest(engine="spark", executors={"instances": 2}), reasons.EXECUTORS_FORBIDDEN),
        (manifest(schedule="99 3 * * *"), reasons.INVALID_SPEC),
        (manifest(timeZone="Europe/Atlantis"), reasons.INVALID_SPEC),
        ({"manifest": None}, reasons.INVALID_SPEC),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_keeps_it_from_running_is_said(changes: dict[str, Any], reason: str) -> None:
    """And nothing is begun; a run that is due then begins when that is over."""
    world = AuditWorld()

    plan = world.reconcile(now=NIGHT, **changes)

    assert plan.actions == ()
    assert world.condition(reasons.READY)[:2] == ("False", reason)
    assert plan.status["phase"] in ("Waiting", "Invalid")
    world.reconcile(now=NIGHT + 40, **{name: getattr(observed_audit(), name) for name in changes})
    assert world.observed.status["phase"] == "Running"


# -- a run --------------------------------------------------------------------------------------------------


def test_a_run_goes_from_maps_to_a_comparison_to_a_verdict() -> None:
    """Maps are kept in ConfigMaps, compared by one Job for each group, and gone afterwards."""
    world = AuditWorld(
        audited=AuditedSet(
            name="orders", uid="5e7", replicas=tuple(replica(o, i) for i in range(2) for o in range(3))
        )
    )
    world.reconcile(now=NIGHT)
    world.reconcile()
    assert len(world.names(labels.MAP)) == 6
    for name in world.names(labels.MAP):
        world.finish(name, result='{"mapVersion":1}')
    world.reconcile()
    assert sorted(world.observed.maps) == [f"nightly-map-{i}-{o}" for i in range(2) for o in range(3)]
    world.reconcile()
    world.reconcile()
    compared = world.names(labels.REDUCE)
    assert compared == [f"nightly-{int(NIGHT // 60)}-{i}-reduce" for i in range(2)]

    world.finish(compared[0], summary(read=1000))
    assert world.reconcile().status["phase"] == "Running"
    world.finish(compared[1], summary(read=500))
    last = world.reconcile(now=NIGHT + 60)

    assert last.status["phase"] == "Idle"
    record = last.status["lastRun"]
    assert (record["result"], record["replicas"], record["bytesRead"]) == (reasons.PASSED, "6/6", 1500)
    assert last.status["lastSuccessTime"] == record["completionTime"] == "2026-03-03T03:01:00Z"
    assert world.condition(reasons.AUDIT_PASSED)[:2] == ("True", reasons.NO_ERRORS)
    assert last.on_set is not None
    assert last.on_set[0] == "True"
    assert world.observed.maps == {}
    assert world.names(labels.MAP) == []
    assert world.reconcile().actions == ()


def test_an_error_is_said_where_people_look() -> None:
    """In the conditions of both, in the status, and as an Event of both, only once."""
    world = AuditWorld(**manifest(schedule="0 * * * *"))
    world.reconcile(now=CREATED + 3600)

    found = world.run(error())

    text = "damage: /stores/orders-0-1/store commitlog/00000000000000000000 at 1234: no sound record"
    assert found.status["lastRun"]["result"] == reasons.FOUND
    assert found.status["lastRun"]["worstCode"] == "damage"
    assert found.status["counts"] == {"damage": 1}
    assert found.status["findings"][0]["offset"] == 1234
    assert "lastSuccessTime" not in found.status
    assert found.on_set is not None
    assert found.on_set[:2] == ("False", reasons.ERRORS_FOUND)
    assert text in found.on_set[2]
    assert [each.message for each in world.events] == [text]
    assert [each.message for each in found.set_events] == [text]

    world.reconcile(now=CREATED + 7200)
    again = world.run(error(), error(code="bytes"))
    assert [each.message.partition(":")[0] for each in again.set_events] == ["bytes"]


def test_errors_stay_until_a_run_that_read_everything_finds_none() -> None:
    """A run that fails, or misses a replica, proves nothing."""
    world = AuditWorld(**manifest(schedule="0 * * * *"))
    world.reconcile(now=CREATED + 3600)
    world.run(error())

    world.reconcile(now=CREATED + 7200)
    world.reconcile()
    for name in world.names(labels.MAP):
        world.fail(name)
    world.reconcile()
    assert world.observed.status["lastRun"]["result"] == reasons.FAILED  # type: ignore[index]
    assert world.condition(reasons.AUDIT_PASSED)[:2] == ("False", reasons.ERRORS_FOUND)

    world.reconcile(now=CREATED + 10_800)
    world.run()
    assert world.condition(reasons.AUDIT_PASSED)[:2] == ("True", reasons.NO_ERRORS)


def test_a_replica_that_cannot_be_read_makes_a_run_incomplete() -> None:
    """The others are compared all the same, and nobody says that all is well."""
    world = AuditWorld()
    world.reconcile(now=NIGHT)
    world.reconcile()
    first, second, third = world.names(labels.MAP)
    world.finish(first, result="{}")
    world.finish(second, result="{}")
    world.fail(third, "DeadlineExceeded", "was active too long")
    for _ in range(3):
        world.reconcile()
    (compared,) = world.names(labels.REDUCE)
    command = world.observed.jobs[compared]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [each for each in command if each.startswith("/maps/orders")] == [
        "/maps/orders-0-0.json",
        "/maps/orders-0-1.json",
    ]
    world.finish(compared, summary())
    world.reconcile()

    assert world.observed.status["lastRun"]["result"] == reasons.INCOMPLETE  # type: ignore[index]
    assert world.observed.status["lastRun"]["replicas"] == "2/3"  # type: ignore[index]
    holds, reason, message = world.condition(reasons.AUDIT_PASSED)
    assert (holds, reason) == ("Unknown", reasons.INCOMPLETE)
    assert "orders-0-2" in message
    assert "DeadlineExceeded" in message
    assert "lastSuccessTime" not in world.observed.status
    assert third in world.observed.jobs, "its log may tell why"


def test_a_broker_that_moves_is_waited_for() -> None:
    """Its Job is made again when it runs again; after a while the run goes on without it."""
    gone = tuple(replica(ordinal, running=ordinal != 1) for ordinal in range(3))
    audited = AuditedSet(name="orders", uid="5e7", replicas=gone)
    world = AuditWorld()
    world.reconcile(now=NIGHT)

    world.reconcile(audited=audited)
    assert [name[-1] for name in world.names(labels.MAP)] == ["0", "2"]
    back = replace(world.observed, audited=observed_audit().audited)
    assert len([each for each in plan_audit(back).actions if isinstance(each, ApplyObject)]) == 1

    world.reconcile(now=NIGHT + GIVEN_UP_SECONDS)
    shares = world.observed.status["workflow"]["run"]["shares"]  # type: ignore[index]
    assert shares[1]["failed"] == "its broker does not run"


def test_a_job_that_does_not_start_is_named_and_given_up() -> None:
    """An image that cannot be pulled does not keep a run on for its whole deadline."""
    world = AuditWorld()
    world.reconcile(now=NIGHT)
    world.reconcile()
    name = world.names(labels.MAP)[0]
    pod = {
        "metadata": {"name": "x", "ownerReferences": [{"kind": "Job", "name": name}]},
        "status": {"containerStatuses": [{"name": "job", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
    }

    world.reconcile(pods={"x": pod})
    assert "orders-0-0: ErrImagePull" in world.condition(reasons.READY)[2]
    world.reconcile(now=NIGHT + GIVEN_UP_SECONDS)

    assert world.observed.status["workflow"]["run"]["shares"][0]["failed"] == "ErrImagePull"  # type: ignore[index]


def test_a_run_ends_at_its_deadline() -> None:
    """Whatever it waits for; Jobs that do not end by themselves soon after go."""
    world = AuditWorld(**manifest(limits={"deadlineSeconds": 3600}))
    world.reconcile(now=NIGHT)
    world.reconcile()

    plan = world.reconcile(now=NIGHT + 3600)
    assert plan.requeue_seconds <= 2, "the time of its Jobs is over, too"
    assert "run" in world.observed.status["workflow"]  # type: ignore[operator]
    world.reconcile(now=NIGHT + 3600 + LATE_SECONDS)

    assert world.observed.status["lastRun"]["result"] == reasons.FAILED  # type: ignore[index]
    assert world.names(labels.MAP) == []
    assert [each.reason for each in world.events] == ["AuditRunFailed"]


def test_jobs_that_ended_at_their_deadline_stay_with_their_logs_and_the_cause_is_told() -> None:
    """Here executors found no room, which was last seen while the drivers were waiting for them."""
    limits = {"deadlineSeconds": 60}
    spark = {"engine": "spark", "executors": {"instances": 1}}
    world = AuditWorld(**manifest(limits=limits, **spark), spark_role="ClusterRole/driver")
    world.reconcile(now=NIGHT)
    world.reconcile()
    names = world.names(labels.MAP)
    pods: dict[str, Any] = {}
    for name in names:
        pods[f"{name}-d"] = {
            "metadata": {"name": f"{name}-d", "ownerReferences": [{"kind": "Job", "name": name}]}
        }
        pods[f"{name}-e"] = executor(f"{name}-e", f"{name}-d")
    world.reconcile(now=NIGHT + 50, pods=pods)
    told = "no node takes it: 0/1 nodes are available: 1 Insufficient cpu."
    assert f"orders-0-1: executor {names[1]}-e: {told}" in world.condition(reasons.READY)[2]

    world.reconcile(now=NIGHT + 60, pods={})
    for name in names:
        world.fail(name, "DeadlineExceeded", "was active too long")
    world.reconcile(now=NIGHT + 62)

    last = world.observed.status["lastRun"]
    assert last["result"] == reasons.FAILED  # type: ignore[index]
    assert "limits.deadlineSeconds, 60 s: orders-0-0: executor" in last["message"]  # type: ignore[index]
    assert last["message"].count(told) == 3  # type: ignore[index]
    assert world.names(labels.MAP) == names, "their pods and logs are there"
    assert told in world.events[-1].message
    world.reconcile(now=NIGHT + 3600)
    assert world.names(labels.MAP) == names


def executor(name: str, driver: str) -> dict[str, Any]:
    """A pod that Spark made, and that no node takes."""
    message = "0/1 nodes are available: 1 Insufficient cpu."
    return {
        "metadata": {
            "name": name,
            "labels": {"spark-role": "executor"},
            "ownerReferences": [{"kind": "Pod", "name": driver}],
        },
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]},
    }


def test_a_map_that_ends_with_the_code_of_findings_has_failed_and_stays() -> None:
    """It has no findings to give; Python's own code for an exception is the same."""
    world = AuditWorld()
    world.reconcile(now=NIGHT)
    world.reconcile()
    names = world.names(labels.MAP)

    for name in names:
        world.finish(name, "ImportError: numpy is broken", code=1)
        world.fail(name, "PodFailurePolicy", "exit code 1")
    world.reconcile(now=NIGHT + 60)

    assert world.observed.status["lastRun"]["result"] == reasons.FAILED  # type: ignore[index]
    assert "numpy is broken" in world.observed.status["lastRun"]["message"]  # type: ignore[index]
    world.reconcile(now=NIGHT + 3600)
    assert world.names(labels.MAP) == names


def test_everything_is_read_again_after_so_many_days() -> None:
    """The first run is a full one, and then one a week."""
    world = AuditWorld()
    full = []
    for day in range(9):
        world.reconcile(now=NIGHT + day * DAY)
        world.run()
        full.append(world.observed.status["lastRun"]["full"])  # type: ignore[index]

    assert full == [True, *[False] * 6, True, False]


def test_only_so_many_runs_are_remembered_and_their_jobs_go() -> None:
    """Each kind by its own limit, besides the last."""
    limits = {"successfulRunsHistoryLimit": 1, "failedRunsHistoryLimit": 2}
    world = AuditWorld(**manifest(**limits))
    for day, bad in enumerate([False, True, True, False, True, False]):
        world.reconcile(now=NIGHT + day * DAY)
        world.run(*([error(offset=day)] if bad else []))

    results = [each["result"] for each in world.observed.status["history"]]  # type: ignore[attr-defined]
    assert results == [reasons.FOUND, reasons.PASSED, reasons.FOUND]
    assert len(world.names(labels.REDUCE)) == 4


def test_several_audits_of_one_set_say_the_worst_of_them() -> None:
    """What one has found, another that looks elsewhere does not take away."""
    world = AuditWorld(others={"weekly": ("False", reasons.ERRORS_FOUND, "run 7 found 1 errors")})
    world.reconcile(now=NIGHT)

    plan = world.run()

    assert world.condition(reasons.AUDIT_PASSED)[0] == "True"
    assert plan.on_set == ("False", reasons.ERRORS_FOUND, "run 7 found 1 errors")


def test_a_comparison_without_a_summary_is_a_failure() -> None:
    """What cannot be read is never taken for success."""
    world = AuditWorld()
    world.reconcile(now=NIGHT)
    world.map_all()
    (compared,) = world.names(labels.REDUCE)

    world.finish(compared, "Killed")
    world.reconcile()

    assert world.observed.status["lastRun"]["result"] == reasons.FAILED  # type: ignore[index]
    assert "Killed" in world.observed.status["lastRun"]["message"]  # type: ignore[index]
