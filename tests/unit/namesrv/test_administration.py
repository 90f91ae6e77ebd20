"""What a name server or a controller signs, for whom, and who administers it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from brokerset_acl.access_book import AccessBook
from brokerset_acl.server_rules import NAMESRV_RULES
from brokerset_acl.signatures import ACCESS_KEY, WRONG_SIGNATURE, Credentials
from brokerset_acl.users import User, UserStatus, UserType
from brokerset_namesrv.administration import ADVICE, Administration, server_sign, settings_accounts
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.remoting.password_checks import PasswordChecks
from brokerset_spec.namesrv_settings import NamesrvSettings

INNER = '{"accessKey":"broker","secretKey":"of-brokers"}'


def test_a_server_that_checks_nobody_signs_nothing() -> None:
    """Anybody could register with it, and would get requests that brokers take for their own."""
    assert server_sign(NamesrvSettings(inner_client_authentication_credentials=INNER)) is None


def test_a_server_that_checks_signs_as_brokers_do() -> None:
    """With the credentials that they have all."""
    settings = NamesrvSettings(authentication_enabled=True, inner_client_authentication_credentials=INNER)
    sign = server_sign(settings)
    assert sign is not None
    command = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)

    sign(command)

    assert command.ext[ACCESS_KEY] == "broker"


def test_super_users_of_a_book_administer_and_no_others() -> None:
    """Next to those of the settings; who is deleted or disabled there administers nothing any more."""
    book = AccessBook()
    settings = NamesrvSettings(authentication_enabled=True, inner_client_authentication_credentials=INNER)
    accounts = settings_accounts(settings, book)
    checks = PasswordChecks(ManualClock())
    administration = Administration(settings, NAMESRV_RULES, checks=checks, clusters=set, accounts=accounts)
    handler = administration.around({RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _done})[206]

    for user, problem in (
        (User("eve", "key", UserType.SUPER), None),
        (User("eve", "other", UserType.SUPER), WRONG_SIGNATURE),
        (User("eve", "key", UserType.SUPER, UserStatus.DISABLE), "User:eve is disabled."),
        (User("eve", "key"), "User:eve is no Super user."),
        (None, "User:eve is not found."),
    ):
        book.put({"eve": user}, {})
        assert _problem(handler, Credentials("eve", "key")) == problem
        assert _problem(handler, Credentials("broker", "of-brokers")) is None


def _done(connection: Connection, command: Command) -> Command:
    return command.reply()


def _problem(handler: Handler, credentials: Credentials) -> str | None:
    """Why a signed request is refused."""
    command = Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    credentials.sign(command)

    async def asked() -> str | None:
        try:
            handler(cast(Connection, SimpleNamespace(peer=("h", 1), state={})), command)
        except Rejected as refused:
            return (refused.remark or "").removesuffix(f" {ADVICE}")
        return None

    return asyncio.run(asked())
