"""The controller as an application: folder, raft engine, sockets, name server, and their order.

`Controller` keeps no global state and touches no signals, so that several fit into one process.
`command_line` is the process of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from brokerset_acl.server_rules import CONTROLLER_RULES
from brokerset_controller.fresh_connections import FreshRequester
from brokerset_controller.liveness import Liveness
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.measurements import Measurements, timed
from brokerset_controller.node_folder import NodeFolder, claim, close_to_others
from brokerset_controller.processors import Processors
from brokerset_controller.service import ControllerService
from brokerset_namesrv.administration import Administration, server_sign
from brokerset_namesrv.app import NameServer
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subject_words import CONTROLLERS_KEY, CONTROLLERS_NAMESPACE
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.driver import RaftEngine, RaftSettings
from brokerset_raft.engine import EngineStatus
from brokerset_raft.messages import Message
from brokerset_raft.storage import Storage
from brokerset_raft.transport import TcpTransport
from brokerset_runtime.clock import Clock, SystemClock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.http import HttpEndpoint
from brokerset_runtime.remoting import Connection, RemotingServer, ServerLimits
from brokerset_runtime.remoting.audit_log import AuditLog
from brokerset_runtime.tls import Tls
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.setting_fields import setting_fields

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = structlog.get_logger(__name__)

T = TypeVar("T")

DRAIN_SECONDS_MAX: Final = 3.0
"""Longest time that requests in flight have to finish at the end."""

HAND_OVER_SECONDS_MAX: Final = 1.0
"""Longest time that an orderly end waits for another controller to lead."""

DISK_USAGE_SECONDS: Final = 10.0
"""How often the size of the folder is measured."""


class DiskThread:
    """The one thread that touches the raft folder; the loop never waits for the disk."""

    def __init__(self, clock: Clock, measurements: Measurements) -> None:
        self._clock = clock
        self._measurements = measurements
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="raft-disk")

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking work; returns or raises what it does."""
        since = self._clock.monotonic()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._measurements.disk_latency.observe(timed(self._clock.monotonic, since))

    def close(self) -> None:
        """Wait for what is being written; may be called more than once."""
        self._executor.shutdown()


