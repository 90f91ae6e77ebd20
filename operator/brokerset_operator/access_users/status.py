"""The status of a User, as the CRD declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_operator.model.verdict import Verdict, status_with
from brokerset_operator.plan.objects import part, text, time_text

NAME_LENGTH_MAX: Final = 128

WORKFLOW: Final = "workflow"
SECRET_VERSION: Final = "secretVersion"
"""Where a status remembers the version of the Secret that was applied."""

FORMER_UNTIL: Final = "formerPasswordUntil"


@dataclass(frozen=True, slots=True)
class Provided:
    """Where a user is, and where its password."""

    secret: str | None = None
    """The Secret with the password."""

    groups: tuple[str, ...] = ()
    """Broker groups that have the user as wanted."""

    secret_version: str | None = None
    """Of the Secret with the password."""

    former_until_ms: int | None = None
    """Until when a group accepts the former password, too, in milliseconds since 1970."""


def status_of(
    live: Mapping[str, Any], name: str, verdict: Verdict, moment: str, provided: Provided
) -> dict[str, Any]:
    """What to write; `moment` is now, as the API writes it."""
    found = {**status_with(live, verdict, moment), "username": name[:NAME_LENGTH_MAX]}
    if provided.secret is not None:
        found["secretName"] = provided.secret
    if provided.groups:
        found["groups"] = list(provided.groups)
    if verdict.ready:
        found[WORKFLOW] = {SECRET_VERSION: provided.secret_version}
        if provided.former_until_ms is not None:
            found[FORMER_UNTIL] = time_text(provided.former_until_ms / 1000)
    else:  # not all groups have the password yet
        before = part(live, "status")
        found |= {name: before[name] for name in (WORKFLOW, FORMER_UNTIL) if name in before}
    return found


def applied_version(live: Mapping[str, Any]) -> str | None:
    """The version of the Secret whose password all groups had when the user was ready last."""
    return text(part(part(live, "status"), WORKFLOW).get(SECRET_VERSION))
