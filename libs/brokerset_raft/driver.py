"""Runs one raft node: ticks, messages and proposals go into the core, its effects to disk, network and state.

One task owns the core. Disk work runs outside the loop, in order, one piece at a time; meanwhile inputs are
taken and their effects queue up, so that everything which arrives during a sync shares the next.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from brokerset_raft.configuration import Configuration, ConfigurationRefused, Member
from brokerset_raft.engine import (
    EngineError,
    EngineStatus,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    Role,
    StateMachine,
)
from brokerset_raft.log import RaftLog
from brokerset_raft.log_records import ENTRY_BYTES_MAX
from brokerset_raft.messages import (
    ChunkReceived,
    ChunkWanted,
    Entry,
    EntryKind,
    Message,
    Ready,
    SnapshotChunk,
    SnapshotMeta,
)
from brokerset_raft.node import Node, NodeConfig
from brokerset_raft.storage import Loaded, Storage
from brokerset_raft.transport import Transport
from brokerset_raft.waiting import Barriers, Proposals, refuse, refuse_all
from brokerset_runtime.disk import RunBlocking

__all__ = ["RaftEngine", "RaftSettings", "RunBlocking"]

log = structlog.get_logger(__name__)

TICKS_AT_ONCE_MAX = 2
"""After a stall, ticks that were missed beyond these are forgotten: no elections for the time nobody ran."""

UNSAVED_MAX = 256
"""With so many `Ready`s waiting for the disk no further messages and proposals are taken."""

BATCH_BYTES_MAX = 1 << 20
BATCH_ENTRIES_MAX = 1024
"""Most proposals that go into the core at once; the rest follows in the same pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """How an engine behaves; the same on all nodes of a group."""

    tick_seconds: float = 0.05
    election_ticks: int = 6
    """Least ticks without a leader before an election."""

    heartbeat_ticks: int = 1
    snapshot_entries: int = 10_000
    """A snapshot is taken when so many entries were applied since the last."""

    proposals_max: int = 4096
    """Most proposals, and most readers, that wait; one more is refused with `Overloaded`."""

    messages_max: int = 8192
    """Most messages of peers that wait to be taken; one more is dropped."""

    promote_lag_max: int = 100
    """A learner may vote when it lags by fewer entries."""

    change_seconds_max: float = 10.0
    """How long a change of the members is waited for; then its outcome is unknown."""

    @property
    def election_seconds_max(self) -> float:
        """The longest time without a leader before a node asks for votes."""
        return 2 * self.election_ticks * self.tick_seconds


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the disk did with a piece that was received."""

    next_offset: int
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A state to be written."""

    index: int
    term: int
    configuration: Configuration
    data: bytes


_DiskItem = Ready | ChunkWanted | _Snapshot


