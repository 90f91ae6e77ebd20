"""Users and policies of the broker group, or the broker's copy of those of the controllers; and their file.

File `config/brokersetAccess.json`, for the broker's own user only, since passwords are in it:
`{"users":{"name":{…}},"acls":{"User:name":{…}}}`, with a `"version"` if they are the controllers'. Java keeps
two RocksDBs that no slave gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import orjson

from brokerset_acl.access_book import AccessBook
from brokerset_acl.book_json import book_values, read_book
from brokerset_acl.policies import Acl
from brokerset_acl.users import User
from brokerset_broker.tables.config_files import ConfigFile

FILE_NAME: Final = "brokersetAccess.json"

FILE_MODE: Final = 0o600

SAVE_PAUSE_SECONDS: Final = 1.0

Users = Mapping[str, User | None]
"""By name; None where one is deleted."""

Acls = Mapping[str, Acl | None]
"""By subject; None where nothing is said any more."""


class AccessTable:
    """All users and policies; `book` is to be read, and always the same object."""

    def __init__(self, folder: Path | None = None) -> None:
        """Without the folder of the configuration they are kept in memory alone."""
        self.book = AccessBook()
        self.version = 0
        """The controllers' version of the book; 0: these are the group's own."""

        self._of_group = AccessBook()
        """While the book is the controllers': the same, with what the group's log has said since."""

        self._file = None if folder is None else ConfigFile(folder / FILE_NAME, self._encoder, mode=FILE_MODE)

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Raises `ConfigDamaged`."""
        found = None if self._file is None else self._file.load(read_book)
        if found is not None:
            self.version = found[0]
            self.book.become(found[1])
            self._of_group.become(found[1])

    async def saved(self) -> None:
        """Return when every change so far is on the disk. Raises OSError."""
        if self._file is not None:
            await self._file.saved()

    async def run(self) -> None:
        """Write changes down, for as long as this task runs."""
        if self._file is not None:
            await self._file.run(SAVE_PAUSE_SECONDS)

    # -- changes ------------------------------------------------------------------------------------------

    def put(self, users: Users, acls: Acls) -> None:
        """Take what was decided in the group; it does not count while the controllers have users."""
        if self.version:
            self._of_group.put(users, acls)
            return
        self.book.put(users, acls)
        self._touch()

    def take_over(self, book: AccessBook) -> None:
        """Have exactly these of the group; they do not count while the controllers have users."""
        if self.version:
            self._of_group.become(book)
        elif self.book != book:
            self.book.become(book)
            self._touch()

    def take_from_controllers(self, version: int, book: AccessBook) -> None:
        """Have exactly these of the controllers."""
        if self.book != book:
            self.book.become(book)
        self._of_group.become(book)
        self.version = version
        self._touch()

    def leave_controllers(self) -> None:
        """The controllers have no users any more: what is here, and what the group's log has said since, is
        the group's own."""
        if self.version:
            self.version = 0
            if self.book != self._of_group:
                self.book.become(self._of_group)
            self._touch()

    def _touch(self) -> None:
        if self._file is not None:
            self._file.touch()

    def _encoder(self) -> Callable[[], bytes]:
        book = self.book.copy()
        version = self.version
        return lambda: orjson.dumps(book_values(book, version), option=orjson.OPT_INDENT_2)
