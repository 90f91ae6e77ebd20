"""Who was heard when and on which connection, who must be asked, and who counts as alive, dead or unknown.

Each controller keeps its own table. Times are seconds of a clock that never goes back. A replica that falls
silent, or whose connection closes, is *suspected*: it counts as unknown until somebody has asked it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

TIMEOUT_MS_DEFAULT = 10_000
"""Silence after which a broker is suspected that did not say how long (Java's default)."""

TIMEOUT_MS_MAX = 600_000
"""Longest silence that a broker can ask for."""

PRIORITY_DEFAULT = 0x7FFF_FFFF
"""Election priority of brokers that send none (Java's default): the last."""

RECORDS_MAX = 100_000
"""Replicas that the table holds; heartbeats of more are dropped."""

QUESTION_SECONDS_MAX = 30.0
"""A question that nobody answered for so long is forgotten, and may be asked again."""


class Standing(Enum):
    """What one controller knows about a replica's process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """Never heard, or suspected and not asked yet: no reason to elect somebody else."""


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """One replica, whatever its address."""

    broker_name: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat, a registration or the answer to a question says."""

    address: str
    nonce: str | None = None
    """Start nonce of the process; None for Java's."""

    epoch: int = -1
    max_offset: int = -1
    """End of the commit log; -1 when it was not told."""

    confirm_offset: int = -1
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    priority: int = PRIORITY_DEFAULT


@dataclass(frozen=True, slots=True)
class LiveReplica:
    """The last that was heard of a replica; it may be dead by now."""

    address: str
    nonce: str | None
    epoch: int
    max_offset: int
    confirm_offset: int
    priority: int
    heard_at: float
    """Seconds on the clock of the table."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """A look at one group's replicas at one moment."""

    standings: Mapping[int, Standing] = field(default_factory=dict)
    lives: Mapping[int, LiveReplica] = field(default_factory=dict)

    def standing(self, broker_id: int) -> Standing:
        """Whether the replica is alive, as far as is known."""
        return self.standings.get(broker_id, Standing.UNKNOWN)

    def alive(self, broker_id: int) -> bool:
        """Whether the replica is known to be alive."""
        return self.standings.get(broker_id) is Standing.ALIVE


@dataclass(frozen=True, slots=True)
class Question:
    """Ask the replica at this address whether it lives; hand the same object to `Liveness.answered`."""

    key: ReplicaKey
    address: str
    number: int = 0
    """Tells questions to the same replica apart, so that a late answer is not taken for another's."""


class _State(Enum):
    HEARD = "heard"
    SUSPECTED = "suspected"
    DEAD = "dead"


@dataclass(slots=True)
class _Record:
    beat: Beat
    connection: Hashable | None
    heard_at: float
    state: _State = _State.HEARD

    def expired(self, now: float) -> bool:
        return now - self.heard_at > self.beat.timeout_ms / 1_000

    def standing(self, now: float) -> Standing:
        if self.state is _State.DEAD:
            return Standing.DEAD
        if self.state is _State.SUSPECTED or self.expired(now):
            return Standing.UNKNOWN
        return Standing.ALIVE


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    at: float


class Liveness:
    """The table of one controller. Tell it of registered replicas only, or strangers could fill it."""

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        self._groups: dict[str, dict[int, _Record]] = {}
        self._connections: dict[Hashable, dict[ReplicaKey, None]] = {}
        self._asked: dict[ReplicaKey, _Asked] = {}
        self._records_max = records_max
        self._count = 0
        self._questions = 0

    def __len__(self) -> int:
        return self._count

    def heard(self, key: ReplicaKey, beat: Beat, connection: Hashable | None, now: float) -> bool:
        """Note a sign of life; False when the table is full. A question that is out is answered by it.

        The record follows the newest connection. Within one nonce epoch and offset only grow, so that a beat
        that was overtaken by a later one does no harm. Processes without a nonce are taken at their word
        again once they were suspected.
        """
        known = self._record(key)
        if known is None and self._count >= self._records_max:
            return False
        beat = replace(beat, timeout_ms=_bounded_timeout(beat.timeout_ms))
        if (
            known is not None
            and known.beat.nonce == beat.nonce
            and (beat.nonce is not None or known.state is _State.HEARD)
            and (beat.epoch, beat.max_offset) < (known.beat.epoch, known.beat.max_offset)
        ):
            old = known.beat
            beat = replace(
                beat, epoch=old.epoch, max_offset=old.max_offset, confirm_offset=old.confirm_offset
            )
        self._asked.pop(key, None)
        self._put(key, known, _Record(beat, connection, now))
        return True

    def closed(self, connection: Hashable, now: float) -> tuple[ReplicaKey, ...]:
        """A connection was closed: the replicas that were heard on it last are suspected from now on.

        Returns those that were alive until now.
        """
        suspected = []
        for key in self._connections.pop(connection, {}):
            record = self._record(key)
            if record is None:
                continue
            record.connection = None
            if record.state is _State.HEARD:
                record.state = _State.SUSPECTED
                suspected.append(key)
        return tuple(suspected)

    def silent(self, now: float) -> tuple[ReplicaKey, ...]:
        """Suspect the replicas that were silent for longer than they promised; returns them."""
        suspected = []
        for broker_name, records in self._groups.items():
            for broker_id, record in records.items():
                if record.state is _State.HEARD and record.expired(now):
                    record.state = _State.SUSPECTED
                    suspected.append(ReplicaKey(broker_name, broker_id))
        return tuple(suspected)

    def to_ask(self, now: float, registered: Iterable[tuple[ReplicaKey, str]]) -> tuple[Question, ...]:
        """Questions to those of the registered replicas (with their addresses) that nobody knows about.

        They count as asked from now on; each must be `answered`, else it is forgotten after
        `QUESTION_SECONDS_MAX`.
        """
        questions = []
        for key, address in registered:
            record = self._record(key)
            if record is not None and record.standing(now) is not Standing.UNKNOWN:
                continue
            asked = self._asked.get(key)
            if asked is not None and now - asked.at <= QUESTION_SECONDS_MAX:
                continue
            self._questions += 1
            self._asked[key] = _Asked(self._questions, now)
            questions.append(Question(key, address, self._questions))
        return tuple(questions)

    def answered(self, question: Question, alive: bool, now: float, beat: Beat | None = None) -> bool:
        """Note a question's outcome. False when it came too late: the replica was heard meanwhile.

        `beat` is what the replica said about itself, if it said anything. Without it, a replica that lives
        keeps what is known of its log.
        """
        asked = self._asked.get(question.key)
        if asked is None or asked.number != question.number:
            return False
        del self._asked[question.key]
        known = self._record(question.key)
        if alive:
            if beat is None:
                beat = known.beat if known is not None else Beat(question.address)
            return self.heard(question.key, beat, known.connection if known is not None else None, now)
        return self.found_dead(question.key, question.address, now)

    def withdraw(self, question: Question) -> None:
        """Take a question back whose outcome says nothing; the replica may be asked again."""
        asked = self._asked.get(question.key)
        if asked is not None and asked.number == question.number:
            del self._asked[question.key]

    def found_dead(self, key: ReplicaKey, address: str, now: float) -> bool:
        """Note that a replica is dead, whatever was known; False when the table is full.

        What it told of its log stays: its next process may come with a shorter one.
        """
        self._asked.pop(key, None)
        known = self._record(key)
        if known is not None:
            known.state = _State.DEAD
            return True
        if self._count >= self._records_max:
            return False
        self._put(key, None, _Record(Beat(address), None, now, _State.DEAD))
        return True

    def forget(self, key: ReplicaKey) -> None:
        """Drop everything about a replica: it was cleaned, or its process replaced."""
        self._asked.pop(key, None)
        record = self._record(key)
        if record is None:
            return
        self._unbind(key, record)
        records = self._groups[key.broker_name]
        del records[key.broker_id]
        if not records:
            del self._groups[key.broker_name]
        self._count -= 1

    def view(self, broker_name: str, now: float) -> LiveView:
        """What is known now about a group's replicas."""
        records = self._groups.get(broker_name, {})
        return LiveView(
            {broker_id: record.standing(now) for broker_id, record in records.items()},
            {
                broker_id: LiveReplica(
                    record.beat.address,
                    record.beat.nonce,
                    record.beat.epoch,
                    record.beat.max_offset,
                    record.beat.confirm_offset,
                    record.beat.priority,
                    record.heard_at,
                )
                for broker_id, record in records.items()
            },
        )

    def _record(self, key: ReplicaKey) -> _Record | None:
        return self._groups.get(key.broker_name, {}).get(key.broker_id)

    def _put(self, key: ReplicaKey, known: _Record | None, record: _Record) -> None:
        if known is None:
            self._count += 1
        elif known.connection != record.connection:
            self._unbind(key, known)
        if record.connection is not None:
            self._connections.setdefault(record.connection, {})[key] = None
        self._groups.setdefault(key.broker_name, {})[key.broker_id] = record

    def _unbind(self, key: ReplicaKey, record: _Record) -> None:
        keys = self._connections.get(record.connection)
        if record.connection is None or keys is None:
            return
        keys.pop(key, None)
        if not keys:
            del self._connections[record.connection]


def _bounded_timeout(timeout_ms: int) -> int:
    return min(timeout_ms, TIMEOUT_MS_MAX) if timeout_ms > 0 else TIMEOUT_MS_DEFAULT
