"""The status of a StoreAudit: how runs ended, what they found, what people are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_operator.model.actions import EmitEvent
from brokerset_operator.plan.conditions import Verdict, condition, find, verdict_of
from brokerset_operator.plan.objects import items, part, seconds, text, time_text
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.audit_jobs import store_url
from brokerset_operator.store_jobs.audit_work import Run, Work, write_work
from brokerset_operator.store_jobs.observed import ObservedAudit
from brokerset_operator.store_jobs.outcomes import EVENT_CHARACTERS_MAX, FINDINGS_KEPT, Summary, error_text

MESSAGE_CHARACTERS_MAX: Final = 1024
UNREAD: Final = "replica-unread"
"""Code of the finding that a replica could not be read."""

BROKERS_KEPT: Final = 256
"""Replicas of which the status says how they fared."""

COMPARED: Final = "Compared"
ACCUSED: Final = "Accused"
UNREAD_BROKER: Final = "Unread"
"""How a replica fared: no error that is listed names it, one does, or it was not read."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended; `result` is Passed for every one that came to a comparison."""

    result: str
    message: str
    summary: Summary | None = None
    report: str | None = None


@dataclass(slots=True)
class AuditStatus:
    """The status as it is, and what a reconcile changes in it."""

    observed: ObservedAudit
    ready: Verdict = ("Unknown", reasons.NOT_RUN, "")
    passed: Verdict | None = None
    next_at: str | None = None
    last_full: float | None = None
    _kept: dict[str, Any] = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)
    _ended: list[tuple[Run, Ending]] = field(default_factory=list)
    _new_errors: list[Mapping[str, Any]] = field(default_factory=list)

    def scheduled(self, due: float) -> None:
        """A run of the schedule has begun."""
        self._kept["lastScheduleTime"] = time_text(due)

    def note(self, said: str) -> None:
        """Something that keeps a run from going on."""
        self._notes.append(said)

    def ended(self, run: Run, ending: Ending) -> None:
        """A run is over."""
        before = part(self._kept, "lastRun")
        findings, errors, counts, total = _found(run, ending)
        result = _result(run, ending, errors)
        last = _run_record(self.observed.now, run, ending, result, findings, errors, total)
        if before and result != reasons.REPLACED:
            older = {name: value for name, value in before.items() if name != "brokers"}
            self._kept["history"] = [older, *items(self._kept, "history")]
        if result == reasons.REPLACED:
            self._kept["history"] = [last, *items(self._kept, "history")]
            self._trim()
            return
        known = {_identity(each) for each in items(self._kept, "findings")}
        self._kept["lastRun"] = {**last, "brokers": _brokers(run, ending, findings)}
        if result != reasons.FAILED:
            self._kept["findings"] = list(findings)
            self._kept["counts"] = dict(counts)
            self._new_errors += [
                each for each in findings if each["level"] == "error" and _identity(each) not in known
            ]
        if result == reasons.PASSED:
            self._kept["lastSuccessTime"] = last["completionTime"]
        if run.full and result in (reasons.PASSED, reasons.FOUND):
            self._kept["lastFullTime"] = last["completionTime"]
        self.passed = _verdict(self.passed, last, findings)
        self._ended.append((run, ending))
        self._trim()

    def remembered(self) -> frozenset[int]:
        """Numbers of the runs that the status tells of."""
        runs = [part(self._kept, "lastRun"), *items(self._kept, "history")]
        return frozenset(number for each in runs if isinstance(number := each.get("number"), int))

    def written(self, work: Work) -> dict[str, Any]:
        """The whole status."""
        generation, now = self.observed.meta.generation, self.observed.now
        passed = self.passed or ("Unknown", reasons.NOT_RUN, "no run has ended yet")
        ready = self.ready
        if self._notes:
            ready = (ready[0], ready[1], f"{ready[2]}; {'; '.join(self._notes)}")
        found: dict[str, Any] = {
            **self._kept,
            "observedGeneration": generation,
            "phase": _phase(ready, work),
            "conditions": [
                condition(self.observed.status, kind, verdict, generation=generation, now=now)
                for kind, verdict in ((reasons.READY, ready), (reasons.AUDIT_PASSED, passed))
            ],
            "workflow": write_work(work),
        }
        found.pop("nextScheduleTime", None)
        if self.next_at is not None:
            found["nextScheduleTime"] = self.next_at
        return found

    def events(self) -> list[EmitEvent]:
        """What people are told of the StoreAudit: each new error, and runs that came to no result."""
        found = [EmitEvent("AuditError", error_text(each), warning=True) for each in self._new_errors]
        for run, ending in self._ended:
            if ending.result == reasons.FAILED:
                message = f"run {run.number} failed: {ending.message}"
                found.append(EmitEvent("AuditRunFailed", message[:EVENT_CHARACTERS_MAX], warning=True))
        return found

    def set_events(self) -> list[EmitEvent]:
        """What people are told of the BrokerSet."""
        return [EmitEvent("AuditError", error_text(each), warning=True) for each in self._new_errors]

    def _trim(self) -> None:
        manifest = self.observed.manifest
        assert manifest is not None, "a run ends only with a manifest"
        spec = manifest.spec
        left = {True: spec.successful_runs_history_limit, False: spec.failed_runs_history_limit}
        kept = []
        for each in items(self._kept, "history"):
            good = each.get("result") == reasons.PASSED
            if left[good] > 0:
                left[good] -= 1
                kept.append(dict(each))
        self._kept["history"] = kept


