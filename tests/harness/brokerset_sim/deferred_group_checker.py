"""Transactions and timer messages in controller mode: what must hold, whoever is master, seen from outside.

Committed is here what any replica knows as confirmed. The oracles get it from the log of the first that knows
it; whatever others have there must be the same, permanently.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokerset_broker.member.role import Role, RoleState
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.ha_packets import MasterHandshake, TransferHeader
from brokerset_protocol.headers.controller import BrokerHeartbeatAnswer, ElectMaster
from brokerset_rig import wire
from brokerset_sim.deferred_checker import DeferredChecker
from brokerset_sim.deferred_group_node import GroupNode
from brokerset_sim.deferred_plan import DeferredPlan
from brokerset_sim.ha_network import Wire
from brokerset_sim.history import Violation
from brokerset_sim.lease_checker import LeaseChecker
from brokerset_sim.ledger_checker import (
    COMMITTED,
    ENDS,
    KEPT,
    ONE_LEADER,
    QUEUES,
    QUORUM,
    SAME,
    Place,
    ends_of_queues,
)
from brokerset_sim.ledger_node import LedgerNode, SimBroker
from brokerset_sim.log_records import log_record
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.deferred_groups import DeferredGroupsWorld

UNCONFIRMED: Final = "nothing is read that is not confirmed"
FOLLOWS: Final = "nobody acknowledges to an older master than it knows"


@dataclass(frozen=True, slots=True)
class Asked:
    """When a request left, and what was acknowledged by then."""

    client: Process
    at: float
    end: int
    served_epoch: int


@dataclass(slots=True)
class _Read:
    """How far a process was examined."""

    offset: int = 0
    queues: dict[tuple[str, int], int] = field(default_factory=dict)


def records_between(broker: SimBroker, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Records of a broker's log, each with its offset. Raises `Violation`."""
    offset = max(begin, broker.store.min_offset)
    while offset < end:
        record = broker.store.read(offset)
        if record is None:
            raise Violation(KEPT, f"there is no record at {offset}, and the log has {end}")
        yield offset, bytes(record)
        offset += len(record)


