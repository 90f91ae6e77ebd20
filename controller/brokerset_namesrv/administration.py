"""Who may do what at a name server or a controller: before the handlers.

Both know the Super users of their settings; controllers, and name servers that hear controllers, know the
users and policies that the controllers have agreed on, too. A request with an open code is served whoever
sends it, since Java's clients sign for brokers only. `brokerset_acl.server_rules` says what requests need.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from brokerset_acl.access_book import AccessBook, Accounts, configured_users
from brokerset_acl.deciding import refusal
from brokerset_acl.needs import Rule, check_number
from brokerset_acl.server_rules import ServerRules, needs_at_server
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
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.remoting.connection import Reply
from brokerset_runtime.remoting.password_checks import PasswordChecks
from brokerset_runtime.remoting.refusals import RefusalBound
from brokerset_spec.access_settings import AdministrationSettings, first_user_of, inner_credentials_of

log = structlog.get_logger(__name__)

CHECKS: Final = ("authentication", "authorization")
"""What a request is refused by, as brokers count it."""

AUTHENTICATION, AUTHORIZATION = CHECKS

ADVICE: Final = "authenticationEnabled asks for a Super user of initAuthenticationUser or of the brokers here"

ADVICE_ON_RIGHTS: Final = "`brokerset acl allow` gives rights; `brokerset acl list` shows them"

NOT_SUPER: Final = "is no Super user."

TEXT_MAX: Final = 128
"""Characters of a name that somebody claims, in texts and log lines."""

Clusters = Callable[[], Collection[str]]
"""Names of the clusters whose broker groups a server has."""

Behind = Callable[[], Rejected | None]
"""What a server answers that may not have the newest users and policies, so that another one is asked."""


class Administration:
    """Lets requests pass that are open, or signed by a user who may send them: a Super user, or with
    `authorizationEnabled` whom the policies allow it. Without `authenticationEnabled` everything.

    Where somebody comes from is the address of the connection: no request is passed on to these servers.
    """

    def __init__(
        self,
        settings: AdministrationSettings,
        rules: ServerRules,
        *,
        checks: PasswordChecks,
        clusters: Clusters,
        accounts: Accounts | None = None,
        behind: Behind = lambda: None,
        denied: Counter[str] | None = None,
    ) -> None:
        """`accounts`: all users; without it those of the settings. `behind` is asked before a client that
        has signed is refused. `denied` counts refusals, by `authentication` and `authorization`."""
        self._checks = checks
        self._enabled = settings.authentication_enabled
        self._authorizes = settings.authorization_enabled
        self._accounts = accounts or settings_accounts(settings)
        self._rules = rules
        self._clusters = clusters
        self._behind = behind
        self._open = rules.open_to_all(authorizes=self._authorizes)
        self._denied = Counter[str]() if denied is None else denied
        self._throttle = LogThrottle()
        self._bound = RefusalBound(settings.refusals_max)

    def around(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers with the check before them."""
        if not self._enabled:
            return dict(handlers)
        return {code: self._around(code, handler) for code, handler in handlers.items()}

    def _around(self, code: int, handler: Handler) -> Handler:
        reserved = self._rules.reserved.get(code)
        if reserved is not None:
            handler = self._without(*reserved, handler)
        return handler if code in self._open else self._checked(handler)

    def _without(self, name: str, rule: Rule, handler: Handler) -> Handler:
        """A field of who may not set it is dropped."""

        def drop(connection: Connection, command: Command) -> Reply:
            if name in command.ext and self._problem(connection, command, {command.code: rule}) is not None:
                del command.ext[name]
            return handler(connection, command)

        return drop

    def _checked(self, handler: Handler) -> Handler:
        def check(connection: Connection, command: Command) -> Reply:
            problem = self._problem(connection, command, self._rules.rules)
            if problem is not None:
                raise self._refused(problem, connection, command)
            return handler(connection, command)

        return check

    def _problem(
        self, connection: Connection, command: Command, rules: Mapping[int, Rule]
    ) -> tuple[str, str] | None:
        """Which check the request does not pass, and why; None if it may be served. Raises `Rejected` for a
        body that cannot be read."""
        name = command.ext.get(ACCESS_KEY)
        if not name:
            return AUTHENTICATION, NO_NAME
        user = self._accounts.user(name)
        if user is None:
            return AUTHENTICATION, f"User:{name[:TEXT_MAX]} is not found."
        if user.status is UserStatus.DISABLE:
            return AUTHENTICATION, f"User:{name} is disabled."
        signed = content(command.ext, command.body, added_by_old_clients(command))
        if not self._checks.is_right(user, signed, command.ext.get(SIGNATURE), connection.peer):
            return AUTHENTICATION, WRONG_SIGNATURE
        if user.is_super:
            return None
        if not self._authorizes:
            return AUTHENTICATION, f"User:{name} {NOT_SUPER}"
        needs = needs_at_server(command, rules, self._clusters)
        check_number(needs)
        text = refusal(user, self._accounts.acl(name), needs, connection.peer[0])
        return None if text is None else (AUTHORIZATION, text)

    def _refused(self, problem: tuple[str, str], connection: Connection, command: Command) -> Rejected:
        """Count and log a refusal, with no more lines than a log can bear."""
        kind, reason = problem
        if command.code in self._rules.of_clients and reason != NO_NAME:
            behind = self._behind()
            if behind is not None:
                return behind
        self._denied[kind] += 1
        self._bound.count(connection)
        suppressed = self._throttle.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning(
                "request denied",
                kind=kind,
                user=command.ext.get(ACCESS_KEY, "")[:TEXT_MAX],
                peer=connection.peer,
                code=command.code,
                reason=reason,
                suppressed=suppressed,
            )
        advice = ADVICE_ON_RIGHTS if self._authorizes else ADVICE
        return Rejected(ResponseCode.NO_PERMISSION, f"{reason} {advice}")


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
