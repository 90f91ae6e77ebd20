"""The StoreExport manifest: writes topics of a BrokerSet into a table; typed, with every default."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_spec.manifest_parts import (
    API_VERSION,
    BrokerName,
    ObjectName,
    Part,
    each_once,
    rule,
    ruled,
)
from brokerset_spec.manifest_reader import ManifestReader, put_name, refer_to_set
from brokerset_spec.problems import (
    PLAIN_SHAPE,
    SERVICE_URL_SHAPE,
    TABLE_NAME_SHAPE,
    TABLE_URL_SHAPE,
    VARIABLE_SHAPE,
    Problem,
    listed_twice,
)
from brokerset_spec.store_job_parts import (
    DRIVER_MEMORY_RULE,
    PATH_LENGTH_MAX,
    Executors,
    FolderPath,
    JobMetadata,
    RunLimits,
    ScheduledSpec,
    resources_problems,
)

KIND: Final = "StoreExport"

TOPICS_MAX: Final = 256
"""Most topics that are named one by one."""

COLUMNS_MAX: Final = 256
PATTERN_LENGTH_MAX: Final = 512

EXAMPLES: Final = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": "{name: lake}",
    "name": "lake",
    "spec": "{brokerSetRef: {name: orders}, topics: [payments], target: {url: s3://lake/orders}}",
    "brokerSetRef": "{name: orders}",
    "target": "{url: s3://lake/orders}",
    "secretName": "lake-keys",
}
"""What to write for a field that is missing."""


class TargetCredentials(Part):
    """What a storage, a catalog or a registry wants to know of who asks."""

    secret_name: ObjectName
    """Secret, in the same namespace, each entry of which becomes an environment variable of the job's pods:
    of the storage `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL` and so on, of a catalog
    `PYICEBERG_CATALOG__NAME__CREDENTIAL` or `…__URI`, of a registry `BROKERSET_REGISTRY_USER` and
    `BROKERSET_REGISTRY_PASSWORD`.

    The operator never reads it.
    """


class BrokerCredentials(Part):
    """Who the job is to brokers."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "has(self.secretName) || has(self.certificateSecretName)",
                "credentials name nobody; give secretName, certificateSecretName, or both",
            )
        )
    )

    secret_name: ObjectName | None = None
    """As whom it signs: a Secret, in the same namespace, with the entries `accessKey` and `secretKey`, as the
    one has that the operator makes of a `User`. Each run reads it when its pods start.

    The user needs `Get` and `Sub` on the topics, and `Sub` on `Group:TOOLS_CONSUMER`; with `topicPattern` it
    is a Super user. The operator does not read the Secret for this.
    """

    certificate_secret_name: ObjectName | None = None
    """What it shows to a set whose `spec.tls.clients` asks for certificates: a Secret, in the same namespace,
    with the entries `tls.crt` and `tls.key`, of an authority of clients. The operator never reads it.
    """


class ExportCatalog(Part):
    """Where an Iceberg table is registered."""

    name: ObjectName = "lake"
    """Name of the catalog, as variables of its credentials have it: - is _ there."""

    type: Literal["rest", "sql", "glue", "hive"]
    """Kind of the catalog; glue and hive need an image with their clients."""

    uri: Annotated[str, Field(pattern=SERVICE_URL_SHAPE, max_length=PATH_LENGTH_MAX)] | None = None
    """Where it is, as `https://catalog:8181`; one with a password is in the Secret. Glue needs none."""

    warehouse: Annotated[str, Field(pattern=PLAIN_SHAPE, max_length=PATH_LENGTH_MAX)] | None = None
    """Its warehouse, where a REST catalog has several."""

    table: Annotated[str, Field(pattern=TABLE_NAME_SHAPE, max_length=255)] = "brokerset.messages"
    """Namespace and name of the table; that of the control table ends with `_control`."""

    credentials: TargetCredentials | None = None
    """Who asks the catalog."""


