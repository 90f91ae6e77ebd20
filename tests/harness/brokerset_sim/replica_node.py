"""A broker of the simulation that replicates: real replication, roles and gateway over a simulated log."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.member.core import Serve, SwitchEnded
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.member_service import MemberPlace, MemberService
from brokerset_broker.member.membership.identity_folder import IdentityFolder
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.member.steps import MemberMetadata
from brokerset_broker.requests.admission import PERM_READ, PERM_WRITE, Admission
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Handler
from brokerset_runtime.remoting.connection import DEFERRED
from brokerset_sim.broker_node import BrokerNode
from brokerset_sim.clients import ATTEMPT, END, EPOCH, MESSAGE, NEXT, OFFSET, RECORDS, SIZE, shown
from brokerset_sim.disk import DiskHandle
from brokerset_sim.log_checker import Acknowledged
from brokerset_sim.metadata_node import STAMP_MS, NoMetadata, SimMetadataSource, SimTables
from brokerset_sim.name_servers import Entry
from brokerset_sim.network import Endpoint, SimAsker, SimConnection
from brokerset_sim.process import HostClock, Process
from brokerset_sim.replica_log import SimReplicaLog, Volume
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from brokerset_sim.world import World

HA_PORT_STEP = 1
REGISTER_SECONDS_MAX = 0.5
"""Until name servers know of a role."""

READ_BYTES_MAX = 10_000
"""Answered to one pull; it is more than a record."""

KEPT_BYTES = 20_000
"""Of the log before the confirmed offset, which retention leaves."""


DELAYED_EACH = 16
"""Of so many messages one is a delayed one, which is delivered at once."""

DELAY_LEVELS = 3


class ReplicaNode(BrokerNode):
    """One broker's folder and volume on a host, whether its process runs or not."""

    def __init__(self, world: World, name: str, group: str, *, expected: int, owner: str) -> None:
        super().__init__(world, name, group, expected=expected, owner=owner)
        self.volume = Volume()
        self.power_dice = world.random_for(f"power {name}")
        self.running: Running | None = None
        self._counted: Running | None = None

    # -- the volume, for faults ---------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        return self.volume.end

    def lose_volume_power(self) -> None:
        self.volume.lose_power(self.power_dice)

    def sync_volume(self) -> None:
        self.volume.synced = self.volume.end

    def empty_volume(self) -> None:
        self.volume = Volume()

    def copy_volume(self, other: BrokerNode) -> None:
        assert isinstance(other, ReplicaNode)
        self.volume = other.volume.copy(durable=True)

    def volume_backup(self) -> object:
        return self.volume.copy(durable=True)

    def restore_volume(self, backup: object) -> None:
        assert isinstance(backup, Volume)
        self.volume = backup.copy()

    def count_up(self) -> None:
        """Add what the process has counted to what happened in the run."""
        running = self.running
        if running is None or running is self._counted:
            return
        self._counted = running
        counts = self.world.witness.counts
        counts["held"] += running.gateway.holding.counters.held
        counts["hold expired"] += running.gateway.holding.counters.expired
        counts["forwarded"] += running.forwarder.counters.forwarded
        counts["forward repeated"] += running.forwarder.counters.repeated
        counts["forward unclear"] += running.forwarder.counters.unclear
        counts["switchover done"] += running.switch_over.completed
        counts["switchover failed"] += running.switch_over.failed
        counts["lease lapsed"] += running.lapses
        counts["refused"] += running.gateway.refused

    def stop(self, *, power: bool, cleanly: bool = False) -> None:
        self.count_up()
        super().stop(power=power, cleanly=cleanly)

    def _became_master(self) -> None:
        """Nothing is synced for that."""

    def serves_with_enough(self) -> bool:
        """Whether its process is master, and has replicas enough to confirm anything."""
        running = self.running
        return (
            self.up
            and running is not None
            and running.serves_as_master
            and running.replication.enough_in_sync
            and running.membership.may_serve()
        )

    # -- the process --------------------------------------------------------------------------------------

    async def _main(self, process: Process, handle: DiskHandle) -> None:
        running = Running(self, process, handle)
        self.running = running
        self.closed_cleanly = False
        self._opened_by = process
        self.membership, self.epochs = running.membership, running.epochs
        await running.run()

    def _settings(self) -> BrokerSettings:
        plan = self.world.plan
        return replace(
            super()._settings(),
            min_in_sync_replicas=min(plan.min_in_sync, self.expected),
            all_ack_in_sync_state_set=not plan.acknowledges_alone,
            in_sync_replicas=1,
            flush_disk_type="SYNC_FLUSH" if plan.sync_flush else "ASYNC_FLUSH",
            ha_transfer_batch_size=1_024,
            ha_send_heartbeat_interval=500,
            ha_max_time_slave_not_catchup=2_000,
            ha_housekeeping_interval=5_000,
            slave_timeout=3_000,
            mapped_file_size_commit_log=plan.snapshot_each_bytes,
            flush_consumer_offset_interval=STAMP_MS,
        )

    async def _replicate(self, process: Process, asker: SimAsker) -> None:
        raise AssertionError("the real replication does it")


