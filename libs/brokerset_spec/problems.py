"""What can be wrong with a manifest: problems with their advice, made from what pydantic complains about."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

SET_NAME_SHAPE: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Name of a set: Services are named after it, and those begin with a letter."""

OBJECT_NAME_SHAPE: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
"""Name of any other object of Kubernetes."""

BROKER_NAME_SHAPE: Final = r"^[%|a-zA-Z0-9_-]{1,127}$"
"""Name of a RocketMQ cluster, broker or topic."""

SUBJECT_SIZE_MAX: Final = 100
"""Characters of a subject's name; a retry topic has it and the name of a group."""

SUBJECT_SHAPE: Final = rf"^[|a-zA-Z0-9_-]{{1,{SUBJECT_SIZE_MAX}}}$"
"""Name of an ordered subject: a topic's without `%`."""

QUANTITY_SHAPE: Final = r"^[1-9][0-9]*([KMGTPE]i|[kMGTPE])?$"
"""Size of a volume."""

IMAGE_SHAPE: Final = r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$"
"""Container image with its registry, tag or digest."""

VARIABLE_SHAPE: Final = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
"""Environment variable."""

LABEL_VALUE_SHAPE: Final = r"^([a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?$"
"""Value of a label."""

SCHEDULE_SHAPE: Final = r"^[^ \t]+( [^ \t]+){4}$"
"""Five fields with one space between; what is in them is checked by who reads them."""

ZONE_SHAPE: Final = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
"""Time zone of the IANA database."""

FOLDER_SHAPE: Final = r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$"
"""A folder within a volume: no part begins with a dot, so nothing leads out of it."""

TABLE_URL_SHAPE: Final = (
    r"^(s3a?|abfss?|gs|hdfs)://([A-Za-z0-9_-]+@)?[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9._=-]+)*/?$"
)
"""Address of a table in an object storage or HDFS: nothing that could be a password or a token is in it."""

SERVICE_URL_SHAPE: Final = r"^[a-z][a-z0-9+.-]*://[A-Za-z0-9._:-]*(/[A-Za-z0-9._~/-]*)?$"
"""Address of a catalog or a registry: no user, no password, nothing that Kubernetes takes for a variable."""

TABLE_NAME_SHAPE: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$"
PLAIN_SHAPE: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"
"""A name in somebody else's system."""

USER_NAME_SHAPE: Final = r"^[A-Za-z0-9][A-Za-z0-9._@%|-]{0,127}$"
"""Name of a RocketMQ user, as far as it needs no quotes anywhere."""

RESOURCE_SHAPE: Final = r"^([*]|(Topic|Group|Cluster):([*]|[%|a-zA-Z0-9_-]{1,255}[*]?))$"
"""What a policy is about, as RocketMQ's ACL 2.0 writes it."""

ENTRY_SHAPE: Final = r"^[-._a-zA-Z0-9]+$"
"""Name of an entry of a Secret."""

_SHAPE_TEXTS: Final = {
    USER_NAME_SHAPE: (
        "is not a user's name",
        "use 1 to 128 letters, digits and . _ @ % | -, starting with a letter or digit",
    ),
    RESOURCE_SHAPE: (
        "is not a resource",
        "write *, or Topic, Group or Cluster with a name, a prefix or all, as Topic:orders, Topic:order-*, "
        "Group:*",
    ),
    ENTRY_SHAPE: ("is not the name of an entry", "use letters, digits, -, _ and ."),
    SERVICE_URL_SHAPE: (
        "is not the address of a service",
        "write it like https://host:8181/path, without user and password; credentials come from a Secret",
    ),
    TABLE_NAME_SHAPE: ("is not the name of a table", "write namespace and name, as lake.messages"),
    PLAIN_SHAPE: ("is not a plain name", "use letters, digits and . _ : / @ + -"),
    SCHEDULE_SHAPE: (
        "is not a schedule",
        "write minute, hour, day of month, month and day of week, as 0 3 * * *",
    ),
    ZONE_SHAPE: ("is not a time zone", "write it like Europe/Berlin or Etc/UTC"),
    FOLDER_SHAPE: ("is not a folder within a volume", "write it like store or brokers/a/store"),
    TABLE_URL_SHAPE: (
        "is not the address of a table",
        "write it like s3://bucket/folder, without password, token or query; credentials come from a Secret",
    ),
    LABEL_VALUE_SHAPE: (
        "is not a label's value",
        "use letters, digits, -, _ and ., starting and ending with a letter or digit",
    ),
    SET_NAME_SHAPE: (
        "is not a name",
        "use lower-case letters, digits and -, starting with a letter and ending with a letter or digit",
    ),
    OBJECT_NAME_SHAPE: (
        "is not a name",
        "use lower-case letters, digits, - and ., starting and ending with a letter or digit",
    ),
    BROKER_NAME_SHAPE: ("is not a name", "use 1 to 127 letters, digits, _, -, % or |"),
    SUBJECT_SHAPE: ("is not a subject's name", f"use 1 to {SUBJECT_SIZE_MAX} letters, digits, _, - or |"),
    QUANTITY_SHAPE: ("is not a size", "write a whole number with a unit, like 20Gi"),
    IMAGE_SHAPE: ("is not an image", "write it like registry.example.com/brokerset:0.1.0"),
    VARIABLE_SHAPE: ("is not a variable's name", "use letters, digits and _, not starting with a digit"),
}

