"""Reading a manifest of any kind: its shape, then what is wrong with the rest, all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from brokerset_spec.problems import (
    Location,
    ManifestError,
    Problem,
    is_covered,
    shape_problems,
    without_faults,
    without_nulls,
)

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReader(Generic[M]):
    """How manifests of one kind are read."""

    model: type[M]
    api_version: str
    kind: str
    outline: str
    """What a manifest of this kind is made of, behind its `apiVersion` and `kind`."""

    examples: dict[str, str]
    """What to write for a field that is missing."""

    check: Callable[[M], list[Problem]]
    """What is wrong with a well-shaped manifest."""

    complete: Callable[[dict[str, Any]], None]
    """Puts what a manifest cannot be without into one from which ill-shaped fields were taken out."""

    def read(self, document: object) -> M:
        """Check a manifest that was read from YAML, JSON or the Kubernetes API; raises `ManifestError`.

        A field that is null counts as left out, as it does for the Kubernetes API.
        """
        if not isinstance(document, dict):
            example = f"write apiVersion: {self.api_version}, kind: {self.kind}, {self.outline}"
            raise ManifestError([Problem("", f"is not a {self.kind} manifest", example)])
        given: dict[str, Any] = without_nulls(document)
        try:
            manifest = self.model.model_validate(given)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=True)
            found = shape_problems(details, self.model, self.examples)
            rest = self._without_faults(given, [detail["loc"] for detail in details])
            if rest is not None:
                found += [each for each in self.check(rest) if not is_covered(each.path, found)]
            raise ManifestError(found) from None
        if problems := self.check(manifest):
            raise ManifestError(problems)
        return manifest

    def _without_faults(self, document: dict[str, Any], locations: Sequence[Location]) -> M | None:
        """What is left of the manifest without its ill-shaped fields, if that is a manifest."""
        rest = without_faults(document, locations)
        rest.update(apiVersion=self.api_version, kind=self.kind)
        self.complete(rest)
        try:
            return self.model.model_validate(rest)
        except ValidationError:
            return None


def put_name(document: dict[str, Any]) -> None:
    """Give a manifest a name, whatever it was called: its own problems are reported already."""
    document["metadata"] = {"name": "unnamed"}


def put_name_and_set(document: dict[str, Any]) -> None:
    """For kinds that may be called like what they are about: a name only if there is none; and a set."""
    metadata = document.get("metadata")
    if not (isinstance(metadata, dict) and "name" in metadata):
        put_name(document)
    refer_to_set(document)


def refer_to_set(document: dict[str, Any]) -> None:
    """Let `spec.brokerSetRef` of a manifest name a set if it names none."""
    spec = document.setdefault("spec", {})
    if isinstance(spec, dict) and not (isinstance(spec.get("brokerSetRef"), dict) and spec["brokerSetRef"]):
        spec["brokerSetRef"] = {"name": "unnamed"}
