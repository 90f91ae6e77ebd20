"""A Job that works on volumes: unprivileged, without a token, with an end; and Spark executors for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerset_operator.resources.pod_template import TOKEN_FOLDER, TOKEN_SECONDS, USER_ID, from_pod
from brokerset_operator.resources.quantities import amount_of, canonical
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.outcomes import CONTAINER, FINDINGS
from brokerset_spec.pod_template import PodTemplate
from brokerset_spec.store_job_parts import Limits, bytes_of

TRIES_AGAIN: Final = 1
"""How often a Job begins anew after its pod failed; findings are no failure, an eviction is not counted."""

TTL_SECONDS: Final = 7 * 86_400
"""When a Job goes that nobody has removed before; the operator removes them with the run."""

TMP_SIZE: Final = "2Gi"
"""Most that a job may write to `/tmp`; Spark keeps blocks there that do not fit into memory."""

GRACE_SECONDS: Final = 5
"""A job writes nothing that must be completed, or goes on from its manifest."""

REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "512Mi"}
"""A process with the kernels takes 270 MiB."""

WORKERS_MAX: Final = 64

STATUS_FILE: Final = "/dev/termination-log"
CONFIG_FOLDER: Final = "/etc/brokerset"

SPARK_MASTER: Final = "k8s://https://kubernetes.default.svc"
DRIVER_PORT: Final = 7078
BLOCKS_PORT: Final = 7079
EXECUTOR_OVERHEAD: Final = "1g"
"""Memory of an executor's Python processes, which Spark's default of 384 MiB is too small for."""

EXECUTOR_HEAP: Final = "512m"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
TEMPLATE_FILE: Final = "executor.yaml"
LOCAL_FOLDER: Final = "/tmp/spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A volume claim in the job's pod."""

    name: str
    claim: str
    path: str
    folder: str = ""
    """Folder of the volume that is mounted, made when it is missing; empty for all of it."""

    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """One Job, as its builder wants it."""

    kind: str
    """StoreAudit or StoreMigration."""

    owner: str
    uid: str
    namespace: str
    name: str
    run: int
    step: str
    image: str
    command: Sequence[str]
    limits: Limits
    deadline_seconds: int
    mounts: Sequence[Mounted] = ()
    beside_pod: str | None = None
    """The pod runs on the node of this one."""

    placement: PodTemplate = field(default_factory=PodTemplate)
    """Tolerations, node selector, pull secrets and priority, as the set's own pods have them."""

    executors: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[NewObject] = ()
    """Further volumes, which `volume_mounts` mounts."""

    volume_mounts: Sequence[NewObject] = ()


def workers_of(limits: Limits) -> int:
    """Processes that a job starts: as many as the processors that it may use, or asks for; else one."""
    cpu = limits.resources.limits.get("cpu") or limits.resources.requests.get("cpu") or "1"
    return max(1, min(math.ceil(amount_of(str(cpu))), WORKERS_MAX))


def engine_options(engine: str, limits: Limits, executors: int) -> list[str]:
    """Options of the command line that say how much a job may take."""
    found = ["--engine", engine, "--workers", str(executors or workers_of(limits))]
    if executors:
        found += ["--master", SPARK_MASTER]
    rate = bytes_of(limits.max_bytes_per_second)
    return [*found, "--max-bytes-per-second", str(rate)] if rate else found


def job_object(facts: JobFacts) -> NewObject:
    """The Job. With executors it needs the account and the template that `executor_objects` makes."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(facts, facts.name),
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": TRIES_AGAIN,
            "activeDeadlineSeconds": max(1, facts.deadline_seconds),
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
                "metadata": {"labels": _labels(facts)},
                "spec": _pod_spec(facts),
            },
        },
    }


def account_name(job: str) -> str:
    """Account of a driver, its binding, and the template of its executors' pods."""
    return f"{job}-driver"


def executor_objects(facts: JobFacts, role: str) -> tuple[NewObject, ...]:
    """What a driver needs besides its Job: an account that may make pods, and how these look.

    `role` is `ClusterRole/<name>` or `Role/<name>`, made by who installed the operator.
    """
    kind, _, role_name = role.partition("/")
    name = account_name(facts.name)
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _metadata(facts, name),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": _metadata(facts, name),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": facts.namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(facts, name),
            "data": {TEMPLATE_FILE: _executor_template(facts)},
        },
    )


