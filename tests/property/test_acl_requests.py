"""Requests of any shape, signed or not: a refusal is the worst that can happen, and nobody gets through."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_acl.access_book import AccessBook
from brokerset_acl.needs import RULES, needs_of
from brokerset_acl.signatures import ACCESS_KEY, SIGNATURE, Credentials, content, is_signed_by
from brokerset_acl.users import User
from brokerset_broker.requests.access_control import AccessControl
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_rig.examples import examples
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

FIELDS = ("topic", "b", "a", "group", "consumerGroup", "topicList", "offset", "brokersetForwarded", "x")
MARKS = ("brokersetBornHost", "brokersetForwarder", "brokersetForwarderSignature", ACCESS_KEY, SIGNATURE)

texts = st.one_of(
    st.text(max_size=12), st.sampled_from(["u", "t", "%RETRY%g", "%RETRY%g+t", "1", "", "%DLQ%g"])
)
bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"{}", b"[]", b'{"mqSet":[{}]}', b'{"acks":[{}]}', b'{"consumerDataSet":[{}]}', b"null"]
    ),
)
codes = st.one_of(st.sampled_from(sorted(RULES)), st.integers(0, 70_000))
exts = st.dictionaries(st.sampled_from(FIELDS + MARKS), texts, max_size=6)


@given(codes, exts, bodies)
@examples(400)
def test_needs_are_found_or_refused(code: int, ext: dict[str, str], body: bytes) -> None:
    """A body that cannot be read is `Rejected`; nothing else is raised, and no need has an empty list."""
    try:
        needs = needs_of(Command(code, ext, body), "C")
    except Rejected:
        return
    assert all(need.actions for need in needs)


@given(codes, exts, bodies, st.integers(380, 520))
@examples(400)
def test_nobody_gets_through_without_the_key(
    code: int, ext: dict[str, str], body: bytes, version: int
) -> None:
    """Whatever fields a request has, the handler is never called for who does not know a password."""
    settings = BrokerSettings(authentication_enabled=True, authorization_enabled=True)
    control = AccessControl(settings, AccessBook({"u": User("u", "long and secret")}, {}), ManualClock())
    called: list[Command] = []

    async def check() -> None:
        table = control.around({code: lambda _connection, command: called.append(command)})
        connection: Any = SimpleNamespace(peer=("10.0.0.1", 5), state={})
        with pytest.raises(Rejected) as refused:
            table[code](connection, Command(code, ext, body, version=version))
        assert refused.value.code == 16

    asyncio.run(check())
    assert called == []


@given(exts, bodies, st.sampled_from(FIELDS), texts, st.binary(min_size=1, max_size=5))
@examples(300)
def test_every_change_of_a_signed_request_is_seen(
    ext: dict[str, str], body: bytes, field: str, text: str, more: bytes
) -> None:
    """A field that is added or changed, or another body, needs another signature; text that moves between
    neighbours does not, since RocketMQ joins values without anything between them."""
    given_fields = {name: value for name, value in ext.items() if name not in MARKS}
    command = Command(310, dict(given_fields), body)
    Credentials("u", "secret").sign(command)
    claimed = command.ext[SIGNATURE]
    assert is_signed_by("secret", content(command.ext, command.body), claimed)
    assert not is_signed_by("secret", content(command.ext, command.body + more), claimed)
    changed = {**command.ext, field: text}
    same = content(changed, body) == content(command.ext, body)
    assert is_signed_by("secret", content(changed, body), claimed) == same
