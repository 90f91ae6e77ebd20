"""What is told of a Job that came to no result: what its container said, not what Java wrote around it."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_operator.store_jobs.outcomes import has_ended, outcome_of, pods_of
from brokerset_operator.store_jobs.pod_failures import spoken, why_not

JAVA = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/23 15:01:02 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel)."""

ERROR = f"""{JAVA}
Error: /stores/orders-0-0/store has no commit log
What to do: check the path
26/11/23 15:01:09 WARN ShutdownHookManager: could not delete /tmp/spark
\tat org.apache.spark.util.Utils.deleteRecursively(Utils.scala:1)"""

SENTENCE = "audit map of /stores/orders-0-0/store failed: it has no commit log. What to do: check the path"


def pod(message: str = "", *, code: int = 2, reason: str = "Error", **status: Any) -> dict[str, Any]:
    """A pod of the Job `j` that has ended."""
    ended = {"exitCode": code, "reason": reason, "message": message}
    return {
        "metadata": {"name": "j-x", "ownerReferences": [{"kind": "Job", "name": "j"}]},
        "status": {"containerStatuses": [{"name": "job", "state": {"terminated": ended}}], **status},
    }


def job(condition: str = "", reason: str = "BackoffLimitExceeded", step: str = "map") -> dict[str, Any]:
    """The Job `j`."""
    conditions = [{"type": condition, "status": "True", "reason": reason, "message": "as always"}]
    return {
        "metadata": {"name": "j", "labels": {"brokerset.io/step": step}},
        "status": {"conditions": conditions if condition else []},
    }


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (SENTENCE, SENTENCE),
        (ERROR, "/stores/orders-0-0/store has no commit log. What to do: check the path"),
        (f"{JAVA}\nKilled\n", "Killed"),
        (JAVA, ""),
        ("26/11/23 15:01:09 ERROR Executor: lost", "26/11/23 15:01:09 ERROR Executor: lost"),
        ("", ""),
    ],
    ids=["sentence", "error in a log", "last line", "warnings alone", "an error of Java's", "nothing"],
)
def test_the_error_is_found_in_what_a_container_said(said: str, told: str) -> None:
    """Kubernetes hands out the end of the log of a killed container, and Java's warnings stand last."""
    assert spoken(said) == told


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (pod(SENTENCE), f"{SENTENCE} (kubectl logs j-x)"),
        (
            pod(JAVA, code=137, reason="OOMKilled"),
            "limits.resources.limits.memory; raise it (kubectl logs j-x)",
        ),
        (pod(JAVA, code=134), "it ended with 134 (Error) (kubectl logs j-x)"),
        (pod(SENTENCE, code=143), f"{SENTENCE} (kubectl logs j-x)"),
    ],
    ids=["sentence", "memory", "a crash without a word", "ended from outside"],
)
def test_a_pod_that_ended_is_told_in_a_sentence(found: dict[str, Any], told: str) -> None:
    """With what to do, or at least where the log is."""
    assert why_not(found).endswith(told)
    assert "WARN" not in why_not(found)


def test_a_deadline_and_an_eviction_are_told_by_their_names() -> None:
    """Kubernetes says them of the pod; its container only knows that it was told to end."""
    late, gone = pod(SENTENCE, code=143), pod("", code=137)
    late["status"]["reason"] = "DeadlineExceeded"
    gone["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}

    assert why_not(late) == "it took longer than limits.deadlineSeconds (kubectl logs j-x)"
    assert why_not(gone) == "its pod was evicted: The node was low on resource: memory."


def test_a_failed_job_is_told_by_what_its_pod_said() -> None:
    """That Kubernetes gave it up is nothing to add; that its time was over is."""
    pods = pods_of("j", {"j-x": pod(SENTENCE)})

    assert outcome_of(job("Failed"), pods).message == f"{SENTENCE} (kubectl logs j-x)"
    assert outcome_of(job("Failed"), []).message == "BackoffLimitExceeded: as always"
    late = outcome_of(job("Failed", "DeadlineExceeded"), pods).message
    assert late == f"it took longer than limits.deadlineSeconds; before, {SENTENCE} (kubectl logs j-x)"


@pytest.mark.parametrize(("step", "state"), [("map", "running"), ("look-1", "running"), ("reduce", "done")])
def test_the_code_of_findings_is_a_result_where_something_is_compared(step: str, state: str) -> None:
    """A replica that is only read has none to give."""
    assert outcome_of(job(step=step), [pod("x", code=1)]).state == state


def test_a_driver_that_waits_for_executors_is_told_with_why_they_do_not_come() -> None:
    """They belong to its pod, not to its Job, and wait where nobody would see it."""
    driver: dict[str, Any] = {"metadata": {"name": "j-x", "ownerReferences": [{"kind": "Job", "name": "j"}]}}
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    executor: dict[str, Any] = {
        "metadata": {
            "name": "e-1",
            "labels": {"spark-role": "executor"},
            "ownerReferences": [{"kind": "Pod", "name": "j-x"}],
        },
        "status": {
            "containerStatuses": [{"name": "spark-kubernetes-executor", "state": {"waiting": waiting}}]
        },
    }
    pods = {"j-x": driver, "e-1": executor}

    found = outcome_of(job(), pods_of("j", pods))

    assert (found.state, found.message) == ("running", "executor e-1: ErrImagePull: no such image")
    assert pods_of("another", pods) == []


@pytest.mark.parametrize(
    ("condition", "over"), [("", False), ("Suspended", False), ("Complete", True), ("Failed", True)]
)
def test_a_job_is_over_when_kubernetes_says_so(condition: str, over: bool) -> None:
    assert has_ended(job(condition)) is over
