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

LEASE_MS_MAX = 10_000
"""Longest lease of a master. What a leader must wait for that never heard the master is bounded by it."""

LEASE_SLACK_SECONDS = 0.05
"""Clocks of two hosts need not run alike: a lease counts as ended so much later than it was given for."""

PROBE_SECONDS_MAX = 30.0
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
    append_age_ms: int | None = None
    """Since the log last took an append that was asked for; None when nothing waits."""

    all_ack: bool | None = None
    """Whether all in-sync replicas must have a message before its send is answered; None when not told."""

    lost_cache: bool = False
    """Whether it says that it lost its page cache, and that no master is known since."""

    @property
    def stuck(self) -> bool:
        """Whether the log takes nothing any more, for longer than the process may be silent."""
        return self.append_age_ms is not None and self.append_age_ms > self.timeout_ms


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

    stuck: bool = False
    """Whether its log takes no appends: it lives, but stands as dead in elections."""

    all_ack: bool | None = None
    surely_dead: bool = False
    """Whether more than silence shows that the process is gone: nobody, or another process, is at its
    address."""

    lost_cache: bool = False
    """Whether it lost its page cache, and knew no master since when it said so."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """A view of one group's replicas at one moment."""

    standings: Mapping[int, Standing] = field(default_factory=dict)
    lives: Mapping[int, LiveReplica] = field(default_factory=dict)
    lease_seconds: float = 0.0
    """How long a lease that some controller gave in the group may run yet; 0 when none can."""

    now: float = 0.0
    """When this view was taken, on the clock of `LiveReplica.heard_at`."""

    def lately(self, seconds: float) -> LiveView:
        """The same view, in which nobody is alive who was not heard in these last seconds."""
        silent = {key for key, live in self.lives.items() if self.now - live.heard_at > seconds}
        found = {
            key: Standing.UNKNOWN if standing is Standing.ALIVE and key in silent else standing
            for key, standing in self.standings.items()
        }
        return replace(self, standings=found)

    def standing(self, broker_id: int) -> Standing:
        """Whether the replica is alive, as far as is known."""
        return self.standings.get(broker_id, Standing.UNKNOWN)

    def alive(self, broker_id: int) -> bool:
        """Whether the replica is known to be alive."""
        return self.standings.get(broker_id) is Standing.ALIVE

    def stuck(self, broker_id: int) -> bool:
        """Whether the replica is alive, and says that its log takes no appends."""
        return self.alive(broker_id) and broker_id in self.lives and self.lives[broker_id].stuck

    def fit(self, broker_id: int) -> bool:
        """Whether the replica is known to be alive and can do a master's work."""
        return self.alive(broker_id) and not self.stuck(broker_id)

    def election_standing(self, broker_id: int) -> Standing:
        """What elections go by: a stuck replica is as good as dead."""
        return Standing.DEAD if self.stuck(broker_id) else self.standing(broker_id)

    def surely_dead(self, broker_id: int) -> bool:
        """Whether the replica is dead by more than silence."""
        return broker_id in self.lives and self.lives[broker_id].surely_dead


@dataclass(frozen=True, slots=True)
class Probe:
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
    surely_dead: bool = False

    def expired(self, now: float) -> bool:
        return now - self.heard_at > self.beat.timeout_ms / 1_000

    def standing(self, now: float) -> Standing:
        if self.state is _State.DEAD:
            return Standing.DEAD
        if self.state is _State.SUSPECTED or self.expired(now):
            return Standing.UNKNOWN
        return Standing.ALIVE


