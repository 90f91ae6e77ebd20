"""What the operator writes into `status` of each kind; the CRDs alone need it declared."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Anything: Final[dict[str, Any]] = {"x-kubernetes-preserve-unknown-fields": True}
Int32 = Annotated[int, Field(json_schema_extra={"format": "int32"})]
Count32 = Annotated[int, Field(ge=0, json_schema_extra={"format": "int32"})]
Count = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def longest(length_max: int) -> Any:
    """A text that is no longer."""
    return Field(max_length=length_max)


def items(count_max: int, key: str = "", **more: Any) -> Any:
    """A list that is no longer; with a `key`, its items are kept apart by that field."""
    kept: dict[str, Any] = (
        {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {}
    )
    return Field(max_length=count_max, json_schema_extra={**kept, **more})


Ids = Annotated[tuple[int, ...], items(64)]


class Part(BaseModel):
    """What need not be there has None as its default."""

    model_config = ConfigDict(alias_generator=to_camel, use_enum_values=True)


class Open(Part):
    """An operator that is newer than the CRD may write more."""

    model_config = ConfigDict(json_schema_extra=Anything)


class Condition(Part):
    """One condition."""

    type: Annotated[str, longest(64)]
    """Name of the condition."""

    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})]
    """True, False or Unknown."""

    observed_generation: Count | None = None
    """Generation of the manifest that it is about."""

    last_transition_time: Time
    """When its status changed last."""

    reason: Annotated[str, longest(128)]
    """Why, in one word."""

    message: Annotated[str, longest(32768)]
    """Why, and what to do."""


class Status(Part):
    """What is; written by the operator."""

    observed_generation: Count | None = None
    """Generation of the manifest that this is about.

    Older than `metadata.generation`: the operator has not come to it yet.
    """

    phase: Annotated[str, longest(64)] | None = None
    """The state in one word, for people.

    Tools use conditions.
    """

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about it."""

    workflow: Annotated[dict[str, Any], Field(json_schema_extra=Anything)] = {}
    """What the operator remembers between two reconciles; not for people.

    Without promises.
    """


class TopicGroup(Open):
    """One group."""

    name: Annotated[str, longest(127)]
    """Broker name."""

    read_queues: Int32 | None = None
    """Queues that are read."""

    write_queues: Int32 | None = None
    """Queues that are written."""

    permission: Annotated[str, longest(8)] | None = None
    """What clients may do."""


class TopicStatus(Status):
    """What is; written by the operator."""

    topic_name: Annotated[str, longest(127)] | None = None
    """Name of the topic on the brokers."""

    message_type: Annotated[str, longest(16)] | None = None
    """Type of its messages, if the manifest says one."""

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about the topic. Ready is the one to wait for."""

    groups: Annotated[tuple[TopicGroup, ...], items(512, "name")] = ()
    """The broker groups that have the topic."""


class UserStatus(Status):
    """What is; written by the operator. No password is in it."""

    username: Annotated[str, longest(128)] | None = None
    """Name of the user, the access key of clients."""

    secret_name: Annotated[str, longest(253)] | None = None
    """Secret with the password."""

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about the user. Ready is the one to wait for."""

    groups: Annotated[tuple[Annotated[str, longest(127)], ...], items(512)] = ()
    """Names of the broker groups that have the user as wanted."""

    former_password_until: Time | None = None
    """Until when brokers accept the former password, too; absent when they do not."""


class SubjectConsumers(Open):
    """One group."""

    name: Annotated[str, longest(255)]
    """Name of the group."""

    strategy: Annotated[str, longest(16)] | None = None
    """`Exclusive` or `Shared`."""

    members: Count32 | None = None
    """Processes that consume."""

    undrained: Count32 | None = None
    """Sealed partitions that the group has not handled to their end.

    Partitions that inherit from them wait for that.
    """


