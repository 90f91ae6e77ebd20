"""What must hold for the brokers of a DLedger group, seen from outside: answers, disks, logs, queues, tables.

It computes nothing with the rules that it checks: who may commit or lead is not asked, but whether what was
told is where it was told, and stays there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokerset_broker.member.role import Role, RoleState
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, CurrentTerm
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_protocol.bodies.dledger import (
    DLedgerRequestCode,
    HeartbeatRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_raft.messages import Message
from brokerset_rig import wire
from brokerset_sim.history import Violation
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.ledger_node import LedgerNode, SimBroker
    from brokerset_sim.ledger_world import LedgerWorld

ONE_LEADER: Final = "one leader for each term"
VOTES: Final = "votes are on the disk, one for each term"
QUORUM: Final = "what is acknowledged is on more than half of the members"
KEPT: Final = "what was acknowledged is kept"
COMMITTED: Final = "committed entries are the same everywhere, permanently"
DISPATCHED: Final = "only what is committed is dispatched"
QUEUES: Final = "queues have no gaps, and one message at each place"
READS: Final = "a place is read with the same bytes"
SERVES: Final = "a leader serves when its log is committed and dispatched"
LEASE: Final = "no leader answers reads after a later one"
ENDS: Final = "ends of queues are not older than what was acknowledged"
METADATA: Final = "metadata that was acknowledged is there"
SERVICES: Final = "services run on the leader only"
OLD_FILES: Final = "old files are deleted first"
SAME: Final = "members have the same files"
DELAYED: Final = "delayed messages are delivered"

_DURABLE: Final = "currterm"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message is: its topic, the queue, and the number in it."""

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class Register:
    """A value that one client changes: what it was told last, and what may still come about."""

    acked: int | None = None
    unclear: dict[int, None] = field(default_factory=dict)

    def allows(self, value: int | None) -> bool:
        """Whether a reader may find this."""
        return value == self.acked or value in self.unclear


@dataclass(slots=True)
class _Seen:
    """How far a process was examined."""

    index: int = -1
    queues: dict[tuple[str, int], int] = field(default_factory=dict)
    role: tuple[Role, int] | None = None
    term: int = -1


