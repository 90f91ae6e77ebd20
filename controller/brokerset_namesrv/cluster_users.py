"""Users and policies of the controllers, at a name server by itself (`controllerAddr`).

It asks the leading controller for them (BROKERSET_GET_ACCESS, 21008), as brokers do, with the version that
it has, and keeps them in a file for its own user alone, since passwords are in it. It goes by what it has
while no controller answers. The rules are in `brokerset_controller/access/DESIGN.md`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import orjson
import structlog

from brokerset_acl.access_book import AccessBook
from brokerset_acl.book_json import book_values, read_book
from brokerset_acl.signatures import Sign
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_formats.errors import FormatError
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import GetAccess, GetAccessResponse
from brokerset_runtime.files import write_atomically
from brokerset_runtime.tls import Tls

log = structlog.get_logger(__name__)

FILE_NAME: Final = "brokersetAccess.json"

FILE_MODE: Final = 0o600

POLL_SECONDS: Final = 1.0
"""How often the controllers are asked for another version."""

PAUSE_SECONDS_MAX: Final = 5.0
"""Waits while no controller answers double up to this."""

NOT_FOR_NAME_SERVERS: Final = (
    "the controllers are of a version that gives users to brokers alone: upgrade them"
)


class ClusterUsers:
    """The copy of one name server; `book` is to be read, and always the same object."""

    def __init__(self, controllers: str, folder: Path, *, tls: Tls | None, sign: Sign | None) -> None:
        self.book = AccessBook()
        self.version = 0
        """The controllers' version of the book; 0: there is none."""

        self._path = folder / FILE_NAME
        self._controllers = ControllerAdmin(controllers, tls=tls, sign=sign)
        self._problem = ""

    def load(self) -> None:
        """Read the file, which may not be there. What cannot be read is left out, as the controllers have it
        all. Blocks."""
        try:
            version, book = read_book(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, FormatError) as error:
            log.warning(
                "copy of users cannot be read; Super users of the settings count until controllers answer",
                path=str(self._path),
                reason=str(error),
            )
            return
        self.version = version
        self.book.become(book)

    async def run(self) -> None:
        """Follow the controllers, for as long as this task runs."""
        pause = POLL_SECONDS
        while True:
            try:
                await self._take()
            except (ClientError, Rejected, FormatError, OSError) as error:
                self._failed(str(error))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            else:
                self._problem = ""
                pause = POLL_SECONDS
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the connections to the controllers."""
        await self._controllers.close()

    async def _take(self) -> None:
        """Have what the controllers have."""
        wanted = GetAccess(broker_name="", known_version=self.version)
        try:
            answer = await self._controllers.ask_leader(RequestCode.BROKERSET_GET_ACCESS, wanted)
        except RequestRefused as refused:
            if refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self.version:
                await self._have(0, AccessBook())
            raise
        header = GetAccessResponse.from_ext(answer.ext)
        if not header.adopted:
            self._failed(NOT_FOR_NAME_SERVERS)
        elif header.access_version != self.version:
            _, book = read_book(answer.body) if answer.body else (0, AccessBook())
            await self._have(header.access_version, book)

    async def _have(self, version: int, book: AccessBook) -> None:
        """They count at once; a copy that cannot be written is written with the next change, or start."""
        self.version = version
        self.book.become(book)
        log.info(
            "users and policies of the controllers taken over",
            version=version,
            users=len(book.users),
            subjects=len(book.acls),
        )
        data = orjson.dumps(book_values(book, version), option=orjson.OPT_INDENT_2)
        await asyncio.to_thread(self._write, data)

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, data, mode=FILE_MODE)

    def _failed(self, reason: str) -> None:
        if reason != self._problem:
            log.warning("users and policies of the controllers not taken over", reason=reason)
        self._problem = reason