class SubjectStatus(Status):
    """What is; written by the operator."""

    subject: Annotated[str, longest(127)] | None = None
    """Name of the subject."""

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about the subject. Ready is the one to wait for."""

    generation: Count32 | None = None
    """Generation of the partitions; each change of their number or route is one more."""

    partitions: Count32 | None = None
    """Partitions of the newest generation that take messages."""

    sealing: Count32 | None = None
    """Partitions of older generations whose brokers have not closed them yet."""

    route: Annotated[tuple[Annotated[str, longest(127)], ...], items(256)] = ()
    """Names of the broker groups that have the partitions."""

    groups: Annotated[tuple[SubjectConsumers, ...], items(64, "name")] = ()
    """Groups of consumers by name, the first 64; as they were at the last reconcile."""

    group_count: Count32 | None = None
    """How many groups there are."""


class Finding(Part):
    """One finding."""

    code: Annotated[str, longest(64)]
    """Stable name of what is wrong."""

    level: Annotated[str, longest(16)] | None = None
    """error, warning or info."""

    text: Annotated[str, longest(2048)] | None = None
    """What happened, and what to do."""

    store: Annotated[str, longest(512)] | None = None
    """The broker's pod, or the store, that it is about."""

    file: Annotated[str, longest(512)] | None = None
    """File within the store."""

    offset: int | None = None
    """Where it begins in the log, or in the queue for queues."""

    end: int | None = None
    """Where it ends."""


class Run(Part):
    """One run."""

    number: Count
    """Number of the run: the names of its Jobs have it."""

    reason: Annotated[str, longest(64)] | None = None
    """Why it was started: Schedule or Request."""

    start_time: Time | None = None
    """When it began."""

    completion_time: Time | None = None
    """When it ended."""

    result: Annotated[str, longest(64)] | None = None
    """How it ended, in one word."""

    message: Annotated[str, longest(2048)] | None = None
    """What to know about it."""

    findings: Count | None = None
    """Number of findings."""

    errors: Count | None = None
    """Number of those that are errors."""


class AuditRun(Run):
    """One run."""

    result: Annotated[str, longest(64)] | None = None
    """Passed, FindingsFound, Incomplete, Failed or Replaced."""

    full: bool | None = None
    """Whether everything was read again."""

    replicas: Annotated[str, longest(16)] | None = None
    """Replicas that were read, of those that there are, as 3/3."""

    worst_code: Annotated[str, longest(64)] | None = None
    """Code of the worst finding."""

    bytes_read: Count | None = None
    """Bytes that were read."""

    report: Annotated[str, longest(512)] | None = None
    """Beginning of the names of its reports in their volume; the number of the group and .json or .html
    follow."""


class ExportRun(Run):
    """One run."""

    result: Annotated[str, longest(64)] | None = None
    """Passed, FindingsFound or Failed."""

    rows: Count | None = None
    """Rows that it wrote."""

    bytes: Count | None = None
    """Bytes that it wrote."""

    files: Count | None = None
    """Files that it wrote."""

    lag: Count | None = None
    """Messages that were there at its end, and that it left for the next run."""

    gaps: Count | None = None
    """Messages that were gone before it could read them."""


class AuditedReplica(Part):
    """One replica."""

    pod: Annotated[str, longest(63)]
    """Its pod."""

    group: Annotated[str, longest(127)] | None = None
    """Its broker group."""

    result: Annotated[str, longest(64)] | None = None
    """Compared: it was read, and no error that is listed names it; Accused: one does; Unread."""


class LastRun(AuditRun):
    """The last run that ended."""

    brokers: Annotated[tuple[AuditedReplica, ...], items(256)] = ()
    """How each replica fared; not more than 256 of them."""


class RunsStatus(Status):
    """What is; written by the operator."""

    next_schedule_time: Time | None = None
    """When the next run is due."""

    last_schedule_time: Time | None = None
    """When a run was due last."""

    last_success_time: Time | None = None
    """When a run ended last that passed: it did all that it had to, and found no error."""

    findings: Annotated[tuple[Finding, ...], items(20)] = ()
    """What the last run found, the worst first, as many as there is room for."""


