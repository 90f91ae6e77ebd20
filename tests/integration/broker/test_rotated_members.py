"""The two users that members of a set have by settings get other passwords while everybody is checked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from brokerset_acl.signatures import WRONG_SIGNATURE, Credentials
from brokerset_broker.app import Broker
from brokerset_broker.member.role import Role
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message
from brokerset_client.producer import Producer
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.controller_group import ControllerGroup
from brokerset_rig.crashing_groups import CrashingGroup
from brokerset_rig.stack import free_ports
from brokerset_rig.user_clusters import HOST, allow, client_at, client_of, create_user
from brokerset_rig.waiting import until
from brokerset_spec.controller_settings import ControllerSettings

SECONDS_MAX: Final = 60.0
HOUR: Final = 3_600
CONTROLLERS: Final = 3
BROKERS: Final = 2
OLD_ROOT, NEW_ROOT = (Credentials("root", f"{age}-root-key") for age in ("old", "new"))
OLD_INNER, NEW_INNER = (Credentials("inner", f"{age}-inner-key") for age in ("old", "new"))
APP: Final = Credentials("app", "key")


def environment(root: Credentials, inner: Credentials) -> dict[str, Any]:
    """What the two variables of a member make of its settings."""
    return {
        "init_authentication_user": json.dumps({"username": root.access_key, "password": root.secret_key}),
        "inner_client_authentication_credentials": json.dumps(
            {"accessKey": inner.access_key, "secretKey": inner.secret_key}
        ),
    }


OLD, NEW = environment(OLD_ROOT, OLD_INNER), environment(NEW_ROOT, NEW_INNER)
CHECKING: Final[dict[str, Any]] = {"authentication_enabled": True, "authorization_enabled": True}


class Controllers(ControllerGroup):
    """Each with a name server in its process, and with the environment that it was started with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONTROLLERS, **CHECKING, raft_tick=10, enable_name_server=True)
        self.names = free_ports(CONTROLLERS)

    def settings(self, node_id: int, **more: object) -> ControllerSettings:
        """As of every group of controllers, with the ports of its name server."""
        names = {
            "namesrv_listen_port": self.names[node_id],
            "kv_config_path": self.folder / f"{node_id}.json",
        }
        return super().settings(node_id, **names, **more)


class RotatedSet:
    """Three controllers with name servers, and a group of two brokers."""

    def __init__(self, folder: Path) -> None:
        self.controllers = Controllers(folder / "controllers")
        self.namesrv = ";".join(f"{HOST}:{port}" for port in self.controllers.names)
        addresses = ";".join(map(self.controllers.address, range(CONTROLLERS)))
        common: dict[str, Any] = {
            **CHECKING, "broker_name": "a", "controller_addr": addresses, "enable_controller_mode": True,
            "namesrv_addr": self.namesrv, "register_name_server_period": 1_000, "broker_ip1": HOST,
            "sync_broker_metadata_period": 100, "broker_heartbeat_interval": 100,
        }  # fmt: skip
        self.settings = {number: {**common, **OLD} for number in range(BROKERS)}
        self.group = CrashingGroup(folder / "brokers", self.settings)

    async def leader(self) -> str:
        """The address of the controller that leads."""
        return self.controllers.address(await self.controllers.leader())

    async def whole(self) -> None:
        """Until each broker is in sync, registered at each name server, and has the users of the others."""
        brokers = self.group.brokers.values()

        def in_sync() -> bool:
            masters = [each for each in brokers if each.part.role().role is Role.MASTER]
            return len(masters) == 1 and len(masters[0].part.role().sync_state_set) == BROKERS

        await until(in_sync, SECONDS_MAX)
        await until(lambda: all(each.registrar.registered for each in brokers), SECONDS_MAX)
        await self.group.master()

    async def restart_controller(self, node_id: int, settings: dict[str, Any]) -> None:
        """End one in order, and start it again with another environment."""
        await self.controllers.stop(node_id, orderly=True)
        await self.controllers.leader()
        await self.controllers.start(node_id, **settings)
        await until(lambda: self.controllers.running[node_id].status.leader_id is not None, SECONDS_MAX)
        await self.whole()

    async def restart_broker(self, number: int, settings: dict[str, Any]) -> None:
        """The same of a broker."""
        self.settings[number].update(settings)
        await self.group.stop(number)
        await self.group.start(number)
        await self.whole()


