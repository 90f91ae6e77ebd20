"""What manifests of all kinds are made of: the base of their parts, common types, rules for the API server.

A model is the one declaration of its kind. `make generate` turns it into the CRD and the page of its fields:
docstrings become descriptions, the rules here `x-kubernetes-validations`. A docstring's first paragraph is
what `kubectl explain` shows; the rest is for the page.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from brokerset_spec.problems import (
    BROKER_NAME_SHAPE,
    IMAGE_SHAPE,
    OBJECT_NAME_SHAPE,
    QUANTITY_SHAPE,
    SET_NAME_SHAPE,
)

API_VERSION: Final = "brokerset.io/v1alpha1"

GROUPS_MAX: Final = 256
"""Most broker groups of one set."""

NAME_LENGTH_MAX: Final = 40
"""Longest name of a set; pods, services and brokers are named after it, and Kubernetes allows 63."""

OBJECT_NAME_LENGTH_MAX: Final = 253
"""Longest name of any other object of Kubernetes."""


class Part(BaseModel):
    """Strict, frozen, and with Kubernetes' spelling."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, hide_input_in_errors=True
    )


class NamedPart(BaseModel):
    """Base of what is read of an object's metadata; what is not used here is let through."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


def rule(cel: str, message: str, field: str = "", expression: str = "") -> dict[str, Any]:
    """A rule that the API server applies; `field` is below the part that the rule stands at.

    `expression` makes the message where it can say more than a constant one.
    """
    found = {"rule": cel, "message": message}
    if expression:
        found["messageExpression"] = expression
    if field:
        found["fieldPath"] = f".{field}"
    return {**found, "reason": "FieldValueForbidden"}


def ruled(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The rules of a field or a part, as `json_schema_extra`; `more` are other keywords of its schema."""
    return {"x-kubernetes-validations": list(rules), **more}


def each_once(message: str) -> dict[str, Any]:
    """No item of the list is there twice."""
    return rule("self.all(n, self.indexOf(n) == self.lastIndexOf(n))", message)


def same_or_absent(name: str, message: str) -> dict[str, Any]:
    """The field neither comes, nor goes, nor changes."""
    cel = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || !has(oldSelf.{name}) || "
    return rule(f"{cel}self.{name} == oldSelf.{name})", message, name)


def page(default: str = "", values: str = "") -> dict[str, Any]:
    """What the page of the fields says where the schema alone would say too little."""
    return {"x-page": {"default": default, "values": values}}


NEVER_SHRINKS: Final = rule(
    "quantity(self).compareTo(quantity(oldSelf)) >= 0",
    "volumes never shrink; use at least the size that there is",
    expression="'volumes never shrink; use ' + oldSelf + ' or more'",
)

SetName = Annotated[str, Field(pattern=SET_NAME_SHAPE, max_length=NAME_LENGTH_MAX)]
ObjectName = Annotated[str, Field(pattern=OBJECT_NAME_SHAPE, max_length=OBJECT_NAME_LENGTH_MAX)]
BrokerName = Annotated[str, Field(pattern=BROKER_NAME_SHAPE, max_length=127)]
Size = Annotated[str, Field(pattern=QUANTITY_SHAPE, max_length=32)]
Image = Annotated[str, Field(pattern=IMAGE_SHAPE, max_length=512)]
ClassName = Annotated[str, Field(max_length=OBJECT_NAME_LENGTH_MAX)]

GroupNames = Annotated[
    tuple[BrokerName, ...],
    Field(
        strict=False,
        max_length=GROUPS_MAX,
        json_schema_extra=ruled(each_once("a group is listed twice; list each group once"), **page("all")),
    ),
]
"""Some of a set's broker groups."""
