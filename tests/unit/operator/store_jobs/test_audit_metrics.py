"""What Prometheus is told of audits and migrations, from their status alone."""

from __future__ import annotations

from typing import Any

from prometheus_client.metrics_core import Metric
from tests.unit.operator.store_jobs.worlds import NIGHT, AuditWorld, audit_manifest, error

from brokerset_operator.audit_metrics import audit_measurements, audit_metrics, migration_metrics
from brokerset_operator.metrics import Measurements
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.schedule import Schedule, read_schedule
from brokerset_spec.store_audit_manifest import read_store_audit

KEY = Key("StoreAudit", "shop", "nightly")
DAY = 86_400


def figures(world: AuditWorld) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by figure, and by those labels that do not name the StoreAudit."""
    found = audit_metrics({KEY: audit_measurements(world.observed.status)})
    return {metric.name.removeprefix("brokerset_audit_"): _values(metric) for metric in found}


def _values(metric: Metric) -> dict[tuple[str, ...], float]:
    values = {}
    for sample in metric.samples:
        assert (sample.labels["namespace"], sample.labels["name"]) == ("shop", "nightly")
        assert sample.labels["broker_set"] == "orders"
        rest = {
            name: value
            for name, value in sample.labels.items()
            if name not in ("namespace", "name", "broker_set")
        }
        values[tuple(rest.values())] = sample.value
    return values


def run(*findings: dict[str, Any], **more: Any) -> AuditWorld:
    world = AuditWorld(**more)
    world.reconcile(now=NIGHT - 60)
    world.reconcile(now=NIGHT)
    world.reconcile(now=NIGHT + 90)
    world.run(*findings)
    return world


def test_a_run_is_told_with_its_result_its_replicas_and_how_long_it_took() -> None:
    """The replica whose store an error names is accused, and no other."""
    found = figures(run(error(), error("bytes", store="", file="")))

    assert found["last_run"] == {("FindingsFound",): 1}
    assert found["replica"] == {
        ("orders-0", "orders-0-0", "Compared"): 1,
        ("orders-0", "orders-0-1", "Accused"): 1,
        ("orders-0", "orders-0-2", "Compared"): 1,
    }
    assert found["duration_seconds"] == {(): 90}
    assert found["findings"] == {("bytes",): 1, ("damage",): 1}
    assert found["errors"] == {(): 2}
    assert found["last_success_timestamp_seconds"] == {}


def test_a_replica_that_was_not_read_is_told_so_also_when_the_run_failed() -> None:
    world = AuditWorld()
    world.reconcile(now=NIGHT)
    world.reconcile()
    for name in world.names(labels.MAP):
        world.fail(name)

    world.reconcile()

    found = figures(world)
    assert {labels_[2] for labels_ in found["replica"]} == {"Unread"}
    assert found["last_run"] == {("Failed",): 1}


def test_a_run_that_passes_is_waited_for_since_the_last_one_or_since_the_schedule_began() -> None:
    """Before the first run the operator knows since when; a run that fails changes nothing."""
    world = AuditWorld()
    world.reconcile(now=NIGHT - 600)
    assert figures(world)["expected_since_timestamp_seconds"] == {(): NIGHT - 600}
    assert figures(world)["period_seconds"] == {(): DAY}

    failed = figures(run(error()))
    passed = figures(run())

    assert failed["expected_since_timestamp_seconds"] == {(): NIGHT - 60}
    assert passed["expected_since_timestamp_seconds"] == {(): NIGHT + 90}


def test_nothing_is_waited_for_while_the_schedule_rests() -> None:
    """Nor is what it did not do while it rested held against it afterwards."""
    world = run()
    resting = {"manifest": read_store_audit(audit_manifest(suspend=True))}
    active = {"manifest": read_store_audit(audit_manifest())}
    world.reconcile(now=NIGHT + DAY, **resting)
    rested = figures(world)

    world.reconcile(now=NIGHT + 30 * DAY - 3600, **active)

    for name in ("expected_since_timestamp_seconds", "period_seconds"):
        assert rested[name] == {}
    assert figures(world)["expected_since_timestamp_seconds"] == {(): NIGHT + 30 * DAY - 3600}
    never = AuditWorld(manifest=read_store_audit(audit_manifest(schedule=None)))
    never.reconcile()
    assert figures(never)["period_seconds"] == {}


def test_a_calm_audit_writes_the_same_status_each_round() -> None:
    """What is remembered for the figures does not move with the clock."""
    world = run()
    first = world.reconcile(now=NIGHT + 3600).status

    second = world.reconcile(now=NIGHT + 7200).status

    assert first == second


def test_only_the_last_run_tells_of_its_replicas() -> None:
    """A history of hundreds of them would not fit an object."""
    world = run(error())
    world.reconcile(now=NIGHT + DAY)
    world.run()

    status: Any = world.observed.status
    assert len(status["lastRun"]["brokers"]) == 3
    assert all("brokers" not in each for each in status["history"])
    assert status["history"]


def test_the_period_of_a_schedule_is_its_longest_pause() -> None:
    """Workdays at three: from Friday to Monday there are three days."""
    for text, seconds in (
        ("0 3 * * *", DAY),
        ("0 3 * * 1-5", 3 * DAY),
        ("*/10 * * * *", 600),
        ("0 3 1 1 *", 366 * DAY),
    ):
        schedule = read_schedule(text, "Etc/UTC")
        assert isinstance(schedule, Schedule)

        assert schedule.longest_pause(NIGHT) == seconds, text


def test_migrations_are_told_by_their_phase_until_they_are_gone() -> None:
    told = Measurements(lambda: 0.0)
    key = Key("StoreMigration", "shop", "take-over")
    told.migration(key, {"phase": "Running"})
    told.migration(key, {"phase": "Failed"})

    (metric,) = migration_metrics(told.migrations)
    told.forget(key)

    assert [(sample.labels["phase"], sample.value) for sample in metric.samples] == [("Failed", 1)]
    assert told.migrations == {}
