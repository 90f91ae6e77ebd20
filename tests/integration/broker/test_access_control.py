"""Signed requests and policies at a running broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from structlog.testing import capture_logs

from brokerset_acl.needs import NEEDS_MAX, RULES
from brokerset_acl.signatures import Credentials
from brokerset_broker.app import Broker
from brokerset_broker.requests.access_control import NO_RECORD
from brokerset_broker.requests.request_classes import CLASSES
from brokerset_client import (
    ClientError,
    ClientInstance,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
)
from brokerset_formats.hashing import java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.records import FIXED, encode_record
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere, ConsumerData, HeartbeatData, ProducerData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.certificates import Certificates
from brokerset_rig.crashing_groups import CrashingGroup, controlled_group, dledger_group
from brokerset_rig.local_servers import HOST, Client, bodies, running_broker, running_name_server
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection, connect
from brokerset_runtime.tls import Tls

Groups: TypeAlias = Callable[..., AbstractAsyncContextManager[CrashingGroup]]

ROOT = Credentials("root", "root-key")
FROM_FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SETTINGS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
    "broker_cluster_name": "C",
}


@asynccontextmanager
async def client_of(port: int, credentials: Credentials | None = None) -> AsyncIterator[Client]:
    connection = await connect(f"{HOST}:{port}", sign=None if credentials is None else credentials.sign)
    try:
        yield Client(connection)
    finally:
        connection.close()
        await connection.wait_closed()


@asynccontextmanager
async def guarded(folder: Path, **changes: Any) -> AsyncIterator[tuple[Broker, Client]]:
    """A broker that checks everything, and its first Super user."""
    async with (
        running_broker(folder, **(SETTINGS | changes)) as broker,
        client_of(broker.port, ROOT) as root,
    ):
        yield broker, root


async def create_user(root: Client, name: str, password: str, **more: str) -> Command:
    body = json.dumps({"username": name, "password": password, **more}).encode()
    return await root.call(RequestCode.AUTH_CREATE_USER, body, username=name)


async def allow(root: Client, name: str, resource: str, *actions: str, **more: object) -> Command:
    entry = {"resource": resource, "actions": actions, "decision": "Allow", **more}
    body = json.dumps({"subject": f"User:{name}", "policies": [{"entries": [entry]}]}).encode()
    return await root.call(RequestCode.AUTH_CREATE_ACL, body, subject=f"User:{name}")


async def test_only_who_signs_right_is_served(tmp_path: Path) -> None:
    """Without a name, with an unknown one, a wrong key, or as a disabled user: 16, with Java's text."""
    async with guarded(tmp_path) as (broker, root):
        await root.create_topic("t")
        assert (await create_user(root, "off", "k", userStatus="disable")).code == 0
        for credentials, remark in (
            (None, "username cannot be null."),
            (Credentials("nobody", "k"), "User:nobody is not found."),
            (Credentials("root", "wrong"), "check signature failed."),
            (Credentials("off", "k"), "User:off is disabled."),
        ):
            async with client_of(broker.port, credentials) as client:
                for binary in (False, True):
                    answer = await client.send("t", binary=binary)
                    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, remark)
        assert (await root.send("t", b"x" * 3_000)).code == 0
        assert (await root.send("t", "ä€𝄞".encode(), properties={"k": "ä€𝄞"}, binary=True)).code == 0
        assert broker.access_control.denied == {"authentication": 8}


@asynccontextmanager
async def alone(folder: Path, **settings: Any) -> AsyncIterator[CrashingGroup]:
    """A broker that is in no group, as a group of one."""
    group = CrashingGroup(folder, {1: settings})
    await group.start(1)
    try:
        yield group
    finally:
        await group.end()


