"""A model as a structural schema of Kubernetes: no references, no titles, texts from the docstrings.

`x-page`, `x-more` and `x-required` are for the page of the fields and are taken out of CRDs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

from brokerset_spec.problems import models_in

Schema = dict[str, Any]

RULES: Final = "x-kubernetes-validations"
ORDER: Final = (
    "description",
    "type",
    "format",
    "nullable",
    "default",
    "enum",
    "minimum",
    "maximum",
    "maxLength",
    "pattern",
    "maxItems",
    "maxProperties",
    "required",
    RULES,
    "properties",
    "items",
    "additionalProperties",
)
DROPPED: Final = ("title", "$ref", "anyOf", "const")
INT32_MAX: Final = 2**31 - 1


def field_texts(declared: type[Any]) -> dict[str, str]:
    """The text under each field of a class and of those that it extends, by Python name."""
    found: dict[str, str] = {}
    for cls in reversed(declared.__mro__):
        if cls.__module__.startswith(("brokerset_", "generate.")):
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
            assert isinstance(tree, ast.ClassDef)
            for before, after in zip(tree.body, tree.body[1:], strict=False):
                if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                    assert isinstance(before.target, ast.Name)
                    assert isinstance(after.value, ast.Constant)
                    found[before.target.id] = inspect.cleandoc(str(after.value.value))
    return found


def schema_of(model: type[BaseModel], *, sparse: bool = False) -> Schema:
    """The schema of a model; a sparse one has no defaults, and nothing in it is null.

    Defaults would be written into stored objects, and what Kubernetes itself reads shall have its own.
    """
    whole = model.model_json_schema(by_alias=True)
    parts = {**whole.pop("$defs", {}), model.__name__: whole}
    for each in dict.fromkeys(_all_models(model)):
        texts = field_texts(each)
        for name, field in each.model_fields.items():
            if name in texts:
                parts[each.__name__]["properties"][field.alias or name]["description"] = texts[name]
    return _structural(parts[model.__name__], parts, sparse)


def _all_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for inner in models_in(field.annotation):
            yield from _all_models(inner)


def _structural(node: Schema, parts: dict[str, Schema], sparse: bool) -> Schema:
    found: Schema = {}
    for other in _meant(node):
        if other.get("type") != "null":
            reference = str(other.get("$ref", "")).rpartition("/")[2]
            inner = parts[reference] if reference else other
            found = _joined(found, _structural(inner, parts, sparse))
        elif not sparse:
            found["nullable"] = True
    own = {key: value for key, value in node.items() if key not in DROPPED}
    if "const" in node:
        own["enum"] = [node["const"]]  # other values may be taken some day
    for key in ("items", "additionalProperties"):
        if key in own:
            own[key] = _structural(own[key], parts, sparse) if isinstance(own[key], dict) else None
    if "properties" in own:
        own["properties"] = {
            name: _structural(each, parts, sparse) | {"x-required": name in own.get("required", ())}
            for name, each in own["properties"].items()
        }
    own["description"], _, own["x-more"] = str(own.get("description", "")).partition("\n\n")
    own = {key: value for key, value in own.items() if value not in (None, "")}
    if own.get("additionalProperties") == {}:
        del own["additionalProperties"]
    found = _joined(found, {key: _on_one_line(value) for key, value in own.items()})
    return _finished(found, sparse)


def _meant(node: Schema) -> list[Schema]:
    if "$ref" in node:
        return [{"$ref": node["$ref"]}]
    return list(node.get("anyOf", ()))


def _joined(one: Schema, other: Schema) -> Schema:
    """What stands at a field wins over what stands at its type; the rules of both hold."""
    rules = [*one.get(RULES, ()), *other.get(RULES, ())]
    return {**one, **other, **({RULES: rules} if rules else {})}


def _on_one_line(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) and "\n" in value else value


def _finished(schema: Schema, sparse: bool) -> Schema:
    if sparse:
        schema.pop("default", None)
    elif "properties" in schema and "default" in schema:
        schema["default"] = {}  # and then each field's own
    if schema.get("type") == "integer" and "format" not in schema:
        bounds = [abs(schema[key]) for key in ("minimum", "maximum") if key in schema]
        schema["format"] = "int64" if not bounds or max(bounds) > INT32_MAX else "int32"
    if schema.get("type") == "array":
        schema.setdefault("x-kubernetes-list-type", "atomic")
    rank = {key: number for number, key in enumerate(ORDER)}
    return dict(sorted(schema.items(), key=lambda item: rank.get(item[0], len(rank))))


def everything(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema, with its path."""
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from everything(item, f"{path}.{name}" if path else name)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from everything(schema[key], f"{path}{mark}")
