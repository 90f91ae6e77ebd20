"""The pod template that controllers and brokers share: what may run, how it is watched, how it ends.

**Privileges.** Every pod satisfies the restricted pod security standard, whatever the manifest says: an
unprivileged user, no capabilities, no escalation, the runtime's seccomp profile, a read-only root with an
empty `/tmp`. Of `podTemplate` only the fields of `brokerset_spec.pod_template.PodTemplate` are read, and
none of them gives a pod any right.

**Probes** ask the process on its HTTP port. `/healthz` says that its tasks run: it fails only when the
process has to be restarted. It is neither about roles nor about replication, so a slave that catches up, a
master without enough replicas and a controller without a leader are left in peace. A broker opens its store
before it answers at all, hence the long start-up probe: a restart would begin the recovery again. `/readyz`
decides what PDBs count, and which controllers the name servers' Service leads to; brokers and controllers
find each other without it. A slave is ready when it is in sync (`readyOnlyInSync`), so that while it catches
up nobody evicts another broker of its group, or when it is fenced, since nobody waits for it then.

**The end.** SIGTERM makes a master hand over and a leading controller give up its leadership, which takes a
second or two, then the log is flushed; both processes end by themselves within their own deadlines (30 s and
7 s), which the grace periods exceed. No `preStop` hook is needed for that.

**Memory.** A broker's mapped files count as page cache, which the kernel takes back when others need it: a
broker has 25 MiB of its own, a controller 50 MiB. The default requests leave room for cache and buffers.
There are no default limits: a limit on memory would take the cache from a busy broker, one on CPU would make
it slow in the second in which it takes over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.resources.access_variables import access_annotations, access_variables
from brokerset_operator.resources.pod_parts import (
    amounts,
    container_ports,
    container_security,
    from_pod,
    given_only,
    placement,
    pod_security,
    service_ports,
    token_mount,
    token_volume,
)
from brokerset_operator.resources.quantities import canonical
from brokerset_operator.resources.set_facts import OWNER_UID, NewObject, SetFacts
from brokerset_operator.resources.settings_files import DATA_FOLDER, SETTINGS_FOLDER
from brokerset_operator.resources.tls_files import (
    probe_scheme,
    tls_annotations,
    tls_mounts,
    tls_variables,
    tls_volumes,
)
from brokerset_spec.pod_template import PodTemplate, Resources

TMP_SIZE: Final = "64Mi"
"""Most that a process may write to `/tmp`; today they write nothing there."""

REVISIONS_KEPT: Final = 3
"""Old pod templates that a StatefulSet remembers; with `OnDelete` nothing goes back to them by itself."""


BY_OPERATOR: Final[Mapping[str, Any]] = {"updateStrategy": {"type": "OnDelete"}}
BY_KUBERNETES: Final[Mapping[str, Any]] = {
    "updateStrategy": {"type": "RollingUpdate"},
    "minReadySeconds": 15,
}
"""Who replaces old pods; Kubernetes waits so long with the next one."""

HASH_CHARACTERS: Final = 16
"""64 bits: nobody tries to find two templates with the same hash, and people can read it out."""

NOT_ROLLED: Final = frozenset({"raftJoin", "controllerDLegerPeers", "raftPeers", "expectedReplicas"})
"""Settings that only count when a pod has no data yet: a change of them restarts nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What differs between controllers and brokers."""

    component: str
    group: str | None
    module: str
    settings_file: str
    config_map: str
    settings: Mapping[str, str]
    """Those that take a restart to change."""

    ports: Mapping[str, int]
    environment: tuple[Mapping[str, Any], ...]
    requests: Mapping[str, str]
    """Default requests."""

    resources: Resources
    """What the manifest says of this process; each request that it does not name has its default."""

    storage: str
    """Size of the volume."""

    storage_class: str | None

    startup_seconds_max: int
    grace_seconds: int
    service_account: str | None = None
    """Whose token the pod gets; None for no token at all."""


def pod_template(facts: SetFacts, process: ProcessFacts) -> NewObject:
    """The template of a StatefulSet's pods, with the hash of itself and of the settings in it."""
    given = PodTemplate.model_validate(facts.manifest.spec.pod_template)
    template: NewObject = {
        "metadata": {
            "labels": {
                **given.metadata.labels,
                **names.labels(facts.name, process.component, process.group),
            },
            "annotations": {
                **given.metadata.annotations,
                **tls_annotations(facts),
                **access_annotations(facts, process.component),
            },
        },
        "spec": _pod_spec(facts, process, given),
    }
    template["metadata"]["annotations"][names.HASH_ANNOTATION] = config_hash(template, process.settings)
    # Not in the hash: no pod is replaced for what a process wrote last, which is for the status, nor for its
    # own address, which is of use where that is IPv6.
    container = template["spec"]["containers"][0]
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    if all(each["name"] != "POD_IP" for each in container["env"]):
        container["env"].append(from_pod("POD_IP", "status.podIP"))
    return template


