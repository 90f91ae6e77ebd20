"""Why a pod of a job does not run, or came to no result, in a sentence for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model.observed import Object
from brokerset_operator.plan.objects import items, part, text

CONTAINER: Final = "job"
"""Name of the container that does the work."""

TEXT_LENGTH_MAX: Final = 1024

ROLE_LABEL: Final = "spark-role"
"""Spark puts it on the pods that it makes."""

MEMORY: Final = "its pod was killed for using more memory than limits.resources.limits.memory; raise it"
LATE: Final = "it took longer than limits.deadlineSeconds"
EXECUTOR: Final = "executor "
"""What is said of an executor begins so, with its pod's name."""

_ERROR: Final = "Error: "
_ADVICE: Final = "What to do: "
"""How a job's own errors begin in its log (`brokerset_spark.commands.options`)."""

_NOISE: Final = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN)\b"
    r"|WARNING: |Using Spark's default log4j|Setting default log level|To adjust logging level"
    r"|Picked up JAVA|at [\w.$<>/]+\(|\.\.\. \d+ more|Driver stacktrace:"
)
"""Lines of a log that tell nobody why a job ended: Java's warnings and stacks."""


def is_executor(pod: Object) -> bool:
    """Whether Spark made it, for a driver."""
    return bool(part(part(pod, "metadata"), "labels").get(ROLE_LABEL) == "executor")


def container_of(pod: Object) -> Mapping[str, Any]:
    """Status of the container that does the work; an executor's has a name of Spark's."""
    statuses = items(part(pod, "status"), "containerStatuses")
    named = [each for each in statuses if each.get("name") == CONTAINER] or statuses
    return named[0] if named else {}


def why_not(pod: Object) -> str:
    """Why a pod ended without a result, or does not run; empty for one that runs, or begins to."""
    status, state = part(pod, "status"), part(container_of(pod), "state")
    reason, ended = status.get("reason"), part(state, "terminated")
    name = str(part(pod, "metadata")["name"])
    if reason == "DeadlineExceeded":
        return f"{LATE} ({_log_of(name)})"
    if reason == "Evicted":
        return _joined("its pod was evicted", str(status.get("message") or ""))
    if ended:
        return f"{_of_end(ended)} ({_log_of(name)})"
    waiting = part(state, "waiting")
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return _joined(str(waiting["reason"]), str(waiting.get("message") or ""))
    for condition in items(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node takes it: {text(condition.get('message')) or 'unschedulable'}"
    return ""


def spoken(message: str) -> str:
    """What a container says of its end: a job's own sentence, or out of a log the error in it.

    Kubernetes hands out the end of the log for a container that has left no sentence (it was killed, say).
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
    if errors:
        said = lines[errors[-1]].removeprefix(_ERROR)
        advice = [line for line in lines[errors[-1] :] if line.startswith(_ADVICE)]
        return " ".join([f"{said}." if advice else said, *advice[:1]])[:TEXT_LENGTH_MAX]
    telling = [line for line in lines if not _NOISE.match(line)]
    return telling[-1][:TEXT_LENGTH_MAX] if telling else ""


def _of_end(ended: Mapping[str, Any]) -> str:
    if ended.get("reason") == "OOMKilled":
        return MEMORY
    said = spoken(str(ended.get("message") or ""))
    if _ADVICE in said:
        return said
    return _joined(
        f"it ended with {ended.get('exitCode')} ({ended.get('reason') or 'no reason given'})", said
    )


def _log_of(pod: str) -> str:
    return f"kubectl logs {pod}"


def _joined(*texts: str) -> str:
    return ": ".join(each for each in texts if each)
