"""Signed sends that share a chunk: who may send what from where, as was decided before the handlers.

The native core does the same in Rust (`native/src/signatures.rs`). A signature is checked each time; a
decision about policies is kept until users or policies change.
"""

from __future__ import annotations

from typing import Final

from brokerset_acl.access_book import AccessBook
from brokerset_acl.signatures import ACCESS_KEY, SIGNATURE, added_by_old_clients, content, is_signed_by
from brokerset_acl.users import User
from brokerset_broker.requests.request_classes import is_forwarded
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection

ALLOWED_MAX: Final = 20_000
"""Decisions that are kept; the table is emptied when it is full."""


class SignedSends:
    """Who may send to which topics, by user, topic and address."""

    def __init__(self, book: AccessBook) -> None:
        self._book = book
        self._changes = book.changes
        self._allowed: dict[tuple[str, str, str], str] = {}
        """To the password of the user."""

    def allow(self, user: User, topic: str, source: str) -> None:
        """The user, who is enabled, may send to a topic from an address, as of now."""
        self._drop_what_is_old()
        if len(self._allowed) >= ALLOWED_MAX:
            self._allowed.clear()
        self._allowed[user.username, topic, source] = user.password

    def admits(self, connection: Connection, command: Command) -> bool:
        """Whether a send is signed by somebody who may send it. Others are for the handlers, which refuse,
        count and log."""
        self._drop_what_is_old()
        ext = command.ext
        password = self._allowed.get((ext.get(ACCESS_KEY, ""), ext.get("b", ""), connection.peer[0]))
        if password is None or is_forwarded(ext):
            return False
        signed = content(ext, command.body, added_by_old_clients(command))
        return is_signed_by(password, signed, ext.get(SIGNATURE))

    def _drop_what_is_old(self) -> None:
        if self._changes != self._book.changes:
            self._changes = self._book.changes
            self._allowed.clear()
