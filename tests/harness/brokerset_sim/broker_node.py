"""A broker of the simulation: real membership on a simulated host; its log and replication are numbers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.membership.identity_folder import IdentityFolder
from brokerset_broker.member.membership.membership import Membership
from brokerset_broker.member.role import LogEnd, Role, RoleState
from brokerset_formats.epochs import encode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity, StartRecord
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import (
    AlterSyncStateSet,
    GetMetaDataResponse,
    GetReplicaInfo,
    GetReplicaInfoResponse,
)
from brokerset_runtime.disk import replace_file
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.controller_node import SlowDisk
from brokerset_sim.disk import DiskHandle, ProcessGone, SimDisk
from brokerset_sim.group_checker import IDENTITY_FILES, ONE_IDENTITY
from brokerset_sim.history import Violation
from brokerset_sim.lone_member import LoneMember
from brokerset_sim.network import Endpoint, SimAsker
from brokerset_sim.process import HostClock, Process
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from brokerset_sim.world import World

IDENTITY = "brokerIdentity"
ASK_SECONDS = 1.0


@dataclass(slots=True)
class SimLog:
    """The end of a commit log: in the page cache, and on the disk."""

    offset: int = 0
    synced: int = 0

    def lose_power(self) -> None:
        self.offset = self.synced

    def sync(self) -> None:
        self.synced = self.offset


class Lineage:
    """A folder and its copies."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class BrokerNode:
    """One broker's folder on a host, whether its process runs or not."""

    def __init__(self, world: World, name: str, group: str, *, expected: int, owner: str) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.expected = expected
        self.owner = owner
        self.host = world.new_host(name)
        self.disk = SimDisk(world.random_for(f"disk {name}"))
        self.slow = SlowDisk(world.random_for(f"delay {name}"))
        self.log = SimLog()
        self.port = 10911
        self.process: Process | None = None
        self.membership: Membership | None = None
        self.epochs: EpochFile | None = None
        self.role = RoleState()
        self.closed_cleanly = True
        self.nonces: dict[str, None] = {}
        """Every nonce that a process on this folder has shown."""

        self.backups: list[tuple[dict[str, bytes], object]] = []
        self.crash_at: int | None = None
        self.crash_loses_power = False
        self.crash_after_step: str | None = None
        self.starts = 0
        self.foreign = False
        """Its identity was made elsewhere."""

        self.retired = False
        """Its folder shall not be started again."""

        self.power_lost_at = -1.0
        """When its host was booted again the last time."""

        self._handle: DiskHandle | None = None
        self._opened_by: Process | None = None
        """The newest process that has opened the log; one that was ended before has nothing to close."""

        self._ids: dict[int, None] = {}
        self.lineage: object = Lineage(name)
        """Shared with copies; a new one once the folder was emptied."""

    @property
    def address(self) -> str:
        """Where it listens now."""
        return f"{self.host.name}:{self.port}"

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    @property
    def nonce(self) -> str | None:
        """The newest nonce that its process has shown."""
        return next(reversed(self.nonces), None)

    def identity(self) -> BrokerIdentity | None:
        """What a crash now would leave of the identity. Raises `Violation` for half a file, or another id."""
        data = self.disk.durable().get(IDENTITY)
        if data is None:
            return None
        try:
            found = BrokerIdentity.decode(data)
        except FormatError as error:
            raise Violation(IDENTITY_FILES, f"{self.name}: {error}") from error
        if found.check_code or found.broker_name != self.group:
            raise Violation(IDENTITY_FILES, f"{self.name}: the identity file holds {found}")
        self._ids[found.broker_id] = None
        if len(self._ids) > 1:
            raise Violation(ONE_IDENTITY, f"{self.name} had the ids {sorted(self._ids)}")
        if not self.is_stranger():
            self.world.witness.group(self.group).owns(found.broker_id, self.lineage)
        return found

    def start(self) -> None:
        """Run the process, on what the folder holds."""
        assert not self.up
        world = self.world
        self.starts += 1
        process = Process(world.loop, f"{self.name}.{self.starts}", self.host, world.process_died)
        process.node = self
        self.process = process
        self.role = RoleState()
        self._handle = self.disk.handle(self._before_change)
        world.note("start", process.name, self.address)
        process.spawn(process.call(self._main, process, self._handle), vital=True)

    def stop(self, *, power: bool, cleanly: bool = False) -> None:
        """Kill the process; with `power`, the host is booted again and has lost what was not synced."""
        process = self.process
        if process is not None and process.alive:
            self.world.note("kill", process.name, power, cleanly)
            assert self._handle is not None
            self._handle.gone = True
            process.kill()
            self.world.network.gone(process, silent=power)
            self.world.ha.gone(process, silent=power)
            self.world.graveyard.append(process)
        if cleanly and process is not None and process is self._opened_by:
            assert self.membership is not None
            self.sync_volume()
            self.closed_cleanly = self.membership.loss_is_known
        if power:
            self.disk.lose_power()
            self.lose_volume_power()
            self.power_lost_at = self.world.loop.time()
            self.host.boots += 1
            if not self.closed_cleanly:
                self.world.cache_lost(self)
        self.world.guard(self.identity)

    def is_stranger(self) -> bool:
        """Whether its identity comes from elsewhere and no controller has taken it in yet."""
        start = self.disk.durable().get("brokerIdentity-start")
        return self.foreign and (start is None or StartRecord.decode(start).last_nonce is None)

    def empty(self) -> None:
        """Throw the folder's content away: the next start makes a new replica."""
        self.world.emptied = True
        self.disk.put({})
        self.empty_volume()
        self.closed_cleanly = True
        self.nonces.clear()
        self.backups.clear()
        self._ids.clear()
        self.lineage = Lineage(f"{self.name} again")

    def back_up(self) -> None:
        """Keep a copy of the volume."""
        self.backups.append((self.disk.durable(), self.volume_backup()))

    def roll_back(self, files: dict[str, bytes], log: object) -> None:
        """Put an older copy of the volume in place of the one of a process that is not there any more."""
        assert not self.up
        self.disk.put(files)
        self.restore_volume(log)
        self.closed_cleanly = False
        self.world.note("rolled back", self.name)

    # -- the log's volume, for faults ---------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        """Where the log ends."""
        return self.log.offset

    def sync_volume(self) -> None:
        """The log is closed in order."""
        self.log.sync()

    def lose_volume_power(self) -> None:
        """What of the log was not synced is gone."""
        self.log.lose_power()

    def empty_volume(self) -> None:
        """The log is thrown away."""
        self.log = SimLog()

    def volume_backup(self) -> object:
        """A copy of the log, to be restored later."""
        return replace(self.log)

    def restore_volume(self, backup: object) -> None:
        """Put a copy back."""
        assert isinstance(backup, SimLog)
        self.log.offset, self.log.synced = backup.offset, backup.synced

    def copy_volume(self, other: BrokerNode) -> None:
        """Take a copy of what another's disk has."""
        self.log.offset = self.log.synced = other.log.synced

    def foreign_volume(self, size: int) -> None:
        """A log that was written elsewhere."""
        self.log.offset = self.log.synced = size

    async def _main(self, process: Process, handle: DiskHandle) -> None:
        world = self.world
        asker = SimAsker(world.network, process)
        clock = HostClock(world.loop, self.host)
        epochs = EpochFile(handle)
        epochs.load(self.log.offset)
        membership = LoneMember(
            settings=self._settings(),
            folder=IdentityFolder(handle),
            epochs=epochs,
            asker=asker,
            clock=clock,
            random_source=random.Random(world.random_for(f"broker {process.name}").random()),
            log_end=lambda: LogEnd(epochs.history.last_epoch, self.log.offset, self.log.offset),
            own_address=lambda: self.address,
            closed_cleanly=self.closed_cleanly,
            boot_id=self.host.boot_id,
            on_role=lambda change: self._role_changed(process, change),
            run_blocking=self.slow,
            step_done=lambda step: self._step_done(process, step),
        ).membership
        self.closed_cleanly = False
        self._opened_by = process
        self.membership, self.epochs = membership, epochs
        world.network.listen(Endpoint(process, self.address, membership.handlers()))
        async with asyncio.TaskGroup() as group:
            group.create_task(membership.run())
            group.create_task(self._replicate(process, asker))

    def _settings(self) -> BrokerSettings:
        return BrokerSettings(
            broker_cluster_name="sim",
            broker_name=self.group,
            broker_ip1=self.host.name,
            listen_port=self.port,
            enable_controller_mode=True,
            controller_addr=";".join(self.world.controller_addresses()),
            broker_heartbeat_interval=500,
            send_heartbeat_timeout_millis=400,
            controller_heart_beat_timeout_mills=2_000,
            sync_broker_metadata_period=1_000,
            sync_controller_metadata_period=3_000,
            owner_uid=self.owner,
            expected_replicas=self.expected,
        )

    def _role_changed(self, process: Process, change: RoleState) -> None:
        if not process.alive:
            return
        before = self.role
        self.role = change
        self.world.note("role", process.name, change.role.value, change.epoch, change.master_id)
        self.world.role_changed(self, process, before, change)
        if change.role is Role.MASTER:
            self._became_master()

    def _became_master(self) -> None:
        self.log.sync()

    def _step_done(self, process: Process, step: str) -> None:
        self.world.note("step", process.name, step)
        self.world.guard(self.identity)
        if self.crash_after_step == step and process.alive:
            self.crash_after_step = None
            self.stop(power=self.crash_loses_power)
            self.world.crashed(self)

    def _before_change(self) -> None:
        if self.crash_at is not None and self.disk.operations >= self.crash_at:
            self.crash_at = None
            self.stop(power=self.crash_loses_power)
            self.world.crashed(self)

    # -- what the store will do: appends, copies, proposes sets -------------------------------------------

    async def _replicate(self, process: Process, asker: SimAsker) -> None:
        dice = self.world.random_for(f"replication {process.name}")
        epoch = 0
        known: frozenset[int] = frozenset()
        set_epoch = 0
        while True:
            await asyncio.sleep(0.3 + dice.random() * 0.3)
            role = self.role
            if role.role is not Role.MASTER:
                continue
            if role.epoch != epoch or role.set_epoch > set_epoch:
                epoch, known, set_epoch = role.epoch, role.sync_state_set, role.set_epoch
            self.log.offset += dice.randint(1, 1000)
            if dice.random() < 0.5:
                self.log.sync()
            own = self.membership.broker_id if self.membership is not None else None
            if own is None:
                continue
            caught_up = {own}
            for other in self.world.brokers_of(self.group):
                if other is not self and self._copies(other, role):
                    caught_up.add(other.role_id)
            wanted = frozenset(caught_up)
            if wanted == known or dice.random() < 0.3:
                continue
            answer = await self._propose(asker, own, epoch, wanted, set_epoch)
            if answer is not None and self.role.epoch == epoch:
                known, set_epoch = answer

    @property
    def role_id(self) -> int:
        """The id that its process has registered."""
        assert self.membership is not None
        assert self.membership.broker_id is not None
        return self.membership.broker_id

    def _copies(self, other: BrokerNode, role: RoleState) -> bool:
        """Let another broker of the group copy the log, if it follows this master and can be reached."""
        process = other.process
        if process is None or not process.alive or process.paused or other.membership is None:
            return False
        if other.role.role is not Role.SLAVE or other.role.epoch != role.epoch:
            return False
        network = self.world.network
        if not (network.open(self.host, other.host) and network.open(other.host, self.host)):
            return False
        if self.epochs is None or other.epochs is None or other._handle is None:
            return False
        if other.epochs.history.last_epoch > role.epoch:
            return False  # it has begun an epoch of its own, and takes the role in a moment
        if other.epochs.history != self.epochs.history:
            try:
                replace_file(other._handle, other.epochs.name, encode_epoch_file(self.epochs.history))
            except (ProcessGone, OSError):
                return False
            other.epochs.history = self.epochs.history
        other.log.offset = self.log.offset
        other.log.synced = min(other.log.synced, other.log.offset)
        return True

    async def _propose(
        self, asker: SimAsker, own: int, epoch: int, wanted: frozenset[int], set_epoch: int
    ) -> tuple[frozenset[int], int] | None:
        header = AlterSyncStateSet(
            broker_name=self.group, master_broker_id=own, master_epoch=epoch, invoke_time=0
        )
        body = SyncStateSet(wanted, set_epoch).to_json()
        command = Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header.to_ext(), body)
        try:
            leader = await find_leader(self.world, asker)
            if leader is None:
                return None
            reply = await asker.ask(leader, command, ASK_SECONDS)
            if reply.code == ResponseCode.SUCCESS:
                made = SyncStateSet.from_json(reply.body)
                return made.sync_state_set, made.sync_state_set_epoch
            ask = Command(
                RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfo(broker_name=self.group).to_ext()
            )
            reply = await asker.ask(leader, ask, ASK_SECONDS)
            if reply.code != ResponseCode.SUCCESS:
                return None
            info = GetReplicaInfoResponse.from_ext(reply.ext)
            found = SyncStateSet.from_json(reply.body)
        except (ConnectionClosed, RequestTimeout):
            return None
        if info.master_epoch != epoch:
            return None
        return found.sync_state_set, found.sync_state_set_epoch


async def find_leader(world: World, asker: SimAsker) -> str | None:
    """Ask controllers in turn who leads."""
    for address in world.controller_addresses():
        try:
            reply = await asker.ask(
                address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO), ASK_SECONDS / 2
            )
        except (ConnectionClosed, RequestTimeout):
            continue
        if reply.code == ResponseCode.SUCCESS:
            answer = GetMetaDataResponse.from_ext(reply.ext)
            if answer.controller_leader_address:
                return answer.controller_leader_address
    return None
