"""What the native core knows of who may do what, until users or policies change.

`AccessControl` says of a request that it let through who made it, about what, and from where; the core serves
the next ones like it, and checks each signature (`native/DESIGN.md`, *Signed requests*).
"""

from __future__ import annotations

from typing import Protocol

from brokerset_acl.access_book import AccessBook
from brokerset_acl.users import User


class Signers(Protocol):
    """A class of the native core that checks signatures."""

    def allow(self, name: bytes, password: bytes, *about: bytes) -> None:
        """A user with this password may do what is asked for there; the last of `about` is the address."""

    def forget_signers(self) -> None:
        """Nobody may do anything until `allow` is called again."""


class CoreDecisions:
    """Gives decisions to a class of the core, and takes all of them back when the book has changed."""

    def __init__(self, book: AccessBook | None, signers: Signers) -> None:
        """Without a book nobody is checked there, and nothing has to be taken back."""
        self._book = book
        self._changes = 0 if book is None else book.changes
        self._signers = signers

    def allow(self, user: User, *about: str) -> None:
        """The user, who is enabled, may do what is asked for there, as of now: about a topic, or a group and
        a topic, from an address, which comes last."""
        self.drop_old()
        # A lone surrogate is in no header that the core reads, so such a name must be nobody else's there.
        name, *texts = (text.encode("utf-8", "surrogatepass") for text in (user.username, *about))
        self._signers.allow(name, user.password.encode("utf-8", "replace"), *texts)

    def drop_old(self) -> None:
        """Before each call that serves something."""
        book = self._book
        if book is not None and book.changes != self._changes:
            self._changes = book.changes
            self._signers.forget_signers()