class ExportTarget(Part):
    """The table that is written: in an object storage, or in a volume."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "has(self.url) != has(self.claimName)",
                "exactly one place must be named; give either url or claimName",
            ),
            rule(
                "!has(self.credentials) || has(self.url)",
                "a volume takes no credentials; leave them out, or give url",
                "credentials",
            ),
            rule(
                "has(self.catalog) == (has(self.format) && self.format == 'iceberg')",
                "a catalog belongs to the format iceberg; give both, or neither",
                "catalog",
            ),
        )
    )

    url: Annotated[str, Field(pattern=TABLE_URL_SHAPE, max_length=PATH_LENGTH_MAX)] | None = None
    """Where, as s3://bucket/folder, abfss://container@account.dfs.core.windows.net/folder, gs://bucket/folder
    or hdfs://host:8020/folder. It has no credentials in it."""

    claim_name: ObjectName | None = None
    """A volume, in the same namespace; executors run on the driver's node then."""

    path: FolderPath = "lake"
    """Folder within the volume."""

    credentials: TargetCredentials | None = None
    """Who writes; none where the pods' node or service account says it."""

    format: Literal["delta", "parquet", "iceberg"] = "delta"
    """Format of the table: Delta, Parquet files with a log of commits beside them, or Iceberg."""

    catalog: ExportCatalog | None = None
    """Of Iceberg."""


class AvroSource(Part):
    """Where the schemas of Avro bodies are."""

    registry: Annotated[str, Field(pattern=SERVICE_URL_SHAPE, max_length=PATH_LENGTH_MAX)]
    """URL of the schema registry, without a user."""

    subject: Annotated[str, Field(pattern=PLAIN_SHAPE, max_length=255)] | None = None
    """Subject whose newest schema makes the columns; `TOPIC-value` for one topic."""

    credentials: TargetCredentials | None = None
    """Who asks the registry."""


class JsonColumn(Part):
    """A column of the table that is a field of JSON bodies."""

    name: Annotated[str, Field(pattern=VARIABLE_SHAPE, max_length=100)]
    """Name of the field, and of the column."""

    type: Literal["string", "bigint", "double", "boolean"]
    """Type of its values; one of another type is null, and counted as unreadable."""


class ExportSpec(ScheduledSpec):
    """What is wanted; everything but the set, the topics and the target has a default."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "(has(self.topics) && size(self.topics) > 0) != has(self.topicPattern)",
                "topics must be named in one way; give either topics or topicPattern",
            ),
            rule(
                "(has(self.schema) && self.schema == 'json') == "
                "(has(self.jsonColumns) && size(self.jsonColumns) > 0)",
                "jsonColumns and schema json belong together; give both, or neither",
                "jsonColumns",
            ),
            rule(
                "has(self.avro) == (has(self.schema) && self.schema == 'avro')",
                "avro and schema avro belong together; give both, or neither",
                "avro",
            ),
            DRIVER_MEMORY_RULE,
        )
    )

    topics: Annotated[
        tuple[BrokerName, ...],
        Field(
            strict=False,
            max_length=TOPICS_MAX,
            json_schema_extra=ruled(each_once("a topic is listed twice; list each topic once")),
        ),
    ] = ()
    """Topics that are read."""

    topic_pattern: Annotated[str, Field(min_length=1, max_length=PATTERN_LENGTH_MAX)] | None = None
    """Regular expression that fits whole names of topics; a topic that is made later is read from then on.

    Topics of the system and those of consumer groups (`%RETRY%…`, `%DLQ%…`) are not among them.
    """

    target: ExportTarget

    credentials: BrokerCredentials | None = None
    """As whom topics are read. A set with `acl.mode: enforcing`, or with `tls.clients.mode: require`, serves
    nobody without."""

    schema_: Annotated[Literal["raw", "json", "avro"], Field(alias="schema")] = "raw"
    """Columns of the table: the message with its body as it is, or besides it fields of its JSON or Avro."""

    json_columns: Annotated[tuple[JsonColumn, ...], Field(strict=False, max_length=COLUMNS_MAX)] = ()
    """These fields; with schema json."""

    avro: AvroSource | None = None
    """Where its schemas are; with schema avro."""

    compact: bool = False
    """Whether small files are merged after each run."""

    vacuum_hours: Annotated[int, Field(ge=1, le=8760)] | None = None
    """Deletes, after each run, files that no version of the table of so many hours names; none deletes none.

    168 or more unless no reader is slow.
    """

    executors: Executors = Executors()
    """Spark executors in pods of their own; none: the driver's pod reads and writes."""

    limits: RunLimits = RunLimits()


