"""The broker as an application: it builds the parts from the settings and runs them in order.

`Broker` can live inside another process or a test: it keeps no global state and touches no signals.
`command_line` is the process of its own. What only some brokers need is loaded by those alone: the part in a
group of either kind, the client of Kubernetes, HTTP.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from brokerset_acl.access_book import AccessBook
from brokerset_acl.needs import RULES
from brokerset_acl.policies import Action
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.member.alone import Alone
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.outside.name_servers import Registrar
from brokerset_broker.outside.pop_overview import PopOverview
from brokerset_broker.outside.topic_routes import TopicRoutes
from brokerset_broker.requests.access_admin import AccessAdmin
from brokerset_broker.requests.access_control import AccessControl, broker_sign
from brokerset_broker.requests.admin import AdminProcessor
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.clients import ClientProcessor
from brokerset_broker.requests.end_lane import EndLane, begins_with_end
from brokerset_broker.requests.end_transactions import TransactionProcessor
from brokerset_broker.requests.groups import GroupProcessor
from brokerset_broker.requests.lite_admin import LiteAdminProcessor
from brokerset_broker.requests.locks import LockProcessor
from brokerset_broker.requests.offsets import OffsetProcessor
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.ordered_claims import ClaimProcessor
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_send_back import OrderedSendBackProcessor
from brokerset_broker.requests.ordered_shared import SharedGroups, draw_start
from brokerset_broker.requests.ordered_subjects import SubjectQueuesProcessor
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.requests.pop.ack_lane import AckLane, is_of_pop
from brokerset_broker.requests.pop.acks import PopAckProcessor
from brokerset_broker.requests.pop.assignments import AssignmentProcessor
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.ordered_pops import OrderedPops
from brokerset_broker.requests.pop.pop_requests import PopRequests
from brokerset_broker.requests.pop.progress import PopProgress
from brokerset_broker.requests.pull import PullProcessor
from brokerset_broker.requests.pull_lane import PullLane, begins_with_pull
from brokerset_broker.requests.query import QueryProcessor
from brokerset_broker.requests.reply_messages import ReplyProcessor
from brokerset_broker.requests.request_classes import forwarded_peer
from brokerset_broker.requests.send import SendProcessor
from brokerset_broker.requests.send_back import SendBackProcessor
from brokerset_broker.requests.send_lane import SendLane
from brokerset_broker.requests.send_runs import SendRuns
from brokerset_broker.requests.signatures import SignedRequests
from brokerset_broker.requests.signed_sends import SignedSends
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.timer_puts import TimerPuts
from brokerset_broker.requests.timers import TimerProcessor
from brokerset_broker.requests.topics import TopicProcessor
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.requests.transaction_counts import TransactionCounts
from brokerset_broker.requests.transaction_log import TransactionLog
from brokerset_broker.services.delay import DelayService
from brokerset_broker.services.light_queue_expiry import LightQueueExpiry
from brokerset_broker.services.pop.revive import PopRevival
from brokerset_broker.services.reset_notices import ResetNotices
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.services.timers.service import TimerService
from brokerset_broker.services.transaction_checks import TransactionChecks
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.old_log import close_old_log
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.store.releases import Releases
from brokerset_broker.tables.access import AccessTable
from brokerset_broker.tables.consumer_filters import ConsumerFilters
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_broker.tables.metadata.standalone import FileChanges, leave_log
from brokerset_broker.tables.metadata.store_source import StoreSource
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.ordered_tables import FILE_NAME as ORDERED_FILE
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.pop.order_table import OrderTable
from brokerset_broker.tables.pop.request_modes import RequestModes
from brokerset_broker.tables.producers import ProducerTable
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import native
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import SCHEDULE_TOPIC, TIMER_TOPIC
from brokerset_protocol.codes import ResponseCode
from brokerset_runtime.clock import Clock, SystemClock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.http import HttpEndpoint
from brokerset_runtime.remoting import Connection, Handler, RemotingServer, ServerLimits
from brokerset_runtime.remoting.audit_log import AuditLog
from brokerset_runtime.remoting.connection import Lane
from brokerset_runtime.tls import Tls
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.setting_fields import setting_fields

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

    from brokerset_broker.member.dledger.ledger_member import LedgerMember, LedgerParts
    from brokerset_broker.member.dledger.member_port import MemberPort
    from brokerset_broker.member.gateway.gateway import Guard
    from brokerset_broker.member.group_member import GroupMember, MemberLog, MemberParts
    from brokerset_broker.member.group_port import GroupPort
    from brokerset_broker.outside.kubernetes.master_pointer import MasterPointer
    from brokerset_broker.outside.metrics import MetricSources
    from brokerset_broker.store.ledger_store import LedgerStore

log = structlog.get_logger(__name__)

VIP_PORT_OFFSET: Final = 2
"""The second listener is so far below the first: Java's slaves ask there for topics."""

DRAIN_SECONDS_MAX: Final = 3.0
"""Longest time that requests in flight have to finish at the end."""

HOUSEKEEPING_SECONDS: Final = 600.0
"""How often caches of quiet topics are dropped."""

