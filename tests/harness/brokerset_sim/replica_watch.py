"""Observes what replicas send, store, confirm, truncate and serve, for the checkers of logs and leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from brokerset_broker.member.epoch_file import BACKUP_SUFFIX
from brokerset_broker.member.role import Role
from brokerset_controller.replicas import election
from brokerset_controller.replicas.events import Event, FencingChanged, MasterElected, SyncStateSetAltered
from brokerset_controller.replicas.state import Group
from brokerset_formats.epochs import EpochHistory, decode_epoch_file
from brokerset_protocol.ha_packets import MasterHandshake, TransferHeader
from brokerset_sim.ha_network import Wire
from brokerset_sim.lease_checker import LeaseChecker
from brokerset_sim.log_checker import Acknowledged, LogChecker, Placed
from brokerset_sim.process import Process
from brokerset_sim.replica_log import BLANK_MESSAGE, SimRecord, read_record

if TYPE_CHECKING:
    from brokerset_sim.replica_node import ReplicaNode
    from brokerset_sim.world import World

EPOCH_FILE = "epochFileCheckpoint"


class ReplicaWatch:
    """The witness of logs. Implements `HaObserver`; never changes anything."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._witness = world.witness
        self._logs: dict[str, LogChecker] = {}
        self._losses: dict[str, int] = {}
        self._epoch_files: dict[str, tuple[int, EpochHistory]] = {}
        self._wrote_in: dict[Process, int] = {}
        self._stored_at: dict[int, float] = {}
        self.leases = LeaseChecker()
        if world.plan.replicating:
            self._witness.on_event = self.changed
            self._witness.leases = self.leases

    def logs(self, group: str) -> LogChecker:
        """The checker of a group's logs."""
        found = self._logs.get(group)
        if found is None:
            found = self._logs[group] = LogChecker(group, self._witness.counts)
        return found

    def names(self) -> list[str]:
        """All groups that were seen."""
        return sorted(self._logs)

    def controllers_lost(self, group: str, epoch: int) -> None:
        """The controllers' data is lost; brokers know epochs up to `epoch`."""
        self.logs(group).controllers_lost(epoch)
        self._losses[group] = 0

    # -- what the controllers agree on --------------------------------------------------------------------

    def changed(self, was: Group | None, now: Group, event: Event) -> None:
        """An event took effect; called where violations are caught."""
        world, log = self._world, self.logs(now.broker_name)
        for loss in now.losses:
            if loss.master_epoch > self._losses.get(now.broker_name, 0):
                self._losses[now.broker_name] = loss.master_epoch
                world.note("loss", now.broker_name, loss.master_epoch, loss.from_offset, loss.reason)
                log.loss_recorded(loss.master_epoch, loss.from_offset)
                world.metadata.loss_recorded(now.broker_name, loss.master_epoch, loss.from_offset)
                for client in world.clients:
                    if client.group == now.broker_name:
                        client.lost(max(loss.from_offset, 0))
        match event:
            case SyncStateSetAltered() if was is not None:
                self._count_alteration(was, now)
                self._check_members(now)
            case FencingChanged():
                self._witness.counts["fenced" if event.fenced else "unfenced"] += 1
            case MasterElected():
                self._check_election(was, now, event)
            case _:
                pass

    def _count_alteration(self, was: Group, now: Group) -> None:
        counts = self._witness.counts
        counts["expanded"] += bool(now.sync_state_set - was.sync_state_set)
        counts["shrunk"] += bool(was.sync_state_set - now.sync_state_set)

    def _check_election(self, was: Group | None, now: Group, event: MasterElected) -> None:
        log, plan = self.logs(now.broker_name), self._world.plan
        handed_over = event.reason == election.HANDED_OVER
        self._witness.counts["elected: " + ("handed over" if handed_over else "otherwise")] += 1
        self._witness.counts["elected: relieved"] += event.reason == election.RELIEVED
        log.elected(now.master_epoch, was.master_epoch if was is not None else 0, handed_over=handed_over)
        if (plan.acknowledges_alone or event.unclean) and not handed_over:
            self.leases.elected(now.broker_name, now.master_epoch, self._world.loop.time())

    def _check_members(self, group: Group) -> None:
        """A set has taken effect: its members have what its master has confirmed, and the epoch's start."""
        node = next((n for n in self._replicas(group.broker_name) if self._leads(n, group)), None)
        if node is not None and node.running is not None:
            log = self.logs(group.broker_name)
            begun = log.epoch_starts.get(group.master_epoch, 0)
            log.in_sync_has(
                node.name,
                "the confirmed offset, or the start of the epoch",
                max(node.running.log.confirmed_offset, begun),
                self._ends(group),
            )

    def _leads(self, node: ReplicaNode, group: Group) -> bool:
        return node.up and node.role.role is Role.MASTER and node.role.epoch == group.master_epoch

    def _replicas(self, group: str) -> Iterator[ReplicaNode]:
        nodes = self._world.brokers_of(group)
        yield from nodes  # type: ignore[misc]  # a world that replicates has no others

    def _ends(self, group: Group) -> dict[str, int]:
        """Where the logs of the in-sync members end, that of their disks if those count.

        Who lost its page cache, or was rolled back, since its last start is left out: the controllers will
        hear of that, or must not trust it.
        """
        checker = self._witness.group(group.broker_name)
        lost = checker.lost.keys() | checker.rolled_back.keys()
        found = {}
        for node in self._replicas(group.broker_name):
            for broker_id in sorted(group.sync_state_set):
                replica = group.replicas.get(broker_id)
                if replica is None or replica.nonce not in node.nonces or broker_id in lost:
                    continue
                found[node.name] = self._counted_end(node)
        return found

    def _counted_end(self, node: ReplicaNode) -> int:
        return node.volume.synced if self._world.plan.sync_flush else node.volume.end

    # -- masters ------------------------------------------------------------------------------------------

    def leads(self, node: ReplicaNode, process: Process, epoch: int, history: EpochHistory) -> None:
        """A process serves as master of an epoch."""
        log, volume = self.logs(node.group), node.volume
        placed = self.placed(node, volume.start, volume.end)
        first = len(history.entries) == 1
        self._witness.guard(
            lambda: log.epoch_begun(
                process.name, epoch, history.last_start, volume.end, placed, volume.start, first=first
            )
        )

    def appended(self, node: ReplicaNode, process: Process) -> None:
        """A master is about to append."""
        epoch = node.role.epoch
        if self._wrote_in.get(process) != epoch:
            self._wrote_in[process] = epoch
            known = [entry.epoch for entry in self._durable_epochs(node).entries]
            self._witness.guard(lambda: self.logs(node.group).epoch_known(process.name, epoch, known))

    def stored(self, node: ReplicaNode, process: Process, attempt: int, record: SimRecord) -> None:
        """A master has stored a send."""
        world, log, epoch = self._world, self.logs(node.group), node.role.epoch
        self._stored_at[attempt] = world.loop.time()
        doubled = world.plan.doubled > 0
        self._witness.guard(lambda: log.stored(process.name, attempt, record, doubled=doubled))
        if world.plan.acknowledges_alone:
            self._witness.guard(lambda: log.taken(process.name, epoch))
            self.served(process, epoch, "a send that it acknowledges alone")

    def promised(self, node: ReplicaNode, process: Process, acked: Acknowledged) -> None:
        """A master acknowledges a send."""
        log, plan = self.logs(node.group), self._world.plan

        def check() -> None:
            log.promised(process.name, acked)
            if not acked.weak and plan.min_in_sync > 1:
                log.copies(acked, self._having(node, acked), plan.min_in_sync)

        self._witness.guard(check)

    def _having(self, master: ReplicaNode, acked: Acknowledged) -> dict[str, bool]:
        wanted = master.volume.bytes_between(acked.offset, acked.end)
        stored_at = self._stored_at.get(acked.attempt, 0.0)
        found = {}
        for node in self._replicas(master.group):
            volume = node.volume
            there = volume.bytes_between(acked.offset, acked.end)
            if self._world.plan.sync_flush and volume.synced < acked.end:
                there = b""
            found[node.name] = (
                there == wanted or volume.start > acked.offset or node.power_lost_at >= stored_at
            )
        return found

    def client_answered(self, group: str, attempt: int, message: int, offset: int) -> None:
        """A client was told that an attempt is stored."""
        self._witness.guard(lambda: self.logs(group).client_answered(attempt, message, offset))

    def ends_at(
        self, group: str, address: str, offset: int, before: Acknowledged | None, asked_at: float
    ) -> None:
        """A consumer was told where the log ends."""
        if before is not None and self.leases.had_older(address, before.epoch, asked_at):
            self._witness.counts["told where the log ends by an older lease"] += 1
            return
        self._witness.guard(lambda: self.logs(group).ends_at(address, offset, before))

    def served(self, process: Process, epoch: int, what: str) -> None:
        """A process serves as master what needs a lease."""
        self._witness.guard(lambda: self.leases.served(process, epoch, self._world.loop.time(), what))

    # -- confirmed ----------------------------------------------------------------------------------------

    def confirmed(self, node: ReplicaNode, before: int, after: int) -> None:
        """A process lets consumers read further."""
        log = self.logs(node.group)
        found = self.placed(node, before, after)
        end = self._whole_end(node, before, after)

        def check() -> None:
            leads = node.role.role is Role.MASTER
            log.confirmed(node.name, before, after, found, end, leads=leads)
            group = self._witness.history.groups.get(node.group)
            if group is not None and self._leads(node, group):
                log.in_sync_has(node.name, "the confirmed offset", after, self._ends(group))

        self._witness.guard(check)

    def _whole_end(self, node: ReplicaNode, begin: int, end: int) -> int:
        volume, offset = node.volume, begin
        while offset < end:
            found = read_record(volume.data, offset - volume.start, offset)
            if found is None:
                break
            offset = found.end
        return offset

    def placed(self, node: ReplicaNode, begin: int, end: int) -> list[Placed]:
        """The whole records of a running broker between two offsets, the first of which is one's begin."""
        assert node.epochs is not None
        history = node.epochs.history
        volume = node.volume
        found = []
        offset = max(begin, volume.start)
        while offset < end:
            record = read_record(volume.data, offset - volume.start, offset)
            if record is None or record.end > end:
                break
            if record.message != BLANK_MESSAGE:
                found.append(Placed(record, _epoch_at(history, offset)))
            offset = record.end
        return found

    def consumed(self, group: str, address: str, found: list[Placed]) -> None:
        """A consumer got records."""
        self._witness.guard(lambda: self.logs(group).read(address, found))

    # -- slaves -------------------------------------------------------------------------------------------

    def truncated(self, node: ReplicaNode, offset: int, confirmed: int, *, from_scratch: bool) -> None:
        """A slave cuts its log."""
        self._world.note("truncated", node.name, offset, confirmed, from_scratch)
        group = self._witness.history.groups.get(node.group)
        membership = node.membership
        own = membership.broker_id if membership is not None else None
        in_sync = group is not None and own in group.sync_state_set
        log = self.logs(node.group)
        self._witness.guard(
            lambda: log.truncated(node.name, offset, confirmed, in_sync, from_scratch=from_scratch)
        )

    def retired(self, node: ReplicaNode) -> None:
        """Retention has deleted files."""
        log, counts = self.logs(node.group), self._witness.counts
        log.retired = max(log.retired, node.volume.start)
        counts["retention"] += 1
        others = [other for other in self._replicas(node.group) if other is not node]
        if any(other.volume.end < node.volume.start for other in others):
            counts["retention with a slave behind"] += 1

    def chunk_left(self, process: Process, header: TransferHeader) -> None:
        """A master sends a piece of its log."""
        node = process.node
        self._world.note("chunk", process.name, header.offset, header.size, header.epoch)
        entries = [(e.epoch, e.start_offset) for e in node.epochs.history.entries]
        log = self.logs(node.group)
        self._witness.guard(
            lambda: log.chunk(process.name, header.epoch, header.offset, header.size, entries)
        )

    def followed(self, slave: Process, master: Process, packet: MasterHandshake) -> None:
        """A master's handshake arrived."""
        self._world.note("handshake", slave.name, master.name, packet.last_epoch)

    def ack_left(self, wire: Wire, offset: int) -> None:
        """A slave acknowledges."""
        slave: ReplicaNode = wire.slave.node
        self._world.note("ack", wire.slave.name, offset)
        log = self.logs(slave.group)

        def check() -> None:
            log.follows(wire.slave.name, slave.role.epoch, wire.epoch)
            same = self._same_so_far(wire, offset)
            log.acknowledges(wire.slave.name, offset, self._counted_end(slave), same)

        self._witness.guard(check)

    def _same_so_far(self, wire: Wire, offset: int) -> bool:
        """Whether what is acknowledged is what the master has, if it is still the one that was followed."""
        slave: ReplicaNode = wire.slave.node
        master: ReplicaNode = wire.master.node
        leads = master.process is wire.master and master.up and wire.open_for(wire.master)
        if not leads or (master.role.role, master.role.epoch) != (Role.MASTER, wire.epoch) or not offset:
            return True
        begin = max(wire.compared, slave.volume.start, master.volume.start)
        wire.compared = max(wire.compared, offset)
        if begin < offset and slave.volume.bytes_between(begin, offset) != master.volume.bytes_between(
            begin, offset
        ):
            return False
        assert master.epochs is not None
        place = master.epochs.history.find(offset - 1)
        if place is not None:
            known = [entry.epoch for entry in self._durable_epochs(slave).entries]
            self.logs(slave.group).epoch_known(wire.slave.name, place.epoch, known)
        return True

    def _durable_epochs(self, node: ReplicaNode) -> EpochHistory:
        """The epochs that a power failure would leave."""
        version = node.disk.version
        known = self._epoch_files.get(node.name)
        if known is None or known[0] != version:
            files = node.disk.durable()
            data = files.get(EPOCH_FILE, files.get(EPOCH_FILE + BACKUP_SUFFIX))
            known = version, (EpochHistory() if data is None else decode_epoch_file(data))
            self._epoch_files[node.name] = known
        return known[1]


def _epoch_at(history: EpochHistory, offset: int) -> int:
    """The epoch of the byte at an offset; the first one's master vouches for what is older."""
    entry = history.find(offset)
    if entry is not None:
        return entry.epoch
    return history.entries[0].epoch if history.entries else 0
