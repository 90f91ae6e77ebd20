"""What has become of a Job, from the Job, its pods and what its container said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from brokerset_operator.model.observed import Object
from brokerset_operator.plan.objects import items, part, text

CONTAINER: Final = "job"
"""Name of the container that does the work."""

CLEAN: Final = 0
FINDINGS: Final = 1
"""Exit codes of jobs that came to a result (`brokerset_spark.jobs.report`); others tell that they did not."""

FINDINGS_KEPT: Final = 20
TEXT_LENGTH_MAX: Final = 1024
REQUESTS_MAX: Final = 16
"""Replicas of which a comparison may want to know more."""

CODES_MAX: Final = 64

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
    """Return what has become of a Job; `pods` are those of its own."""
    if job is None:
        return Outcome("missing")
    uid = str(part(job, "metadata").get("uid") or "")
    said = ""
    for pod in sorted(pods, key=_made, reverse=True):
        name = str(part(pod, "metadata")["name"])
        ended = part(part(_container(pod), "state"), "terminated")
        if ended.get("exitCode") in (CLEAN, FINDINGS):
            return Outcome("done", str(ended.get("message") or ""), name, uid)
        if not said:
            said = _why_not(pod, ended)
    for condition in items(part(job, "status"), "conditions"):
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Failed":
            return Outcome("failed", _joined(said, _reason(condition)), "", uid)
        if condition.get("type") == "Complete":
            return Outcome("failed", "its pod is gone, and what it said with it", "", uid)
    return Outcome("running", said, "", uid)


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

    @property
    def worst(self) -> str:
        """Code of the worst finding; empty without any."""
        return str(self.findings[0]["code"]) if self.findings else ""


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
    )


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
    """Those of the pods that belong to a Job."""
    return [
        pod
        for pod in pods.values()
        if any(
            each.get("kind") == "Job" and each.get("name") == job
            for each in items(part(pod, "metadata"), "ownerReferences")
        )
    ]


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


def _container(pod: Object) -> Mapping[str, Any]:
    statuses = items(part(pod, "status"), "containerStatuses")
    return next((each for each in statuses if each.get("name") == CONTAINER), {})


def _made(pod: Object) -> str:
    return str(part(pod, "metadata").get("creationTimestamp") or "")


def _why_not(pod: Object, ended: Mapping[str, Any]) -> str:
    if ended:
        code = ended.get("exitCode")
        last = str(ended.get("message") or "").strip()[-TEXT_LENGTH_MAX:]
        return _joined(f"it ended with {code} ({ended.get('reason') or 'no reason given'})", last)
    waiting = part(part(_container(pod), "state"), "waiting")
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return _reason(waiting)
    for condition in items(part(pod, "status"), "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node takes it: {text(condition.get('message')) or 'unschedulable'}"
    return ""


def _reason(given: Mapping[str, Any]) -> str:
    return _joined(str(given.get("reason") or ""), str(given.get("message") or ""))


def _joined(*texts: str) -> str:
    return ": ".join(each for each in texts if each)
