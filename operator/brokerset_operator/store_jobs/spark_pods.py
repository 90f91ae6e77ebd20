"""Spark in a job's pod, and its executors in pods next to that one."""

from __future__ import annotations

import json
import math
from typing import Final

from brokerset_operator.resources.pod_parts import (
    TOKEN_FOLDER,
    container_security,
    given_only,
    placement,
    pod_security,
)
from brokerset_operator.resources.quantities import amount_of, canonical
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.broker_access import access_mounts, access_variables, access_volumes
from brokerset_operator.store_jobs.job_parts import (
    TMP_SIZE,
    JobFacts,
    labels_of,
    metadata_of,
    next_to,
    variables_of,
)
from brokerset_operator.store_jobs.spark_network import (
    BLOCKS_PORT,
    DRIVER_PORT,
    NETWORK_SETTINGS,
    network_policy,
)
from brokerset_spec.store_job_parts import Executors, RunLimits

SPARK_MASTER: Final = "k8s://https://kubernetes.default.svc"
EXECUTOR_CPU: Final = "1"
EXECUTOR_MEMORY: Final = "1536Mi"
"""What an executor asks for when nobody says anything else."""

HEAP_MEBIBYTES_MIN: Final = 512
"""Java's heap takes a third of a pod's memory, and at least that: records are in the Python processes."""

EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
TEMPLATE_FILE: Final = "executor.yaml"
LOCAL_FOLDER: Final = "/tmp/spark"
CONFIG_FOLDER: Final = "/etc/brokerset"


def account_name(job: str) -> str:
    """Account of a driver, its binding, the template of its executors' pods, their NetworkPolicy."""
    return f"{job}-driver"


def executor_objects(facts: JobFacts, role: str) -> tuple[NewObject, ...]:
    """What a driver needs besides its Job: an account that may make pods, how these look, who reaches them.

    `role` is `ClusterRole/<name>` or `Role/<name>`, made by who installed the operator.
    """
    kind, _, role_name = role.partition("/")
    name = account_name(facts.name)
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata_of(facts, name),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata_of(facts, name),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": facts.namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata_of(facts, name),
            "data": {TEMPLATE_FILE: _executor_template(facts)},
        },
        network_policy(facts, name),
    )


def submit_arguments(facts: JobFacts) -> str:
    """Value of `PYSPARK_SUBMIT_ARGS`: client mode, this pod is the driver, executors are pods next to it."""
    executors = facts.executors
    asked, most = executors.resources.requests, executors.resources.limits
    memory = str(most.get("memory") or asked.get("memory") or EXECUTOR_MEMORY)
    heap, rest = _shares(memory)
    settings = {
        "spark.master": SPARK_MASTER,
        "spark.executor.instances": str(executors.instances),
        "spark.executor.cores": str(cores_of(executors)),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{rest}m",
        "spark.kubernetes.executor.request.cores": canonical(_cpu(executors, "requests")),
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",  # Spark 4.3 gives executors this address, not the host's
        "spark.driver.port": str(DRIVER_PORT),
        "spark.blockManager.port": str(BLOCKS_PORT),
        **NETWORK_SETTINGS,
        "spark.local.dir": LOCAL_FOLDER,
        "spark.ui.enabled": "false",
        "spark.speculation": "false",
        "spark.kubernetes.namespace": facts.namespace,
        "spark.kubernetes.container.image": facts.image,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.authenticate.caCertFile": f"{TOKEN_FOLDER}/ca.crt",
        "spark.kubernetes.authenticate.oauthTokenFile": f"{TOKEN_FOLDER}/token",
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG_FOLDER}/{TEMPLATE_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        # Polling, no ConfigMaps, Services or claims: rights on pods are enough.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "2s",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
    }
    if "cpu" in most:
        settings["spark.kubernetes.executor.limit.cores"] = canonical(most["cpu"])
    for mount in facts.mounts:
        prefix = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{mount.name}"
        settings |= {
            f"{prefix}.options.claimName": mount.claim,
            f"{prefix}.mount.path": mount.path,
            f"{prefix}.mount.readOnly": str(mount.read_only).lower(),
        }
        if mount.folder:
            settings[f"{prefix}.mount.subPath"] = mount.folder
    given = [f"--conf {name}={value}" for name, value in settings.items()]
    return " ".join([*given, *driver_arguments(facts.limits), "pyspark-shell"])


def driver_arguments(limits: RunLimits) -> list[str]:
    """How large Java's heap is in the pod of the job itself; nothing where the pod has no limit."""
    memory = limits.resources.limits.get("memory")
    return [] if memory is None else [f"--conf spark.driver.memory={_shares(str(memory))[0]}m"]


def cores_of(executors: Executors) -> int:
    """Tasks that an executor works on at once: as many as the processors that it may use, or asks for."""
    return max(1, math.ceil(amount_of(_cpu(executors, "limits"))))


def _cpu(executors: Executors, first: str) -> str:
    asked, most = executors.resources.requests.get("cpu"), executors.resources.limits.get("cpu")
    chosen = (asked, most) if first == "requests" else (most, asked)
    return str(next((each for each in chosen if each is not None), EXECUTOR_CPU))


def _shares(memory: str) -> tuple[int, int]:
    """Mebibytes of a pod for Java's heap, and for everything else in it."""
    whole = int(amount_of(memory) // (1 << 20))
    heap = max(HEAP_MEBIBYTES_MIN, whole // 3)
    return heap, whole - heap


def _executor_template(facts: JobFacts) -> str:
    """The pod template as JSON, which is YAML. What Spark sets itself is left out: image, claims, ports."""
    chosen = {labels.OWNER: facts.owner, labels.RUN: str(facts.run), labels.STEP: facts.step}
    if facts.next_to_pod is not None:
        chosen = {"statefulset.kubernetes.io/pod-name": facts.next_to_pod}
    elif not facts.mounts:
        chosen = {}
    spec: NewObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        **given_only({"affinity": next_to(chosen) if chosen else None}),
        **placement(facts.placement),
        "containers": [
            {
                "name": EXECUTOR_CONTAINER,
                "env": [{"name": "HOME", "value": "/tmp"}, *access_variables(facts.access)],
                **variables_of(facts),
                "securityContext": container_security(),
                "volumeMounts": [*access_mounts(facts.access), {"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [
            *access_volumes(facts.access, facts.name),
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
        ],
    }
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels_of(facts)},
        "spec": spec,
    }
    return json.dumps(template, indent=1, sort_keys=True)
