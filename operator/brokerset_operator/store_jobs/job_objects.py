"""A Job of ours: unprivileged, without a token unless it has executors, with an end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from brokerset_operator.resources.pod_parts import (
    amounts,
    container_ports,
    container_security,
    from_pod,
    placement,
    pod_security,
    token_mount,
    token_volume,
)
from brokerset_operator.resources.quantities import amount_of
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs.broker_access import access_mounts, access_variables, access_volumes
from brokerset_operator.store_jobs.job_parts import (
    TMP_SIZE,
    JobFacts,
    Mounted,
    labels_of,
    metadata_of,
    next_to,
    variables_of,
)
from brokerset_operator.store_jobs.outcomes import FINDINGS
from brokerset_operator.store_jobs.pod_failures import CONTAINER
from brokerset_operator.store_jobs.spark_network import BLOCKS_PORT, DRIVER_PORT
from brokerset_operator.store_jobs.spark_pods import (
    CONFIG_FOLDER,
    LOCAL_FOLDER,
    SPARK_MASTER,
    account_name,
    cores_of,
    driver_arguments,
    submit_arguments,
)
from brokerset_spec.store_job_parts import Executors, Limits, RunLimits, bytes_of

TRIES_AGAIN: Final = 1
"""How often a Job begins again after its pod failed; findings are no failure, an eviction is not counted."""

TTL_SECONDS: Final = 7 * 86_400
"""When a Job that has ended goes with its pods, if nobody removed it before; the guide promises it."""

LATE_SECONDS: Final = 15
"""By so much a Job outlives its pod's time: at the Job's deadline Kubernetes deletes the pod with its log."""

GRACE_SECONDS: Final = 5
"""A job writes nothing that must be completed, or goes on from its manifest."""

REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "512Mi"}
"""A process with the kernels takes 270 MiB."""

SPARK_REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "1536Mi"}
"""Java's heap of 1 GiB, and Python."""

WORKERS_MAX: Final = 64

STATUS_FILE: Final = "/dev/termination-log"


def workers_of(limits: RunLimits) -> int:
    """Processes that a job starts: as many as the processors that it may use, or asks for; else one."""
    cpu = limits.resources.limits.get("cpu") or limits.resources.requests.get("cpu") or "1"
    return max(1, min(math.ceil(amount_of(str(cpu))), WORKERS_MAX))


def engine_options(engine: str, limits: RunLimits, executors: Executors) -> list[str]:
    """Options of the command line that say how much a job may take."""
    workers = min(executors.instances * cores_of(executors), WORKERS_MAX) or workers_of(limits)
    found = ["--engine", engine, "--workers", str(workers)]
    if executors.instances:
        found += ["--master", SPARK_MASTER]
    rate = bytes_of(limits.max_bytes_per_second) if isinstance(limits, Limits) else None
    return [*found, "--max-bytes-per-second", str(rate)] if rate else found


def job_object(facts: JobFacts) -> NewObject:
    """The Job. With executors it needs the account and the template that `executor_objects` makes."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata_of(facts, facts.name),
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": TRIES_AGAIN,
            "activeDeadlineSeconds": max(1, facts.deadline_seconds) + LATE_SECONDS,
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": CONTAINER,
                            "operator": "In",
                            "values": [FINDINGS],
                        },
                    },
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels_of(facts)},
                "spec": _pod_spec(facts),
            },
        },
    }


def _pod_spec(facts: JobFacts) -> NewObject:
    spec: NewObject = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, facts.deadline_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_security(),
        "containers": [_container(facts)],
        "volumes": _volumes(facts),
        **placement(facts.placement),
    }
    if facts.next_to_pod is not None:
        spec["affinity"] = next_to({"statefulset.kubernetes.io/pod-name": facts.next_to_pod})
    if facts.executors.instances:
        spec["serviceAccountName"] = account_name(facts.name)
    return spec


def _container(facts: JobFacts) -> NewObject:
    mounts = [_mount(each) for each in facts.mounts]
    mounts += [*facts.volume_mounts, *access_mounts(facts.access), {"name": "tmp", "mountPath": "/tmp"}]
    variables: list[NewObject] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "SPARK_LOCAL_DIRS", "value": LOCAL_FOLDER},
        *access_variables(facts.access),
    ]
    found: NewObject = {
        "name": CONTAINER,
        "image": facts.image,
        "command": ["python", "-m", "brokerset_spark", *facts.command],
        "env": variables,
        **variables_of(facts),
        "resources": amounts(facts.limits.resources, SPARK_REQUESTS if facts.engine == "spark" else REQUESTS),
        "securityContext": container_security(),
        "terminationMessagePath": STATUS_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    driver = driver_arguments(facts.limits) if facts.engine == "spark" else []
    if driver and not facts.executors.instances:
        variables.append({"name": "PYSPARK_SUBMIT_ARGS", "value": " ".join([*driver, "pyspark-shell"])})
    if facts.executors.instances:
        found["env"] = [
            from_pod("POD_NAME", "metadata.name"),
            from_pod("POD_IP", "status.podIP"),
            *variables,
            {"name": "PYSPARK_SUBMIT_ARGS", "value": submit_arguments(facts)},
        ]
        found["ports"] = container_ports({"driver": DRIVER_PORT, "blocks": BLOCKS_PORT})
        mounts += [token_mount(), {"name": "template", "mountPath": CONFIG_FOLDER, "readOnly": True}]
    return found


def _mount(mounted: Mounted) -> NewObject:
    found: NewObject = {"name": mounted.name, "mountPath": mounted.path}
    if mounted.folder:
        found["subPath"] = mounted.folder
    if mounted.read_only:
        found["readOnly"] = True
    return found


def _volumes(facts: JobFacts) -> list[NewObject]:
    found: list[NewObject] = []
    for each in facts.mounts:
        claim: NewObject = {"claimName": each.claim}
        if each.read_only:
            claim["readOnly"] = True
        found.append({"name": each.name, "persistentVolumeClaim": claim})
    found += [*facts.volumes, *access_volumes(facts.access, facts.name)]
    found.append({"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}})
    if facts.executors.instances:
        found += [token_volume(), {"name": "template", "configMap": {"name": account_name(facts.name)}}]
    return found