_KINDS_OF_VALUE: Final = {
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "a text",
    "model_type": "an object with fields",
    "dict_type": "an object with fields",
    "mapping_type": "an object with fields",
    "tuple_type": "a list",
}

Location = tuple[int | str, ...]
"""Where something is in a document, as pydantic says it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a manifest."""

    path: str
    """Where, as `spec.replication.mode`; empty for the manifest as a whole."""

    reason: str
    advice: str
    """What to do about it."""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.reason}; {self.advice}"


def listed_twice(path: str, names: Sequence[str], advice: str) -> Iterator[Problem]:
    """A problem for each name that a list has more than once."""
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(path, f"{name} is listed twice", advice)


class ManifestError(ValueError):
    """A manifest cannot be used; has all problems, not just the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def without_nulls(value: Any) -> Any:
    """Return a document without its null fields: they count as left out, as for the Kubernetes API."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def shape_problems(
    details: Sequence[ErrorDetails], model: type[BaseModel], examples: dict[str, str], inside: str = ""
) -> list[Problem]:
    """Return one problem for each place that is not what `model` declares.

    `examples` are texts for fields that are missing; `inside` is the path of what was validated.
    """
    found: dict[str, Problem] = {}
    for detail in details:
        location = detail["loc"]
        path = ".".join(filter(None, (inside, _path(location))))
        # A union reports one error for each member; the first says enough.
        found.setdefault(path, Problem(path, *_reason_and_advice(detail, model, examples)))
    return list(found.values())


def without_faults(document: dict[str, Any], locations: Iterable[Location]) -> dict[str, Any]:
    """Return the document with all ill-shaped fields left out, so that the rest can be checked as well."""
    rest = copy.deepcopy(document)
    for location in locations:
        steps = location[:3] if location[:2] == ("spec", "config") else location
        holder: Any = rest
        for step in steps[:-1]:
            inside = holder.get(step) if isinstance(holder, dict) else None
            if not isinstance(inside, dict):
                break
            holder = inside
        else:
            step = steps[-1]
        if isinstance(holder, dict):
            holder.pop(step, None)
    return rest


def is_covered(path: str, problems: Iterable[Problem]) -> bool:
    """Whether something is already said about `path`, something in it, or something it is in."""
    return any(
        (path + ".").startswith(p.path + ".") or (p.path + ".").startswith(path + ".") for p in problems
    )


def _path(location: Location) -> str:
    parts = [str(part) for part in location]
    if parts[:2] == ["spec", "config"]:
        parts = parts[:3]  # the rest names members of the union of allowed types
    if parts[-1:] in (["constrained-int"], ["literal['auto']"]):
        parts.pop()  # likewise, of `spec.groups`
    return ".".join(parts)


def _reason_and_advice(
    detail: ErrorDetails, model: type[BaseModel], examples: dict[str, str]
) -> tuple[str, str]:
    context = detail.get("ctx") or {}
    kind = detail["type"]
    last = str(detail["loc"][-1]) if detail["loc"] else ""
    match kind:
        case "missing":
            return "is missing", f"add {last}: {examples.get(last, '…')}"
        case "extra_forbidden":
            return "is not a field", _field_advice(detail["loc"], model)
        case "literal_error":
            expected = str(context.get("expected", "allowed"))
            return f"is not {expected}", "use one of these" if " or " in expected else "write exactly that"
        case "string_pattern_mismatch" if context.get("pattern") in _SHAPE_TEXTS:
            return _SHAPE_TEXTS[str(context["pattern"])]
        case "string_too_long":
            return f"is longer than {context.get('max_length')} characters", "choose a shorter one"
        case "greater_than_equal":
            return f"is less than {context.get('ge')}", f"use {context.get('ge')} or more"
        case "less_than_equal":
            return f"is more than {context.get('le')}", f"use {context.get('le')} or less"
        case "quantity":
            return "is not an amount", "write it like 500m, 2 or 4Gi"
        case "too_long":
            return f"has more than {context.get('max_length')} items", "use fewer"
        case _:
            wanted = _KINDS_OF_VALUE.get(kind)
            if detail["loc"][:2] == ("spec", "config") and len(detail["loc"]) > 2:
                wanted = "a text, a number, or true or false"
            return (f"is not {wanted}", f"give {wanted}") if wanted else (detail["msg"], "correct it")


def _field_advice(location: Location, model: type[BaseModel]) -> str:
    from difflib import get_close_matches

    holder: type[BaseModel] = model
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        by_alias = {field.alias or name: field for name, field in holder.model_fields.items()}
        inner = next(models_in(by_alias[part].annotation), None)
        if inner is None:
            return "leave it out"
        holder = inner
    known = {
        (field.alias or name).lower(): field.alias or name for name, field in holder.model_fields.items()
    }
    near = get_close_matches(str(location[-1]).replace("_", "").lower(), known, n=1, cutoff=0.7)
    return (
        f"did you mean {known[near[0]]}?" if near else f"leave it out; there are {', '.join(known.values())}"
    )


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a type is made of: itself, members of a union, items of a tuple."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for member in get_args(annotation):
        yield from models_in(member)