class AuditStatus(RunsStatus):
    """What is; written by the operator."""

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about the audit: Ready is about its schedule, AuditPassed about the data."""

    last_full_time: Time | None = None
    """When a run ended last that read everything."""

    last_run: LastRun | None = None
    counts: Annotated[dict[str, int], Field(max_length=64)] = {}
    """Number of findings of the last run, by code."""

    history: Annotated[tuple[AuditRun, ...], items(64)] = ()
    """Earlier runs that are remembered, the newest first."""


class ExportTotals(Part):
    """Sums of all runs."""

    runs: Count = 0
    """Runs that have ended."""

    failures: Count = 0
    """Those that have not passed."""

    rows: Count = 0
    """Rows that were written."""

    bytes: Count = 0
    """Bytes that were written."""

    gaps: Count = 0
    """Messages that were gone before a run could read them."""


class ExportStatus(RunsStatus):
    """What is; written by the operator."""

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about the export: Ready is about its schedule, Exporting about a run, Exported about the
    table."""

    target: Annotated[str, longest(512)] | None = None
    """The table: its address, or the volume and the folder in it."""

    last_run: ExportRun | None = None
    totals: ExportTotals | None = None
    history: Annotated[tuple[ExportRun, ...], items(64)] = ()
    """Earlier runs that are remembered, the newest first."""


class MigrationStatus(Status):
    """What is; written by the operator."""

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about the migration. Ready is the one to wait for: the new store is there and was read
    back."""

    source_claim: Annotated[str, longest(253)] | None = None
    """Volume of the source."""

    target_claim: Annotated[str, longest(253)] | None = None
    """Volume of the new store."""

    start_time: Time | None = None
    """When it began."""

    completion_time: Time | None = None
    """When it ended."""

    bytes_read: Count | None = None
    """Bytes that were read."""

    findings_total: Count | None = None
    """Number of findings."""

    findings: Annotated[tuple[Finding, ...], items(20)] = ()
    """What was found, the worst first, as many as there is room for."""


class RefusedOperator(Part):
    """Another installation of the operator that sees the set, and leaves it alone."""

    operator: Annotated[str, longest(512)] | None = None
    """Namespace and name of its Lease."""

    seen: Time | None = None
    """When it said so last."""


class ControllersStatus(Open):
    """What the controllers say of themselves."""

    formed: bool | None = None
    """Whether they have answered once: from then on an empty one waits to be let in."""

    leader: Annotated[int, Field(json_schema_extra={"nullable": True})] | None = None
    """Number of the one that leads."""

    members: Ids = ()
    """Numbers of those in the group."""

    voters: Ids = ()
    """Numbers of those that vote."""

    ready: Int32 | None = None
    """How many answer."""

    replicas: Int32 | None = None
    """How many are wanted."""


class Master(Open):
    """The master; absent while there is none."""

    model_config = ConfigDict(json_schema_extra={**Anything, "nullable": True})

    id: int | None = None
    """Broker id."""

    pod: Annotated[str, longest(253)] | None = None
    """Its pod."""


class Broker(Open):
    """One broker."""

    id: int | None = None
    """Broker id."""

    pod: Annotated[str, longest(253)] | None = None
    """Its pod."""

    role: Annotated[str, longest(64)] | None = None
    """master, slave, fenced, …"""

    max_offset: int | None = None
    """End of its log."""

    lag_bytes: int | None = None
    """Bytes that it lacks."""

    problem: Annotated[str, longest(1024)] | None = None
    """Why its pod does not run, or why it does not register or follow, and what to do; absent when nothing is
    known to be wrong."""


class Group(Open):
    """One group."""

    name: Annotated[str, longest(127)]
    """Broker name."""

    epoch: int | None = None
    """Master epoch.

    It grows with each election.
    """

    term: int | None = None
    """Term of a DLedger; the epoch is one higher."""

    master: Master | None = None
    in_sync: Ids = ()
    """Ids of the brokers that have every acknowledged message."""

    brokers: Annotated[tuple[Broker, ...], items(64)] = ()
    """All brokers of the group."""


class MasterAddress(Part):
    """One group."""

    group: Annotated[str, longest(127)] | None = None
    """Broker name."""

    address: Annotated[str, longest(512)] | None = None
    """Where clients outside reach its master."""


class BrokerAddress(Part):
    """One broker."""

    pod: Annotated[str, longest(253)] | None = None
    """Its pod."""

    address: Annotated[str, longest(512)] | None = None
    """Where clients outside reach it."""


class ExternalStatus(Open):
    """Addresses for clients outside the cluster, when spec.external asks for them."""

    name_servers: Annotated[str, longest(8192)] | None = None
    """What clients outside set as their name servers, as host:port;host:port."""

    masters: Annotated[tuple[MasterAddress, ...], items(512)] = ()
    """Address of each group's master."""

    brokers: Annotated[tuple[BrokerAddress, ...], items(4096)] = ()
    """Address of each single broker, with spec.external.perBroker."""

    waiting: Annotated[str, longest(32768)] | None = None
    """What has no address yet, and why."""


