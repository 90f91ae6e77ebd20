"""Users and policies that the controllers have for the whole cluster: this broker's copy, and changes.

The controllers' side, and the rules, are in `brokerset_controller/access/DESIGN.md`. With controllers that
have no users, Java's among them, all of this does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
import structlog

from brokerset_acl.access_book import AccessBook
from brokerset_acl.book_json import book_values, read_book
from brokerset_acl.signatures import ACCESS_KEY
from brokerset_broker.member.membership.controllers import NoAnswer
from brokerset_broker.tables.access import AccessTable
from brokerset_formats.errors import FormatError
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.codec import Header
from brokerset_protocol.headers.controller import (
    AdoptAccess,
    ChangeAccess,
    ChangeAccessResponse,
    GetAccess,
    GetAccessResponse,
)

log = structlog.get_logger(__name__)

ASK_SECONDS: Final = 5.0
"""Time-out of a request: the answer may have several megabytes."""

CHECK_SECONDS: Final = 30.0
"""How often a broker with a copy asks for the version though it has heard no other one."""

PAUSE_SECONDS_MIN: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0
"""Waits while the copy is not the current one double from the first to the second."""

TAKEN_TRIES: Final = 5
"""How often the book is asked for until a change is in it."""

Ask = Callable[[Command, float], Awaitable[Command]]
"""Asks the leading controller. Raises `NoAnswer`."""

_USERS_AND_SUBJECTS: Final = {
    RequestCode.AUTH_CREATE_USER: ("username",),
    RequestCode.AUTH_UPDATE_USER: ("username", "formerPasswordSeconds"),
    RequestCode.AUTH_DELETE_USER: ("username",),
    RequestCode.AUTH_CREATE_ACL: ("subject",),
    RequestCode.AUTH_UPDATE_ACL: ("subject",),
    RequestCode.AUTH_DELETE_ACL: ("subject", "policyType", "resource"),
}
"""Header fields that are passed on, by request; signatures and other fields are not."""


class ClusterAccess:
    """One broker's part; implements `ClusterUsers`."""

    def __init__(
        self,
        *,
        table: AccessTable,
        ask: Ask,
        broker_name: str,
        mastership: Callable[[], tuple[int, int] | None],
    ) -> None:
        """`mastership` gives id and epoch of this broker while it is master, and may serve."""
        self._table = table
        self._ask = ask
        self._broker_name = broker_name
        self._mastership = mastership
        self._heard: int | None = None
        self._news = asyncio.Event()
        self._taking = asyncio.Lock()
        self._problem = ""

    def version_heard(self, version: int) -> None:
        """The leading controller says which version it has."""
        self._heard = version
        if self._lags:
            self._news.set()

    async def run(self) -> None:
        """Follow the controllers' users and policies, for as long as this task runs."""
        pause = PAUSE_SECONDS_MIN
        while True:
            self._news.clear()
            if not self._lags:
                pause = PAUSE_SECONDS_MIN
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    if not self._table.version:
                        continue
            try:
                await self._take()
                self._problem = ""
                if not self._lags:
                    continue
            except (NoAnswer, Rejected) as error:
                self._failed(str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def has_users(self) -> bool:
        """Whether the controllers have users and policies, and this broker the newest. Raises `Rejected`."""
        if self._heard is None and not self._table.version:
            return False
        try:
            return await self._take()
        except NoAnswer as error:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"the controllers have users and policies, and do not answer: {error}; repeat the request",
            ) from error

    async def change(self, command: Command, *, by_super: bool) -> None:
        """Have a change carried out by the controllers, and take it over. Raises `Rejected`."""
        names = _USERS_AND_SUBJECTS[RequestCode(command.code)]
        ext = {name: command.ext[name] for name in names if name in command.ext}
        header = ChangeAccess(by_super=by_super, sent_by=command.ext.get(ACCESS_KEY))
        try:
            answer = await self._ask(
                Command(command.code, {**ext, **header.to_ext()}, command.body), ASK_SECONDS
            )
            if answer.code != ResponseCode.SUCCESS:
                raise Rejected(answer.code, answer.remark or "")
            version = ChangeAccessResponse.from_ext(answer.ext).access_version
            if self._table.version == version:
                return
            for _ in range(TAKEN_TRIES):
                await self._take()
                if self._table.version and self._heard == self._table.version:
                    return  # asked for after the change; versions have no order, as clocks are set back
        except NoAnswer as error:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"whether the controllers have made the change is unknown: {error}; repeat the request",
            ) from error
        raise Rejected(
            ResponseCode.SYSTEM_BUSY, "the controllers have made the change, and this broker has it soon"
        )

    # -- the copy -----------------------------------------------------------------------------------------

    @property
    def _lags(self) -> bool:
        """Whether there is something to be taken over, or to be given."""
        if self._heard is None:
            return False
        if self._heard:
            return self._heard != self._table.version
        book = self._table.book
        return bool(book.users or book.acls) and self._mastership() is not None

    async def _take(self) -> bool:
        """Have what the controllers have; whether they have users and policies at all.

        Raises `NoAnswer`, `Rejected`.
        """
        async with self._taking:
            found = await self._fetch()
            if found is None:
                self._leave()
                return False
            header, body = found
            if not header.adopted and await self._give(header.access_version):
                found = await self._fetch()
                if found is None:
                    return False
                header, body = found
            if header.adopted:
                self._copy(header.access_version, body)
            return True

    async def _fetch(self) -> tuple[GetAccessResponse, bytes] | None:
        """The controllers' answer; None of those that have no users."""
        wanted = GetAccess(broker_name=self._broker_name, known_version=self._table.version)
        answer = await self._asked(RequestCode.BROKERSET_GET_ACCESS, wanted)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise Rejected(answer.code, answer.remark or "")
        return GetAccessResponse.from_ext(answer.ext), answer.body

    async def _give(self, version: int) -> bool:
        """As a master, say what the group has, if that matters; whether it was said.

        A copy of what controllers had before they lost everything is no group's own: where another group has
        given one, users that were deleted since would come back with this one.
        """
        master, book = self._mastership(), self._table.book
        if version and self._table.version:
            book = AccessBook()
        if master is None or not (version or book.users or book.acls):
            return False
        header = AdoptAccess(broker_name=self._broker_name, broker_id=master[0], master_epoch=master[1])
        answer = await self._asked(
            RequestCode.BROKERSET_ADOPT_ACCESS, header, orjson.dumps(book_values(book))
        )
        if answer.code != ResponseCode.SUCCESS:
            raise Rejected(answer.code, answer.remark or "")
        log.info("controllers took over users and policies", users=len(book.users), subjects=len(book.acls))
        return True

    async def _asked(self, code: RequestCode, header: Header, body: bytes = b"") -> Command:
        return await self._ask(Command(code, header.to_ext(), body), ASK_SECONDS)

    def _copy(self, version: int, body: bytes) -> None:
        self._heard = version
        if version == self._table.version:
            return
        try:
            _, book = read_book(body)
        except FormatError as error:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"the controllers' users cannot be read: {error}"
            ) from error
        self._table.take_from_controllers(version, book)
        log.info(
            "users and policies of the controllers taken over",
            version=version,
            users=len(book.users),
            subjects=len(book.acls),
        )

    def _leave(self) -> None:
        self._heard = None
        if self._table.version:
            self._table.leave_controllers()
            log.warning(
                "the controllers have no users and policies any more: those of now are this group's own;"
                " if that is not meant, set authenticationEnabled of all controllers"
            )

    def _failed(self, reason: str) -> None:
        if reason != self._problem:
            log.warning("users and policies of the controllers not taken over", reason=reason)
        self._problem = reason
