"""What the manifests of jobs have in common: schedule, engine, limits, paths within volumes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from brokerset_spec.manifest_parts import Image, NamedPart, Part, SetName, Size, rule, ruled
from brokerset_spec.pod_template import (
    AMOUNTS_MAX,
    WITHIN_LIMITS,
    Quantity,
    Resources,
    amount_of,
    resource_problems,
)
from brokerset_spec.problems import FOLDER_SHAPE, SCHEDULE_SHAPE, SET_NAME_SHAPE, ZONE_SHAPE, Problem

JOB_NAME_LENGTH_MAX: Final = 30
"""Longest name of an object that makes Jobs: a Job's name has a run and a replica as well, within 63."""

EXECUTORS_MAX: Final = 64
"""Most Spark executors of one job."""

PATH_LENGTH_MAX: Final = 200

SPARK_MEMORY_MIN: Final = 1 << 30
"""Least bytes of a pod with Spark in it: Java's heap takes 512 MiB, its Python processes as much."""


_TOO_LITTLE: Final = "the memory is too little for Java and Python together; give 1Gi or more"


class JobMetadata(NamedPart):
    """The part that all Kubernetes objects share."""

    name: Annotated[str, Field(pattern=SET_NAME_SHAPE, max_length=JOB_NAME_LENGTH_MAX)]
    """Name of the object; its Jobs are named after it."""


class SetRef(Part):
    """A BrokerSet in the same namespace."""

    name: SetName
    """Name of the set."""


FolderPath = Annotated[str, Field(pattern=FOLDER_SHAPE, max_length=PATH_LENGTH_MAX)]

DeadlineSeconds = Annotated[int, Field(ge=60, le=2_592_000)]


class RunLimits(Part):
    """What a job may take."""

    deadline_seconds: DeadlineSeconds = 21_600
    """A run that takes longer is ended, and has failed."""

    resources: Resources = Resources()
    """What each pod asks for and may use at most."""


class Limits(RunLimits):
    """What a job on volumes may take."""

    max_bytes_per_second: Size | None = None
    """Reads no faster than this from each volume; none means as fast as the disk."""


class ScheduledSpec(Part):
    """What is wanted of a kind that has runs for a BrokerSet."""

    broker_set_ref: SetRef
    """The set, in the same namespace."""

    schedule: Annotated[str, Field(pattern=SCHEDULE_SHAPE, max_length=128)] | None = None
    """When, as in cron: minute, hour, day of month, month, day of week; none: only when it is asked for."""

    time_zone: Annotated[str, Field(pattern=ZONE_SHAPE, max_length=64)] = "Etc/UTC"
    """Time zone of the schedule, by its name in the IANA database."""

    suspend: bool = False
    """Whether the schedule rests."""

    successful_runs_history_limit: Annotated[int, Field(ge=0, le=20)] = 3
    """Runs without errors that are remembered, besides the last."""

    failed_runs_history_limit: Annotated[int, Field(ge=0, le=20)] = 3
    """Other runs that are remembered, besides the last."""

    image: Image | None = None
    """Image of the jobs; none means what the operator was installed with."""


def _executor_amounts() -> dict[str, Any]:
    return ruled(
        rule(
            "self.all(k, k == 'cpu' || k == 'memory')",
            "executors take cpu and memory; leave everything else out",
        ),
        rule(
            "!('memory' in self) || quantity(string(self['memory'])).compareTo(quantity('1Gi')) >= 0",
            _TOO_LITTLE,
        ),
    )


class ExecutorResources(Resources):
    """What each asks for and may use at most: cpu and memory; by default 1 and 1536Mi."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            WITHIN_LIMITS,
            rule(
                "!has(self.requests) || !has(self.limits) || !('memory' in self.requests) || !('memory' in "
                "self.limits) || quantity(string(self.requests['memory'])).compareTo("
                "quantity(string(self.limits['memory']))) >= 0",
                "less memory is asked for than may be used, and Spark makes both the same; give one of "
                "them, or "
                "the same twice",
                "requests",
            ),
        )
    )

    requests: Annotated[
        Mapping[str, Quantity], Field(max_length=AMOUNTS_MAX, json_schema_extra=_executor_amounts())
    ] = {}
    """What it asks for, as {cpu: 500m, memory: 2Gi}."""

    limits: Annotated[
        Mapping[str, Quantity], Field(max_length=AMOUNTS_MAX, json_schema_extra=_executor_amounts())
    ] = {}
    """What it may use at most."""


class Executors(Part):
    """Spark executors in pods of their own, next to the one that drives them."""

    instances: Annotated[int, Field(ge=0, le=EXECUTORS_MAX)] = 0
    """How many; 0: none."""

    resources: ExecutorResources = ExecutorResources()


DRIVER_MEMORY_RULE: Final = rule(
    "!has(self.limits) || !has(self.limits.resources) || !has(self.limits.resources.limits) || "
    "!('memory' in self.limits.resources.limits) || "
    "quantity(string(self.limits.resources.limits['memory'])).compareTo(quantity('1Gi')) >= 0",
    _TOO_LITTLE,
    "limits.resources.limits",
)
"""Of a kind whose jobs always have Spark in them."""

JOB_RULES: Final = (
    rule(
        "!has(self.executors) || !has(self.executors.instances) || self.executors.instances == 0 || "
        "(has(self.engine) && self.engine == 'spark')",
        "only Spark has executors; set engine to spark, or leave executors out",
        "executors",
    ),
    rule(
        "!has(self.engine) || self.engine != 'spark' || !has(self.limits) || !has(self.limits.resources) || "
        "!has(self.limits.resources.limits) || !('memory' in self.limits.resources.limits) || "
        "quantity(string(self.limits.resources.limits['memory'])).compareTo(quantity('1Gi')) >= 0",
        _TOO_LITTLE,
        "limits.resources.limits",
    ),
)
"""What of an engine, its executors and its memory does not go together."""


def engine_problems(engine: str, executors: Executors) -> Iterable[Problem]:
    """Say what is wrong with an engine and its executors together."""
    if executors.instances and engine != "spark":
        reason = f"asks for {executors.instances} executors, and {engine} has none"
        yield Problem("spec.executors", reason, "set engine to spark, or leave executors out")


def resources_problems(limits: RunLimits, executors: Executors, engine: str) -> Iterable[Problem]:
    """Say what of the resources of a job's pods cannot be had, or is too little."""
    driver, path = limits.resources, "spec.limits.resources"
    yield from resource_problems(driver, path)
    memory = driver.limits.get("memory")
    if engine == "spark" and memory is not None and amount_of(memory) < SPARK_MEMORY_MIN:
        yield Problem(f"{path}.limits.memory", *_too_little(memory))
    given, path = executors.resources, "spec.executors.resources"
    yield from resource_problems(given, path)
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


def bytes_of(quantity: str | None) -> int | None:
    """Return a size in bytes; None for none."""
    match = re.fullmatch(r"(\d+)(?:([kKMGTPE])(i?))?", quantity or "")
    if match is None:
        return None
    power = "KMGTPE".find((match[2] or "").upper()) + 1 if match[2] else 0
    unit: int = (1024 if match[3] else 1000) ** power
    return int(match[1]) * unit
