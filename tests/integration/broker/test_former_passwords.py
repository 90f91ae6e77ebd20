"""Two passwords of one user while they change, at running brokers and controllers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pytest
from structlog.testing import capture_logs

from brokerset_acl.signatures import WRONG_SIGNATURE, Credentials
from brokerset_broker.app import Broker
from brokerset_formats import native
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.crashing_groups import CrashingGroup, controlled_group, dledger_group
from brokerset_rig.local_servers import HOST, Client, running_broker
from brokerset_rig.moved_clock import MovedClock
from brokerset_rig.user_clusters import USERS, allow, client_at, client_of, create_user, user_cluster
from brokerset_rig.waiting import until

Groups: TypeAlias = Callable[..., AbstractAsyncContextManager[CrashingGroup]]

OLD, NEW, WRONG = (Credentials("app", key) for key in ("key", "new-key", "wrong"))
HOUR = 3_600
SECONDS_MAX = 60.0
WITHOUT_MASTER = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR)
"""What a broker answers whose lease has ended, and one that knows no master to pass requests on to."""

SETTINGS: dict[str, Any] = {**USERS, "authorization_enabled": True}


async def change(root: Client, password: str, seconds: int | None = HOUR) -> Command:
    """Give `app` another password; the one before counts for so long."""
    body = json.dumps({"username": "app", "password": password}).encode()
    more: dict[str, Any] = {} if seconds is None else {"formerPasswordSeconds": seconds}
    reply = await root.call(RequestCode.AUTH_UPDATE_USER, body, username="app", **more)
    assert reply.code == 0, reply.remark
    return reply


async def sent(broker: Broker, credentials: Credentials) -> list[str | None]:
    """What is wrong with sends and pulls that are signed so, if anything is; some of each go past the
    handlers."""
    async with client_of(broker, credentials) as client:
        answers = [
            await client.send("t", properties={"UNIQ_KEY": "7F000001ABCD18B4AAC2000000000001"})
            for _ in range(4)
        ]
        answers += [await client.pull("t", 0, group="g") for _ in range(4)]
    refused = [each.remark for each in answers if each.code == ResponseCode.NO_PERMISSION]
    assert len(refused) in (0, len(answers))
    return refused[:1]


async def taken(client: Client) -> int:
    """The answer to one message, which is sent again while there is no master."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            answer = await client.send("t")
            if answer.code not in WITHOUT_MASTER:
                return answer.code
            await asyncio.sleep(0.05)


async def made(root: Client) -> None:
    """The user, and the topic that it may use."""
    await root.create_topic("t")
    assert (await create_user(root, "app")).code == 0
    assert (await allow(root, "app", "Topic:t", "Pub", "Sub")).code == 0
    assert (await allow(root, "app", "Group:g", "Sub")).code == 0


@asynccontextmanager
async def alone(folder: Path, **settings: Any) -> AsyncIterator[CrashingGroup]:
    """A broker that is in no group, as a group of one."""
    group = CrashingGroup(folder, {1: settings})
    await group.start(1)
    try:
        yield group
    finally:
        await group.end()


@pytest.mark.parametrize("core", [True, False], ids=["native", "python"])
async def test_both_passwords_serve_until_the_time_is_over(tmp_path: Path, core: bool) -> None:
    """Then the former one is refused, though its requests were let through a moment before."""
    clock = MovedClock()
    without: AbstractContextManager[Any] = nullcontext() if core else mock.patch.object(native, "core", None)
    with without:
        async with running_broker(tmp_path, **SETTINGS, clock=clock) as broker, client_of(broker) as root:
            await made(root)
            assert await sent(broker, OLD) == []
            until_ms = int((await change(root, "new-key")).ext["formerUntil"])

            for _ in range(2):
                assert await sent(broker, OLD) == []
                assert await sent(broker, NEW) == []
                assert await sent(broker, WRONG) == [WRONG_SIGNATURE]
            assert broker.access_control.former_uses.total == 16

            clock.moved_ms += until_ms - clock.now_ms()
            assert await sent(broker, OLD) == [WRONG_SIGNATURE]
            assert await sent(broker, NEW) == []
            assert broker.access_control.former_uses.total == 16


