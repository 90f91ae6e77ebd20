"""Signed ends of transactions over real sockets: who may send to the topic of a half ends its transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest

from brokerset_acl.signatures import Credentials
from brokerset_broker.app import Broker
from brokerset_formats import native
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import HOST, Setup
from brokerset_rig.transaction_client import COMMIT, ROLLBACK, TransactionClient
from brokerset_runtime.remoting import connect

ROOT, APP = Credentials("root", "root-key"), Credentials("app", "app-key")
SIGNED: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
}
WRONG = "check signature failed."


async def client_of(broker: Broker, sign: Callable[[Command], None]) -> TransactionClient:
    return TransactionClient(await connect(f"{HOST}:{broker.port}", sign=sign), asyncio.Queue())


async def let_send(root: TransactionClient, code: int, *resources: str) -> None:
    """Make, or change, what `app` may send to."""
    entries = [{"resource": each, "actions": ["Pub"], "decision": "Allow"} for each in resources]
    body = {"subject": "User:app", "policies": [{"entries": entries}]}
    reply = await root.call(code, json.dumps(body).encode(), subject="User:app")
    assert reply.code == 0, reply.remark


def altered(command: Command) -> None:
    """Sign an end, and then roll back what was to be committed."""
    APP.sign(command)
    if command.code == RequestCode.END_TRANSACTION:
        command.ext["commitOrRollback"] = str(ROLLBACK)


@pytest.mark.parametrize("core", [True, False], ids=["native", "python"])
async def test_ends_are_checked_whichever_way_they_go(setup: Setup, core: bool) -> None:
    """Altered ones, those of another topic's transactions, and all once the right is taken away: refused, and
    the transactions stay open."""
    without: AbstractContextManager[Any] = nullcontext() if core else mock.patch.object(native, "core", None)
    with without:
        async with setup.broker(**SIGNED) as broker:
            root, app, forger = [await client_of(broker, each) for each in (ROOT.sign, APP.sign, altered)]
            for topic in ("t", "u"):
                await root.create_topic(topic)
            account = {"username": "app", "password": "app-key"}
            reply = await root.call(
                RequestCode.AUTH_CREATE_USER, json.dumps(account).encode(), username="app"
            )
            assert reply.code == 0, reply.remark
            await let_send(root, RequestCode.AUTH_CREATE_ACL, "Topic:t")
            halves = [await app.send_half("t", b"%d" % number, f"k{number}") for number in range(12)]
            foreign = await root.send_half("u", b"foreign", "foreign")

            answers = [await app.end(half, COMMIT, topic="t") for half in halves[:6]]
            assert [answer.code for answer in answers] == [0] * 6
            served = 0 if broker._end_lane is None else broker._end_lane.served
            if native.core is not None:
                assert served >= 3

            answer = await forger.end(halves[6], COMMIT, topic="t")
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, WRONG)
            for topic in ("t", "u", ""):
                answer = await app.end(foreign, COMMIT, topic=topic)
                assert answer.code == ResponseCode.NO_PERMISSION
                assert "User:app has no permission to access Topic:u" in (answer.remark or "")

            await let_send(root, RequestCode.AUTH_CREATE_ACL, "Topic:other")
            reply = await root.call(
                RequestCode.AUTH_DELETE_ACL, subject="User:app", resource="Topic:t", policyType="Custom"
            )
            assert reply.code == 0, reply.remark
            for topic in ("t", ""):
                assert (await app.end(halves[6], COMMIT, topic=topic)).code == ResponseCode.NO_PERMISSION
            resolved = broker.transaction_log.resolved
            assert resolved is not None
            waiting = {half.queue_offset for half in (*halves[6:], foreign)}
            assert set(resolved.open_halves()) == waiting

            await let_send(root, RequestCode.AUTH_CREATE_ACL, "Topic:t")
            answers = [await app.end(half, ROLLBACK) for half in halves[6:]]
            assert [answer.code for answer in answers] == [0] * 6
            assert set(resolved.open_halves()) == {foreign.queue_offset}
            if broker._end_lane is not None:
                assert broker._end_lane.served > served, "it is learnt again"
            for client in (root, app, forger):
                client.connection.close()
                await client.connection.wait_closed()