@pytest.mark.parametrize("groups", [alone, controlled_group, dledger_group])
async def test_no_code_is_open(tmp_path: Path, groups: Groups) -> None:
    """Whatever an outsider asks a master for, the answer is 16, or that nobody serves it; a user without
    policies gets no further than what names nothing and changes nothing of others."""
    async with groups(tmp_path, **GROUP_SETTINGS) as group:
        broker = await group.master()
        server = broker._server
        assert server is not None
        async with client_of(broker.port, ROOT) as root:
            await create_user(root, "app", "k")
        free = {
            RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
            RequestCode.END_TRANSACTION, RequestCode.UNREGISTER_CLIENT,
        }  # fmt: skip
        async with client_of(broker.port) as plain, client_of(broker.port, Credentials("app", "k")) as app:
            assert set(server._handlers) <= set(CLASSES)
            for code in sorted(server._handlers):
                assert (await plain.call(code)).code == ResponseCode.NO_PERMISSION, RequestCode(code).name
                if code in free or RULES[code].read is not None:
                    continue
                assert (await app.call(code)).code == ResponseCode.NO_PERMISSION, RequestCode(code).name
            assert (await plain.call(99)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_an_altered_request_is_refused(tmp_path: Path) -> None:
    """The signature covers the body, every field, and their values."""
    async with guarded(tmp_path) as (broker, root), client_of(broker.port) as plain:
        await root.create_topic("t")
        for change in ("body", "field", "more"):
            command = Command(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"}, b"")
            ROOT.sign(command)
            if change == "body":
                command.body = b"x"
            elif change == "field":
                command.ext["queueId"] = "1"
            else:
                command.ext["more"] = "1"
            assert (await plain.connection.call(command, 20)).code == ResponseCode.NO_PERMISSION
        command = Command(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"}, b"")
        ROOT.sign(command)
        assert (await plain.connection.call(command, 20)).code == 0


async def test_policies_decide(tmp_path: Path) -> None:
    """A user sends and consumes what is allowed, from where it is allowed, and nothing else."""
    async with guarded(tmp_path) as (broker, root):
        for topic in ("orders", "other"):
            await root.create_topic(topic)
        assert (await create_user(root, "app", "k")).code == 0
        async with client_of(broker.port, Credentials("app", "k")) as app:
            refused = await app.send("orders")
            assert refused.code == ResponseCode.NO_PERMISSION
            assert refused.remark == (
                "User:app has no permission to access Topic:orders from 127.0.0.1, no matched policies."
            )
            assert (await allow(root, "app", "Topic:or*", "Pub", "Sub", sourceIps=["127.0.0.0/8"])).code == 0
            assert (await allow(root, "app", "Group:g", "Sub")).code == 0
            assert (await app.send("orders", b"one")).code == 0
            assert bodies(await app.pull("orders", 0, group="g")) == [b"one"]
            assert (await app.send("other")).code == ResponseCode.NO_PERMISSION
            assert (await app.pull("orders", 0, group="h")).code == ResponseCode.NO_PERMISSION
            assert (await app.send("%RETRY%h")).code == ResponseCode.NO_PERMISSION
            assert (await app.call(RequestCode.GET_BROKER_CONFIG)).code == ResponseCode.NO_PERMISSION
            assert (await create_user(app, "more", "k")).code == ResponseCode.NO_PERMISSION
            await allow(root, "app", "Topic:or*", "Pub", "Sub", sourceIps=["10.0.0.0/8"])
            assert (await app.send("orders")).code == ResponseCode.NO_PERMISSION


async def test_an_offset_of_the_log_opens_no_other_topic(tmp_path: Path) -> None:
    """What names a message by its place is judged by the message's topic, whatever the request says."""
    async with guarded(tmp_path) as (broker, root):
        for topic in ("mine", "secret"):
            await root.create_topic(topic)
        await create_user(root, "app", "k")
        await allow(root, "app", "Topic:mine", "Pub", "Sub", "Get")
        await allow(root, "app", "Group:g", "Sub")
        await root.send("secret", b"secret")
        await root.send("mine", b"mine")
        secret, mine = [(await root.wait_for(topic))[0].offset for topic in ("secret", "mine")]
        async with client_of(broker.port, Credentials("app", "k")) as app:
            view = RequestCode.VIEW_MESSAGE_BY_ID
            assert (await app.call(view, offset=mine, topic="mine")).code == 0
            assert (await app.call(view, offset=secret, topic="mine")).code == ResponseCode.NO_PERMISSION
            assert (await app.call(view, offset=mine)).code == ResponseCode.NO_PERMISSION
            back: dict[str, Any] = {"group": "g", "delayLevel": 0, "originTopic": "mine"}
            send_back = RequestCode.CONSUMER_SEND_MSG_BACK
            assert (await app.call(send_back, offset=mine, **back)).code == 0
            assert (await app.call(send_back, offset=secret, **back)).code == ResponseCode.NO_PERMISSION


@asynccontextmanager
async def an_app(folder: Path) -> AsyncIterator[tuple[Broker, Client, Client]]:
    """A broker, its first Super user, and a user that may do everything with `mine`, and consume as `g`."""
    async with guarded(folder) as (broker, root):
        for topic in ("mine", "secret"):
            await root.create_topic(topic)
        await create_user(root, "app", "k")
        await allow(root, "app", "Topic:mine", "Pub", "Sub", "Get", "Update")
        await allow(root, "app", "Group:g", "Sub")
        async with client_of(broker.port, Credentials("app", "k")) as app:
            yield broker, root, app


async def test_bytes_that_read_as_a_record_open_no_other_topic(tmp_path: Path) -> None:
    """A record whose head is in one message, and its end in another one, would show all that lies between."""
    async with an_app(tmp_path) as (broker, root, app):
        await app.send("mine", b"")
        await app.send("mine", b"x")
        await root.send("secret", b"first")
        (mine,), (secret,) = await root.wait_for("mine"), await root.wait_for("secret")
        head_size = FIXED.size
        inside = secret.offset + secret.size + head_size
        tail = inside + (mine.size - 1 + head_size) + secret.size
        body = bytes(tail - inside - head_size)
        forged = encode_record(replace(mine, offset=inside, body=body, queue_offset=77, properties=b""))
        assert (await app.send("mine", forged[:head_size])).code == 0
        assert (await root.send("secret", b"again")).code == 0
        assert (await app.send("mine", forged[head_size + len(body) :])).code == 0
        await root.wait_for("mine", 2)
        found = broker.store.read(inside)
        assert found is not None
        assert b"again" in bytes(found)
        view = await app.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=inside, topic="mine")
        assert (view.code, view.remark) == (ResponseCode.NO_PERMISSION, NO_RECORD)
        back: dict[str, Any] = {"group": "g", "delayLevel": 0, "originTopic": "mine", "offset": inside}
        assert (await app.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == ResponseCode.NO_PERMISSION
        own = await app.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=mine.offset, topic="mine")
        assert own.code == 0


async def test_a_consumer_is_given_no_message_that_its_user_may_not_have(tmp_path: Path) -> None:
    """An administrator's request, which takes any message by its place, and the topic from a field."""
    async with an_app(tmp_path) as (broker, root, app):
        await root.send("secret", b"secret")
        (secret,) = await root.wait_for("secret")
        await app.heartbeat("g", "mine", client_id="c")
        message_id = encode_offset_id(Host.from_text(HOST, broker.port), secret.offset)
        fields: dict[str, Any] = {"consumerGroup": "g", "clientId": "c", "msgId": message_id, "topic": "mine"}
        answer = await app.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "Topic:secret" in (answer.remark or "")


async def test_a_consumer_does_not_see_the_signature_of_an_administrator(tmp_path: Path) -> None:
    """No code is signed, so whoever gets a signature can send another request with it."""
    asked: list[dict[str, str]] = []

    def answer(_connection: Connection, command: Command) -> Command:
        asked.append(command.ext)
        return command.reply(body=b"{}")

    async with an_app(tmp_path) as (broker, root, _app):
        connection = await connect(
            f"{HOST}:{broker.port}",
            {RequestCode.GET_CONSUMER_RUNNING_INFO: answer},
            sign=Credentials("app", "k").sign,
        )
        await Client(connection).heartbeat("g", "mine", client_id="c")
        fields: dict[str, Any] = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "false"}
        assert (await root.call(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)).code == 0
        assert asked == [fields]
        connection.close()
        await connection.wait_closed()


async def test_a_key_with_the_same_hash_finds_no_other_topic(tmp_path: Path) -> None:
    """The index has hashes alone: `mine#…` with the hash of `secret#key`."""
    async with an_app(tmp_path) as (_broker, root, app):
        await root.send("secret", b"secret", properties={"KEYS": "key"})
        await root.wait_for("secret")
        key = colliding("mine#", "secret#key")
        fields: dict[str, Any] = {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 62}
        query = RequestCode.QUERY_MESSAGE
        assert (await root.call(query, topic="secret", key="key", **fields)).body
        answer = await app.call(query, topic="mine", key=key, **fields)
        assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")


def colliding(prefix: str, wanted: str) -> str:
    """What to add to a prefix so that the hash of all is that of a text."""
    goal, base = java_hash(wanted) % 2**32, java_hash(prefix) % 2**32
    for size in range(5, 9):
        left = (goal - base * 31**size) % 2**32
        for turn in range(200):
            rest, digits = left + turn * 2**32, ""
            for _ in range(size):
                low = 33 + (rest - 33) % 31
                digits, rest = chr(low) + digits, (rest - low) // 31
            if rest == 0:
                return digits
    raise AssertionError("no text found")


async def test_replies_go_to_the_reply_topic_alone(tmp_path: Path) -> None:
    """Everybody may answer; a reply for another topic is a message there, and needs what a message needs."""
    async with an_app(tmp_path) as (broker, _root, app):
        fields: dict[str, Any] = {
            "a": "pg", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "k": "false",
        }  # fmt: skip
        for topic in ("secret", "new", "%RETRY%other", "Other_REPLY_TOPIC"):
            answer = await app.call(RequestCode.SEND_REPLY_MESSAGE_V2, b"x", b=topic, **fields)
            assert answer.code == ResponseCode.NO_PERMISSION
        assert broker.topics.get("new") is None
        for topic in ("C_REPLY_TOPIC", "mine"):
            answer = await app.call(RequestCode.SEND_REPLY_MESSAGE_V2, b"x", b=topic, **fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR  # nobody has asked


async def test_nobody_resumes_a_transaction_of_another_topic(tmp_path: Path) -> None:
    """The topic is that of the half message, whatever the request says."""
    async with an_app(tmp_path) as (broker, root, app):
        half = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "1"}
        assert (await root.send("secret", properties=half, f=4)).code == 0
        (record,) = await root.wait_for("RMQ_SYS_TRANS_HALF_TOPIC")
        fields: dict[str, Any] = {"msgId": encode_offset_id(Host.from_text(HOST, broker.port), record.offset)}
        resume = RequestCode.RESUME_CHECK_HALF_MESSAGE
        answer = await app.call(resume, topic="mine", **fields)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (await root.call(resume, topic="mine", **fields)).code == 0


async def test_only_who_may_send_to_a_topic_is_asked_about_its_transactions(tmp_path: Path) -> None:
    """A question shows the message, and everybody can say to be a producer of any group."""
    beat = HeartbeatData(client_id="c", producer_data_set=(ProducerData(group_name="pg"),)).to_json()
    async with an_app(tmp_path) as (broker, root, app):
        producers, may_send = broker.producers, broker.access_control.may_send
        assert (await app.call(RequestCode.HEART_BEAT, beat)).code == 0
        channel = producers.pick("pg")
        assert channel is not None
        assert may_send(channel, "mine")
        assert not may_send(channel, "secret")
        assert (await root.call(RequestCode.HEART_BEAT, beat)).code == 0
        for _ in range(3):
            picked = producers.pick("pg", lambda each: may_send(each, "secret"))
            assert picked is not None
            assert picked is not channel
        await root.call(RequestCode.AUTH_DELETE_USER, username="app")
        assert not may_send(channel, "mine")


async def test_what_one_request_may_name_is_bounded(tmp_path: Path) -> None:
    """Each name is compared with every entry of the user, while nobody else is served."""
    async with an_app(tmp_path) as (_broker, _root, app):
        consumers = tuple(ConsumerData(group_name=f"g{number}") for number in range(NEEDS_MAX + 1))
        beat = HeartbeatData(client_id="c", consumer_data_set=consumers).to_json()
        answer = await app.call(RequestCode.HEART_BEAT, beat)
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER, "5001 topics and groups in one request, at most 5000 are checked",
        )  # fmt: skip


