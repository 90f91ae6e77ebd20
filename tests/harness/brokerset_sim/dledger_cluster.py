"""Members of a DLedger group on simulated disks, clocks and a bad network, checked after every step."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from brokerset_dledger.config import NodeConfig
from brokerset_dledger.ledger import LedgerRefused
from brokerset_dledger.node import Node, Ready, Role
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, CurrentTerm, LedgerEntry, LedgerRun, RunUnits
from brokerset_protocol.bodies.dledger import (
    DLedgerBody,
    DLedgerCode,
    HeartbeatRequest,
    PushRequest,
    PushResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

FILE_SIZE = 1_024
"""Bytes of a data file: an entry that does not fit begins the next one."""

HEAL_MS_MAX = 30_000
"""After the last fault, all members must agree on something new within this time."""

RECORD_OF_TERM = b"term"


class SafetyViolated(AssertionError):
    """Something happened that must never happen; the text says what, and the seed."""


class NoProgress(AssertionError):
    """All faults are over, and still nothing moves."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad it is: probabilities for each message or each 100 ms, and longest times in milliseconds."""

    loss: float = 0.0
    delay_max: int = 1
    late: float = 0.0
    """For each message: that it takes up to a second longer."""

    kill: float = 0.0
    power: float = 0.0
    wipe: float = 0.0
    """For each 100 ms: a member loses its disk, unless a quorum would have lost it since it had all."""

    down_max: int = 1_000
    crash_at_vote: float = 0.0
    """For each change of term or vote: a crash just after it was shown."""

    crash_at_ack: float = 0.0
    """For each acknowledged push: a power failure just after it."""

    cut: float = 0.0
    cut_max: int = 1_000
    sync_max: int = 1
    pause: float = 0.0
    pause_max: int = 1_000
    drift: float = 0.0
    transfer: float = 0.0
    retention: float = 0.0
    broken: float = 0.0
    """For each 100 ms: that a member's connection to its leader ends, although the leader lives."""


def draw_faults(source: random.Random) -> Faults:
    """Faults of a seed: some runs have nearly none of a kind, others very many."""

    def some(most: float) -> float:
        return source.choice((0.0, most / 5, most))

    return Faults(
        loss=some(0.2),
        delay_max=source.choice((1, 5, 30, 120)),
        late=some(0.02),
        kill=some(0.02),
        power=some(0.02),
        wipe=some(0.02),
        down_max=source.choice((50, 1_000, 4_000)),
        crash_at_vote=some(0.2),
        crash_at_ack=some(0.01),
        cut=some(0.04),
        cut_max=source.choice((300, 3_000)),
        sync_max=source.choice((1, 10, 200)),
        pause=some(0.02),
        pause_max=source.choice((300, 2_000)),
        drift=some(0.03),
        transfer=some(0.03),
        retention=some(0.02),
        broken=some(0.05),
    )


