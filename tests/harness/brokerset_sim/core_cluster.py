"""Raft cores on simulated disks and a bad network, checked after every step; all of it drawn from a seed."""

from __future__ import annotations

import contextlib
import heapq
import random
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from brokerset_raft.configuration import Configuration, ConfigurationRefused, Member
from brokerset_raft.engine import NotLeader, Overloaded, Role
from brokerset_raft.log import RaftLog
from brokerset_raft.messages import (
    AppendReply,
    ChunkReceived,
    ChunkWanted,
    Entry,
    EntryKind,
    HardState,
    Message,
    Ready,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)
from brokerset_raft.node import Node, NodeConfig
from brokerset_sim.core_bias import Bias

STATE = struct.Struct(">qI36x")
"""A state: the last applied index, a checksum over all commands, and room, to make several pieces."""

SPARES = 2
"""Nodes that wait to be added."""

HEAL_TICKS_MAX = 400
"""Ticks after the last fault within which all members must agree again."""


class SafetyViolated(AssertionError):
    """Something happened that must never happen; the text says what, and the seed."""


class NoProgress(AssertionError):
    """All faults are over, and still nothing moves."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad it is: probabilities for each message, tick or `Ready`, and longest times in ticks."""

    loss: float = 0.0
    doubled: float = 0.0
    delay_ticks_max: int = 0
    crash: float = 0.0
    crash_in_write: float = 0.0
    down_ticks_max: int = 1
    cut: float = 0.0
    cut_ticks_max: int = 1
    slow_disk: float = 0.0
    bad_snapshot: float = 0.0
    lazy_clock: float = 0.0
    pause: float = 0.0
    pause_ticks_max: int = 1
    transfer: float = 0.0
    change: float = 0.0
    snapshot: float = 0.0


def draw_faults(source: random.Random) -> Faults:
    """Faults of a seed: some runs have nearly none of a kind, others very many."""

    def some(most: float) -> float:
        return source.choice((0.0, most / 5, most))

    return Faults(
        loss=some(0.25),
        doubled=some(0.1),
        delay_ticks_max=source.choice((0, 1, 3, 8)),
        crash=some(0.02),
        crash_in_write=some(0.02),
        down_ticks_max=source.choice((1, 10, 40)),
        cut=some(0.05),
        cut_ticks_max=source.choice((5, 30)),
        slow_disk=some(0.3),
        bad_snapshot=some(0.2),
        lazy_clock=some(0.2),
        pause=some(0.03),
        pause_ticks_max=source.choice((10, 40)),
        transfer=some(0.02),
        change=some(0.1),
        snapshot=some(0.05),
    )


@dataclass
class Disk:
    """What survives a crash."""

    hard_state: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list[Entry])
    meta: SnapshotMeta | None = None
    state: bytes = b""
    partial: tuple[SnapshotMeta, bytes] | None = None

    @property
    def base(self) -> int:
        """Index that the snapshot covers."""
        return 0 if self.meta is None else self.meta.index

    def write(self, hard_state: HardState | None, entries: Iterable[Entry]) -> None:
        """Write and sync."""
        if hard_state is not None:
            self.hard_state = hard_state
        for number, entry in enumerate(entries):
            place = entry.index - self.base - 1
            if number == 0:
                del self.entries[place:]
            assert place == len(self.entries), f"gap on the disk before entry {entry.index}"
            self.entries.append(entry)

    def has(self, index: int, term: int) -> bool:
        """Whether this committed entry would survive a crash."""
        if index <= self.base:
            return True
        place = index - self.base - 1
        return place < len(self.entries) and self.entries[place].term == term

    def use_snapshot(self, meta: SnapshotMeta, state: bytes, entries: list[Entry]) -> None:
        """Keep a snapshot and only these entries after it."""
        self.meta, self.state, self.entries = meta, state, entries


class Host:
    """One process: a core, its disk, its state, and what it is doing just now."""

    def __init__(self, node_id: int, initial: Configuration) -> None:
        self.node_id = node_id
        self.initial = initial
        self.disk = Disk()
        self.node: Node | None = None
        self.index = 0
        self.checksum = 0
        self.pending: Ready | None = None
        self.due = 0
        self.slow_until = 0
        self.up_at = 0
        self.paused_until = 0
        self.led_term = 0
        self.seen_commit = 0
        self.reads: set[int] = set()
        """Asked of this process, and neither answered nor refused."""

        self.ticks = self.leads_since = 0
        self.leads: tuple[int, ...] = ()
        """The voters that it leads since then."""

        self.heard: dict[int, int] = {}
        """Its tick when each member last answered it, while it leads."""


