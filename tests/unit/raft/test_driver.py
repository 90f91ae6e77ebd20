"""What the driver lets go, and when, while the disk works; each piece of work ends when the test wants."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from brokerset_raft.configuration import Configuration
from brokerset_raft.driver import UNSAVED_MAX, RaftEngine, RaftSettings
from brokerset_raft.engine import EngineError, NotLeader, OutcomeUnknown, Overloaded, Role
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    Body,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Message,
    VoteReply,
    VoteRequest,
)
from brokerset_raft.storage import Loaded, Storage
from brokerset_raft.waiting import Proposals
from brokerset_runtime.disk import RealDisk
from brokerset_sim.core_cluster import member
from brokerset_sim.disk import FrozenDisk
from brokerset_sim.loop import run

pytestmark = pytest.mark.virtual

T = TypeVar("T")
GROUP = Configuration((member(1), member(2), member(3)))
SETTINGS = RaftSettings(tick_seconds=1.0)
SETTLED = 0.001


class SteppedDisk:
    """Implements `RunBlocking`; once it is `held`, work waits for `step`."""

    def __init__(self) -> None:
        self.held = False
        self._waiting: deque[tuple[Callable[[], object], asyncio.Future[Any]]] = deque()

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.held:
            self._waiting.append((work, future))
        else:
            future.set_result(work())
        return future

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    async def step(self) -> None:
        work, future = self._waiting.popleft()
        future.set_result(work())
        await asyncio.sleep(SETTLED)


class Words:
    """A state machine that counts."""

    def __init__(self) -> None:
        self.words: list[bytes] = []

    def apply(self, index: int, data: bytes) -> object:
        self.words.append(data)
        return data

    def snapshot(self) -> bytes:
        return b" ".join(self.words)

    def restore(self, data: bytes) -> None:
        self.words = data.split()


class Bench:
    """Node 1 of three, whose peers are the test."""

    def __init__(self, folder: Path) -> None:
        self.disk = SteppedDisk()
        self.real = RealDisk(folder)
        self.storage = Storage(self.real)
        self.sent: list[Message] = []
        self.machine = Words()
        self.engine = RaftEngine(
            node_id=1,
            initial=GROUP,
            storage=self.storage,
            state_machine=self.machine,
            transport=self,
            random_source=random.Random(1),
            settings=SETTINGS,
            run_blocking=self.disk,
        )

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def use(self, configuration: Configuration) -> None:
        pass

    def on_disk(self) -> Loaded:
        return Storage(FrozenDisk({name: self.real.read(name) for name in self.real.names()})).load()

    async def hear(self, source: int, *bodies: Body) -> None:
        for body in bodies:
            self.engine.receive(Message(source, 1, body))
        await asyncio.sleep(SETTLED)

    def take(self, *kinds: type[Body]) -> list[Body]:
        """What was sent since the last time, of these kinds."""
        sent, self.sent = self.sent, []
        return [message.body for message in sent if isinstance(message.body, kinds)]

    async def lead(self) -> int:
        """Win an election with node 2; returns the term."""
        while self.engine.status.role is not Role.PRE_CANDIDATE:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.1)
        term = self.engine.status.term + 1
        await self.hear(2, VoteReply(term, True, pre=True))
        await self.hear(2, VoteReply(term, True))
        assert self.engine.status.leader_id == 1
        return term


def bench(folder: Path, test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        made = Bench(folder)
        await made.engine.start()
        running = asyncio.create_task(made.engine.run())
        await asyncio.sleep(SETTLED)
        try:
            await test(made)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            made.real.close()

    run(main())


def data(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.DATA, b"%d.%d" % (index, term))


def test_nothing_shows_a_term_or_a_vote_that_is_not_synced(tmp_path: Path) -> None:
    """A vote waits for its save, and what needs only the term waits behind it."""

    async def scene(node: Bench) -> None:
        node.disk.held = True
        await node.hear(2, VoteRequest(5, 0, 0, transfer=True))
        await node.hear(2, Heartbeat(5, 0, 1), AppendRequest(5, 0, 0, (data(1, 5),), 0))
        await node.hear(2, Heartbeat(5, 0, 2))
        assert node.sent == []

        await node.disk.step()

        assert node.on_disk().hard_state == HardState(5, 2)
        assert node.take(VoteReply) == [VoteReply(5, True)]
        await node.hear(3, VoteRequest(6, 9, 5, transfer=True))
        await node.hear(3, Heartbeat(6, 0, 1))
        await node.disk.step()
        assert all(message.body.term == 5 for message in node.sent)
        assert AppendReply(5, True, 1) in node.take(AppendReply)
        await node.disk.step()
        assert node.on_disk().hard_state == HardState(6, 3)
        assert node.take(VoteReply, HeartbeatReply) == [VoteReply(6, True), HeartbeatReply(6, 1)]

    bench(tmp_path, scene)


def test_heartbeats_are_answered_while_entries_are_synced(tmp_path: Path) -> None:
    """They promise only the term, which is synced; the entries are acknowledged after their own save."""

    async def scene(node: Bench) -> None:
        await node.hear(2, Heartbeat(1, 0, 1))
        node.disk.held = True
        node.take()

        await node.hear(2, AppendRequest(1, 0, 0, (data(1, 1),), 0), Heartbeat(1, 0, 2))
        assert node.take(HeartbeatReply, AppendReply) == [HeartbeatReply(1, 2)]
        await node.hear(2, AppendRequest(1, 1, 1, (data(2, 1),), 0))
        await node.hear(2, AppendRequest(1, 0, 0, (data(1, 1),), 0))
        assert node.take(AppendReply) == []
        await node.disk.step()
        assert node.take(AppendReply) == [AppendReply(1, True, 1)]
        await node.disk.step()
        assert node.take(AppendReply) == [AppendReply(1, True, 2), AppendReply(1, True, 1)]

    bench(tmp_path, scene)


def test_entries_that_were_replaced_while_they_were_synced_do_not_count(tmp_path: Path) -> None:
    """The core hears of what is on the disk only when nothing that waits makes it void."""

    async def scene(node: Bench) -> None:
        await node.hear(2, Heartbeat(1, 0, 1))
        core = node.engine._node
        assert core is not None
        told: list[tuple[int, int]] = []
        inner = core.persisted

        def persisted(index: int, term: int) -> None:
            told.append((index, term))
            inner(index, term)

        core.persisted = persisted  # type: ignore[method-assign]  # only looks on
        node.disk.held = True
        await node.hear(2, AppendRequest(1, 0, 0, (data(1, 1), data(2, 1), data(3, 1)), 0))
        await node.hear(3, AppendRequest(2, 1, 1, (data(2, 2),), 0))
        await node.hear(2, AppendRequest(3, 1, 1, (data(2, 1), data(3, 1)), 0))

        await node.disk.step()
        assert told == []
        await node.disk.step()

        assert told == [(3, 1)]
        assert [entry.term for entry in node.on_disk().entries] == [1, 1, 1]

    bench(tmp_path, scene)


def test_a_leader_counts_itself_only_when_it_has_synced(tmp_path: Path) -> None:
    """Its entries leave at once; with one follower's answer they are committed after its own save."""

    async def scene(node: Bench) -> None:
        term = await node.lead()
        await node.hear(2, AppendReply(term, True, 1))
        assert node.engine.status.leading
        node.disk.held = True
        node.take()

        proposal = asyncio.create_task(node.engine.propose(b"x"))
        await asyncio.sleep(SETTLED)
        assert node.take(AppendRequest)
        await node.hear(2, AppendReply(term, True, 2))
        assert not proposal.done()
        await node.disk.step()

        assert await proposal == b"x"

    bench(tmp_path, scene)


