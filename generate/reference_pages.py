"""The lists of all fields in `docs/*-reference.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from generate.crds import Kind, schema_of_kind
from generate.lists import item
from generate.marked import replaced
from generate.schemas import Schema, everything

from brokerset_spec import external_access, problems
from brokerset_spec.pod_template import CPU_OR_MEMORY_SHAPE, FORBIDDEN

SHAPES: Final = {
    problems.SET_NAME_SHAPE: "lower-case letters, digits, `-`",
    problems.OBJECT_NAME_SHAPE: "lower-case letters, digits, `-`, `.`",
    problems.BROKER_NAME_SHAPE: "1 to 127 letters, digits, `_`, `-`, `%`, `|`",
    problems.SUBJECT_SHAPE: f"1 to {problems.SUBJECT_SIZE_MAX} letters, digits, `_`, `-`, `|`",
    problems.QUANTITY_SHAPE: "whole number with `k`, `M`, `G`, `T`, `P`, `E` or `Ki`, `Mi`, …",
    problems.IMAGE_SHAPE: "image",
    problems.VARIABLE_SHAPE: "name of a variable",
    problems.LABEL_VALUE_SHAPE: "value of a label",
    problems.SCHEDULE_SHAPE: "five fields, as `0 3 * * *`",
    problems.ZONE_SHAPE: "as `Europe/Berlin`",
    problems.FOLDER_SHAPE: "folder within the volume",
    problems.TABLE_URL_SHAPE: "as `s3://bucket/folder`",
    problems.SERVICE_URL_SHAPE: "as `https://host:8181`",
    problems.TABLE_NAME_SHAPE: "as `lake.messages`",
    problems.PLAIN_SHAPE: "name",
    problems.USER_NAME_SHAPE: "1 to 128 letters, digits, `.`, `_`, `@`, `%`, `|`, `-`",
    problems.RESOURCE_SHAPE: "as `Topic:orders`, `Topic:order-*`, `Group:*`, `*`",
    problems.ENTRY_SHAPE: "letters, digits, `-`, `_`, `.`",
    external_access.HOST_SHAPE: "DNS name, IP",
    CPU_OR_MEMORY_SHAPE: "amount, as `500m`, `2` or `4Gi`",
}
"""What fits each pattern, for people."""

ELSEWHERE: Final = (
    "spec.config.",
    "spec.podTemplate.affinity.",
    "spec.podTemplate.topologySpreadConstraints[].",
    "status.conditions[].",
    "status.history[].",
    *(f"spec.podTemplate.{name}" for name in FORBIDDEN),
)
"""Settings have a page of their own; what is inside affinity and the like is Kubernetes' own."""


def renewed(kind: Kind, text: str) -> str:
    """The page of a kind with lists that are up to date."""
    wanted: list[str] = []
    pods: list[str] = []
    there: list[str] = []
    for path, field in _fields(schema_of_kind(kind)):
        if path.startswith("status."):
            there.append(item(path, "", _meaning(field)))
        else:
            said = item(path, "; ".join([_values(field), *_default(field)]), _meaning(field))
            (pods if path.startswith("spec.podTemplate.") else wanted).append(said)
    text = replaced(text, "what is wanted", "\n".join(wanted))
    if pods:
        text = replaced(text, "pods", "\n".join(pods))
    return replaced(text, "what is", "\n".join(there))


def _fields(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """What people write or read, with its path: values, and what is said of what holds them."""
    for path, field in everything(schema):
        is_field = path.startswith(("spec.", "status.")) and not path.endswith(("[]", "{}"))
        says = "properties" not in field or "x-more" in field or path.endswith(("affinity", "spec.config"))
        if is_field and says and not path.startswith(ELSEWHERE):
            yield path, field


def _page(field: Schema, key: str) -> str:
    return str(field.get("x-page", {}).get(key, ""))


def _default(field: Schema) -> list[str]:
    text = _default_value(field)
    return [f"default {text}"] if text else ["required"]


def _default_value(field: Schema) -> str:
    if field.get("x-required"):
        return ""
    if shown := _page(field, "default"):
        return shown
    default: Any = field.get("default")
    match default:
        case None | [] | {}:
            return "none"
        case "":
            return "empty"
        case bool():
            return f"`{str(default).lower()}`"
        case str():
            return f"`{default}`"
        case _:
            return str(default)


def _values(field: Schema) -> str:
    if shown := _page(field, "values"):
        return shown
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "pattern" in field:
        return SHAPES[field["pattern"]]
    match field.get("type"):
        case "boolean":
            return "`true`, `false`"
        case "integer" if "maximum" in field:
            return f"{field['minimum']} to {field['maximum']}"
        case "integer":
            return f"{field['minimum']} or more" if "minimum" in field else "number"
        case "array":
            items = _values(field["items"]) if field["items"].get("type") != "object" else "see below"
            return f"list: {items}"
        case "object":
            inner = field.get("additionalProperties")
            return f"map: {_values(inner)}" if isinstance(inner, dict) else "map"
        case "string":
            return "text"
    return SHAPES[CPU_OR_MEMORY_SHAPE]


def _meaning(field: Schema) -> str:
    texts = (str(field.get(key, "")) for key in ("description", "x-more"))
    return " ".join(text for text in texts if text).replace("<", "&lt;")