async def test_nobody_but_a_broker_says_where_a_request_came_from(tmp_path: Path) -> None:
    """A client that marks its request as passed on, to look like another address, is refused."""
    async with guarded(tmp_path) as (broker, root):
        await root.create_topic("t")
        await create_user(root, "app", "k")
        await allow(root, "app", "Topic:t", "Pub", sourceIps=["10.0.0.0/8"])
        async with client_of(broker.port, Credentials("app", "k")) as app:
            marks: dict[str, Any] = {"brokersetForwarded": "1", "brokersetBornHost": "10.0.0.1:5"}
            proof = {"brokersetForwarder": "app", "brokersetForwarderSignature": "x"}
            for fields in (marks, marks | proof):
                marked = await app.send("t", **fields)
                assert marked.code == ResponseCode.NO_PERMISSION
                assert "passed this request on" in (marked.remark or "")


async def test_users_and_policies_are_managed(tmp_path: Path) -> None:
    """What is created is listed, changed, and there after a restart; passwords are for Super users alone."""
    async with guarded(tmp_path) as (broker, root):
        assert (await create_user(root, "app", "k")).code == 0
        assert (await create_user(root, "app", "k")).code == 0, "as mqadmin asks every broker of a group"
        again = await create_user(root, "app", "other")
        assert (again.code, again.remark) == (ResponseCode.NO_PERMISSION, "The user is existed")
        await allow(root, "app", "Topic:t", "Pub")
        await allow(root, "app", "Cluster:C", "Get")
        update = json.dumps({"password": "k2"}).encode()
        assert (await root.call(RequestCode.AUTH_UPDATE_USER, update, username="app")).code == 0
        assert (tmp_path / "config" / "brokersetAccess.json").stat().st_mode & 0o777 == 0o600

    async with guarded(tmp_path) as (broker, root), client_of(broker.port, Credentials("app", "k2")) as app:
        seen = json.loads((await root.call(RequestCode.AUTH_LIST_USER)).body)
        assert [(user["username"], user["password"]) for user in seen] == [
            ("app", "k2"),
            ("root", "root-key"),
        ]
        hidden = await app.call(RequestCode.AUTH_LIST_USER)
        assert hidden.code == 0
        assert b"key" not in hidden.body
        acl = json.loads((await root.call(RequestCode.AUTH_GET_ACL, subject="User:app")).body)
        assert acl == {
            "policies": [
                {
                    "entries": [
                        {"actions": ["Pub"], "decision": "Allow", "resource": "Topic:t"},
                        {"actions": ["Get"], "decision": "Allow", "resource": "Cluster:C"},
                    ],
                    "policyType": "Custom",
                }
            ],
            "subject": "User:app",
        }
        delete = RequestCode.AUTH_DELETE_ACL
        assert (await root.call(delete, subject="User:app", resource="Topic:t")).code == 0
        assert (await root.call(delete, subject="User:app", resource="Topic:t")).code == 0
        assert (await root.call(RequestCode.AUTH_DELETE_USER, username="app")).code == 0
        assert (await app.send("t")).remark == "User:app is not found."
        assert (await root.call(RequestCode.AUTH_LIST_ACL)).body == b""
        config = (await root.call(RequestCode.GET_BROKER_CONFIG)).body
        assert b"root-key" not in config
        assert b"authenticationEnabled=true" in config


