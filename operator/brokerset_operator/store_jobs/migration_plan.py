"""What to do about a StoreMigration now: Pending, Running, Verifying, and Succeeded or Failed for good.

No Job is made while anything else uses one of both volumes, and a Job is ended when something begins to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from brokerset_operator.model.actions import ApplyObject, DeleteObject, EmitEvent, ObjectRef
from brokerset_operator.plan.objects import part, text, time_text
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.audit_status import error_text
from brokerset_operator.store_jobs.conditions import Verdict, condition, find
from brokerset_operator.store_jobs.job_objects import job_object
from brokerset_operator.store_jobs.job_parts import JobFacts
from brokerset_operator.store_jobs.migration_facts import ObservedMigration
from brokerset_operator.store_jobs.migration_jobs import (
    migrate_job,
    migrate_job_name,
    target_claim,
    verify_job,
    verify_job_name,
)
from brokerset_operator.store_jobs.outcomes import Outcome, Summary, outcome_of, pods_of, read_summary
from brokerset_operator.store_jobs.pod_failures import EXECUTOR, LATE, is_executor
from brokerset_operator.store_jobs.spark_pods import executor_objects
from brokerset_spec.store_migration_manifest import StoreMigration

SOON_SECONDS: Final = 0.2
BUSY_SECONDS: Final = 15.0
WAIT_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 3600.0

Phase = Literal["Pending", "Running", "Verifying", "Succeeded", "Failed"]
FINAL: Final = ("Succeeded", "Failed")

Action = ApplyObject | DeleteObject | EmitEvent


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """One round's decision."""

    actions: tuple[Action, ...]
    status: Mapping[str, Any]
    look_again_seconds: float


@dataclass(frozen=True, slots=True)
class _Next:
    """Where a migration is after a round, and why."""

    phase: Phase
    ready: Verdict
    actions: tuple[Action, ...] = ()
    look: float = BUSY_SECONDS
    summary: Summary | None = None


def plan_migration(observed: ObservedMigration) -> MigrationPlan:
    """Return what to do now, the status, and when to look again.

    Every action is safe on its own and may be repeated; `observed` may be a moment old, except for `status`,
    which must be as it was written last.
    """
    phase = observed.status.get("phase")
    if observed.meta.deleting or phase in FINAL:
        return MigrationPlan((), dict(observed.status), IDLE_SECONDS)
    if observed.manifest is None:
        said = "; ".join(map(str, observed.problems)) or "the manifest cannot be read"
        found = _Next("Pending", ("False", reasons.INVALID_SPEC, said), look=IDLE_SECONDS)
    else:
        found = _decide(observed, observed.manifest, str(phase or "Pending"))
    return MigrationPlan(
        (*found.actions, *_events(found, phase)), _status(observed, found, phase), found.look
    )


def _decide(observed: ObservedMigration, migration: StoreMigration, phase: str) -> _Next:
    problem = _problem(observed, migration)
    if problem is not None:
        # What was copied stays where it is, beside the target's place; a later Job goes on with it.
        return _Next("Pending", problem, tuple(_end_jobs(observed)), WAIT_SECONDS)
    if phase == "Pending":
        # Written down first: who looks next makes the Job.
        starting: Verdict = ("False", reasons.STARTING, "the volumes are free, and the Job is made")
        return _Next("Running", starting, (), SOON_SECONDS)
    if phase == "Running":
        return _copy(observed, migration)
    return _verify(observed, migration)


def _copy(observed: ObservedMigration, migration: StoreMigration) -> _Next:
    outcome = _outcome(observed, migrate_job_name(migration.metadata.name))
    told = _told(observed, outcome.message)
    going: Verdict = ("False", reasons.MIGRATING, _with("the store is copied", told))
    match outcome.state:
        case "missing":
            actions: list[Action] = []
            if observed.target_claim is None:
                actions.append(ApplyObject(target_claim(observed)))
            facts = migrate_job(observed, migration.spec.limits.deadline_seconds)
            return _Next("Running", going, (*actions, *_made(observed, facts)))
        case "running":
            return _Next("Running", going)
        case "failed":
            return _failed(reasons.MIGRATION_FAILED, told or "its Job failed")
    summary = read_summary(outcome.message)
    if summary is None:
        said = f"its Job gave no summary: {outcome.message[-300:]}"
        return _failed(reasons.MIGRATION_FAILED, said)
    if summary.errors:
        return _failed(reasons.MIGRATION_FAILED, _worst(summary), summary)
    reading: Verdict = ("False", reasons.VERIFYING, "the store was copied; it is read back")
    return _Next("Verifying", reading, (), SOON_SECONDS, summary)


def _verify(observed: ObservedMigration, migration: StoreMigration) -> _Next:
    outcome = _outcome(observed, verify_job_name(migration.metadata.name))
    reading: Verdict = ("False", reasons.VERIFYING, _with("the new store is read back", outcome.message))
    match outcome.state:
        case "missing":
            facts = verify_job(observed, migration.spec.limits.deadline_seconds)
            return _Next("Verifying", reading, _made(observed, facts))
        case "running":
            return _Next("Verifying", reading)
        case "failed":
            return _failed(reasons.VERIFICATION_FAILED, outcome.message or "its Job failed")
    summary = read_summary(outcome.message)
    if summary is None:
        said = f"its Job gave no summary: {outcome.message[-300:]}"
        return _failed(reasons.VERIFICATION_FAILED, said)
    if summary.errors:
        return _failed(reasons.VERIFICATION_FAILED, _worst(summary), summary)
    done = f"the new store is on volume {migration.target_claim}, and was read back without an error"
    ready: Verdict = ("True", reasons.SUCCEEDED, done)
    return _Next("Succeeded", ready, (), IDLE_SECONDS, summary)


