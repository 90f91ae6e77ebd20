"""The CustomResourceDefinitions: what each kind is besides its fields, and `crds/*.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from generate.pod_types import Affinity, Spread
from generate.schemas import RULES, Schema, schema_of
from generate.settings_schema import config_schema
from generate.statuses import (
    AuditStatus,
    BrokerSetStatus,
    ExportStatus,
    MigrationStatus,
    Status,
    SubjectStatus,
    TopicStatus,
    UserStatus,
)
from pydantic import BaseModel

from brokerset_spec.manifest import BrokerSet
from brokerset_spec.manifest_parts import API_VERSION, NAME_LENGTH_MAX, OBJECT_NAME_LENGTH_MAX, rule
from brokerset_spec.pod_template import FORBIDDEN, PodTemplate
from brokerset_spec.problems import SET_NAME_SHAPE
from brokerset_spec.store_audit_manifest import StoreAudit
from brokerset_spec.store_export_manifest import StoreExport
from brokerset_spec.store_job_parts import JOB_NAME_LENGTH_MAX
from brokerset_spec.store_migration_manifest import StoreMigration
from brokerset_spec.subject_manifest import Subject
from brokerset_spec.topic_manifest import Topic
from brokerset_spec.user_manifest import CREDENTIALS_SUFFIX, User

HEAD: Final = "# Made by `make generate` from brokerset_spec and generate/: change those, not this file.\n"
ONLY_PAGES: Final = ("x-page", "x-more", "x-required")
READY: Final = '.status.conditions[?(@.type=="Ready")]'


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; with priority 1 it is shown with `-o wide` only."""

    name: str
    path: str
    description: str
    type: str = "string"
    priority: int = 0

    def as_json(self) -> Schema:
        """The column as a CRD has it."""
        found = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        return found | ({"priority": self.priority} if self.priority else {})


AGE: Final = Column("Age", ".metadata.creationTimestamp", "How long it has existed.", "date")