@pytest.mark.parametrize("white", ["authentication", "authorization"])
async def test_codes_of_a_white_list(tmp_path: Path, white: str) -> None:
    """A code of the first list needs no signature, one of the second no policy; both together nothing."""
    lists = {f"{white}_whitelist": "30, 31"}
    async with guarded(tmp_path, **lists) as (broker, root):
        await root.create_topic("t")
        await create_user(root, "app", "k")
        async with client_of(broker.port) as plain, client_of(broker.port, Credentials("app", "k")) as app:
            unsigned, signed = [
                (await client.call(RequestCode.GET_MAX_OFFSET, topic="t", queueId=0)).code
                for client in (plain, app)
            ]
            assert unsigned == ResponseCode.NO_PERMISSION
            assert signed == (0 if white == "authorization" else ResponseCode.NO_PERMISSION)
    both = {"authentication_whitelist": "30", "authorization_whitelist": "30"}
    async with guarded(tmp_path, **both) as (broker, root), client_of(broker.port) as plain:
        assert (await plain.call(RequestCode.GET_MAX_OFFSET, topic="t", queueId=0)).code == 0


async def test_without_authorization_every_user_may_everything(tmp_path: Path) -> None:
    """Authentication alone asks for a name."""
    async with guarded(tmp_path, authorization_enabled=False) as (broker, root):
        await create_user(root, "app", "k")
        async with client_of(broker.port, Credentials("app", "k")) as app:
            await app.create_topic("t")
            assert (await app.send("t")).code == 0


