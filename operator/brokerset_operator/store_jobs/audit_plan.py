"""What to do about a StoreAudit now: `plan_audit` decides from what is observed what is safe; see `runs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from brokerset_operator.model.actions import ApplyObject, EmitEvent
from brokerset_operator.plan.conditions import Verdict
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.audit_jobs import (
    MAP_BYTES_MAX,
    map_job,
    map_job_name,
    map_name,
    map_object,
    queries,
    query_job,
    query_object,
    query_object_name,
    reduce_job,
    reduce_job_name,
    report_name,
)
from brokerset_operator.store_jobs.audit_status import AuditStatus, begin_status
from brokerset_operator.store_jobs.audit_work import AuditRun, Share, Work
from brokerset_operator.store_jobs.job_parts import JobFacts
from brokerset_operator.store_jobs.observed import ObservedAudit, Replica
from brokerset_operator.store_jobs.outcomes import Summary, merged, read_summary
from brokerset_operator.store_jobs.run_status import Ending
from brokerset_operator.store_jobs.runs import GIVEN_UP_SECONDS, RunDecision, set_missing, timetable_of
from brokerset_operator.store_jobs.schedule import Reason, Run, Schedule, read_memory, read_schedule
from brokerset_operator.store_jobs.sequence import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    SOON_SECONDS,
    JobPlan,
    invalid,
    made,
    why_no_jobs,
)
from brokerset_spec.problems import Problem
from brokerset_spec.store_audit_manifest import StoreAudit

DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class AuditPlan(JobPlan):
    """One reconcile's decision."""

    on_set: Verdict | None = None
    """What the condition `AuditPassed` of the BrokerSet has to say; None for nothing."""

    set_events: tuple[EmitEvent, ...] = ()
    """What is told of the BrokerSet itself."""


def plan_audit(observed: ObservedAudit) -> AuditPlan:
    """Return what to do now, the status, and when to reconcile again.

    Every action is safe on its own and may be repeated; `observed` may be a moment old, except for `status`,
    which must be as it was written last.
    """
    if observed.meta.deleting:
        return AuditPlan((), dict(observed.status), IDLE_SECONDS)
    status = begin_status(observed)
    if observed.manifest is None:
        return _refused(observed, status, invalid(observed)[2])
    schedule = read_schedule(observed.manifest.spec.schedule, observed.manifest.spec.time_zone)
    if isinstance(schedule, Problem):
        return _refused(observed, status, str(schedule))
    return _Decision(observed, observed.manifest, schedule, status).decide()


def combined(own: Verdict | None, others: Mapping[str, Verdict]) -> Verdict | None:
    """What several StoreAudits say of one set together: the worst; None when none says anything."""
    order = ("False", "Unknown", "True")
    said = [verdict for verdict in (own, *others.values()) if verdict is not None]
    return min(said, key=lambda verdict: order.index(verdict[0])) if said else None


def _refused(observed: ObservedAudit, status: AuditStatus, message: str) -> AuditPlan:
    status.ready = ("False", reasons.INVALID_SPEC, message)
    work = read_memory(Work, observed.status)
    return AuditPlan((), status.written(work), IDLE_SECONDS, combined(status.passed, observed.others))