def submit_arguments(facts: JobFacts) -> str:
    """Value of `PYSPARK_SUBMIT_ARGS`: client mode, this pod is the driver, executors are pods beside it."""
    settings = {
        "spark.master": SPARK_MASTER,
        "spark.executor.instances": str(facts.executors),
        "spark.executor.cores": "1",
        "spark.executor.memory": EXECUTOR_HEAP,
        "spark.executor.memoryOverhead": EXECUTOR_OVERHEAD,
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",  # Spark 4.3 gives executors this address, not the host's
        "spark.driver.port": str(DRIVER_PORT),
        "spark.blockManager.port": str(BLOCKS_PORT),
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
    for mount in facts.mounts:
        prefix = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{mount.name}"
        settings |= {
            f"{prefix}.options.claimName": mount.claim,
            f"{prefix}.mount.path": mount.path,
            f"{prefix}.mount.readOnly": str(mount.read_only).lower(),
        }
        if mount.folder:
            settings[f"{prefix}.mount.subPath"] = mount.folder
    return " ".join([*(f"--conf {name}={value}" for name, value in settings.items()), "pyspark-shell"])


def _metadata(facts: JobFacts, name: str) -> NewObject:
    return {
        "name": name,
        "namespace": facts.namespace,
        "labels": _labels(facts),
        "ownerReferences": labels.owner(facts.kind, facts.owner, facts.uid),
    }


def _labels(facts: JobFacts) -> dict[str, str]:
    return labels.labels(facts.kind, facts.owner, run=facts.run, step=facts.step, **facts.labels)


def _pod_spec(facts: JobFacts) -> NewObject:
    given = facts.placement
    spec: NewObject = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": _pod_security(),
        "containers": [_container(facts)],
        "volumes": _volumes(facts),
        "tolerations": [each.model_dump(by_alias=True, exclude_defaults=True) for each in given.tolerations],
        "nodeSelector": dict(given.node_selector),
        "imagePullSecrets": [{"name": each.name} for each in given.image_pull_secrets],
    }
    if facts.beside_pod is not None:
        spec["affinity"] = _beside({"statefulset.kubernetes.io/pod-name": facts.beside_pod})
    if facts.executors:
        spec["serviceAccountName"] = account_name(facts.name)
    return {name: value for name, value in spec.items() if value not in ({}, [])}


def _pod_security() -> NewObject:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> NewObject:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _beside(chosen: Mapping[str, str]) -> NewObject:
    """On the node of a pod, where its volume is."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(chosen)}}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _container(facts: JobFacts) -> NewObject:
    mounts = [_mount(each) for each in facts.mounts]
    mounts += [*facts.volume_mounts, {"name": "tmp", "mountPath": "/tmp"}]
    variables: list[NewObject] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "SPARK_LOCAL_DIRS", "value": LOCAL_FOLDER},
    ]
    found: NewObject = {
        "name": CONTAINER,
        "image": facts.image,
        "command": ["python", "-m", "brokerset_spark", *facts.command],
        "env": variables,
        "resources": _resources(facts.limits),
        "securityContext": _container_security(),
        "terminationMessagePath": STATUS_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if facts.executors:
        found["env"] = [
            from_pod("POD_NAME", "metadata.name"),
            from_pod("POD_IP", "status.podIP"),
            *variables,
            {"name": "PYSPARK_SUBMIT_ARGS", "value": submit_arguments(facts)},
        ]
        found["ports"] = [
            {"name": "driver", "containerPort": DRIVER_PORT, "protocol": "TCP"},
            {"name": "blocks", "containerPort": BLOCKS_PORT, "protocol": "TCP"},
        ]
        mounts += [
            {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
            {"name": "template", "mountPath": CONFIG_FOLDER, "readOnly": True},
        ]
    return found


def _mount(mounted: Mounted) -> NewObject:
    found: NewObject = {"name": mounted.name, "mountPath": mounted.path}
    if mounted.folder:
        found["subPath"] = mounted.folder
    if mounted.read_only:
        found["readOnly"] = True
    return found


def _resources(limits: Limits) -> NewObject:
    asked = {name: canonical(amount) for name, amount in limits.resources.requests.items()}
    most = {name: canonical(amount) for name, amount in limits.resources.limits.items()}
    requests = {name: amount for name, amount in REQUESTS.items() if name not in most}
    found: NewObject = {"requests": {**requests, **asked}, "limits": most}
    return {name: amounts for name, amounts in found.items() if amounts}


def _volumes(facts: JobFacts) -> list[NewObject]:
    found: list[NewObject] = []
    for each in facts.mounts:
        claim: NewObject = {"claimName": each.claim}
        if each.read_only:
            claim["readOnly"] = True
        found.append({"name": each.name, "persistentVolumeClaim": claim})
    found += [*facts.volumes, {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}}]
    if facts.executors:
        sources: list[NewObject] = [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        found.append({"name": "token", "projected": {"sources": sources}})
        found.append({"name": "template", "configMap": {"name": account_name(facts.name)}})
    return found


def _executor_template(facts: JobFacts) -> str:
    """The pod template as JSON, which is YAML. What Spark sets itself is left out: image, claims, ports."""
    chosen = {labels.OWNER: facts.owner, labels.RUN: str(facts.run), labels.STEP: facts.step}
    if facts.beside_pod is not None:
        chosen = {"statefulset.kubernetes.io/pod-name": facts.beside_pod}
    elif not facts.mounts:
        chosen = {}
    given = facts.placement
    spec: NewObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(),
        "affinity": _beside(chosen) if chosen else {},
        "tolerations": [each.model_dump(by_alias=True, exclude_defaults=True) for each in given.tolerations],
        "nodeSelector": dict(given.node_selector),
        "imagePullSecrets": [{"name": each.name} for each in given.image_pull_secrets],
        "containers": [
            {
                "name": EXECUTOR_CONTAINER,
                "env": [{"name": "HOME", "value": "/tmp"}],
                "securityContext": _container_security(),
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}}],
    }
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": _labels(facts)},
        "spec": {name: value for name, value in spec.items() if value not in ({}, [])},
    }
    return json.dumps(template, indent=1, sort_keys=True)