@dataclass(frozen=True, slots=True)
class _Granted:
    """A lease that this controller gave."""

    broker_id: int
    nonce: str
    until: float


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
        self._probes = 0
        self._led_term: int | None = None
        self._leads_since: float | None = None
        self._leases: dict[str, _Granted] = {}

    def __len__(self) -> int:
        return self._count

    def heard(
        self,
        key: ReplicaKey,
        beat: Beat,
        connection: Hashable | None,
        now: float,
        *,
        is_heartbeat: bool = True,
    ) -> bool:
        """Note a sign of life; False when the table is full. A question that is out is answered by it.

        What only heartbeats tell stays when a process is heard in another way (`is_heartbeat` false).

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
        if known is not None and not is_heartbeat and known.beat.nonce == beat.nonce:
            beat = replace(
                beat,
                timeout_ms=known.beat.timeout_ms,
                priority=known.beat.priority,
                append_age_ms=known.beat.append_age_ms,
            )
        if known is not None and known.beat.lost_cache and known.beat.nonce == beat.nonce:
            beat = replace(beat, lost_cache=True)  # what the process came without, it lacks
        if known is not None and beat.all_ack is None:
            beat = replace(beat, all_ack=known.beat.all_ack)  # the next beat tells what the new process does
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

    def to_ask(self, now: float, registered: Iterable[tuple[ReplicaKey, str]]) -> tuple[Probe, ...]:
        """Probes to those of the registered replicas (with their addresses) that nobody knows about.

        They count as asked from now on; each must be `answered`, else it is forgotten after
        `PROBE_SECONDS_MAX`.
        """
        probes = []
        for key, address in registered:
            record = self._record(key)
            if record is not None and record.standing(now) is not Standing.UNKNOWN:
                continue
            asked = self._asked.get(key)
            if asked is not None and now - asked.at <= PROBE_SECONDS_MAX:
                continue
            self._probes += 1
            self._asked[key] = _Asked(self._probes, now)
            probes.append(Probe(key, address, self._probes))
        return tuple(probes)

    def answered(
        self,
        probe: Probe,
        alive: bool,
        now: float,
        beat: Beat | None = None,
        *,
        surely: bool = False,
    ) -> bool:
        """Note a question's outcome. False when it came too late: the replica was heard meanwhile.

        `beat` is what the replica said about itself, if it said anything. Without it, a replica that lives
        keeps what is known of its log.
        """
        asked = self._asked.get(probe.key)
        if asked is None or asked.number != probe.number:
            return False
        del self._asked[probe.key]
        known = self._record(probe.key)
        if alive:
            if beat is None:
                beat = known.beat if known is not None else Beat(probe.address)
            connection = known.connection if known is not None else None
            return self.heard(probe.key, beat, connection, now, is_heartbeat=False)
        return self.found_dead(probe.key, probe.address, now, surely=surely)

    def withdraw(self, probe: Probe) -> None:
        """Take a question back whose outcome says nothing; the replica may be asked again."""
        asked = self._asked.get(probe.key)
        if asked is not None and asked.number == probe.number:
            del self._asked[probe.key]

    def found_dead(self, key: ReplicaKey, address: str, now: float, *, surely: bool = False) -> bool:
        """Note that a replica is dead, whatever was known; False when the table is full.

        `surely` says that nobody, or another process, is at its address: its lease is over then.
        What it told of its log stays: its next process may come with a shorter one.
        """
        self._asked.pop(key, None)
        known = self._record(key)
        lease = self._leases.get(key.broker_name)
        if surely and lease is not None and lease.broker_id == key.broker_id:
            del self._leases[key.broker_name]
        if known is not None:
            known.state = _State.DEAD
            known.surely_dead = surely
            return True
        if self._count >= self._records_max:
            return False
        self._put(key, None, _Record(Beat(address), None, now, _State.DEAD, surely))
        return True

    # -- leases -------------------------------------------------------------------------------------------

    def leads(self, term: int | None, now: float) -> None:
        """This controller leads in this term, or, with None, no longer. To be told before every decision.

        Who led before may have given leases until now.
        """
        if term == self._led_term:
            return
        self._led_term = term
        self._leads_since = None if term is None else now
        self._leases.clear()

    def lease_granted(self, key: ReplicaKey, nonce: str, timeout_ms: int, now: float) -> int:
        """Note a lease for the process that sent a heartbeat; returns its length in milliseconds.

        It is no longer than the silence that makes a controller look for another master.
        """
        length = min(_bounded_timeout(timeout_ms), LEASE_MS_MAX)
        self._leases[key.broker_name] = _Granted(key.broker_id, nonce, now + length / 1_000)
        return length

    def _lease_seconds(self, broker_name: str, now: float) -> float:
        lease, since = self._leases.get(broker_name), self._leads_since
        until = 0.0 if lease is None else lease.until + LEASE_SLACK_SECONDS - now
        if since is not None and now - since <= LEASE_MS_MAX / 1_000 + LEASE_SLACK_SECONDS:
            records = self._groups.get(broker_name, {}).values()
            length = max((record.beat.timeout_ms for record in records), default=LEASE_MS_MAX)
            earlier = since + min(length, LEASE_MS_MAX) / 1_000 + LEASE_SLACK_SECONDS - now
            until = max(until, earlier)
        return max(until, 0.0)

    # -- views --------------------------------------------------------------------------------------------

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
                    record.beat.stuck,
                    record.beat.all_ack,
                    record.surely_dead,
                    record.beat.lost_cache,
                )
                for broker_id, record in records.items()
            },
            self._lease_seconds(broker_name, now),
            now,
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
