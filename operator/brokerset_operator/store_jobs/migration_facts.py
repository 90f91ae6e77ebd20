"""What the operator sees of one StoreMigration in one round; values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brokerset_operator.model.observed import Meta, Object
from brokerset_spec.problems import Problem
from brokerset_spec.store_migration_manifest import StoreMigration


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMigration:
    """All of it."""

    meta: Meta
    manifest: StoreMigration | None
    """None when it is invalid."""

    problems: tuple[Problem, ...] = ()
    status: Mapping[str, object] = field(default_factory=dict)
    """As it was written in an earlier round."""

    source_claim: Object | None = None
    target_claim: Object | None = None
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By claim: pods that use it and have not ended, without those of this StoreMigration."""

    taken_by: str | None = None
    """Name of a StatefulSet that has, or may make at any time, a broker on the target's volume."""

    jobs: Mapping[str, Object] = field(default_factory=dict)
    """Jobs of this StoreMigration, by name."""

    pods: Mapping[str, Object] = field(default_factory=dict)
    """Pods of these Jobs."""

    other: Mapping[str, Object] = field(default_factory=dict)
    """Further objects of it, by `<kind>/<name>`."""

    image: str
    """Image of jobs when the manifest names none."""

    spark_role: str = ""
    """`ClusterRole/<name>` or `Role/<name>` that drivers get; empty when there may be no executors."""

    now: float
    """Seconds since 1970."""
