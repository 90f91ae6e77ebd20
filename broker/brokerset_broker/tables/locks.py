"""Locks of orderly consumers: which client may consume which queue of its group.

Source: `RebalanceLockManager`. A client renews every 20 s and gives up after 30 s; a lock that was not
renewed for 60 s is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_runtime.clock import Clock

LOCK_LIVE_SECONDS = 60.0
"""Java's `rocketmq.broker.rebalance.lockMaxLiveTime`."""

SESSION_LOCK_SECONDS = 30.0
"""Life of the lock of an ordered subject's session after its last pull, ack or claim."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: float
    epoch: int | None = None
    """The ownership epoch of an ordered subject's session; None for a RocketMQ client."""


class QueueLocks:
    """All locks of a broker, in memory: a restart frees them, as it does in Java."""

    queues_max = 100_000
    """Locked queues of one group; further ones are not granted."""

    groups_max = 50_000
    """Groups that hold locks; a further one is granted nothing."""

    def __init__(self, clock: Clock, live_seconds: float = LOCK_LIVE_SECONDS) -> None:
        self._clock = clock
        self._live_seconds = live_seconds
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock or renew what is free, expired or the client's own; return what it now holds."""
        locks = self._groups.get(group)
        if locks is None:
            if len(self._groups) >= self.groups_max:
                return []
            locks = self._groups[group] = {}
        now = self._clock.monotonic()
        granted = []
        for queue in dict.fromkeys(queues):
            held = locks.get(queue)
            if held is None:
                if len(locks) >= self.queues_max:
                    continue
                locks[queue] = _Lock(client_id, now)
            elif held.client_id == client_id or self._expired(held, now):
                held.client_id = client_id
                held.renewed = now
                held.epoch = None
            else:
                continue
            granted.append(queue)
        if not locks:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free those of the queues that the client holds; others stay as they are."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._groups[group]

    # -- sessions of ordered subjects ---------------------------------------------------------------------

    def claim(self, group: str, session: str, queue: MessageQueue, epoch: int) -> bool:
        """Lock or renew a queue for a session; False while a RocketMQ client has it, or there is no room.

        The caller knows that no higher epoch was given: another session's lock is replaced at once.
        """
        locks = self._groups.get(group)
        if locks is None:
            if len(self._groups) >= self.groups_max:
                return False
            locks = self._groups[group] = {}
        now = self._clock.monotonic()
        held = locks.get(queue)
        if held is not None and held.epoch is None and not self._expired(held, now):
            return False
        if held is None and len(locks) >= self.queues_max:
            return False
        locks[queue] = _Lock(session, now, epoch)
        return True

    def held_by_client(self, group: str, queue: MessageQueue) -> bool:
        """Whether a RocketMQ client, and not a session, holds the queue now."""
        held = self._groups.get(group, {}).get(queue)
        return held is not None and held.epoch is None and not self._expired(held, self._clock.monotonic())

    def locked_by_other(self, group: str, queue: MessageQueue, client_id: str) -> bool:
        """Whether another client of the group holds the queue now."""
        held = self._groups.get(group, {}).get(queue)
        return (
            held is not None
            and held.client_id != client_id
            and not self._expired(held, self._clock.monotonic())
        )

    def has_locks(self, group: str) -> bool:
        """Whether any queue is locked for the group now, which means that it consumes in order."""
        locks = self._groups.get(group)
        if not locks:
            return False
        now = self._clock.monotonic()
        return any(not self._expired(held, now) for held in locks.values())

    def forget_group(self, group: str) -> None:
        """Drop the locks of a deleted group."""
        self._groups.pop(group, None)

    def expire(self) -> int:
        """Drop expired locks, so that vanished groups take no memory; return how many."""
        now = self._clock.monotonic()
        dropped = 0
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, held in locks.items() if self._expired(held, now)]:
                del locks[queue]
                dropped += 1
            if not locks:
                del self._groups[group]
        return dropped

    def _expired(self, held: _Lock, now: float) -> bool:
        live_seconds = self._live_seconds if held.epoch is None else SESSION_LOCK_SECONDS
        return now - held.renewed > live_seconds
