"""What a Job on volumes is made of, and what its pod has in common with those of Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.broker_access import BrokerAccess, config_data, config_map_name
from brokerset_spec.pod_template import PodTemplate
from brokerset_spec.store_job_parts import Executors, RunLimits

TMP_SIZE: Final = "2Gi"
"""Most that a job may write to `/tmp`; Spark keeps blocks there that do not fit into memory."""


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
    """StoreAudit, StoreMigration or StoreExport."""

    owner: str
    uid: str
    namespace: str
    name: str
    run: int
    step: str
    image: str
    command: Sequence[str]
    limits: RunLimits
    deadline_seconds: int
    mounts: Sequence[Mounted] = ()
    next_to_pod: str | None = None
    """The pod runs on the node of this one."""

    placement: PodTemplate = field(default_factory=PodTemplate)
    """Tolerations, node selector, pull secrets and priority, as the set's own pods have them."""

    engine: str = "processes"
    executors: Executors = field(default_factory=Executors)
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[NewObject] = ()
    """Further volumes, which `volume_mounts` mounts."""

    volume_mounts: Sequence[NewObject] = ()
    secrets: Sequence[str] = ()
    """Secrets whose entries are environment variables of the job and of its executors."""

    access: BrokerAccess = field(default_factory=BrokerAccess)
    """How the job and its executors connect to brokers."""


def metadata_of(facts: JobFacts, name: str) -> NewObject:
    """Of an object that belongs to the job."""
    return {
        "name": name,
        "namespace": facts.namespace,
        "labels": labels_of(facts),
        "ownerReferences": labels.owner(facts.kind, facts.owner, facts.uid),
    }


def labels_of(facts: JobFacts) -> dict[str, str]:
    """Of an object that belongs to the job."""
    return labels.labels(facts.kind, facts.owner, run=facts.run, step=facts.step, **facts.labels)


def access_objects(facts: JobFacts) -> tuple[NewObject, ...]:
    """What must be there before the job so that it can connect to brokers."""
    access = facts.access
    if access.trust is None:
        return ()
    data = config_data(access.trust, shows_certificate=access.certificate is not None)
    return (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata_of(facts, config_map_name(facts.name)),
            "data": data,
        },
    )


def variables_of(facts: JobFacts) -> NewObject:
    """`envFrom` of a container; nothing where there are no secrets. What `env` has goes before."""
    if not facts.secrets:
        return {}
    return {"envFrom": [{"secretRef": {"name": name}} for name in facts.secrets]}


def next_to(chosen: Mapping[str, str]) -> NewObject:
    """On the node of a pod, where its volume is."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(chosen)}}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
