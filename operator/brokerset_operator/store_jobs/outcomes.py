"""What has become of a Job, from the Job, its pods and what its container said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from brokerset_operator.model.observed import Object
from brokerset_operator.plan.objects import items, part
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.pod_failures import (
    EXECUTOR,
    LATE,
    TEXT_LENGTH_MAX,
    container_of,
    is_executor,
    why_not,
)

CLEAN: Final = 0
FINDINGS: Final = 1
"""Exit codes of jobs that came to a result (`brokerset_spark.jobs.report`); others tell that they did not."""

FINDINGS_KEPT: Final = 20
REQUESTS_MAX: Final = 16
"""Replicas of which a comparison may want to know more."""

CODES_MAX: Final = 64

EXPORTED: Final = "export."
"""Counters of an export begin so (`brokerset_spark.jobs.report`)."""

EVENT_CHARACTERS_MAX: Final = 900
"""Longest text of an Event."""

_LEVELS: Final = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one Job."""

    state: Literal["missing", "running", "done", "failed"]
    """`done`: it came to a result, with or without findings."""

    message: str = ""
    """Of its container when it is done, else why it failed or does not start."""

    pod: str = ""
    uid: str = ""


def outcome_of(job: Object | None, pods: Iterable[Object]) -> Outcome:
    """Return what has become of a Job; `pods` are those of its own, and of Spark's executors next to it."""
    if job is None:
        return Outcome("missing")
    uid = str(part(job, "metadata").get("uid") or "")
    results = (CLEAN, FINDINGS) if labels.may_find(labels.step_of(job)) else (CLEAN,)
    said, waits = "", ""
    for pod in sorted(pods, key=_made, reverse=True):
        name = str(part(pod, "metadata")["name"])
        if is_executor(pod):
            waits = waits or _named(name, why_not(pod))
            continue
        ended = part(part(container_of(pod), "state"), "terminated")
        if ended.get("exitCode") in results:
            return Outcome("done", str(ended.get("message") or ""), name, uid)
        said = said or why_not(pod)
    for condition in items(part(job, "status"), "conditions"):
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Failed":
            return Outcome("failed", _why_failed(said, condition), "", uid)
        if condition.get("type") == "Complete":
            return Outcome("failed", "its pod is gone, and what it said with it", "", uid)
    return Outcome("running", said or waits, "", uid)


def has_ended(job: Object) -> bool:
    """Whether a Job is over, however."""
    return any(
        each.get("status") == "True" and each.get("type") in ("Complete", "Failed")
        for each in items(part(job, "status"), "conditions")
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a job's report."""

    findings: tuple[Mapping[str, Any], ...]
    """The worst first; not more than `FINDINGS_KEPT`."""

    counts: Mapping[str, int]
    """Findings by code."""

    total: int
    errors: int
    bytes_read: int
    further: tuple[Mapping[str, Any], ...] = ()
    """What a comparison wants to know of replicas to say more."""

    exported: Mapping[str, int] = field(default_factory=dict)
    """What an export has done: `rows`, `bytes`, `files`, `lag`, `gaps`."""


def read_summary(said: str) -> Summary | None:
    """Read what a job said at its end; None for what is no summary."""
    try:
        found = json.loads(said)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("clean"), bool):
        return None
    findings = sorted(map(_finding, items(found, "findings")), key=_severity)
    counters = part(found, "counters")
    counts = {
        name.removeprefix("finding."): _number(value)
        for name, value in sorted(counters.items())
        if name.startswith("finding.")
    }
    if not counts:
        for each in findings:
            counts[each["code"]] = counts.get(each["code"], 0) + 1
    listed = sum(each["level"] == "error" for each in findings)
    errors = max(_number(counters.get("findings.error")), listed, 0 if found["clean"] else 1)
    return Summary(
        tuple(findings[:FINDINGS_KEPT]),
        dict(list(counts.items())[:CODES_MAX]),
        max(_number(found.get("findingsTotal")), len(findings)),
        errors,
        _number(found.get("bytesRead")),
        tuple(items(found, "further")[:REQUESTS_MAX]),
        {
            name.removeprefix(EXPORTED): _number(value)
            for name, value in sorted(counters.items())
            if name.startswith(EXPORTED)
        },
    )


def error_text(finding: Mapping[str, Any]) -> str:
    """A finding in one line: code, where, and what happened."""
    where = str(finding.get("store") or "")
    if finding.get("file"):
        where = f"{where} {finding['file']}".strip()
    if finding.get("offset") is not None:
        where = f"{where} at {finding['offset']}".strip()
    message = (
        f"{finding['code']}: {where}: {finding['text']}" if where else f"{finding['code']}: {finding['text']}"
    )
    return message[:EVENT_CHARACTERS_MAX]


def merged(summaries: Iterable[Summary]) -> Summary:
    """One summary of several groups."""
    found = list(summaries)
    counts: dict[str, int] = {}
    for each in found:
        for code, number in each.counts.items():
            counts[code] = counts.get(code, 0) + number
    findings = sorted((finding for each in found for finding in each.findings), key=_severity)
    return Summary(
        tuple(findings[:FINDINGS_KEPT]),
        dict(list(counts.items())[:CODES_MAX]),
        sum(each.total for each in found),
        sum(each.errors for each in found),
        sum(each.bytes_read for each in found),
    )


def last_object(log: str) -> str | None:
    """The last line of a log that is a JSON object; jobs print their result there."""
    for line in reversed(log.splitlines()):
        if line.startswith("{") and line.endswith("}"):
            try:
                json.loads(line)
            except ValueError:
                continue
            return line
    return None


def pods_of(job: str, pods: Mapping[str, Object]) -> list[Object]:
    """Those of the pods that belong to a Job, and executors that belong to one of these."""
    own = [pod for pod in pods.values() if _owner(pod, "Job") == job]
    drivers = {str(part(pod, "metadata")["name"]) for pod in own}
    return [*own, *(pod for pod in pods.values() if is_executor(pod) and _owner(pod, "Pod") in drivers)]


def _finding(given: Mapping[str, Any]) -> dict[str, Any]:
    level = str(given.get("level") or "error")
    found: dict[str, Any] = {
        "code": str(given.get("code") or "unknown")[:64],
        "level": level if level in _LEVELS else "error",
        "text": str(given.get("text") or "")[:TEXT_LENGTH_MAX],
    }
    for name in ("store", "file"):
        if given.get(name):
            found[name] = str(given[name])[:512]
    for name in ("offset", "end"):
        value = given.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
    return found


def _severity(finding: Mapping[str, Any]) -> int:
    return _LEVELS.index(str(finding["level"]))


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _owner(pod: Object, kind: str) -> str | None:
    owners = items(part(pod, "metadata"), "ownerReferences")
    return next((str(each.get("name")) for each in owners if each.get("kind") == kind), None)


def _named(pod: str, why: str) -> str:
    return f"{EXECUTOR}{pod}: {why}" if why else ""


def _made(pod: Object) -> str:
    return str(part(pod, "metadata").get("creationTimestamp") or "")


def _why_failed(said: str, condition: Mapping[str, Any]) -> str:
    """What its last pod said; and that its time was over, if another pod said something else before."""
    if not said:
        return _reason(condition)
    late = condition.get("reason") == "DeadlineExceeded" and LATE not in said
    return f"{LATE}; before, {said}" if late else said


def _reason(given: Mapping[str, Any]) -> str:
    return ": ".join(str(given[name]) for name in ("reason", "message") if given.get(name))
