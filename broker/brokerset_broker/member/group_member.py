"""A broker as a member of its group: membership, replication, metadata and gateway, put together.

Everything here exists in controller mode only; `app` runs a broker without it when there are no controllers.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.member.cluster_access import ClusterAccess
from brokerset_broker.member.core import Serve
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.gateway.forwarding import PASS_ON_SECONDS
from brokerset_broker.member.gateway.gateway import Guard
from brokerset_broker.member.group_port import GroupPort
from brokerset_broker.member.ha.ha_status import HaStatusProcessor
from brokerset_broker.member.ha.views import ReplicationStatus
from brokerset_broker.member.member_service import MemberPlace, MemberService
from brokerset_broker.member.member_table import member_table
from brokerset_broker.member.membership.crash_point import crash_point
from brokerset_broker.member.membership.identity_folder import IdentityFolder
from brokerset_broker.member.membership.membership import epoch_path, identity_path
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.member.service_mode import ModeKind
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.store.folder import boot_id
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_broker.tables.metadata.store_source import StoreSource
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.remoting import Handler

log = structlog.get_logger(__name__)

HAND_OVER_SECONDS_MAX: Final = 1.5
"""How long the end of a master may be delayed so that another replica takes over before it."""

STOPPED_TOGETHER_SECONDS: Final = 0.1
"""How long the end of a master waits for replicas that are stopped with it to close their connections: none
of them is to be master for a moment, and be the last one in sync."""

LAST_ANSWERS_SECONDS_MAX: Final = 0.5
"""How long the end of a master waits for replicas that are connected to acknowledge the last sends."""

DISK_FAILED_MS: Final = 24 * 3_600_000
"""What a broker whose disk has failed tells as the age of its oldest append."""

MASTERS_KNOWN_MAX: Final = 16
"""Masters whose HA address name servers have told; the oldest goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """The parts of the broker that its role decides about."""

    live: LiveSettings
    store: MessageStore
    """Loaded."""

    log: MemberLog
    """Made before the store was loaded."""

    tables: Tables
    services: RoleServices
    admission: Admission
    clock: Clock
    role_taken: Callable[[RoleState], None]
    """Gets every role when it is taken."""

    register_again: Callable[[], None]
    """Has name servers told soon who this is."""

    own_address: Callable[[], str]
    source: StoreSource
    random_source: random.Random = field(default_factory=random.SystemRandom)
    """Of the name of this start."""


class MemberLog(StoreReplicaLog):
    """The store as replication sees it; others hear what is truncated, and that files were deleted."""

    def __init__(self, store: MessageStore) -> None:
        self._on_truncated: list[Callable[[int], None]] = []
        self._on_deleted: list[Callable[[], None]] = []
        super().__init__(store)

    def on_truncated(self, listener: Callable[[int], None]) -> None:
        """Have `listener` called with the new end after each truncation."""
        self._on_truncated.append(listener)

    def on_deleted(self, listener: Callable[[], None]) -> None:
        """Have `listener` called when old files of the log were deleted."""
        self._on_deleted.append(listener)

    def files_deleted(self) -> None:
        """Retention has deleted files."""
        super().files_deleted()
        for listener in self._on_deleted:
            listener()

    async def truncate(self, offset: int, *, keep_copy: bool) -> None:
        await super().truncate(offset, keep_copy=keep_copy)
        self._report_truncation(offset)

    async def begin_at(self, offset: int) -> None:
        await super().begin_at(offset)
        self._report_truncation(offset)

    def _report_truncation(self, offset: int) -> None:
        for listener in self._on_truncated:
            listener(offset)


