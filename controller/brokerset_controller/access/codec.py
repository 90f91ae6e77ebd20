"""Events of users and policies, and all of them in a snapshot, as JSON in the manner of the other codecs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import orjson

from brokerset_acl.access_book import AccessBook, acls_of, users_of
from brokerset_acl.policies import Acl
from brokerset_acl.users import User
from brokerset_controller import strict_json as read
from brokerset_controller.access.events import AccessEvent, BookAdopted, BookChanged
from brokerset_controller.access.machine import AccessMachine

ACCESS_VERSION: Final = 5
"""The format of the controllers' log that has users and policies first."""

FORMER_VERSION: Final = 6
"""The format that has former passwords of users first, and the newest one. An entry or a snapshot without any
has the format of before."""

_T = TypeVar("_T")


def encode_event(event: AccessEvent) -> bytes:
    """The bytes of one log entry."""
    first = event.base_version if isinstance(event, BookChanged) else event.broker_group
    book = _book_values(event.users, event.acls)
    return orjson.dumps([version_of(event.users), type(event).__name__, first, event.at_ms, *book])


def has_former(users: Mapping[str, User | None]) -> bool:
    """Whether one of the users has a former password, which may have expired."""
    return any(user is not None and user.former is not None for user in users.values())


def version_of(users: Mapping[str, User | None]) -> int:
    """The format that has all of these users."""
    return FORMER_VERSION if has_former(users) else ACCESS_VERSION


def event_of(values: list[object]) -> AccessEvent | None:
    """The event that stands behind the version of an entry; None if it is about something else.

    Raises `ValueError` that says what is wrong with it.
    """
    if not values or values[0] not in (BookChanged.__name__, BookAdopted.__name__):
        return None
    first, at_ms, users, acls = read.parts(values[1:], str(values[0]), 4)
    found = {"users": users, "acls": acls}
    if values[0] == BookChanged.__name__:
        return BookChanged(read.count(first), read.count(at_ms), users_of(found), acls_of(found))
    return BookAdopted(read.text(first), read.count(at_ms), _there(users_of(found)), _there(acls_of(found)))


def machine_values(machine: AccessMachine) -> list[object]:
    """Everything in a snapshot; the same for the same state."""
    return [machine.version, sorted(machine.adopted), *_book_values(machine.book.users, machine.book.acls)]


def restore(machine: AccessMachine, value: object | None) -> None:
    """Read what `machine_values` made; None: of a snapshot that has none. Raises `ValueError`."""
    if value is None:
        machine.restore(0, (), AccessBook())
        return
    version, adopted, users, acls = read.parts(value, "users and policies", 4)
    found = {"users": users, "acls": acls}
    book = AccessBook(_there(users_of(found)), _there(acls_of(found)))
    machine.restore(read.count(version), read.texts(adopted), book)


def _book_values(users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> list[object]:
    return [
        {name: None if user is None else user.to_json() for name, user in sorted(users.items())},
        {subject: None if acl is None else acl.to_json() for subject, acl in sorted(acls.items())},
    ]


def _there(items: Mapping[str, _T | None]) -> dict[str, _T]:
    found = {name: item for name, item in items.items() if item is not None}
    if len(found) < len(items):
        raise ValueError("a user or a policy is null where all must be there")
    return found