@asynccontextmanager
async def rotated_set(folder: Path) -> AsyncIterator[RotatedSet]:
    """All processes run, with the old passwords."""
    found = RotatedSet(folder)
    async with AsyncExitStack() as stack:

        async def end_controllers() -> None:
            for node_id in list(found.controllers.running):
                await found.controllers.stop(node_id)

        stack.push_async_callback(end_controllers)
        for node_id in range(CONTROLLERS):
            await found.controllers.start(node_id, **OLD)
        await found.controllers.leader()
        stack.push_async_callback(found.group.end)
        for number in range(BROKERS):
            await found.group.start(number)
            await found.group.master()
        await found.whole()
        yield found


async def changed(address: str, signing: Credentials, wanted: Credentials, seconds: int) -> Command:
    """What a server answers who is to give a user another password, with the former one for so long."""
    async with client_at(address, signing) as client:
        body = json.dumps({"username": wanted.access_key, "password": wanted.secret_key}).encode()
        more: dict[str, Any] = {"formerPasswordSeconds": seconds} if seconds else {}
        return await client.call(RequestCode.AUTH_UPDATE_USER, body, username=wanted.access_key, **more)


async def refusal(address: str, signing: Credentials) -> str:
    """What is wrong with a signature at a server; empty if it is let in."""
    async with client_at(address, signing) as client:
        answer = await client.call(RequestCode.AUTH_LIST_USER)
    return "" if answer.code in (0, NOT_LEADER) else str(answer.remark)


NOT_LEADER: Final = 2007


async def send_until(ended: asyncio.Event, instance: ClientInstance, sent: list[str]) -> None:
    """Send one message after the other; the first send that fails ends it."""
    async with Producer("p", instance=instance, timeout=SECONDS_MAX) as producer:
        while not ended.is_set():
            receipt = await producer.send(Message(topic="t", body=b"x"))
            sent.append(receipt.message_id)
            await asyncio.sleep(0.01)


def all_know(brokers: list[Broker], names: set[str]) -> bool:
    """Whether each broker has these of the two users from the controllers."""
    both = {"root", "inner"}
    return all(each.access.book.users.keys() & both == names for each in brokers)


async def test_passwords_of_members_change_under_load_and_no_send_fails(tmp_path: Path) -> None:
    """Both count while members are restarted one at a time; then the old ones open nothing."""
    async with rotated_set(tmp_path) as found, AsyncExitStack() as stack:
        master = await found.group.master()
        async with client_of(master, OLD_ROOT) as root:
            await root.create_topic("t")
            assert (await create_user(root, "app")).code == 0
            assert (await allow(root, "app", "Topic:t", "Pub")).code == 0
        await until(
            lambda: all("app" in each.access.book.users for each in found.group.brokers.values()), SECONDS_MAX
        )
        instance = await stack.enter_async_context(ClientInstance(found.namesrv, credentials=APP))
        ended, sent = asyncio.Event(), list[str]()
        sending = asyncio.create_task(send_until(ended, instance, sent))
        await until(lambda: sent or sending.done(), SECONDS_MAX)

        for wanted in (NEW_INNER, NEW_ROOT):
            answer = await changed(await found.leader(), OLD_ROOT, wanted, HOUR)
            assert answer.code == 0, answer.remark
            assert int(answer.ext["formerUntil"]) > 0
        brokers = found.group.brokers
        await until(lambda: all_know(list(brokers.values()), {"root", "inner"}), SECONDS_MAX)
        for node_id in range(CONTROLLERS):
            await found.restart_controller(node_id, NEW)
        slaves = [number for number, each in brokers.items() if each.part.role().role is not Role.MASTER]
        for number in (*slaves, *(each for each in range(BROKERS) if each not in slaves)):
            await found.restart_broker(number, NEW)

        async with client_at(await found.leader(), NEW_ROOT) as root:
            for name in ("inner", "root"):
                answer = await root.call(RequestCode.AUTH_DELETE_USER, username=name)
                assert answer.code == 0, answer.remark
        await until(lambda: all_know(list(brokers.values()), set()), SECONDS_MAX)
        count = len(sent)
        await until(lambda: len(sent) > count or sending.done(), SECONDS_MAX)
        ended.set()
        await sending

        servers = [f"{HOST}:{each.port}" for each in brokers.values()]
        servers += map(found.controllers.address, range(CONTROLLERS))
        for address in servers:
            for old, new in ((OLD_ROOT, NEW_ROOT), (OLD_INNER, NEW_INNER)):
                assert WRONG_SIGNATURE in await refusal(address, old)
                assert await refusal(address, new) == ""
