"""What to ask a broker group so that a user is there as wanted, with the wanted policies and no others.

Each group has users of its own. Requests may be repeated, and the order of them takes no right away in
between that the user keeps, nor gives one that the user is not to have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brokerset_acl.access_book import WantedUser
from brokerset_acl.policies import Acl, Entry, PolicyType, Resource
from brokerset_acl.users import User, UserStatus, UserType

CREATED: Final = "UserCreated"
CORRECTED: Final = "UserCorrected"
"""Reasons of Events."""


CLOCKS_APART_MS: Final = 60_000
"""A former password that counts longer by no more than this stays: the broker's clock may be ahead."""


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user as a group shows it."""

    type: UserType | None
    status: UserStatus | None
    password: str | None = field(default=None, repr=False)
    """None where passwords are not shown: while nobody is checked, and to who is no Super user."""

    former_until_ms: int | None = None
    """Until when the former password is accepted; None: it is not."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How long the former password is accepted after a change."""

    seconds: int = 0

    rotated: bool = False
    """Whether the Secret has changed since all groups had its password. If it has not, another password at a
    group is somebody else's, which must not go on being accepted."""

    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreateUser:
    """AUTH_CREATE_USER."""

    user: User


@dataclass(frozen=True, slots=True)
class UpdateUser:
    """AUTH_UPDATE_USER; what is None stays."""

    wanted: WantedUser


@dataclass(frozen=True, slots=True)
class PutPolicies:
    """AUTH_CREATE_ACL: entries replace those about the same resource."""

    acl: Acl


@dataclass(frozen=True, slots=True)
class DropPolicy:
    """AUTH_DELETE_ACL of one resource."""

    subject: str
    kind: PolicyType
    resource: Resource


Request = CreateUser | UpdateUser | PutPolicies | DropPolicy


@dataclass(frozen=True, slots=True)
class Decided:
    """What to ask, in this order, and what to tell people; an empty text: nothing was amiss."""

    requests: tuple[Request, ...]
    event: str = CORRECTED
    text: str = ""


_AT_ONCE: Final = Overlap()


def plan_user(
    wanted: User, acl: Acl, known: KnownUser | None, there: Acl | None, overlap: Overlap = _AT_ONCE
) -> Decided:
    """Compare what is wanted with what a group has."""
    if known is None:
        first: list[Request] = [CreateUser(wanted)]
        put = [PutPolicies(acl)] if not acl.is_empty else []
        return Decided((*first, *put), CREATED, "created")
    kept = _kept_seconds(wanted, known, overlap)
    changed = _differences(wanted, known, kept)
    # Where passwords are not shown, the right one is given again; a group that has it does nothing.
    renew = known.password is None
    update = WantedUser(wanted.username, wanted.password, wanted.type, wanted.status, kept)
    user: list[Request] = [UpdateUser(update)] if changed or renew or _counts_too_long(known, overlap) else []
    policies, said = _policies(acl, there or Acl(acl.subject))
    # Who becomes a Super user needs no policies; who is none any more must not be one with the old rights.
    return Decided((*user, *policies), text=", ".join([*changed, *said]))


def _kept_seconds(wanted: User, known: KnownUser, overlap: Overlap) -> int:
    """How long the password of before the update is to count, or the one that counts already at most."""
    if overlap.rotated or wanted.password == known.password:
        return overlap.seconds
    return overlap.seconds if known.password is None and known.former_until_ms is not None else 0


def _counts_too_long(known: KnownUser, overlap: Overlap) -> bool:
    """Whether the former password counts longer than the manifest says now."""
    until_ms = known.former_until_ms
    return until_ms is not None and until_ms > overlap.now_ms + 1_000 * overlap.seconds + CLOCKS_APART_MS


def _differences(wanted: User, known: KnownUser, kept_seconds: int) -> list[str]:
    """What is another one, in words without a password."""
    found = []
    if known.password is not None and known.password != wanted.password:
        former = f", the former one counts for {kept_seconds} s more" if kept_seconds else ""
        found.append(f"another password{former}")
    if known.type != wanted.type:
        found.append(f"type {wanted.type}, was {known.type}")
    if known.status != wanted.status:
        found.append(f"status {wanted.status}, was {known.status}")
    return found


def _policies(wanted: Acl, there: Acl) -> tuple[list[Request], list[str]]:
    """Denials and narrower rights come with the entries; then what is not wanted goes."""
    known = {entry.resource: entry for entry in there.custom}
    put = tuple(entry for entry in wanted.custom if _sense(entry) != _sense(known.get(entry.resource)))
    kept = {entry.resource for entry in wanted.custom}
    drop = [
        DropPolicy(there.subject, kind, entry.resource)
        for kind in PolicyType
        for entry in there.of(kind)
        if kind is PolicyType.DEFAULT or entry.resource not in kept
    ]
    said = [f"policies about {entry.resource.key}" for entry in put]
    said += [f"no policies about {each.resource.key}" for each in drop]
    return [*([PutPolicies(Acl(wanted.subject, put))] if put else []), *drop], said


def _sense(entry: Entry | None) -> tuple[object, ...] | None:
    """What an entry means: the order of actions and addresses does not matter."""
    if entry is None:
        return None
    return frozenset(entry.actions), entry.decision, frozenset(entry.sources)
