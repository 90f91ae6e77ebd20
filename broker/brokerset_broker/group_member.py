"""A broker as a member of its group: membership, replication, metadata and gateway, put together.

Everything here exists in controller mode only; `app` runs a broker without it when there are no controllers.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from brokerset_broker.gateway.service_mode import ModeKind, Modes
from brokerset_broker.ha.tcp_links import TcpHaNetwork
from brokerset_broker.ha.views import ReplicationStatus
from brokerset_broker.member_service import MemberPlace, MemberService, ServiceParts
from brokerset_broker.member_table import member_table
from brokerset_broker.membership.crash_point import crash_point
from brokerset_broker.membership.epoch_file import EpochFile
from brokerset_broker.membership.identity_folder import IdentityFolder
from brokerset_broker.membership.membership import epoch_path, identity_path
from brokerset_broker.membership.role import Role, RoleChange
from brokerset_broker.metadata.metadata_log import MetadataLog
from brokerset_broker.metadata.stamp import StampFile
from brokerset_broker.metadata.store_source import StoreSource
from brokerset_broker.metadata.tables import Tables
from brokerset_broker.processors.ha_status import HaStatusProcessor
from brokerset_broker.store.folder import boot_id
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_runtime.asking import PoolAsker
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.remoting import ConnectionPool, Handler

if TYPE_CHECKING:
    from brokerset_broker.admission import Admission
    from brokerset_broker.delay import DelayService
    from brokerset_broker.groups import GroupManager
    from brokerset_broker.offsets import OffsetManager
    from brokerset_broker.registration import Registrar
    from brokerset_broker.settings_update import LiveSettings
    from brokerset_broker.store.message_store import MessageStore
    from brokerset_broker.topics import TopicManager

log = structlog.get_logger(__name__)

HAND_OVER_SECONDS_MAX: Final = 1.5
"""How long the end of a master may be delayed so that another replica takes over before it."""

STOPPED_TOGETHER_SECONDS: Final = 0.1
"""How long the end of a master waits for replicas that are stopped with it to close their connections: none
of them is to be master for a moment, and be the last one in sync."""

PASS_ON_SECONDS: Final = 2.0
"""How long a broker behind a `-master` Service of Kubernetes passes requests on when its mastership is over,
before it ends: kube-proxy leads clients elsewhere within `minSyncPeriod`, 1 s unless somebody has changed it,
and what the change itself takes."""

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
    topics: TopicManager
    groups: GroupManager
    offsets: OffsetManager
    delay: DelayService
    admission: Admission
    registrar: Registrar
    clock: Clock
    on_reset: Callable[[str, int], None]
    """Gets topic and queue id of offsets that were set from outside."""


class _MemberLog(StoreReplicaLog):
    """The store as replication sees it; what is cut off is also told to the metadata."""

    on_cut: Callable[[int], None] = staticmethod(lambda _offset: None)
    on_deleted: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        forget_files = store.retention.after_delete

        def after_delete() -> None:
            if forget_files is not None:
                forget_files()
            self.on_deleted()

        store.retention.after_delete = after_delete

    async def cut(self, offset: int, *, keep_copy: bool) -> None:
        await super().cut(offset, keep_copy=keep_copy)
        self.on_cut(offset)

    async def begin_at(self, offset: int) -> None:
        await super().begin_at(offset)
        self.on_cut(offset)


class GroupMember(MemberService):
    """Life: make it before the store is loaded, `load` after, `handlers` for the server, `run`, `close`."""

    metadata: MetadataLog

    def __init__(self, parts: MemberParts, ha_socket: socket.socket) -> None:
        """`ha_socket` is bound to the HA port; it is listened on from `load` on."""
        settings = parts.live.current
        self._parts = parts
        self._pool = ConnectionPool()
        super().__init__(
            ServiceParts(
                settings=lambda: parts.live.current,
                clock=parts.clock,
                asker=PoolAsker(self._pool),
                admission=parts.admission,
            )
        )
        self._ha_socket = ha_socket
        self.ha_port: int = ha_socket.getsockname()[1]
        self.log = _MemberLog(parts.store)
        self.network = TcpHaNetwork(host=settings.bind_address, port=self.ha_port, rate=self._rate)
        self._unserved_since: float | None = parts.clock.monotonic()
        self._unserved_seconds = 0.0
        self._led_until: float | None = None
        """When this broker's last mastership ended, or began to end."""

        self._ha_addresses: dict[str, str] = {}

    # -- life ---------------------------------------------------------------------------------------------

    def load(self, *, closed_cleanly: bool) -> None:
        """Build what needs the opened store, and listen for slaves. Raises `EpochsDamaged`."""
        parts, settings = self._parts, self._parts.live.current
        path, identity = epoch_path(settings), identity_path(settings)
        epochs = EpochFile(RealDisk(path.parent), path.name)
        epochs.load(self.log.max_offset)
        folder = IdentityFolder(RealDisk(identity.parent), identity.name)
        if parts.store.cache_lost and folder.note_loss():
            parts.store.loss_noted()
        self.join(
            MemberPlace(
                log=self.log,
                epochs=epochs,
                identity=folder,
                network=self.network,
                random_source=random.SystemRandom(),
                own_address=parts.registrar.own_address,
                ha_address=self.ha_address,
                closed_cleanly=closed_cleanly,
                boot_id=boot_id(),
                run_blocking=asyncio.to_thread,
                flushed=parts.store.when_flushed,
                step_done=crash_point(os.environ),
            )
        )
        hooks = self.membership.hooks
        hooks.append_age_ms = self._append_age_ms
        hooks.java_ha_address = self._ha_addresses.get
        source = StoreSource(parts.store, parts.clock, lambda: self.log.confirmed_offset)
        tables = Tables(
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            delay=parts.delay,
            forget_queues=source.forget_topic,
        )
        tables.on_reset = parts.on_reset
        metadata = MetadataLog(
            settings=lambda: parts.live.current,
            store=source,
            tables=tables,
            stamp=StampFile(RealDisk(settings.store_path_root_dir / "config")),
            run_blocking=asyncio.to_thread,
            when_confirmed=self.replication.when_acknowledged,
            asker=self._asker,
            master=self.metadata_master,
        )
        metadata.load()
        self.log.on_cut = metadata.truncated
        parts.store.retention.keep_from = metadata.keep_from
        self.log.on_deleted = self._files_deleted
        self.use_metadata(metadata)
        self.network.listen_on(self._ha_socket)
        log.info("controllers give id and role; brokerId and brokerRole of the settings are ignored")

    def handlers(self, served: Mapping[int, Handler]) -> dict[int, Handler]:
        """The table for the server; it changes with the role."""
        status = HaStatusProcessor(self.replication.status, lambda: self._parts.clock.now_ms())
        return self.serve_with({**served, **status.handlers()})

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
        self.network.close()
        await self._pool.close()

    def release_socket(self) -> None:
        """Give the HA port back, for a start that failed."""
        self._ha_socket.close()

    # -- who this is --------------------------------------------------------------------------------------

    def ha_address(self) -> str:
        """`host:port` where slaves connect."""
        settings = self._parts.live.current
        host = settings.broker_ip2 or settings.broker_ip1
        return f"[{host}]:{self.ha_port}" if ":" in host else f"{host}:{self.ha_port}"

    def told_by_name_server(self, ha_address: str | None, address: str | None) -> None:
        """A name server told who is master: where a Java master's HA port is, nobody else knows."""
        if ha_address and address:
            self._ha_addresses.pop(address, None)
            self._ha_addresses[address] = ha_address
            while len(self._ha_addresses) > MASTERS_KNOWN_MAX:
                del self._ha_addresses[next(iter(self._ha_addresses))]

    def _rate(self) -> int:
        settings = self._parts.live.current
        return settings.max_ha_transfer_byte_in_second if settings.ha_flow_control_enable else 0

    # -- what a role does to the other parts --------------------------------------------------------------

    async def stop_services(self) -> None:
        """End delivery of delayed messages and changes of metadata."""
        self._led_until = self._parts.clock.monotonic()
        self._parts.delay.stop()
        await super().stop_services()

    def start_services(self) -> None:
        """Deliver delayed messages."""
        self._parts.delay.start()

    def tell_name_servers(self) -> None:
        """Register again soon."""
        self._parts.registrar.register_again()

    def _role_taken(self, change: RoleChange) -> None:
        self._parts.topics.state_version = change.epoch
        super()._role_taken(change)

    def _modes_taken(self, modes: Modes) -> None:
        """Count the time in which a broker that is no slave takes no writes."""
        unserved = self.membership.role is not Role.SLAVE and modes.writes.kind is not ModeKind.SERVE
        if unserved and self._unserved_since is None:
            self._unserved_since = self._parts.clock.monotonic()
        elif not unserved:
            self._unserved_seconds = self.unserved_seconds()
            self._unserved_since = None

    def _stopped_reason(self) -> str | None:
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

    def _append_age_ms(self) -> int | None:
        """How long the log has not taken what was appended; without end when its disk has failed.

        The controllers then take the mastership away, and elect another replica.
        """
        store = self._parts.store
        return DISK_FAILED_MS if store.stopped is not None and not self._closing else store.append_age_ms

    # -- what people see ----------------------------------------------------------------------------------

    def unserved_seconds(self) -> float:
        """Time in which this broker was no slave and took no writes, since its start."""
        since = self._unserved_since
        now = self._parts.clock.monotonic()
        return self._unserved_seconds + (0.0 if since is None else now - since)

    def lease_seconds(self) -> float | None:
        """What is left of the lease; None for who is no master, or needs none."""
        membership = self.membership
        if membership.role is not Role.MASTER or not membership.lease.required:
            return None
        left = membership.lease.ends_at - self._parts.clock.monotonic()
        return max(0.0, left) if membership.may_serve() else 0.0

    def table(self) -> dict[str, str]:
        """Facts for GET_BROKER_RUNTIME_INFO (28)."""
        return member_table(self)