class SimLedger:
    """A log as the store keeps it: what is written survives a kill, what is synced a power failure, too."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self.synced_index = -1
        self.committed_index = -1
        self.full = False

    @property
    def begin_index(self) -> int:
        return self.entries[0].index if self.entries else -1

    @property
    def end_index(self) -> int:
        return self.entries[-1].index if self.entries else -1

    @property
    def end_term(self) -> int:
        return self.entries[-1].term if self.entries else -1

    def has(self, index: int) -> bool:
        return bool(self.entries) and self.begin_index <= index <= self.end_index

    def entry(self, index: int) -> LedgerEntry:
        if not self.has(index):
            code = DLedgerCode.INDEX_LESS_THAN_LOCAL_BEGIN if index >= 0 else DLedgerCode.INDEX_OUT_OF_RANGE
            raise LedgerRefused(code, f"no entry {index} in {self.begin_index}..{self.end_index}")
        return self.entries[index - self.begin_index]

    def position_of(self, size: int) -> int:
        """Where the next entry of so many bytes begins."""
        if not self.entries:
            return 0
        end = self.entries[-1].position + self.entries[-1].size
        free = -end % FILE_SIZE or FILE_SIZE
        return end + free if size + 8 > free else end

    def append(self, entry: LedgerEntry) -> None:
        if self.full:
            raise LedgerRefused(DLedgerCode.DISK_FULL, "the disk is full")
        if self.entries and entry.index != self.end_index + 1:
            raise LedgerRefused(DLedgerCode.INCONSISTENT_INDEX, f"{entry.index} after {self.end_index}")
        if entry.position != self.position_of(entry.size):
            raise LedgerRefused(
                DLedgerCode.DISK_ERROR, f"{entry.position} is not {self.position_of(entry.size)}"
            )
        self.entries.append(entry)

    def position(self, index: int) -> int:
        return self.entry(index).position

    def run(self, first: int, last: int, bytes_max: int) -> LedgerRun:
        entry = self.entry(first)
        data = [entry.encode()]
        end = entry.position + entry.size
        for index in range(first + 1, last + 1):
            following = self.entry(index)
            stays = following.position == end and end // FILE_SIZE == entry.position // FILE_SIZE
            if not stays or end + following.size - entry.position > bytes_max:
                break
            data.append(following.encode())
            end += following.size
        return LedgerRun(first, len(data), entry.position, b"".join(data))

    def append_run(self, run: LedgerRun, units: RunUnits) -> None:
        if self.full:
            raise LedgerRefused(DLedgerCode.DISK_FULL, "the disk is full")
        kept = len(self.entries)
        try:
            for entry in run.entries():
                self.append(entry)
        except LedgerRefused:
            del self.entries[kept:]
            raise

    def append_body(self, term: int, body: bytes) -> LedgerEntry:
        position = self.position_of(ENTRY_HEAD_SIZE + len(body))
        entry = LedgerEntry(self.end_index + 1, term, position, body)
        self.append(entry)
        return entry

    def begin_term(self, term: int) -> LedgerEntry:
        return self.append_body(term, RECORD_OF_TERM)

    def truncate(self, entry: LedgerEntry) -> None:
        """At once on the disk, as the store does it."""
        if self.has(entry.index) and self.entry(entry.index) == entry:
            del self.entries[entry.index - self.begin_index + 1 :]
        else:
            keep = bisect_left(self.entries, entry.index, key=lambda each: each.index)
            del self.entries[keep:]
            self.committed_index = min(self.committed_index, entry.index - 1)
            follows = self.end_index == entry.index - 1 <= self.committed_index
            if not follows or self.position_of(entry.size) != entry.position:
                self.entries.clear()
            self.committed_index = min(self.committed_index, self.end_index)
            self.entries.append(entry)
        self.committed_index = min(self.committed_index, self.end_index)
        self.synced_index = self.end_index
        self.committed_index = min(self.committed_index, self.end_index)

    def commit(self, index: int) -> None:
        self.committed_index = max(self.committed_index, min(index, self.end_index))

    def sync(self, index: int) -> None:
        self.synced_index = max(self.synced_index, min(index, self.end_index))

    def lose_power(self, source: random.Random) -> None:
        """Of what is not synced any part may be gone; which is committed is known as of some time ago."""
        survives = source.randint(self.synced_index, max(self.synced_index, self.end_index))
        del self.entries[max(0, survives - self.begin_index + 1) :]
        self.synced_index = self.end_index
        known = min(self.committed_index, self.end_index)
        self.committed_index = source.randint(min(self.begin_index, known), known)

    def drop_first(self, count: int) -> None:
        """Retention."""
        del self.entries[: min(count, len(self.entries) - 1)]


@dataclass
class Host:
    """A machine: what its disk has, its clock, and the process on it, if one runs."""

    node_id: str
    config: NodeConfig
    rate: float
    offset: int
    ledger: SimLedger = field(default_factory=SimLedger)
    current_term: CurrentTerm = field(default_factory=CurrentTerm)
    recovering: bool = True
    """What the disk says: a new one may have been that of a member."""

    disk: int = 0
    """Counts disks: a vote is forgotten with one."""

    node: Node | None = None
    life: int = 0
    """Counts processes: what an older one began has no effect."""

    paused_until: float = 0.0
    checked_index: int = -1
    """Committed entries up to here were compared with those of others; starts again with the process."""

    appended: dict[int, int] = field(default_factory=dict[int, int])
    """Index -> term of what clients wait for."""


class DLedgerCluster:
    """A group of `size` members; `run` makes trouble, `heal` ends it and asks for progress."""

    def __init__(
        self,
        seed: int,
        *,
        size: int | None = None,
        alone: bool = True,
        faults: Faults | None = None,
        node_class: type[Node] = Node,
        sync_before_ack: bool | None = None,
    ) -> None:
        """`sync_before_ack` is drawn, if not given, in a group of ours alone: only that bears lost pages."""
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = faults or draw_faults(self.random)
        self.node_class = node_class
        self.size = size or self.random.choice((1, 3, 3, 3, 5))
        self.now = 0.0
        self.acked: dict[int, LedgerEntry] = {}
        self.committed: dict[int, LedgerEntry] = {}
        self.leaders: dict[int, str] = {}
        self.reads = 0
        self.steps = 0
        self._load_pause_max = self.random.choice((30, 60, 300))
        self._reply_of: dict[int, Callable[[DLedgerBody], None]] = {}
        self.wiped = 0
        """Disks that were lost."""

        self._votes: dict[tuple[int, str, int], str] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._cuts: dict[tuple[str, str], float] = {}
        self._request_id = 0
        self._healing = False
        peers = tuple(f"n{number}" for number in range(self.size))
        promise_heartbeats = self.random.choice((None, 2))
        push_bytes_max = self.random.choice((300, 800))
        if sync_before_ack is None:
            sync_before_ack = self.random.random() < 0.7 or not alone
        self.hosts = {
            peer: Host(
                peer,
                NodeConfig(
                    group="g",
                    node_id=peer,
                    peers=peers,
                    alone=alone,
                    heartbeat=100 if alone else 400,
                    promise_heartbeats=promise_heartbeats,
                    vote_interval=(50, 200) if alone else (300, 1_000),
                    vote_timeout=200 if alone else 2_000,
                    sync_before_ack=sync_before_ack,
                    push_timeout=200,
                    push_retry=50,
                    push_bytes_max=push_bytes_max,
                    in_flight_max=8,
                    waiting_pushes_max=4,
                    commit_interval=100,
                    uncommitted_max=40,
                    transfer_lag_max=20,
                    transfer_wait=200,
                    transfer_timeout=500,
                ),
                rate=1 + self.random.uniform(-1, 1) * self.faults.drift,
                offset=self.random.randrange(100_000),
            )
            for peer in peers
        }
        for host in self.hosts.values():
            self._start(host)
        self._after(10, self._load)
        self._after(100, self._trouble)

    # Time.

    def _after(self, delay: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, action))

    def run(self, duration: int) -> None:
        """Let so many milliseconds pass."""
        end = self.now + duration
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            self.steps += 1
            action()
        self.now = end

    def heal(self) -> None:
        """End all faults; every member must soon have a new committed entry."""
        self.faults = Faults()
        self._healing = True
        self._cuts.clear()
        begun = self.now
        for host in self.hosts.values():
            host.ledger.full = False
            if host.node is None:
                self._start(host)
        high = max(self.committed, default=-1)
        while self.now < begun + HEAL_MS_MAX:
            self.run(200)
            ends = {host.ledger.committed_index for host in self.hosts.values()}
            if min(ends) > high + 3:
                return
        raise NoProgress(f"seed {self.seed}: {self._describe()}")

    def _describe(self) -> str:
        return "; ".join(
            f"{host.node_id} {host.node.role if host.node else 'down'} term {host.current_term.term} "
            f"{host.ledger.begin_index}..{host.ledger.end_index} committed {host.ledger.committed_index}"
            for host in self.hosts.values()
        )

    # Processes.

    def _clock(self, host: Host) -> int:
        return host.offset + int(self.now * host.rate)

    def _start(self, host: Host) -> None:
        host.life += 1
        host.appended = {}
        host.checked_index = -1
        host.ledger.synced_index = host.ledger.end_index  # a start syncs what it finds
        host.node = self.node_class(
            host.config,
            current_term=host.current_term,
            ledger=host.ledger,
            random_source=random.Random(self.random.random()),
            now=self._clock(host),
            recovering=host.recovering,
        )
        self._settle(host)
        self._tick(host, host.life)

    def _stop(self, host: Host, *, power: bool) -> None:
        host.node = None
        host.life += 1
        if power:
            host.ledger.lose_power(self.random)
            host.recovering |= not host.config.sync_before_ack
        for other in self.hosts.values():
            if other.node is not None and other.node.leader_id == host.node_id:
                self._after(self._delay(), partial(self._lose_leader, other, other.life))
        self._after(
            self.random.randint(1, self.faults.down_max), lambda: self._start(host) if not host.node else None
        )

    def _lose_leader(self, host: Host, life: int) -> None:
        self._when_awake(host, life, lambda node: node.leader_gone(self._clock(host)))

    def _tick(self, host: Host, life: int) -> None:
        if host.life != life or host.node is None:
            return
        self._when_awake(host, life, lambda node: node.tick(self._clock(host)))
        wait = max(1, min(50, host.node.deadline() - self._clock(host))) if host.node is not None else 50
        self._after(wait, lambda: self._tick(host, life))

    def _when_awake(self, host: Host, life: int, action: Callable[[Node], None]) -> None:
        """Do this in the process, once it is not paused; not at all if it has ended."""
        if host.life != life or host.node is None:
            return
        if host.paused_until > self.now:
            self._after(host.paused_until - self.now, lambda: self._when_awake(host, life, action))
            return
        action(host.node)
        self._settle(host)

    def _settle(self, host: Host) -> None:
        """Carry out what the member wants, then check everything."""
        node = host.node
        assert node is not None, "a process that has ended does nothing"
        while node.has_ready():
            self._carry_out(host, node.take_ready())
            if host.node is None:
                return
        if host.ledger.synced_index < host.ledger.end_index:
            index, life = host.ledger.end_index, host.life
            self._after(self.random.randint(1, self.faults.sync_max), lambda: self._synced(host, life, index))
        if not node.recovering:
            host.recovering = False
        self._acknowledge(host)
        self._check(host)

    def _synced(self, host: Host, life: int, index: int) -> None:
        if host.life == life and host.ledger.synced_index < index <= host.ledger.end_index:
            host.ledger.sync(index)
            self._when_awake(host, life, lambda node: node.synced(self._clock(host)))

    def _carry_out(self, host: Host, ready: Ready) -> None:
        crash = False
        if ready.current_term is not None:
            host.current_term = ready.current_term
            crash = self.random.random() < self.faults.crash_at_vote
        life = host.life
        for call in ready.calls:
            self._sent(host, call.request)
            self._deliver(host, life, call.call_id, self.hosts[call.peer], call.request, call.timeout)
        for answer in ready.answers:
            self._answer(host, answer.request_id, answer.response)
            acked = isinstance(answer.response, PushResponse) and answer.response.succeeded
            crash |= acked and self.random.random() < self.faults.crash_at_ack
        if crash:
            self._stop(host, power=self._may_lose_power(host))

    # The network.

    def _lost(self, source: str, target: str) -> bool:
        return self._cuts.get((source, target), 0.0) > self.now or self.random.random() < self.faults.loss

    def _delay(self) -> float:
        late = 1_000 * self.random.random() if self.random.random() < self.faults.late else 0.0
        return self.random.uniform(0.1, self.faults.delay_max) + late

    def _deliver(
        self, host: Host, life: int, call_id: int, target: Host, request: DLedgerBody, timeout: int
    ) -> None:
        done = [False]

        def finish(response: DLedgerBody | None) -> None:
            if not done[0]:
                done[0] = True
                self._when_awake(host, life, lambda node: node.answered(self._clock(host), call_id, response))

        self._after(timeout, lambda: finish(None))
        if self._lost(host.node_id, target.node_id):
            return
        self._request_id += 1
        request_id = self._request_id
        self._reply_of[request_id] = lambda response: (
            None
            if self._lost(target.node_id, host.node_id)
            else self._after(self._delay(), lambda: finish(response))
        )
        target_life = target.life
        self._after(
            self._delay(),
            lambda: self._when_awake(
                target, target_life, lambda node: node.receive(self._clock(target), request_id, request)
            ),
        )

    def _answer(self, host: Host, request_id: int, response: DLedgerBody) -> None:
        if isinstance(response, VoteResponse) and response.vote_result is VoteResult.ACCEPT:
            self._voted(host, response)
        reply = self._reply_of.pop(request_id, None)
        if reply is not None:
            reply(response)

    # What happens to it.

    def _load(self) -> None:
        for host in self.hosts.values():
            node = host.node
            if node is None or node.role is not Role.LEADER or host.paused_until > self.now:
                continue
            body = f"{self.now:.3f}".encode() * self.random.randint(1, 30)
            try:
                for entry in node.append(self._clock(host), [body]):
                    host.appended[entry.index] = entry.term
            except LedgerRefused:
                pass
            self._settle(host)
            self._read(host)
        self._after(self.random.uniform(5, self._load_pause_max), self._load)

    def _trouble(self) -> None:
        source, faults = self.random, self.faults
        for host in self.hosts.values():
            if host.node is None:
                continue
            if source.random() < faults.kill:
                self._stop(host, power=False)
            elif source.random() < faults.power and self._may_lose_power(host):
                self._stop(host, power=True)
            elif source.random() < faults.wipe and self._may_lose(host):
                host.ledger, host.current_term, host.recovering = SimLedger(), CurrentTerm(), True
                host.disk += 1
                self.wiped += 1
                self._stop(host, power=False)
            elif source.random() < faults.pause:
                host.paused_until = self.now + source.randint(1, faults.pause_max)
                self._after(host.paused_until - self.now, partial(self._read, host))  # before its timers run
            elif source.random() < faults.transfer and host.node.role is Role.LEADER and self.size > 1:
                try:
                    host.node.transfer(self._clock(host), source.choice(host.config.others))
                except LedgerRefused:
                    continue
                self._settle(host)
            elif source.random() < faults.broken:
                self._lose_leader(host, host.life)
            elif (
                source.random() < faults.retention
                and host.ledger.committed_index > host.ledger.begin_index + 10
            ):
                host.ledger.drop_first(
                    source.randint(1, host.ledger.committed_index - host.ledger.begin_index - 5)
                )
        if source.random() < faults.cut:
            ends = source.sample(sorted(self.hosts), k=min(2, self.size))
            until = self.now + source.randint(1, faults.cut_max)
            for pair in source.choice(([tuple(ends)], [tuple(ends), tuple(reversed(ends))])):
                self._cuts[pair[0], pair[-1]] = until
        self._after(100, self._trouble)

    def _may_lose_power(self, host: Host) -> bool:
        return host.config.sync_before_ack or self._may_lose(host)

    def _may_lose(self, host: Host) -> bool:
        """Whether a quorum has all that it ever had without this member, in a group of ours alone."""
        lost = {each.node_id for each in self.hosts.values() if each.recovering} | {host.node_id}
        return host.config.alone and self.size - len(lost) >= host.config.quorum

    # Promises.

    def _violated(self, what: str) -> SafetyViolated:
        return SafetyViolated(f"seed {self.seed} at {self.now:.0f} ms: {what}; {self._describe()}")

    def _sent(self, host: Host, request: DLedgerBody) -> None:
        if isinstance(request, HeartbeatRequest | PushRequest):
            known = self.leaders.setdefault(request.term, host.node_id)
            if known != host.node_id:
                raise self._violated(f"{known} and {host.node_id} lead term {request.term}")
        if isinstance(request, VoteRequest) and not request.pre_vote:
            self._vote(host, request.term, host.node_id)
        if request.term > host.current_term.term + (
            1 if isinstance(request, VoteRequest) and request.pre_vote else 0
        ):
            raise self._violated(f"{host.node_id} shows term {request.term} before it is on its disk")

    def _voted(self, host: Host, response: VoteResponse) -> None:
        if response.term == host.current_term.term and host.current_term.voted_for == response.leader_id:
            self._vote(host, response.term, response.leader_id or "")

    def _vote(self, host: Host, term: int, candidate: str) -> None:
        known = self._votes.setdefault((term, host.node_id, host.disk), candidate)
        if known != candidate:
            raise self._violated(f"{host.node_id} votes for {known} and {candidate} in term {term}")

    def _acknowledge(self, host: Host) -> None:
        """Answer clients whose entry is committed in the term in which it was appended."""
        node = host.node
        for index, term in list(host.appended.items()):
            if node is None or node.role is not Role.LEADER or node.term != term:
                host.appended.clear()
                return
            if index > host.ledger.committed_index:
                return
            del host.appended[index]
            self.acked[index] = host.ledger.entry(index) if host.ledger.has(index) else self.committed[index]
            for other in self.hosts.values():
                if other is not host:
                    self._read(other)

    def _read(self, host: Host) -> None:
        """A client reads: whatever was acknowledged before is there. Mixed groups do not promise that."""
        if host.node is None or host.paused_until > self.now or not host.config.alone:
            return
        if not host.node.may_serve(self._clock(host)):
            return
        self.reads += 1
        newest = max(self.acked, default=-1)
        if host.ledger.committed_index < newest:
            raise self._violated(f"{host.node_id} serves reads, and lacks {newest}, which was acknowledged")

    def _check(self, host: Host) -> None:
        """Committed entries are the same everywhere, permanently, and a leader has all of them."""
        ledger = host.ledger
        for index in range(max(host.checked_index + 1, ledger.begin_index), ledger.committed_index + 1):
            if not ledger.has(index):
                continue
            host.checked_index = index
            entry = ledger.entry(index)
            known = self.committed.setdefault(index, entry)
            if known != entry:
                raise self._violated(f"{host.node_id} has committed another entry {index} than others")
        if host.node is not None and host.node.role is Role.LEADER:
            last = max(self.acked, default=-1)
            newer = any(term > host.node.term for term in self.leaders)
            if last > ledger.end_index and not newer:
                raise self._violated(f"{host.node_id} leads without entry {last}, which was acknowledged")
            for index in range(max(ledger.begin_index, last - 20), last + 1):
                if index in self.acked and not newer and ledger.entry(index) != self.acked[index]:
                    raise self._violated(
                        f"{host.node_id} leads with another entry {index} than was acknowledged"
                    )
        for first, second in pairwise(ledger.entries[-4:]):
            if (
                second.term < first.term
                or second.index != first.index + 1
                or second.position <= first.position
            ):
                raise self._violated(f"{host.node_id} has a log that goes back at {second.index}")
