"""Whether somebody may do what a request needs. Java's rules, but for ties, where Java lets an allowance win.

Source: RocketMQ's `UserAuthorizationHandler`, `AclAuthorizationHandler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokerset_acl.policies import Acl, Action, Decision, Entry, Pattern, Resource, ResourceType, comes_from
from brokerset_acl.users import User, subject_of

NO_MATCH: Final = "no matched policies."
DENIED: Final = "the decision is deny."
_ONLY_SUPER: Final = "only a super user may."


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs: any one of the actions on the resource."""

    resource: Resource
    actions: tuple[Action, ...]
    super_only: bool = False
    """Whether no policy is enough."""


def refusal(user: User, acl: Acl | None, needs: Sequence[Need], source: str) -> str | None:
    """Why the user may not do what needs all of `needs`, as a text for the user; None if it is allowed.

    `source` is the address that the request comes from.
    """
    if user.is_super:
        return None
    for need in needs:
        detail = _ONLY_SUPER if need.super_only else _denial(acl, need, source)
        if detail is not None:
            subject, resource = subject_of(user.username), need.resource.key
            return f"{subject} has no permission to access {resource} from {source}, {detail}"
    return None


def _denial(acl: Acl | None, need: Need, source: str) -> str | None:
    entry = None if acl is None else deciding_entry(acl, need, source)
    if entry is None:
        return NO_MATCH
    return DENIED if entry.decision is Decision.DENY else None


def deciding_entry(acl: Acl, need: Need, source: str) -> Entry | None:
    """The entry that decides: the most specific of the custom ones that match, else of the default ones."""
    for entries in acl.about(need.resource):
        found = [entry for entry in entries if _matches(entry, need, source)]
        if found:
            return min(found, key=_precedence)
    return None


def _matches(entry: Entry, need: Need, source: str) -> bool:
    return (
        entry.resource.covers(need.resource)
        and (Action.ALL in entry.actions or any(action in entry.actions for action in need.actions))
        and comes_from(source, entry.sources)
    )


def _precedence(entry: Entry) -> tuple[bool, int, int, bool]:
    """Smaller decides: a type before `*`, a whole name, the longest prefix, all names; at last Deny."""
    resource = entry.resource
    ranks = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}
    prefix = len(resource.name or "") if resource.pattern is Pattern.PREFIXED else 0
    is_any = resource.type is ResourceType.ANY
    return is_any, ranks[resource.pattern], -prefix, entry.decision is Decision.ALLOW
