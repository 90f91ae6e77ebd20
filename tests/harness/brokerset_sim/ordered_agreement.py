"""A model of the controllers' consensus: one agreed log, and engines that may be mistaken about who leads.

It stands in for `RaftEngine`, which has worlds of its own, so that a run costs little. What users of an
engine can see is kept: a proposal whose outcome was not seen may still be applied, also under the next
leader; a deposed leader goes on believing in itself, and can neither commit nor pass a read barrier; a
new leader has applied everything before it leads; followers apply later, and a node that starts again
may begin with a snapshot.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from brokerset_controller.machine import ReplicasMachine
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.engine import EngineStatus, NotLeader, OutcomeUnknown, Overloaded, Role
from brokerset_sim.network import Network
from brokerset_sim.ordered_time import RatedProcess, Wire

PROPOSE_SECONDS: Final = 3.0
"""How long a proposal or a barrier waits when its user names no time."""

WAITING_MAX: Final = 1_000
"""Proposals and barriers of a node; one more is refused."""

RETRY_SECONDS: Final = 0.05
"""Between two tries to reach a majority."""

LEADERLESS_SECONDS: Final = 0.8
"""How long a leader must not be heard before another is elected."""

CHECK_SECONDS: Final = 0.2
SNAPSHOT_CHANCE: Final = 0.5
"""Of a node that starts again: to begin with a snapshot, not with the first entry."""


@dataclass(slots=True, eq=False)
class Proposal:
    """An entry that its leader has, and perhaps others."""

    data: bytes
    outcome: asyncio.Future[object] | None
    known: bool = False
    """Whether another node has it, so that a later leader may."""


@dataclass(slots=True)
class _Asked:
    """Barriers and proposals of one node that wait."""

    futures: dict[asyncio.Future[object], None] = field(default_factory=dict)

    def fail(self) -> None:
        """Leadership was lost."""
        for future in list(self.futures):
            if not future.done():
                future.set_exception(OutcomeUnknown("leadership was lost"))


class ModelEngine:
    """One node. Implements `brokerset_raft.engine.Engine` as far as services use it."""

    def __init__(
        self,
        agreement: Agreement,
        node_id: int,
        process: RatedProcess,
        machine: ReplicasMachine,
        on_change: Callable[[EngineStatus], object],
    ) -> None:
        self.agreement = agreement
        self.node_id = node_id
        self.process = process
        self.machine = machine
        self.applied = 0
        """Entries that the machine has."""

        self.term = 0
        self.leader_id: int | None = None
        self.leading = False
        self.tail: list[Proposal] = []
        """Of this leadership, not committed as far as anybody knows."""

        self._asked = _Asked()
        self._on_change = on_change

    @property
    def status(self) -> EngineStatus:
        """What this node believes."""
        last = len(self.agreement.committed)
        return EngineStatus(
            node_id=self.node_id,
            role=Role.LEADER if self.leading else Role.FOLLOWER,
            term=self.term,
            leader_id=self.leader_id,
            leading=self.leading,
            last_index=last,
            commit_index=self.applied,
            applied_index=self.applied,
            snapshot_index=0,
            configuration=self.agreement.configuration,
            match_indexes={},
        )

    async def propose(self, data: bytes, timeout: float | None = None) -> object:
        """As `Engine.propose`."""
        future = self._ask()
        proposal = Proposal(data, future)
        self.tail.append(proposal)
        self.agreement.later(self.agreement.commit_delay(), self.agreement.replicate, self, proposal)
        return await self._outcome(future, timeout)

    async def read_barrier(self, timeout: float | None = None) -> None:
        """As `Engine.read_barrier`."""
        future = self._ask()
        self.agreement.later(self.agreement.delay(), self.agreement.confirm_leadership, self, future)
        await self._outcome(future, timeout)

    def _ask(self) -> asyncio.Future[object]:
        if not self.leading:
            raise NotLeader(self.leader_id)
        if len(self._asked.futures) >= WAITING_MAX:
            raise Overloaded("too many proposals wait")
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._asked.futures[future] = None
        future.add_done_callback(lambda done: self._asked.futures.pop(done, None))
        return future

    async def _outcome(self, future: asyncio.Future[object], timeout: float | None) -> object:
        try:
            async with asyncio.timeout(PROPOSE_SECONDS if timeout is None else timeout):
                return await asyncio.shield(future)
        except TimeoutError:
            raise OutcomeUnknown("the time was up") from None
        finally:
            future.cancel()

    def apply_to(self, index: int) -> None:
        """Apply what was committed, up to so many entries."""
        committed = self.agreement.committed
        while self.applied < min(index, len(committed)):
            data = committed[self.applied]
            self.applied += 1
            if data:
                self.machine.apply(self.applied, data)

    def hear(self, term: int, leader_id: int) -> None:
        """A newer leader was heard of."""
        if term <= self.term:
            return
        self.term, self.leader_id = term, leader_id
        if self.leading:
            self.leading = False
            self.tail.clear()
            self._asked.fail()
        self._on_change(self.status)

    def lead(self, term: int) -> None:
        """It was elected; everything committed is applied first."""
        if term < self.agreement.term or not self.process.alive:
            return
        self._asked.fail()
        self.tail.clear()
        self.term, self.leader_id = term, self.node_id
        self.apply_to(len(self.agreement.committed))
        self.leading = True
        self._on_change(self.status)


class Agreement:
    """Everything that is agreed on, and who may add to it."""

    def __init__(
        self, wire: Wire, network: Network, dice: random.Random, note: Callable[..., None], size: int
    ) -> None:
        self.committed: list[bytes] = []
        """An empty one is the first entry of a leadership."""

        self.head = ReplicasMachine()
        """What all of them amount to."""

        self.term = 0
        self.leader: ModelEngine | None = None
        self.engines: dict[int, ModelEngine] = {}
        """By node; of processes that live."""

        self.stall = 0.0
        """Most seconds that a commit takes besides; for faults."""

        self.elect_next = False
        """Another one is elected when an entry is known to others, and not committed; for faults."""

        self.elections = 0
        self.kept = 0
        """Entries of a deposed leader that the next one committed."""

        self.size = size
        self.configuration = Configuration(tuple(Member(i, f"c{i}:9877", f"c{i}:9878") for i in range(size)))
        self._wire = wire
        self._network = network
        self._dice = dice
        self._note = note
        self._unheard_since: float | None = None

    # -- time ---------------------------------------------------------------------------------------------

    def later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        """Call back by the world's time."""
        self._wire.call_later(delay, callback, *args)

    def delay(self) -> float:
        """Of one exchange with the others."""
        return 0.001 + self._dice.random() * 0.02

    def commit_delay(self) -> float:
        """Of a commit."""
        slow = self._dice.random() * self.stall if self.stall and self._dice.random() < 0.3 else 0.0
        return self.delay() + slow

    # -- nodes --------------------------------------------------------------------------------------------

    def start(self, engine: ModelEngine) -> None:
        """A process begins: with a snapshot, or from the beginning."""
        self.engines[engine.node_id] = engine
        engine.term = self.term
        if self._dice.random() < SNAPSHOT_CHANCE:
            engine.machine.restore(self.head.snapshot())
            engine.applied = len(self.committed)

    def gone(self, engine: ModelEngine) -> None:
        """Its process was killed."""
        if self.engines.get(engine.node_id) is engine:
            del self.engines[engine.node_id]

    def reaches(self, one: ModelEngine, other: ModelEngine) -> bool:
        """Whether packets go both ways, and both answer."""
        hosts = one.process.host, other.process.host
        return (
            self._awake(one)
            and self._awake(other)
            and self._network.open(*hosts)
            and self._network.open(hosts[1], hosts[0])
        )

    def has_majority(self, engine: ModelEngine) -> bool:
        """Whether it reaches more than half, itself included."""
        peers = [each for each in self.engines.values() if each is not engine]
        reached = self._awake(engine) + sum(self.reaches(engine, each) for each in peers)
        return reached * 2 > self.size

    @staticmethod
    def _awake(engine: ModelEngine) -> bool:
        return engine.process.alive and not engine.process.paused

    # -- the log ------------------------------------------------------------------------------------------

    def replicate(self, engine: ModelEngine, proposal: Proposal) -> None:
        """A leader tries to commit what it has up to an entry."""
        if proposal not in engine.tail or not engine.process.alive:
            return
        index = engine.tail.index(proposal)
        if any(self.reaches(engine, each) for each in self.engines.values() if each is not engine):
            for each in engine.tail[: index + 1]:
                each.known = True
            if self.elect_next and engine is self.leader:
                self.elect_next = False
                self.elect(other=True)
        if engine is self.leader and engine.term == self.term and self.has_majority(engine):
            for each in engine.tail[: index + 1]:
                self.commit(each, engine)
            del engine.tail[: index + 1]
        else:
            self.later(RETRY_SECONDS, self.replicate, engine, proposal)

    def commit(self, proposal: Proposal, engine: ModelEngine | None) -> None:
        """An entry is agreed on; `engine` is the one that leads, and applies it now."""
        self.committed.append(proposal.data)
        index = len(self.committed)
        if proposal.data:
            self.head.apply(index, proposal.data)
        self._note("agreed", index, proposal.data.decode(errors="replace"))
        outcome: object = None
        if engine is not None and engine.applied == index - 1:
            engine.applied = index
            if proposal.data:
                outcome = engine.process.call(engine.machine.apply, index, proposal.data)
            future = proposal.outcome
            if future is not None and not future.done():
                future.set_result(outcome)
        for each in list(self.engines.values()):
            if each is not engine:
                self.later(self.delay() * 2, self._follow, each)

    def _follow(self, engine: ModelEngine) -> None:
        leader = self.leader
        if leader is None or not engine.process.alive:
            return
        if engine is not leader and self.reaches(leader, engine):
            engine.process.soon(engine.hear, self.term, leader.node_id)
            engine.process.soon(engine.apply_to, len(self.committed))

    def confirm_leadership(self, engine: ModelEngine, future: asyncio.Future[object]) -> None:
        """A barrier: a majority says that nobody else leads."""
        if future.done() or not engine.process.alive:
            return
        if engine is self.leader and engine.term == self.term and self.has_majority(engine):
            engine.process.call(engine.apply_to, len(self.committed))
            future.set_result(None)
        else:
            self.later(RETRY_SECONDS, self.confirm_leadership, engine, future)

    def append(self, data: bytes) -> bool:
        """Commit an entry on behalf of whatever else controllers do; False if nobody leads."""
        leader = self.leader
        if leader is None or not leader.leading or leader.term != self.term or not self.has_majority(leader):
            return False
        for each in leader.tail:
            self.commit(each, leader)
        leader.tail.clear()
        self.commit(Proposal(data, None), leader)
        return True

    # -- leaders ------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Elect somebody else when the leader is not heard, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            leader, now = self.leader, self._wire.time()
            if (
                leader is not None
                and self.engines.get(leader.node_id) is leader
                and self.has_majority(leader)
            ):
                self._unheard_since = None
            elif self._unheard_since is None:
                self._unheard_since = now
            elif now - self._unheard_since >= LEADERLESS_SECONDS * (0.5 + self._dice.random()):
                self.elect()
            for each in list(self.engines.values()):
                self._follow(each)

    def elect(self, *, other: bool = False) -> None:
        """Let somebody lead who can; with `other` not the present leader."""
        candidates = [
            each
            for _, each in sorted(self.engines.items())
            if self.has_majority(each) and not (other and each is self.leader)
        ]
        if not candidates:
            return
        self._unheard_since = None
        before, chosen = self.leader, self._dice.choice(candidates)
        self.term += 1
        self.elections += 1
        kept: list[Proposal] = []
        if before is not None:
            kept = self._survivors(before, chosen)
        self.leader = chosen
        self._note("elected", chosen.node_id, self.term, len(kept))
        for each in kept:
            self.kept += 1
            self.commit(Proposal(each.data, None), None)
        self.commit(Proposal(b"", None), None)
        self.later(self.delay(), self._begin, chosen, self.term)

    def _survivors(self, before: ModelEngine, chosen: ModelEngine) -> list[Proposal]:
        if chosen is before:
            return list(before.tail)
        known = 0
        while known < len(before.tail) and before.tail[known].known:
            known += 1
        return before.tail[: self._dice.randint(0, known)]

    def _begin(self, engine: ModelEngine, term: int) -> None:
        engine.process.soon(engine.lead, term)
