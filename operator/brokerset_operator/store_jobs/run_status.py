"""The status of a kind that has runs: the last one, those before it, times, conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from brokerset_operator.model.remembered import write
from brokerset_operator.plan.conditions import Verdict, condition
from brokerset_operator.plan.objects import items, part, time_text
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.observed import ObservedRuns
from brokerset_operator.store_jobs.outcomes import Summary
from brokerset_operator.store_jobs.schedule import Run, RunMemory

MESSAGE_CHARACTERS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended; `result` is Passed for every one whose Jobs came to a result."""

    result: str
    message: str
    summary: Summary | None = None
    report: str | None = None


@dataclass(slots=True)
class RunStatus:
    """The status as it is, and what a reconcile changes in it."""

    KEPT: ClassVar[tuple[str, ...]] = ("lastScheduleTime", "lastSuccessTime", "lastRun", "history")
    """Fields that one reconcile takes over from the one before."""

    observed: ObservedRuns
    ready: Verdict = ("Unknown", reasons.NOT_RUN, "")
    next_at: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, observed: ObservedRuns) -> Self:
        """The status as an earlier reconcile wrote it."""
        before = observed.status
        return cls(observed, kept={name: before[name] for name in cls.KEPT if name in before})

    def scheduled(self, due: float) -> None:
        """A run of the schedule has begun."""
        self.kept["lastScheduleTime"] = time_text(due)

    def note(self, said: str) -> None:
        """Something that keeps a run from going on."""
        self.notes.append(said)

    def ended(self, run: Any, ending: Ending) -> None:
        """A run of this kind is over."""
        raise NotImplementedError

    def record(self, run: Run, ending: Ending, result: str) -> dict[str, Any]:
        """What every kind says of a run that is over."""
        found: dict[str, Any] = {
            "number": run.number,
            "reason": run.reason,
            "startTime": time_text(run.started),
            "completionTime": time_text(self.observed.now),
            "result": result,
        }
        if ending.message:
            found["message"] = ending.message[:MESSAGE_CHARACTERS_MAX]
        return found

    def keep(self, last: Mapping[str, Any], *, but: tuple[str, ...] = ()) -> None:
        """Remember a run as the last one, and that before it without the fields `but`.

        One that was replaced is remembered among the earlier ones.
        """
        before, history = part(self.kept, "lastRun"), items(self.kept, "history")
        if last["result"] == reasons.REPLACED:
            self.kept["history"] = [last, *history]
        else:
            if before:
                older = {name: value for name, value in before.items() if name not in but}
                self.kept["history"] = [older, *history]
            self.kept["lastRun"] = last
            if last["result"] == reasons.PASSED:
                self.kept["lastSuccessTime"] = last["completionTime"]
        self._trim()

    def remembered(self) -> frozenset[int]:
        """Numbers of the runs that the status tells of."""
        runs = [part(self.kept, "lastRun"), *items(self.kept, "history")]
        return frozenset(number for each in runs if isinstance(number := each.get("number"), int))

    def conditions(self, memory: RunMemory) -> Mapping[str, Verdict]:
        """What this kind says besides Ready."""
        raise NotImplementedError

    def written(self, memory: RunMemory) -> dict[str, Any]:
        """The whole status."""
        generation, now = self.observed.meta.generation, self.observed.now
        ready = self.ready
        if self.notes:
            ready = (ready[0], ready[1], f"{ready[2]}; {'; '.join(self.notes)}")
        found: dict[str, Any] = {
            **self.kept,
            "observedGeneration": generation,
            "phase": _phase(ready, memory),
            "conditions": [
                condition(self.observed.status, kind, verdict, generation=generation, now=now)
                for kind, verdict in {reasons.READY: ready, **self.conditions(memory)}.items()
            ],
            "workflow": write(memory),
        }
        if self.next_at is not None:
            found["nextScheduleTime"] = self.next_at
        return found

    def _trim(self) -> None:
        manifest = self.observed.manifest
        assert manifest is not None, "a run ends only with a manifest"
        spec = manifest.spec
        left = {True: spec.successful_runs_history_limit, False: spec.failed_runs_history_limit}
        kept = []
        for each in items(self.kept, "history"):
            good = each.get("result") == reasons.PASSED
            if left[good] > 0:
                left[good] -= 1
                kept.append(dict(each))
        self.kept["history"] = kept


def _phase(ready: Verdict, memory: RunMemory) -> str:
    if memory.run is not None:
        return "Running"
    if ready[0] != "True":
        return "Invalid" if ready[1] == reasons.INVALID_SPEC else "Waiting"
    return "Suspended" if ready[1] == reasons.SUSPENDED else "Idle"
