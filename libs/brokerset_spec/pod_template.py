"""What a manifest may say about its pods: where and with what they run, never with which rights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, JsonValue, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from brokerset_spec.manifest_parts import ObjectName, Part, rule, ruled
from brokerset_spec.problems import LABEL_VALUE_SHAPE, VARIABLE_SHAPE, Problem, shape_problems

PATH: Final = "spec.podTemplate"

LABELS_MAX: Final = 64
"""Most labels, and most annotations, that are added to a pod."""

ENTRIES_MAX: Final = 64
"""Most tolerations, variables, secrets and spread constraints, each."""

QUANTITY_LENGTH_MAX: Final = 32
CPU_OR_MEMORY_SHAPE: Final = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?$"
"""An amount of a resource, as `500m`, `2` or `4Gi`."""

_UNITS: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}

_RIGHTS: Final = "pods run with the least rights that they need, and those cannot be changed"
_PROGRAM: Final = "what a pod runs is decided by brokerset"

FORBIDDEN: Final[Mapping[str, str]] = {
    "spec": "write the fields directly under podTemplate; it is no whole pod",
    "securityContext": _RIGHTS,
    "hostNetwork": _RIGHTS,
    "hostPID": _RIGHTS,
    "hostIPC": _RIGHTS,
    "hostUsers": _RIGHTS,
    "hostAliases": _RIGHTS,
    "serviceAccountName": _RIGHTS,
    "serviceAccount": _RIGHTS,
    "automountServiceAccountToken": _RIGHTS,
    "runtimeClassName": _RIGHTS,
    "nodeName": "use nodeSelector or affinity",
    "containers": _PROGRAM,
    "initContainers": _PROGRAM,
    "ephemeralContainers": _PROGRAM,
    "volumes": _PROGRAM,
    "volumeMounts": _PROGRAM,
    "volumeDevices": _PROGRAM,
    "envFrom": "write each variable under env; secrets are not read from it",
    "command": _PROGRAM,
    "args": _PROGRAM,
    "lifecycle": _PROGRAM,
    "image": "set spec.image instead",
}
"""Fields of a pod that are refused by name, so that nobody thinks that they work, with what to know."""

OWN_KEY_PREFIXES: Final = ("brokerset.io/", "container.apparmor.security.beta.kubernetes.io/")
"""Beginnings of labels and annotations that are not for manifests: ours, and one that weakens security."""

OWN_KEYS: Final = tuple(
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "managed-by")
)
"""Labels that brokerset finds its pods by."""

OWN_VARIABLE_PREFIXES: Final = ("BROKERSET_", "POD_", "KUBERNETES_", "PYTHON", "LD_", "PATH")
"""Beginnings of variables that decide what is run, with which settings, and which API server is asked."""

SYSTEM_PRIORITY_PREFIX: Final = "system-"
"""Kubernetes' own priority classes; such pods push others off their nodes."""


LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_SHAPE, max_length=63)]
"""Value of a label, as Kubernetes allows it."""


def _own_keys(kind: str) -> dict[str, Any]:
    begins = " || ".join(f"k.startsWith('{prefix}')" for prefix in OWN_KEY_PREFIXES)
    keys = ", ".join(f"'{key}'" for key in OWN_KEYS)
    return rule(
        f"!self.exists(k, {begins} || k in [{keys}])",
        f"{kind} that begin with brokerset.io/, those that brokerset finds its pods by, and those that "
        "weaken "
        "security are brokerset's own; leave them out",
    )


class PodMetadata(Part):
    """Labels and annotations that are added to the pods."""

    labels: Annotated[
        Mapping[str, LabelValue],
        Field(max_length=LABELS_MAX, json_schema_extra=ruled(_own_keys("labels"))),
    ] = {}
    """Labels.

    Those that brokerset finds its pods by are refused.
    """

    annotations: Annotated[
        Mapping[str, Annotated[str, Field(max_length=16384)]],
        Field(max_length=LABELS_MAX, json_schema_extra=ruled(_own_keys("annotations"))),
    ] = {}
    """Annotations.

    `brokerset.io/…` is refused, and so is what switches AppArmor off.
    """


def _quantity(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if (
        isinstance(value, str)
        and len(value) <= QUANTITY_LENGTH_MAX
        and re.fullmatch(CPU_OR_MEMORY_SHAPE, value)
    ):
        return value
    raise PydanticCustomError("quantity", "is not an amount")


Quantity = Annotated[
    int | str,
    PlainValidator(_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "pattern": CPU_OR_MEMORY_SHAPE,
            "maxLength": QUANTITY_LENGTH_MAX,
        }
    ),
]
"""An amount of a resource, as Kubernetes writes it."""

AMOUNTS_MAX: Final = 16
"""Most resources that a pod asks for."""

WITHIN_LIMITS: Final = rule(
    "!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || "
    "quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
    "more is asked for than may be used; lower the request, or raise the limit",
    "requests",
)


class Resources(Part):
    """What each pod asks for and may use at most."""

    model_config = ConfigDict(json_schema_extra=ruled(WITHIN_LIMITS))

    requests: Annotated[Mapping[str, Quantity], Field(max_length=AMOUNTS_MAX)] = {}
    """What it asks for, as {cpu: 500m, memory: 1Gi}."""

    limits: Annotated[Mapping[str, Quantity], Field(max_length=AMOUNTS_MAX)] = {}
    """What it may use at most."""


