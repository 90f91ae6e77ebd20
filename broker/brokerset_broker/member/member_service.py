"""A member of a group, put together: the machine, its shell, membership, replication, metadata, gateway.

`GroupMember` puts it on the real store; the simulation runs the same on a simulated one. What a place has of
its own (files, sockets, name servers) it adds by overriding the methods under "the place".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from brokerset_broker.member.core import Ask, Circumstances, Member, Serve, Step, SwitchEnded
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.gateway.forwarding import Forwarder
from brokerset_broker.member.gateway.gateway import Gateway
from brokerset_broker.member.gateway.switchover import SwitchOver, says_master
from brokerset_broker.member.group_link import MasterTarget, ProposalResult
from brokerset_broker.member.ha.links import HaNetwork
from brokerset_broker.member.ha.replication import Flushed, Replication, ReplicaView
from brokerset_broker.member.membership.identity_folder import IdentityFolder
from brokerset_broker.member.membership.membership import Membership, new_nonce
from brokerset_broker.member.role import GroupNews, LogEnd, Role, RoleState
from brokerset_broker.member.shell import MemberShell
from brokerset_broker.member.steps import MemberMetadata, SwitchSteps
from brokerset_broker.requests.admission import Admission
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.store.replica_log import ReplicaLog
from brokerset_broker.tables.metadata.polling import Master
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.ha_packets import PeerIdentity
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RunBlocking
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import Connection, Handler
from brokerset_spec.broker_settings import BrokerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlace:
    """Where a member lives: its settings, its files, its log, its network."""

    settings: Callable[[], BrokerSettings]
    clock: Clock
    asker: Asker
    admission: Admission
    services: RoleServices
    log: ReplicaLog
    """Opened."""

    epochs: EpochFile
    """Loaded."""

    identity: IdentityFolder
    network: HaNetwork
    random_source: random.Random
    closed_cleanly: bool
    boot_id: str
    run_blocking: RunBlocking
    flushed: Flushed
    step_done: Callable[[str], None] | None = None
    """Told of each step of the registration, for tests that crash there."""


class MemberService:
    """Implements `MemberEffects`, `MemberBroker`, `GroupLink` and `SwitchOverParts`.

    Life: make it once the log is open, `serve_with` the handlers, `run`.
    """

    def __init__(self, place: MemberPlace) -> None:
        settings = place.settings()
        self._settings = place.settings
        self._clock = place.clock
        self._asker = place.asker
        self._admission = place.admission
        self._epochs = place.epochs
        self.log = place.log
        self.services = place.services
        self._closing = False
        self._master_is_ours = True
        self._tasks: asyncio.TaskGroup | None = None
        self.core = Member(
            new_nonce(place.random_source),
            poll_seconds=settings.sync_broker_metadata_period / 1000,
            heartbeat_seconds=settings.broker_heartbeat_interval / 1000,
        )
        self.shell = MemberShell(self.core, self, place.clock)
        self.membership = Membership(
            settings=settings,
            member=self.core,
            shell=self.shell,
            broker=self,
            folder=place.identity,
            epochs=place.epochs,
            asker=place.asker,
            clock=place.clock,
            closed_cleanly=place.closed_cleanly,
            boot_id=place.boot_id,
            run_blocking=place.run_blocking,
            step_done=place.step_done,
        )
        self.replication = Replication(
            settings=place.settings,
            log=place.log,
            epochs=place.epochs,
            network=place.network,
            clock=place.clock,
            run_blocking=place.run_blocking,
            identity=self._identity,
            group=self,
            flushed=place.flushed,
            may_join=lambda: self.metadata.covers_log,
            on_waiting_change=self._waiting_changed,
            on_service_change=self._in_sync_changed,
        )
        self.metadata = self.make_metadata()
        self._steps = SwitchSteps(
            replication=self.replication,
            metadata=self.metadata,
            services=place.services,
            last_epoch=lambda: place.epochs.history.last_epoch,
            tell_name_servers=self.tell_name_servers,
            give_back=self.membership.give_back,
        )
        self.switch_over = SwitchOver(settings.broker_name, self)
        self.forwarder = Forwarder(place.asker)
        self.gateway = Gateway(
            forwarder=self.forwarder, lease_ok=self.shell.may_serve, on_lapse=self.shell.tick
        )
        self._waiting_changed()
        place.log.on_confirmed(self.metadata.confirmed)
        place.log.follow()  # nothing is appended before there is a role

    # -- the place ----------------------------------------------------------------------------------------

    def make_metadata(self) -> MemberMetadata:
        """The metadata, loaded. Everything but the gateway is there."""
        raise NotImplementedError

    def own_address(self) -> str:
        """Of the remoting port, as others reach it."""
        raise NotImplementedError

    def ha_address(self) -> str:
        """Where slaves connect."""
        raise NotImplementedError

    def append_age_ms(self) -> int | None:
        """Milliseconds since the log last took an append that was asked for; None when nothing waits."""
        return None

    def java_ha_address(self, address: str) -> str | None:
        """The HA address that name servers tell for a Java master's remoting address."""
        return None

    def stopped_reason(self) -> str | None:
        """Why nothing can be served although there is a role."""
        return None

    def tell_name_servers(self) -> None:
        """Register again soon."""

    # -- life ---------------------------------------------------------------------------------------------

    def serve_with(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The table for the server; it changes with the role."""
        self.gateway.register({**handlers, **self.membership.handlers(), **self.switch_over.handlers()})
        self.shell.tick()
        return self.gateway.handlers

    def serves_writes(self) -> bool:
        """Whether a send that comes now is served here, at once."""
        return self.gateway.serves_writes()

    def serves_reads(self) -> bool:
        """Whether a pull that comes now is served here, at once."""
        return self.gateway.serves_reads()

    async def run(self) -> None:
        """Be a member for as long as this task runs."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self.replication.run())
            tasks.create_task(self.metadata.run())
            tasks.create_task(self._steps.run())
            tasks.create_task(self.membership.run())

    def stop_serving(self) -> None:
        """Refuse everything from now on: the broker shuts down."""
        self._closing = True
        self.shell.close()
        self.gateway.close()

    def connection_closed(self, connection: Connection) -> None:
        """A client's connection has ended."""
        self.gateway.closed(connection)

    # -- what the machine decides (`MemberEffects`) -------------------------------------------------------

    def circumstances(self) -> Circumstances:
        """What settings, store and membership say now."""
        settings = self._settings()
        found = self.membership.diagnosis()
        name = f"broker {settings.broker_name}"
        minimum = settings.min_in_sync_replicas
        return Circumstances(
            needs_min=minimum,
            acknowledges_alone=minimum <= 1 or not settings.all_ack_in_sync_state_set,
            stopped_reason=self.stopped_reason(),
            no_role_reason=f"{name} is not in service: {found.problem}; {found.advice}",
            name=name,
        )

    async def carry_out(self, step: Step, role: RoleState) -> None:
        """Do one step of a change of role."""
        await self._steps.carry_out(step, role)

    def ask(self, what: Ask) -> None:
        """Ask the controllers."""
        self.membership.ask(what)

    def role_taken(self, before: RoleState, after: RoleState) -> None:
        """The role that everybody sees is another one."""
        self.membership.role_taken(after)

    def take_in_sync(self, role: RoleState) -> None:
        """What is in force in the same epoch."""
        self.replication.adopt(role.sync_state_set, role.set_epoch, role.epoch)

    def serve(self, service: Serve) -> None:
        """Serve, hold, forward or refuse; what is past the gateway already is refused where it would be
        appended."""
        self._admission.use(service.refusal)
        self.gateway.use(service.modes)
        self._admission.know_ends(service.knows_ends)

    def switch_ended(self, ended: SwitchEnded) -> None:
        """A change of role is over, or failed."""
        self.membership.switch_ended(ended)

    def _in_sync_changed(self) -> None:
        replication = self.replication
        self.shell.in_sync_changed(
            enough=replication.enough_in_sync, epoch_confirmed=replication.epoch_confirmed
        )

    def _waiting_changed(self) -> None:
        """Sends wait for replicas only if there are any: a group of one does not pay for replication."""
        at_once = self.replication.acknowledges_appends
        self._admission.when_durable = None if at_once else self.replication.when_acknowledged

    # -- what controllers are told (`MemberBroker`) -------------------------------------------------------

    def log_end(self) -> LogEnd:
        """What the log has."""
        return LogEnd(self._epochs.history.last_epoch, self.log.received_end, self.log.confirmed_offset)

    def all_ack(self) -> bool:
        """Whether sends wait for all in-sync replicas."""
        return self._settings().all_ack_in_sync_state_set

    def replication_problem(self) -> tuple[str, str] | None:
        """Why this broker cannot follow its master, and what to do."""
        follower = self.replication.status().follower
        if follower.state == "refused":
            return follower.problem, follower.advice
        return self.metadata.trouble()

    def log_damage(self) -> str:
        """What is wrong with the log."""
        return self.log.failure() or ""

    # -- what replication and metadata ask (`GroupLink`) --------------------------------------------------

    def _identity(self) -> PeerIdentity | None:
        membership, settings = self.membership, self._settings()
        if membership.broker_id is None:
            return None
        return PeerIdentity(
            settings.broker_cluster_name,
            settings.broker_name,
            membership.broker_id,
            membership.nonce,
            membership.now.epoch,
            self.log.received_end,
            membership.incarnation,
        )

    def metadata_master(self) -> Master | None:
        """Whom to ask for metadata that the log does not have any more; for `MetadataLog`."""
        now = self.membership.now
        if now.role is not Role.SLAVE or not now.master_address:
            return None
        return Master(now.master_address, self._master_is_ours)

    async def find_master(self, change: RoleState) -> MasterTarget:
        """Ask the master who it is."""
        target = await self.membership.find_master(change)
        self._master_is_ours = target.is_ours
        return target

    async def propose(
        self, sync_state_set: frozenset[int], set_epoch: int, master_epoch: int, nonces: Mapping[int, str]
    ) -> ProposalResult:
        """Ask the controllers for another in-sync set."""
        return await self.membership.propose(sync_state_set, set_epoch, master_epoch, nonces)

    def ask_soon(self) -> None:
        """Ask the controllers soon what is in force."""
        self.membership.ask_soon()

    def relieve(self, epoch: int, needed: int, *, begin: bool) -> bool:
        """Hand over, as no replica is heard. RocketMQ's controllers know of no such thing."""
        role = self.core.role
        if (role.role, role.epoch) != (Role.MASTER, epoch) or self._closing:
            return False
        begin = begin and self.core.lease.required and self.shell.may_serve()
        return self.switch_over.relieve(needed, begin=begin)

    # -- handing over (`SwitchOverParts`) -----------------------------------------------------------------

    @property
    def now(self) -> RoleState:
        """The role, as it is."""
        return self.core.role

    def replicas(self) -> tuple[ReplicaView, ...]:
        """The slaves that are connected."""
        return self.replication.status().replicas

    def end_of_log(self) -> int:
        """End of the log."""
        return self.log.max_offset

    def waiting(self) -> int:
        """Sends that are stored and not answered."""
        return self.replication.status().waiting

    def set_switching(self, on: bool) -> None:
        """Hold writes, or treat them as the role wants."""
        if on:
            self.metadata.flush()  # offsets that nobody waits for go along
        self.shell.hand_over(on)

    async def caught_up(self, broker_id: int, offset: int, timeout: float) -> bool:
        """Wait until a replica has everything below `offset`."""
        return await self.replication.caught_up(broker_id, offset, timeout)

    async def hand_over(self, to_broker_id: int | None, epoch: int) -> GroupNews:
        """Ask the controllers for the successor."""
        return await self.membership.hand_over(to_broker_id, epoch)

    async def be_relieved(self, epoch: int, needed: int) -> GroupNews:
        """Ask the controllers for a successor that hears enough replicas."""
        return await self.membership.hand_over(None, epoch, relief=needed)

    async def serves(self, address: str, epoch: int) -> bool:
        """Whether the broker there is master in this epoch."""
        return await says_master(self._asker, address, epoch)
