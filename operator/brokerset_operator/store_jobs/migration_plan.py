"""What to do about a StoreMigration now: Pending, Running, Verifying, and Succeeded or Failed for good.

No Job is made while anything else uses one of both volumes, and a Job is ended when something begins to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.plan.conditions import Verdict
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.migration_jobs import manifest_of, migrate_job, target_claim, verify_job
from brokerset_operator.store_jobs.observed import ObservedMigration
from brokerset_operator.store_jobs.sequence import JobPlan, Sequence, Step, plan_sequence, why_no_jobs


def plan_migration(observed: ObservedMigration) -> JobPlan:
    """Return what to do now, the status, and when to reconcile again; see `plan_sequence`."""
    return plan_sequence(MIGRATION, observed, valid=observed.manifest is not None)


def _in_the_way(observed: ObservedMigration) -> Verdict | None:
    """Why no Job may run now."""
    migration = manifest_of(observed)
    spec = migration.spec
    problem = why_no_jobs(observed, spec.image, spec.executors, "job runs")
    if problem is not None:
        return problem
    if observed.source_claim is None:
        where = f"there is no volume claim {spec.source.claim_name} in namespace {observed.meta.namespace}"
        return "False", reasons.SOURCE_MISSING, where
    used = [
        f"{claim} by {', '.join(observed.users[claim])}"
        for claim in (spec.source.claim_name, migration.target_claim)
        if observed.users.get(claim)
    ]
    if used:
        message = (
            f"in use: {'; '.join(used)}. Stop what uses it: a store is copied only while nobody writes it"
        )
        return "False", reasons.IN_USE, message
    if observed.taken_by is not None:
        message = (
            f"StatefulSet {observed.taken_by} has a broker for volume {migration.target_claim}: a store is"
            " migrated before its BrokerSet is made, or has that many replicas"
        )
        return "False", reasons.TARGET_TAKEN, message
    return None


def _target(observed: ObservedMigration) -> tuple[NewObject, ...]:
    return (target_claim(observed),) if observed.target_claim is None else ()


def _done(observed: ObservedMigration) -> str:
    volume = manifest_of(observed).target_claim
    return f"the new store is on volume {volume}, and was read back without an error"


def _fields(observed: ObservedMigration) -> Mapping[str, Any]:
    migration = manifest_of(observed)
    return {"sourceClaim": migration.spec.source.claim_name, "targetClaim": migration.target_claim}


MIGRATION: Final = Sequence(
    word="Migration",
    begins="the volumes are free, and the Job is made",
    steps=(
        Step(
            phase="Running",
            reason=reasons.MIGRATING,
            going="the store is copied",
            job=migrate_job,
            needs=_target,
            failed=reasons.MIGRATION_FAILED,
        ),
        Step(
            phase="Verifying",
            reason=reasons.VERIFYING,
            going="the new store is read back",
            job=verify_job,
            failed=reasons.VERIFICATION_FAILED,
        ),
    ),
    reading=("the store was copied; it is read back",),
    done=_done,
    in_the_way=_in_the_way,
    fields=_fields,
)