class UnservedTime:
    """Counts the time in which a broker that is no slave takes no writes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = clock.monotonic()
        self._before = 0.0

    def note(self, unserved: bool) -> None:
        """What holds from now on."""
        if unserved and self._since is None:
            self._since = self._clock.monotonic()
        elif not unserved:
            self._before = self.seconds()
            self._since = None

    def seconds(self) -> float:
        """All of it, since the start."""
        return self._before + (0.0 if self._since is None else self._clock.monotonic() - self._since)


class GroupMember(MemberService):
    """Life: make it when the store is loaded, `handlers` for the server, `run`, `close`."""

    log: MemberLog
    metadata: MetadataLog

    def __init__(self, parts: MemberParts, port: GroupPort) -> None:
        """Raises `EpochsDamaged`."""
        settings = parts.live.current
        self._parts = parts
        self._port = port
        self._unserved = UnservedTime(parts.clock)
        self._led_until: float | None = None
        """When this broker's last mastership ended."""

        self._ha_addresses: dict[str, str] = {}
        path, identity = epoch_path(settings), identity_path(settings)
        epochs = EpochFile(RealDisk(path.parent), path.name)
        epochs.load(parts.log.max_offset)
        folder = IdentityFolder(RealDisk(identity.parent), identity.name)
        if parts.store.cache_lost and folder.note_loss():
            parts.store.loss_noted()
        super().__init__(
            MemberPlace(
                settings=lambda: parts.live.current,
                clock=parts.clock,
                asker=port.asker,
                admission=parts.admission,
                services=parts.services,
                log=parts.log,
                epochs=epochs,
                identity=folder,
                network=port.network,
                random_source=parts.random_source,
                closed_cleanly=parts.store.closed_cleanly,
                boot_id=boot_id(),
                run_blocking=asyncio.to_thread,
                flushed=parts.store.when_flushed,
                step_done=crash_point(os.environ),
            )
        )
        self.cluster_access = ClusterAccess(
            table=parts.tables.access,
            ask=self.membership.controllers.ask,
            broker_name=settings.broker_name,
            mastership=self._mastership,
        )
        self.membership.on_access_version = self.cluster_access.version_heard
        parts.log.on_deleted(self._files_deleted)
        port.listen()
        log.info("controllers give id and role; brokerId and brokerRole of the settings are ignored")

    def make_metadata(self) -> MetadataLog:
        """The metadata log of the store."""
        parts = self._parts
        metadata = MetadataLog(
            settings=lambda: parts.live.current,
            store=parts.source,
            tables=parts.tables,
            stamp=StampFile(RealDisk(parts.live.current.store_path_root_dir / "config")),
            run_blocking=asyncio.to_thread,
            when_confirmed=self.replication.when_acknowledged,
            asker=self._asker,
            master=self.metadata_master,
        )
        metadata.load()
        parts.log.on_truncated(metadata.truncated)
        parts.store.retention.keep_from = metadata.keep_from
        return metadata

    def handlers(self, served: Mapping[int, Handler], guard: Guard | None = None) -> dict[int, Handler]:
        """The table for the server; it changes with the role. `guard` is put around all of it."""
        self.gateway.guard = guard
        status = HaStatusProcessor(self.replication.status, lambda: self._parts.clock.now_ms())
        return self.serve_with({**served, **status.handlers()})

    def started(self) -> None:
        """The ports are open; services start with the role."""

    async def run(self) -> None:
        """Be a member for as long as this task runs."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self.cluster_access.run())

    def _mastership(self) -> tuple[int, int] | None:
        """Id and epoch of this broker as a master that serves."""
        broker_id = self.membership.broker_id
        if broker_id is None or not self.membership.may_serve():
            return None
        return broker_id, self.core.role.epoch

    @property
    def changes(self) -> ChangeLog:
        """Changes of the tables go by way of the log."""
        return self.metadata

    async def written(self) -> None:
        """Everything is in the files of config/: the stamp may say so."""
        await self.metadata.close()

    def role(self) -> RoleState:
        """The role, and what belongs to it."""
        return self.core.role

    def broker_id(self) -> int | None:
        """The persistent id; None until it is granted."""
        return self.membership.broker_id

    def role_id(self) -> int | None:
        """The id that name servers are told: 0 for a master, None while there is nothing to register."""
        return {Role.MASTER: 0, Role.SLAVE: self.membership.broker_id, Role.NONE: None}[self.core.role.role]

    def loss_is_known(self) -> bool:
        """Whether a crash before this start is no news any more, so that the store may count as closed."""
        return self.membership.loss_is_known

    def problems(self) -> list[str]:
        """Why this broker is not ready."""
        found = self.membership.diagnosis()
        if not found.ready:
            return [f"{found.problem}; {found.advice}"]
        lack = self.problem()
        return [] if lack is None else [lack]

    def problem(self) -> str | None:
        """Why clients cannot use this broker fully although it has a role; None when they can."""
        status = self.replication.status()
        if self.membership.role is Role.MASTER and not status.enough_in_sync:
            return (
                f"{len(status.sync_state_set)} replicas are in sync, and minInSyncReplicas is"
                f" {status.min_in_sync}: sends are refused; `brokerset status` tells who does not follow"
            )
        if self._parts.live.current.ready_only_in_sync and self.membership.role is Role.SLAVE:
            return self._not_in_sync(status)
        return None

    def _not_in_sync(self, status: ReplicationStatus) -> str | None:
        """Why a slave must not be relied on; None also for a fenced one, which nobody waits for."""
        in_sync, broker_id = status.sync_state_set, self.membership.broker_id
        if not in_sync or broker_id in in_sync or self.membership.fenced:
            return None
        shown = ", ".join(map(str, sorted(in_sync)))
        why = status.follower.problem or "it catches up with the master"
        return f"broker {broker_id} is not in sync, only {shown} are: {why}"

    async def hand_over_at_end(self) -> None:
        """Before a master ends in order, another replica takes over, if one can without delay.

        Who has handed over lately ends when the group's Service leads to the next master.
        """
        if self.membership.role is Role.MASTER and self.membership.registered:
            self.replication.keep_set(True)
            await asyncio.sleep(STOPPED_TOGETHER_SECONDS)
            if not any(each.in_sync for each in self.replicas()):
                return
            self.replication.keep_set(False)
            if not await self.switch_over.hand_over(HAND_OVER_SECONDS_MAX):
                return
            self._led_until = self._parts.clock.monotonic()
        if self._led_until is not None and self._parts.live.current.master_endpoint_slice:
            led_ago = self._parts.clock.monotonic() - self._led_until
            await asyncio.sleep(max(0.0, PASS_ON_SECONDS - led_ago))

    async def answer_at_end(self) -> None:
        """When no sends are taken any more, those that wait for replicas are answered, soon."""
        await self.replication.end(LAST_ANSWERS_SECONDS_MAX)

    async def close(self) -> None:
        """End what is on its way, when `run` has ended; the store is still open."""
        await self.switch_over.close()
        await self.forwarder.close()
        await self._port.close()

    # -- who this is --------------------------------------------------------------------------------------

    def ha_address(self) -> str:
        """`host:port` where slaves connect."""
        settings = self._parts.live.current
        host = settings.broker_ip2 or settings.broker_ip1
        port = self._port.number
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def master_named(self, ha_address: str | None, address: str | None) -> None:
        """A name server told who is master: where a Java master's HA port is, nobody else knows."""
        if ha_address and address:
            self._ha_addresses.pop(address, None)
            self._ha_addresses[address] = ha_address
            while len(self._ha_addresses) > MASTERS_KNOWN_MAX:
                del self._ha_addresses[next(iter(self._ha_addresses))]

    def own_address(self) -> str:
        """Of the remoting port, as others reach it."""
        return self._parts.own_address()

    def java_ha_address(self, address: str) -> str | None:
        """The HA address that name servers tell for a Java master's remoting address."""
        return self._ha_addresses.get(address)

    # -- what a role does to the other parts --------------------------------------------------------------

    def tell_name_servers(self) -> None:
        """Register again soon."""
        self._parts.register_again()

    def role_taken(self, before: RoleState, after: RoleState) -> None:
        """The role that everybody sees is another one."""
        if before.role is Role.MASTER and after.role is not Role.MASTER:
            self._led_until = self._parts.clock.monotonic()
        self._parts.role_taken(after)
        super().role_taken(before, after)

    def serve(self, service: Serve) -> None:
        """Serve, hold, forward or refuse; time without service is counted."""
        super().serve(service)
        served = service.modes.writes.kind is ModeKind.SERVE
        self._unserved.note(self.core.role.role is not Role.SLAVE and not served)

    def stopped_reason(self) -> str | None:
        """Why nothing can be served although there is a role."""
        return self._parts.store.stopped

    def _files_deleted(self) -> None:
        """The log begins later now: epochs that ended before that say nothing any more."""
        if self._tasks is not None and not self._closing:
            self._tasks.create_task(self._forget_epochs(self.log.min_offset))

    async def _forget_epochs(self, offset: int) -> None:
        try:
            await asyncio.to_thread(self._epochs.forget_before, offset)
        except OSError as error:
            log.warning("epochs of deleted files stay in the epoch file", error=str(error))

    def append_age_ms(self) -> int | None:
        """How long the log has not taken what was appended; without end when its disk has failed.

        The controllers then take the mastership away, and elect another replica.
        """
        store = self._parts.store
        return DISK_FAILED_MS if store.stopped is not None and not self._closing else store.append_age_ms

    # -- what people see ----------------------------------------------------------------------------------

    def unserved_seconds(self) -> float:
        """Time in which this broker was no slave and took no writes, since its start."""
        return self._unserved.seconds()

    def lease_seconds(self) -> float | None:
        """What is left of the lease; None for who is no master, or needs none."""
        membership = self.membership
        if membership.role is not Role.MASTER or not self.core.lease.required:
            return None
        left = self.core.lease.ends_at - self._parts.clock.monotonic()
        return max(0.0, left) if membership.may_serve() else 0.0

    def table(self) -> dict[str, str]:
        """Facts for GET_BROKER_RUNTIME_INFO (28)."""
        return member_table(
            self.membership,
            self.replication.status(),
            lease_seconds=self.lease_seconds() if self.core.lease.required else None,
            lease_required=self.core.lease.required,
            max_offset=self.log.received_end,
            ha_address=self.ha_address(),
            metadata_applied=self.metadata.status().applied_offset,
        )