def test_requests_end_when_the_leadership_is_lost(tmp_path: Path) -> None:
    """A read and a transfer end with a new leader's first word; proposals and changes when time is up."""

    async def scene(node: Bench) -> None:
        term = await node.lead()
        await node.hear(2, AppendReply(term, True, 1))
        node.disk.held = True
        read = asyncio.create_task(node.engine.read_barrier())
        proposal = asyncio.create_task(node.engine.propose(b"x"))
        change = asyncio.create_task(node.engine.remove(3))
        await asyncio.sleep(SETTLED)
        transfer = asyncio.create_task(node.engine.transfer(2))
        await asyncio.sleep(SETTLED)
        late = asyncio.create_task(node.engine.propose(b"y"))

        await node.hear(3, Heartbeat(term + 1, 0, 1))

        assert isinstance((await asyncio.gather(read, return_exceptions=True))[0], NotLeader)
        await transfer
        for task in (proposal, change):
            assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], OutcomeUnknown)
        assert isinstance((await asyncio.gather(late, return_exceptions=True))[0], EngineError)

    bench(tmp_path, scene)


def test_a_follower_whose_disk_hangs_refuses_proposals(tmp_path: Path) -> None:
    """It takes no more messages then, but whoever asks it is not kept waiting."""

    async def scene(node: Bench) -> None:
        await node.hear(2, Heartbeat(1, 0, 1))
        node.disk.held = True
        for index in range(1, UNSAVED_MAX + 10):
            entry = data(index, 1)
            await node.hear(2, AppendRequest(1, index - 1, int(index > 1), (entry,), 0))
        assert node.engine.status.last_index < UNSAVED_MAX + 9

        with pytest.raises(NotLeader):
            await node.engine.propose(b"x", 1)

    bench(tmp_path, scene)


def test_a_proposal_that_was_never_taken_has_an_outcome(tmp_path: Path) -> None:
    """While the disk hangs a leader takes no more: who runs out of time hears that nothing was done, and what
    was asked by somebody who is gone is carried out as soon as that is possible."""

    async def scene(node: Bench) -> None:
        term = await node.lead()
        await node.hear(2, AppendReply(term, True, 1))
        node.disk.held = True
        proposals: list[asyncio.Task[object]] = []
        while node.engine.status.last_index == len(proposals) + 1:
            proposals.append(asyncio.create_task(node.engine.propose(b"%d" % len(proposals))))
            await asyncio.sleep(SETTLED)
        assert len(proposals) < 2 * UNSAVED_MAX

        gone = asyncio.create_task(node.engine.propose(b"gone"))
        await asyncio.sleep(SETTLED)
        gone.cancel()
        with pytest.raises(Overloaded, match="was not taken"):
            await node.engine.propose(b"late", 0.1)
        node.disk.held = False
        while node.engine.status.last_index < len(proposals) + 2:
            await node.disk.step() if node.disk.waits else await asyncio.sleep(SETTLED)
        await node.hear(2, AppendReply(term, True, node.engine.status.last_index))
        await asyncio.gather(*proposals)
        await asyncio.sleep(SETTLED)

        assert node.machine.words[-1] == b"gone"
        assert b"late" not in node.machine.words

    bench(tmp_path, scene)


async def test_a_replaced_proposal_may_still_be_committed() -> None:
    """That this node has put another entry in its place, uncommitted, does not settle what becomes of it."""

    proposals = Proposals()
    first: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    second: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    proposals.watch(7, 1, first)

    proposals.watch(7, 3, second)

    with pytest.raises(OutcomeUnknown):
        await first
    proposals.applied(7, 4, None, 2)
    with pytest.raises(NotLeader):
        await second
