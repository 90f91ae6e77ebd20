"""A kind that becomes Jobs once, one after the other, until it has succeeded or failed for good.

The description of such a kind is a `Sequence`: what must hold while its Jobs run, the Jobs, and what their
ends mean. A phase is written down one reconcile before its Job is made, so who reconciles next makes the Job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from brokerset_kube.kinds import kind_named
from brokerset_operator.model.actions import ApplyObject, DeleteObject, EmitEvent, ObjectRef
from brokerset_operator.model.observed import Object
from brokerset_operator.plan.conditions import Verdict, condition, find
from brokerset_operator.plan.objects import part, text, time_text
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.job_objects import job_object
from brokerset_operator.store_jobs.job_parts import JobFacts, access_objects
from brokerset_operator.store_jobs.observed import ObservedJobs
from brokerset_operator.store_jobs.outcomes import Summary, error_text, read_summary
from brokerset_operator.store_jobs.pod_failures import EXECUTOR, LATE, is_executor
from brokerset_operator.store_jobs.spark_pods import executor_objects
from brokerset_spec.store_job_parts import Executors

SOON_SECONDS: Final = 0.2
"""Until what was just written down is done."""

BUSY_SECONDS: Final = 15.0
"""Between two reconciles while Jobs run, of which a watch tells as well."""

WAIT_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 3600.0

OVER: Final = (LATE, "DeadlineExceeded")
"""How it begins what a pod, or a Job without one, says when its time is over."""

PENDING: Final = "Pending"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
FINAL: Final = (SUCCEEDED, FAILED)

Action = ApplyObject | DeleteObject | EmitEvent
Observed = TypeVar("Observed", bound=ObservedJobs)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One reconcile's decision."""

    actions: tuple[Action, ...]
    status: Mapping[str, Any]
    requeue_seconds: float


# -- what every kind does --------------------------------------------------------------------------------


def why_no_jobs(observed: ObservedJobs, image: str | None, executors: Executors, runs: str) -> Verdict | None:
    """Return why no Job of any kind may run; `runs` says who runs the image."""
    if not (image or observed.image):
        advice = "give spec.image, or install the operator with spark.image"
        return "False", reasons.NO_IMAGE, f"it is not known which image the {runs}; {advice}"
    if executors.instances and not observed.spark_role:
        advice = "install it with spark.executors=true, or leave executors out"
        message = f"the operator may not give jobs the right to make pods; {advice}"
        return "False", reasons.EXECUTORS_FORBIDDEN, message
    return None


def invalid(observed: ObservedJobs) -> Verdict:
    """Return what is said of an invalid manifest."""
    message = "; ".join(map(str, observed.problems)) or "the manifest cannot be read"
    return "False", reasons.INVALID_SPEC, message


def made(observed: ObservedJobs, facts: JobFacts) -> tuple[ApplyObject, ...]:
    """Make a Job, and before it what it and its executors need and is not there."""
    needed = access_objects(facts)
    if facts.executors.instances:
        needed += executor_objects(facts, observed.spark_role)
    missing = [
        each for each in needed if f"{each['kind']}/{each['metadata']['name']}" not in observed.objects
    ]
    return tuple(ApplyObject(each) for each in (*missing, job_object(facts)))


def deletion(live: Object, why: str) -> tuple[DeleteObject, ...]:
    """Delete an object, unless somebody does already."""
    meta = part(live, "metadata")
    if meta.get("deletionTimestamp") is not None:
        return ()
    kind = kind_named(str(live.get("apiVersion", "batch/v1")), str(live.get("kind", "Job")))
    ref = ObjectRef(kind.api_version, kind.kind, str(meta["name"]), text(meta.get("uid")))
    return (DeleteObject(ref, why),)


