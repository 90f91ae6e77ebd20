"""How far each replica is, what all of them have, and who keeps up. Pure; one object for each mastership."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from brokerset_broker.member.ha.in_sync import ReplicaState

BOUNDARIES_MAX: Final = 65_536
"""Ends of turns that are remembered; with more, rounding down becomes coarser."""

SAMPLES_MAX: Final = 1_024
"""Sends to a replica that are remembered; with more, it is found to keep up a little later."""

JOIN_LAG_SECONDS: Final = 0.5
"""A replica that has everything there was so long ago may join: it is waited for."""

HOLD_SECONDS: Final = 0.5
"""How long sends wait for a replica that is about to join."""

HOLD_PAUSE_SECONDS: Final = 5.0
"""After it was waited for in vain."""


@dataclass(slots=True)
class _Replica:
    acknowledged: int = 0
    connected: bool = False
    greeted: bool = False
    """Whether this connection has acknowledged anything."""
    learner: bool = False
    is_ours: bool = False
    caught_up_at: float | None = None
    since: float = 0.0
    """From when on it is expected to catch up."""
    left: bool = False
    """Its connection has ended, and no other one began."""
    sent_at: float = 0.0
    sent_end: int = -1
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    held_until: float = 0.0
    hold_not_before: float = 0.0


class Progress:
    """Acknowledgements of one mastership. Times are seconds of one clock; offsets are those of the log."""

    def __init__(self, own_id: int, *, log_end: int, confirmed: int) -> None:
        """`log_end` is where the mastership begins: nobody is in sync who has less."""
        self.own_id = own_id
        self.epoch_start = log_end
        self._confirmed = confirmed
        self._end = log_end
        self._boundaries: deque[int] = deque((log_end,))
        self._replicas: dict[int, _Replica] = {}

    # -- the own log --------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """What was confirmed last."""
        return self._confirmed

    def appended(self, end: int, *, confirmed: bool = False) -> None:
        """A turn of appends ends at `end`; `confirmed`: the log has confirmed it itself."""
        if end <= self._end:
            return
        self._end = end
        boundaries = self._boundaries
        if confirmed:
            self._confirmed = max(self._confirmed, end)
            boundaries.clear()
        elif len(boundaries) >= BOUNDARIES_MAX:
            boundaries[-1] = end
        else:
            boundaries.append(end)

    # -- connections --------------------------------------------------------------------------------------

    @property
    def known(self) -> int:
        """How many replicas are remembered."""
        return len(self._replicas)

    def forget_others(self, members: frozenset[int]) -> None:
        """Forget who is neither connected nor one of these: anybody can come with any id."""
        self._replicas = {
            broker_id: replica
            for broker_id, replica in self._replicas.items()
            if replica.connected or broker_id in members
        }

    def expect(self, broker_ids: frozenset[int], now: float) -> None:
        """These are members: they have from now on until they must have caught up."""
        for broker_id in sorted(broker_ids - {self.own_id}):
            if broker_id not in self._replicas:
                self._replicas[broker_id] = _Replica(since=now)

    def connected(self, broker_id: int, now: float, *, learner: bool, is_ours: bool) -> None:
        """A connection begins; it takes the place of an older one. What was acknowledged still counts."""
        replica = self._replicas.setdefault(broker_id, _Replica(since=now))
        replica.connected, replica.greeted, replica.left = True, False, False
        replica.learner, replica.is_ours = learner, is_ours
        replica.samples.clear()
        replica.sent_end = -1

    def disconnected(self, broker_id: int) -> None:
        """The connection has ended; what was acknowledged in this mastership still counts."""
        replica = self._replicas[broker_id]
        replica.connected, replica.left, replica.held_until = False, True, 0.0
        replica.samples.clear()

    def sent(self, broker_id: int, now: float, end: int) -> None:
        """Something is sent to the replica while the log ends at `end`."""
        replica = self._replicas[broker_id]
        samples = replica.samples
        replica.sent_end = end
        if samples and samples[-1][1] == end:
            samples[-1] = (now, end)
        elif len(samples) < SAMPLES_MAX:
            samples.append((now, end))

    def acknowledge(self, broker_id: int, offset: int, now: float, log_end: int) -> str | None:
        """The replica has everything below `offset`; returns why this cannot be, if it cannot.

        The first acknowledgement of a connection may be smaller than the last of the one before: a replica
        that crashed has lost what was not on its disk.
        """
        replica = self._replicas[broker_id]
        if offset > log_end:
            return f"the replica acknowledges {offset}, behind the end of the log at {log_end}"
        if offset < 0 or (replica.greeted and offset < replica.acknowledged):
            return f"the replica acknowledges {offset} after {replica.acknowledged}"
        replica.acknowledged = offset
        replica.greeted = True
        samples = replica.samples
        while samples and samples[0][1] <= offset:
            replica.caught_up_at = max(samples.popleft()[0], replica.caught_up_at or 0.0)
        if offset == log_end:
            replica.caught_up_at = now
        return None

    # -- what is confirmed --------------------------------------------------------------------------------

    def confirm(self, members: frozenset[int], own: int, log_end: int, floor: int) -> int:
        """What all `members` have, rounded down to the end of a turn; never less than before or `floor`.

        `own` is what counts of the own log, which ends at `log_end`; `floor` what the log itself confirmed.
        """
        reached = self.reached_by(members, own)
        boundaries = self._boundaries
        rounded = log_end if reached >= log_end else -1
        while boundaries and boundaries[0] <= reached:
            rounded = max(rounded, boundaries.popleft())
        self._confirmed = max(self._confirmed, floor, rounded)
        while boundaries and boundaries[0] <= self._confirmed:
            boundaries.popleft()
        return self._confirmed

    def reached_by(self, members: frozenset[int], own: int) -> int:
        """What all `members` have; `own` is what counts of the own log."""
        reached = own
        for broker_id in members:
            if broker_id != self.own_id:
                replica = self._replicas.get(broker_id)
                acknowledged = replica.acknowledged if replica is not None else 0
                if acknowledged < reached:
                    reached = acknowledged
        return reached

    def had_by(self, members: frozenset[int], needed: int, own: int) -> int:
        """What at least `needed` of `members` have, the master among them; 0 if there are fewer."""
        ends = [own]
        for broker_id in members:
            replica = self._replicas.get(broker_id)
            if replica is not None and broker_id != self.own_id and not replica.learner:
                ends.append(replica.acknowledged)
        if len(ends) < needed:
            return 0
        ends.sort(reverse=True)
        return ends[needed - 1]

    # -- joining and leaving ------------------------------------------------------------------------------

    def hold(self, electable: frozenset[int], confirmed: int, now: float) -> frozenset[int]:
        """Replicas that are about to join, and for which confirming waits.

        While messages arrive all the time, the confirmed offset of a master alone is always ahead of its
        replicas, so none could ever join. Who keeps up is waited for, for a moment.
        """
        held = []
        for broker_id in sorted(self._replicas.keys() - electable):
            replica = self._replicas[broker_id]
            if not self._keeps_up(replica, now):
                replica.held_until = 0.0
            elif replica.held_until > now:
                held.append(broker_id)
            elif replica.held_until:
                replica.held_until, replica.hold_not_before = 0.0, now + HOLD_PAUSE_SECONDS
            elif replica.acknowledged < confirmed and now >= replica.hold_not_before:
                replica.held_until = now + HOLD_SECONDS
                held.append(broker_id)
        return frozenset(held)

    def states(self, confirmed: int, now: float, lag_seconds: float) -> tuple[ReplicaState, ...]:
        """All replicas by id: who may join, and who must leave."""
        return tuple(
            ReplicaState(
                broker_id,
                may_join=self._keeps_up(replica, now) and replica.acknowledged >= confirmed,
                must_leave=replica.left or now - self._caught_up_at(replica, now) > lag_seconds,
            )
            for broker_id, replica in sorted(self._replicas.items())
        )

    def _keeps_up(self, replica: _Replica, now: float) -> bool:
        return (
            replica.connected
            and replica.greeted
            and not replica.learner
            and replica.acknowledged >= self.epoch_start
            and replica.caught_up_at is not None
            and now - self._caught_up_at(replica, now) <= JOIN_LAG_SECONDS
        )

    def _caught_up_at(self, replica: _Replica, now: float) -> float:
        """When it last had all there was. Java's replicas say nothing while nothing happens."""
        if (
            not replica.is_ours
            and replica.connected
            and replica.greeted
            and replica.acknowledged >= self._end
        ):
            return now
        return max(replica.since, replica.caught_up_at or 0.0)

    # -- views --------------------------------------------------------------------------------------------

    def acknowledged(self, broker_id: int) -> int:
        """The last acknowledgement of a replica, 0 without any."""
        replica = self._replicas.get(broker_id)
        return replica.acknowledged if replica is not None else 0

    def caught_up_seconds_ago(self, broker_id: int, now: float) -> float | None:
        """Since when the replica has not had everything; None if it never had."""
        replica = self._replicas[broker_id]
        return None if replica.caught_up_at is None else max(0.0, now - self._caught_up_at(replica, now))
