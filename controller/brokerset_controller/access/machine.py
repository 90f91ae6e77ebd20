"""The users and policies of the cluster, changed by committed events only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from brokerset_acl.access_book import AccessBook
from brokerset_acl.policies import Acl
from brokerset_acl.users import USERS_MAX, User, subject_of, user_of
from brokerset_controller.access.events import AccessEvent, BookAdopted
from brokerset_controller.replicas.events import Superseded
from brokerset_controller.replicas.state import GROUPS_MAX

BOOK_BYTES_MAX: Final = 6 << 20
"""Bytes of all users and policies as JSON: they fit into one entry of the log, and into one answer."""


@dataclass(frozen=True, slots=True)
class AccessApplied:
    """An event took effect."""

    version: int
    """Of the book after it."""

    left_out: tuple[str, ...] = ()
    """Names and subjects of a group that the book has otherwise."""


AccessOutcome = AccessApplied | Superseded


class AccessMachine:
    """Part of the engine's `StateMachine`; `book` is to be read, and always the same object."""

    def __init__(self) -> None:
        self.book = AccessBook()
        self.version = 0
        """Another one after each change; 0 before the first."""

        self.adopted: frozenset[str] = frozenset()
        """Broker groups whose own users were taken over."""

        self.book_bytes = 0
        """Size of the book as JSON."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever agreed on."""
        return not self.version and not self.adopted

    def apply(self, event: AccessEvent) -> AccessOutcome:
        """Apply one committed event."""
        if isinstance(event, BookAdopted):
            return self._adopt(event)
        if event.base_version != self.version:
            return Superseded("other users or policies were changed meanwhile")
        self._put(event.users, event.acls, event.at_ms)
        return AccessApplied(self.version)

    def size_after(self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> int:
        """Bytes of the book after a change."""
        users, acls = self._all_of(users, acls)
        before = sum(size_of(self.book.users.get(name)) for name in users)
        before += sum(size_of(self.book.acls.get(subject)) for subject in acls)
        return self.book_bytes - before + sum(map(size_of, users.values())) + sum(map(size_of, acls.values()))

    def restore(self, version: int, adopted: Iterable[str], book: AccessBook) -> None:
        """Replace everything by what a snapshot has."""
        self.version, self.adopted = version, frozenset(adopted)
        self.book.become(book)
        self.book_bytes = sum(map(size_of, book.users.values())) + sum(map(size_of, book.acls.values()))

    def _adopt(self, event: BookAdopted) -> AccessOutcome:
        if event.broker_group in self.adopted:
            return AccessApplied(self.version)
        if len(self.adopted) >= GROUPS_MAX:
            return Superseded(f"users of {GROUPS_MAX} broker groups were taken over already")
        known = self.book
        users = {name: user for name, user in event.users.items() if name not in known.users}
        acls = {
            subject: acl
            for subject, acl in event.acls.items()
            if subject not in known.acls and (user_of(subject) or "") not in known.users
        }
        if len(known.users) + len(users) > USERS_MAX or self.size_after(users, acls) > BOOK_BYTES_MAX:
            return Superseded(
                f"with those of {event.broker_group} there would be more than {USERS_MAX} users, or more than"
                f" {BOOK_BYTES_MAX} bytes of users and policies; delete some first"
            )
        left_out = [name for name, user in event.users.items() if known.users.get(name, user) != user]
        left_out += [
            subject
            for subject, acl in event.acls.items()
            if subject not in acls and known.acls.get(subject) != acl
        ]
        self.adopted |= {event.broker_group}
        if users or acls:
            self._put(users, acls, event.at_ms)
        return AccessApplied(self.version, tuple(sorted(left_out)))

    def _put(self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None], at_ms: int) -> None:
        self.book_bytes = self.size_after(users, acls)
        self.book.put(users, acls)
        self.version = max(self.version + 1, at_ms)

    def _all_of(
        self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None]
    ) -> tuple[Mapping[str, User | None], Mapping[str, Acl | None]]:
        """With the policies that go with who is deleted."""
        gone: dict[str, Acl | None] = {subject_of(name): None for name, user in users.items() if user is None}
        return users, {**gone, **acls}


def size_of(item: User | Acl | None) -> int:
    """Bytes of one user, or of what is said about one subject, with some for its name."""
    if item is None:
        return 0
    return len(orjson.dumps(item.to_json())) + len(orjson.dumps(_name(item))) + 2


def _name(item: User | Acl) -> str:
    return item.username if isinstance(item, User) else item.subject
