"""What a member of a group does whatever its log, files and sockets are: roles, service, handing over.

`GroupMember` puts it on the real store; the simulation runs the same on a simulated one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from brokerset_broker.admission import Admission
from brokerset_broker.gateway.door import Gateway
from brokerset_broker.gateway.forwarding import Forwarder
from brokerset_broker.gateway.service_mode import ModeKind, Modes, ServiceFacts, decide_mode, knows_ends
from brokerset_broker.gateway.switchover import SwitchOver, says_master
from brokerset_broker.ha.links import HaNetwork
from brokerset_broker.ha.replica_log import ReplicaLog
from brokerset_broker.ha.replication import Flushed, MasterTarget, ProposalResult, Replication, ReplicaView
from brokerset_broker.ha.switching import Switching
from brokerset_broker.membership.epoch_file import EpochFile
from brokerset_broker.membership.identity_folder import IdentityFolder
from brokerset_broker.membership.membership import Membership
from brokerset_broker.membership.role import LogEnd, Role, RoleChange, Told
from brokerset_broker.metadata.metadata_log import MetadataUnreadable
from brokerset_broker.metadata.polling import Master
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.ha_packets import PeerIdentity
from brokerset_runtime.asking import Asker
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RunBlocking
from brokerset_runtime.remoting import Connection, Handler
from brokerset_spec.broker_settings import BrokerSettings


class MemberMetadata(Protocol):
    """What a role decides about metadata: `MetadataLog`."""

    @property
    def covers_log(self) -> bool:
        """Whether no record is missing between the tables and the begin of the log."""

    async def run(self) -> None:
        """Write what is quiet, stamps and snapshots, until cancelled."""

    async def lead(self, epoch: int) -> None:
        """Apply everything up to the end of the log, then lead. Raises `MetadataUnreadable`."""

    async def write_snapshot(self) -> bool:
        """Write the whole state; False if that was interrupted."""

    def stop_leading(self) -> None:
        """Change nothing any more."""

    async def start_following(self) -> None:
        """Apply what is confirmed, as it is confirmed."""

    def confirmed(self, offset: int) -> None:
        """The log is confirmed up to `offset`."""

    def flush(self) -> None:
        """Write everything quiet that has no record yet."""

    def trouble(self) -> tuple[str, str] | None:
        """Why tables of a master that must be asked do not come, and what to do; None when all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceParts:
    """What is there before the log is opened."""

    settings: Callable[[], BrokerSettings]
    clock: Clock
    asker: Asker
    admission: Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlace:
    """Where a member lives: its files, its log, its network."""

    log: ReplicaLog
    epochs: EpochFile
    """Loaded."""

    identity: IdentityFolder
    network: HaNetwork
    random_source: random.Random
    own_address: Callable[[], str]
    """Of the remoting port, as others reach it."""

    ha_address: Callable[[], str]
    """Where slaves connect."""

    closed_cleanly: bool
    boot_id: str
    run_blocking: RunBlocking
    flushed: Flushed
    step_done: Callable[[str], None] | None = None
    """Told of each step of the registration, for tests that crash there."""