BACKLOG: Final = 4096
"""Connections that wait to be accepted."""


class PortTaken(OSError):
    """A port that the broker needs is in use, or may not be used."""


class Broker:
    """One broker: `start`, then `run` as a task, `close`.

    Port 0 takes a free port, which then is the port told to clients, and there is no second listener.
    """

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock | None = None, limits: ServerLimits | None = None
    ) -> None:
        """Touches nothing: files and sockets come with `start`."""
        self.settings = settings
        self.clock = clock or SystemClock()
        self._limits = limits or ServerLimits(idle_seconds_max=settings.server_channel_max_idle_time_seconds)
        self._server: RemotingServer | None = None
        self._endpoint: HttpEndpoint | None = None
        self._registry: CollectorRegistry | None = None
        self._closing = False
        self._running = False
        self._loaded = False
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._pointer: MasterPointer | None = None
        self.send_lane: SendLane | None = None
        """The native way of plain sends, where there is one."""
        self.pull_lane: PullLane | None = None
        """The native way of plain pulls, where there is one."""
        self._end_lane: EndLane | None = None
        self._ack_lane: AckLane | None = None
        self.releases: Releases | None = None
        """The native way of messages that have waited, where there is one."""
        self.member: GroupMember | None = None
        """The broker's part in its group, in controller mode."""
        self.ledger: LedgerMember | None = None
        """The broker's part in its DLedger group."""
        self._part: GroupMember | LedgerMember | Alone | None = None
        self.tls: Tls | None = None
        """TLS of the remoting protocol, if the settings have it."""
        self.port = 0
        """The port of the remoting protocol, once started."""
        self.vip_port = 0
        """The port of the second listener, 0 without one."""
        self.ha_port = 0
        """The port for slaves, 0 without controllers."""
        self.http_port = 0
        """The port of the HTTP endpoint, 0 without one."""

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> int:
        """Take the ports, open the store, serve; returns the port.

        In controller mode nothing is served before controllers have told the role, but who asks is told why.
        Raises `PortTaken`, `StoreUnusable` if another process has the store, `StoreCorrupt`, `ConfigDamaged`,
        `EpochsDamaged`, `SettingsError` for files of TLS.
        """
        if self.settings.tls_config_file is not None:
            self.tls = await asyncio.to_thread(Tls, self.settings.tls_config_file)
        sockets, group_socket = self._bind()
        try:
            if self.settings.enable_dledger_commit_log:
                await close_old_log(self.settings, self.clock)
            self._build()
            self._part = await self._take_part(group_socket)
            if (forwarder := self._part.forwarder) is not None:
                forwarder.on_denied = self.access_control.count_refusal
            served = self._handlers()
            self._server = RemotingServer(
                self.part.handlers(served, self._guard()),
                limits=self._limits,
                lane=self._lane(),
                on_close=self._closed,
                tls=self.tls,
            )
            for listener in sockets:
                await self._server.listen_on(listener)
        except BaseException:
            for listener in (*sockets, *([group_socket] if group_socket is not None else [])):
                listener.close()
            await self.close()
            raise
        self.part.started()
        log.info(
            "broker listens",
            host=self.settings.bind_address,
            port=self.port,
            cluster=self.settings.broker_cluster_name,
            broker=self.settings.broker_name,
            native=native.description,
        )
        return self.port

    async def run(self) -> None:
        """Flush, register, expire and write down until `close`; raises what the first part to fail raised."""
        if self._closing:
            return
        assert self._server is not None, "start comes first"
        self._running = True
        self._ended.clear()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work)
                    for work in (
                        self.store.run(),
                        self.topics.run(),
                        self.groups.run(),
                        self.offsets.run(),
                        self.request_modes.run(),
                        self.order_locks.run(),
                        self.access.run(),
                        self.stats.run(),
                        self.registrar.run(),
                        self._clients.run(),
                        self._lock_requests.run(),
                        self._shared_groups.run(),
                        *([self.filters.run(self._has)] if self.filters is not None else []),
                        self._server.sweep_idle(),
                        *([self.tls.watch()] if self.tls is not None else []),
                        self._persist_delays(),
                        self.transactions.write_metrics(),
                        self.timers.run(),
                        self._keep_house(),
                        self._serve_http(),
                        self.part.run(),
                        *([self._pointer.run()] if self._pointer is not None else []),
                    )
                ]
                await self._stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._running = False
            self._ended.set()

    async def close(self) -> None:
        """Stop accepting, drain, write everything down; may be called again, and after a failed start."""
        self._closing = True
        server, self._server = self._server, None
        endpoint, self._endpoint = self._endpoint, None
        if server is not None:
            await self.part.hand_over_at_end()
            server.stop_accepting()
            self.part.stop_serving()
            self.admission.refuse_writes(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker shuts down")
            self.transaction_log.write_ops()
            self.pop_log.write_acks()
            if self.admission.when_durable is None:  # Java knows what was popped by committed offsets only
                await self.store.flush()
                self.pop_log.commit_positions()
            self.services.stop_now()
            await self.part.answer_at_end()
            self.parked_pulls.close()
            async with asyncio.TaskGroup() as leaving:  # clients need not wait for slow name servers
                leaving.create_task(self.registrar.unregister())
                leaving.create_task(server.close(DRAIN_SECONDS_MAX))
        if endpoint is not None:
            await endpoint.close()
        self._stop.set()
        await self._ended.wait()
        if self._part is not None:
            await self._part.close()
        if self._loaded:
            self._loaded = False
            for write in (
                self.delay.persist,
                self.transactions.persist,
                self.timers.close,
                self.topics.saved,
                self.groups.saved,
                self.offsets.saved,
                self.ordered.saved,
                self.request_modes.saved,
                self.order_locks.saved,
                self.access.saved,
                *([self.filters.saved] if self.filters is not None else []),
            ):
                try:
                    await write()
                except OSError as error:  # the log must be closed all the same
                    log.error("configuration cannot be written at the end", reason=str(error))
            loss_is_known = self.store.closed_cleanly or not self.settings.enable_controller_mode
            if self._part is not None:
                await self._part.written()
                loss_is_known = self._part.loss_is_known()
            await self.store.close(cleanly=loss_is_known)
            log.info("broker is closed", max_offset=self.store.max_offset)

    @property
    def part(self) -> GroupMember | LedgerMember | Alone:
        """The broker's part in its group; there is one when the store is loaded."""
        assert self._part is not None, "the store comes first"
        return self._part

    # -- queries of metrics and administration ----------------------------------------------------------

    def waiting_sends(self) -> int:
        """Requests in flight that are neither parked pulls nor replies: sends that wait for the disk or a
        replica."""
        server = self._server
        if server is None:
            return 0
        others = len(self.parked_pulls) + self.pop_requests.waiting + self.waiting_replies()
        return max(0, sum(c.in_flight for c in server.connections.values()) - others)

    def waiting_replies(self) -> int:
        """Replies of request-reply that are on their way to the clients that wait for them."""
        return self._reply_messages.pushes if self._server is not None else 0

    def connection_count(self) -> int:
        """Open remoting connections."""
        return len(self._server.connections) if self._server is not None else 0

    def requests_denied(self) -> Mapping[str, int]:
        """Requests that access control has refused since the start, by kind of check."""
        return self.access_control.denied

    def former_password_requests(self) -> int:
        """Requests that were signed with former passwords, since the start."""
        return self.access_control.former_uses.total

    def connections_turned_away(self) -> tuple[int, int]:
        """Connections refused above the limit, and closed for unreadable bytes, since the start."""
        server = self._server
        return (server.refused, server.protocol_errors) if server is not None else (0, 0)

    # -- building -----------------------------------------------------------------------------------------

    def _bind(self) -> tuple[list[socket.socket], socket.socket | None]:
        """Take the ports before anything else, so that a second broker fails before it touches the store.

        The last one is for the group: for slaves, in controller mode, or for the members of a DLedger.
        """
        settings = self.settings
        sockets = [_bound(settings.bind_address, settings.listen_port)]
        self.port = sockets[0].getsockname()[1]
        group_socket = None
        try:
            if settings.listen_port == 0:
                self.settings = replace(settings, listen_port=self.port)
            elif settings.listen_port > VIP_PORT_OFFSET:
                sockets.append(_bound(settings.bind_address, settings.listen_port - VIP_PORT_OFFSET))
                self.vip_port = sockets[1].getsockname()[1]
            if settings.enable_controller_mode:
                next_port = settings.listen_port + 1 if settings.listen_port else 0
                group_socket = _bound(
                    settings.bind_address, settings.ha_listen_port or next_port, "haListenPort"
                )
                self.ha_port = group_socket.getsockname()[1]
            elif settings.enable_dledger_commit_log:
                address = settings.dledger_addresses()[settings.dledger_self_id]
                port = int(address.rpartition(":")[2])
                group_socket = _bound(settings.bind_address, port, "dLegerPeers")
        except PortTaken:
            for listener in sockets:
                listener.close()
            raise
        return sockets, group_socket

    async def _take_part(self, group_socket: socket.socket | None) -> GroupMember | LedgerMember | Alone:
        """Load the store, and be what the settings say: a member of a group of either kind, or alone."""
        if group_socket is None:
            self._load()
            self.access.leave_controllers()
            await leave_log(self._source, self._tables, self._stamp(), asyncio.to_thread)
            changes = FileChanges(self._tables, lambda: self.store.max_offset)
            return Alone(self.settings.broker_id, changes, self.services)
        if self.settings.enable_dledger_commit_log:
            from brokerset_broker.member.dledger.member_port import TcpMemberPort

            self._load()
            self.access.leave_controllers()
            return self._ledger_member(TcpMemberPort(group_socket, self.tls, broker_sign(self.settings)))
        from brokerset_broker.member.group_port import TcpGroupPort

        return self._group_member(TcpGroupPort(group_socket, lambda: self.live.current, self.tls))

    def _group_member(self, port: GroupPort) -> GroupMember:
        """Load the store, and be a member of a group in controller mode."""
        from brokerset_broker.member.group_member import GroupMember, MemberLog

        log_of_member = MemberLog(self.store)  # a store that is replicated is opened as such
        self._load()
        self.member = GroupMember(self._member_parts(log_of_member), port)
        return self.member

    def _ledger_member(self, port: MemberPort) -> LedgerMember:
        """The broker as a member of its DLedger group, on the loaded store."""
        from brokerset_broker.member.dledger.ledger_member import LedgerMember
        from brokerset_broker.store.ledger_store import LedgerStore

        assert isinstance(self.store, LedgerStore), "a DLedger's member has a store of that kind"
        self.ledger = LedgerMember(self._ledger_parts(self.store), port)
        return self.ledger

    def _ledger_parts(self, store: LedgerStore) -> LedgerParts:
        from brokerset_broker.member.dledger.ledger_member import LedgerParts

        return LedgerParts(
            live=self.live,
            store=store,
            source=self._source,
            tables=self._tables,
            services=self.services,
            admission=self.admission,
            clock=self.clock,
            role_taken=self._role_taken,
            register_again=self.registrar.register_again,
            own_address=self.registrar.own_address,
        )

    def _member_parts(self, log_of_member: MemberLog) -> MemberParts:
        from brokerset_broker.member.group_member import MemberParts

        return MemberParts(
            live=self.live,
            store=self.store,
            log=log_of_member,
            source=self._source,
            tables=self._tables,
            services=self.services,
            admission=self.admission,
            clock=self.clock,
            role_taken=self._role_taken,
            register_again=self.registrar.register_again,
            own_address=self.registrar.own_address,
        )

    def _empty_store(self) -> MessageStore:
        if not self.settings.enable_dledger_commit_log:
            return MessageStore(self.settings, self.clock)
        from brokerset_broker.store.ledger_store import LedgerStore

        return LedgerStore(self.settings, self.clock)

    def _role_taken(self, role: RoleState) -> None:
        self.topics.state_version = role.epoch
        if self.send_lane is not None:
            self.send_lane.forget_all()  # it may know queues that another master deleted

    def _stamp(self) -> StampFile:
        return StampFile(RealDisk(self.settings.store_path_root_dir / "config"))

    def _build(self) -> None:
        settings, clock = self.settings, self.clock
        self.live = LiveSettings(settings)
        self.store = self._empty_store()
        self.admission = Admission(settings.broker_ip1, settings.broker_permission)
        self.releases = self._make_releases()
        self.levels = DelayLevels.parse(settings.message_delay_level)
        self.topics = TopicManager(self.live, clock)
        self.groups = GroupManager(self.live, clock)
        self.offsets = OffsetManager(self.live, clock)
        self.ordered = OrderedTables(settings.store_path_root_dir / "config" / ORDERED_FILE)
        self.ordered_counters = OrderedCounters()
        self.request_modes = RequestModes(settings.store_path_root_dir / "config")
        self.order_locks = OrderTable(settings.store_path_root_dir / "config")
        self.access = AccessTable(settings.store_path_root_dir / "config")
        self.access_control = AccessControl(settings, self.access.book, clock)
        self.consumers = ConsumerTable(clock)
        self.filters = ConsumerFilters(settings, clock) if settings.enable_property_filter else None
        self.producers = ProducerTable(clock)
        self.locks = QueueLocks(clock)
        self.stats = BrokerStats(clock)
        self.traffic = Traffic()
        self.parked_pulls = ParkedPulls(clock, self.store.queue_max)
        self.admission.on_ends_known = self.parked_pulls.ends_known
        self.delay = DelayService(
            store=self.store,
            clock=clock,
            levels=self.levels,
            config_folder=settings.store_path_root_dir / "config",
            admission=self.admission,
            is_subject=self.ordered.is_subject,
            releases=self.releases,
        )
        self.reset_notices = ResetNotices(
            live=self.live, offsets=self.offsets, consumers=self.consumers, wake=self.parked_pulls.wake_queue
        )
        self.transaction_log = TransactionLog(
            live=self.live, store=self.store, clock=clock, counts=TransactionCounts(clock.now_ms)
        )
        self.transactions = TransactionChecks(
            live=self.live, store=self.store, clock=clock, log_of_transactions=self.transaction_log,
            topics=self.topics, offsets=self.offsets, producers=self.producers, admission=self.admission,
            may_ask=self.access_control.may_send,
        )  # fmt: skip
        self.pop_log = PopLog(
            live=self.live, store=self.store, clock=clock, topics=self.topics, offsets=self.offsets,
            admission=self.admission,
        )  # fmt: skip
        self.pop_revival = PopRevival(
            live=self.live, store=self.store, clock=clock, log_of_pops=self.pop_log, topics=self.topics,
            groups=self.groups, offsets=self.offsets, admission=self.admission,
        )  # fmt: skip
        self.ordered_pops = OrderedPops(
            live=self.live, clock=clock, table=self.order_locks, log_of_pops=self.pop_log,
            offsets=self.offsets, groups=self.groups, changes=lambda: self.part.changes,
        )  # fmt: skip
        self.timers = TimerService(
            store=self.store,
            live=self.live,
            clock=clock,
            admission=self.admission,
            is_subject=self.ordered.is_subject,
            releases=self.releases,
        )
        self.light_queue_expiry = LightQueueExpiry(
            live=self.live,
            store=self.store,
            topics=self.topics,
            clock=clock,
            changes=lambda: self.part.changes,
        )
        self.pop_progress = PopProgress(log_of_pops=self.pop_log, locks=self.order_locks, clock=clock)
        self.pop_requests = PopRequests(
            live=self.live, clock=clock, store=self.store, topics=self.topics, groups=self.groups,
            offsets=self.offsets, consumers=self.consumers, admission=self.admission, ordered=self.ordered,
            filters=self.filters, stats=self.stats, log=self.pop_log, memory_bytes=_memory_bytes(),
            ordered_pops=self.ordered_pops,
        )  # fmt: skip
        self.store.retention.waiting_from = self.timers.needed_from
        self.services = RoleServices(
            [
                self.delay,
                self.timers,
                self.reset_notices,
                self.transactions,
                self.pop_revival,
                self.ordered_pops,
                self.light_queue_expiry,
                self.pop_requests.pops,
                self.pop_requests.notifications,
            ]
        )
        self._source = StoreSource(self.store, clock)
        self._tables = Tables(
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            delay=self.delay,
            queues=self._source,
            ordered=self.ordered,
            timers=self.timers,
            request_modes=self.request_modes,
            order_locks=self.order_locks,
            access=self.access,
        )
        self._tables.on_reset = self.parked_pulls.wake_queue
        self._tables.on_resets = self._reset
        self.registrar = Registrar(
            live=self.live,
            topics=self.topics,
            admission=self.admission,
            role_id=lambda: self.part.role_id(),
            on_master=lambda ha, address: self.part.master_named(ha, address),
            ha_address=lambda: self.part.ha_address(),
            tls=self.tls,
            sign=broker_sign(settings),
        )
        self._routes = TopicRoutes(lambda: self.registrar.connections, clock)
        self._pointer = self._master_pointer()
        if self._pointer is not None:
            self.registrar.on_register_again(self._pointer.wake)
        self.topics.on_change(self._topics_changed)
        self.live.on_change(lambda changed, _names: self._use(changed))
        self.live.on_change(lambda changed, _names: self.store.retention.use(changed))
        self.store.on_arrival = self._arrived
        if settings.flush_disk_type == "SYNC_FLUSH" and not settings.enable_dledger_commit_log:
            self.admission.when_durable = self._when_flushed

    def _master_pointer(self) -> MasterPointer | None:
        """What leads the group's `-master` Service to this broker, if there is one."""
        settings = self.settings
        namespace, _, name = settings.master_endpoint_slice.partition("/")
        if not name or not (settings.enable_controller_mode or settings.enable_dledger_commit_log):
            return None
        from brokerset_broker.outside.kubernetes.master_pointer import MasterPointer, MasterSlice

        return MasterPointer(
            MasterSlice(namespace, name),
            pod=os.environ.get("POD_NAME", "") or socket.gethostname(),
            pod_ip=settings.broker_ip1,
            leads=self._led_epoch,
        )

    def _led_epoch(self) -> int | None:
        """The epoch in which this broker is master."""
        role = self.part.role()
        return role.epoch if role.role is Role.MASTER else None

    def _load(self) -> None:
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.delay.load()
        self.timers.load()
        self.ordered.load()
        self.request_modes.load()
        self.order_locks.load()
        self.access.load()
        if self.filters is not None:
            self.filters.load()
        self.store.load(accept_damage=self.settings.accept_damaged_store)
        self._loaded = True
        self.store.start()

    def _handlers(self) -> dict[int, Handler]:
        live, clock, store, admission = self.live, self.clock, self.store, self.admission
        topics, groups, consumers, offsets = self.topics, self.groups, self.consumers, self.offsets
        stats, traffic, locks = self.stats, self.traffic, self.locks
        queries = StoreQueries(store)
        changes = self.part.changes
        may_read = self.access_control.checks_records(store.unit, Action.SUB, Action.GET)
        self._timer_puts = TimerPuts(lambda: self.timers.settings, self.timers.slot_count, clock.now_ms)
        self.send_lane = self._make_send_lane()
        self._send = SendProcessor(
            live=live, store=store, topics=topics, groups=groups, locks=locks, admission=admission,
            levels=self.levels, stats=stats, traffic=traffic, clock=clock, changes=changes,
            ordered=self.ordered, ordered_counters=self.ordered_counters, lane=self.send_lane,
            transactions=self.transaction_log, timers=self._timer_puts,
        )  # fmt: skip
        self._end_lane = self._make_end_lane()
        end_transactions = TransactionProcessor(
            live=live, log_of_transactions=self.transaction_log, topics=topics, ordered=self.ordered,
            admission=admission, clock=clock, lane=self._end_lane,
            check_topic=self.access_control.checks_ends(),
            check_resumed=self.access_control.checks(Action.UPDATE),
        )  # fmt: skip
        self.pop_acks = PopAckProcessor(
            live=live, log_of_pops=self.pop_log, store=store, topics=topics, admission=admission, clock=clock
        )
        self.pop_acks.ordered = self.ordered_pops
        self._ack_lane = self._make_ack_lane()
        self.pops = PopOverview(
            live=live, clock=clock, log_of_pops=self.pop_log, revival=self.pop_revival,
            requests=self.pop_requests, locks=self.order_locks,
        )  # fmt: skip
        self._reply_messages = ReplyProcessor(
            live=live, sends=self._send, store=store, producers=self.producers, admission=admission,
            stats=stats, clock=clock,
        )  # fmt: skip
        access = OrderedAccess(
            ordered=self.ordered, locks=locks, offsets=offsets, store=store, admission=admission, clock=clock,
            counters=self.ordered_counters, broker_name=lambda: live.current.broker_name,
        )  # fmt: skip
        subject_queues = SubjectQueuesProcessor(
            ordered=self.ordered, store=store, topics=topics, admission=admission, changes=changes
        )
        send_back = SendBackProcessor(
            live=live, store=store, topics=topics, groups=groups, admission=admission, levels=self.levels,
            stats=stats, traffic=traffic, check_record=may_read,
        )  # fmt: skip
        ordered_send_back = OrderedSendBackProcessor(
            access=access, copies=send_back.copies, store=store, topics=topics, groups=groups,
            admission=admission, changes=changes, stats=stats,
        )  # fmt: skip
        self._shared_groups = SharedGroups(
            access=access, store=store, offsets=offsets, parked_pulls=self.parked_pulls, changes=changes,
            counters=self.ordered_counters, send_back=ordered_send_back, clock=clock, draw_start=draw_start,
        )  # fmt: skip
        claims = ClaimProcessor(
            access=access, store=store, topics=topics, groups=groups, offsets=offsets,
            parked_pulls=self.parked_pulls, admission=admission, changes=changes,
            counters=self.ordered_counters, shared=self._shared_groups,
        )  # fmt: skip
        pull = PullProcessor(
            live=live, store=store, topics=topics, groups=groups, consumers=consumers, offsets=offsets,
            parked_pulls=self.parked_pulls, admission=admission, stats=stats, access=access,
            shared=self._shared_groups, filters=self.filters,
        )  # fmt: skip
        part = self._plain_part
        if native.core is not None and self.send_lane is not None and part is not None:
            self.pull_lane = PullLane(
                native.core, live=live, store=store, topics=topics, groups=groups, consumers=consumers,
                offsets=offsets, admission=admission, stats=stats, parked_pulls=self.parked_pulls,
                processor=pull, access=access, book=self._checked_book,
            )  # fmt: skip
            self.pull_lane.is_open = part.serves_reads
            self.access_control.on_pull = self.pull_lane.allow
        self._clients = ClientProcessor(
            live=live,
            clock=clock,
            topics=topics,
            groups=groups,
            consumers=consumers,
            producers=self.producers,
            changes=changes,
            filters=self.filters,
            left=self.pop_requests.leave,
        )
        self._lock_requests = LockProcessor(locks, topics, access)
        offset_requests = OffsetProcessor(
            live=live, admission=admission, store=queries, topics=topics, groups=groups, offsets=offsets,
            consumers=consumers, changes=changes, access=access,
        )  # fmt: skip
        admin = AdminProcessor(
            live=live, clock=clock, admission=admission, store=queries, topics=topics, groups=groups,
            consumers=consumers, stats=stats, delay=self.delay, timer_status=self.timers.status,
            pop_status=self.pops.status,
            waiting_sends=self.waiting_sends, membership=self.part.table, changes=changes,
            filters=self.filters, check_record=may_read,
        )  # fmt: skip
        group_admin = GroupProcessor(
            live=live, clock=clock, admission=admission, store=queries, topics=topics, groups=groups,
            offsets=offsets, consumers=consumers, locks=locks, stats=stats, changes=changes,
            wake_topic=self.parked_pulls.wake_topic, popped=self.pop_progress.reported,
        )  # fmt: skip
        topic_admin = TopicProcessor(
            live=live, admission=admission, store=queries, topics=topics, offsets=offsets,
            consumers=consumers, stats=stats, changes=changes, ordered=self.ordered,
        )  # fmt: skip
        timers = TimerProcessor(
            live=live, clock=clock, store=store, topics=topics, admission=admission, stats=stats,
            timers=self.timers, puts=self._timer_puts, changes=changes,
        )  # fmt: skip
        assignments = AssignmentProcessor(
            live=live, admission=admission, topics=topics, groups=groups, consumers=consumers,
            modes=self.request_modes, changes=changes, queues=self._routes.queues,
        )  # fmt: skip
        lite_admin = LiteAdminProcessor(live=live, store=store, topics=topics, offsets=offsets)
        access_admin = AccessAdmin(
            control=self.access_control, admission=admission, changes=changes, clock=clock,
            cluster=None if self.member is None else self.member.cluster_access,
        )  # fmt: skip
        self.pop_requests.use_gate(self.part.serves_writes)
        served: dict[int, Handler] = {}
        for processor in (
            self._send, pull, send_back, QueryProcessor(live=live, store=store, check_record=may_read),
            self._clients, self._lock_requests, offset_requests, admin, group_admin, topic_admin,
            subject_queues, claims,
            ordered_send_back, self._reply_messages, end_transactions, timers, lite_admin, assignments,
            self.pop_acks, self.pop_requests, access_admin,
        ):  # fmt: skip
            served.update(processor.handlers())
        return served

    def _guard(self) -> Guard:
        """What is put around every handler, those of the member of a group among them."""
        checks = self.settings.authentication_enabled
        audit_log = AuditLog(
            RULES, authenticates=checks, settings=setting_fields(BrokerSettings),
            broker_group=self.settings.broker_name, origin_of=forwarded_peer,
        )  # fmt: skip
        signed = SignedRequests(refuse=self.settings.refuse_signed_requests)
        check = self.access_control.around if checks else signed.around
        return lambda handlers: check(audit_log.around(handlers))

    @property
    def _plain_part(self) -> GroupMember | Alone | None:
        """The part whose plain requests the native core may serve; a DLedger has its own way of appending."""
        return self._part if isinstance(self._part, Alone) else self.member

    @property
    def _checked_book(self) -> AccessBook | None:
        """Whose users and policies decide about requests; None where nobody is checked."""
        return self.access.book if self.settings.authentication_enabled else None

    def _make_send_lane(self) -> SendLane | None:
        """The native way of sends, where there is one."""
        part = self._plain_part
        if native.core is None or part is None or self.settings.refuse_signed_requests:
            return None
        lane = SendLane(
            native.core, store=self.store, topics=self.topics, admission=self.admission, stats=self.stats,
            traffic=self.traffic, clock=self.clock, broker_name=self.live.current.broker_name,
            transactions=self.transaction_log, timers=self._timer_puts,
            book=self._checked_book,
        )  # fmt: skip
        lane.is_open = part.serves_writes
        self.access_control.on_send = lane.allow
        return lane

    def _make_releases(self) -> Releases | None:
        """The native way of messages that have waited, where there is one."""
        if native.core is None or self.settings.enable_dledger_commit_log:
            return None
        return Releases(native.core, self.store, checks_signatures=self.settings.authentication_enabled)

    def _make_end_lane(self) -> EndLane | None:
        """The native way of ends of transactions, where there is one."""
        part = self._plain_part
        if self.releases is None or part is None or self.send_lane is None:
            return None
        lane = EndLane(
            self.releases, log_of_transactions=self.transaction_log, topics=self.topics,
            ordered=self.ordered, admission=self.admission, book=self._checked_book,
        )  # fmt: skip
        lane.is_open = part.serves_writes
        self.access_control.on_end = lane.allow
        return lane

    def _make_ack_lane(self) -> AckLane | None:
        """The native way of acks of POP, where there is one."""
        part = self._plain_part
        if native.core is None or part is None or self.send_lane is None:
            return None
        lane = AckLane(
            native.core, live=self.live, log_of_pops=self.pop_log, plain=self.pop_acks.plain,
            admission=self.admission, book=self._checked_book,
        )  # fmt: skip
        lane.is_open = part.serves_writes
        self.access_control.on_ack = lane.allow
        return lane

    def _lane(self) -> Lane | None:
        """What serves plain requests before they come to a handler; with authentication, those that somebody
        signed who may make them."""
        if self.send_lane is not None:
            return self._serve_plain
        part = self._plain_part
        if part is None or self.settings.refuse_signed_requests:
            return None
        book = self._checked_book
        signed = None if book is None else SignedSends(book)
        if signed is not None:
            self.access_control.on_send = signed.allow
        return SendRuns(
            self._send, store=self.store, admission=self.admission, stats=self.stats, clock=self.clock,
            is_open=part.serves_writes, signed=signed,
        ).serve  # fmt: skip

    def _serve_plain(self, connection: Connection, data: bytes) -> int:
        """Serve the plain requests at the beginning of a chunk: sends, pulls or acks of POP, hardly anyone
        mixes them; or half messages and ends, as all do who have transactions."""
        assert self.send_lane is not None, "the server was given this as its lane"
        assert self.pull_lane is not None, "it is made after the lane of sends"
        if begins_with_pull(data):
            return self.pull_lane.serve(connection, data)
        if is_of_pop(data):
            assert self._ack_lane is not None, "it is made after the lane of sends"
            return self._ack_lane.serve(connection, data)
        assert self._end_lane is not None, "it is made with the lane of sends"
        size = 0
        if not begins_with_end(data):
            size = self.send_lane.serve(connection, data)
            if not size:
                return self.pull_lane.serve(connection, data)
        while begins_with_end(data, size):
            served = self._end_lane.serve(connection, data[size:] if size else data)
            size += served
            if not served or size == len(data):
                break
            size += self.send_lane.serve(connection, data[size:])
        return size

    # -- events -------------------------------------------------------------------------------------------

    def _arrived(self, topic: str, queue_id: int, next_queue_offset: int, tags_code: int | None) -> None:
        self.parked_pulls.arrived(topic, queue_id, next_queue_offset, tags_code)
        self.pop_requests.arrived(topic, queue_id, next_queue_offset, tags_code)
        if topic == SCHEDULE_TOPIC:
            self.delay.arrived(queue_id)
        elif topic == TIMER_TOPIC:
            self.timers.arrived()

    def _reset(self, resets: Mapping[str, Mapping[int, int]]) -> None:
        self.reset_notices.reset(resets)
        self.pop_requests.reset(resets)

    def _has(self, topic: str, group: str) -> bool:
        return topic in self.topics.items and group in self.groups.items

    def _when_flushed(self, end: int, callback: Callable[[PutStatus], None]) -> None:
        self.store.when_flushed(
            end, lambda done: callback(PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT)
        )

    def _topics_changed(self, topics: tuple[TopicConfig, ...]) -> None:
        for config in topics:
            self.parked_pulls.wake_topic(config.topic_name)
            self.pop_requests.wake_topic(config.topic_name)
        if not topics:  # some were deleted
            self.pop_log.forget_deleted(lambda topic: self.topics.get(topic) is None)
            self.pop_requests.wake_deleted(lambda topic: self.topics.get(topic) is None)
            for topic in {topic for topic, _ in self.traffic.incoming if self.topics.get(topic) is None}:
                self.traffic.forget_topic(topic)
            counts = self.transaction_log.counts
            for topic in [topic for topic in counts.topics if self.topics.get(topic) is None]:
                counts.forget_topic(topic)

    def _use(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.admission.permission = settings.broker_permission

    def _closed(self, connection: Connection) -> None:
        self.parked_pulls.drop(connection)
        self.pop_requests.drop(connection)
        self.part.connection_closed(connection)
        self._clients.connection_closed(connection)

    # -- tasks --------------------------------------------------------------------------------------------

    async def _persist_delays(self) -> None:
        while True:
            await asyncio.sleep(self.settings.flush_delay_offset_interval / 1000)
            try:
                await self.delay.persist()
            except OSError as error:
                log.error("progress of delayed messages cannot be written", reason=str(error))

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            self._send.topics.forget_all()

    async def _serve_http(self) -> None:
        if not self.settings.http_port:
            return
        endpoint = HttpEndpoint(
            alive=self._alive_problems,
            ready=self._ready_problems,
            metrics=self._metrics,
            extend=self._add_store_stream if self.settings.store_stream_enable else None,
        )
        try:
            self.http_port = await endpoint.start(
                self.settings.bind_address, self.settings.http_port, self.tls
            )
        except OSError as error:
            raise PortTaken(
                f"HTTP port {self.settings.http_port} cannot be used: {error}; choose another with httpPort"
            ) from error
        self._endpoint = endpoint

    def _add_store_stream(self, application: web.Application) -> None:
        from brokerset_broker.outside.store_stream import StoreStream, Who

        def who() -> Who:
            settings, role = self.settings, self.part.role()
            epoch = None if self.member is None else role.epoch
            return Who(
                settings.broker_cluster_name, settings.broker_name, self.part.broker_id(), role.role, epoch
            )

        StoreStream(self.store, self.settings, who).add_to(application)

    def _alive_problems(self) -> list[str]:
        return [] if self._running else ["the broker's tasks do not run"]

    def _ready_problems(self) -> list[str]:
        problems = [*self._alive_problems(), *self.part.problems()]
        if self.part.role_id() is None:  # nobody is told of a broker without a role
            return problems
        if self.registrar.addresses and not self.registrar.registered:
            problems.append("no name server knows this broker")
        return problems

    def metric_sources(self) -> MetricSources:
        """What metrics are read from."""
        from brokerset_broker.outside.metrics import MetricSources

        return MetricSources(
            settings=lambda: self.settings, clock=self.clock, store=self.store, topics=self.topics,
            groups=self.groups, offsets=self.offsets, consumers=self.consumers, producers=self.producers,
            admission=self.admission, parked_pulls=self.parked_pulls, stats=self.stats,
            traffic=self.traffic, registrar=self.registrar, connections=self, member=self.member,
            ordered=self.ordered, ordered_counters=self.ordered_counters,
            transactions=self.transactions, timers=self.timers, ledger=self.ledger,
            pops=self.pops, pop_progress=self.pop_progress,
        )  # fmt: skip

    def _metrics(self) -> CollectorRegistry:
        from brokerset_broker.outside import metrics

        if self._registry is None:
            self._registry = metrics.registry(self.metric_sources())
        return self._registry


def _memory_bytes() -> int:
    """Of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _bound(host: str, port: int, setting: str = "listenPort") -> socket.socket:
    """A socket that has the port. Raises `PortTaken`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without the protocol asyncio does not switch off the delay of small writes on what is accepted here.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise PortTaken(f"cannot listen on {host}:{port}: {reason}; choose another with {setting}") from error
    listener.setblocking(False)
    return listener
