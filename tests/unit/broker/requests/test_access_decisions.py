"""Whom a broker serves, and what it counts, when it checks users and policies."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from brokerset_acl.access_book import AccessBook
from brokerset_acl.policies import Acl, Action, Decision, Entry, Resource, ResourceType
from brokerset_acl.signatures import NO_NAME, WRONG_SIGNATURE, Credentials
from brokerset_acl.users import FormerPassword, User, UserStatus, UserType
from brokerset_broker.requests.access_control import UNPROVEN, AccessControl, sign_as_broker
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

SEND = int(RequestCode.SEND_MESSAGE_V2)
APP, BROKER = Credentials("app", "app-key"), Credentials("broker", "of-brokers")
CLIENT, SLAVE = "10.0.0.1", "10.0.0.2"


def control(clock: ManualClock | None = None, **settings: Any) -> AccessControl:
    """`app` may send to `orders` from one address; `broker` is a Super user."""
    book = AccessBook(
        {
            "app": User("app", "app-key", former=FormerPassword("former-key", 1_000)),
            "off": User("off", "off-key", UserType.SUPER, UserStatus.DISABLE),
            "broker": User("broker", "of-brokers", UserType.SUPER),
        },
        {"User:app": Acl("User:app", (_entry("orders"),))},
    )
    whole: dict[str, Any] = {"authentication_enabled": True, "authorization_enabled": True, **settings}
    return AccessControl(BrokerSettings(**whole), book, clock or ManualClock())


def _entry(topic: str) -> Entry:
    return Entry(Resource(ResourceType.TOPIC, topic), (Action.PUB,), Decision.ALLOW, (CLIENT,))


def send(credentials: Credentials | None, topic: str = "orders") -> Command:
    command = Command(SEND, {"b": topic}, b"body")
    if credentials is not None:
        credentials.sign(command)
    return command


def passed_on(command: Command, broker: Credentials) -> Command:
    """As a broker passes on what came from the client's address, signed for the way."""
    command.ext |= {"brokersetForwarded": "1", "brokersetBornHost": f"{CLIENT}:7"}
    sign_as_broker(broker, command)
    return command


def refusal(of: AccessControl, command: Command, source: str = CLIENT) -> str | None:
    """Why a request is refused that comes from an address; None if it is served."""
    connection: Any = SimpleNamespace(peer=(source, 5), state={}, close=lambda: None)

    async def asked() -> str | None:
        try:
            answer = of.around({SEND: lambda _, served: served.reply()})[SEND](connection, command)
        except Rejected as refused:
            return refused.remark if refused.code == ResponseCode.NO_PERMISSION else f"code {refused.code}"
        assert isinstance(answer, Command)
        return answer.remark if answer.code else None

    return asyncio.run(asked())


def test_nobody_is_served_without_the_signature_of_an_enabled_user() -> None:
    """No name, another key, a byte that was altered, a disabled user: each is refused with its reason."""
    altered = send(APP)
    altered.body += b"x"

    assert refusal(control(), send(APP)) is None
    assert refusal(control(), send(None)) == NO_NAME
    assert refusal(control(), send(Credentials("app", "wrong"))) == WRONG_SIGNATURE
    assert refusal(control(), altered) == WRONG_SIGNATURE
    assert refusal(control(), send(Credentials("off", "off-key"))) == "User:off is disabled."


def test_a_signature_alone_gives_no_right() -> None:
    """Another topic, and the right one from another address, are refused by the policies."""
    for command, source in ((send(APP, "other"), CLIENT), (send(APP), SLAVE)):
        reason = refusal(control(), command, source)
        assert reason is not None
        assert reason.startswith("User:app has no permission to access Topic:")


def test_a_former_password_is_refused_when_its_time_is_over() -> None:
    """By the clock of who checks, to the millisecond."""
    clock = ManualClock(999)
    former = Credentials("app", "former-key")
    checking = control(clock)

    assert refusal(checking, send(former)) is None
    clock.advance(1)
    assert refusal(checking, send(former)) == WRONG_SIGNATURE


@pytest.mark.parametrize(
    ("broker", "reason"),
    [
        (BROKER, None),
        (APP, UNPROVEN),
        (Credentials("broker", "wrong"), UNPROVEN),
        (Credentials("off", "off-key"), UNPROVEN),
        (Credentials("nobody", ""), UNPROVEN),
    ],
    ids=["broker", "no Super user", "wrong key", "disabled", "unknown"],
)
def test_only_a_super_user_says_where_a_request_came_from(broker: Credentials, reason: str | None) -> None:
    """`app` may send from the address of the client alone, so whoever is believed lends that address."""
    assert refusal(control(), passed_on(send(APP), broker), SLAVE) == reason


def test_a_broker_that_passes_a_request_on_lends_it_no_rights() -> None:
    """The client's own signature and policies decide."""
    assert refusal(control(), passed_on(send(None), BROKER), SLAVE) == NO_NAME
    reason = refusal(control(), passed_on(send(APP, "other"), BROKER), SLAVE)
    assert reason is not None
    assert "no permission to access Topic:other" in reason


def test_each_refusal_is_counted_by_its_kind() -> None:
    """What is served is not."""
    checking = control()

    for command in (send(APP), send(None), send(APP, "other"), send(APP, "other")):
        refusal(checking, command)

    assert checking.denied == {"authentication": 1, "authorization": 2}


async def test_a_connection_ends_when_it_was_refused_too_often() -> None:
    """Whichever check refused it; what is served does not count."""
    closed: list[bool] = []
    connection: Any = SimpleNamespace(peer=(CLIENT, 5), state={}, close=lambda: closed.append(True))
    handler = control(refusals_max=2).around({SEND: lambda _, served: served.reply()})[SEND]

    for command, ends in (
        (send(APP), False),
        (send(None), False),
        (send(APP), False),
        (send(APP, "o"), True),
    ):
        with suppress(Rejected):
            handler(connection, command)
        await asyncio.sleep(0)
        assert bool(closed) == ends


def test_passwords_are_shown_to_super_users_alone_and_only_where_names_are_checked() -> None:
    """Where nobody is checked everybody would be one."""
    assert control().shows_passwords(send(BROKER))
    assert not control().shows_passwords(send(APP))
    nobody_checks = control(authentication_enabled=False, authorization_enabled=False)
    assert not nobody_checks.shows_passwords(send(BROKER))