class Running(MemberService):
    """One process of a broker: the parts that `GroupMember` has, without files and sockets."""

    log: SimReplicaLog

    def __init__(self, node: ReplicaNode, process: Process, handle: DiskHandle) -> None:
        world = node.world
        self.node = node
        self.process = process
        self.settings = node._settings()
        self.asker = SimAsker(world.network, process)
        self.clock = HostClock(world.loop, node.host)
        self.lapses = 0
        self._served = False
        self._disk = handle
        log = SimReplicaLog(
            node.volume,
            sync_flush=world.plan.sync_flush,
            slow=node.slow,
            alive=lambda: process.alive,
            on_confirm=self._confirmed,
            on_truncated=self._truncated,
            on_append=lambda record: world.watch.appended(node, process),
        )
        self.epochs = EpochFile(handle)
        self.epochs.load(log.max_offset)
        self.keeper: SimTables | None = None
        """The tables; None in a world without metadata."""

        self.log = log
        super().__init__(
            MemberPlace(
                settings=lambda: self.settings,
                clock=self.clock,
                asker=self.asker,
                admission=Admission(node.name, PERM_READ | PERM_WRITE),
                services=RoleServices(),
                log=log,
                epochs=self.epochs,
                identity=IdentityFolder(handle),
                network=world.ha.of(process, self.ha_address()),
                random_source=random.Random(world.random_for(f"broker {process.name}").random()),
                closed_cleanly=node.closed_cleanly,
                boot_id=node.host.boot_id,
                run_blocking=node.slow,
                flushed=log.when_flushed,
                step_done=lambda step: node._step_done(process, step),
            )
        )
        handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: cast(Handler, self._send),
            RequestCode.PULL_MESSAGE: cast(Handler, self._pull),
            RequestCode.LOCK_BATCH_MQ: cast(Handler, self._lock),
            RequestCode.GET_MAX_OFFSET: cast(Handler, self._end),
        }
        if self.keeper is not None:
            assert isinstance(self.metadata, MetadataLog)
            handlers |= self.keeper.handlers(self._live, self.clock, self._admission, self.metadata)
        world.network.listen(Endpoint(process, node.address, self.serve_with(handlers)))

    def own_address(self) -> str:
        return self.node.address

    def ha_address(self) -> str:
        return f"{self.node.host.name}:{self.node.port + HA_PORT_STEP}"

    def make_metadata(self) -> MemberMetadata:
        self._live = LiveSettings(self.settings)
        if not self.node.world.plan.metadata_clients:  # something at the beginning of each epoch
            empty = NoMetadata(lambda: self.log.append(-1_000 - self.core.role.epoch, 40))
            self._keep_from = empty.keep_from
            return empty
        source = SimMetadataSource(self.log)
        self.keeper = SimTables.load(self._live, self.clock, self._disk, self.node.slow, source)
        metadata = MetadataLog(
            settings=lambda: self.settings,
            store=source,
            tables=self.keeper.tables,
            stamp=StampFile(self._disk),
            run_blocking=self.node.slow,
            when_confirmed=self.replication.when_acknowledged,
            asker=self.asker,
            master=self.metadata_master,
        )
        metadata.load()
        self.log.on_removed = metadata.truncated
        self._keep_from = metadata.keep_from
        return metadata

    async def run(self) -> None:
        """Until the process ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._flush())

    async def _flush(self) -> None:
        dice = self.node.world.random_for(f"flush {self.process.name}")
        while True:
            await asyncio.sleep(dice.random() * (0.02 if self.node.world.plan.sync_flush else 1.0))
            self.log.flush()
            if dice.random() < 0.02:
                limit = min(self.log.confirmed_offset - KEPT_BYTES, self._keep_from())
                if self.log.delete_before(limit):
                    self.node.world.watch.retired(self.node)

    # -- requests -----------------------------------------------------------------------------------------

    def _send(self, connection: SimConnection, command: Command) -> object:
        now = self.membership.now
        attempt, message = int(command.ext[ATTEMPT]), int(command.ext[MESSAGE])
        made = self.log.append(message, int(command.ext[SIZE]))
        self.node.world.watch.stored(self.node, self.process, attempt, made)
        acked = Acknowledged(
            attempt, message, made.offset, made.end, now.epoch, not self.settings.all_ack_in_sync_state_set
        )
        if self.keeper is not None and message % DELAYED_EACH == 0:
            self.keeper.delay.delivered(1 + message // DELAYED_EACH % DELAY_LEVELS)
        self.replication.when_acknowledged(made.end, partial(self._answer, connection, command, acked))
        return DEFERRED

    def _answer(
        self, connection: SimConnection, command: Command, acked: Acknowledged, status: PutStatus
    ) -> None:
        if status is not PutStatus.PUT_OK:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            if status is PutStatus.FLUSH_SLAVE_TIMEOUT:
                code = ResponseCode.FLUSH_SLAVE_TIMEOUT
            connection.answer(command.reply(code, status.value))
            return
        if self.process.alive:
            self.node.world.watch.promised(self.node, self.process, acked)
        ext = {OFFSET: str(acked.offset), END: str(acked.end), EPOCH: str(acked.epoch)}
        connection.answer(command.reply(ext=ext))

    def _pull(self, connection: SimConnection, command: Command) -> Command:
        self._serve_with_lease("reads")
        log = self.log
        begin = max(int(command.ext[OFFSET]), log.min_offset)
        found = self.node.world.watch.placed(
            self.node, begin, min(log.confirmed_offset, begin + READ_BYTES_MAX)
        )
        position = found[-1].record.end if found else begin
        return command.reply(ext={RECORDS: ";".join(map(shown, found)), NEXT: str(position)})

    def _end(self, connection: SimConnection, command: Command) -> Command:
        self._serve_with_lease("ends")
        return command.reply(ext={OFFSET: str(self.log.confirmed_offset)})

    def _lock(self, connection: SimConnection, command: Command) -> Command:
        self._serve_with_lease("locks")
        return command.reply()

    def _serve_with_lease(self, what: str) -> None:
        """A master that hands over answers reads as a slave does."""
        now = self.membership.now
        if now.role is Role.MASTER and not (what == "reads" and self.core.hands_over):
            self.node.world.watch.served(self.process, now.epoch, what)

    # -- what a role does to the world --------------------------------------------------------------------

    @property
    def serves_as_master(self) -> bool:
        """Whether it has the role, and is not about to take another one."""
        return self.membership.role is Role.MASTER and not self.core.holds_writes

    def serve(self, service: Serve) -> None:
        serves = self.shell.may_serve()
        self.lapses += self._served and not serves and self.membership.role is Role.MASTER
        self._served = serves
        super().serve(service)

    def switch_ended(self, ended: SwitchEnded) -> None:
        after = ended.after
        if not ended.problem and after.role is Role.MASTER and self.keeper is not None:
            self.node.world.metadata.serves(self.node, self.process, after.epoch)
        super().switch_ended(ended)

    def tell_name_servers(self) -> None:
        """Register soon, as what it is by then."""
        world = self.node.world
        world.loop.call_later(
            REGISTER_SECONDS_MAX
            * world.random_for(f"register {self.process.name} {self.membership.now.epoch}").random(),
            self.process.soon,
            self._tell,
        )

    def _tell(self) -> None:
        now = self.membership.now
        entry = Entry(self.node.address, now.role is Role.MASTER, now.epoch)
        self.node.world.names.tell(self.node.group, self.node.name, entry)

    # -- what checkers see --------------------------------------------------------------------------------

    def role_taken(self, before: RoleState, after: RoleState) -> None:
        node = self.node
        if not self.process.alive:
            return
        shown = node.role
        node._role_changed(self.process, after)
        if after.role is Role.MASTER and (shown.role, shown.epoch) != (after.role, after.epoch):
            node.world.watch.leads(node, self.process, after.epoch, self.epochs.history)
        super().role_taken(before, after)

    def _confirmed(self, before: int, after: int) -> None:
        self.node.world.watch.confirmed(self.node, before, after)

    def _truncated(self, offset: int, from_scratch: bool) -> None:
        self.node.world.watch.truncated(
            self.node, offset, self.log.confirmed_offset, from_scratch=from_scratch
        )