def begin_status(observed: ObservedAudit) -> AuditStatus:
    """The status as an earlier reconcile wrote it."""
    before = observed.status
    names = (
        "lastScheduleTime",
        "lastSuccessTime",
        "lastFullTime",
        "lastRun",
        "findings",
        "counts",
        "history",
    )
    found = AuditStatus(observed, passed=verdict_of(find(before, reasons.AUDIT_PASSED)))
    if found.passed is not None and found.passed[1] == reasons.NOT_RUN:
        found.passed = None
    found._kept = {name: before[name] for name in names if name in before}
    found.last_full = seconds(before.get("lastFullTime"))
    return found


def _found(run: Run, ending: Ending) -> tuple[list[Mapping[str, Any]], int, dict[str, int], int]:
    """Findings, the worst first, errors among them, numbers by code, and how many there are."""
    summary = ending.summary
    unread: list[Mapping[str, Any]] = [
        {"code": UNREAD, "level": "warning", "store": share.pod, "text": f"could not be read: {share.failed}"}
        for share in run.shares
        if share.failed is not None
    ]
    if summary is None:
        return [], 0, {}, 0
    errors = [each for each in summary.findings if each["level"] == "error"]
    milder = [each for each in summary.findings if each["level"] != "error"]
    counts = dict(summary.counts)
    if unread:
        counts[UNREAD] = len(unread)
    shown = [*errors, *unread, *milder][:FINDINGS_KEPT]
    return shown, summary.errors, counts, summary.total + len(unread)


def _result(run: Run, ending: Ending, errors: int) -> str:
    if ending.result != reasons.PASSED:
        return ending.result
    if errors:
        return reasons.FOUND
    return reasons.INCOMPLETE if any(share.failed is not None for share in run.shares) else reasons.PASSED


def _run_record(
    now: float,
    run: Run,
    ending: Ending,
    result: str,
    findings: list[Mapping[str, Any]],
    errors: int,
    total: int,
) -> dict[str, Any]:
    read = sum(share.failed is None for share in run.shares)
    found: dict[str, Any] = {
        "number": run.number,
        "reason": run.reason,
        "full": run.full,
        "startTime": time_text(run.started),
        "completionTime": time_text(now),
        "result": result,
        "replicas": f"{read}/{len(run.shares)}",
        "findings": total,
        "errors": errors,
    }
    if ending.message:
        found["message"] = ending.message[:MESSAGE_CHARACTERS_MAX]
    if findings:
        found["worstCode"] = str(findings[0]["code"])
    if ending.summary is not None:
        found["bytesRead"] = ending.summary.bytes_read
        if ending.report is not None:
            found["report"] = ending.report
    return found


def _brokers(run: Run, ending: Ending, findings: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How each replica fared; without a comparison nothing is said of those that were read."""
    accused = {str(each.get("store") or "") for each in findings if each["level"] == "error"}
    found = []
    for share in run.shares[:BROKERS_KEPT]:
        if share.failed is not None:
            result = UNREAD_BROKER
        elif ending.summary is None:
            continue
        else:
            result = ACCUSED if store_url(share) in accused else COMPARED
        found.append({"pod": share.pod, "group": share.group, "result": result})
    return found


def _verdict(before: Verdict | None, last: Mapping[str, Any], findings: list[Mapping[str, Any]]) -> Verdict:
    """What the data is, after a run: errors stay until a run that read everything does not find them."""
    result, number = last["result"], last["number"]
    if last["errors"]:
        worst = error_text(findings[0]) if findings else "see the report"
        return "False", reasons.ERRORS_FOUND, f"run {number} found {last['errors']} errors: {worst}"
    if result in (reasons.PASSED, reasons.FOUND):
        return "True", reasons.NO_ERRORS, f"run {number} read {last['replicas']} replicas and found no error"
    if before is not None and before[0] == "False":
        return before
    if result == reasons.INCOMPLETE:
        unread = [each for each in findings if each["code"] == UNREAD]
        named = "; ".join(f"{each['store']} {each['text']}" for each in unread)
        message = f"run {number} read {last['replicas']} replicas and found no error in them: {named}"
        return "Unknown", reasons.INCOMPLETE, message
    return "Unknown", reasons.RUN_FAILED, f"run {number} failed: {last.get('message', '')}"


def _identity(finding: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What makes an error the same as one of the run before."""
    code, store, file = (text(finding.get(name)) or "" for name in ("code", "store", "file"))
    return code, store, file, str(finding.get("offset"))


def _phase(ready: Verdict, work: Work) -> str:
    if work.run is not None:
        return "Running"
    if ready[0] != "True":
        return "Invalid" if ready[1] == reasons.INVALID_SPEC else "Waiting"
    return "Suspended" if ready[1] == reasons.SUSPENDED else "Idle"
