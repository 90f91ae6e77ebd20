"""What every kind that has runs decides alike: when one begins, that it ends in time, what is cleared away.

A run is written into the status one reconcile before its first Job is made, so that a second operator, or
the same one after a crash, goes on with it and does not begin another. Its Jobs are named after its number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from brokerset_operator.plan.conditions import Verdict
from brokerset_operator.plan.objects import time_text
from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.observed import ObservedRuns
from brokerset_operator.store_jobs.outcomes import has_ended
from brokerset_operator.store_jobs.run_status import Ending, RunStatus
from brokerset_operator.store_jobs.schedule import Memory, Reason, Run, Schedule, Timetable
from brokerset_operator.store_jobs.sequence import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    SOON_SECONDS,
    Action,
    deletion,
)
from brokerset_spec.store_job_parts import RunLimits, ScheduledSpec

WAIT_SECONDS: Final = 30.0

LATE_SECONDS: Final = 30.0
"""So long a run whose time is over waits for its Jobs, whose time is over as well, to end with their logs."""

LATE_REQUEUE_SECONDS: Final = 2.0

GIVEN_UP_SECONDS: Final = 600.0
"""So long a run waits for a broker's pod that does not run, or for a Job that does not start."""

Status = TypeVar("Status", bound=RunStatus)


class RunDecision(ABC, Generic[Memory, Status]):
    """One decision on a valid manifest."""

    def __init__(
        self,
        observed: ObservedRuns,
        spec: ScheduledSpec,
        limits: RunLimits,
        timetable: Timetable,
        status: Status,
        work: Memory,
        *,
        annotation: str,
    ) -> None:
        """`annotation` is the one that asks for a run."""
        self._seen = observed
        self._spec = spec
        self._limits = limits
        self._annotation = annotation
        self.timetable = timetable
        self.status = status
        self.work = work
        self.actions: list[Action] = []
        self.again_seconds = IDLE_SECONDS

    # -- of a kind ----------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, reason: Reason, due: int) -> bool:
        """Begin a run, unless something of the kind's own speaks against it; returns whether one begins."""

    @abstractmethod
    def go_on(self, run: Run) -> None:
        """Carry a run on."""

    @abstractmethod
    def why_late(self, run: Run) -> str:
        """Why a run whose time is over took so long."""

    @abstractmethod
    def problem(self) -> Verdict | None:
        """Why no run can begin now."""

    @abstractmethod
    def is_kept(self, step: str, failed: bool) -> bool:
        """Whether a Job of this step is kept as long as its run is remembered."""

    # -- of all -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Decide everything."""
        self.work = self.timetable.noted(self.work).at(set_name=self._spec.broker_set_ref.name)
        problem = self.problem()
        self.work, wanted = self.timetable.due(self.work, running=self.work.run is not None)
        began = False
        if wanted is not None:
            if problem is None:
                began = self.begin(*wanted)
            else:
                self.again(WAIT_SECONDS)
        if self.work.run is not None and not began:
            self._go_on(self.work.run, problem)
        self._clear_away()
        self.status.ready = problem or self._ready()
        upcoming = self.timetable.upcoming
        if upcoming is not None:
            self.status.next_at = time_text(upcoming)
            self.again(max(SOON_SECONDS, upcoming - self._seen.now + 0.5))

    def again(self, seconds: float) -> None:
        """Reconcile again after so long at the latest."""
        self.again_seconds = min(self.again_seconds, max(SOON_SECONDS, seconds))

    def end(self, run: Run, ending: Ending) -> None:
        """A run is over."""
        self.status.ended(run, ending)
        self.work = self.work.at(run=None)
        self.again(SOON_SECONDS)

    def _go_on(self, run: Run, problem: Verdict | None) -> None:
        deadline = run.started + self._limits.deadline_seconds
        if self._seen.now >= deadline:
            self._late(run, deadline)
            return
        if problem is not None and problem[1] in (reasons.SET_MISSING, reasons.NO_IMAGE):
            self.end(run, Ending(reasons.FAILED, problem[2]))
            return
        self.again(min(BUSY_SECONDS, deadline - self._seen.now + 1))
        self.go_on(run)

    def _late(self, run: Run, deadline: float) -> None:
        """End a run whose time is over as soon as its Jobs have: what is ended from outside loses its log."""
        own = [job for job in self._seen.jobs.values() if labels.run_of(job) == run.number]
        if self._seen.now < deadline + LATE_SECONDS and not all(map(has_ended, own)):
            self.again(LATE_REQUEUE_SECONDS)
            if why := self.why_late(run):
                self.status.note(why)  # its pod, which says so, may be gone next time
            return
        said = f"it took longer than limits.deadlineSeconds, {self._limits.deadline_seconds} s"
        found = self.why_late(run)
        self.end(run, Ending(reasons.FAILED, f"{said}: {found}" if found else said))

    def _clear_away(self) -> None:
        """Delete Jobs of runs that are not remembered, and of runs that ended what nobody needs."""
        remembered = self.status.remembered()
        current = self.work.run.number if self.work.run is not None else None
        for name, job in sorted(self._seen.jobs.items()):
            number = labels.run_of(job)
            if number == current:
                continue
            failed = self._seen.outcome(name).state == "failed"
            if number in remembered and self.is_kept(labels.step_of(job), failed):
                continue
            self.actions += deletion(job, "its run is over")
        for _, each in sorted(self._seen.objects.items()):
            if labels.run_of(each) != current:
                self.actions += deletion(each, "its run is over")

    def _ready(self) -> Verdict:
        if self.timetable.schedule is None:
            return "True", reasons.ON_REQUEST, f"runs when the annotation {self._annotation} has a new value"
        if self._spec.suspend:
            return "True", reasons.SUSPENDED, "the schedule rests"
        return "True", reasons.SCHEDULED, f"runs at {self._spec.schedule}, {self._spec.time_zone}"


def timetable_of(
    observed: ObservedRuns, spec: ScheduledSpec, schedule: Schedule | None, annotation: str, *, one: bool
) -> Timetable:
    """When runs are wanted; `one`: a time of the schedule is left out while a run is on."""
    return Timetable(
        schedule=schedule,
        suspended=spec.suspend,
        one_at_a_time=one,
        request=observed.meta.annotations.get(annotation),
        created=observed.created,
        now=observed.now,
    )


def set_missing(name: str, namespace: str) -> Verdict:
    """What is said when there is no such set."""
    where = f"there is no BrokerSet {name} in namespace {namespace}"
    return "False", reasons.SET_MISSING, f"{where}; create it, or correct brokerSetRef"