GROUP_SETTINGS: dict[str, Any] = {
    **SETTINGS,
    "inner_client_authentication_credentials": json.dumps({"accessKey": "inner", "secretKey": "inner-key"}),
}


@pytest.mark.parametrize("groups", [controlled_group, dledger_group])
async def test_a_new_master_knows_users_and_policies(tmp_path: Path, groups: Groups) -> None:
    """What an administrator was answered counts after a crash of the master; slaves refuse the same."""
    async with groups(tmp_path, **GROUP_SETTINGS) as group:
        first = await group.master()
        async with client_of(first.port, ROOT) as root:
            await root.create_topic("t")
            assert (await create_user(root, "app", "k")).code == 0
            assert (await allow(root, "app", "Topic:t", "Pub", sourceIps=["127.0.0.1"])).code == 0
        await group.crash(first)
        second = await group.master()
        assert second is not first
        async with client_of(second.port, Credentials("app", "k")) as app:
            await until_sent(app, "t")
            assert (await app.send("no")).code == ResponseCode.NO_PERMISSION
        async with client_of(second.port, Credentials("app", "wrong")) as wrong:
            assert (await wrong.send("t")).remark == "check signature failed."


@pytest.mark.parametrize("groups", [controlled_group, dledger_group])
async def test_requests_that_a_slave_passes_on_are_judged_as_the_clients(
    tmp_path: Path, groups: Groups
) -> None:
    """The master checks the client's signature and address, and lends nobody the rights of the slave."""
    async with groups(tmp_path, **GROUP_SETTINGS) as group:
        master = await group.master()
        slave = next(broker for broker in group.brokers.values() if broker is not master)
        async with client_of(slave.port, ROOT) as root:
            await root.create_topic("t")
            assert (await create_user(root, "app", "k")).code == 0
            assert (await allow(root, "app", "Topic:t", "Pub", sourceIps=["127.0.0.1"])).code == 0
            assert "app" in master.access.book.users
            await until(lambda: "User:app" in slave.access.book.acls)
        async with client_of(slave.port, Credentials("app", "k")) as app:
            await until_sent(app, "t")
            refused = await app.send("no")
            assert refused.remark == (
                "User:app has no permission to access Topic:no from 127.0.0.1, no matched policies."
            )
        async with client_of(slave.port) as plain:
            assert (await plain.send("t")).remark == "username cannot be null."


