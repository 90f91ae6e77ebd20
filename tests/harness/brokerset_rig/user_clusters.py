"""Controllers that check who administers, and groups of brokers that check everybody, in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerset_acl.signatures import Credentials
from brokerset_broker.app import Broker
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.controller_group import ControllerGroup
from brokerset_rig.crashing_groups import CrashingGroup
from brokerset_rig.local_servers import Client
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import connect

SECONDS_MAX: Final = 60.0
HOST: Final = "127.0.0.1"

ROOT: Final = Credentials("root", "root-key")

USERS: Final[dict[str, Any]] = {
    "authentication_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
    "inner_client_authentication_credentials": json.dumps({"accessKey": "inner", "secretKey": "inner-key"}),
}
"""Settings of controllers and brokers alike."""


@dataclass
class UserCluster:
    """The processes."""

    controllers: ControllerGroup
    groups: dict[str, CrashingGroup]

    async def broker(self, name: str) -> Broker:
        """The master of a group."""
        return await self.groups[name].master()

    def brokers(self) -> list[Broker]:
        """All that run."""
        return [broker for group in self.groups.values() for broker in group.brokers.values()]

    async def until_known(self, name: str, *, known: bool = True) -> None:
        """Until every broker of every group knows a user, or does not know it any more."""
        await until(
            lambda: all((name in broker.access.book.users) is known for broker in self.brokers()), SECONDS_MAX
        )

    async def restart_controllers(self, **changes: object) -> None:
        """End all of them as a crash would, and start them again on their folders."""
        running = list(self.controllers.running)
        for node_id in running:
            await self.controllers.stop(node_id)
        self.controllers.changes.update(changes)
        for node_id in running:
            await self.controllers.start(node_id)
        await self.controllers.leader()


@asynccontextmanager
async def user_cluster(
    folder: Path,
    groups: Mapping[str, int],
    *,
    controllers: int = 1,
    of_brokers: Mapping[str, object] | None = None,
    **changes: object,
) -> AsyncIterator[UserCluster]:
    """`groups`: how many brokers each has. `changes` of the controllers' settings; `of_brokers` of theirs."""
    found = ControllerGroup(folder / "controllers", controllers, **{**USERS, "raft_tick": 10, **changes})
    cluster = UserCluster(found, {})
    async with AsyncExitStack() as stack:
        for node_id in range(controllers):
            await found.start(node_id)
        stack.push_async_callback(_end, found)
        await found.leader()
        addresses = ";".join(map(found.address, range(controllers)))
        for name, count in groups.items():
            settings = {
                **_SETTINGS, "broker_name": name, "controller_addr": addresses, **(of_brokers or {})
            }  # fmt: skip
            group = CrashingGroup(folder / name, dict.fromkeys(range(count), settings))
            cluster.groups[name] = group
            stack.push_async_callback(group.end)
            for number in range(count):
                await group.start(number)
                await group.master()
        for group in cluster.groups.values():
            await until(lambda group=group: _in_sync(group) == len(group.brokers), SECONDS_MAX)  # type: ignore[misc]  # the group of this turn
        yield cluster


_SETTINGS: Final[dict[str, Any]] = {
    **USERS,
    "authorization_enabled": True,
    "enable_controller_mode": True,
    "sync_broker_metadata_period": 100,
    "broker_heartbeat_interval": 100,
}


def _in_sync(group: CrashingGroup) -> int:
    return max(len(broker.part.role().sync_state_set) for broker in group.brokers.values())


async def _end(controllers: ControllerGroup) -> None:
    for node_id in list(controllers.running):
        await controllers.stop(node_id)


@asynccontextmanager
async def client_at(address: str, credentials: Credentials | None) -> AsyncIterator[Client]:
    """A connection that signs."""
    connection = await connect(address, sign=None if credentials is None else credentials.sign)
    try:
        yield Client(connection)
    finally:
        connection.close()
        await connection.wait_closed()


def client_of(broker: Broker, credentials: Credentials | None = ROOT) -> Any:
    """`client_at` of a broker."""
    return client_at(f"{HOST}:{broker.port}", credentials)


async def create_user(client: Client, name: str, password: str = "key", **more: str) -> Command:
    """AUTH_CREATE_USER (3001)."""
    body = json.dumps({"username": name, "password": password, **more}).encode()
    return await client.call(RequestCode.AUTH_CREATE_USER, body, username=name)


async def delete_user(client: Client, name: str) -> Command:
    """AUTH_DELETE_USER (3003)."""
    return await client.call(RequestCode.AUTH_DELETE_USER, username=name)


async def allow(client: Client, name: str, resource: str, *actions: str) -> Command:
    """AUTH_CREATE_ACL (3006)."""
    entry = {"resource": resource, "actions": actions, "decision": "Allow"}
    body = json.dumps({"subject": f"User:{name}", "policies": [{"entries": [entry]}]}).encode()
    return await client.call(RequestCode.AUTH_CREATE_ACL, body, subject=f"User:{name}")
