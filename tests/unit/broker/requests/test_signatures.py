"""Clients that sign their requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from brokerset_broker.requests import signatures
from brokerset_broker.requests.signatures import SignedRequests
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime import log_throttle

SEND = RequestCode.SEND_MESSAGE_V2


def handlers(*, refuse: bool) -> dict[int, Any]:
    def served(_connection: object, command: Command) -> Command:
        return command.reply(0)

    codes = (RequestCode.HEART_BEAT, SEND)
    return dict(SignedRequests(refuse=refuse).around(dict.fromkeys(map(int, codes), served)))


def beat(table: dict[int, Any], host: str, key: str | None, code: int = RequestCode.HEART_BEAT) -> int:
    ext = {} if key is None else {"AccessKey": key, "Signature": "c2ln"}
    reply = table[int(code)](SimpleNamespace(peer=(host, 1)), Command(code, ext))
    assert isinstance(reply, Command)
    return reply.code


def test_each_client_that_signs_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is an address and a key; however many there are, only so many are remembered."""
    monkeypatch.setattr(log_throttle, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(signatures, "CLIENTS_MAX", 2)

    async def check() -> list[tuple[str, str]]:
        table = handlers(refuse=False)
        with structlog.testing.capture_logs() as lines:
            for host, key in [
                ("a", "k"),
                ("a", "k"),
                ("b", None),
                ("b", "k"),
                ("a", "k"),
                ("c", "k"),
                ("a", "k"),
            ]:
                assert beat(table, host, key) == 0
        return [(line["peer"][0], line["access_key"]) for line in lines]

    assert asyncio.run(check()) == [("a", "k"), ("b", "k"), ("c", "k"), ("a", "k")]


def test_many_clients_that_sign_do_not_fill_the_log() -> None:
    """One line a second; who was left out is warned of with a later heartbeat."""

    async def check() -> int:
        table = handlers(refuse=False)
        with structlog.testing.capture_logs() as lines:
            for number in range(100):
                beat(table, f"10.0.0.{number}", "k")
        return len(lines)

    assert asyncio.run(check()) == 1


def test_signed_requests_are_refused_if_so_set() -> None:
    table = handlers(refuse=True)

    for code in (RequestCode.HEART_BEAT, SEND):
        assert beat(table, "a", None, code) == 0
        with pytest.raises(Rejected, match="refuseSignedRequests") as refused:
            beat(table, "a", "k", code)
        assert refused.value.code == 16