class _Decision(RunDecision[Work, AuditStatus]):
    """One decision on a valid manifest."""

    def __init__(
        self, observed: ObservedAudit, audit: StoreAudit, schedule: Schedule | None, status: AuditStatus
    ) -> None:
        spec = audit.spec
        one = spec.concurrency_policy == "Forbid"
        timetable = timetable_of(observed, spec, schedule, labels.AUDIT_NOW, one=one)
        work = read_memory(Work, observed.status)
        super().__init__(observed, spec, spec.limits, timetable, status, work, annotation=labels.AUDIT_NOW)
        self.observed = observed
        self.audit = audit
        self.name = audit.metadata.name
        self.waits_for: dict[str, str] = {}
        """By pod of a broker: why the Job that reads its volume does not go on."""

    def decide(self) -> AuditPlan:
        """Decide everything."""
        self.settle()
        status = self.status.written(self.work)
        return AuditPlan(
            (*self.actions, *self.status.events()),
            status,
            self.again_seconds,
            combined(self.status.passed, self.observed.others),
            tuple(self.status.set_events()),
        )

    # -- beginning ----------------------------------------------------------------------------------------

    def begin(self, reason: Reason, due: int) -> bool:
        """Begin a run with the replicas that there are."""
        if self.work.run is not None:
            if reason == "Request" and self.timetable.one_at_a_time:
                self.again(BUSY_SECONDS)  # after the one that is on
                return False
            self.end(self.work.run, Ending(reasons.REPLACED, "a newer run took its place"))
        audited = self.observed.audited
        assert audited is not None, "a problem otherwise"
        work = self.timetable.started(self.work, reason, due)
        run = AuditRun(
            number=work.number,
            reason=reason,
            full=self._full_is_due(),
            started=self.observed.now,
            shares=tuple(_share(replica) for replica in audited.replicas),
        )
        self.work = work.at(run=run)
        if reason == "Schedule":
            self.status.scheduled(float(due))
        self.again(SOON_SECONDS)
        return True

    def _full_is_due(self) -> bool:
        days, last = self.audit.spec.full_every_days, self.status.last_full
        return not days or last is None or self.observed.now - last >= days * DAY_SECONDS - 60

    # -- a run that is on ---------------------------------------------------------------------------------

    def go_on(self, run: Run) -> None:
        """Carry the step of a run on that it is at."""
        assert isinstance(run, AuditRun), "an audit has begun it"
        if run.step == "map":
            run = self._map(run)
            self.work = self.work.at(run=run)
            if all(share.failed is not None or self._is_read(run, share) for share in run.shares):
                if all(share.failed is not None for share in run.shares):
                    said = "; ".join(f"{share.pod}: {share.failed}" for share in run.shares)
                    self.end(run, Ending(reasons.FAILED, f"no replica could be read: {said}"))
                    return
                # Written down first, as every step; the Job is made in the next reconcile.
                self.work = self.work.at(run=replace(run, step="reduce"))
                self.again(SOON_SECONDS)
        elif run.step == "look":
            self.work = self.work.at(run=self._continue_queries(run))
        else:
            self._reduce(run)

    def why_late(self, run: Run) -> str:
        """What kept the replicas that were not read."""
        assert isinstance(run, AuditRun), "an audit has begun it"
        whys = {share.pod: share.failed or share.noted or self._why_late(share, run) for share in run.shares}
        return "; ".join(f"{pod}: {why}" for pod, why in whys.items() if why)

    def _why_late(self, share: Share, run: AuditRun) -> str:
        if self._is_read(run, share):
            return ""
        return self.observed.outcome(map_job_name(self.name, run.number, share)).message

    def _map(self, run: AuditRun) -> AuditRun:
        shares = []
        for share in run.shares:
            if share.failed is None and not self._is_read(run, share):
                failed = self._map_one(run, share)
                noted = self.waits_for.get(share.pod)
                share = replace(share, failed=failed and failed[:500], noted=noted and noted[:500])
            shares.append(share)
        return replace(run, shares=tuple(shares))

    def _map_one(self, run: AuditRun, share: Share) -> str | None:
        """Get one replica on; returns why it cannot be read."""
        facts = map_job(self.observed, run, share, shared_volume=self.observed.report_is_shared)
        waits = self.observed.now - run.started >= GIVEN_UP_SECONDS
        return self._get_on(facts, share, waits, lambda text: map_object(self.observed, run, share, text))

    def _get_on(
        self, facts: JobFacts, share: Share, waits: bool, kept: Callable[[str], NewObject]
    ) -> str | None:
        """Make the Job of a replica, or keep what it said; `waits`: for too long by now. As `_map_one`."""
        outcome = self.observed.outcome(facts.name)
        match outcome.state:
            case "done":
                found = self.observed.results.get(facts.name)
                if found is None:
                    return "its Job ended, and its log has no result"
                if len(found.encode()) > MAP_BYTES_MAX:
                    return f"its result has more than {MAP_BYTES_MAX} bytes, which no ConfigMap takes"
                self.actions.append(ApplyObject(kept(found)))
                self.again(SOON_SECONDS)
            case "failed":
                return outcome.message or "its Job failed"
            case "missing":
                replica = self._replica(share)
                if replica is not None and replica.running:
                    self.actions += made(self.observed, facts)
                elif waits:
                    return "its broker does not run"
            case _:
                if outcome.message and waits:
                    return outcome.message
                if outcome.message:
                    self.status.note(f"{share.pod}: {outcome.message}")
                    self.waits_for[share.pod] = outcome.message
        return None

    def _continue_queries(self, run: AuditRun) -> AuditRun:
        """Carry a round of queries on; what nobody answers is left out, and the stretch is told."""
        by_pod = {share.pod: share for share in run.shares}
        waits = self.observed.now - run.asked_at >= GIVEN_UP_SECONDS
        asked, open_ = [], False
        for each in run.asked:
            if each.number == run.round and each.failed is None:
                share, number = by_pod[each.pod], each.number
                if self._is_there(run, query_object_name(self.name, share, number)):
                    asked.append(each)
                    continue
                facts = query_job(self.observed, run, share, each)
                failed = self._get_on(facts, share, waits, self._keeping(run, share, number))
                each = each if failed is None else replace(each, failed=failed[:500])
                open_ = open_ or failed is None
            asked.append(each)
        if open_:
            return replace(run, asked=tuple(asked))
        self.again(SOON_SECONDS)
        return replace(run, asked=tuple(asked), step="reduce")

    def _keeping(self, run: AuditRun, share: Share, number: int) -> Callable[[str], NewObject]:
        return lambda text: query_object(self.observed, run, share, number, text)

    def _reduce(self, run: AuditRun) -> None:
        """Compare group by group; the run ends when all were compared, or one cannot be."""
        report = report_name(self.audit, self.work.runs)
        read: dict[int, list[Share]] = {}
        for share in run.shares:
            if share.failed is None:
                read.setdefault(share.index, []).append(share)
        summaries: dict[int, Summary] = {}
        for index, shares in read.items():
            found = self._reduce_group(run, index, shares, report)
            if isinstance(found, str):
                self.end(run, Ending(reasons.FAILED, found))
                return
            if found is not None:
                summaries[index] = found
        if len(summaries) < len(read):
            return
        asked = queries(run, summaries.values())
        if asked:
            # Written down first, as every step.
            run = replace(run, step="look", asked=(*run.asked, *asked), asked_at=self.observed.now)
            self.work = self.work.at(run=run)
            self.again(SOON_SECONDS)
            return
        silent = "; ".join(f"{each.pod} did not answer: {each.failed}" for each in run.asked if each.failed)
        self.end(run, Ending(reasons.PASSED, silent, merged(summaries.values()), report))

    def _reduce_group(
        self, run: AuditRun, index: int, shares: list[Share], report: str | None
    ) -> Summary | str | None:
        """What the comparison of a group gave, why there is none, or None while it is on."""
        number = max((each.number for each in run.answered(index)), default=0)
        name = reduce_job_name(self.name, run.number, index, number)
        outcome = self.observed.outcome(name)
        match outcome.state:
            case "missing":
                if not all(self._is_read(run, share) for share in shares):
                    return "maps of replicas were deleted before they were compared"
                self.actions += made(self.observed, reduce_job(self.observed, run, shares, report))
            case "failed":
                return f"the comparison of {shares[0].group} failed: {outcome.message}"
            case "done":
                said = outcome.message[-300:]
                return read_summary(outcome.message) or f"the comparison gave no summary: {said}"
            case _:
                if outcome.message:
                    self.status.note(f"{name}: {outcome.message}")
        return None

    def is_kept(self, step: str, failed: bool) -> bool:
        """Those that compare, and those that failed."""
        return failed or step == labels.REDUCE

    # -- reading ------------------------------------------------------------------------------------------

    def problem(self) -> Verdict | None:
        """Why no run can begin now."""
        audited, spec = self.observed.audited, self.audit.spec
        if audited is None:
            return set_missing(spec.broker_set_ref.name, self.observed.meta.namespace)
        problem = why_no_jobs(self.observed, spec.image, spec.executors, "jobs run")
        if problem is not None:
            return problem
        if audited.problem is not None:
            return "False", *audited.problem
        if not audited.replicas:
            return "False", reasons.NOBODY_REGISTERED, "no broker of these groups is registered yet"
        return None

    def _is_read(self, run: AuditRun, share: Share) -> bool:
        return self._is_there(run, map_name(self.name, share))

    def _is_there(self, run: AuditRun, name: str) -> bool:
        found = self.observed.maps.get(name)
        return found is not None and labels.run_of(found) == run.number

    def _replica(self, share: Share) -> Replica | None:
        found = self.observed.audited.replicas if self.observed.audited is not None else ()
        return next((replica for replica in found if replica.pod == share.pod), None)


def _share(replica: Replica) -> Share:
    return Share(
        pod=replica.pod,
        group=replica.group,
        index=replica.index,
        ordinal=replica.ordinal,
        broker_id=replica.broker_id,
        claim=replica.claim,
        confirmed_offset=replica.confirmed_offset,
    )