class Toleration(Part):
    """One toleration."""

    key: Annotated[str, Field(max_length=316)] = ""
    """Taint; none means all, with operator Exists."""

    operator: Literal["Exists", "Equal"] = "Equal"
    """Exists or Equal."""

    value: LabelValue = ""
    """Value of the taint, for Equal."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """What the taint does; none means all."""

    toleration_seconds: int | None = None
    """How long a pod stays on the node, for NoExecute.

    None: permanently.
    """


class SecretName(Part):
    """One secret."""

    name: ObjectName
    """Name of the secret."""


def _own_variables() -> dict[str, Any]:
    prefixes = ", ".join(f"'{prefix}'" for prefix in OWN_VARIABLE_PREFIXES)
    return rule(
        f"![{prefixes}].exists(p, self.startsWith(p))",
        f"variables that begin with {', '.join(OWN_VARIABLE_PREFIXES)} are brokerset's own; use "
        "spec.config for "
        "settings, and leave it out here",
    )


class Variable(Part):
    """One variable."""

    name: Annotated[
        str,
        Field(pattern=VARIABLE_SHAPE, max_length=128, json_schema_extra=ruled(_own_variables())),
    ]
    """Name of the variable.

    `BROKERSET_…`, `POD_…`, `KUBERNETES_…`, `PYTHON…`, `LD_…` and `PATH…` are refused: they decide what is
    run, and with what.
    """

    value: Annotated[str, Field(max_length=4096)] = ""
    """Value of the variable.

    It is not read from secrets or ConfigMaps.
    """


class PodTemplate(Part):
    """What is added to the pods of a set."""

    metadata: PodMetadata = PodMetadata()
    resources: Resources = Resources()
    """What a broker's pod asks for and may use at most.

    Controllers: `spec.controllers.resources`.
    """

    affinity: Mapping[str, JsonValue] = {}
    """Which nodes and which neighbours the pods want, as in a pod. Brokers of one group avoid each other's
    nodes and zones also without it."""

    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False, max_length=ENTRIES_MAX)] = ()
    """Taints of nodes that the pods put up with."""

    node_selector: Annotated[Mapping[str, LabelValue], Field(max_length=LABELS_MAX)] = {}
    """Labels that a node must have."""

    priority_class_name: (
        Annotated[
            ObjectName,
            Field(
                json_schema_extra=ruled(
                    rule(
                        f"!self.startsWith('{SYSTEM_PRIORITY_PREFIX}')",
                        "is for parts of Kubernetes itself; use a class of your own",
                    ),
                    nullable=True,
                )
            ),
        ]
        | None
    ) = None
    """Priority class of the pods.

    Classes of the system (`system-…`) are refused.
    """

    topology_spread_constraints: Annotated[
        tuple[Mapping[str, JsonValue], ...], Field(strict=False, max_length=ENTRIES_MAX)
    ] = ()
    """How the pods spread over the cluster. Those given here take the place of brokerset's own.

    Without any, one node has one broker of a group, if possible. Without a `labelSelector`, the pods of the
    same group count.
    """

    image_pull_secrets: Annotated[tuple[SecretName, ...], Field(strict=False, max_length=ENTRIES_MAX)] = ()
    """Secrets to pull the image with."""

    env: Annotated[
        tuple[Variable, ...],
        Field(
            strict=False,
            max_length=ENTRIES_MAX,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = ()
    """Environment variables that are added, as {name: TZ, value: Europe/Berlin}. Settings of brokers belong
    under spec.config."""


def check_pod_template(given: Mapping[str, JsonValue]) -> list[Problem]:
    """Return what is wrong with `spec.podTemplate`."""
    found = [
        Problem(f"{PATH}.{name}", "cannot be set", f"{FORBIDDEN[name]}; leave it out")
        for name in given
        if name in FORBIDDEN
    ]
    rest = {name: value for name, value in given.items() if name not in FORBIDDEN}
    try:
        template = PodTemplate.model_validate(rest)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True)
        return [*found, *shape_problems(details, PodTemplate, {}, PATH)]
    return [*found, *resource_problems(template.resources, f"{PATH}.resources"), *_own_things(template)]


def amount_of(quantity: int | str) -> Decimal:
    """A quantity as a number, to compare it."""
    text = str(quantity)
    digits = text.rstrip("kKmMGTPEi")
    return Decimal(digits) * _UNITS[text[len(digits) :]]


def resource_problems(resources: Resources, path: str) -> Iterable[Problem]:
    """Return what is contradictory in the resources at `path`."""
    for name, asked in resources.requests.items():
        most = resources.limits.get(name)
        if most is not None and amount_of(asked) > amount_of(most):
            reason = f"{asked} are asked for, and at most {most} may be used"
            yield Problem(f"{path}.requests.{name}", reason, "lower it, or raise the limit")


def _own_things(template: PodTemplate) -> Iterable[Problem]:
    for kind, keys in (("labels", template.metadata.labels), ("annotations", template.metadata.annotations)):
        for key in keys:
            if key.startswith(OWN_KEY_PREFIXES) or key in OWN_KEYS:
                yield Problem(f"{PATH}.metadata.{kind}", f"{key} is brokerset's own", "leave it out")
    seen: set[str] = set()
    for variable in template.env:
        if variable.name.startswith(OWN_VARIABLE_PREFIXES):
            reason = f"{variable.name} is brokerset's own"
            yield Problem(f"{PATH}.env", reason, "use spec.config for settings, and leave it out here")
        if variable.name in seen:
            yield Problem(f"{PATH}.env", f"{variable.name} is there twice", "keep one")
        seen.add(variable.name)
    if (template.priority_class_name or "").startswith(SYSTEM_PRIORITY_PREFIX):
        reason = f"{template.priority_class_name} is for parts of Kubernetes itself"
        yield Problem(f"{PATH}.priorityClassName", reason, "use a class of your own")