@pytest.mark.parametrize("core", [True, False], ids=["native", "python"])
async def test_every_send_succeeds_until_the_time_is_over_and_then_none_with_the_old_one(
    tmp_path: Path, core: bool
) -> None:
    """A producer that sends all the while keeps its old password, another one comes with the new one; at the
    end of the time the first is refused, by the connection that it has, and the second goes on."""
    clock, end = MovedClock(), asyncio.Event()
    codes: dict[str, list[int]] = {"key": [], "new-key": []}

    async def produce(broker: Broker, credentials: Credentials) -> None:
        async with client_of(broker, credentials) as client:
            while not end.is_set():
                codes[credentials.secret_key].append((await client.send("t")).code)

    async def more_sent(password: str, count: int) -> None:
        wanted = len(codes[password]) + count
        await until(lambda: len(codes[password]) >= wanted, SECONDS_MAX)

    without: AbstractContextManager[Any] = nullcontext() if core else mock.patch.object(native, "core", None)
    with without:
        async with running_broker(tmp_path, **SETTINGS, clock=clock) as broker, client_of(broker) as root:
            await made(root)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(produce(broker, OLD))
                await more_sent("key", 100)
                until_ms = int((await change(root, "new-key")).ext["formerUntil"])
                await more_sent("key", 100)
                tasks.create_task(produce(broker, NEW))
                await more_sent("new-key", 100)
                served = len(codes["key"])
                clock.moved_ms += until_ms - clock.now_ms()
                await more_sent("key", 10)
                await more_sent("new-key", 100)
                end.set()

    assert set(codes["new-key"]) == {ResponseCode.SUCCESS}
    assert set(codes["key"][:served]) == {ResponseCode.SUCCESS}
    assert set(codes["key"][served + 1 :]) == {ResponseCode.NO_PERMISSION}  # one was on its way


async def test_at_once_means_at_once(tmp_path: Path) -> None:
    """An update without the time, as Java's tools send it, ends the former password, or never makes one."""
    async with running_broker(tmp_path, **SETTINGS) as broker, client_of(broker) as root:
        await made(root)
        assert "formerUntil" not in (await change(root, "new-key", None)).ext
        assert await sent(broker, OLD) == [WRONG_SIGNATURE]
        await change(root, "key")
        assert await sent(broker, NEW) == []
        await change(root, "key", None)
        assert await sent(broker, NEW) == [WRONG_SIGNATURE]
        refused = await root.call(RequestCode.AUTH_UPDATE_USER, username="app", formerPasswordSeconds=1 << 30)
        assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_administrators_see_who_still_uses_the_former_password(tmp_path: Path) -> None:
    """In one line of the log, and where users are listed, without the password; Java's fields stay."""
    async with running_broker(tmp_path, **SETTINGS) as broker, client_of(broker) as root:
        await made(root)
        plain = (await root.call(RequestCode.AUTH_GET_USER, username="app")).body
        assert set(json.loads(plain)) == {"username", "password", "userType", "userStatus"}
        await change(root, "new-key")
        with capture_logs() as logs:
            await sent(broker, NEW)
            await sent(broker, OLD)

        lines = [each for each in logs if each["event"] == "former password used"]
        assert [(each["user"], each["peer"][0]) for each in lines] == [("app", HOST)]
        found = json.loads((await root.call(RequestCode.AUTH_GET_USER, username="app")).body)
        assert found["formerLastUsedFrom"] == HOST
        assert found["formerUntil"] > found["formerLastUsed"]
        listed = (await root.call(RequestCode.AUTH_LIST_USER)).body
        assert [each for each in json.loads(listed) if each["username"] == "app"] == [found]
        assert b'"key"' not in listed + str(logs).encode()
        with_former = (await root.call(RequestCode.AUTH_LIST_USER, formerPasswords="true")).body
        assert b'"formerPassword":"key"' in with_former