class MemberService:
    """Implements `GroupLink`, `SwitchTargets` and `SwitchOverParts`.

    Life: make it, `join` and `use_metadata` once the log is open, `serve_with` the handlers, `run`.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._settings = parts.settings
        self._clock = parts.clock
        self._asker = parts.asker
        self._admission = parts.admission
        self._switching = False
        self._handing_over = False
        self._closing = False
        self._lease_lost_at: float | None = None
        self._not_enough_since: float | None = None
        self._no_master_since: float | None = None
        self._led_epoch = -1
        self._master_is_ours = True
        self._follow_metadata = asyncio.Event()
        self._gateway: Gateway | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._log: ReplicaLog
        self._epochs: EpochFile
        self.forwarder = Forwarder(parts.asker)
        self.membership: Membership
        self.replication: Replication
        self.switching: Switching
        self.metadata: MemberMetadata
        self.switch_over = SwitchOver(parts.settings().broker_name, self)

    # -- life ---------------------------------------------------------------------------------------------

    def join(self, place: MemberPlace) -> None:
        """Build membership and replication on an opened log."""
        settings = self._settings()
        self._log, self._epochs = place.log, place.epochs
        self.membership = Membership(
            settings=settings,
            folder=place.identity,
            epochs=place.epochs,
            asker=self._asker,
            clock=self._clock,
            random_source=place.random_source,
            log_end=self._log_end,
            own_address=place.own_address,
            closed_cleanly=place.closed_cleanly,
            boot_id=place.boot_id,
            on_role=self._role_taken,
            run_blocking=place.run_blocking,
            step_done=place.step_done,
            ha_address=place.ha_address,
        )
        self.replication = Replication(
            settings=self._settings,
            log=place.log,
            epochs=place.epochs,
            network=place.network,
            clock=self._clock,
            run_blocking=place.run_blocking,
            identity=self._identity,
            group=self,
            flushed=place.flushed,
        )
        self.switching = Switching(self.replication, self, self._clock)
        self.membership.switch = self.switching.switch
        hooks = self.membership.hooks
        hooks.on_news = self._news
        hooks.on_fenced = lambda _fenced: self.refresh()
        hooks.on_lease_change = self._lease_changed
        hooks.on_problem = self.refresh
        hooks.all_ack = lambda: self._settings().all_ack_in_sync_state_set
        hooks.replication_problem = self._replication_problem
        hooks.log_damage = lambda: place.log.failure() or ""
        self.replication.on_service_change(self._enough_changed)

    def use_metadata(self, metadata: MemberMetadata) -> None:
        """Keep metadata, which is loaded; nothing is appended before there is a role."""
        self.metadata = metadata
        self._log.on_confirmed(metadata.confirmed)
        self.replication.may_join = lambda: metadata.covers_log
        self.replication.on_waiting_change = self._waiting_changed
        self._waiting_changed()
        self._log.follow()

    def serve_with(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The table for the server; it changes with the role."""
        self._gateway = Gateway(
            {**handlers, **self.membership.handlers(), **self.switch_over.handlers()},
            forwarder=self.forwarder,
            lease_ok=self.membership.may_serve,
            on_lapse=self._lease_changed,
        )
        self.refresh()
        return self._gateway.handlers

    async def run(self) -> None:
        """Be a member for as long as this task runs."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self.replication.run())
            tasks.create_task(self.metadata.run())
            tasks.create_task(self._follow_along())
            tasks.create_task(self.membership.run())

    def stop_serving(self) -> None:
        """Refuse everything from now on: the broker shuts down."""
        self._closing = True
        if self._gateway is not None:
            self._gateway.close()

    def connection_closed(self, connection: Connection) -> None:
        """A client's connection has ended."""
        if self._gateway is not None:
            self._gateway.closed(connection)

    @property
    def gateway(self) -> Gateway:
        """The table of handlers; there is one since `serve_with`."""
        assert self._gateway is not None, "handlers come first"
        return self._gateway

    # -- who this is --------------------------------------------------------------------------------------

    def _log_end(self) -> LogEnd:
        log = self._log
        return LogEnd(self._epochs.history.last_epoch, log.received_end, log.confirmed_offset)

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
            self._log.received_end,
            membership.incarnation,
        )

    def metadata_master(self) -> Master | None:
        """Whom to ask for metadata that the log does not have any more; for `MetadataLog`."""
        now = self.membership.now
        if now.role is not Role.SLAVE or not now.master_address:
            return None
        return Master(now.master_address, self._master_is_ours)

    # -- what replication asks (`GroupLink`) --------------------------------------------------------------

    async def find_master(self, change: RoleChange) -> MasterTarget:
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
        membership = self.membership
        if (membership.now.role, membership.now.epoch) != (Role.MASTER, epoch) or self._closing:
            return False
        begin = begin and membership.lease.required and membership.may_serve()
        return self.switch_over.relieve(needed, begin=begin)

    # -- a change of role (`SwitchTargets`) ---------------------------------------------------------------

    def hold_writes(self) -> None:
        """Let sends wait until `serve`."""
        self._switching = True
        self.refresh()

    async def stop_services(self) -> None:
        """End changes of metadata."""
        self.metadata.stop_leading()

    async def apply_metadata(self) -> None:
        """Everything in the log is history now. Raises `StoreRefused` if it cannot be read."""
        self._follow_metadata.clear()
        try:
            await self.metadata.lead(self._epochs.history.last_epoch)
        except MetadataUnreadable as error:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, str(error)) from error

    async def write_snapshot(self) -> None:
        """All metadata, the first records of the epoch."""
        await self.metadata.write_snapshot()

    def start_services(self) -> None:
        """Begin what only a master does beside serving: nothing here."""

    def serve(self, change: RoleChange) -> None:
        """Serve, forward or refuse, as role, lease and in-sync set allow."""
        self._switching = False
        if change.role is not Role.MASTER:
            self._follow_metadata.set()
        self.refresh()

    def tell_name_servers(self) -> None:
        """Register again soon: somebody else's work, here."""

    async def _follow_along(self) -> None:
        """Apply metadata as it is confirmed, whenever this broker does not lead."""
        while True:
            await self._follow_metadata.wait()
            self._follow_metadata.clear()
            if self.membership.role is not Role.MASTER:
                await self.metadata.start_following()

    # -- news ---------------------------------------------------------------------------------------------

    def _role_taken(self, change: RoleChange) -> None:
        now = self._clock.monotonic()
        begins = change.role is Role.MASTER and change.epoch != self._led_epoch
        if begins:  # what is missing is missing since now, and is waited for
            self._led_epoch = change.epoch
            self._lease_lost_at = None if self.membership.may_serve() else now
            self._not_enough_since = None if self.replication.enough_in_sync else now
        if change.role is Role.SLAVE and change.master_id is None:
            self._no_master_since = self._no_master_since or now
        else:
            self._no_master_since = None
        if not self._switching:
            self.refresh()

    def _news(self, change: RoleChange) -> None:
        self.replication.adopt(change.sync_state_set, change.set_epoch, change.epoch)

    def _lease_changed(self) -> None:
        if self.membership.may_serve():
            self._lease_lost_at = None
        elif self._lease_lost_at is None:
            self._lease_lost_at = self._clock.monotonic()
        self.refresh()

    def _enough_changed(self) -> None:
        if self.replication.enough_in_sync:
            self._not_enough_since = None
        elif self._not_enough_since is None:
            self._not_enough_since = self._clock.monotonic()
        self.refresh()

    def _waiting_changed(self) -> None:
        """Sends wait for replicas only if there are any: a group of one does not pay for replication."""
        at_once = self.replication.acknowledges_appends
        self._admission.when_durable = None if at_once else self.replication.when_acknowledged

    def _replication_problem(self) -> tuple[str, str] | None:
        follower = self.replication.status().follower
        if follower.state == "refused":
            return follower.problem, follower.advice
        return self.metadata.trouble()

    def refresh(self) -> None:
        """Look anew what may be served."""
        gateway = self._gateway
        if gateway is None or self._closing:
            return
        facts = self._facts()
        modes = decide_mode(facts)
        self._admit(modes)
        gateway.use(modes)
        self._admission.know_ends(knows_ends(facts))
        self._modes_taken(modes)

    def _admit(self, modes: Modes) -> None:
        """What is past the gateway already is refused here, where it would be appended."""
        admission = self._admission
        if modes.writes.kind is ModeKind.SERVE:
            admission.accept_writes()
        elif self.membership.role is Role.SLAVE and not self._switching:
            admission.refuse_writes()
        else:
            admission.refuse_writes(
                modes.writes.code or ResponseCode.SERVICE_NOT_AVAILABLE, modes.writes.remark
            )

    def _modes_taken(self, modes: Modes) -> None:
        """Told of the modes after each look, for who counts."""

    def _facts(self) -> ServiceFacts:
        membership, settings = self.membership, self._settings()
        now = membership.now
        found = membership.diagnosis()
        name = f"broker {settings.broker_name}"
        return ServiceFacts(
            role=now.role,
            epoch=now.epoch,
            lease_required=membership.lease.required,
            lease_valid=now.role is not Role.MASTER or membership.may_serve(),
            lease_lost_for_ms=self._ms_since(self._lease_lost_at),
            enough_in_sync=self.replication.enough_in_sync,
            not_enough_for_ms=self._ms_since(self._not_enough_since),
            needs_min=settings.min_in_sync_replicas,
            in_sync=len(now.sync_state_set),
            epoch_confirmed=self.replication.epoch_confirmed,
            acknowledged_alone=settings.min_in_sync_replicas <= 1 or not settings.all_ack_in_sync_state_set,
            switching=self._switching or self._handing_over,
            fenced=membership.fenced,
            master_address=now.master_address if now.role is Role.SLAVE else None,
            no_master_for_ms=self._ms_since(self._no_master_since),
            shutting_down=self._closing,
            stopped_reason=self._stopped_reason(),
            no_role_reason=f"{name} is not in service: {found.problem}; {found.advice}",
            name=name,
        )

    def _stopped_reason(self) -> str | None:
        """Why nothing can be served although there is a role."""
        return None

    def _ms_since(self, moment: float | None) -> int:
        return 0 if moment is None else int(1000 * (self._clock.monotonic() - moment))

    # -- handing over (`SwitchOverParts`) -----------------------------------------------------------------

    @property
    def now(self) -> RoleChange:
        """The role, as it is."""
        return self.membership.now

    def replicas(self) -> tuple[ReplicaView, ...]:
        """The slaves that are connected."""
        return self.replication.status().replicas

    def log_end(self) -> int:
        """End of the log."""
        return self._log.max_offset

    def waiting(self) -> int:
        """Sends that are stored and not answered."""
        return self.replication.status().waiting

    def set_switching(self, on: bool) -> None:
        """Hold writes, or treat them as the role wants."""
        if on:
            self.metadata.flush()  # offsets that nobody waits for go along
        self._handing_over = on
        self.refresh()

    async def caught_up(self, broker_id: int, offset: int, timeout: float) -> bool:
        """Wait until a replica has everything below `offset`."""
        return await self.replication.caught_up(broker_id, offset, timeout)

    async def hand_over(self, to_broker_id: int | None, epoch: int) -> Told:
        """Ask the controllers for the successor."""
        return await self.membership.hand_over(to_broker_id, epoch)

    async def be_relieved(self, epoch: int, needed: int) -> Told:
        """Ask the controllers for a successor that hears enough replicas."""
        return await self.membership.hand_over(None, epoch, relief=needed)

    async def serves(self, address: str, epoch: int) -> bool:
        """Whether the broker there is master in this epoch."""
        return await says_master(self._asker, address, epoch)