async def until_sent(client: Client, topic: str) -> None:
    """Send until a new master takes it: replicas may still be on their way into the in-sync set."""
    async with asyncio.timeout(30):
        while (answer := await client.send(topic)).code != 0:
            assert answer.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR), (
                answer.remark
            )
            await asyncio.sleep(0.05)


async def test_a_connection_that_is_refused_too_often_ends_and_that_of_the_others_does_not(
    tmp_path: Path,
) -> None:
    """The setting says how often; each refusal is answered, the last one as well."""
    async with guarded(tmp_path, refusals_max=5) as (_, root), client_of(root.connection.peer[1]) as stranger:
        await root.create_topic("t")
        answers = [await stranger.send("t") for _ in range(5)]
        async with asyncio.timeout(60):
            await stranger.connection.wait_closed()

        assert [each.remark for each in answers] == ["username cannot be null."] * 5
        assert (await root.send("t")).code == 0


@pytest.mark.parametrize("groups", [controlled_group, dledger_group])
async def test_a_client_that_a_master_refuses_too_often_loses_its_connection_to_the_slave(
    tmp_path: Path, groups: Groups
) -> None:
    """The master says what it has refused; the slave counts it, whose connection there is everybody's."""
    async with groups(tmp_path, **GROUP_SETTINGS, refusals_max=5) as group:
        master = await group.master()
        slave = next(broker for broker in group.brokers.values() if broker is not master)
        async with client_of(slave.port, ROOT) as root, client_of(slave.port) as stranger:
            await root.create_topic("t")
            await until_sent(root, "t")
            answers = [await stranger.send("t") for _ in range(5)]
            async with asyncio.timeout(60):
                await stranger.connection.wait_closed()

            assert [each.remark for each in answers] == ["username cannot be null."] * 5
            assert not any("brokersetDenied" in each.ext for each in answers), "brokers alone see the mark"
            await until_sent(root, "t")


