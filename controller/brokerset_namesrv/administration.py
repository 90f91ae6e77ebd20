"""Who may register brokers and administer: before the handlers of a name server or a controller.

Both know the Super users of their settings; controllers, and name servers in their processes, those that the
controllers have agreed on, too. A request with an open code is served whoever sends it, for
clients sign with names that only brokers know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from brokerset_acl.access_book import AccessBook, Accounts, configured_users
from brokerset_acl.signatures import (
    ACCESS_KEY,
    NO_NAME,
    SIGNATURE,
    WRONG_SIGNATURE,
    Credentials,
    Sign,
    added_by_old_clients,
    content,
)
from brokerset_acl.users import UserStatus
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.remoting.connection import Reply
from brokerset_runtime.remoting.password_checks import PasswordChecks
from brokerset_runtime.remoting.refusals import RefusalBound
from brokerset_spec.access_settings import AdministrationSettings, first_user_of, inner_credentials_of

log = structlog.get_logger(__name__)

OPEN_AT_NAME_SERVERS: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_KV_CONFIG})
"""What clients ask: where a topic is, and where controllers are."""

ADVICE: Final = "authenticationEnabled asks for a Super user of initAuthenticationUser or of the brokers here"

NOT_SUPER: Final = "is no Super user."

TEXT_MAX: Final = 128
"""Characters of a name that somebody claims, in texts and log lines."""


class Administration:
    """Lets requests pass that are open or signed by a Super user of the settings; without
    `authenticationEnabled` everything."""

    def __init__(
        self,
        settings: AdministrationSettings,
        open_codes: frozenset[RequestCode],
        reserved: Mapping[RequestCode, str] | None = None,
        *,
        checks: PasswordChecks,
        accounts: Accounts | None = None,
    ) -> None:
        """`reserved`: a header field of an open code that counts only if an administrator signs. `accounts`:
        all users; without it those of the settings."""
        self._checks = checks
        self._enabled = settings.authentication_enabled
        self._accounts = accounts or settings_accounts(settings)
        self._open = open_codes
        self._reserved = reserved or {}
        self._throttle = LogThrottle()
        self._bound = RefusalBound(settings.refusals_max)

    def around(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers with the check before them."""
        if not self._enabled:
            return dict(handlers)
        return {code: self._around(RequestCode(code), handler) for code, handler in handlers.items()}

    def _around(self, code: RequestCode, handler: Handler) -> Handler:
        if code not in self._open:
            return self._checked(handler)
        field = self._reserved.get(code)
        return handler if field is None else self._without(field, handler)

    def _without(self, field: str, handler: Handler) -> Handler:
        def drop(connection: Connection, command: Command) -> Reply:
            if field in command.ext and self._problem(connection, command) is not None:
                del command.ext[field]
            return handler(connection, command)

        return drop

    def _checked(self, handler: Handler) -> Handler:
        def check(connection: Connection, command: Command) -> Reply:
            problem = self._problem(connection, command)
            if problem is not None:
                self._log(connection, command, problem)
                self._bound.count(connection)
                raise Rejected(ResponseCode.NO_PERMISSION, f"{problem} {ADVICE}")
            return handler(connection, command)

        return check

    def _problem(self, connection: Connection, command: Command) -> str | None:
        """Why the request is not one of a Super user; None if it is."""
        name = command.ext.get(ACCESS_KEY)
        if not name:
            return NO_NAME
        user = self._accounts.user(name)
        if user is None:
            return f"User:{name[:TEXT_MAX]} is not found."
        if user.status is UserStatus.DISABLE:
            return f"User:{name} is disabled."
        signed = content(command.ext, command.body, added_by_old_clients(command))
        if not self._checks.is_right(user, signed, command.ext.get(SIGNATURE), connection.peer):
            return WRONG_SIGNATURE
        return None if user.is_super else f"User:{name} {NOT_SUPER}"

    def _log(self, connection: Connection, command: Command, problem: str) -> None:
        """With no more lines than a log can bear."""
        suppressed = self._throttle.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning(
                "request denied",
                user=command.ext.get(ACCESS_KEY, "")[:TEXT_MAX],
                peer=connection.peer,
                code=command.code,
                reason=problem,
                suppressed=suppressed,
            )


def settings_accounts(settings: AdministrationSettings, book: AccessBook | None = None) -> Accounts:
    """The users of the settings, and of a book."""
    inner = inner_credentials_of(settings.inner_client_authentication_credentials)
    first = first_user_of(settings.init_authentication_user)
    return Accounts(
        AccessBook() if book is None else book,
        configured_users(first, None if inner is None else Credentials(*inner)),
        None if inner is None else inner[0],
    )


def server_sign(settings: AdministrationSettings) -> Sign | None:
    """Signs what a name server or a controller asks of brokers, as they sign themselves; None without
    `innerClientAuthenticationCredentials`, and where anybody can register, who would get signed requests."""
    if not settings.authentication_enabled:
        return None
    inner = inner_credentials_of(settings.inner_client_authentication_credentials)
    return None if inner is None else Credentials(*inner).sign
