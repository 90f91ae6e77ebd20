"""A broker as a member of a DLedger group: the machine, its shell and steps, on what the DLedger decides.

The DLedger's driver is the third source of news of the member machine, beside controllers and none: `_heard`
turns its state into `GroupNews`. Everything that follows from a role is the same as in controller mode.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Final, TypeVar

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.member.core import Ask, Circumstances, Member, Serve, Step, SwitchEnded
from brokerset_broker.member.dledger.foreign_appends import no_records
from brokerset_broker.member.dledger.ledger_replication import LedgerReplication
from brokerset_broker.member.dledger.member_port import MemberPort
from brokerset_broker.member.dledger.member_settings import node_config
from brokerset_broker.member.dledger.news import LedgerLease, broker_id_of, epoch_of, member_of, news_of
from brokerset_broker.member.dledger.old_logs import OLD_LOG, OldLogComparison, old_log_handler
from brokerset_broker.member.dledger.views import LedgerProblem, ledger_table, replica_views
from brokerset_broker.member.gateway.forwarding import PASS_ON_SECONDS, Forwarder
from brokerset_broker.member.gateway.gateway import Gateway, Guard
from brokerset_broker.member.gateway.switchover import SwitchOver, says_master
from brokerset_broker.member.ha.views import ReplicaView
from brokerset_broker.member.membership.controllers import NoAnswer
from brokerset_broker.member.membership.membership import new_nonce
from brokerset_broker.member.refused_mastership import RETRY_SECONDS
from brokerset_broker.member.role import GroupNews, Role, RoleState
from brokerset_broker.member.shell import MemberShell, RoleOver, StepFailed
from brokerset_broker.member.steps import SwitchSteps
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.store.folder import StoreUnusable
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.polling import Master
from brokerset_broker.tables.metadata.stamp import Stamp, StampFile
from brokerset_broker.tables.metadata.store_source import StoreSource
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_dledger.driver import Driver, MemberStatus
from brokerset_dledger.ledger import LedgerRefused
from brokerset_dledger.node import Role as LedgerRole
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.dledger import DLedgerRequestCode
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.remoting import Connection, ConnectionClosed, Handler, RequestTimeout
from brokerset_spec.dledger_members import IN_SYNC_BYTES

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

HAND_OVER_SECONDS_MAX: Final = 1.5
"""How long the end of a leader may be delayed so that another member takes over before it."""

LAST_ANSWERS_SECONDS_MAX: Final = 0.5
"""How long the end of a leader waits for a quorum to have the last sends."""

POLL_SECONDS: Final = 0.005
"""How often it is checked whether a transfer of the leadership has ended, or a member caught up."""

TRANSFER_SECONDS_MAX: Final = 2.0
"""How long a leader that has transferred waits to hear of its successor, before it is unclear who leads."""

RECOVERING: Final = (
    "no leader of {peers} is known; this member's disk is new or lost what was not on it, so its vote counts"
    " only when all members vote: start all of them. If one is lost for good, start the others once with"
    " dLegerAcceptLoss=true, to go on without what only that one had"
)

LACK_SECONDS: Final = 1.0
"""How often a follower asks how long its leader's log is, where its readiness depends on that."""

LACK_ANSWER_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerParts:
    """The parts of the broker that its role decides about."""

    live: LiveSettings
    store: LedgerStore
    """Loaded."""

    source: StoreSource
    tables: Tables
    services: RoleServices
    admission: Admission
    clock: Clock
    role_taken: Callable[[RoleState], None]
    register_again: Callable[[], None]
    own_address: Callable[[], str]
    random_source: random.Random = field(default_factory=random.SystemRandom)
    """Of pauses before elections, and of the name of this process."""


