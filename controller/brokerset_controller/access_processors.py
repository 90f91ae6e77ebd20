"""Requests about users and policies from the wire to the service, and back (access/DESIGN.md)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
import structlog

from brokerset_acl.access_book import acls_of, users_of
from brokerset_acl.book_json import book_values
from brokerset_acl.signatures import ACCESS_KEY
from brokerset_controller.access.machine import BOOK_BYTES_MAX
from brokerset_controller.access_service import AccessService
from brokerset_controller.request_limits import SHOWN_MAX, refuse
from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import (
    AdoptAccess,
    ChangeAccess,
    ChangeAccessResponse,
    GetAccess,
    GetAccessResponse,
)
from brokerset_runtime.remoting import Connection

log = structlog.get_logger(__name__)

Answering = Callable[[Connection, Command], Coroutine[Any, Any, Command]]


class AccessProcessors:
    """The handlers. Who may ask is checked before them: for what brokers ask, Super users alone."""

    def __init__(self, service: AccessService) -> None:
        self._service = service

    def handlers(self) -> dict[RequestCode, Answering]:
        """The handler of each request code."""
        code = RequestCode
        return {
            code.AUTH_CREATE_USER: self.change,
            code.AUTH_UPDATE_USER: self.change,
            code.AUTH_DELETE_USER: self.change,
            code.AUTH_GET_USER: self.read,
            code.AUTH_LIST_USER: self.read,
            code.AUTH_CREATE_ACL: self.change,
            code.AUTH_UPDATE_ACL: self.change,
            code.AUTH_DELETE_ACL: self.change,
            code.AUTH_GET_ACL: self.read,
            code.AUTH_LIST_ACL: self.read,
            code.BROKERSET_GET_ACCESS: self.all,
            code.BROKERSET_ADOPT_ACCESS: self.adopt,
        }

    # -- administrators -----------------------------------------------------------------------------------

    async def change(self, connection: Connection, command: Command) -> Command:
        """As a broker does, for the whole cluster; only while controllers check who administers.

        What a broker says of who asked it counts because brokers sign as a Super user.
        """
        self._service.check_enabled()
        is_super = self._service.is_super(command)
        header = ChangeAccess.from_ext(command.ext) if is_super else ChangeAccess(by_super=False)
        version, change = await self._service.change(
            command, by_super=header.by_super is not False, repeated=is_super and header.by_super is not None
        )
        if change is not None:
            log.info(
                "users or policies changed",
                request=RequestCode(command.code).name,
                users=sorted(change.users),
                subjects=sorted(change.acls),
                by=(header.sent_by or command.ext.get(ACCESS_KEY, ""))[:SHOWN_MAX],
                peer=connection.peer,
                version=version,
            )
        answer = ChangeAccessResponse(access_version=version).to_ext()
        return command.reply(ext=answer | self._service.former_until(command))

    async def read(self, connection: Connection, command: Command) -> Command:
        """As a broker does."""
        self._service.check_enabled()
        await self._service.current()
        return self._service.answer_read(command)

    # -- brokers ------------------------------------------------------------------------------------------

    async def all(self, connection: Connection, command: Command) -> Command:
        """A broker asks for all users and policies of the cluster, or a name server, which has no group."""
        self._service.check_enabled()
        header = GetAccess.from_ext(command.ext)
        version = await self._service.current()
        adopted = not header.broker_name or self._service.is_adopted(header.broker_name)
        book = self._service.accounts.book
        body = b""
        if adopted and version != header.known_version:
            body = orjson.dumps(book_values(book))
        return command.reply(
            ext=GetAccessResponse(access_version=version, adopted=adopted).to_ext(), body=body
        )

    async def adopt(self, connection: Connection, command: Command) -> Command:
        """A master says which users and policies its group has, once."""
        self._service.check_enabled()
        header = AdoptAccess.from_ext(command.ext)
        if len(command.body) > BOOK_BYTES_MAX:
            raise refuse(
                f"{len(command.body)} bytes of users and policies; BOOK_BYTES_MAX is {BOOK_BYTES_MAX}"
            )
        try:
            found = fields.parse_object(command.body)
            users = {name: user for name, user in users_of(found).items() if user is not None}
            acls = {subject: acl for subject, acl in acls_of(found).items() if acl is not None}
        except FormatError as error:
            raise refuse(f"users and policies cannot be read: {error}") from None
        left_out = await self._service.adopt(header, users, acls)
        log.info(
            "users of a broker group taken over",
            broker=header.broker_name,
            users=len(users),
            subjects=len(acls),
            left_out=left_out,
            peer=connection.peer,
        )
        return command.reply()
