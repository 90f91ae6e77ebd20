"""What to do about a StoreExport now: `plan_export` decides from what is observed what is safe; see `runs`.

A run is one Job. No two write the table at once: a run begins, and its Job is made, when no Job of an earlier
one is left that has not ended, and no driver is left that may still run.
"""

from __future__ import annotations

from itertools import chain

from brokerset_operator.model.observed import Object
from brokerset_operator.plan.conditions import Verdict
from brokerset_operator.plan.objects import part
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.export_jobs import address_of, export_job, export_job_name
from brokerset_operator.store_jobs.export_status import ExportStatus, begin_status
from brokerset_operator.store_jobs.job_parts import JobFacts
from brokerset_operator.store_jobs.observed import ObservedExport
from brokerset_operator.store_jobs.outcomes import read_summary
from brokerset_operator.store_jobs.pod_failures import container_of, is_executor
from brokerset_operator.store_jobs.run_status import Ending
from brokerset_operator.store_jobs.runs import RunDecision, set_missing, timetable_of
from brokerset_operator.store_jobs.schedule import (
    Reason,
    Run,
    RunMemory,
    Schedule,
    read_memory,
    read_schedule,
)
from brokerset_operator.store_jobs.sequence import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    SOON_SECONDS,
    WAIT_SECONDS,
    JobPlan,
    invalid,
    made,
    noted_in,
    why_no_jobs,
    with_noted,
)
from brokerset_spec.problems import Problem
from brokerset_spec.store_export_manifest import StoreExport


def plan_export(observed: ObservedExport) -> JobPlan:
    """Return what to do now, the status, and when to reconcile again.

    Every action is safe on its own and may be repeated; `observed` may be a moment old, except for `status`,
    which must be as it was written last.
    """
    if observed.meta.deleting:
        return JobPlan((), dict(observed.status), IDLE_SECONDS)
    status = begin_status(observed)
    if observed.manifest is None:
        return _refused(observed, status, invalid(observed)[2])
    schedule = read_schedule(observed.manifest.spec.schedule, observed.manifest.spec.time_zone)
    if isinstance(schedule, Problem):
        return _refused(observed, status, str(schedule))
    return _Decision(observed, observed.manifest, schedule, status).decide()


def _refused(observed: ObservedExport, status: ExportStatus, message: str) -> JobPlan:
    status.ready = ("False", reasons.INVALID_SPEC, message)
    return JobPlan((), status.written(read_memory(RunMemory, observed.status)), IDLE_SECONDS)


