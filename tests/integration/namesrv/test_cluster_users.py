"""A name server by itself with the users and policies of controllers, on real ports and files."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerset_acl.signatures import Credentials
from brokerset_namesrv.app import NameServer
from brokerset_namesrv.cluster_users import FILE_NAME
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.local_servers import running_name_server
from brokerset_rig.user_clusters import (
    HOST,
    ROOT,
    SECONDS_MAX,
    USERS,
    UserCluster,
    allow,
    client_at,
    create_user,
    delete_user,
    user_cluster,
)
from brokerset_rig.waiting import until

APP, BOSS = Credentials("app", "key"), Credentials("boss", "key")
READ = RequestCode.GET_NAMESRV_CONFIG
UNKNOWN_HERE = "User:app is not found."


@asynccontextmanager
async def name_server_of(cluster: UserCluster, folder: Path) -> AsyncIterator[NameServer]:
    controllers = ";".join(map(cluster.controllers.address, range(len(cluster.controllers.ports))))
    async with running_name_server(
        folder, **USERS, authorization_enabled=True, controller_addr=controllers
    ) as server:
        yield server


async def asked(server: NameServer, credentials: Credentials) -> tuple[int, str]:
    """Code and text of an administrator's request."""
    async with client_at(f"{HOST}:{server.port}", credentials) as client:
        answer = await client.call(READ)
        return answer.code, answer.remark or ""


async def until_asked(server: NameServer, credentials: Credentials, code: int, text: str = "") -> None:
    """Until the answer is this one."""
    found = (-1, "")

    async def differs() -> bool:
        nonlocal found
        found = await asked(server, credentials)
        return found[0] != code or text not in found[1]

    async with asyncio.timeout(SECONDS_MAX):
        while await differs():  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.02)


@pytest.mark.long
async def test_users_made_at_run_time_administer_a_name_server_by_itself(tmp_path: Path) -> None:
    """Super users and whom policies allow; until they are deleted. Who knows it by its file alone, while no
    controller answers, goes by that, and nobody else can read it."""
    folder = tmp_path / "names"
    async with user_cluster(tmp_path, {}) as cluster:
        address = cluster.controllers.address(0)
        async with name_server_of(cluster, folder) as server, client_at(address, ROOT) as root:
            assert await asked(server, ROOT) == (0, "")
            assert UNKNOWN_HERE in (await asked(server, APP))[1]
            await create_user(root, "boss", userType="Super")
            await create_user(root, "app")
            await until_asked(server, BOSS, 0)
            await until_asked(server, APP, ResponseCode.NO_PERMISSION, "no permission to access Cluster:*")
            await allow(root, "app", "Cluster:*", "Get")
            await until_asked(server, APP, 0)
            await delete_user(root, "boss")
            await until_asked(server, BOSS, ResponseCode.NO_PERMISSION, "User:boss is not found.")
        assert stat.S_IMODE((folder / FILE_NAME).stat().st_mode) == 0o600

        await cluster.controllers.stop(0)
        async with name_server_of(cluster, folder) as server:
            assert await asked(server, APP) == (0, "")
            assert (await asked(server, BOSS))[0] == ResponseCode.NO_PERMISSION

            await cluster.controllers.start(0)
            async with client_at(address, ROOT) as root:
                await until(lambda: cluster.controllers.running[0].status.leading, SECONDS_MAX)
                assert (await delete_user(root, "app")).code == 0
            await until_asked(server, APP, ResponseCode.NO_PERMISSION, UNKNOWN_HERE)


async def test_a_damaged_copy_is_left_out(tmp_path: Path) -> None:
    """The name server starts with the users of its settings, as the controllers have all others."""
    folder = tmp_path / "names"
    folder.mkdir()
    (folder / FILE_NAME).write_text('{"users":')
    async with user_cluster(tmp_path, {}) as cluster, name_server_of(cluster, folder) as server:
        assert await asked(server, ROOT) == (0, "")
        assert UNKNOWN_HERE in (await asked(server, APP))[1]
