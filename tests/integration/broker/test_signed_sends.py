"""Signed sends over real sockets: who may send goes past the handlers, who may not is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from brokerset_acl.signatures import Credentials
from brokerset_broker.app import Broker
from brokerset_formats import native
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import HOST, Client, running_broker
from brokerset_runtime.remoting import connect

ROOT = Credentials("root", "root-key")
SETTINGS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
}
UNIQUE_ID = "7F000001ABCD18B4AAC2000000000001"
WRONG = "check signature failed."


async def send(client: Client, topic: str = "t", body: bytes = b"body", **ext: Any) -> Command:
    return await client.send(topic, body, properties={"UNIQ_KEY": UNIQUE_ID}, **ext)


async def administrate(client: Client, code: int, subject: dict[str, Any], body: object) -> None:
    reply = await client.call(code, json.dumps(body).encode(), **subject)
    assert reply.code == 0, reply.remark


def altered(sign: Callable[[Command], None]) -> Callable[[Command], None]:
    """Signs, and changes one byte of the body `forged` afterwards."""

    def change(command: Command) -> None:
        sign(command)
        if command.body == b"forged":
            command.body = b"forgeD"

    return change


async def client_of(broker: Broker, sign: Callable[[Command], None]) -> Client:
    return Client(await connect(f"{HOST}:{broker.port}", sign=sign))


@pytest.mark.skipif(native.core is None, reason="there is no native core")
async def test_signed_sends_go_the_native_way_until_a_byte_or_the_user_changes(tmp_path: Path) -> None:
    """One altered byte, another password, a denial, a disabled user: what follows is refused at once."""
    async with running_broker(tmp_path, **SETTINGS) as broker:
        lane = broker.send_lane
        assert lane is not None
        root = await client_of(broker, ROOT.sign)
        await root.create_topic("t")
        user = {"username": "app", "password": "app-key"}
        await administrate(root, RequestCode.AUTH_CREATE_USER, {"username": "app"}, user)
        entry = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}
        subject = {"subject": "User:app"}
        acl = {**subject, "policies": [{"entries": [entry]}]}
        await administrate(root, RequestCode.AUTH_CREATE_ACL, subject, acl)
        app = await client_of(broker, Credentials("app", "app-key").sign)
        forger = await client_of(broker, altered(Credentials("app", "app-key").sign))
        try:
            codes = [(await send(app)).code for _ in range(10)]
            assert codes == [0] * 10
            assert lane.served >= 8

            assert [(await send(forger)).code for _ in range(3)] == [0] * 3
            assert lane.served >= 10, "the connection of the forger is known, too"
            answer = await send(forger, body=b"forged")
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, WRONG)

            served = lane.served
            await administrate(
                root, RequestCode.AUTH_UPDATE_USER, {"username": "app"}, {**user, "password": "other-key"}
            )
            answer = await send(app)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, WRONG)
            await administrate(root, RequestCode.AUTH_UPDATE_USER, {"username": "app"}, user)
            codes = [(await send(app)).code for _ in range(3)]
            assert codes == [0] * 3
            assert lane.served >= served + 2, "it is learnt again"

            entry["decision"] = "Deny"
            await administrate(root, RequestCode.AUTH_UPDATE_ACL, subject, acl)
            answer = await send(app)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "the decision is deny" in (answer.remark or "")

            disabled = {**user, "userStatus": "disable"}
            await administrate(root, RequestCode.AUTH_UPDATE_USER, {"username": "app"}, disabled)
            answer = await send(app)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "User:app is disabled.")
            assert broker.access_control.denied == {"authentication": 3, "authorization": 1}
        finally:
            for client in (root, app, forger):
                client.connection.close()
                await client.connection.wait_closed()


@pytest.mark.parametrize("core", [True, False], ids=["native", "python"])
async def test_pulls_are_checked_where_sends_go_past_the_handlers(tmp_path: Path, core: bool) -> None:
    """Who may send to a topic may not read it, nor as another group, nor once the right is taken away."""
    without: AbstractContextManager[Any] = nullcontext() if core else mock.patch.object(native, "core", None)
    with without:
        async with running_broker(tmp_path, **SETTINGS) as broker:
            root = await client_of(broker, ROOT.sign)
            await root.create_topic("t")
            await administrate(
                root, RequestCode.AUTH_CREATE_USER, {"username": "app"}, {"username": "app", "password": "k"}
            )
            entry: dict[str, Any] = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}
            acl: dict[str, Any] = {"subject": "User:app", "policies": [{"entries": [entry]}]}
            await administrate(root, RequestCode.AUTH_CREATE_ACL, {"subject": "User:app"}, acl)
            app = await client_of(broker, Credentials("app", "k").sign)
            nobody = await client_of(broker, lambda _command: None)
            try:
                assert [(await send(app)).code for _ in range(3)] == [0] * 3
                assert (await app.pull("t", 0)).code == ResponseCode.NO_PERMISSION
                assert (await nobody.pull("t", 0)).code == ResponseCode.NO_PERMISSION
                entry["actions"] = ["Pub", "Sub"]
                acl["policies"][0]["entries"].append({**entry, "resource": "Group:g"})
                await administrate(root, RequestCode.AUTH_UPDATE_ACL, {"subject": "User:app"}, acl)
                found = {(await app.pull("t", 0, group="g")).code for _ in range(5)}
                assert ResponseCode.NO_PERMISSION not in found
                if broker.pull_lane is not None:
                    assert broker.pull_lane.served >= 3
                assert (await app.pull("t", 0, group="h")).code == ResponseCode.NO_PERMISSION
                entry["actions"] = ["Pub"]
                await administrate(root, RequestCode.AUTH_UPDATE_ACL, {"subject": "User:app"}, acl)
                assert (await app.pull("t", 0, group="g")).code == ResponseCode.NO_PERMISSION
                assert (await send(nobody)).code == ResponseCode.NO_PERMISSION
            finally:
                for client in (root, app, nobody):
                    client.connection.close()
                    await client.connection.wait_closed()