class DeferredGroupChecker(DeferredChecker):
    """Implements the networks' `Observer` and `HaObserver`."""

    _world: DeferredGroupsWorld

    def __init__(self, world: DeferredGroupsWorld, plan: DeferredPlan) -> None:
        super().__init__(world, plan)
        self.leases = LeaseChecker()
        self._confirmed: dict[int, tuple[int, int]] = {}
        """Size and sum of each confirmed record, by its offset."""

        self._fed_offset = 0
        self._read_by: dict[Process, _Read] = {}

    # -- what leaves processes --------------------------------------------------------------------------

    def request_sent(self, client: Process, address: str, request: Command) -> object:
        """A request leaves."""
        now = self._world.loop.time()
        if (
            request.code == RequestCode.CONTROLLER_ELECT_MASTER
            and ElectMaster.from_ext(request.ext).handover_epoch is not None
        ):
            self.leases.given_up(client, now)
        end = super().request_sent(client, address, request)
        return Asked(client, now, end if isinstance(end, int) else 0, self._served_epoch)

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        """A handler answered."""
        if request.code == RequestCode.BROKER_HEARTBEAT and reply.ext:
            answer = BrokerHeartbeatAnswer.from_ext(reply.ext)
            if answer.lease_ms is not None and answer.lease_epoch is not None:
                assert isinstance(token, Asked)
                master: LedgerNode = token.client.node
                # On the master's clock; controllers wait `LEASE_SLACK_SECONDS` for one that is slow.
                seconds = answer.lease_ms / 1_000 / master.clock.rate
                self.leases.granted(token.client, token.at, seconds, answer.lease_epoch)
        super().reply_left(server, request, reply, token)

    def chunk_left(self, process: Process, header: TransferHeader) -> None:
        """A master sends a piece of its log."""
        self._world.note("chunk", process.name, header.offset, header.size, header.epoch)

    def followed(self, slave: Process, master: Process, packet: MasterHandshake) -> None:
        """A master's handshake arrived."""
        self._world.note("handshake", slave.name, master.name, packet.last_epoch)

    def ack_left(self, wire: Wire, offset: int) -> None:
        """A slave acknowledges."""
        slave: GroupNode = wire.slave.node
        self._guard(lambda: self._follows(slave, wire))

    def _follows(self, slave: GroupNode, wire: Wire) -> None:
        known = self._epoch(slave) if slave.process is wire.slave else 0
        if wire.epoch < known:
            raise Violation(FOLLOWS, f"{slave.name} knows epoch {known}, and acknowledges in {wire.epoch}")

    # -- sends and reads --------------------------------------------------------------------------------

    def _on_a_quorum(self, node: LedgerNode, place: Place, offset: int) -> None:
        """Every member of the in-sync set has it, and at least as many as the group wants."""
        broker, world = node.broker, self._world
        assert broker is not None
        record = broker.store.read(offset)
        if record is None:
            raise Violation(KEPT, f"{node.name} acknowledges {place}, and has nothing at {offset}")
        wanted = bytes(record)
        having = [each.name for each in world.nodes if world.on_disk(each, offset, len(wanted)) == wanted]
        in_sync = [each.name for each in world.in_sync() if each.name not in world.lost]
        lacking = sorted(set(in_sync) - set(having))
        if lacking or len(having) + len(world.lost) < world.group_plan.min_in_sync:
            raise Violation(
                QUORUM, f"{node.name} acknowledges {place} at {offset}: {having} have it, in sync: {in_sync}"
            )

    def _read(self, node: LedgerNode, request: Command, reply: Command) -> None:
        self.read_all()
        for stored in wire.records(reply.body):
            if stored.offset not in self._confirmed:
                raise Violation(UNCONFIRMED, f"{node.name} gives {stored.body[:20]!r} at {stored.offset}")
        super()._read(node, request, reply)

    def _ended(self, node: LedgerNode, reply: Command, token: object) -> None:
        if not node.leads:
            return
        assert isinstance(token, Asked)
        self._serves(node, is_read=True)
        if self._epoch(node) < token.served_epoch:
            return  # its lease has not ended: it may tell what was so in the past
        if int(reply.ext["offset"]) < token.end:
            raise Violation(
                ENDS, f"{node.name} tells {reply.ext['offset']}, and {token.end} were acknowledged"
            )

    def _serves(self, node: LedgerNode, *, is_read: bool) -> None:
        epoch = self._epoch(node)
        if is_read:
            self.reads += 1
            assert node.process is not None
            if node.member is not None and not node.member.core.hands_over:
                self.leases.served(node.process, epoch, self._world.loop.time(), "reads")
        else:
            self._served_epoch = max(self._served_epoch, epoch)

    # -- logs and roles ---------------------------------------------------------------------------------

    def _begins_whole(self, node: LedgerNode, broker: SimBroker, role: RoleState) -> None:
        """It has everything that anybody knows as confirmed, in its queues."""
        end = max((offset + size for offset, (size, _) in self._last_confirmed()), default=0)
        if role.epoch >= self._served_epoch and broker.store.log.max_offset < end:
            raise Violation(
                KEPT, f"{node.name} takes epoch {role.epoch} with {broker.store.log.max_offset} of {end}"
            )

    def _last_confirmed(self) -> Iterator[tuple[int, tuple[int, int]]]:
        if self._confirmed:
            offset = next(reversed(self._confirmed))
            yield offset, self._confirmed[offset]

    def _role_taken(self, node: LedgerNode, role: RoleState) -> None:
        if role.role is Role.MASTER:
            self.read_all()
        super()._role_taken(node, role)

    @staticmethod
    def end_of(broker: SimBroker) -> int:
        """Where what is confirmed, and with synchronous flushing on its disk, ends in a log."""
        store = broker.store
        end = store.confirmed_offset
        return min(end, store.flushed_offset) if store.flushes_synchronously else end

    def _feed(self, broker: SimBroker) -> None:
        member = broker.member
        assert member is not None
        for offset, data in records_between(broker, self._fed_offset, self.end_of(broker)):
            self._fed_offset = offset + len(data)
            self._confirmed[offset] = len(data), zlib.crc32(data)
            entry = member._epochs.history.find(offset)
            record = log_record(data, entry.epoch if entry is not None else 0)
            if record is not None:
                self._became_committed(record)

    def _examine(self, node: LedgerNode, broker: SimBroker) -> None:
        self.timers.now_ms = self.latest_ms()
        self._feed(broker)
        assert node.process is not None
        seen = self._read_by.setdefault(node.process, _Read())
        end = self.end_of(broker)
        for offset, data in records_between(broker, seen.offset, end):
            found = len(data), zlib.crc32(data)
            if self._confirmed.get(offset) != found:
                raise Violation(
                    COMMITTED, f"{node.name} has {found} at {offset}, others {self._confirmed.get(offset)}"
                )
            seen.offset = offset + len(data)
        self._examine_confirmed_queues(node, broker, seen, end)

    def _examine_confirmed_queues(self, node: LedgerNode, broker: SimBroker, seen: _Read, end: int) -> None:
        store = broker.store
        for queue in store.queues_table:
            key = queue.topic, queue.queue_id
            number = max(seen.queues.get(key, 0), queue.min_offset)
            while number < queue.next_offset:
                offset, size, _ = queue.unit(number)
                if offset + size > end:
                    break
                record = store.read(offset)
                stored = None if record is None else next(wire.records(bytes(record)))
                if stored is None or (stored.queue_id, stored.queue_offset) != (key[1], number):
                    raise Violation(QUEUES, f"{node.name} has {stored} at {number} of {key}")
                self._same(QUEUES, node, Place(*key, number), offset, zlib.crc32(stored.body))
                self._note_delivered(key[0], stored.body)
                number += 1
            seen.queues[key] = number

    def stopped(self, node: LedgerNode) -> None:
        """A process is about to end."""
        super().stopped(node)
        if node.process is not None:
            self._read_by.pop(node.process, None)

    # -- the end ----------------------------------------------------------------------------------------

    def compare(self) -> None:
        """All members run, and nothing is on its way. Raises `Violation`."""
        self.read_all()
        parts = [(node, node.broker) for node in self._world.nodes if node.broker is not None]
        leaders = [(node, broker) for node, broker in parts if node.leads]
        if len(leaders) != 1:
            raise Violation(ONE_LEADER, f"{[node.name for node, _ in leaders]} lead at the end")
        node, leader = leaders[0]
        for place in self.acked:
            self._has(node, leader, place)
        wanted = leader.store.max_offset, ends_of_queues(leader)
        for other, broker in parts:
            self._metadata(other, broker)
            self._examine(other, broker)
            ends = self.end_of(broker), ends_of_queues(broker)
            if ends != wanted:
                raise Violation(SAME, f"{other.name} ends at {ends}, {node.name} at {wanted}")
        self._delayed_are_delivered(leader.store.log.min_offset)  # what came last is examined by now
        self.transactions.settled()
        self.timers.settled()
        self._progress(node, leader)