def _reason(priority: int = 1) -> Column:
    return Column("Reason", f"{READY}.reason", "Why it is, or is not, ready.", priority=priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind: its model says what is wanted, its status what is."""

    model: type[BaseModel]
    status: type[Status]
    short_name: str
    columns: tuple[Column, ...]
    name_length_max: int
    name_shape: str | None = None
    """Where the API server cannot say it better by a rule."""

    subresources: Schema = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the kind."""
        return self.model.__name__

    @property
    def plural(self) -> str:
        """Its name in addresses of the API."""
        return f"{self.name.lower()}s"


KINDS: Final = (
    Kind(
        model=BrokerSet,
        status=BrokerSetStatus,
        short_name="bset",
        name_length_max=NAME_LENGTH_MAX,
        subresources={
            "scale": {
                "specReplicasPath": ".spec.groups",
                "statusReplicasPath": ".status.groupCount",
                "labelSelectorPath": ".status.selector",
            }
        },
        columns=(
            Column("Ready", f"{READY}.status", "Whether clients are served as the manifest says."),
            Column("Phase", ".status.phase", "The state in one word."),
            Column("Masters", ".status.masters", "Pods that are masters."),
            Column("Epochs", ".status.epochs", "Master epochs of the groups."),
            Column("In-Sync", ".status.inSync", "Brokers in sync of those wanted."),
            Column(
                "Lag", ".status.lagBytes", "Bytes that the slave which is furthest behind lacks.", "integer"
            ),
            AGE,
            Column("Cluster", ".spec.clusterName", "RocketMQ cluster.", priority=1),
            Column("Groups", ".status.groupCount", "Groups that are wanted.", "integer", 1),
            Column("Replicas", ".spec.replicas", "Brokers wanted in each group.", "integer", 1),
            Column(
                "Controllers",
                '.status.conditions[?(@.type=="ControllersReady")].status',
                "Whether the controllers answer and are led.",
                priority=1,
            ),
            _reason(),
        ),
    ),
    Kind(
        model=Topic,
        status=TopicStatus,
        short_name="btopic",
        name_length_max=OBJECT_NAME_LENGTH_MAX,
        columns=(
            Column("Ready", f"{READY}.status", "Whether all groups have the topic as the manifest says."),
            Column("Topic", ".status.topicName", "Name of the topic on the brokers."),
            Column("Set", ".spec.brokerSetRef.name", "The set whose brokers have it."),
            Column("Write", ".spec.queues.write", "Queues on each group that are written.", "integer"),
            Column("Read", ".spec.queues.read", "Queues on each group that are read.", "integer"),
            Column("Permission", ".spec.permission", "What clients may do."),
            Column("Type", ".status.messageType", "Type of its messages, as the manifest says."),
            AGE,
            Column(
                "When-Deleted",
                ".spec.deletionPolicy",
                "What happens to its messages when the object is deleted.",
                priority=1,
            ),
            _reason(),
        ),
    ),
    Kind(
        model=User,
        status=UserStatus,
        short_name="buser",
        name_length_max=OBJECT_NAME_LENGTH_MAX - len(CREDENTIALS_SUFFIX),
        columns=(
            Column("Ready", f"{READY}.status", "Whether all groups have the user as the manifest says."),
            Column("User", ".status.username", "Name of the user, the access key of clients."),
            Column("Set", ".spec.brokerSetRef.name", "The set whose brokers know it."),
            Column("Type", ".spec.type", "Whether policies count, or it may do everything."),
            Column("Secret", ".status.secretName", "The Secret with its password."),
            AGE,
            Column("Enabled", ".spec.enabled", "Whether its requests are let in.", "boolean", 1),
            _reason(),
        ),
    ),
    Kind(
        model=Subject,
        status=SubjectStatus,
        short_name="bsubject",
        name_length_max=OBJECT_NAME_LENGTH_MAX,
        subresources={
            "scale": {
                "specReplicasPath": ".spec.partitions",
                "statusReplicasPath": ".status.partitions",
            }
        },
        columns=(
            Column("Ready", f"{READY}.status", "Whether the subject is as the manifest says."),
            Column("Subject", ".status.subject", "Name of the subject."),
            Column("Set", ".spec.brokerSetRef.name", "The set whose brokers have it."),
            Column("Order", ".spec.orderStrategy", "What happens to a message that cannot be handled."),
            Column("Partitions", ".status.partitions", "Partitions that take messages.", "integer"),
            Column("Generation", ".status.generation", "Generation of the partitions.", "integer"),
            AGE,
            Column("Sealing", ".status.sealing", "Older partitions that are not closed yet.", "integer", 1),
            Column("Groups", ".status.groupCount", "Groups of consumers.", "integer", 1),
            Column(
                "When-Deleted",
                ".spec.deletionPolicy",
                "What happens to its messages when the object is deleted.",
                priority=1,
            ),
            _reason(),
        ),
    ),
    Kind(
        model=StoreAudit,
        status=AuditStatus,
        short_name="saudit",
        name_length_max=JOB_NAME_LENGTH_MAX,
        name_shape=SET_NAME_SHAPE,
        columns=(
            Column(
                "Passed",
                '.status.conditions[?(@.type=="AuditPassed")].status',
                "Whether the last run found no error.",
            ),
            Column("Set", ".spec.brokerSetRef.name", "The set that is audited."),
            Column("Phase", ".status.phase", "The state in one word."),
            Column("Last-Result", ".status.lastRun.result", "How the last run ended."),
            Column("Errors", ".status.lastRun.errors", "Errors that it found.", "integer"),
            Column("Last-Success", ".status.lastSuccessTime", "How long ago a run found no error.", "date"),
            Column("Next", ".status.nextScheduleTime", "When the next run is due."),
            AGE,
            Column("Ready", f"{READY}.status", "Whether it is carried out.", priority=1),
            Column("Worst", ".status.lastRun.worstCode", "Code of the worst finding.", priority=1),
            Column("Bytes", ".status.lastRun.bytesRead", "Bytes that the last run read.", "integer", 1),
        ),
    ),
    Kind(
        model=StoreMigration,
        status=MigrationStatus,
        short_name="smigration",
        name_length_max=JOB_NAME_LENGTH_MAX,
        name_shape=SET_NAME_SHAPE,
        columns=(
            Column("Phase", ".status.phase", "Pending, Running, Verifying, Succeeded or Failed."),
            Column("Source", ".spec.source.claimName", "Volume that is read."),
            Column("Target", ".status.targetClaim", "Volume that is written."),
            Column("Mode", ".spec.mode", "Layout of the new store."),
            Column("Ready", f"{READY}.status", "Whether the new store is there and was read back."),
            AGE,
            Column("Bytes", ".status.bytesRead", "Bytes that were read.", "integer", 1),
            _reason(),
        ),
    ),
    Kind(
        model=StoreExport,
        status=ExportStatus,
        short_name="sexport",
        name_length_max=JOB_NAME_LENGTH_MAX,
        name_shape=SET_NAME_SHAPE,
        columns=(
            Column(
                "Exported",
                '.status.conditions[?(@.type=="Exported")].status',
                "Whether the last run has written what there was.",
            ),
            Column("Set", ".spec.brokerSetRef.name", "The set whose topics are read."),
            Column("Phase", ".status.phase", "The state in one word."),
            Column("Last-Result", ".status.lastRun.result", "How the last run ended."),
            Column("Rows", ".status.totals.rows", "Rows that all runs have written.", "integer"),
            Column("Lag", ".status.lastRun.lag", "Messages that wait for the next run.", "integer"),
            Column("Gaps", ".status.totals.gaps", "Messages that were gone before a run.", "integer"),
            Column("Last-Success", ".status.lastSuccessTime", "How long ago a run passed.", "date"),
            Column("Next", ".status.nextScheduleTime", "When the next run is due."),
            AGE,
            Column("Ready", f"{READY}.status", "Whether it is carried out.", priority=1),
            Column("Target", ".status.target", "The table.", priority=1),
            Column("Bytes", ".status.totals.bytes", "Bytes that all runs have written.", "integer", 1),
            _reason(),
        ),
    ),
)


def schema_of_kind(kind: Kind) -> Schema:
    """The schema of whole objects of a kind."""
    group = API_VERSION.partition("/")[0]
    declared = schema_of(kind.model)
    spec = declared["properties"]["spec"]
    if kind.model is BrokerSet:
        spec["properties"]["config"] |= config_schema()
        del spec["properties"]["config"]["additionalProperties"]
        spec["properties"]["podTemplate"] |= _pod_template()
    name = {"type": "string", "maxLength": kind.name_length_max}
    shape = {"pattern": kind.name_shape} if kind.name_shape else {}
    rules = {RULES: declared[RULES]} if RULES in declared else {}
    return {
        "description": declared["description"],
        "type": "object",
        **({} if "default" in spec else {"required": ["spec"]}),
        **rules,
        "properties": {
            "apiVersion": {"description": f"Version of the kind: {group}/v1alpha1.", "type": "string"},
            "kind": {"description": f"{kind.name}.", "type": "string"},
            "metadata": {"type": "object", "properties": {"name": name | shape, "generateName": name}},
            "spec": spec,
            "status": schema_of(kind.status, sparse=True),
        },
    }


def _pod_template() -> Schema:
    """The fields of the template, and those of pods that are refused by name: else they would be dropped."""
    schema = schema_of(PodTemplate, sparse=True)
    fields = schema["properties"]
    fields["affinity"]["properties"] = schema_of(Affinity, sparse=True)["properties"]
    fields["topologySpreadConstraints"]["items"] = schema_of(Spread, sparse=True)
    fields["env"]["items"]["properties"]["value"]["default"] = ""
    refused = {
        name: {"description": f"Cannot be set: {why}.", **_type_in_a_pod(name)}
        for name, why in FORBIDDEN.items()
    }
    rules = [
        rule(f"!has(self.{name})", f"cannot be set; {why}; leave it out", name)
        for name, why in FORBIDDEN.items()
    ]
    return {RULES: rules, "properties": {**fields, **refused}}


def _type_in_a_pod(name: str) -> Schema:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    match name:
        case "spec" | "securityContext" | "lifecycle":
            return anything
        case "hostNetwork" | "hostPID" | "hostIPC" | "hostUsers" | "automountServiceAccountToken":
            return {"type": "boolean"}
        case "serviceAccountName" | "serviceAccount" | "runtimeClassName" | "nodeName" | "image":
            return {"type": "string", "maxLength": 1024}
        case "command" | "args":
            return {"type": "array", "maxItems": 1024, "items": {"type": "string"}}
        case _:
            return {"type": "array", "maxItems": 1024, "items": anything}


def _bare(value: Any) -> Any:
    """The schema without what is only for pages."""
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if key not in ONLY_PAGES}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def crd(kind: Kind) -> Schema:
    """The whole definition of a kind."""
    group, _, version = API_VERSION.partition("/")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short_name],
                "categories": ["messaging"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [column.as_json() for column in kind.columns],
                    "subresources": {"status": {}, **kind.subresources},
                    "schema": {"openAPIV3Schema": _bare(schema_of_kind(kind))},
                }
            ],
        },
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def text_of(kind: Kind) -> str:
    """The file of a kind in `crds/`."""
    return HEAD + yaml.dump(crd(kind), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