class StoreExport(Part):
    """Writes topics of a BrokerSet into a table, exactly once, on a schedule."""

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["StoreExport"]
    metadata: JobMetadata
    spec: ExportSpec
    status: Any = None
    """Written by the operator; not read."""


def check_store_export(export: StoreExport) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest: contradictions."""
    spec = export.spec
    return [
        *_topic_problems(spec),
        *_column_problems(spec),
        *_avro_problems(spec),
        *_target_problems(spec.target),
        *_credentials_problems(spec.credentials),
        *resources_problems(spec.limits, spec.executors, "spark"),
    ]


def _topic_problems(spec: ExportSpec) -> Iterable[Problem]:
    if bool(spec.topics) == (spec.topic_pattern is not None):
        reason = "are named in two ways" if spec.topics else "are not named"
        yield Problem("spec.topics", reason, "give either topics or topicPattern")
    yield from listed_twice("spec.topics", spec.topics, "list each topic once")
    try:
        re.compile(spec.topic_pattern or "")
    except re.error as error:
        reason = f"is no regular expression: {error}"
        yield Problem("spec.topicPattern", reason, "write it as Python does, like orders-.*")


def _column_problems(spec: ExportSpec) -> Iterable[Problem]:
    if (spec.schema_ == "json") != bool(spec.json_columns):
        reason = f"has {len(spec.json_columns)} columns, and the schema is {spec.schema_}"
        yield Problem("spec.jsonColumns", reason, "give jsonColumns and schema json, or neither")
    names = [column.name.lower() for column in spec.json_columns]
    yield from listed_twice("spec.jsonColumns", names, "list each column once, in one spelling")


def _avro_problems(spec: ExportSpec) -> Iterable[Problem]:
    if (spec.schema_ == "avro") != (spec.avro is not None):
        reason = f"is {'missing' if spec.avro is None else 'there'}, and the schema is {spec.schema_}"
        yield Problem("spec.avro", reason, "give avro and schema avro, or neither")
    elif spec.avro is not None and spec.avro.subject is None and len(spec.topics) != 1:
        yield Problem("spec.avro.subject", "is missing, and there is not one topic", "name the subject")


def _credentials_problems(credentials: BrokerCredentials | None) -> Iterable[Problem]:
    if credentials is None or credentials.secret_name or credentials.certificate_secret_name:
        return
    yield Problem("spec.credentials", "name nobody", "give secretName, certificateSecretName, or both")


def _target_problems(target: ExportTarget) -> Iterable[Problem]:
    if (target.format == "iceberg") != (target.catalog is not None):
        reason = f"is {'missing' if target.catalog is None else 'there'}, and the format is {target.format}"
        yield Problem("spec.target.catalog", reason, "give catalog and format iceberg, or neither")
    if (target.url is None) == (target.claim_name is None):
        reason = "names no place" if target.url is None else "names an address and a volume as well"
        yield Problem("spec.target", reason, "give either url or claimName")
    elif target.url is None and target.credentials is not None:
        yield Problem("spec.target.credentials", "a volume takes none", "leave them out, or give url")


def _complete(rest: dict[str, Any]) -> None:
    put_name(rest)
    refer_to_set(rest)
    spec = rest.get("spec")
    if isinstance(spec, dict):
        if not spec.keys() & {"topics", "topicPattern"}:
            spec["topics"] = ["unnamed"]
        target = spec.setdefault("target", {})
        if isinstance(target, dict) and not target.keys() & {"url", "claimName"}:
            target["claimName"] = "unnamed"


read_store_export: Final = ManifestReader(
    model=StoreExport,
    api_version=API_VERSION,
    kind=KIND,
    outline="metadata: {name: …}, spec: …",
    examples=EXAMPLES,
    check=check_store_export,
    complete=_complete,
).read
"""Check a manifest; see `ManifestReader.read`."""
