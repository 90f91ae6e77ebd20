"""A DLedger group whose calls a test delivers, holds or drops one by one; everything else takes no time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brokerset_dledger.config import NodeConfig
from brokerset_dledger.node import Call, Node, Role
from brokerset_formats.dledger import CurrentTerm, LedgerEntry
from brokerset_protocol.bodies.dledger import DLedgerBody
from brokerset_sim.dledger_cluster import SafetyViolated, SimLedger

STEP_MS = 10

TIMES: dict[str, Any] = {  # Any: values of many types, by the name of their setting
    "heartbeat": 100,
    "vote_interval": (50, 200),
    "vote_timeout": 200,
    "push_timeout": 200,
    "push_retry": 50,
    "commit_interval": 100,
    "transfer_wait": 200,
    "transfer_timeout": 500,
}


def node_config(node_id: str = "n0", size: int = 3, **settings: Any) -> NodeConfig:
    """Settings of one of `size` members, with short times."""
    peers = tuple(f"n{number}" for number in range(size))
    return NodeConfig(group="g", node_id=node_id, peers=peers, **({"alone": True} | TIMES | settings))


class Draws(random.Random):
    """Time-outs without chance: the shortest for a member that shall be first, the longest for others."""

    first = False

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        low, high = (0, start) if stop is None else (start, stop)
        return low if self.first else high - 1


@dataclass(eq=False)
class Sent:
    """A call that left its member."""

    source: str
    call: Call
    life: int
    deadline: int
    done: bool = False

    @property
    def target(self) -> str:
        """The member that it is for."""
        return self.call.peer

    @property
    def request(self) -> DLedgerBody:
        """What it says."""
        return self.call.request


@dataclass
class Member:
    """A machine and its process; `disk` False: nothing more is synced."""

    config: NodeConfig
    node: Node
    draws: Draws
    ledger: SimLedger
    current_term: CurrentTerm = field(default_factory=CurrentTerm)
    life: int = 0
    up: bool = True
    disk: bool = True
    recovering: bool = False
    """What the disk says; members of a new group are taken to be sure that it is new."""

    log: list[DLedgerBody] = field(default_factory=list[DLedgerBody])
    """All answers that it gave."""


class DLedgerNet:
    """The group; promises are checked after every input."""

    def __init__(
        self,
        size: int = 3,
        *,
        node_class: type[Node] = Node,
        ledger_class: type[SimLedger] = SimLedger,
        **settings: Any,
    ) -> None:
        self.now = 1_000
        self.holds: Callable[[Sent], bool] = lambda sent: False
        """Which calls are held; `deliver` lets one go later."""

        self.held: list[Sent] = []
        self.cut: set[frozenset[str]] = set()
        self.acked: dict[int, LedgerEntry] = {}
        self._waiting: dict[int, tuple[str, LedgerEntry]] = {}
        self._committed: dict[int, LedgerEntry] = {}
        self._node_class = node_class
        self._queue: list[Sent] = []
        self._open: list[Sent] = []
        self._requests: dict[int, Sent] = {}
        self._request_id = 0
        self.members: dict[str, Member] = {}
        for number in range(size):
            config = node_config(f"n{number}", size, **settings)
            draws, ledger = Draws(), ledger_class()
            node = self._node(config, CurrentTerm(), ledger, draws, recovering=False)
            self.members[config.node_id] = Member(config, node, draws, ledger)

    def _node(
        self, config: NodeConfig, current: CurrentTerm, ledger: SimLedger, draws: Draws, *, recovering: bool
    ) -> Node:
        return self._node_class(
            config,
            current_term=current,
            ledger=ledger,
            random_source=draws,
            now=self.now,
            own_address=f"{config.node_id}.example:10911",
            recovering=recovering,
        )

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    # What a test does.

    def advance(self, duration: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; whether the condition came true."""
        for _ in range(0, duration, STEP_MS):
            if until():
                return True
            self.now += STEP_MS
            for sent in [each for each in self._open if each.deadline <= self.now]:
                self._finish(sent, None)
            for name, member in self.members.items():
                if member.up:
                    member.node.tick(self.now)
                    self.settle(name)
        return until()

    def leads(self, name: str) -> bool:
        """Whether this member believes that it leads."""
        return self[name].up and self[name].node.role is Role.LEADER

    def elect(self, name: str) -> None:
        """Wait until this member leads; nobody campaigns before it."""
        for other, member in self.members.items():
            member.draws.first = other == name
        for other, member in self.members.items():
            if member.up and member.node.role is Role.CANDIDATE and member.ledger.end_index < 0:
                self.restart(other)  # draws its first time-out again
        assert self.advance(3_000, lambda: self.leads(name)), f"{name} does not lead"

    def append(self, name: str, *bodies: bytes) -> list[LedgerEntry]:
        """A client appends."""
        entries = self[name].node.append(self.now, bodies)
        self._waiting |= {entry.index: (name, entry) for entry in entries}
        self.settle(name)
        return entries

    def cut_off(self, name: str, *others: str) -> None:
        """Nothing passes any more between this member and these, or all others."""
        self.cut |= {frozenset((name, other)) for other in others or self.members if other != name}

    def lose_leader(self, name: str) -> None:
        """The connection ends over which a member hears its leader."""
        self[name].node.leader_gone(self.now)
        self.settle(name)

    def stop(self, name: str, *, power: bool = False) -> None:
        """The process ends; a power failure takes what is not synced."""
        member = self[name]
        member.up = False
        member.life += 1
        if power:
            ledger = member.ledger
            del ledger.entries[max(0, ledger.synced_index - ledger.begin_index + 1) :]
            ledger.committed_index = min(ledger.committed_index, ledger.end_index)
        for sent in [each for each in self._open if each.target == name]:
            self._finish(sent, None)

    def start(self, name: str) -> None:
        """The process starts with what the disk has."""
        member = self[name]
        member.up = True
        member.node = self._node(
            member.config, member.current_term, member.ledger, member.draws, recovering=member.recovering
        )
        self.settle(name)

    def restart(self, name: str, *, power: bool = False) -> None:
        """The process ends, and another one starts at once."""
        self.stop(name, power=power)
        self.start(name)

    def replace_disk(self, name: str) -> None:
        """The process ends, and one on an empty disk starts at once."""
        self.stop(name)
        member = self[name]
        member.ledger, member.current_term, member.recovering = SimLedger(), CurrentTerm(), True
        self.start(name)

    def deliver(self, sent: Sent) -> None:
        """A held call arrives now, even if its sender waits for it no longer."""
        self.held.remove(sent)
        self._queue.append(sent)
        self.pump()

    def receive(self, name: str, request: DLedgerBody) -> None:
        """A member receives what nobody here has sent; the answer is in its `log`."""
        self._request_id += 1
        self[name].node.receive(self.now, self._request_id, request)
        self.settle(name)

    def read(self, name: str) -> None:
        """A client reads at this member, if that serves reads: it must have what was acknowledged."""
        member = self[name]
        newest = max(self.acked, default=-1)
        if member.node.may_serve(self.now) and member.ledger.committed_index < newest:
            raise SafetyViolated(f"{name} serves reads, and lacks {newest}, which was acknowledged")

    # How it runs.

    def settle(self, name: str) -> None:
        """Carry out what a member wants, and what follows from it."""
        self._carry_out(name)
        self.pump()

    def pump(self) -> None:
        """Deliver all calls that nothing holds."""
        while self._queue:
            sent = self._queue.pop(0)
            if self[sent.target].up and frozenset((sent.source, sent.target)) not in self.cut:
                self._request_id += 1
                self._requests[self._request_id] = sent
                self[sent.target].node.receive(self.now, self._request_id, sent.request)
                self._carry_out(sent.target)

    def _carry_out(self, name: str) -> None:
        member = self[name]
        while member.node.has_ready():
            ready = member.node.take_ready()
            member.current_term = ready.current_term or member.current_term
            for call in ready.calls:
                sent = Sent(name, call, member.life, self.now + call.timeout)
                self._open.append(sent)
                (self.held if self.holds(sent) else self._queue).append(sent)
            member.log += [answer.response for answer in ready.answers]
            for answer in ready.answers:
                answered = self._requests.pop(answer.request_id, None)
                if answered is not None and frozenset((answered.source, name)) not in self.cut:
                    self._finish(answered, answer.response)
        if member.disk and member.ledger.synced_index < member.ledger.end_index:
            member.ledger.sync(member.ledger.end_index)
            member.node.synced(self.now)
            self._carry_out(name)
        member.recovering = member.node.recovering
        self._check(name)

    def _finish(self, sent: Sent, response: DLedgerBody | None) -> None:
        if sent.done:
            return
        sent.done = True
        self._open.remove(sent)
        if self[sent.source].up and self[sent.source].life == sent.life:
            self[sent.source].node.answered(self.now, sent.call.call_id, response)
            self._carry_out(sent.source)

    def _check(self, name: str) -> None:
        member = self[name]
        for entry in member.ledger.entries:
            if entry.index <= member.ledger.committed_index:
                known = self._committed.setdefault(entry.index, entry)
                if known != entry:
                    raise SafetyViolated(f"{name} has committed another entry {entry.index} than others")
        for index, (leader, entry) in list(self._waiting.items()):
            node = self[leader].node
            if not self.leads(leader) or node.term != entry.term:
                del self._waiting[index]
            elif index <= self[leader].ledger.committed_index:
                del self._waiting[index]
                self.acked[index] = entry
        newest = all(member.node.term >= each.node.term for each in self.members.values())
        if self.leads(name) and newest:
            for index, entry in self.acked.items():
                kept = index >= member.ledger.begin_index
                if kept and (not member.ledger.has(index) or member.ledger.entry(index) != entry):
                    raise SafetyViolated(f"{name} leads without entry {index}, which was acknowledged")
