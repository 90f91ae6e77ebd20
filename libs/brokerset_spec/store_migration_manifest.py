"""The StoreMigration manifest: copies one store into another layout, once; typed, with every default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_spec.manifest import REPLICAS_MAX
from brokerset_spec.manifest_parts import (
    API_VERSION,
    GROUPS_MAX,
    BrokerName,
    ClassName,
    Image,
    ObjectName,
    Part,
    Size,
    each_once,
    page,
    rule,
    ruled,
)
from brokerset_spec.manifest_reader import ManifestReader, put_name
from brokerset_spec.problems import Problem, listed_twice
from brokerset_spec.store_job_parts import (
    JOB_RULES,
    Executors,
    FolderPath,
    JobMetadata,
    Limits,
    SetRef,
    engine_problems,
    resources_problems,
)

KIND: Final = "StoreMigration"

TOPICS_MAX: Final = 256
"""Most topics that are chosen one by one."""

EXAMPLES: Final = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": "{name: take-over}",
    "name": "take-over",
    "spec": "{source: {claimName: old-broker}, target: {broker: {set: {name: orders}}}}",
    "source": "{claimName: old-broker}",
    "target": "{broker: {set: {name: orders}}}",
    "claimName": "old-broker",
    "set": "{name: orders}",
}
"""What to write for a field that is missing."""


class MigrationSource(Part):
    """The store that is read; nothing is ever written into it."""

    claim_name: ObjectName
    """Volume of the store, in the same namespace."""

    path: FolderPath = "store"
    """Folder within it that holds `commitlog`."""


class TargetBroker(Part):
    """A broker that is to be, whose volume is made before it."""

    set: SetRef
    """The BrokerSet, which may not exist yet."""

    group: Annotated[int, Field(ge=0, le=GROUPS_MAX - 1)] = 0
    """Number of its group."""

    replica: Annotated[int, Field(ge=0, le=REPLICAS_MAX - 1)] = 0
    """Number of the broker in it."""


class TargetStorage(Part):
    """What the target's volume is asked for with, when there is none yet."""

    size: Size | None = None
    """Size of the volume; none means as large as the source's."""

    class_name: ClassName | None = None
    """Storage class; none means the cluster's default."""


class MigrationTarget(Part):
    """Where the new store goes: to a broker that is to be, or to a volume of any name."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "has(self.broker) != has(self.claimName)",
                "exactly one volume must be named; give either broker or claimName",
            )
        )
    )

    broker: TargetBroker | None = None
    claim_name: ObjectName | None = None
    """Volume, in the same namespace; made when it is missing."""

    path: FolderPath = "store"
    """Folder within it, which must not exist yet."""

    storage: TargetStorage = TargetStorage()


class MigrationOptions(Part):
    """What is changed on the way."""

    rewrite: bool = False
    """Whether records are rewritten where files could be copied: a pure DLedger log, no gaps."""

    file_size: Size | None = None
    """Size of the log's new files; takes a rewrite."""

    since_milliseconds: Annotated[int, Field(ge=0, le=9_007_199_254_740_991)] | None = None
    """Only messages that were stored at or after this time, in milliseconds since 1970; takes a rewrite."""

    topics: Annotated[
        tuple[BrokerName, ...],
        Field(
            strict=False,
            max_length=TOPICS_MAX,
            json_schema_extra=ruled(
                each_once("a topic is listed twice; list each topic once"), **page("all")
            ),
        ),
    ] = ()
    """Only messages of these topics; none means all. Takes a rewrite."""


class MigrationSpec(Part):
    """What is wanted; it cannot be changed."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "self == oldSelf",
                "cannot be changed: a migration is done once; create another StoreMigration",
            ),
            *JOB_RULES,
            rule(
                "!has(self.target.claimName) || self.target.claimName != self.source.claimName",
                "is the volume of the source, which is never written to; name another volume",
                "target.claimName",
            ),
        )
    )

    source: MigrationSource
    target: MigrationTarget

    mode: Literal["controller", "commitlog", "dledger"] = "controller"
    """Layout of the new store."""

    options: MigrationOptions = MigrationOptions()

    engine: Literal["processes", "spark"] = "processes"
    """What works: processes of one pod, or Spark in it."""

    executors: Executors = Executors()
    """Spark executors in pods of their own, on the same node."""

    image: Image | None = None
    """Image of the job; none means what the operator was installed with."""

    limits: Limits = Limits()


class StoreMigration(Part):
    """Copies one store into another layout, once."""

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["StoreMigration"]
    metadata: JobMetadata
    spec: MigrationSpec
    status: Any = None
    """Written by the operator; not read."""

    @property
    def target_claim(self) -> str:
        """Name of the target's volume."""
        target = self.spec.target
        if target.broker is None:
            assert target.claim_name is not None, "one of both is there"
            return target.claim_name
        return f"data-{target.broker.set.name}-{target.broker.group}-{target.broker.replica}"


def check_store_migration(migration: StoreMigration) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest: contradictions."""
    spec = migration.spec
    return [
        *_target_problems(migration),
        *engine_problems(spec.engine, spec.executors),
        *resources_problems(spec.limits, spec.executors, spec.engine),
    ]


def _target_problems(migration: StoreMigration) -> Iterable[Problem]:
    target = migration.spec.target
    if (target.broker is None) == (target.claim_name is None):
        reason = "names no volume" if target.broker is None else "names a broker and a volume as well"
        yield Problem("spec.target", reason, "give either broker or claimName")
    elif migration.target_claim == migration.spec.source.claim_name:
        advice = "name another volume: a source is never written to"
        yield Problem("spec.target", "is the volume of the source", advice)
    yield from listed_twice("spec.options.topics", migration.spec.options.topics, "list each topic once")


def _complete(rest: dict[str, Any]) -> None:
    put_name(rest)
    spec = rest.get("spec")
    if isinstance(spec, dict):
        source, target = spec.setdefault("source", {}), spec.setdefault("target", {})
        if isinstance(source, dict):
            source.setdefault("claimName", "unnamed")
        if isinstance(target, dict) and not target.keys() & {"broker", "claimName"}:
            target["claimName"] = "unnamed-too"


read_store_migration: Final = ManifestReader(
    model=StoreMigration,
    api_version=API_VERSION,
    kind=KIND,
    outline="metadata: {name: …}, spec: …",
    examples=EXAMPLES,
    check=check_store_migration,
    complete=_complete,
).read
"""Check a manifest; see `ManifestReader.read`."""