class AuthorityStatus(Open):
    """The set's own authority."""

    not_after: Time | None = None
    """When it expires."""

    renewal: Time | None = None
    """When it is renewed."""

    trusted: Count32 | None = None
    """How many authorities are trusted: more than one while it is being renewed."""


class TlsStatus(Open):
    """The certificate that the operator keeps, or has cert-manager keep."""

    source: Annotated[str, longest(32)] | None = None
    """Where it comes from: `authority` or `issuerRef`."""

    secret_name: Annotated[str, longest(253)] | None = None
    """Secret with the certificate."""

    trust_config_map: Annotated[str, longest(253)] | None = None
    """ConfigMap with the authorities to trust, under `ca.crt`."""

    clients: Annotated[str, longest(32)] | None = None
    """What is asked of clients: `optional` or `require` a certificate of theirs; none if nothing is."""

    not_after: Time | None = None
    """When the certificate expires."""

    renewal: Time | None = None
    """When it is renewed."""

    authority: AuthorityStatus | None = None
    """The set's own authority."""


class BrokerSetStatus(Status):
    """What is; written by the operator."""

    conditions: Annotated[tuple[Condition, ...], items(32, "type")] = ()
    """What to know about the set. Ready is the one to wait for."""

    masters: Annotated[str, longest(32768)] | None = None
    """Pods that are masters, for people."""

    epochs: Annotated[str, longest(8192)] | None = None
    """Master epochs of the groups, for people."""

    in_sync: Annotated[str, longest(64)] | None = None
    """Brokers in sync of those wanted, for people, as 3/3."""

    group_count: Count32 | None = None
    """Broker groups that the manifest wants, counted or listed by name."""

    lag_bytes: Count | None = None
    """Bytes that the slave which is furthest behind lacks."""

    operator: Annotated[str, longest(512)] | None = None
    """Installation of the operator that looks after the set: namespace and name of its Lease."""

    refused: RefusedOperator | None = None
    selector: Annotated[str, longest(1024)] | None = None
    """Labels of the first broker's pod of each group, as a selector.

    As many as groups, for the scale subresource.
    """

    controllers: ControllersStatus | None = None
    groups: Annotated[tuple[Group, ...], items(512, "name")] = ()
    """The broker groups."""

    tls: TlsStatus | None = None
    """The certificate that the operator keeps, or has cert-manager keep."""

    external: ExternalStatus | None = None
    requests: Annotated[Any, Field(json_schema_extra=Anything)] = None
    """Answers to what annotations ask for.

    `switchover` and `fence`, each with `value`, `state` (`Accepted`, `Waiting`, `Done`, `Refused`, `Failed`)
    and `message`.
    """
