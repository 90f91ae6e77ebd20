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

SPARK_MEMORY_MIN: Final = 1 << 30
"""Least bytes of a pod with Spark in it: Java's heap takes 512 MiB, its Python processes as much."""


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


class Executors(JobPart):
    """Spark executors in pods of their own, beside the one that drives them."""

    instances: Annotated[int, Field(ge=0, le=EXECUTORS_MAX)] = 0
    """How many; 0: none."""

    resources: Resources = Resources()
    """What each asks for and may use at most: cpu and memory; by default 1 and 1536Mi."""


def engine_problems(engine: str, executors: Executors) -> Iterable[Problem]:
    """Say what is wrong with an engine and its executors together."""
    if executors.instances and engine != "spark":
        reason = f"asks for {executors.instances} executors, and {engine} has none"
        yield Problem("spec.executors", reason, "set engine to spark, or leave executors out")


def resources_problems(limits: Limits, executors: Executors, engine: str) -> Iterable[Problem]:
    """Say what of the resources of a job's pods cannot be had, or is too little."""
    driver, path = limits.resources, "spec.limits.resources"
    yield from _more_than_allowed(driver, path)
    memory = driver.limits.get("memory")
    if engine == "spark" and memory is not None and amount_of(memory) < SPARK_MEMORY_MIN:
        yield Problem(f"{path}.limits.memory", *_too_little(memory))
    given, path = executors.resources, "spec.executors.resources"
    yield from _more_than_allowed(given, path)
    for part, amounts in (("requests", given.requests), ("limits", given.limits)):
        for name in sorted(set(amounts) - {"cpu", "memory"}):
            advice = "leave it out: executors take cpu and memory"
            yield Problem(f"{path}.{part}.{name}", "is nothing that Spark asks for", advice)
        memory = amounts.get("memory")
        if memory is not None and amount_of(memory) < SPARK_MEMORY_MIN:
            yield Problem(f"{path}.{part}.memory", *_too_little(memory))
    asked, most = given.requests.get("memory"), given.limits.get("memory")
    if asked is not None and most is not None and amount_of(asked) < amount_of(most):
        reason = f"asks for {asked}, and {most} may be used; Spark makes both the same"
        yield Problem(f"{path}.requests.memory", reason, "give one of them, or the same twice")


def _too_little(memory: int | str) -> tuple[str, str]:
    return f"{memory} is too little for Java and Python together", "give 1Gi or more"


def _more_than_allowed(resources: Resources, path: str) -> Iterable[Problem]:
    for name, asked in resources.requests.items():
        most = resources.limits.get(name)
        if most is not None and amount_of(asked) > amount_of(most):
            reason = f"{asked} are asked for, and at most {most} may be used"
            yield Problem(f"{path}.requests.{name}", reason, "lower it, or raise the limit")


def bytes_of(quantity: str | None) -> int | None:
    """Return a size in bytes; None for none."""
    match = re.fullmatch(r"(\d+)(?:([kKMGTPE])(i?))?", quantity or "")
    if match is None:
        return None
    power = "KMGTPE".find((match[2] or "").upper()) + 1 if match[2] else 0
    unit: int = (1024 if match[3] else 1000) ** power
    return int(match[1]) * unit
