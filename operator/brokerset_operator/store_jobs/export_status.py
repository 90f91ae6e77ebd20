"""The status of a StoreExport: what the last run has written, what was gone before it, sums of all runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from brokerset_operator.model.actions import EmitEvent
from brokerset_operator.plan.conditions import Verdict, find, verdict_of
from brokerset_operator.plan.objects import part
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.observed import ObservedExport
from brokerset_operator.store_jobs.outcomes import EVENT_CHARACTERS_MAX, Summary, error_text
from brokerset_operator.store_jobs.run_status import Ending, RunStatus
from brokerset_operator.store_jobs.schedule import Run, RunMemory

GAP: Final = "gap"
"""Code of the finding that messages were gone before they could be read."""

SUMMED: Final = ("rows", "bytes", "gaps")


@dataclass(slots=True)
class ExportStatus(RunStatus):
    """The status as it is, and what a reconcile changes in it."""

    KEPT: ClassVar = (*RunStatus.KEPT, "findings", "totals")

    exported: Verdict | None = None
    target: str | None = None
    """The table, for people."""

    _said: list[EmitEvent] = field(default_factory=list)

    def ended(self, run: Run, ending: Ending) -> None:
        """A run is over."""
        summary = ending.summary
        result = ending.result if summary is None or not summary.errors else reasons.FOUND
        done = dict(summary.exported) if summary is not None else {}
        last = {**self.record(run, ending, result), **_more(summary, done)}
        self.keep(last)
        if summary is not None:
            self.kept["findings"] = [dict(each) for each in summary.findings]
        self._sum_up(result, done)
        self.exported = _verdict(last, summary)
        self._tell(run, last, summary)

    def conditions(self, memory: RunMemory) -> Mapping[str, Verdict]:
        """Whether a run is on, and what the last one came to."""
        running: Verdict = ("False", reasons.IDLE, "no run is on")
        if memory.run is not None:
            said = "; ".join([f"run {memory.run.number} is on", *self.notes])
            running = ("True", reasons.RUNNING, said)
        done = self.exported or ("Unknown", reasons.NOT_RUN, "no run has ended yet")
        return {reasons.EXPORTING: running, reasons.EXPORTED: done}

    def written(self, memory: RunMemory) -> dict[str, Any]:
        """The whole status."""
        found = RunStatus.written(self, memory)
        return found if self.target is None else {**found, "target": self.target}

    def events(self) -> list[EmitEvent]:
        """What people are told: runs that failed, and messages that were gone."""
        return list(self._said)

    def _sum_up(self, result: str, done: Mapping[str, int]) -> None:
        before = part(self.kept, "totals")
        sums = {name: _count(before.get(name)) + done.get(name, 0) for name in SUMMED}
        failures = _count(before.get("failures")) + (result != reasons.PASSED)
        self.kept["totals"] = {"runs": _count(before.get("runs")) + 1, "failures": failures, **sums}

    def _tell(self, run: Run, last: Mapping[str, Any], summary: Summary | None) -> None:
        if last["result"] == reasons.FAILED:
            self._warn("ExportRunFailed", f"run {run.number} failed: {last.get('message', '')}")
        elif last["result"] == reasons.FOUND and summary is not None and summary.findings:
            self._warn("ExportError", error_text(summary.findings[0]))
        if last.get("gaps"):
            self._warn("ExportGap", _gap_text(last, summary))

    def _warn(self, reason: str, message: str) -> None:
        self._said.append(EmitEvent(reason, message[:EVENT_CHARACTERS_MAX], warning=True))


def begin_status(observed: ObservedExport) -> ExportStatus:
    """The status as an earlier reconcile wrote it."""
    found = ExportStatus.begin(observed)
    before = verdict_of(find(observed.status, reasons.EXPORTED))
    found.exported = None if before is None or before[1] == reasons.NOT_RUN else before
    if observed.manifest is not None:
        target = observed.manifest.spec.target
        found.target = target.url or f"volume {target.claim_name}, folder {target.path}"
    return found


def _more(summary: Summary | None, done: Mapping[str, int]) -> dict[str, Any]:
    """What an export says of a run that is over besides what every kind does."""
    if summary is None:
        return {}
    return {
        **{name: done.get(name, 0) for name in ("rows", "bytes", "files", "lag", "gaps")},
        "findings": summary.total,
        "errors": summary.errors,
    }


def _verdict(last: Mapping[str, Any], summary: Summary | None) -> Verdict:
    """What the table is, after a run; a gap that a run has found is said until the next one ends."""
    number = last["number"]
    if last["result"] == reasons.FAILED:
        return "False", reasons.RUN_FAILED, f"run {number} failed: {last.get('message', '')}"
    if last["result"] == reasons.FOUND:
        worst = error_text(summary.findings[0]) if summary is not None and summary.findings else "see its log"
        return "False", reasons.ERRORS_FOUND, f"run {number} found {last['errors']} errors: {worst}"
    wrote = f"run {number} wrote {last['rows']} rows; {last['lag']} messages wait for the next one"
    if last["gaps"]:
        return "True", reasons.GAPS_FOUND, f"{wrote}; {_gap_text(last, summary)}"
    return "True", reasons.UP_TO_DATE, wrote


def _gap_text(last: Mapping[str, Any], summary: Summary | None) -> str:
    named = [each for each in (summary.findings if summary is not None else ()) if each["code"] == GAP]
    said = f"{last['gaps']} messages were gone before they could be read; the table's control rows name them"
    return f"{said}: {error_text(named[0])}" if named else said


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
