"""The status of a User, as the CRD declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_operator.model.verdict import Verdict, status_with

NAME_LENGTH_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Provided:
    """Where a user is, and where its password."""

    secret: str | None = None
    """The Secret with the password."""

    groups: tuple[str, ...] = ()
    """Broker groups that have the user as wanted."""


def status_of(
    live: Mapping[str, Any], name: str, verdict: Verdict, moment: str, provided: Provided
) -> dict[str, Any]:
    """What to write; `moment` is now, as the API writes it."""
    found = {**status_with(live, verdict, moment), "username": name[:NAME_LENGTH_MAX]}
    if provided.secret is not None:
        found["secretName"] = provided.secret
    if provided.groups:
        found["groups"] = list(provided.groups)
    return found