def config_hash(template: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    """Hash a pod template, without the hash's own annotation, and those settings that take a restart.

    Settings go by their outside names. The order of keys does not matter, and `NOT_ROLLED` does not count.
    """
    counted = {name: text for name, text in settings.items() if name not in NOT_ROLLED}
    text = json.dumps([template, counted], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:HASH_CHARACTERS]


def stateful_set(
    facts: SetFacts,
    process: ProcessFacts,
    *,
    name: str,
    replicas: int,
    service: str | None = None,
    strategy: Mapping[str, Any] = BY_OPERATOR,
) -> NewObject:
    """A StatefulSet with one volume claim for each pod; its headless Service is called as it is by default.

    Its pods are replaced by nobody but the operator, unless `strategy`, fields of its spec, says otherwise.
    """
    claim: NewObject = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": canonical(process.storage)}},
    }
    if process.storage_class is not None:
        claim["storageClassName"] = process.storage_class
    return facts.an_object(
        "StatefulSet",
        name,
        component=process.component,
        group=process.group,
        spec={
            "replicas": replicas,
            "serviceName": service or name,
            "podManagementPolicy": "Parallel",
            **strategy,
            "revisionHistoryLimit": REVISIONS_KEPT,
            "selector": {"matchLabels": names.selector(facts.name, process.component, process.group)},
            "template": pod_template(facts, process),
            "volumeClaimTemplates": [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": names.VOLUME,
                        "labels": names.labels(facts.name, process.component, process.group),
                        "annotations": {OWNER_UID: facts.owner_uid},
                    },
                    "spec": claim,
                }
            ],
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": facts.manifest.spec.storage.when_deleted,
                "whenScaled": "Retain",
            },
        },
    )


def headless_service(facts: SetFacts, process: ProcessFacts, name: str) -> NewObject:
    """Gives each pod its DNS name at once: who is not ready must be reachable to become so."""
    return facts.a_service(
        name,
        service_ports(process.ports),
        component=process.component,
        group=process.group,
        selector=names.selector(facts.name, process.component, process.group),
        type="ClusterIP",
        clusterIP="None",
        publishNotReadyAddresses=True,
    )


def disruption_budget(facts: SetFacts, process: ProcessFacts, name: str) -> NewObject:
    """Whoever drains nodes may take one pod at a time, and none while one is not ready."""
    return facts.an_object(
        "PodDisruptionBudget",
        name,
        component=process.component,
        group=process.group,
        spec={
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(facts.name, process.component, process.group)},
        },
    )


def _pod_spec(facts: SetFacts, process: ProcessFacts, given: PodTemplate) -> NewObject:
    spec: NewObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": process.grace_seconds,
        "topologySpreadConstraints": _spread(facts, process, given),
        "securityContext": pod_security(),
        "containers": [_container(facts, process, given)],
        "volumes": _volumes(facts, process),
        **given_only({"affinity": dict(given.affinity), "priorityClassName": given.priority_class_name}),
        **placement(given),
    }
    if process.service_account is not None:
        spec["serviceAccountName"] = process.service_account
    return spec


def _container(facts: SetFacts, process: ProcessFacts, given: PodTemplate) -> NewObject:
    mounts: list[NewObject] = [
        {"name": names.VOLUME, "mountPath": DATA_FOLDER},
        {"name": "settings", "mountPath": SETTINGS_FOLDER, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        *tls_mounts(facts),
    ]
    if process.service_account is not None:
        mounts.append(token_mount())
    return {
        "name": process.component,
        "image": facts.image,
        "command": ["python", "-m", process.module, "-c", f"{SETTINGS_FOLDER}/{process.settings_file}"],
        "env": [
            *_variables(given),
            *process.environment,
            *tls_variables(facts, SETTINGS_FOLDER),
            *access_variables(facts, process.component),
        ],
        "ports": container_ports(process.ports),
        "resources": amounts(process.resources, process.requests),
        "securityContext": container_security(),
        "startupProbe": _probe(facts, "/healthz", period=1, timeout=2, failures=process.startup_seconds_max),
        "livenessProbe": _probe(facts, "/healthz", period=10, timeout=5, failures=6),
        "readinessProbe": _probe(facts, "/readyz", period=2, timeout=2, failures=3),
        "volumeMounts": mounts,
    }


def _variables(given: PodTemplate) -> list[NewObject]:
    """An empty value is left out, as the API server does."""
    return [
        {"name": each.name, "value": each.value} if each.value else {"name": each.name} for each in given.env
    ]


def _volumes(facts: SetFacts, process: ProcessFacts) -> Sequence[NewObject]:
    found: list[NewObject] = [
        {"name": "settings", "configMap": {"name": process.config_map}},
        {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
        *tls_volumes(facts),
    ]
    return [*found, token_volume()] if process.service_account is not None else found


def _probe(facts: SetFacts, path: str, *, period: int, timeout: int, failures: int) -> NewObject:
    return {
        "httpGet": {"path": path, "port": "http", **probe_scheme(facts)},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def _spread(facts: SetFacts, process: ProcessFacts, given: PodTemplate) -> list[NewObject]:
    """One node must not hold two replicas if it can be helped; a small cluster gets them all the same."""
    wanted: tuple[Mapping[str, Any], ...] = given.topology_spread_constraints or (
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"},
    )
    own = {"matchLabels": names.selector(facts.name, process.component, process.group)}
    return [{"labelSelector": own, **constraint} for constraint in wanted]