@pytest.mark.parametrize("groups", [alone, controlled_group, dledger_group])
async def test_the_former_password_survives_failover_and_restart(tmp_path: Path, groups: Groups) -> None:
    """It is metadata of the group, with the user."""
    async with groups(tmp_path, **SETTINGS) as group:
        first = await group.master()
        async with client_of(first) as root:
            await made(root)
            await change(root, "new-key")
        number = next(number for number, broker in group.brokers.items() if broker is first)
        if len(group.brokers) > 1:
            await group.crash(first)
        else:
            await group.stop(number)
            await group.start(number)
        second = await group.master()
        await until(lambda: "app" in second.access.book.users, SECONDS_MAX)

        assert await sent(second, OLD) == []
        assert await sent(second, NEW) == []
        assert await sent(second, WRONG) == [WRONG_SIGNATURE]


async def test_controllers_agree_on_former_passwords(tmp_path: Path) -> None:
    """All groups take both passwords, also after a restart of all controllers; so do the controllers."""
    async with user_cluster(tmp_path, {"a": 1, "b": 1}) as cluster:
        first, second = await cluster.broker("a"), await cluster.broker("b")
        async with client_of(first) as root, client_of(second) as other:
            assert (await create_user(root, "app", userType="Super")).code == 0
            await root.create_topic("t")
            await other.create_topic("t")
            answers = [await change(each, "new-key") for each in (root, other)]
            assert answers[0].ext["formerUntil"] == answers[1].ext["formerUntil"]
        await cluster.restart_controllers()

        for credentials, refused in ((OLD, []), (NEW, []), (WRONG, [WRONG_SIGNATURE])):
            for broker in (first, second):
                assert await sent(broker, credentials) == refused
            async with client_at(cluster.controllers.address(0), credentials) as client:
                answer = await client.call(RequestCode.AUTH_LIST_USER)
                assert (answer.code == 0) == (not refused)


async def test_no_send_of_a_running_producer_fails_while_its_password_changes(tmp_path: Path) -> None:
    """It sends on with the former password until it is started again with the new one, in both groups. Every
    message is taken: a machine that is slow may lose a lease, and then a client sends again."""
    async with user_cluster(tmp_path, {"a": 2, "b": 1}) as cluster:
        brokers = [await cluster.broker("a"), await cluster.broker("b")]
        for broker in brokers:
            async with client_of(broker) as root:
                await made(root)
        codes: dict[str, list[int]] = {"key": [], "new-key": []}
        restart, end = asyncio.Event(), asyncio.Event()

        async def produce(broker: Broker, credentials: Credentials, until_set: asyncio.Event) -> None:
            async with client_of(broker, credentials) as client:
                while not until_set.is_set():
                    codes[credentials.secret_key].append(await taken(client))

        async def producer(broker: Broker) -> None:
            await produce(broker, OLD, restart)
            await produce(broker, NEW, end)

        async def more_sent(password: str) -> None:
            wanted = len(codes[password]) + 100
            await until(lambda: len(codes[password]) >= wanted, SECONDS_MAX)

        async with asyncio.TaskGroup() as tasks:
            for broker in brokers:
                tasks.create_task(producer(broker))
            await more_sent("key")
            async with client_of(brokers[0]) as root:
                await change(root, "new-key")
            await more_sent("key")
            # Each broker has the new password with its next heartbeat; a restart needs it everywhere.
            await until(
                lambda: all(each.access.book.users["app"].password == "new-key" for each in brokers),
                SECONDS_MAX,
            )
            await more_sent("key")
            restart.set()
            await more_sent("new-key")
            end.set()

        assert {password: set(answers) for password, answers in codes.items()} == {
            "key": {ResponseCode.SUCCESS},
            "new-key": {ResponseCode.SUCCESS},
        }