async def test_our_client_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with credentials, of their own or of the environment, are served; others are not."""
    async with (
        running_name_server(tmp_path / "names") as names,
        guarded(tmp_path / "broker", namesrv_addr=f"{HOST}:{names.port}", broker_ip1=HOST) as (broker, root),
    ):
        await root.create_topic("orders")
        await create_user(root, "app", "k")
        await allow(root, "app", "*", "Pub", "Sub")
        await until(lambda: broker.registrar.registered)
        namesrv = f"{HOST}:{names.port}"
        async with ClientInstance(namesrv, credentials=Credentials("app", "k")) as instance:
            async with Producer("pg", instance=instance) as producer:
                await producer.send(Message(topic="orders", body=b"one"))
            async with PullConsumer("g", instance=instance) as consumer:
                queues = await consumer.queues("orders")
                found = [await consumer.pull(queue, 0) for queue in queues]
                assert [message.body for each in found for message in each.messages] == [b"one"]
        async with Producer("pg", namesrv=namesrv) as producer:
            with pytest.raises(ClientError, match="username cannot be null"):
                await producer.send(Message(topic="orders", body=b"two"))
        monkeypatch.setenv("BROKERSET_ACCESS_KEY", "app")
        monkeypatch.setenv("BROKERSET_SECRET_KEY", "k")
        async with Producer("pg", namesrv=namesrv) as producer:
            await producer.send(Message(topic="orders", body=b"three"))


async def test_a_password_is_changed_under_load_by_a_second_user(tmp_path: Path) -> None:
    """No send fails while both are there, and the old password opens nothing afterwards."""
    async with (
        running_name_server(tmp_path / "names") as names,
        guarded(tmp_path / "broker", namesrv_addr=f"{HOST}:{names.port}", broker_ip1=HOST) as (broker, root),
    ):
        await root.create_topic("t")
        await until(lambda: broker.registrar.registered)
        for name in ("app-1", "app-2"):
            assert (await create_user(root, name, f"key of {name}")).code == 0
            assert (await allow(root, name, "Topic:t", "Pub")).code == 0

        sent: dict[str, int] = {"app-1": 0, "app-2": 0}

        async def application(name: str, ended: asyncio.Event) -> None:
            credentials = Credentials(name, f"key of {name}")
            async with (
                ClientInstance(f"{HOST}:{names.port}", credentials=credentials) as instance,
                Producer("p", instance=instance) as producer,
            ):
                while not ended.is_set():
                    await producer.send(Message(topic="t", body=b"x"))
                    sent[name] += 1

        old_ends, new_ends = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as running:
            old = running.create_task(application("app-1", old_ends))
            await until(lambda: sent["app-1"] > 10)
            running.create_task(application("app-2", new_ends))
            await until(lambda: sent["app-2"] > 10)
            old_ends.set()
            await old
            assert (await root.call(RequestCode.AUTH_DELETE_USER, username="app-1")).code == 0
            wanted = sent["app-2"] + 10
            await until(lambda: sent["app-2"] > wanted)
            new_ends.set()

        assert broker.access_control.denied == {}
        assert sum(broker.store.queue_max("t", queue) for queue in range(4)) == sum(sent.values())
        async with client_of(broker.port, Credentials("app-1", "key of app-1")) as client:
            assert (await client.send("t")).code == ResponseCode.NO_PERMISSION


async def test_a_consumer_that_may_not_read_says_why_once(tmp_path: Path) -> None:
    """As an error: it does not get better by itself. It reads as soon as it may."""
    async with (
        running_name_server(tmp_path / "names") as names,
        guarded(tmp_path / "broker", namesrv_addr=f"{HOST}:{names.port}", broker_ip1=HOST) as (broker, root),
    ):
        await root.create_topic("t")
        await create_user(root, "app", "k")
        await until(lambda: broker.registrar.registered)
        assert (await root.send("t", b"one")).code == 0
        got: list[bytes] = []

        async def listener(message: MessageView) -> None:
            got.append(message.body)

        credentials = Credentials("app", "k")
        async with ClientInstance(f"{HOST}:{names.port}", credentials=credentials) as instance:
            consumer = PushConsumer("g", instance=instance, listener=listener, consume_from=FROM_FIRST)
            consumer.subscribe("t")
            with capture_logs() as lines:
                async with consumer:
                    await until(lambda: broker.access_control.denied["authorization"] > 3)
                    assert (await allow(root, "app", "Group:g", "Sub")).code == 0
                    assert (await allow(root, "app", "Topic:t", "Sub")).code == 0
                    await until(lambda: got == [b"one"])

        (said,) = [line for line in lines if line["log_level"] == "error"]
        assert "User:app has no permission" in said["reason"]


async def test_a_group_with_tls_and_access_control(tmp_path: Path) -> None:
    """Members that take nothing but TLS fail over as without; who asks plainly is refused with the reason."""
    file = Certificates(tmp_path / "certificates").config()
    async with dledger_group(tmp_path, **GROUP_SETTINGS, tls_config_file=file) as group:
        first = await group.master()
        await group.crash(first)
        second = await group.master()
        connection = await connect(f"{HOST}:{second.port}", sign=ROOT.sign, tls=Tls(file))
        await Client(connection).create_topic("t")
        await until_sent(Client(connection), "t")
        connection.abort()
        async with client_of(second.port, ROOT) as root:
            with pytest.raises(AssertionError, match="by TLS only"):
                await root.create_topic("u")