class RaftEngine:
    """One node of a replicated state machine. `start` it, then keep `run` running."""

    def __init__(
        self,
        *,
        node_id: int,
        initial: Configuration,
        storage: Storage,
        state_machine: StateMachine,
        transport: Transport,
        random_source: random.Random,
        settings: RaftSettings,
        run_blocking: RunBlocking,
        on_change: Callable[[EngineStatus], None] | None = None,
    ) -> None:
        """`initial` holds the members of a new group, the same on each, or none if the node is to be added.

        It is remembered on the disk: on a node that has data it counts no longer.

        `on_change` is called by `run` when the role, the term, the leader or `leading` has changed.
        """
        self._node_id = node_id
        self._initial = initial
        self._storage = storage
        self._machine = state_machine
        self._transport = transport
        self._random = random_source
        self._settings = settings
        self._run_blocking = run_blocking
        self._on_change = on_change
        self._log = log.bind(node_id=node_id)

        self._node: Node | None = None
        self._running = False
        self._stopped = False
        self._applied = 0
        self._next_tick = 0.0
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

        self._messages: deque[Message] = deque()
        self.messages_dropped = 0
        """Messages of peers that were not taken because too many waited."""
        self._requests: deque[Callable[[Node], None]] = deque()
        self._new_proposals: deque[tuple[bytes, asyncio.Future[object]]] = deque()
        self._new_barriers: list[asyncio.Future[object]] = []
        self._proposals = Proposals()
        self._barriers = Barriers()
        self._transfers: list[asyncio.Future[object]] = []
        self._others: dict[asyncio.Future[object], None] = {}
        self._snapshot_waiters: list[asyncio.Future[object]] = []
        self._snapshot_writing = False

        self._disk_items: deque[_DiskItem] = deque()
        self._disk_taken: list[_DiskItem] = []
        self._disk_work: asyncio.Future[object] | None = None

        self._reported: tuple[Role, int, int | None, bool] | None = None
        self._led_term: int | None = None
        self._used: Configuration | None = None

    # Life.

    async def start(self) -> None:
        """Read the disk and restore the state machine. Raises `LogDamaged`, `OSError`."""
        loaded, state, initial = await self._run_blocking(self._load)
        settings = self._settings
        config = NodeConfig(
            node_id=self._node_id,
            election_ticks=settings.election_ticks,
            heartbeat_ticks=settings.heartbeat_ticks,
            promote_lag_max=settings.promote_lag_max,
        )
        if loaded.snapshot is not None and state is not None:
            self._machine.restore(state)
            self._applied = loaded.snapshot.index
        self._node = Node(
            config,
            hard_state=loaded.hard_state,
            log=RaftLog(loaded.snapshot, loaded.entries),
            configuration=initial,
            applied=self._applied,
            random_source=self._random,
        )
        self._log.info(
            "raft node starts",
            term=loaded.hard_state.term,
            snapshot_index=self._applied,
            last_index=self._node.log.last_index,
            members=[member.node_id for member in self._node.configuration.members],
        )

    async def run(self) -> None:
        """Take part until cancelled. Raises what the disk raised; the node must not go on after that."""
        node = self._started()
        loop = asyncio.get_running_loop()
        self._next_tick = loop.time() + self._settings.tick_seconds
        self._running = True
        try:
            while True:
                self._wake.clear()
                self._pass(node, loop.time())
                if self._wake.is_set():
                    await asyncio.sleep(0)
                    continue
                if self._timer is None:
                    self._timer = loop.call_at(self._next_tick, self._on_timer)
                await self._wake.wait()
        finally:
            self._stop()

    def receive(self, message: Message) -> None:
        """A message of a peer came; dropped when too many wait, or while the node does not run."""
        if not self._running:
            return
        if len(self._messages) >= self._settings.messages_max:
            self.messages_dropped += 1
            return
        self._messages.append(message)
        self._wake.set()

    @property
    def status(self) -> EngineStatus:
        """What this node knows now."""
        node = self._node
        if node is None:
            return EngineStatus(self._node_id, Role.FOLLOWER, 0, None, False, 0, 0, 0, 0, self._initial, {})
        return EngineStatus(
            node_id=self._node_id,
            role=node.role,
            term=node.term,
            leader_id=node.leader_id,
            leading=self._is_leading(node),
            last_index=node.log.last_index,
            commit_index=node.commit_index,
            applied_index=self._applied,
            snapshot_index=node.log.snapshot.index if node.log.snapshot is not None else 0,
            configuration=node.configuration,
            match_indexes=node.match_indexes,
            heard=node.heard,
        )

    # What users ask for.

    async def propose(self, data: bytes, timeout: float | None = None) -> object:
        """Commit and apply a command; returns what the state machine returned for it on this node.

        Raises `NotLeader` (also when another entry was committed in its place: it never will be),
        `Overloaded`, or `OutcomeUnknown`; `ValueError` for more than `ENTRY_BYTES_MAX` bytes.
        """
        if len(data) > ENTRY_BYTES_MAX:
            raise ValueError(f"a command of {len(data)} bytes; {ENTRY_BYTES_MAX} are allowed")
        waiting = len(self._new_proposals) + len(self._proposals)
        if waiting >= self._settings.proposals_max:
            raise Overloaded(f"{waiting} proposals wait already, the most there can be; ask again soon")
        future = self._future()
        proposal = (data, future)
        self._new_proposals.append(proposal)
        self._wake.set()
        try:
            return await self._outcome(future, timeout, "the command was not seen to be committed")
        except OutcomeUnknown:
            if proposal not in self._new_proposals:
                raise
            self._new_proposals.remove(proposal)
            raise Overloaded(f"the command was not taken within {timeout:g} s; ask again soon") from None
        except asyncio.CancelledError:
            # Nobody learns the outcome, so there must be one: "may be applied yet" must not last.
            if proposal in self._new_proposals:
                unheard = asyncio.get_running_loop().create_future()
                unheard.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._new_proposals[self._new_proposals.index(proposal)] = (data, unheard)
            raise

    async def read_barrier(self, timeout: float | None = None) -> None:
        """Return when the state machine has all that was committed anywhere before this call.

        Raises `NotLeader`, `Overloaded`, or `OutcomeUnknown` when the time is up.
        """
        waiting = len(self._new_barriers) + len(self._barriers)
        if waiting >= self._settings.proposals_max:
            raise Overloaded(f"{waiting} reads wait already, the most there can be; ask again soon")
        future = self._future()
        self._new_barriers.append(future)
        self._wake.set()
        await self._outcome(future, timeout, "no majority confirmed that this node leads")

    async def add_learner(self, member: Member) -> None:
        """Commit a new learner, or a member's new addresses.

        Raises `NotLeader`, `ConfigurationRefused`, `OutcomeUnknown`.
        """
        await self._change(lambda configuration: configuration.with_learner(member))

    async def promote(self, node_id: int) -> None:
        """Let a learner vote. Raises as `add_learner`; refused while it lags, telling by how much."""
        await self._change(lambda configuration: configuration.with_voter(node_id))

    async def remove(self, node_id: int) -> None:
        """Remove a member, also this one. Raises as `add_learner`."""
        await self._change(lambda configuration: configuration.without(node_id))

    async def transfer(self, node_id: int) -> None:
        """Make another voter leader; returns when this node no longer leads.

        Raises `NotLeader`, `ConfigurationRefused` when that node has no vote, `OutcomeUnknown`.
        """
        future = self._future()

        def carry_out(node: Node) -> None:
            node.transfer(node_id)
            if node_id == self._node_id:
                future.set_result(None)
            else:
                self._transfers.append(future)

        self._ask(future, carry_out)
        await self._outcome(
            future, self._settings.change_seconds_max, f"node {node_id} did not take over in time"
        )

    async def take_snapshot(self) -> int:
        """Write a snapshot of the applied state now and drop the log below; returns its index."""
        future = self._future()
        self._ask(future, lambda _: self._snapshot_waiters.append(future))
        index = await self._outcome(future, None, "")
        assert isinstance(index, int)
        return index

    async def _change(self, make: Callable[[Configuration], Configuration]) -> None:
        future = self._future()

        def carry_out(node: Node) -> None:
            if node.role is not Role.LEADER:
                raise NotLeader(node.leader_id)
            wanted = make(node.configuration)
            if wanted == node.configuration and node.log.configuration_index <= node.commit_index:
                future.set_result(None)
                return
            index = node.propose_change(wanted)
            self._proposals.watch(index, node.term, future)

        self._ask(future, carry_out)
        await self._outcome(
            future,
            self._settings.change_seconds_max,
            "the change of the members was not seen to be committed",
        )

    def _ask(self, future: asyncio.Future[object], carry_out: Callable[[Node], None]) -> None:
        """Have the task carry something out; what that raises, the future raises."""

        def guarded(node: Node) -> None:
            if future.done():
                return
            try:
                carry_out(node)
            except (EngineError, ConfigurationRefused) as error:
                refuse(future, error)

        self._others[future] = None
        future.add_done_callback(self._forget)
        self._requests.append(guarded)
        self._wake.set()

    def _forget(self, future: asyncio.Future[object]) -> None:
        self._others.pop(future, None)

    def _future(self) -> asyncio.Future[object]:
        if not self._running:
            raise NotLeader(None)
        return asyncio.get_running_loop().create_future()

    async def _outcome(self, future: asyncio.Future[object], timeout: float | None, problem: str) -> object:
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise OutcomeUnknown(f"{problem} within {timeout:g} s") from None

    # The task.

    def _pass(self, node: Node, now: float) -> None:
        """Take everything that waits, once; whoever leaves work behind sets `_wake`."""
        self._finish_disk(node)
        if len(self._disk_items) < UNSAVED_MAX:
            for _ in range(len(self._messages)):
                node.step(self._messages.popleft())
        self._tick(node, now)
        for _ in range(len(self._requests)):
            self._requests.popleft()(node)
        if len(self._disk_items) < UNSAVED_MAX or node.role is not Role.LEADER:  # else they are refused
            self._take_proposals(node)
        self._take_barriers(node)
        self._take_readies(node)
        self._note_changes(node, now)
        self._snapshot_if_due(node)
        self._start_disk()

    def _tick(self, node: Node, now: float) -> None:
        for _ in range(TICKS_AT_ONCE_MAX):
            if now < self._next_tick:
                return
            self._next_tick += self._settings.tick_seconds
            node.tick()
            self._proposals.expire(now)
        if now >= self._next_tick:
            self._next_tick = now + self._settings.tick_seconds

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    def _take_proposals(self, node: Node) -> None:
        while self._new_proposals:
            batch: list[tuple[bytes, asyncio.Future[object]]] = []
            size = 0
            while self._new_proposals and size < BATCH_BYTES_MAX and len(batch) < BATCH_ENTRIES_MAX:
                data, future = self._new_proposals.popleft()
                if not future.done():
                    batch.append((data, future))
                    size += len(data)
            if not batch:
                return
            try:
                first, term = node.propose([data for data, _ in batch])
            except (NotLeader, Overloaded) as error:
                refuse_all((future for _, future in batch), error)
                continue
            for index, (_, future) in enumerate(batch, first):
                self._proposals.watch(index, term, future)

    def _take_barriers(self, node: Node) -> None:
        futures, self._new_barriers = [each for each in self._new_barriers if not each.done()], []
        if not futures:
            return
        request_id = self._barriers.ask(futures)
        try:
            node.read(request_id)
        except (NotLeader, Overloaded) as error:
            self._barriers.refused(request_id, error)

    def _take_readies(self, node: Node) -> None:
        while len(self._disk_items) < UNSAVED_MAX and node.has_ready():
            self._take_ready(node, node.take_ready())

    def _take_ready(self, node: Node, ready: Ready) -> None:
        """Do at once what needs no disk; put the rest behind what waits for the disk already.

        What the core lets go at once relies on a synced term. Its rule is that a `Ready` is over before the
        next is taken; as several wait here, it is kept back while an earlier hard state does.
        """
        waits = self._disk_work is not None or bool(self._disk_items)
        free = ready
        if waits and self._waits_for_hard_state():
            free = Ready((), (), None, (), None, (), (), (), ())
            ready = Ready(
                (), ready.chunks_wanted, ready.hard_state, ready.entries, ready.chunk_received,
                (*ready.messages_now, *ready.messages), ready.committed, ready.reads, ready.reads_refused,
            )  # fmt: skip
        for message in free.messages_now:
            self._transport.send(message)
        self._disk_items.extend(ready.chunks_wanted)
        needs_disk = ready.hard_state is not None or ready.entries or ready.chunk_received is not None
        if needs_disk or (waits and ready.messages):
            self._disk_items.append(ready)
        else:
            for message in ready.messages:
                self._transport.send(message)
        for entry in ready.committed:
            self._apply(node, entry)
        if ready.committed:
            node.applied(self._applied)
        for read in ready.reads:
            self._barriers.confirmed(read.request_id, read.index)
        for request_id in ready.reads_refused:
            self._barriers.refused(request_id, NotLeader(node.leader_id))
        self._barriers.applied(self._applied)

    def _waits_for_hard_state(self) -> bool:
        waiting = (*self._disk_taken, *self._disk_items)
        return any(isinstance(item, Ready) and item.hard_state is not None for item in waiting)

    def _apply(self, node: Node, entry: Entry) -> None:
        assert entry.index == self._applied + 1, f"entry {entry.index} after {self._applied}"
        result = self._machine.apply(entry.index, entry.data) if entry.kind is EntryKind.DATA else None
        self._applied = entry.index
        self._proposals.applied(entry.index, entry.term, result, node.leader_id)

    # The disk.

    def _load(self) -> tuple[Loaded, bytes | None, Configuration]:
        storage = self._storage
        loaded = storage.load()
        state = None if loaded.snapshot is None else storage.snapshot_data(loaded.snapshot)
        return loaded, state, storage.initial_members(self._initial)

    def _start_disk(self) -> None:
        """Begin the next piece of disk work; all `Ready`s in a row are saved by one sync."""
        if self._disk_work is not None or not self._disk_items:
            return
        first = self._disk_items.popleft()
        self._disk_taken = [first]
        if isinstance(first, Ready):
            readies = [first]
            while readies[-1].chunk_received is None and self._disk_items:
                following = self._disk_items[0]
                if not isinstance(following, Ready):
                    break
                readies.append(following)
                self._disk_items.popleft()
            self._disk_taken = list(readies)
            if any(r.hard_state is not None or r.entries or r.chunk_received is not None for r in readies):
                self._run_on_disk(lambda: self._save(readies))
            else:
                self._disk_taken = []
                for ready in readies:
                    for message in ready.messages:
                        self._transport.send(message)
                self._start_disk()
        elif isinstance(first, ChunkWanted):
            wanted = first
            self._run_on_disk(lambda: self._read_chunk(wanted))
        else:
            snapshot = first
            self._run_on_disk(lambda: self._write_snapshot(snapshot))

    def _run_on_disk(self, work: Callable[[], object]) -> None:
        self._disk_work = asyncio.ensure_future(self._run_blocking(work))
        self._disk_work.add_done_callback(lambda _: self._wake.set())

    def _save(self, readies: list[Ready]) -> _Saved | None:
        """On the disk's thread. Entries of a later `Ready` replace those of an earlier one by their order."""
        hard_states = [ready.hard_state for ready in readies if ready.hard_state is not None]
        entries = [entry for ready in readies for entry in ready.entries]
        self._storage.save(hard_states[-1] if hard_states else None, entries)
        piece = readies[-1].chunk_received
        return None if piece is None else self._store_piece(piece)

    def _store_piece(self, piece: ChunkReceived) -> _Saved:
        next_offset = self._storage.store_chunk(piece.meta, piece.offset, piece.data)
        if next_offset < piece.meta.size:
            return _Saved(next_offset)
        state = self._storage.install_partial(piece.meta)
        return _Saved(0) if state is None else _Saved(next_offset, state)

    def _read_chunk(self, wanted: ChunkWanted) -> bytes | None:
        try:
            return self._storage.read_chunk(wanted.meta, wanted.offset, wanted.size)
        except FileNotFoundError:
            return None

    def _write_snapshot(self, snapshot: _Snapshot) -> SnapshotMeta:
        data = snapshot.data
        meta = SnapshotMeta(
            snapshot.index, snapshot.term, snapshot.configuration, len(data), zlib.crc32(data)
        )
        self._storage.write_snapshot(meta, data)
        self._storage.drop_below(meta.index)
        return meta

    def _finish_disk(self, node: Node) -> None:
        """Go on with what had to wait for the disk; raises what it raised."""
        work = self._disk_work
        if work is None or not work.done():
            return
        self._disk_work = None
        taken, self._disk_taken = self._disk_taken, []
        result = work.result()
        match taken[0]:
            case Ready():
                assert result is None or isinstance(result, _Saved)
                self._saved(node, [item for item in taken if isinstance(item, Ready)], result)
            case ChunkWanted() as wanted:
                if isinstance(result, bytes):
                    piece = SnapshotChunk(wanted.term, wanted.meta, wanted.offset, result)
                    self._transport.send(Message(self._node_id, wanted.target, piece))
            case _Snapshot():
                assert isinstance(result, SnapshotMeta)
                self._snapshot_written(node, result)

    def _saved(self, node: Node, readies: list[Ready], saved: _Saved | None) -> None:
        entries = [entry for ready in readies for entry in ready.entries]
        if entries and not self._is_replaced(entries[-1].index):
            node.persisted(entries[-1].index, entries[-1].term)
        piece = readies[-1].chunk_received
        if piece is not None:
            assert saved is not None
            self._piece_stored(node, piece.meta, saved)
        for ready in readies:
            for message in ready.messages:
                self._transport.send(message)

    def _is_replaced(self, last_index: int) -> bool:
        """Whether entries that wait for the disk replace some of those that are synced now."""
        for item in self._disk_items:
            if isinstance(item, Ready) and item.entries and item.entries[0].index <= last_index:
                return True
        return False

    def _piece_stored(self, node: Node, meta: SnapshotMeta, saved: _Saved) -> None:
        if saved.state is None:
            node.chunk_stored(meta, saved.next_offset)
            return
        if meta.index > self._applied:
            self._machine.restore(saved.state)
            self._applied = meta.index
            self._log.info("installed snapshot", index=meta.index, bytes=meta.size)
        node.snapshot_installed(meta)
        self._proposals.skipped(meta.index)
        self._barriers.applied(self._applied)

    # Snapshots of our own.

    def _snapshot_if_due(self, node: Node) -> None:
        if self._snapshot_writing:
            return
        newest = node.log.snapshot.index if node.log.snapshot is not None else 0
        if self._applied == newest:
            for future in self._snapshot_waiters:
                if not future.done():
                    future.set_result(newest)
            self._snapshot_waiters.clear()
        elif self._snapshot_waiters or self._applied - newest >= self._settings.snapshot_entries:
            term = node.log.term(self._applied)
            assert term is not None, f"entry {self._applied} is applied, and not in the log"
            configuration = node.configuration_at(self._applied)
            self._snapshot_writing = True
            self._disk_items.append(_Snapshot(self._applied, term, configuration, self._machine.snapshot()))

    def _snapshot_written(self, node: Node, meta: SnapshotMeta) -> None:
        self._snapshot_writing = False
        node.compacted(meta, self._storage.snapshots)
        self._log.info("took snapshot", index=meta.index, bytes=meta.size)
        for future in self._snapshot_waiters:
            if not future.done():
                future.set_result(meta.index)
        self._snapshot_waiters.clear()

    # What others are told.

    def _is_leading(self, node: Node) -> bool:
        return node.role is Role.LEADER and node.is_serving(self._applied)

    def _note_changes(self, node: Node, now: float) -> None:
        led = node.term if node.role is Role.LEADER else None
        if led != self._led_term:
            if self._led_term is not None:
                self._proposals.leadership_lost(self._led_term, now + self._settings.election_seconds_max)
            self._led_term = led
        self._settle_transfers(node)
        self._note_members(node)
        facts = (node.role, node.term, node.leader_id, self._is_leading(node))
        if facts == self._reported:
            return
        before, self._reported = self._reported, facts
        if before is None or (before[0], before[2]) != (node.role, node.leader_id):
            self._log.info("raft role", role=node.role.value, term=node.term, leader_id=node.leader_id)
        if self._on_change is not None:
            self._on_change(self.status)

    def _settle_transfers(self, node: Node) -> None:
        if not self._transfers or (node.role is Role.LEADER and node.transfer_target is not None):
            return
        for future in self._transfers:
            if node.role is not Role.LEADER:
                if not future.done():
                    future.set_result(None)
            else:
                refuse(future, OutcomeUnknown("the other node did not take over in an election time-out"))
        self._transfers.clear()

    def _note_members(self, node: Node) -> None:
        if node.configuration is self._used:
            return
        before, self._used = self._used, node.configuration
        if before == self._used:
            return
        self._transport.use(self._used)
        if before is None:
            return
        ids = [member.node_id for member in self._used.members]
        self._log.info("raft members changed", members=ids, voters=list(self._used.voters))
        if self._node_id not in ids and before.member(self._node_id) is not None:
            self._log.warning(
                "this node was removed from the group and stays quiet; stop it, or add it again", members=ids
            )

    # The end.

    def _started(self) -> Node:
        if self._node is None or self._stopped:
            raise RuntimeError("an engine is started once, and then run once")
        return self._node

    def _stop(self) -> None:
        self._running = False
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._disk_work is not None:
            # It goes on in its thread, as nothing can stop it; its error, if any, is nobody's any more.
            self._disk_work.add_done_callback(lambda work: work.cancelled() or work.exception())
        refuse_all((future for _, future in self._new_proposals), NotLeader(None))
        refuse_all(self._new_barriers, NotLeader(None))
        self._new_proposals.clear()
        self._proposals.stop()
        self._barriers.stop()
        for future in list(self._others):
            refuse(future, OutcomeUnknown("this node stopped"))