class _Decision(RunDecision[RunMemory, ExportStatus]):
    """One decision on a valid manifest."""

    def __init__(
        self, observed: ObservedExport, export: StoreExport, schedule: Schedule | None, status: ExportStatus
    ) -> None:
        spec = export.spec
        timetable = timetable_of(observed, spec, schedule, labels.EXPORT_NOW, one=True)
        work = read_memory(RunMemory, observed.status)
        super().__init__(observed, spec, spec.limits, timetable, status, work, annotation=labels.EXPORT_NOW)
        self.observed = observed
        self.export = export

    def decide(self) -> JobPlan:
        """Decide everything."""
        self.settle()
        status = self.status.written(self.work)
        return JobPlan((*self.actions, *self.status.events()), status, self.again_seconds)

    def begin(self, reason: Reason, due: int) -> bool:
        """Begin a run when nothing of an earlier one writes any more."""
        if self.work.run is not None:
            self.again(BUSY_SECONDS)  # after the one that is on
            return False
        writer = self._writer()
        if writer is not None:
            self.status.note(f"the next run waits for {writer}, of an earlier one, to end")
            self.again(WAIT_SECONDS)
            return False
        work = self.timetable.started(self.work, reason, due)
        self.work = work.at(run=Run(number=work.number, reason=reason, started=self.observed.now))
        if reason == "Schedule":
            self.status.scheduled(float(due))
        self.again(SOON_SECONDS)
        return True

    def go_on(self, run: Run) -> None:
        """Make its Job, or read what it came to."""
        facts = export_job(self.observed, run)
        outcome = self.observed.outcome(facts.name)
        match outcome.state:
            case "missing":
                self._make(facts)
            case "failed":
                said = with_noted(self.observed, outcome.message, kind=reasons.EXPORTING)
                self.end(run, Ending(reasons.FAILED, said or "its Job failed"))
            case "done":
                summary = read_summary(outcome.message)
                if summary is None:
                    said = f"its Job gave no summary: {outcome.message[-300:]}"
                    self.end(run, Ending(reasons.FAILED, said))
                else:
                    self.end(run, Ending(reasons.PASSED, "", summary))
            case _:
                if outcome.message:
                    self.status.note(outcome.message)

    def _make(self, facts: JobFacts) -> None:
        """Make the Job of a run; who has deleted an earlier one of that name may have left its driver."""
        writer = self._writer()
        if writer is None:
            self.actions += made(self.observed, facts)
            return
        self.status.note(f"its Job waits for {writer}, of an earlier one, to end")
        self.again(WAIT_SECONDS)

    def why_late(self, run: Run) -> str:
        """What its Job waits for, or did before its pod was deleted."""
        said = self.observed.outcome(export_job_name(self.export.metadata.name, run.number)).message
        found = with_noted(self.observed, said, kind=reasons.EXPORTING)
        return found or noted_in(self.observed, reasons.EXPORTING)

    def problem(self) -> Verdict | None:
        """Why no run can begin now."""
        exported, spec = self.observed.exported, self.export.spec
        if exported is None:
            return set_missing(spec.broker_set_ref.name, self.observed.meta.namespace)
        problem = why_no_jobs(self.observed, spec.image, spec.executors, "jobs run")
        if problem is None and exported.problem is not None:
            return "False", *exported.problem
        given = spec.credentials
        if problem is None and exported.checks_users and (given is None or given.secret_name is None):
            return "False", reasons.NO_CREDENTIALS, unsigned(exported.name)
        shows = given is not None and given.certificate_secret_name is not None
        if problem is None and exported.requires_certificates and not shows:
            return "False", reasons.NO_CREDENTIALS, unshown(exported.name)
        writer = self.observed.taken_by
        if problem is None and writer is not None and self.work.run is None:
            self.again(WAIT_SECONDS)  # nothing tells when the other one goes
            advice = "name another target, or delete one of the two"
            said = f"StoreExport {writer} writes {address_of(spec.target)}; {advice}"
            return "False", reasons.TARGET_TAKEN, said
        return problem

    def is_kept(self, step: str, failed: bool) -> bool:
        """All: there is one for each run, and people look at its log."""
        return True

    def _writer(self) -> str | None:
        """What of an earlier run may still write the table."""
        seen = self.observed
        jobs = (f"Job {name}" for name in seen.jobs if seen.outcome(name).state == "running")
        pods = (f"pod {name}" for name, pod in seen.pods.items() if _may_write(pod))
        return next(chain(jobs, pods), None)


def unsigned(broker_set: str) -> str:
    """What is said of an export that signs nothing, of a set that checks who signs."""
    return (
        f"the BrokerSet {broker_set} checks who signs, and the export has no user: name in"
        " credentials.secretName the Secret of a User with Get and Sub on the topics and Sub on"
        " Group:TOOLS_CONSUMER"
    )


def unshown(broker_set: str) -> str:
    """What is said of an export without a certificate, of a set that serves nobody without."""
    return (
        f"the BrokerSet {broker_set} requires certificates of clients, and the export has none: name in"
        " credentials.certificateSecretName a Secret with tls.crt and tls.key, of an authority of clients"
    )


def _may_write(pod: Object) -> bool:
    """Whether a pod is a driver's, and nobody has said that it has ended."""
    ended = part(pod, "status").get("phase") in ("Succeeded", "Failed")
    return not is_executor(pod) and not ended and "terminated" not in part(container_of(pod), "state")
