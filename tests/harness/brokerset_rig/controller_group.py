"""Real controllers on loopback ports, and brokers that are only what controllers see of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from brokerset_controller.app import Controller
from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache, SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.codec import Header
from brokerset_protocol.headers.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    BrokerIdentityAnswer,
    ElectMaster,
    GetReplicaInfo,
    NotifyBrokerRoleChanged,
    RegisterBrokerToController,
    SwitchOver,
    SwitchOverResponse,
)
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection, ConnectionClosed, RemotingServer, connect
from brokerset_spec.controller_settings import ControllerSettings

HOST = "127.0.0.1"
SECONDS_MAX = 20.0
CLUSTER = "DefaultCluster"
GROUP = "broker-a"


class ControllerGroup:
    """Up to three controllers in this process, each with its folder under `folder`."""

    def __init__(self, folder: Path, count: int, **changes: object) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(count)]
        self.raft_ports = [free_port() for _ in range(count)]
        self.changes = changes
        self.running: dict[int, Controller] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def settings(self, node_id: int, **more: object) -> ControllerSettings:
        """The settings of one node."""
        values: dict[str, object] = {
            "controller_group": "test-controllers",
            "controller_self_id": f"n{node_id}",
            "controller_peers": ";".join(f"n{i}-{HOST}:{port}" for i, port in enumerate(self.ports)),
            "raft_peers": ";".join(f"n{i}-{HOST}:{port}" for i, port in enumerate(self.raft_ports)),
            "controller_store_path": self.folder / f"n{node_id}",
            "bind_address": HOST,
            "enable_name_server": False,
            "raft_tick": 20,
            "scan_not_active_broker_interval": 100,
            "scan_inactive_master_interval": 100,
        }
        return ControllerSettings(**(values | self.changes | more))  # type: ignore[arg-type]  # names and types of settings

    def address(self, node_id: int) -> str:
        """Where brokers reach a node."""
        return f"{HOST}:{self.ports[node_id]}"

    def add_node(self) -> int:
        """Ports for one more node; returns its id."""
        self.ports.append(free_port())
        self.raft_ports.append(free_port())
        return len(self.ports) - 1

    async def start(self, node_id: int, **more: object) -> Controller:
        """Start one node."""
        controller = Controller(self.settings(node_id, **more))
        await controller.start()
        self.running[node_id] = controller
        self._tasks[node_id] = asyncio.create_task(controller.run())
        return controller

    async def stop(self, node_id: int, *, orderly: bool = False) -> None:
        """End one node, in order or as a crash would."""
        controller, task = self.running.pop(node_id), self._tasks.pop(node_id)
        if orderly:
            await controller.hand_over()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await controller.close()

    async def ended(self, node_id: int) -> None:
        """Wait for a node that ends by itself; raises what ended it."""
        controller, task = self.running.pop(node_id), self._tasks.pop(node_id)
        try:
            await task
        finally:
            await controller.close()

    async def leader(self) -> int:
        """Wait for a node that leads and answers."""
        await until(lambda: any(controller.status.leading for controller in self.running.values()))
        return next(i for i, controller in self.running.items() if controller.status.leading)

    async def ask(self, node_id: int, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """The answer of one node over a connection of its own."""
        connection = await connect(self.address(node_id))
        try:
            ext = header.to_ext() if header is not None else {}
            return await connection.call(Command(code, ext, body), SECONDS_MAX)
        finally:
            connection.close()
            await connection.wait_closed()


@asynccontextmanager
async def controllers(folder: Path, count: int, **changes: object) -> AsyncIterator[ControllerGroup]:
    """A group whose nodes all run, and that has a leader."""
    group = ControllerGroup(folder, count, **changes)
    try:
        for node_id in range(count):
            await group.start(node_id)
        await group.leader()
        yield group
    finally:
        for node_id in list(group.running):
            await group.stop(node_id)


class FakeBroker:
    """A port that answers 1007 and hears 1008, and connections to controllers."""

    def __init__(self, broker_id: int, nonce: str | None = None) -> None:
        self.broker_id = broker_id
        self.nonce = nonce
        self.port = 0
        self.asked = 0
        self.epochs: tuple[EpochEntry, ...] = ()
        """Of its log; before the first election there is none, or the group would begin behind it."""

        self.notices: list[NotifyBrokerRoleChanged] = []
        self.answers: dict[str, BrokerHeartbeatAnswer] = {}
        """The last answer to a heartbeat, by controller."""

        self.switch_overs: list[SwitchOver] = []
        self.connections: dict[str, Connection] = {}
        self._server: RemotingServer | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def listen(self) -> None:
        """Take a port, the same again after `hang_up`."""
        self._server = RemotingServer(
            {
                RequestCode.GET_BROKER_EPOCH_CACHE: self._epochs,
                RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._notified,
                RequestCode.BROKERSET_SWITCH_OVER: self._switch_over,
            }
        )
        self.port = await self._server.listen(HOST, self.port or free_port())

    async def stop_listening(self) -> None:
        """Give the port up: questions are refused from now on."""
        server, self._server = self._server, None
        if server is not None:
            await server.close(0.1)

    async def hang_up(self) -> None:
        """Close all connections to controllers."""
        connections, self.connections = self.connections, {}
        for connection in connections.values():
            connection.close()
            await connection.wait_closed()

    async def kill(self) -> None:
        """What the death of a process looks like: no port, no connections."""
        await self.stop_listening()
        await self.hang_up()

    async def ask(
        self, address: str, code: int, header: Header, body: bytes = b"", *, fresh: bool = False
    ) -> Command:
        """Ask a controller over the connection that is kept to it, or a new one."""
        connection = self.connections.get(address)
        if connection is None or not connection.is_open or fresh:
            connection = self.connections[address] = await connect(address)
        return await connection.call(Command(code, header.to_ext(), body), SECONDS_MAX)

    async def ask_leader(
        self, group: ControllerGroup, code: int, header: Header, body: bytes = b""
    ) -> Command:
        """Ask whoever leads, as brokers do: 2007 or a lost connection means to look again."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                leader = await group.leader()
                try:
                    answer = await self.ask(group.address(leader), code, header, body)
                except ConnectionClosed:
                    continue
                if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    return answer
                await asyncio.sleep(0.01)

    async def join(self, group: ControllerGroup) -> None:
        """Apply for the id, register, beat."""
        await self.listen()
        applied = await self.ask_leader(
            group,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ApplyBrokerId(
                cluster_name=CLUSTER,
                broker_name=GROUP,
                applied_broker_id=self.broker_id,
                register_check_code=f"{self.address};1",
            ),
        )
        assert applied.code == 0, applied.remark
        registered = await self.register(group)
        assert registered.code == 0, registered.remark
        await self.beat(group)

    async def register(self, group: ControllerGroup, **more: object) -> Command:
        """1003."""
        header = RegisterBrokerToController(
            cluster_name=CLUSTER,
            broker_name=GROUP,
            broker_id=self.broker_id,
            broker_address=self.address,
            next_nonce=self.nonce,
            **more,  # type: ignore[arg-type]  # fields of the header
        )
        return await self.ask_leader(group, RequestCode.CONTROLLER_REGISTER_BROKER, header)

    async def beat(self, group: ControllerGroup, *, fresh: bool = False, timeout_ms: int = 3_000) -> None:
        """904 to every controller, two-way, so that it has been taken when this returns."""
        header = BrokerHeartbeat(
            cluster_name=CLUSTER,
            broker_addr=self.address,
            broker_name=GROUP,
            broker_id=self.broker_id,
            epoch=0,
            max_offset=100,
            confirm_offset=100,
            heartbeat_timeout_mills=timeout_ms,
            nonce=self.nonce,
        )
        for node_id in sorted(group.running):
            address = group.address(node_id)
            answer = await self.ask(address, RequestCode.BROKER_HEARTBEAT, header, fresh=fresh)
            assert answer.code == 0, answer.remark
            self.answers[address] = BrokerHeartbeatAnswer.from_ext(answer.ext)

    async def elect(self, group: ControllerGroup) -> Command:
        """1002."""
        header = ElectMaster(cluster_name=CLUSTER, broker_name=GROUP, broker_id=self.broker_id)
        return await self.ask_leader(group, RequestCode.CONTROLLER_ELECT_MASTER, header)

    async def info(self, group: ControllerGroup) -> tuple[Command, SyncStateSet]:
        """1004."""
        answer = await self.ask_leader(
            group, RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfo(broker_name=GROUP)
        )
        assert answer.code == 0, answer.remark
        return answer, SyncStateSet.from_json(answer.body)

    async def announce(self, group: ControllerGroup, ids: set[int]) -> None:
        """1001 of a master."""
        info, current = await self.info(group)
        answer = await self.ask_leader(
            group,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSet(
                broker_name=GROUP,
                master_broker_id=self.broker_id,
                master_epoch=int(info.ext["masterEpoch"]),
                invoke_time=1,
            ),
            SyncStateSet(frozenset(ids), current.sync_state_set_epoch).to_json(),
        )
        assert answer.code == 0, answer.remark

    def _epochs(self, connection: Connection, command: Command) -> Command:
        self.asked += 1
        if self.nonce is None:
            cache = EpochEntryCache(CLUSTER, GROUP, self.broker_id, self.epochs, 100)
            return command.reply(body=cache.to_json())
        header = BrokerIdentityAnswer(
            replica_id=self.broker_id, nonce=self.nonce, log_epoch=1, log_offset=100, registration="done"
        )
        return command.reply(ext=header.to_ext())

    def _switch_over(self, connection: Connection, command: Command) -> Command:
        header = SwitchOver.from_ext(command.ext)
        self.switch_overs.append(header)
        answer = SwitchOverResponse(master_broker_id=header.to_broker_id, master_epoch=9, pause_ms=12)
        return command.reply(ext=answer.to_ext())

    def _notified(self, connection: Connection, command: Command) -> None:
        self.notices.append(NotifyBrokerRoleChanged.from_ext(command.ext))


@asynccontextmanager
async def brokers(
    group: ControllerGroup, count: int = 3, *, ours: bool = False
) -> AsyncIterator[list[FakeBroker]]:
    """Brokers 1 to `count`, the first is master, all are in sync."""
    found = [FakeBroker(i, f"start-{i}" if ours else None) for i in range(1, count + 1)]
    try:
        for broker in found:
            await broker.join(group)
        elected = await found[0].elect(group)
        assert elected.code == 0, elected.remark
        for broker in found:
            broker.epochs = (EpochEntry(1, 0, 2**63 - 1),)
        if count > 1:
            await found[0].announce(group, set(range(1, count + 1)))
        yield found
    finally:
        for broker in found:
            await broker.kill()