class CoreCluster:
    """A group of cores under faults. `run` makes trouble, `heal` ends it and demands progress."""

    def __init__(
        self,
        seed: int,
        *,
        size: int | None = None,
        faults: Faults | None = None,
        node_type: type[Node] = Node,
        biased: bool | None = None,
    ) -> None:
        """Everything not given is drawn. Three of four seeds are `biased` unless faults are given."""
        self.seed = seed
        self.now = 0
        self.trace = 0
        self.delivered = 0
        self.answered_reads = 0
        self.max_commit = 0
        self._random = random.Random(seed)
        drawn = draw_faults(self._random)
        self.size = self._random.randint(1, 7) if size is None else size
        self._faults = drawn if faults is None else faults
        self._bias = Bias(seed) if (faults is None and seed % 4 != 3 if biased is None else biased) else None
        self._node_type = node_type
        self._config = NodeConfig(
            node_id=0,
            in_flight_max=self._random.choice((1, 4, 64)),
            append_bytes_max=self._random.choice((1, 40, 1 << 20)),
            uncommitted_bytes_max=self._random.choice((60, 1 << 20)),
            reads_max=5,
            chunk_bytes=self._random.choice((7, 20, 100)),
            promote_lag_max=self._random.choice((3, 100)),
            committed_bytes_max=self._random.choice((1, 1 << 20)),
            kept_entries=self._random.choice((0, 5)),
        )
        if self._bias is not None:
            self._config = replace(self._config, heartbeat_ticks=self._bias.heartbeat_ticks)
        self._early_steps = self._random.random() < 0.5
        """Whether cores hear messages while their disk works."""
        members = tuple(member(node_id) for node_id in range(1, self.size + 1))
        initial = Configuration(members)
        self.hosts = {m.node_id: Host(m.node_id, initial) for m in members}
        for node_id in range(self.size + 1, self.size + 1 + SPARES):
            self.hosts[node_id] = Host(node_id, Configuration())
        self._queue: list[tuple[int, int, Message]] = []
        self._sequence = 0
        self._cuts: dict[tuple[int, int], int] = {}
        self._leaders: dict[int, int] = {}
        self._written: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._committed: dict[int, tuple[int, int]] = {}
        self._checksums: dict[int, int] = {0: 0}
        self._asked: dict[int, int] = {}
        self._commands = 0
        for host in self.hosts.values():
            self._boot(host)

    # Running.

    def run(self, ticks: int) -> None:
        """Let time pass, with faults and requests."""
        for _ in range(ticks):
            self._make_trouble()
            self._ask()
            self._pass_tick()

    def heal(self) -> None:
        """End all faults; soon all members must have a new command, and a read its answer."""
        self._faults, self._bias = Faults(), None
        self._cuts.clear()
        for host in self.hosts.values():
            host.up_at = min(host.up_at, self.now)
            host.paused_until = min(host.paused_until, self.now)
        for _ in range(3 * self._config.election_ticks):
            self._pass_tick()
        for _ in range(HEAL_TICKS_MAX):
            self._pass_tick()
            if self._has_recovered():
                return
        raise NoProgress(
            f"seed {self.seed}: no agreement {HEAL_TICKS_MAX} ticks after the last fault: {self.look()}"
        )

    def look(self) -> str:
        """A line for each running node."""
        return "; ".join(
            f"{node.node_id} {node.role.value} t{node.term} last {node.log.last_index} "
            f"commit {node.commit_index} voters {node.configuration.voters}"
            for host in self.hosts.values()
            if (node := host.node) is not None
        )

    def _has_recovered(self) -> bool:
        leaders = [h for h in self.hosts.values() if h.node is not None and h.node.role is Role.LEADER]
        if not leaders:
            return False
        leader = max(leaders, key=lambda h: 0 if h.node is None else h.node.term)
        node = leader.node
        assert node is not None, "a leader runs"
        reads, commit = self.answered_reads, self.max_commit
        try:
            index, _ = node.propose([b"after all"])
            self._read(leader, node)
        except (NotLeader, Overloaded):
            return False
        self._work(leader)
        for _ in range(2 * self._config.election_ticks):
            self._pass_tick()
        members = [self.hosts[m.node_id] for m in node.configuration.members]
        return (
            self.answered_reads > reads
            and self.max_commit > commit
            and all(host.index >= index for host in members)
        )

    def _pass_tick(self) -> None:
        self.now += 1
        for host in self.hosts.values():
            if host.node is None and host.up_at <= self.now:
                self._boot(host)
            if host.pending is not None and max(host.due, host.paused_until) <= self.now:
                ready, host.pending = host.pending, None
                self._finish(host, ready)
                self._work(host)
        while self._queue and self._queue[0][0] <= self.now:
            _, _, message = heapq.heappop(self._queue)
            self._deliver(message)
        for host in self.hosts.values():
            if host.paused_until > self.now:
                continue
            if host.node is not None and not self._happens(self._faults.lazy_clock):
                host.node.tick()
                host.ticks += 1
                self._work(host)
                if host.node is not None:
                    self._check_office(host, host.node)

    def _deliver(self, message: Message) -> None:
        host = self.hosts[message.target]
        if host.node is None or (message.source, message.target) in self._cuts:
            return
        if host.paused_until >= self.now:  # one tick more: it may be asked before it hears what it missed
            self._enqueue(message, host.paused_until + 1)
            return
        if host.pending is not None and not self._early_steps:
            self._enqueue(message, host.due + 1)
            return
        self.delivered += 1
        self._note(type(message.body).__name__, message.source, message.target, message.body.term)
        if not isinstance(message.body, VoteRequest | VoteReply) and message.body.term == host.node.term:
            host.heard[message.source] = host.ticks
        host.node.step(message)
        self._work(host)

    def _make_trouble(self) -> None:
        faults = self._faults
        for pair in [pair for pair, until in self._cuts.items() if until <= self.now]:
            del self._cuts[pair]
        if self._bias is not None:
            self._bias.step(self)
        if self._happens(faults.cut):
            victim = self._victim()
            way = self._random.randrange(3)
            until = self.now + self._random.randint(1, faults.cut_ticks_max)
            for other in self.hosts:
                if self._random.random() < 0.8:
                    if way != 0:
                        self._cuts[victim, other] = until
                    if way != 1:
                        self._cuts[other, victim] = until
            self._note("cut", victim, way, until)
        if self._happens(faults.crash):
            self._crash(self.hosts[self._victim()])
        if self._happens(faults.pause):
            host = self.hosts[self._victim()]
            host.paused_until = self.now + self._random.randint(1, faults.pause_ticks_max)
            self._note("pause", host.node_id, host.paused_until)
        for host in self.hosts.values():
            if host.pending is None and self._happens(faults.snapshot):
                self._take_snapshot(host)

    def _victim(self) -> int:
        """Any node; often one that leads, because more can go wrong there."""
        leading = [
            h.node_id for h in self.hosts.values() if h.node is not None and h.node.role is Role.LEADER
        ]
        return self._random.choice(leading if leading and self._happens(0.4) else list(self.hosts))

    # Requests.

    def _ask(self) -> None:
        for host in self.hosts.values():
            node = host.node
            if node is None or node.role is not Role.LEADER or host.paused_until > self.now:
                continue
            try:
                if self._happens(0.5):
                    self._commands += 1
                    count = self._random.randint(1, 3)
                    node.propose([b"%d-%d" % (self._commands, i) for i in range(count)])
                if self._happens(0.4):
                    self._read(host, node)
                if self._happens(self._faults.change):
                    for _ in range(self._random.randint(1, 2)):
                        self._change_members(node)
                if self._happens(self._faults.transfer):
                    node.transfer(self._random.choice(node.configuration.voters))
            except (ConfigurationRefused, Overloaded, NotLeader):
                pass
            self._work(host)

    def _read(self, host: Host, node: Node) -> None:
        request_id = len(self._asked)
        node.read(request_id)
        self._asked[request_id] = self.max_commit
        host.reads.add(request_id)

    # What a bias does.

    def part(self, some: Iterable[int], until: int) -> None:
        """Nothing passes between these nodes and the others before that tick."""
        inside = set(some)
        for one in inside:
            for other in self.hosts.keys() - inside:
                self._cuts[one, other] = self._cuts[other, one] = until
        self._note("part", *sorted(inside), until)

    def ask_read(self, host: Host) -> None:
        """Ask this node for a read, if it thinks that it leads."""
        if host.node is not None and host.node.role is Role.LEADER and host.paused_until <= self.now:
            with contextlib.suppress(Overloaded):
                self._read(host, host.node)
            self._work(host)

    def ask_commands(self, host: Host, count: int) -> None:
        """Give this leader commands, one by one, as far as it takes them."""
        with contextlib.suppress(NotLeader, Overloaded):
            for _ in range(count):
                if host.node is not None:
                    self._commands += 1
                    host.node.propose([b"%d" % self._commands])
        self._work(host)

    def ask_change(self, host: Host) -> None:
        """Ask this leader for some change of the members."""
        if host.node is not None:
            with contextlib.suppress(NotLeader, ConfigurationRefused):
                self._change_members(host.node)
        self._work(host)

    def crash(self, node_id: int) -> None:
        """Stop a process."""
        self._crash(self.hosts[node_id])

    def send(self, host: Host, message: Message) -> None:
        """Send a message of this node."""
        self._send(host, message)

    def _change_members(self, node: Node) -> None:
        known = node.configuration
        node_id = self._random.choice(list(self.hosts))
        if known.member(node_id) is None:
            wanted = known.with_learner(member(node_id))
        elif node_id in known.learners and self._happens(0.8):
            wanted = known.with_voter(node_id)
        else:
            wanted = known.without(node_id)
        index = node.propose_change(wanted)
        self._note("change", node.node_id, node_id, index)

    # The shell.

    def _boot(self, host: Host) -> None:
        disk = host.disk
        host.index = host.checksum = 0
        if disk.meta is not None:
            host.index, host.checksum = STATE.unpack(disk.state)
        host.node = self._node_type(
            replace(self._config, node_id=host.node_id),
            hard_state=disk.hard_state,
            log=RaftLog(disk.meta, disk.entries),
            configuration=host.initial,
            applied=host.index,
            random_source=random.Random(self._random.getrandbits(64)),
        )
        host.seen_commit = host.node.commit_index
        disk.partial = None

    def _crash(self, host: Host) -> None:
        """Stop a process; of what was being written, a part reaches the disk, or nothing."""
        if host.node is None:
            return
        ready, host.pending = host.pending, None
        if ready is not None:
            self._tear(host, ready)
        host.node = None
        host.reads.clear()
        host.paused_until = self.now
        host.up_at = self.now + self._random.randint(1, self._faults.down_ticks_max)
        self._note("crash", host.node_id, host.up_at, 0)

    def _tear(self, host: Host, ready: Ready) -> None:
        hard_state = ready.hard_state if self._random.random() < 0.5 else None
        whole = self._random.randint(0, len(ready.entries))
        host.disk.write(hard_state, ready.entries[:whole])

    def _work(self, host: Host) -> None:
        """Carry out what the core wants, as far as the disk is not busy."""
        while host.node is not None:
            self._observe(host, host.node)
            if host.pending is not None:
                return
            if not host.node.has_ready():
                if host.reads and host.node.role is not Role.LEADER:
                    self._violated(f"node {host.node_id} leads no more and refuses no read of {host.reads}")
                return
            ready = host.node.take_ready()
            self._check_entries(host.node, ready.entries)
            if ready.entries:
                self._check_members(host.node)
            for message in ready.messages_now:
                self._send(host, message)
            for wanted in ready.chunks_wanted:
                self._send_chunk(host, wanted)
            if ready.hard_state is not None or ready.entries or ready.chunk_received is not None:
                if self._happens(self._faults.crash_in_write):
                    host.pending = ready
                    self._crash(host)
                    return
                if host.slow_until > self.now or self._happens(self._faults.slow_disk):
                    host.pending = ready
                    host.due = max(host.slow_until, self.now + self._random.randint(1, 4))
                    return
            self._finish(host, ready)

    def _finish(self, host: Host, ready: Ready) -> None:
        node = host.node
        assert node is not None, "a stopped process finishes nothing"
        host.disk.write(ready.hard_state, ready.entries)
        if ready.entries:
            node.persisted(ready.entries[-1].index, ready.entries[-1].term)
        if ready.chunk_received is not None:
            self._store_chunk(host, node, ready.chunk_received)
        if (ready.hard_state is not None or ready.entries) and self._happens(self._faults.crash_in_write):
            self._crash(host)
            return
        for message in ready.messages:
            self._send(host, message)
        for entry in ready.committed:
            self._apply(host, entry)
        node.applied(host.index)
        host.reads.difference_update(ready.reads_refused)
        for read in ready.reads:
            host.reads.discard(read.request_id)
            self.answered_reads += 1
            if read.index < self._asked[read.request_id]:
                self._violated(
                    f"node {host.node_id} reads at {read.index}, though {self._asked[read.request_id]} "
                    "was committed when the read was asked"
                )

    def _send(self, host: Host, message: Message) -> None:
        self._check_promise(host, message)
        if self._happens(self._faults.loss):
            return
        for _ in range(2 if self._happens(self._faults.doubled) else 1):
            self._enqueue(message, self.now + self._random.randint(0, self._faults.delay_ticks_max))

    def _enqueue(self, message: Message, at: int) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (at, self._sequence, message))

    def _apply(self, host: Host, entry: Entry) -> None:
        if entry.index != host.index + 1:
            self._violated(f"node {host.node_id} applies {entry.index} after {host.index}")
        host.index = entry.index
        if entry.kind is EntryKind.DATA:
            host.checksum = zlib.crc32(entry.data, host.checksum)
        self._check_state(host)

    def _take_snapshot(self, host: Host) -> None:
        node = host.node
        if node is None or host.index <= host.disk.base:
            return
        term = node.log.term(host.index)
        assert term is not None, f"the applied entry {host.index} is gone"
        state = STATE.pack(host.index, host.checksum)
        configuration = node.configuration_at(host.index)
        meta = SnapshotMeta(host.index, term, configuration, len(state), zlib.crc32(state))
        host.disk.use_snapshot(meta, state, [e for e in host.disk.entries if e.index > meta.index])
        node.compacted(meta)
        self._note("snapshot", host.node_id, meta.index, term)
        self._work(host)

    def _send_chunk(self, host: Host, wanted: ChunkWanted) -> None:
        if wanted.meta == host.disk.meta:
            data = host.disk.state[wanted.offset : wanted.offset + wanted.size]
            piece = SnapshotChunk(wanted.term, wanted.meta, wanted.offset, data)
            self._send(host, Message(host.node_id, wanted.target, piece))

    def _store_chunk(self, host: Host, node: Node, piece: ChunkReceived) -> None:
        disk, meta = host.disk, piece.meta
        before = b"" if piece.offset == 0 or disk.partial is None else disk.partial[1]
        if piece.offset and (disk.partial is None or disk.partial[0] != meta or len(before) != piece.offset):
            self._violated(f"node {host.node_id} accepts a piece at {piece.offset} that follows nothing")
        state = before + piece.data
        disk.partial = (meta, state)
        if len(state) < meta.size:
            node.chunk_stored(meta, len(state))
        elif self._happens(self._faults.bad_snapshot):
            disk.partial = None
            node.chunk_stored(meta, 0)
        else:
            disk.partial = None
            disk.use_snapshot(meta, state, [])
            host.index, host.checksum = STATE.unpack(state)
            self._check_state(host)
            node.snapshot_installed(meta)

    # The checkers.

    def _observe(self, host: Host, node: Node) -> None:
        if node.role is Role.LEADER:
            if self._leaders.setdefault(node.term, node.node_id) != node.node_id:
                self._violated(f"{self._leaders[node.term]} and {node.node_id} both lead term {node.term}")
            if host.leads != node.configuration.voters:
                host.leads, host.leads_since = node.configuration.voters, host.ticks
            if host.led_term != node.term:
                host.led_term = node.term
                host.leads_since = host.ticks
                host.heard.clear()
                self._check_completeness(node)
        if node.commit_index > host.seen_commit:
            self._check_commit(host, node)
            host.seen_commit = node.commit_index

    def _check_office(self, host: Host, node: Node) -> None:
        """Nobody leads for long whom no majority answers; two checks of the quorum may see nothing of it."""
        oldest = host.ticks - 2 * self._config.election_ticks - 1
        if node.role is not Role.LEADER or host.leads_since > oldest:
            return
        voters = node.configuration.voters
        heard = [v for v in voters if v == node.node_id or host.heard.get(v, 0) > oldest]
        if 2 * len(heard) <= len(voters):
            self._violated(f"node {node.node_id} leads {voters}, of which it heard {heard} lately")

    def _check_members(self, node: Node) -> None:
        """The members in force are those of the last change in the log, whether it is committed or not."""
        entries = node.log.slice(node.log.first_index, node.log.last_index, 1 << 30)
        changes = [entry for entry in entries if entry.kind is EntryKind.CONFIGURATION]
        if changes and Configuration.decode(changes[-1].data) != node.configuration:
            self._violated(f"node {node.node_id} does not have the members of its entry {changes[-1].index}")

    def _check_completeness(self, leader: Node) -> None:
        index = self.max_commit
        while index > 0 and self._committed[index][1] >= leader.term:
            index -= 1
        if index > 0:
            self._check_has(leader, index)

    def _check_has(self, leader: Node, index: int) -> None:
        if index >= leader.log.first_index and leader.log.term(index) != self._committed[index][0]:
            self._violated(f"leader {leader.node_id} of term {leader.term} lacks the committed entry {index}")

    def _check_commit(self, host: Host, node: Node) -> None:
        index, term = node.commit_index, node.log.term(node.commit_index)
        if index > node.log.last_index:
            self._violated(f"node {node.node_id} commits {index}, which it does not have")
        if node.role is Role.LEADER:
            assert term is not None, f"the committed entry {index} is gone"
            if term != node.term:
                self._violated(f"leader {node.node_id} of term {node.term} counts an entry of term {term}")
            holders = [v for v in node.configuration.voters if self.hosts[v].disk.has(index, term)]
            if 2 * len(holders) <= len(node.configuration.voters):
                self._violated(
                    f"only {holders} of {node.configuration.voters} have the committed entry {index}"
                )
        for each in range(max(host.seen_commit + 1, node.log.first_index), index + 1):
            each_term = node.log.term(each)
            assert each_term is not None, f"entry {each} is gone"
            known = self._committed.get(each)
            if known is not None and known[0] != each_term:
                self._violated(f"entry {each} is committed with the terms {known[0]} and {each_term}")
            if known is None or known[1] > node.term:
                self._committed[each] = (each_term, node.term)
        if index > self.max_commit:
            self.max_commit = index
            for other in self.hosts.values():
                if other.node is not None and other.node.role is Role.LEADER and other.node.term > node.term:
                    self._check_has(other.node, index)

    def _check_entries(self, node: Node, entries: tuple[Entry, ...]) -> None:
        """Log matching: an index and a term name one entry, and one before it."""
        for entry in entries:
            before = node.log.term(entry.index - 1)
            if before is None:
                continue
            known = self._written.setdefault((entry.index, entry.term), (entry, before))
            if known != (entry, before):
                self._violated(f"two entries {entry.index} of term {entry.term}")

    def _check_state(self, host: Host) -> None:
        known = self._checksums.setdefault(host.index, host.checksum)
        if known != host.checksum:
            self._violated(f"node {host.node_id} has another state at {host.index} than others")

    def _check_promise(self, host: Host, message: Message) -> None:
        """Nothing leaves that a crash could make untrue."""
        body, disk = message.body, host.disk
        shown = body.term
        match body:
            case VoteRequest(pre=True) | VoteReply(pre=True, granted=True):
                shown = 0  # a term that may come
            case VoteRequest():
                if (
                    disk.hard_state != HardState(body.term, host.node_id)
                    and disk.hard_state.term <= body.term
                ):
                    self._violated(f"node {host.node_id} asks for votes and its own is not synced")
            case VoteReply(granted=True):
                if (
                    disk.hard_state != HardState(body.term, message.target)
                    and disk.hard_state.term <= body.term
                ):
                    self._violated(f"node {host.node_id} gives a vote that is not synced")
            case AppendReply(success=True):
                if disk.base + len(disk.entries) < body.match_index:
                    self._violated(
                        f"node {host.node_id} acknowledges {body.match_index}, which is not synced"
                    )
            case SnapshotReply() if body.next_offset >= STATE.size:
                if disk.base + len(disk.entries) < body.index:
                    self._violated(f"node {host.node_id} acknowledges a snapshot that is not synced")
            case _:
                pass
        if disk.hard_state.term < shown:
            self._violated(f"node {host.node_id} shows term {shown}, which is not synced: {message}")

    def _violated(self, what: str) -> None:
        raise SafetyViolated(f"seed {self.seed}, tick {self.now}: {what}")

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _note(self, what: str, *numbers: int) -> None:
        self.trace = zlib.crc32(f"{self.now} {what} {numbers}".encode(), self.trace)


def member(node_id: int) -> Member:
    """A learner or voter with made-up addresses."""
    return Member(node_id, f"n{node_id}:1", f"n{node_id}:2")
