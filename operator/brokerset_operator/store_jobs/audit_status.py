"""The status of a StoreAudit: how runs ended, what they found, what people are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from brokerset_operator.model.actions import EmitEvent
from brokerset_operator.plan.conditions import Verdict, find, verdict_of
from brokerset_operator.plan.objects import items, seconds, text
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.audit_jobs import store_url
from brokerset_operator.store_jobs.audit_work import AuditRun
from brokerset_operator.store_jobs.observed import ObservedAudit
from brokerset_operator.store_jobs.outcomes import EVENT_CHARACTERS_MAX, FINDINGS_KEPT, error_text
from brokerset_operator.store_jobs.run_status import Ending, RunStatus
from brokerset_operator.store_jobs.schedule import RunMemory

MESSAGE_CHARACTERS_MAX: Final = 1024
UNREAD: Final = "replica-unread"
"""Code of the finding that a replica could not be read."""

BROKERS_KEPT: Final = 256
"""Replicas of which the status says how they fared."""

COMPARED: Final = "Compared"
ACCUSED: Final = "Accused"
UNREAD_BROKER: Final = "Unread"
"""How a replica fared: no error that is listed names it, one does, or it was not read."""


@dataclass(slots=True)
class AuditStatus(RunStatus):
    """The status as it is, and what a reconcile changes in it."""

    KEPT: ClassVar = (*RunStatus.KEPT, "lastFullTime", "findings", "counts")

    passed: Verdict | None = None
    _ended: list[tuple[AuditRun, Ending]] = field(default_factory=list)
    _new_errors: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def last_full(self) -> float | None:
        """When a run ended last that read everything."""
        return seconds(self.kept.get("lastFullTime"))

    def ended(self, run: AuditRun, ending: Ending) -> None:
        """A run is over."""
        findings, errors, counts, total = _found(run, ending)
        result = _result(run, ending, errors)
        last = {**self.record(run, ending, result), **_more(run, ending, findings, errors, total)}
        if result == reasons.REPLACED:
            self.keep(last)
            return
        known = {_identity(each) for each in items(self.kept, "findings")}
        self.keep({**last, "brokers": _brokers(run, ending, findings)}, but=("brokers",))
        if result != reasons.FAILED:
            self.kept["findings"] = list(findings)
            self.kept["counts"] = dict(counts)
            self._new_errors += [
                each for each in findings if each["level"] == "error" and _identity(each) not in known
            ]
        if run.full and result in (reasons.PASSED, reasons.FOUND):
            self.kept["lastFullTime"] = last["completionTime"]
        self.passed = _verdict(self.passed, last, findings)
        self._ended.append((run, ending))

    def conditions(self, memory: RunMemory) -> Mapping[str, Verdict]:
        """What is said of the data."""
        return {reasons.AUDIT_PASSED: self.passed or ("Unknown", reasons.NOT_RUN, "no run has ended yet")}

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


def begin_status(observed: ObservedAudit) -> AuditStatus:
    """The status as an earlier reconcile wrote it."""
    found = AuditStatus.begin(observed)
    passed = verdict_of(find(observed.status, reasons.AUDIT_PASSED))
    found.passed = None if passed is None or passed[1] == reasons.NOT_RUN else passed
    return found


def _found(run: AuditRun, ending: Ending) -> tuple[list[Mapping[str, Any]], int, dict[str, int], int]:
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


def _result(run: AuditRun, ending: Ending, errors: int) -> str:
    if ending.result != reasons.PASSED:
        return ending.result
    if errors:
        return reasons.FOUND
    return reasons.INCOMPLETE if any(share.failed is not None for share in run.shares) else reasons.PASSED


def _more(
    run: AuditRun, ending: Ending, findings: list[Mapping[str, Any]], errors: int, total: int
) -> dict[str, Any]:
    """What an audit says of a run that is over besides what every kind does."""
    read = sum(share.failed is None for share in run.shares)
    found: dict[str, Any] = {
        "full": run.full,
        "replicas": f"{read}/{len(run.shares)}",
        "findings": total,
        "errors": errors,
    }
    if findings:
        found["worstCode"] = str(findings[0]["code"])
    if ending.summary is not None:
        found["bytesRead"] = ending.summary.bytes_read
        if ending.report is not None:
            found["report"] = ending.report
    return found


def _brokers(run: AuditRun, ending: Ending, findings: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
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
