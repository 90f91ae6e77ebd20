"""Of which sends access control says that their like may be let through without another decision, and which
refusals count against the connection that they came by."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from brokerset_acl.access_book import AccessBook
from brokerset_acl.needs import RULES
from brokerset_acl.signatures import Credentials
from brokerset_acl.users import User, UserType
from brokerset_broker.requests.access_control import AccessControl, sign_as_broker
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

ROOT = Credentials("root", "root-key")
SEND, BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)


def remembered(command: Command, **settings: Any) -> list[tuple[str, str, str]]:
    """User, topic and address that are remembered of a request, which may be refused."""
    book = AccessBook({"root": User("root", "root-key", UserType.SUPER)})
    whole = BrokerSettings(authentication_enabled=True, authorization_enabled=True, **settings)
    control = AccessControl(whole, book, ManualClock())
    found: list[tuple[str, str, str]] = []
    control.on_send = lambda user, topic, source: found.append((user.username, topic, source))
    connection: Any = SimpleNamespace(peer=("10.0.0.1", 5), state={})
    control.around({command.code: lambda *_: None})[command.code](connection, command)
    return found


def signed(code: int, **ext: str) -> Command:
    command = Command(code, ext, b"body")
    ROOT.sign(command)
    return command


@pytest.mark.parametrize("code", [SEND, BATCH])
def test_a_send_that_is_let_through_is_remembered(code: int) -> None:
    """By user, topic and address."""
    assert remembered(signed(code, b="t")) == [("root", "t", "10.0.0.1")]


def test_what_is_doubtful_is_not_remembered() -> None:
    """Retry topics, sends without a topic, and requests of other kinds, which need more."""
    assert remembered(signed(SEND, b="%RETRY%g")) == []
    assert remembered(signed(SEND)) == []
    assert remembered(signed(RequestCode.SEND_MESSAGE, topic="t", b="t")) == []
    assert remembered(signed(RequestCode.PULL_MESSAGE, topic="t", b="t")) == []


def test_a_send_that_a_broker_passed_on_is_not_remembered() -> None:
    """Its address is not that of the connection."""
    command = signed(SEND, b="t")
    command.ext |= {"brokersetForwarded": "1", "brokersetBornHost": "10.0.0.9:7"}
    sign_as_broker(ROOT, command)

    assert remembered(command) == []


@pytest.mark.parametrize("setting", ["authentication_whitelist", "authorization_whitelist"])
@pytest.mark.parametrize("code", [SEND, BATCH])
def test_nothing_is_remembered_where_one_kind_of_send_is_not_checked(setting: str, code: int) -> None:
    """What lets one kind through would let the other through, too."""
    assert remembered(signed(SEND, b="t"), **{setting: str(code)}) == []


def test_names_that_are_too_long_to_be_kept_are_not() -> None:
    """A header may have half a megabyte of them, and their handlers refuse them afterwards."""
    assert remembered(signed(SEND, b="t" * 256)) == []
    assert remembered(signed(SEND, b="t" * 255)) != []


async def test_a_send_that_is_refused_is_not_remembered() -> None:
    """Whatever is wrong with it."""
    command = signed(SEND, b="t")
    command.body += b"x"

    with pytest.raises(Rejected, match="check signature failed"):
        remembered(command)


def consumed(command: Command, **settings: Any) -> list[tuple[str, ...]]:
    """Kind, user, and what is remembered of a pull, an ack or an end that is let through."""
    book = AccessBook({"root": User("root", "root-key", UserType.SUPER)})
    control = AccessControl(BrokerSettings(authentication_enabled=True, **settings), book, ManualClock())
    found: list[tuple[str, ...]] = []
    control.on_pull = lambda user, *about: found.append(("pull", user.username, *about))
    control.on_ack = lambda user, *about: found.append(("ack", user.username, *about))
    control.on_end = lambda user, *about: found.append(("end", user.username, *about))
    connection: Any = SimpleNamespace(peer=("10.0.0.1", 5), state={})
    check = control.checks_ends()

    def handler(connection: Any, command: Command) -> None:
        if command.code == RequestCode.END_TRANSACTION and check is not None:
            check(connection, command, "real")

    control.around({command.code: handler})[command.code](connection, command)
    return found


def test_acks_are_remembered_apart_from_pulls() -> None:
    """What a retry topic of POP needs is not the same for both."""
    for code, kind in ((RequestCode.PULL_MESSAGE, "pull"), (RequestCode.ACK_MESSAGE, "ack")):
        command = signed(code, topic="t", consumerGroup="g")
        assert consumed(command) == [(kind, "root", "g", "t", "10.0.0.1")]
    assert consumed(signed(RequestCode.BATCH_ACK_MESSAGE, topic="t", consumerGroup="g")) == []


def test_of_an_end_the_topics_that_were_decided_about_are_remembered() -> None:
    """That of the half, and the one that the end names, unless that is blank: a blank one needs no right."""
    end = RequestCode.END_TRANSACTION
    real = ("end", "root", "real", "10.0.0.1")
    assert consumed(signed(end, topic="t")) == [("end", "root", "t", "10.0.0.1"), real]
    for blank in ({}, {"topic": ""}, {"topic": " \t"}):
        assert consumed(signed(end, **blank)) == [real]


@pytest.mark.parametrize("setting", ["authentication_whitelist", "authorization_whitelist"])
def test_a_kind_that_is_not_checked_is_not_remembered_and_others_are(setting: str) -> None:
    """A white list for ends says nothing about acks."""
    settings = {setting: str(int(RequestCode.END_TRANSACTION))}
    assert consumed(signed(RequestCode.END_TRANSACTION, topic="t"), **settings) == []
    assert consumed(signed(RequestCode.ACK_MESSAGE, topic="t", consumerGroup="g"), **settings) != []


def test_acks_and_ends_that_a_broker_passed_on_are_not_remembered() -> None:
    """Their address is not that of the connection."""
    for code in (RequestCode.ACK_MESSAGE, RequestCode.END_TRANSACTION):
        command = signed(code, topic="t", consumerGroup="g")
        command.ext |= {"brokersetForwarded": "1", "brokersetBornHost": "10.0.0.9:7"}
        sign_as_broker(ROOT, command)
        assert consumed(command) == []


def test_both_kinds_of_sends_need_the_same() -> None:
    """A decision about one is kept for both."""
    assert RULES[SEND] == RULES[BATCH]


async def closed_by(*commands: Command) -> bool:
    """Whether a connection that may have two refusals is closed after these requests, all refused."""
    closed: list[bool] = []
    connection: Any = SimpleNamespace(peer=("10.0.0.1", 5), state={}, close=lambda: closed.append(True))
    settings = BrokerSettings(authentication_enabled=True, refusals_max=2)
    control = AccessControl(
        settings, AccessBook({"root": User("root", "root-key", UserType.SUPER)}), ManualClock()
    )
    handler = control.around({SEND: lambda *_: pytest.fail("served")})[SEND]
    for command in commands:
        with suppress(Rejected):
            answer: Any = handler(connection, command)
            assert (answer.code, answer.ext) == (ResponseCode.NO_PERMISSION, {"brokersetDenied": "1"})
    await asyncio.sleep(0)
    return bool(closed)


async def test_refusals_of_a_client_count_and_those_that_a_broker_passed_on_do_not() -> None:
    """The connection of a slave is that of all its clients. Who only says that it is a broker is a client."""
    marks = {"brokersetForwarded": "1", "brokersetBornHost": "10.0.0.9:7"}
    passed_on, pretended = Command(SEND, dict(marks)), Command(SEND, dict(marks))
    sign_as_broker(ROOT, passed_on)

    assert not await closed_by(Command(SEND))
    assert await closed_by(Command(SEND), Command(SEND))
    assert not await closed_by(*[passed_on] * 5)
    assert await closed_by(pretended, pretended)
