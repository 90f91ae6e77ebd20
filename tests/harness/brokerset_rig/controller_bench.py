"""A controller's service on an engine that agrees with itself, a clock that a test moves, and scripted brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from brokerset_acl.signatures import ACCESS_KEY
from brokerset_controller.liveness import Liveness
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.processors import Processors
from brokerset_controller.service import ControllerService
from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.codec import Header
from brokerset_protocol.headers.controller import (
    ApplyBrokerId,
    BrokerHeartbeat,
    BrokerIdentityAnswer,
    ElectMaster,
    RegisterBrokerToController,
)
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.engine import EngineStatus, NotLeader, Role
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import Connection
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_spec.controller_settings import ControllerSettings

SECONDS_MAX = 10.0
GROUP = "broker-a"
CLUSTER = "DefaultCluster"

STATUS = EngineStatus(
    node_id=0,
    role=Role.LEADER,
    term=3,
    leader_id=0,
    leading=True,
    last_index=7,
    commit_index=7,
    applied_index=7,
    snapshot_index=0,
    configuration=Configuration(
        tuple(Member(i, f"127.0.0.1:{19875 + 10 * i}", f"127.0.0.1:{19876 + 10 * i}") for i in range(3))
    ),
    match_indexes={0: 7, 1: 7, 2: 5},
)


class FakeEngine:
    """Agrees at once with what it is told; a test says what comes in between."""

    def __init__(self, machine: ReplicasMachine) -> None:
        self.machine = machine
        self.status = STATUS
        self.index = 7
        self.proposed: list[bytes] = []
        self.barriers = 0
        self.changes: list[tuple[str, object]] = []
        self.before_propose: Callable[[], Awaitable[None]] | None = None
        self.before_barrier: Callable[[], Awaitable[None]] | None = None
        self.change_error: Exception | None = None

    def follow(self, leader_id: int | None) -> None:
        """Lead no longer."""
        self.status = replace(self.status, role=Role.FOLLOWER, leader_id=leader_id, leading=False)

    async def propose(self, data: bytes, timeout: float | None = None) -> object:
        if self.before_propose is not None:
            hook, self.before_propose = self.before_propose, None
            await hook()
        await asyncio.sleep(0)
        if not self.status.leading:
            raise NotLeader(self.status.leader_id)
        self.proposed.append(data)
        return self.commit(data)

    def commit(self, data: bytes) -> object:
        """Apply an entry, as if it came from another controller."""
        self.index += 1
        return self.machine.apply(self.index, data)

    async def read_barrier(self, timeout: float | None = None) -> None:
        self.barriers += 1
        if self.before_barrier is not None:
            hook, self.before_barrier = self.before_barrier, None
            await hook()
        await asyncio.sleep(0)
        if not self.status.leading:
            raise NotLeader(self.status.leader_id)

    async def add_learner(self, member: Member) -> None:
        await self._change("add", member)

    async def promote(self, node_id: int) -> None:
        await self._change("promote", node_id)

    async def remove(self, node_id: int) -> None:
        await self._change("remove", node_id)

    async def transfer(self, node_id: int) -> None:
        await self._change("transfer", node_id)

    async def take_snapshot(self) -> int:
        return self.index

    async def _change(self, what: str, value: object) -> None:
        if self.change_error is not None:
            raise self.change_error
        self.changes.append((what, value))


@dataclass
class FakeBroker:
    """What answers at an address: a Java broker without a nonce, or one of ours."""

    broker_id: int
    nonce: str | None = None
    broker_name: str = GROUP
    silent: bool = False
    epoch: int = 1
    max_offset: int = 100
    append_age_ms: int | None = None
    lost_cache: bool | None = None
    asked: int = 0

    def answer(self, command: Command) -> Command:
        self.asked += 1
        if self.nonce is not None:
            header = BrokerIdentityAnswer(
                replica_id=self.broker_id,
                nonce=self.nonce,
                log_epoch=self.epoch,
                log_offset=self.max_offset,
                registration="done",
                append_age_ms=self.append_age_ms,
                lost_cache=self.lost_cache,
            )
            return command.reply(ext=header.to_ext())
        body = EpochEntryCache(
            CLUSTER,
            self.broker_name,
            self.broker_id,
            (EpochEntry(self.epoch, 0, 2**63 - 1),),
            self.max_offset,
        )
        return command.reply(body=body.to_json())


class FakeNet:
    """An `Asker` to brokers by address; where nobody is, the connection is refused."""

    def __init__(self) -> None:
        self.brokers: dict[str, FakeBroker] = {}
        self.told: list[tuple[str, Command]] = []
        self.changed = asyncio.Event()

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        await asyncio.sleep(0)
        self.changed.set()
        broker = self.brokers.get(address)
        if broker is None:
            raise ConnectionClosed("nobody listens") from ConnectionRefusedError()
        if broker.silent:
            broker.asked += 1
            raise RequestTimeout("no answer")
        return broker.answer(command)

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        if address not in self.brokers:
            raise ConnectionClosed("nobody listens")
        self.told.append((address, command))
        self.changed.set()


class FakeConnection:
    """A key with a peer's address."""

    def __init__(self, port: int = 40_000) -> None:
        self.peer = ("127.0.0.1", port)


