"""Users and policies that the controllers have for all groups of a cluster, on real ports and files."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

from brokerset_acl.signatures import WRONG_SIGNATURE, Credentials
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.local_servers import Client
from brokerset_rig.user_clusters import (
    ROOT,
    SECONDS_MAX,
    allow,
    client_at,
    client_of,
    create_user,
    delete_user,
    user_cluster,
)
from brokerset_rig.waiting import until

APP = Credentials("app", "key")


async def until_sent(client: Client, topic: str) -> None:
    """Send until it is stored: a master may be about to be one, or to take over the newest users."""
    async with asyncio.timeout(SECONDS_MAX):
        while (await client.send(topic)).code:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.01)


async def test_a_user_of_one_group_is_one_of_all(tmp_path: Path) -> None:
    """Created and allowed at a master of one group, it sends to another; deleted there, it is denied
    everywhere, by slaves, too."""
    async with user_cluster(tmp_path, {"a": 1, "b": 2}) as cluster:
        first, second = await cluster.broker("a"), await cluster.broker("b")
        async with client_of(first) as root:
            assert (await create_user(root, "app")).code == 0
            assert (await allow(root, "app", "Topic:t", "Pub")).code == 0
            assert "User:app" in first.access.book.acls
        await until(
            lambda: all("User:app" in each.access.book.acls for each in cluster.brokers()), SECONDS_MAX
        )
        async with client_of(second) as root, client_of(second, APP) as app:
            await root.create_topic("t")
            await until_sent(app, "t")
            assert (await app.send("no")).code == ResponseCode.NO_PERMISSION

            assert (await delete_user(root, "app")).code == 0
            await cluster.until_known("app", known=False)

        for broker in cluster.brokers():
            async with client_of(broker, APP) as app:
                assert (await app.send("t")).remark == "User:app is not found."


async def test_users_survive_a_failover_and_a_restart_of_all_controllers(tmp_path: Path) -> None:
    """Nothing that an administrator was answered is lost, and changes go on."""
    async with user_cluster(tmp_path, {"a": 2, "b": 1}) as cluster:
        first = await cluster.broker("a")
        async with client_of(first) as root:
            await root.create_topic("t")
            assert (await create_user(root, "app")).code == 0
            assert (await allow(root, "app", "Topic:t", "Pub")).code == 0
        await cluster.groups["a"].crash(first)
        second = await cluster.broker("a")
        async with client_of(second, APP) as app:
            await until_sent(app, "t")

        await cluster.restart_controllers()
        async with client_at(cluster.controllers.address(0), ROOT) as root:
            shown = await root.call(RequestCode.AUTH_GET_USER, username="app")
            assert b'"app"' in shown.body
            assert (await create_user(root, "later")).code == 0
        await cluster.until_known("later")
        await cluster.until_known("app")


async def test_three_controllers_have_the_same_users(tmp_path: Path) -> None:
    """Whoever leads next has all that was committed, and those that do not lead say 2007."""
    async with user_cluster(tmp_path, {"a": 1}, controllers=3) as cluster:
        controllers = cluster.controllers
        async with client_of(await cluster.broker("a")) as root:
            assert (await create_user(root, "app")).code == 0
        leader = await controllers.leader()
        for node_id in set(controllers.running) - {leader}:
            async with client_at(controllers.address(node_id), ROOT) as root:
                answer = await root.call(RequestCode.AUTH_LIST_USER)
                assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER

        await controllers.stop(leader)
        next_leader = await controllers.leader()
        async with client_at(controllers.address(next_leader), ROOT) as root:
            assert b'"app"' in (await root.call(RequestCode.AUTH_LIST_USER)).body
            assert (await delete_user(root, "app")).code == 0
        await cluster.until_known("app", known=False)


async def test_only_super_users_ask_controllers_for_users(tmp_path: Path) -> None:
    """Also those that were made at run time; others see no password and change nothing."""
    async with user_cluster(tmp_path, {"a": 1}) as cluster:
        address = cluster.controllers.address(0)
        async with client_of(await cluster.broker("a")) as root:
            assert (await create_user(root, "boss", userType="Super")).code == 0
            assert (await create_user(root, "app")).code == 0
        for credentials, reason in (
            (None, "username cannot be null."),
            (Credentials("root", "wrong"), WRONG_SIGNATURE),
            (Credentials("nobody", "key"), "User:nobody is not found."),
            (APP, "User:app is no Super user."),
        ):
            async with client_at(address, credentials) as client:
                for code in (RequestCode.AUTH_LIST_USER, RequestCode.BROKERSET_GET_ACCESS):
                    answer = await client.call(code, brokerName="a")
                    assert answer.code == ResponseCode.NO_PERMISSION
                    assert (answer.remark or "").startswith(reason)
                    assert answer.body == b""
                assert (
                    await create_user(client, "evil", userType="Super")
                ).code == ResponseCode.NO_PERMISSION
        async with client_at(address, Credentials("boss", "key")) as boss:
            assert b"evil" not in (await boss.call(RequestCode.AUTH_LIST_USER)).body
            assert (await create_user(boss, "new")).code == 0
        await cluster.until_known("new")


async def test_a_broker_that_checks_nobody_makes_no_super_user_of_others(tmp_path: Path) -> None:
    """Else whoever reaches it would administer the controllers and all other groups."""
    unchecked = {"authentication_enabled": False, "authorization_enabled": False}
    async with user_cluster(tmp_path, {"a": 1}, of_brokers=unchecked) as cluster:
        async with client_of(await cluster.broker("a"), None) as anybody:
            refused = await create_user(anybody, "evil", userType="Super")
            assert refused.remark == "The super user can only be create by super user"
            assert (await create_user(anybody, "app")).code == 0
        async with client_at(cluster.controllers.address(0), ROOT) as root:
            shown = (await root.call(RequestCode.AUTH_LIST_USER)).body
            assert b'"app"' in shown
            assert b"evil" not in shown


async def test_only_the_own_user_reads_what_controllers_store(tmp_path: Path) -> None:
    """The log of a controller that checks who administers has passwords in it."""
    async with user_cluster(tmp_path, {}):
        folders = list((tmp_path / "controllers").glob("**/raft"))

    assert folders
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * len(folders)


async def test_users_of_before_are_taken_over_from_each_group(tmp_path: Path) -> None:
    """Made while controllers checked nobody; of one name that two groups have, one user is left."""
    async with user_cluster(tmp_path, {"a": 1, "b": 1}, authentication_enabled=False) as cluster:
        for name in ("a", "b"):
            async with client_of(await cluster.broker(name)) as root:
                assert (await create_user(root, "both", f"of-{name}")).code == 0
                assert (await create_user(root, f"only-{name}")).code == 0
        assert not any(broker.access.version for broker in cluster.brokers())

        await cluster.restart_controllers(authentication_enabled=True)

        for user in ("both", "only-a", "only-b"):
            await cluster.until_known(user)
        await until(
            lambda: len({broker.access.version for broker in cluster.brokers()} - {0}) == 1, SECONDS_MAX
        )
        keys = {broker.access.book.users["both"].password for broker in cluster.brokers()}
        assert len(keys) == 1
        assert keys < {"of-a", "of-b"}
        async with client_of(await cluster.broker("b")) as root:
            assert (await delete_user(root, "only-a")).code == 0
        await cluster.until_known("only-a", known=False)