def _problem(observed: ObservedMigration, migration: StoreMigration) -> Verdict | None:
    """Why no Job may run now."""
    spec = migration.spec
    if not (spec.image or observed.image):
        advice = "give spec.image, or install the operator with spark.image"
        return "False", reasons.NO_IMAGE, f"it is not known which image the job runs; {advice}"
    if spec.executors.instances and not observed.spark_role:
        advice = "install it with spark.executors=true, or leave executors out"
        told = f"the operator may not give jobs the right to make pods; {advice}"
        return "False", reasons.EXECUTORS_FORBIDDEN, told
    if observed.source_claim is None:
        where = f"there is no volume claim {spec.source.claim_name} in namespace {observed.meta.namespace}"
        return "False", reasons.SOURCE_MISSING, where
    used = [
        f"{claim} by {', '.join(observed.users[claim])}"
        for claim in (spec.source.claim_name, migration.target_claim)
        if observed.users.get(claim)
    ]
    if used:
        told = f"in use: {'; '.join(used)}. Stop what uses it: a store is copied only while nobody writes it"
        return "False", reasons.IN_USE, told
    if observed.taken_by is not None:
        told = (
            f"StatefulSet {observed.taken_by} has a broker for volume {migration.target_claim}: a store is"
            " migrated before its BrokerSet is made, or has that many replicas"
        )
        return "False", reasons.TARGET_TAKEN, told
    return None


def _end_jobs(observed: ObservedMigration) -> list[Action]:
    found: list[Action] = []
    for name, job in sorted(observed.jobs.items()):
        meta = part(job, "metadata")
        if meta.get("deletionTimestamp") is None:
            ref = ObjectRef("batch/v1", "Job", name, text(meta.get("uid")))
            found.append(DeleteObject(ref, "a volume is in use"))
    return found


def _made(observed: ObservedMigration, facts: JobFacts) -> tuple[Action, ...]:
    found: list[Action] = []
    if facts.executors.instances:
        for each in executor_objects(facts, observed.spark_role):
            if f"{each['kind']}/{each['metadata']['name']}" not in observed.other:
                found.append(ApplyObject(each))
    return (*found, ApplyObject(job_object(facts)))


def _failed(reason: str, said: str, summary: Summary | None = None) -> _Next:
    return _Next("Failed", ("False", reason, said), (), IDLE_SECONDS, summary)


def _outcome(observed: ObservedMigration, job: str) -> Outcome:
    return outcome_of(observed.jobs.get(job), pods_of(job, observed.pods))


def _worst(summary: Summary) -> str:
    worst = error_text(summary.findings[0]) if summary.findings else "see the log of its Job"
    return f"{summary.errors} errors: {worst}"


def _told(observed: ObservedMigration, said: str) -> str:
    """What the Job says, with what it waited for when its time is over.

    Executors, the cause perhaps, go before their driver; a second try in the last seconds has nothing to add.
    """
    _, _, noted = str(find(observed.status, reasons.READY).get("message") or "").partition("; ")
    gone = noted.startswith(EXECUTOR) and not any(map(is_executor, observed.pods.values()))
    if noted.startswith(LATE) or (gone and not said):
        return noted
    return f"{said}; before, {noted}" if said.startswith(LATE) and noted else said


def _with(said: str, more: str) -> str:
    return f"{said}; {more}" if more else said


def _events(found: _Next, before: object) -> list[EmitEvent]:
    if found.phase == before or (found.phase == "Pending" and before is None):
        return []
    told = found.ready[2][:900]
    return [EmitEvent(f"Migration{found.phase}", told, warning=found.phase in ("Failed", "Pending"))]


def _status(observed: ObservedMigration, found: _Next, before: object) -> dict[str, Any]:
    kept = {
        name: observed.status[name]
        for name in ("startTime", "bytesRead", "findings", "findingsTotal")
        if name in observed.status
    }
    generation, now = observed.meta.generation, observed.now
    status: dict[str, Any] = {
        **kept,
        "observedGeneration": generation,
        "phase": found.phase,
        "conditions": [
            condition(observed.status, reasons.READY, found.ready, generation=generation, now=now)
        ],
    }
    if observed.manifest is not None:
        status["sourceClaim"] = observed.manifest.spec.source.claim_name
        status["targetClaim"] = observed.manifest.target_claim
    if found.phase == "Running" and "startTime" not in status:
        status["startTime"] = time_text(now)
    if found.phase in FINAL and before not in FINAL:
        status["completionTime"] = time_text(now)
    if found.summary is not None:
        if found.phase == "Verifying" or found.summary.errors:
            status["bytesRead"] = found.summary.bytes_read
        status["findings"] = [dict(each) for each in found.summary.findings]
        status["findingsTotal"] = found.summary.total
    return status