class LedgerChecker:
    """Implements the network's `Observer`. Violations go to the world."""

    def __init__(self, world: LedgerWorld) -> None:
        self._world = world
        self.leaders: dict[int, str] = {}
        self.masters: dict[int, str] = {}
        self.acked: dict[Place, tuple[int, bytes]] = {}
        """Offset and body, as the client was told."""

        self.delayed: dict[bytes, int] = {}
        """Bodies of acknowledged delayed messages, and where they wait; retention takes them, too."""

        self.topics: dict[str, None] = {}
        """Topics that were acknowledged."""

        self.offsets: dict[tuple[str, str, int], Register] = {}
        self.reads = 0
        self._ends: dict[tuple[str, int], int] = {}
        self._served_epoch = 0
        self._votes: dict[tuple[int, str], str] = {}
        self._committed: dict[int, tuple[int, int, int]] = {}
        self._places: dict[Place, tuple[int, int]] = {}
        self._deleted = 0
        """Of what is before, some member has deleted."""

        self._delivered: dict[bytes, None] = {}
        self._seen: dict[Process, _Seen] = {}

    # -- what leaves processes (`Observer`) ---------------------------------------------------------------

    def request_sent(self, client: Process, address: str, request: Command) -> object:
        """A request leaves; returns what was acknowledged by then, for questions about ends."""
        if client.node is not None:
            self._guard(lambda: self._asked(client, request))
        if request.code == RequestCode.GET_MAX_OFFSET:
            return self._ends.get((request.ext["topic"], int(request.ext["queueId"])), 0)
        return None

    def _asked(self, client: Process, request: Command) -> None:
        node: LedgerNode = client.node
        if request.code == DLedgerRequestCode.HEART_BEAT:
            term = HeartbeatRequest.from_json(request.body).term or 0
            known = self.leaders.setdefault(term, node.name)
            if known != node.name:
                raise Violation(ONE_LEADER, f"{known} and {node.name} lead term {term}")
        elif request.code == DLedgerRequestCode.VOTE:
            body = VoteRequest.from_json(request.body)
            if not body.pre_vote:
                self._vote(node, body.term or 0, node.name)

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        """A handler answered."""
        if server.node is None or not server.alive:
            return
        node: LedgerNode = server.node
        if node.process is not server:
            return
        match request.code:
            case DLedgerRequestCode.VOTE:
                self._guard(lambda: self._voted(node, request, reply))
            case RequestCode.SEND_MESSAGE_V2 if reply.code == ResponseCode.SUCCESS:
                self._guard(lambda: self._acknowledged(node, request, reply))
            case RequestCode.PULL_MESSAGE if reply.code == ResponseCode.SUCCESS:
                self._guard(lambda: self._read(node, request, reply))
            case RequestCode.GET_MAX_OFFSET if reply.code == ResponseCode.SUCCESS:
                self._guard(lambda: self._ended(node, reply, token))
            case _:
                pass

    def reply_arrived(
        self, client: Process, address: str, request: Command, reply: Command, token: object
    ) -> None:
        """Clients remember it themselves."""

    def handler_failed(self, server: Process, request: Command, error: Exception) -> None:
        """A handler raised what no handler should."""
        if server.alive:
            self._world.process_died(server, error)

    def raft_left(self, process: Process, message: Message) -> None:
        """Nobody speaks Raft here."""

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""
        self._world.note(kind, *what)

    def _guard(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Violation as violation:
            self._world.fail(violation)

    # -- votes --------------------------------------------------------------------------------------------

    def _vote(self, node: LedgerNode, term: int, candidate: str) -> None:
        path = node.files.folder / f"dledger-{node.name}" / _DURABLE
        found = CurrentTerm.decode(path.read_bytes()) if path.exists() else CurrentTerm()
        if found.term < term or (found.term == term and found.voted_for != candidate):
            raise Violation(VOTES, f"{node.name} votes for {candidate} in {term}, its disk has {found}")
        known = self._votes.setdefault((term, node.name), candidate)
        if known != candidate:
            raise Violation(VOTES, f"{node.name} votes for {known} and {candidate} in term {term}")

    def _voted(self, node: LedgerNode, request: Command, reply: Command) -> None:
        if not reply.body:
            return  # the member does not vote yet
        asked, answered = VoteRequest.from_json(request.body), VoteResponse.from_json(reply.body)
        if answered.vote_result is VoteResult.ACCEPT and not asked.pre_vote:
            self._vote(node, asked.term or 0, asked.leader_id or "")

    # -- messages -----------------------------------------------------------------------------------------

    def _acknowledged(self, node: LedgerNode, request: Command, reply: Command) -> None:
        place = self._place(request, reply)
        offset, body = int(reply.ext["msgId"][-16:], 16), request.body
        known = self.acked.setdefault(place, (offset, body))
        if known != (offset, body):
            raise Violation(QUEUES, f"{place} is told for {body!r} at {offset}, and was for {known}")
        if place.topic == SCHEDULE_TOPIC:
            self.delayed[body] = offset
        queue = place.topic, place.queue_id
        self._ends[queue] = max(self._ends.get(queue, 0), place.queue_offset + 1)
        if node.leads:
            self._on_a_quorum(node, place, offset)
            self._serves(node, is_read=False)
        newest = self._newest_master()
        if newest is not None and newest.broker is not None:
            self._has(newest, newest.broker, place)

    def _place(self, request: Command, reply: Command) -> Place:
        """Where an acknowledged message is; a delayed one is told the queue that it is for."""
        ext, queue_offset = request.ext, int(reply.ext["queueOffset"])
        if "DELAY\x01" in ext["i"]:
            level = int(ext["i"].partition("DELAY\x01")[2].partition("\x02")[0])
            return Place(SCHEDULE_TOPIC, level - 1, queue_offset)
        return Place(ext["b"], int(reply.ext["queueId"]), queue_offset)

    def _on_a_quorum(self, node: LedgerNode, place: Place, offset: int) -> None:
        broker = node.broker
        assert broker is not None
        record = broker.store.read(offset)
        if record is None:
            raise Violation(KEPT, f"{node.name} acknowledges {place}, and has nothing at {offset}")
        position = offset - ENTRY_HEAD_SIZE
        wanted = bytes(broker.store.read(position, ENTRY_HEAD_SIZE + len(record)) or b"")
        holders = [
            each.name
            for each in self._world.nodes
            if self._world.on_disk(each, position, len(wanted)) == wanted
        ]
        if len(holders) <= len(self._world.nodes) // 2:
            raise Violation(QUORUM, f"{node.name} acknowledges {place} at {offset}: only {holders} have it")

    def _newest_master(self) -> LedgerNode | None:
        """The broker whose mastership is the newest, if that has served."""
        found = [node for node in self._world.nodes if node.leads and self._epoch(node) >= self._served_epoch]
        return max(found, key=self._epoch, default=None)

    @staticmethod
    def _epoch(node: LedgerNode) -> int:
        return 0 if node.member is None else node.member.core.role.epoch

    def _has(self, node: LedgerNode, broker: SimBroker, place: Place) -> None:
        offset, body = self.acked[place]
        if offset < broker.store.log.min_offset or place.queue_offset < broker.store.queue_min(
            place.topic, place.queue_id
        ):
            return  # deleted
        unit = broker.store.unit(place.topic, place.queue_id, place.queue_offset)
        record = None if unit is None else broker.store.read(unit[0])
        found = None if record is None else next(wire.records(bytes(record))).body
        if unit is None or unit[0] != offset or found != body:
            raise Violation(
                KEPT, f"{node.name} leads, and has {unit} {found!r} in place of {body!r}, {place}"
            )

    def _read(self, node: LedgerNode, request: Command, reply: Command) -> None:
        topic = request.ext["topic"]
        for stored in wire.records(reply.body):
            place = Place(topic, stored.queue_id, stored.queue_offset)
            self._same(READS, node, place, stored.offset, zlib.crc32(stored.body))
            acked = self.acked.get(place)
            if acked is not None and acked[1] != stored.body:
                raise Violation(READS, f"{node.name} gives {stored.body!r} at {place}, acknowledged: {acked}")
        if node.leads:
            self._serves(node, is_read=True)

    def _ended(self, node: LedgerNode, reply: Command, token: object) -> None:
        if not node.leads:
            return
        assert isinstance(token, int)
        self._serves(node, is_read=True)
        if int(reply.ext["offset"]) < token:
            raise Violation(ENDS, f"{node.name} tells {reply.ext['offset']}, and {token} were acknowledged")

    def _same(self, rule: str, node: LedgerNode, place: Place, offset: int, crc: int) -> None:
        known = self._places.setdefault(place, (offset, crc))
        if known != (offset, crc):
            raise Violation(rule, f"{node.name} has {offset} ({crc:08x}) at {place}, others {known}")

    def _serves(self, node: LedgerNode, *, is_read: bool) -> None:
        epoch = self._epoch(node)
        if is_read:
            self.reads += 1
            if epoch < self._served_epoch:
                raise Violation(LEASE, f"{node.name} reads in {epoch}, and {self._served_epoch} has served")
        self._served_epoch = max(self._served_epoch, epoch)

    # -- roles --------------------------------------------------------------------------------------------

    def role_taken(self, node: LedgerNode, role: RoleState) -> None:
        """The role that everybody sees is another one, or what belongs to it."""
        self._guard(lambda: self._role_taken(node, role))

    def _role_taken(self, node: LedgerNode, role: RoleState) -> None:
        broker = node.broker
        if broker is None:
            return
        seen = self._seen_of(node)
        if seen.role == (role.role, role.epoch):
            return
        seen.role = role.role, role.epoch
        self._world.note("role", node.name, role.role, role.epoch)
        if role.role is not Role.MASTER:
            self._services_ended(node, broker)
            return
        known = self.masters.setdefault(role.epoch, node.name)
        if known != node.name:
            raise Violation(ONE_LEADER, f"{known} and {node.name} are masters of epoch {role.epoch}")
        self._begins_whole(node, broker, role)
        if role.epoch >= self._served_epoch:
            self._examine(node, broker)
            for place in self.acked:
                self._has(node, broker, place)
            self._metadata(node, broker)

    def _begins_whole(self, node: LedgerNode, broker: SimBroker, role: RoleState) -> None:
        """A leader serves when all of the log up to its term's begin is committed and dispatched."""
        begin, ledger = broker.member_part.driver._node.begin_index, broker.store.ledger
        if begin is not None and (
            ledger.committed_index < begin or broker.store.log.max_offset < ledger.end_of(begin)
        ):
            raise Violation(
                SERVES,
                f"{node.name} takes epoch {role.epoch}, which begins with {begin}: {ledger.committed_index}"
                f" is committed, {broker.store.log.max_offset} dispatched",
            )

    def _metadata(self, node: LedgerNode, broker: SimBroker) -> None:
        for topic in self.topics:
            if broker.topics.get(topic) is None:
                raise Violation(METADATA, f"{node.name} leads without topic {topic}")
        for (group, topic, queue_id), register in self.offsets.items():
            found = broker.offsets.query(group, topic, queue_id)
            if not register.allows(found):
                raise Violation(
                    METADATA,
                    f"{node.name} leads, and {group} is at {found} of {topic}/{queue_id}: acknowledged was"
                    f" {register.acked}, unclear are {list(register.unclear)}",
                )

    def _services_ended(self, node: LedgerNode, broker: SimBroker) -> None:
        delay = broker.delay
        timers = [level.number for level in delay._levels.values() if level.timer is not None]
        if broker.services.running or delay._running or timers:
            raise Violation(SERVICES, f"{node.name} does not lead, and delivers delayed messages: {timers}")

    # -- logs and queues ----------------------------------------------------------------------------------

    def stopped(self, node: LedgerNode) -> None:
        """A process is about to end."""
        if node.process is not None:
            self.examine(node)
            self._seen.pop(node.process, None)

    def _seen_of(self, node: LedgerNode) -> _Seen:
        assert node.process is not None
        return self._seen.setdefault(node.process, _Seen())

    def examine(self, node: LedgerNode) -> None:
        """What a process has come to know since it was examined."""
        broker = node.broker
        if node.up and broker is not None:
            self._guard(lambda: self._examine(node, broker))

    def _examine(self, node: LedgerNode, broker: SimBroker) -> None:
        store, seen = broker.store, self._seen_of(node)
        self._deleted = max(self._deleted, store.log.min_offset)
        ledger = store.ledger
        if store.log.max_offset > ledger.committed_position:
            raise Violation(
                DISPATCHED,
                f"{node.name} has dispatched up to {store.log.max_offset}, committed is up to"
                f" {ledger.committed_position}",
            )
        for index in range(max(seen.index + 1, ledger.begin_index, 0), ledger.committed_index + 1):
            entry = ledger.entry(index)
            found = entry.term, entry.position, zlib.crc32(entry.body)
            known = self._committed.setdefault(index, found)
            if known != found:
                raise Violation(
                    COMMITTED, f"{node.name} has entry {index} of {found[:2]}, others {known[:2]}"
                )
        seen.index = ledger.committed_index
        term = broker.member_part.driver.term
        if term < seen.term:
            raise Violation(ONE_LEADER, f"{node.name} goes back from term {seen.term} to {term}")
        seen.term = term
        self._examine_queues(node, broker, seen)
        if self._world.divide and ledger.files.files and ledger.files.start > self._world.divide:
            left = list((node.files.folder / "commitlog").glob("*"))
            if left:
                raise Violation(OLD_FILES, f"{node.name} begins at {ledger.files.start}, and has {left}")

    def _examine_queues(self, node: LedgerNode, broker: SimBroker, seen: _Seen) -> None:
        store = broker.store
        for queue in store.queues_table:
            key = queue.topic, queue.queue_id
            for number in range(max(seen.queues.get(key, 0), queue.min_offset), queue.next_offset):
                offset, size, _ = queue.unit(number)
                if offset < store.log.min_offset:
                    continue  # deleted, and the queue is told soon
                record = store.read(offset)
                if record is None or len(record) != size:
                    raise Violation(QUEUES, f"{node.name} has no record for {key} {number} at {offset}")
                stored = next(wire.records(bytes(record)))
                if (stored.queue_id, stored.queue_offset, stored.offset) != (key[1], number, offset):
                    raise Violation(QUEUES, f"{node.name} has {stored} at {number} of {key}")
                self._same(QUEUES, node, Place(*key, number), offset, zlib.crc32(stored.body))
                self._note_delivered(key[0], stored.body)
            seen.queues[key] = queue.next_offset

    def _note_delivered(self, topic: str, body: bytes) -> None:
        if topic != SCHEDULE_TOPIC:
            self._delivered[body] = None

    # -- the end ------------------------------------------------------------------------------------------

    def _delayed_are_delivered(self, kept: int) -> None:
        """Every delayed message was, unless it was deleted: what lies before `kept` in the log."""
        missing = [
            body for body, offset in self.delayed.items() if body not in self._delivered and offset >= kept
        ]
        if missing:
            raise Violation(DELAYED, f"{len(missing)} are not, such as {[body[:20] for body in missing[:3]]}")

    def compare(self) -> None:
        """All members run, and nothing is on its way. Raises `Violation`."""
        parts = [(node, node.broker) for node in self._world.nodes if node.broker is not None]
        leaders = [(node, broker) for node, broker in parts if node.leads]
        if len(leaders) != 1:
            raise Violation(ONE_LEADER, f"{[node.name for node, _ in leaders]} lead at the end")
        node, leader = leaders[0]
        for place in self.acked:
            self._has(node, leader, place)
        for other, broker in parts:
            self._metadata(other, broker)
            self._examine(other, broker)
            begin = max(leader.store.ledger.files.start, broker.store.ledger.files.start)
            end = leader.store.ledger.committed_position
            if broker.store.ledger.committed_position != end:
                raise Violation(
                    SAME, f"{other.name} ends at {broker.store.ledger.committed_position}, not {end}"
                )
            for position in range(begin, end, self._world.plan.file_bytes):
                size = min(self._world.plan.file_bytes, end - position)
                if broker.store.ledger.read(position, size) != leader.store.ledger.read(position, size):
                    raise Violation(SAME, f"{other.name} and {node.name} differ behind {position}")
            ends, wanted = ends_of_queues(broker), ends_of_queues(leader)
            if ends != wanted:
                raise Violation(
                    SAME, f"queues of {other.name} end at {ends}, those of {node.name} at {wanted}"
                )
        self._delayed_are_delivered(
            max(broker.store.log.min_offset for _, broker in parts)
        )  # what came last is examined by now


def ends_of_queues(broker: SimBroker) -> dict[tuple[str, int], int]:
    """The next number of each queue that has messages."""
    return {
        (queue.topic, queue.queue_id): queue.next_offset
        for queue in broker.store.queues_table
        if queue.next_offset > queue.min_offset
    }
