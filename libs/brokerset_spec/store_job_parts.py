"""What the manifests of jobs on store files have in common: engine, limits, paths within volumes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from brokerset_spec.manifest import NAME_LENGTH_MAX, SIZE_LENGTH_MAX
from brokerset_spec.pod_template import Resources, amount_of
from brokerset_spec.problems import (
    FOLDER_SHAPE,
    OBJECT_NAME_SHAPE,
    QUANTITY_SHAPE,
    SET_NAME_SHAPE,
    Problem,
)

JOB_NAME_LENGTH_MAX: Final = 30
"""Longest name of an object that makes Jobs: a Job's name has a run and a replica as well, within 63."""

OBJECT_NAME_LENGTH_MAX: Final = 253

EXECUTORS_MAX: Final = 64
"""Most Spark executors of one job."""

PATH_LENGTH_MAX: Final = 200


class JobPart(BaseModel):
    """Strict, and with Kubernetes' spelling."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, hide_input_in_errors=True
    )


class JobMetadata(BaseModel):
    """The part that all Kubernetes objects share; what is not used here is let through."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    name: Annotated[str, Field(pattern=SET_NAME_SHAPE, max_length=JOB_NAME_LENGTH_MAX)]
    """Name of the object; its Jobs are named after it."""


class SetRef(JobPart):
    """A BrokerSet in the same namespace."""

    name: Annotated[str, Field(pattern=SET_NAME_SHAPE, max_length=NAME_LENGTH_MAX)]
    """Name of the set."""


ClaimName = Annotated[str, Field(pattern=OBJECT_NAME_SHAPE, max_length=OBJECT_NAME_LENGTH_MAX)]
"""Name of a PersistentVolumeClaim in the same namespace."""

FolderPath = Annotated[str, Field(pattern=FOLDER_SHAPE, max_length=PATH_LENGTH_MAX)]

Size = Annotated[str, Field(pattern=QUANTITY_SHAPE, max_length=SIZE_LENGTH_MAX)]

DeadlineSeconds = Annotated[int, Field(ge=60, le=2_592_000)]


class Limits(JobPart):
    """What a job may take."""

    max_bytes_per_second: Size | None = None
    """Reads no faster than this from each volume; none means as fast as the disk."""

    deadline_seconds: DeadlineSeconds = 21_600
    """A run that takes longer is ended, and has failed."""

    resources: Resources = Resources()
    """What each pod asks for and may use at most."""


def engine_problems(engine: str, executors: int) -> Iterable[Problem]:
    """Say what is wrong with an engine and its executors together."""
    if executors and engine != "spark":
        reason = f"asks for {executors} executors, and {engine} has none"
        yield Problem("spec.executors", reason, "set engine to spark, or leave executors out")


def limits_problems(limits: Limits) -> Iterable[Problem]:
    """Say what is asked for though it may not be used."""
    for name, asked in limits.resources.requests.items():
        most = limits.resources.limits.get(name)
        if most is not None and amount_of(asked) > amount_of(most):
            reason = f"{asked} are asked for, and at most {most} may be used"
            path = f"spec.limits.resources.requests.{name}"
            yield Problem(path, reason, "lower it, or raise the limit")


def bytes_of(quantity: str | None) -> int | None:
    """Return a size in bytes; None for none."""
    match = re.fullmatch(r"(\d+)(?:([kKMGTPE])(i?))?", quantity or "")
    if match is None:
        return None
    power = "KMGTPE".find((match[2] or "").upper()) + 1 if match[2] else 0
    unit: int = (1024 if match[3] else 1000) ** power
    return int(match[1]) * unit