class Controller:
    """One controller: `start`, `run` until cancelled, `close`."""

    def __init__(
        self,
        settings: ControllerSettings,
        clock: Clock | None = None,
        *,
        limits: ServerLimits | None = None,
    ) -> None:
        """Needs a running event loop only from `start` on."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._limits = limits or ServerLimits()
        self._measurements = Measurements()
        self._disk_thread = DiskThread(self._clock, self._measurements)
        self._tls: Tls | None = None
        self._asker = FreshRequester(sign=server_sign(settings))
        self._folder: NodeFolder | None = None
        self._disk: RealDisk | None = None
        self._transport: TcpTransport | None = None
        self._engine: RaftEngine | None = None
        self._service: ControllerService | None = None
        self._processors: Processors | None = None
        self._server: RemotingServer | None = None
        self._name_server: NameServer | None = None
        self._endpoint: HttpEndpoint | None = None
        self._running = False
        self._disk_bytes = 0
        self.port = 0
        """The port of the remoting protocol, once started."""

        self.http_port = 0
        """The port of the HTTP endpoint, once started; 0 without one."""

        self.namesrv_port = 0
        """The port of the name server in this process, once started; 0 without one."""

    @property
    def service(self) -> ControllerService:
        """The requests, for who embeds the controller."""
        assert self._service is not None, "start comes first"
        return self._service

    @property
    def running(self) -> bool:
        """Whether `run` is on."""
        return self._running

    @property
    def status(self) -> EngineStatus:
        """This node of the controllers' group."""
        assert self._engine is not None, "start comes first"
        return self._engine.status

    async def start(self) -> int:
        """Claim the folder, load the state, listen; returns the remoting port. `run` takes part in the group.

        Raises `FileLocked` or `WrongFolder` for the folder, `LogDamaged` for its content, `OSError` for a
        port that is taken or a disk that fails, `SettingsError` for files of TLS.
        """
        settings = self._settings
        if settings.tls_config_file is not None:
            self._tls = await asyncio.to_thread(Tls, settings.tls_config_file)
            self._asker = FreshRequester(self._tls, server_sign(settings))
        try:
            folder = self._folder = await self._disk_thread.run(
                lambda: claim(
                    settings.controller_store_path, settings.controller_group, settings.controller_self_id
                )
            )
            if settings.authentication_enabled:
                await self._disk_thread.run(lambda: close_to_others(folder.raft))
            await self._start_engine(folder.raft)
            await self._start_serving()
        except BaseException:
            await self.close()
            raise
        log.info(
            "controller listens",
            host=settings.bind_address,
            port=self.port,
            node=settings.controller_self_id,
            group=settings.controller_group,
            groups=len(self.service.machine.groups),
        )
        return self.port

    async def run(self) -> None:
        """Take part in the controllers' group, for as long as this task runs.

        Raises (in an `ExceptionGroup`) what the disk raised: a controller whose disk failed must not go on.
        """
        assert self._engine is not None, "start comes first"
        assert self._server is not None
        assert self._service is not None
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._engine.run())
                group.create_task(self._service.run())
                group.create_task(self._server.sweep_idle())
                group.create_task(self._check_disk_usage())
                if self._tls is not None:
                    group.create_task(self._tls.watch())
                if self._name_server is not None:
                    group.create_task(self._name_server.run())
        finally:
            self._running = False

    async def hand_over(self) -> None:
        """If this node leads, let another one lead; takes `HAND_OVER_SECONDS_MAX` at most, and needs `run`.

        Else the others would have to notice first that it is gone.
        """
        if self._processors is None or not self._running:
            return
        try:
            await self._processors.members.hand_over(HAND_OVER_SECONDS_MAX)
        except Rejected as rejected:
            log.info("leadership was not handed over", reason=rejected.remark)

    async def close(self) -> None:
        """Stop accepting, let requests finish for a while, close everything; may be called more than once."""
        name_server, self._name_server = self._name_server, None
        if name_server is not None:
            await name_server.close()
        server, self._server = self._server, None
        if server is not None:
            await server.close(DRAIN_SECONDS_MAX)
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.close()
        await self._asker.close()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()
        disk, self._disk = self._disk, None
        if disk is not None:
            await self._disk_thread.run(disk.close)
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.release()
        await asyncio.to_thread(self._disk_thread.close)

    # -- start --------------------------------------------------------------------------------------------

    async def _start_engine(self, raft_folder: Path) -> None:
        settings = self._settings
        disk = self._disk = await self._disk_thread.run(lambda: RealDisk(raft_folder))
        machine = ReplicasMachine()
        transport = self._transport = TcpTransport(
            settings.controller_group, settings.node_id, self._message_received, self._tls
        )
        engine = self._engine = RaftEngine(
            node_id=settings.node_id,
            initial=first_members(settings),
            storage=Storage(disk),
            state_machine=machine,
            transport=transport,
            random_source=random.SystemRandom(),
            settings=RaftSettings(
                tick_seconds=settings.raft_tick / 1000,
                election_ticks=settings.raft_election_ticks,
                snapshot_entries=settings.snapshot_entries,
            ),
            run_blocking=self._disk_thread.run,
            on_change=self._engine_changed,
        )
        await engine.start()
        raft_port = settings.raft_listen_port or port_of(settings.raft_addresses()[settings.node_id])
        await transport.listen(settings.bind_address, raft_port)
        self._service = ControllerService(
            settings=settings,
            engine=engine,
            machine=machine,
            liveness=Liveness(),
            clock=self._clock,
            asker=self._asker,
            measurements=self._measurements,
            source=random.SystemRandom(),
        )

    async def _start_serving(self) -> None:
        settings, service = self._settings, self.service
        port = settings.listen_port or port_of(settings.peers()[settings.node_id])
        in_force = replace(settings, listen_port=port)
        self._processors = Processors(service, in_force)
        service.use_settings(in_force)
        accounts = service.access.accounts
        administration = Administration(
            settings,
            CONTROLLER_RULES,
            checks=service.access.checks,
            clusters=service.machine.clusters,
            accounts=accounts,
            behind=service.access.behind,
            denied=self._measurements.requests_denied,
        )
        audit_log = AuditLog(
            CONTROLLER_RULES.rules,
            authenticates=settings.authentication_enabled,
            settings=setting_fields(ControllerSettings),
        )
        handlers = administration.around(audit_log.around(self._processors.handlers()))
        self._server = RemotingServer(
            handlers, limits=self._limits, on_close=self._connection_closed, tls=self._tls
        )
        self.port = await self._server.listen(settings.bind_address, port)
        if settings.enable_name_server:
            self._name_server = NameServer(
                NamesrvSettings(
                    listen_port=settings.namesrv_listen_port,
                    bind_address=settings.bind_address,
                    kv_config_path=settings.kv_config_path,
                    external_listen_port=settings.external_listen_port,
                    external_addresses_path=settings.external_addresses_path,
                    external_connections_max=settings.external_connections_max,
                    tls_config_file=settings.tls_config_file,
                    authentication_enabled=settings.authentication_enabled,
                    authorization_enabled=settings.authorization_enabled,
                    init_authentication_user=settings.init_authentication_user,
                    inner_client_authentication_credentials=settings.inner_client_authentication_credentials,
                    refusals_max=settings.refusals_max,
                ),
                clock=self._clock,
                provided={(CONTROLLERS_NAMESPACE, CONTROLLERS_KEY): self._controller_addresses},
                accounts=accounts,
            )
            self.namesrv_port = await self._name_server.start()
        if settings.http_port:
            self._endpoint = HttpEndpoint(
                alive=self._alive_problems, ready=self._ready_problems, metrics=self._metrics
            )
            self.http_port = await self._endpoint.start(settings.bind_address, settings.http_port, self._tls)

    def _controller_addresses(self) -> str | None:
        """Where clients reach the controllers; None before this one knows the members."""
        assert self._engine is not None
        members = self._engine.status.configuration.members
        return ";".join(each.service_address for each in members if each.service_address) or None

    # -- news ---------------------------------------------------------------------------------------------

    def _message_received(self, message: Message) -> None:
        if self._engine is not None:
            self._engine.receive(message)

    def _engine_changed(self, status: EngineStatus) -> None:
        if self._service is not None:
            self._service.engine_changed(status)

    def _connection_closed(self, connection: Connection) -> None:
        if self._service is not None:
            self._service.connection_closed(connection)

    # -- health -------------------------------------------------------------------------------------------

    def _alive_problems(self) -> list[str]:
        return [] if self._running else ["the controller's tasks do not run"]

    def _ready_problems(self) -> list[str]:
        if self._engine is None or self._server is None:
            return ["not listening"]
        return self._alive_problems() + engine_problems(self._engine.status)

    async def _check_disk_usage(self) -> None:
        while True:
            path = self._settings.controller_store_path
            self._disk_bytes = await asyncio.to_thread(folder_bytes, path)
            await asyncio.sleep(DISK_USAGE_SECONDS)

    def _metrics(self) -> CollectorRegistry:
        from brokerset_controller import metrics

        assert self._server is not None
        settings = self._settings
        identity = metrics.Identity(
            address=settings.peers()[settings.node_id],
            group=settings.controller_group,
            peer_id=settings.controller_self_id,
        )
        return metrics.registry(self.service, self._server, identity, self._disk_bytes)