# -- one Job after the other -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[Observed]):
    """One Job of a sequence."""

    phase: str
    reason: str
    going: str
    """What is said while it runs."""

    job: Callable[[Observed], JobFacts]
    needs: Callable[[Observed], tuple[NewObject, ...]] = lambda observed: ()
    """What must be there before its Job, as far as it is not."""

    failed: str
    """Reason for having failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(Generic[Observed]):
    """The description of a kind."""

    word: str
    """Its Events are called so, and after their phase."""

    begins: str
    """What is said when nothing is in the way any more."""

    steps: tuple[Step[Observed], ...]
    reading: tuple[str, ...]
    """What is said when the Job before each further step is done."""

    done: Callable[[Observed], str]
    in_the_way: Callable[[Observed], Verdict | None]
    fields: Callable[[Observed], Mapping[str, Any]]
    """What the status says of the manifest."""


@dataclass(frozen=True, slots=True)
class _Next:
    """Where an object is after a reconcile, and why."""

    phase: str
    ready: Verdict
    actions: tuple[Action, ...] = ()
    again: float = BUSY_SECONDS
    summary: Summary | None = None


def plan_sequence(kind: Sequence[Observed], observed: Observed, *, valid: bool) -> JobPlan:
    """Return what to do now, the status, and when to reconcile again.

    Every action is safe on its own and may be repeated; `observed` may be a moment old, except for `status`,
    which must be as it was written last.
    """
    before = observed.status.get("phase")
    if observed.meta.deleting or before in FINAL:
        return JobPlan((), dict(observed.status), IDLE_SECONDS)
    if valid:
        found = _decide(kind, observed, str(before or PENDING))
    else:
        found = _Next(PENDING, invalid(observed), again=IDLE_SECONDS)
    status = _status(kind, observed, found, before) if valid else _status(None, observed, found, before)
    return JobPlan((*found.actions, *_events(kind, found, before)), status, found.again)


def _decide(kind: Sequence[Observed], observed: Observed, phase: str) -> _Next:
    problem = kind.in_the_way(observed)
    if problem is not None:
        # What was done stays where it is; a later Job goes on with it.
        ended = (
            each for _, job in sorted(observed.jobs.items()) for each in deletion(job, "a volume is in use")
        )
        return _Next(PENDING, problem, tuple(ended), WAIT_SECONDS)
    phases = [step.phase for step in kind.steps]
    if phase not in phases:
        starting: Verdict = ("False", reasons.STARTING, kind.begins)
        return _Next(phases[0], starting, (), SOON_SECONDS)
    number = phases.index(phase)
    step = kind.steps[number]
    facts = step.job(observed)
    outcome = observed.outcome(facts.name)
    said = outcome.message if outcome.state == "done" else with_noted(observed, outcome.message)
    match outcome.state:
        case "missing":
            needed = tuple(ApplyObject(each) for each in step.needs(observed))
            return _Next(phase, ("False", step.reason, step.going), (*needed, *made(observed, facts)))
        case "running":
            return _Next(phase, ("False", step.reason, f"{step.going}; {said}" if said else step.going))
        case "failed":
            return _failed(step, said or "its Job failed")
    summary = read_summary(said)
    if summary is None:
        return _failed(step, f"its Job gave no summary: {said[-300:]}")
    if summary.errors:
        worst = error_text(summary.findings[0]) if summary.findings else "see the log of its Job"
        return _failed(step, f"{summary.errors} errors: {worst}", summary)
    if number + 1 < len(phases):
        following: Verdict = ("False", kind.steps[number + 1].reason, kind.reading[number])
        return _Next(phases[number + 1], following, (), SOON_SECONDS, summary)
    return _Next(SUCCEEDED, ("True", reasons.SUCCEEDED, kind.done(observed)), (), IDLE_SECONDS, summary)


def _failed(step: Step[Any], said: str, summary: Summary | None = None) -> _Next:
    return _Next(FAILED, ("False", step.failed, said), (), IDLE_SECONDS, summary)


def with_noted(observed: ObservedJobs, said: str, *, kind: str = reasons.READY) -> str:
    """What the Job says, with what it waited for when its time is over, as the condition says.

    Executors, the cause perhaps, go before their driver; a second try in the last seconds has nothing to add.
    """
    noted = noted_in(observed, kind)
    gone = noted.startswith(EXECUTOR) and not any(map(is_executor, observed.pods.values()))
    if noted.startswith(OVER) or (gone and not said):
        return noted
    return f"{said}; before, {noted}" if said.startswith(OVER) and noted else said


def noted_in(observed: ObservedJobs, kind: str) -> str:
    """What a condition says that a Job waited for when it was reconciled last; empty for nothing."""
    return str(find(observed.status, kind).get("message") or "").partition("; ")[2]


def _events(kind: Sequence[Observed], found: _Next, before: object) -> list[EmitEvent]:
    if found.phase == before or (found.phase == PENDING and before is None):
        return []
    warning = found.phase in (FAILED, PENDING)
    return [EmitEvent(f"{kind.word}{found.phase}", found.ready[2][:900], warning=warning)]


def _status(
    kind: Sequence[Observed] | None, observed: Observed, found: _Next, before: object
) -> dict[str, Any]:
    kept = ("startTime", "bytesRead", "findings", "findingsTotal")
    generation, now = observed.meta.generation, observed.now
    status: dict[str, Any] = {
        **{name: observed.status[name] for name in kept if name in observed.status},
        "observedGeneration": generation,
        "phase": found.phase,
        "conditions": [
            condition(observed.status, reasons.READY, found.ready, generation=generation, now=now)
        ],
        **(kind.fields(observed) if kind is not None else {}),
    }
    if kind is not None and found.phase == kind.steps[0].phase and "startTime" not in status:
        status["startTime"] = time_text(now)
    if found.phase in FINAL and before not in FINAL:
        status["completionTime"] = time_text(now)
    if found.summary is not None:
        if found.phase != SUCCEEDED or "bytesRead" not in status:
            status["bytesRead"] = found.summary.bytes_read
        status["findings"] = [dict(each) for each in found.summary.findings]
        status["findingsTotal"] = found.summary.total
    return status