@dataclass
class Bench:
    """Everything that a test of the service touches."""

    settings: ControllerSettings
    machine: ReplicasMachine = field(default_factory=ReplicasMachine)
    clock: ManualClock = field(default_factory=ManualClock)
    net: FakeNet = field(default_factory=FakeNet)
    liveness: Liveness = field(default_factory=Liveness)
    sender: str | None = None
    """Who sends requests, as the check before the handlers has found; None: they say nothing of it."""

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.machine)
        self.service = ControllerService(
            settings=self.settings,
            engine=self.engine,
            machine=self.machine,
            liveness=self.liveness,
            clock=self.clock,
            asker=self.net,
        )
        self.processors = Processors(self.service, self.settings)
        self.connection = FakeConnection()

    async def ask(
        self,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        connection: FakeConnection | None = None,
        flag: int = 0,
    ) -> Command:
        """The answer to a request, as the server would send it."""
        ext = header.to_ext() if isinstance(header, Header) else dict(header or {})
        if self.sender is not None:
            ext = {ACCESS_KEY: self.sender, **ext}
        command = Command(code, ext, body, flag=flag)
        peer: Connection = connection or self.connection  # type: ignore[assignment]  # handlers use no more of it
        try:
            reply = self.processors.handlers()[code](peer, command)
            if not isinstance(reply, Command):
                reply = await reply  # type: ignore[misc]  # a coroutine is all that is left
        except Rejected as rejected:
            return command.reply(rejected.code, rejected.remark)
        assert isinstance(reply, Command)
        return reply

    async def join(self, broker_id: int, nonce: str | None = None, **more: object) -> str:
        """Register a broker that answers at its address; returns the address."""
        address = f"10.0.0.{broker_id}:10911"
        applied = await self.ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ApplyBrokerId(
                cluster_name=CLUSTER,
                broker_name=GROUP,
                applied_broker_id=broker_id,
                register_check_code=f"{address};1",
            ),
        )
        assert applied.code == 0, applied.remark
        self.net.brokers[address] = FakeBroker(broker_id, nonce)
        registered = await self.register(broker_id, nonce, **more)
        assert registered.code == 0, registered.remark
        return address

    async def register(self, broker_id: int, nonce: str | None = None, **more: object) -> Command:
        """1003 of a broker at its usual address."""
        header = RegisterBrokerToController(
            cluster_name=CLUSTER,
            broker_name=GROUP,
            broker_id=broker_id,
            broker_address=str(more.pop("address", f"10.0.0.{broker_id}:10911")),
            next_nonce=nonce,
            **more,  # type: ignore[arg-type]  # fields of the header
        )
        return await self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, header)

    async def beat(
        self,
        broker_id: int,
        nonce: str | None = None,
        *,
        connection: FakeConnection | None = None,
        flag: int = 0,
        **more: object,
    ) -> Command:
        """904."""
        header = BrokerHeartbeat(
            cluster_name=CLUSTER,
            broker_addr=f"10.0.0.{broker_id}:10911",
            broker_name=GROUP,
            broker_id=broker_id,
            epoch=1,
            max_offset=100,
            confirm_offset=100,
            heartbeat_timeout_mills=3_000,
            nonce=nonce,
            **more,  # type: ignore[arg-type]  # fields of the header
        )
        return await self.ask(RequestCode.BROKER_HEARTBEAT, header, connection=connection, flag=flag)

    async def elect(self, broker_id: int, **more: object) -> Command:
        """1002."""
        header = ElectMaster(cluster_name=CLUSTER, broker_name=GROUP, broker_id=broker_id, **more)  # type: ignore[arg-type]  # fields of the header
        return await self.ask(RequestCode.CONTROLLER_ELECT_MASTER, header)

    async def in_sync(self, master_id: int, ids: set[int]) -> None:
        """Let the master announce the in-sync set."""
        from brokerset_protocol.bodies.replicas import SyncStateSet
        from brokerset_protocol.headers.controller import AlterSyncStateSet

        group = self.machine.groups[GROUP]
        answer = await self.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSet(
                broker_name=GROUP, master_broker_id=master_id, master_epoch=group.master_epoch, invoke_time=1
            ),
            SyncStateSet(frozenset(ids), group.sync_state_set_epoch).to_json(),
        )
        assert answer.code == 0, answer.remark

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the service's tasks work until the condition holds."""
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():  # noqa: ASYNC110  # state changes in many ways, none tells
                await asyncio.sleep(0.001)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With scans, questions, elections and notices."""
        task = asyncio.create_task(self.service.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def make_bench(**changes: object) -> Bench:
    """A bench with short intervals."""
    values: dict[str, object] = {"scan_not_active_broker_interval": 10, "scan_inactive_master_interval": 10}
    return Bench(ControllerSettings(**(values | changes)))  # type: ignore[arg-type]  # names and types of settings