def first_members(settings: ControllerSettings) -> Configuration:
    """The members that a node without data starts with; none for one that waits to be added."""
    if settings.raft_join:
        return Configuration()
    raft = settings.raft_addresses()
    return Configuration(
        tuple(
            Member(node_id, raft[node_id], address) for node_id, address in sorted(settings.peers().items())
        )
    )


def engine_problems(status: EngineStatus) -> list[str]:
    """Why a node of the controllers' group is not ready; empty when it is."""
    found = []
    if not status.configuration.members:
        found.append("waits to be added to the controllers' group (brokerset controller members add)")
    elif status.configuration.member(status.node_id) is None:
        found.append("is not a member of the controllers' group any more")
    if status.leader_id is None:
        found.append("no leader is known: more than half of the controllers must run and reach each other")
    elif status.leader_id == status.node_id and not status.leading:
        found.append("leads, but has not applied everything yet")
    if status.applied_index < status.commit_index:
        found.append(f"has applied {status.applied_index} of {status.commit_index} log entries")
    return found


def port_of(address: str) -> int:
    """The port of a `host:port`."""
    return int(address.rpartition(":")[2])


def folder_bytes(path: Path) -> int:
    """Bytes of all files in a folder and those inside; blocks. Files that vanish meanwhile do not count."""
    total = 0
    for root, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total