class LedgerMember:
    """Implements `MemberEffects` and `SwitchOverParts`, and is to the broker what `GroupMember` is.

    Life: make it when the store is loaded, `handlers` for the server, `started`, `run`, `close`.
    """

    def __init__(self, parts: LedgerParts, port: MemberPort) -> None:
        """`port` is this member's in `dLegerPeers`."""
        settings = parts.live.current
        self._parts = parts
        self._store = store = parts.store
        self._port = port
        self._asker = port.asker
        self._closing = False
        self._stopped = asyncio.Event()
        store.on_stopped = self._stopped.set

        self.elections = 0
        """Terms since the start in which this member came to know a leader."""
        self._known_term = -1
        self._own_id = broker_id_of(settings.dledger_self_id)
        self._named_masters: str | None = None
        self._led_until: float | None = None
        """When this broker was master last, on the clock's `monotonic`."""

        self._lacks: int | None = None
        """How many bytes of the leader's log a follower lacks, as far as it has asked."""

        self._retry: asyncio.TimerHandle | None = None
        self._transfers_away: set[asyncio.Task[None]] = set()
        config = node_config(settings)
        self.driver = Driver(
            config,
            settings.dledger_addresses(),
            store.ledger,
            store.current_term,
            requester=port.member_asker,
            clock=parts.clock,
            run_blocking=self._run_on_disk,
            random_source=parts.random_source,
            on_change=self._heard,
            on_commit=self._committed,
            sync_seconds=settings.flush_interval_commit_log / 1000,
            own_address=parts.own_address(),
            recovering=store.ledger.recovering,
        )
        store.lead_with(self.driver)
        self.core = Member(
            new_nonce(parts.random_source),
            poll_seconds=settings.sync_broker_metadata_period / 1000,
            heartbeat_seconds=settings.broker_heartbeat_interval / 1000,
            lease=LedgerLease(
                term=lambda: self.driver.term,
                may_serve=self.driver.may_serve,
                serves_until=self.driver.serves_until,
                now=parts.clock.monotonic,
            ),
        )
        self.shell = MemberShell(self.core, self, parts.clock)
        self.replication = LedgerReplication(store, self._leads)
        stamp = StampFile(RealDisk(settings.store_path_root_dir / "config"))
        if not settings.dledger_brokerset_only:
            trust_java_files(stamp, store)
        self.metadata = MetadataLog(
            settings=lambda: parts.live.current,
            store=parts.source,
            tables=parts.tables,
            stamp=stamp,
            run_blocking=asyncio.to_thread,
            when_confirmed=store.when_committed,
            asker=self._asker,
            master=self._metadata_master,
        )
        self.metadata.load()
        store.on_dispatched = self._dispatched
        store.on_truncated = self.metadata.truncated
        store.retention.keep_from = self.metadata.keep_from
        self._steps = SwitchSteps(
            replication=self.replication,
            metadata=self.metadata,
            services=parts.services,
            last_epoch=lambda: epoch_of(self.driver.term),
            tell_name_servers=parts.register_again,
            give_back=_nothing_to_give_back,
        )
        self.switch_over = SwitchOver(settings.broker_name, self)
        self.forwarder = Forwarder(self._asker)
        self.gateway = Gateway(
            forwarder=self.forwarder, lease_ok=self.shell.may_serve, on_lapse=self.shell.tick
        )
        parts.admission.when_durable = store.when_committed
        self._port_handlers: dict[int, Handler] = {OLD_LOG: old_log_handler(store.remaining_old_log)}
        """What the other members are answered; more once this member votes."""

        self._comparison = OldLogComparison(
            store.remaining_old_log(),
            {
                member: address
                for member, address in settings.dledger_addresses().items()
                if member != settings.dledger_self_id
            },
            config.quorum,
            port.member_asker,
        )
        self.shell.registered(self._own_id, 0)
        self.shell.in_sync_changed(enough=True, epoch_confirmed=True)
        log.info("a DLedger group gives the role; brokerId and brokerRole of the settings are ignored")

    # -- life ---------------------------------------------------------------------------------------------

    def serves_writes(self) -> bool:
        """Whether a send that comes now is served here, at once."""
        return self.gateway.serves_writes()

    def handlers(self, served: Mapping[int, Handler], guard: Guard | None = None) -> dict[int, Handler]:
        """The table for the server; it changes with the role. `guard` is put around all of it."""
        self.gateway.guard = guard
        own: dict[int, Handler] = {RequestCode.GET_BROKER_EPOCH_CACHE: self._identity}
        self.gateway.register({**served, **own, **self.switch_over.handlers()})
        self.shell.tick()
        return self.gateway.handlers

    def started(self) -> None:
        """The ports are open; services start with the role."""

    async def run(self) -> None:
        """Be a member for as long as this task runs."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._port.serve(self._port_handlers))
            tasks.create_task(self._end_when_stopped())
            tasks.create_task(self._run_driver())
            tasks.create_task(self.metadata.run())
            tasks.create_task(self._steps.run())
            tasks.create_task(self.shell.run())
            tasks.create_task(self._watch_leader())

    async def _watch_leader(self) -> None:
        """A leader pushes its log to followers, and does not tell them how long it is."""
        while True:
            now = self.core.role
            if now.role is not Role.SLAVE:
                self._lacks = None
            elif self._parts.live.current.ready_only_in_sync and now.master_address:
                await self._ask_leader(now.master_address)
            await asyncio.sleep(LACK_SECONDS)

    async def _ask_leader(self, address: str) -> None:
        """Learn what is lacking; without an answer what was known stays. A leader of Java does not tell."""
        command = Command(RequestCode.GET_BROKER_EPOCH_CACHE)
        try:
            reply = await self._asker.ask(address, command, LACK_ANSWER_SECONDS)
            end = BrokerIdentityAnswer.from_ext(reply.ext).log_offset or 0
        except (ConnectionClosed, RequestTimeout, Rejected):
            return
        self._lacks = max(0, end - self._store.ledger.write_position)

    async def _run_on_disk(self, work: Callable[[], _T]) -> _T:
        """What waits for the disk, in a thread: a failure is final, and the next start hears of it."""

        def guarded() -> _T:
            with self._store.guarding():
                return work()

        try:
            return await asyncio.to_thread(guarded)
        except OSError as error:
            self._store.stop(f"the disk does not take the commit log: {error}")
            raise

    async def _end_when_stopped(self) -> None:
        """A member that can store nothing must not lead, nor vote as if it could: others go on without it."""
        await self._stopped.wait()
        raise StoreUnusable(self._store.root, f"{self._store.stopped}; another member leads the group")

    async def _run_driver(self) -> None:
        """Vote and replicate, once it is sure that the group began with one old log."""
        if self._store.ledger.end_index < 0 and self._parts.live.current.dledger_brokerset_only:
            await self._comparison.run()
            if self._comparison.group_is_new:
                self.driver.begin_group()
        handlers = self.driver.handlers
        self._port_handlers.update(
            {**handlers, DLedgerRequestCode.APPEND: no_records(handlers[DLedgerRequestCode.APPEND])}
        )
        await self.driver.run()

    async def hand_over_at_end(self) -> None:
        """Before a leader ends in order, another member takes over, if one can without delay.

        Who has handed over lately ends when the group's Service leads to the next leader.
        """
        await self.switch_over.hand_over(HAND_OVER_SECONDS_MAX)
        if self._led_until is not None and self._parts.live.current.master_endpoint_slice:
            led_ago = self._parts.clock.monotonic() - self._led_until
            await asyncio.sleep(max(0.0, PASS_ON_SECONDS - led_ago))

    def stop_serving(self) -> None:
        """Refuse everything from now on: the broker shuts down."""
        self._closing = True
        self.shell.close()
        self.gateway.close()

    async def answer_at_end(self) -> None:
        """When no sends are taken any more, those that wait for a quorum are answered, soon."""
        deadline = self._parts.clock.monotonic() + LAST_ANSWERS_SECONDS_MAX
        while self._store.waiting and self._parts.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        self.replication.close_replicas("the broker ends")

    async def close(self) -> None:
        """End what is on its way, when `run` has ended; the store is still open."""
        if self._retry is not None:
            self._retry.cancel()
        await self.switch_over.close()
        await self.forwarder.close()
        await self._port.close()

    async def written(self) -> None:
        """Everything is in the files of config/: the stamp may say so."""
        await self.metadata.close()

    def connection_closed(self, connection: Connection) -> None:
        """A client's connection has ended."""
        self.gateway.closed(connection)

    # -- news of the DLedger ------------------------------------------------------------------------------

    def _heard(self, status: MemberStatus) -> None:
        """The role, the term, the leader, or whether it serves, is another one."""
        self._check_leadership()
        self.replication.news()
        if not self.switch_over.running:  # DLedger's own client, or a preference, may want another leader
            self.shell.hand_over(status.transferee is not None)
        if status.leader_id is not None and status.term > self._known_term:
            self._known_term, self.elections = status.term, self.elections + 1
        now = self.core.role
        leads = status.role is LedgerRole.LEADER
        if now.role is Role.MASTER and not leads and epoch_of(status.term) == now.epoch:
            self.shell.mastership_ended(now.epoch)
        else:
            self.shell.received(news_of(status, self._leader_address(status)))
        self.shell.tick()

    def _leader_address(self, status: MemberStatus) -> str | None:
        if status.leader_id is None:
            return None
        if status.leader_id == self._parts.live.current.dledger_self_id:
            return self._parts.own_address()
        return status.leader_address or self._named_master

    @property
    def _named_master(self) -> str | None:
        """What a name server told; with a leader of Java nobody else does."""
        named = self._named_masters
        return named if named != self._parts.own_address() else None

    def _leads(self, epoch: int) -> bool:
        return self.driver.leads and epoch_of(self.driver.term) == epoch

    def _check_leadership(self) -> None:
        """What waits for this leadership is told at once when it has ended, before anything is dispatched."""
        if self.replication.lost():
            self.metadata.stop_leading()

    def _committed(self) -> None:
        self._check_leadership()
        self._store.committed()
        self.replication.news()

    def _dispatched(self, offset: int) -> None:
        self.metadata.confirmed(offset)
        self.replication.news()

    def master_named(self, ha_address: str | None, address: str | None) -> None:
        """A name server told who is master."""
        if address and address != self._named_masters:
            self._named_masters = address
            self._heard(self.driver.status)

    # -- what the machine decides (`MemberEffects`) -------------------------------------------------------

    def circumstances(self) -> Circumstances:
        """What settings and store say now."""
        name = f"broker {self._parts.live.current.broker_name}"
        return Circumstances(
            stopped_reason=self._store.stopped,
            no_role_reason=f"{name} is not in service: {self.problem()}",
            name=name,
        )

    async def carry_out(self, step: Step, role: RoleState) -> None:
        """Do one step of a change of role. Raises `StepFailed`."""
        self.replication.wait_for(role)
        over = RoleOver(f"the leadership of epoch {role.epoch} ended before it could serve")
        try:
            await self._steps.carry_out(step, role)
        except StepFailed as failed:
            if role.role is Role.MASTER and not self._leads(role.epoch):
                raise over from failed
            raise
        if step is Step.APPLY_METADATA and not self._leads(role.epoch):
            self.metadata.stop_leading()
            raise over

    def ask(self, what: Ask) -> None:
        """There is nobody to ask; what was heard is heard again later."""
        if what is Ask.STATE_LATER and self._retry is None:

            def again() -> None:
                self._retry = None
                self._heard(self.driver.status)

            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, again)

    def role_taken(self, before: RoleState, after: RoleState) -> None:
        """The role that everybody sees is another one."""
        if before.role is Role.MASTER and after.role is not Role.MASTER:
            self._led_until = self._parts.clock.monotonic()
        self._parts.role_taken(after)

    def take_in_sync(self, role: RoleState) -> None:
        """A quorum is in sync, always another one."""

    def serve(self, service: Serve) -> None:
        """Serve, hold, forward or refuse."""
        self._parts.admission.use(service.refusal)
        self.gateway.use(service.modes)
        self._parts.admission.know_ends(service.knows_ends)

    def switch_ended(self, ended: SwitchEnded) -> None:
        """A change of role is over, or failed: the member may have another state by now."""
        if not ended.problem:
            asyncio.get_running_loop().call_soon(self._hear_again)
            return
        self.ask(Ask.STATE_LATER)
        if ended.after.role is Role.MASTER:
            self._give_up_leadership(ended)

    def _give_up_leadership(self, ended: SwitchEnded) -> None:
        """Who leads and cannot serve lets another member lead that has everything."""
        others = [each for each in self.replicas() if each.in_sync]
        if self._leads(ended.after.epoch) and others:
            wanted = member_of(max(others, key=lambda each: each.acknowledged).broker_id)
            log.warning(
                "this member leads and cannot serve", problem=ended.problem, leadership_goes_to=wanted
            )
            task = asyncio.get_running_loop().create_task(self._transfer(wanted))
            self._transfers_away.add(task)
            task.add_done_callback(self._transfers_away.discard)

    async def _transfer(self, wanted: str) -> None:
        with suppress(LedgerRefused):
            await self.driver.transfer(wanted)

    def _hear_again(self) -> None:
        if not self._closing:
            self._heard(self.driver.status)

    # -- handing over (`SwitchOverParts`) -----------------------------------------------------------------

    @property
    def now(self) -> RoleState:
        """The role, as it is."""
        return self.core.role

    def replicas(self) -> tuple[ReplicaView, ...]:
        """The other members, as a leader knows them."""
        return replica_views(self.driver.status, self._store.ledger, self._parts.live.current)

    def end_of_log(self) -> int:
        """End of the log."""
        return self._store.ledger.write_position

    def confirmed_offset(self) -> int:
        """Consumers read below this: the end of what is committed and dispatched."""
        return self._store.max_offset

    def waiting(self) -> int:
        """Sends that are stored and not answered."""
        return self._store.waiting

    def set_switching(self, on: bool) -> None:
        """Hold writes, or treat them as the role wants."""
        if on:
            self.metadata.flush()
        self.shell.hand_over(on)

    async def caught_up(self, broker_id: int, offset: int, timeout: float) -> bool:
        """Wait until a member has everything below `offset`."""
        member, clock = member_of(broker_id), self._parts.clock
        end = self._store.ledger.end_index
        deadline = clock.monotonic() + timeout
        while self.driver.status.watermarks.get(member, -1) < end:
            if clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def hand_over(self, to_broker_id: int | None, epoch: int) -> GroupNews:
        """Transfer the leadership; what is in force then."""
        assert to_broker_id is not None, "a leader chooses its successor"
        try:
            await self.driver.transfer(member_of(to_broker_id))
        except LedgerRefused as refused:
            raise Rejected(ResponseCode.SYSTEM_BUSY, str(refused)) from refused
        deadline = self._parts.clock.monotonic() + TRANSFER_SECONDS_MAX
        while self._transfers(deadline):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        status = self.driver.status
        if status.role is LedgerRole.LEADER and epoch_of(status.term) == epoch:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"replica {to_broker_id} did not take the leadership; this broker serves on",
            )
        if status.leader_id is None:
            raise NoAnswer("nobody leads the group yet")
        return news_of(status, self._leader_address(status))

    def _transfers(self, deadline: float) -> bool:
        """Whether the leadership is on its way: not given back, and nobody else is known to have it."""
        status = self.driver.status
        waits = status.leader_id is None and self._parts.clock.monotonic() < deadline
        return waits or status.transferee is not None

    async def be_relieved(self, epoch: int, needed: int) -> GroupNews:
        """A leader that hears no quorum steps down by itself."""
        raise AssertionError("nobody relieves a DLedger's leader")

    async def serves(self, address: str, epoch: int) -> bool:
        """Whether the broker there is master in this epoch."""
        return await says_master(self._asker, address, epoch)

    # -- who this is --------------------------------------------------------------------------------------

    @property
    def changes(self) -> ChangeLog:
        """Changes of the tables go by way of the log."""
        return self.metadata

    def role(self) -> RoleState:
        """The role, and what belongs to it."""
        return self.core.role

    def broker_id(self) -> int | None:
        """The number of this member, plus one."""
        return self._own_id

    @property
    def members(self) -> int:
        """How many members the group has."""
        return len(self._parts.live.current.dledger_addresses())

    @property
    def brokerset_only(self) -> bool:
        """Whether all members are brokers of ours, as the settings say."""
        return self._parts.live.current.dledger_brokerset_only

    def role_id(self) -> int | None:
        """The id that name servers are told: 0 for the leader, None while there is nothing to register."""
        return {Role.MASTER: 0, Role.SLAVE: self._own_id, Role.NONE: None}[self.core.role.role]

    def loss_is_known(self) -> bool:
        """Nobody is told: with asynchronous flushing, what a power failure took counts as never had."""
        return True

    def ha_address(self) -> str | None:
        """Slaves of another kind cannot connect."""
        return None

    def _metadata_master(self) -> Master | None:
        now = self.core.role
        if now.role is not Role.SLAVE or not now.master_address:
            return None
        return Master(now.master_address, self._parts.live.current.dledger_brokerset_only)

    def _identity(self, connection: Connection, command: Command) -> Command:
        """GET_BROKER_EPOCH_CACHE (1007): who answers here, and in which term it leads."""
        settings, role, ledger = self._parts.live.current, self.core.role, self._store.ledger
        leads = role.role is Role.MASTER and self.shell.may_serve()
        header = BrokerIdentityAnswer(
            replica_id=self._own_id,
            nonce=self.core.nonce,
            group_epoch=role.epoch,
            log_epoch=epoch_of(ledger.end_term),
            log_offset=ledger.write_position,
            registration=self.problem() or f"member of {settings.dledger_peers}, {role.role}",
            master_epoch=role.epoch if leads else None,
        )
        body = EpochEntryCache(
            settings.broker_cluster_name,
            settings.broker_name,
            0 if leads else self._own_id,
            (),
            self._store.max_offset,
        )
        return command.reply(ext=header.to_ext(), body=body.to_json())

    # -- what people see ----------------------------------------------------------------------------------

    def problem(self) -> str:
        """Why this broker is not in service; empty when it is."""
        if self.core.role.role is not Role.NONE:
            return ""
        if reason := self.core.role.reason or self._comparison.problem:
            return reason
        peers = self._parts.live.current.dledger_peers
        if self.driver.status.recovering:
            return RECOVERING.format(peers=peers)
        return f"no leader of {peers} is known; see that more than half of the members run and are reached"

    def problem_kind(self) -> LedgerProblem | None:
        """What `problem` is about, in one word; None when it is empty."""
        if self.core.role.role is not Role.NONE:
            return None
        if self.core.role.reason:
            return LedgerProblem.SWITCH
        return LedgerProblem.OLD_LOG if self._comparison.differs else LedgerProblem.NO_LEADER

    def problems(self) -> list[str]:
        """Why this broker is not ready."""
        if (stopped := self._store.stopped) is not None and not self._closing:
            return [stopped]
        if self.core.role.role is Role.NONE:
            return [self.problem()]
        return [] if (lack := self._lack_problem()) is None else [lack]

    def _lack_problem(self) -> str | None:
        """Why a follower must not be relied on yet, where its readiness depends on that."""
        if self.core.role.role is not Role.SLAVE or not self._parts.live.current.ready_only_in_sync:
            return None
        if self._lacks is None:
            return "the leader has not told yet how long its log is"
        return f"this member lacks {self._lacks:,} bytes of the log" if self._lacks > IN_SYNC_BYTES else None

    def table(self) -> dict[str, str]:
        """Facts for GET_BROKER_RUNTIME_INFO (28)."""
        return ledger_table(
            self.core.role,
            self.driver.status,
            self._store,
            self.replicas(),
            self._parts.live.current,
            own_id=self._own_id,
            lease_seconds=max(0.0, self.core.lease.ends_at - self._parts.clock.monotonic()),
            problem=self.problem(),
            lack=self._lack_problem() or "",
            metadata_applied=self.metadata.status().applied_offset,
        )


def trust_java_files(stamp: StampFile, store: LedgerStore) -> None:
    """Let the files in config/ stand for all of the log where a Java broker left them after a leader of Java.

    What members of ours wrote into the log before is older. Blocks; raises OSError.
    """
    if store.java_led_last and stamp.load() is None:
        log.info("metadata is what a Java broker left in config/", end=store.max_offset)
        stamp.save(Stamp(store.max_offset))


async def _nothing_to_give_back(role: RoleState) -> None:
    """There are no in-sync sets."""
