"""What changed in memory and has no record in the log yet."""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_broker.tables.metadata.records import OffsetsPut, OrderLocksPut
from brokerset_broker.tables.ordered.values import ClaimKey, Ranges, SharedAcksPut
from brokerset_broker.tables.pop.order_lock import Locks


class Journal:
    """Names of what is to be written; values are taken from memory when that is done, so each counts once.

    Its size is bounded by the tables that it is about: it holds no key that they do not have.
    """

    __slots__ = ("_acks", "_offsets", "_orders", "_taken", "batches", "delay")

    def __init__(self) -> None:
        self._offsets: dict[str, dict[int, None]] = {}
        self._taken: dict[str, dict[int, None]] = {}
        self._acks: dict[ClaimKey, None] = {}
        self._orders: dict[str, dict[int, None]] = {}
        self.delay: Mapping[int, int] = {}
        """Delay progress as it was written last."""
        self.batches = 0
        """How often all offsets that were committed before had their record."""

    @property
    def has_offsets(self) -> bool:
        """Whether offsets, resets that consumers were told, acks of Shared groups, or locks of ordered pops
        wait for a record."""
        return bool(self._offsets or self._taken or self._acks or self._orders)

    def offset_changed(self, key: str, queue_id: int) -> None:
        """An offset of `topic@group` was committed."""
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
        queues[queue_id] = None

    def reset_taken(self, key: str, queue_id: int) -> None:
        """A consumer was told that an offset was reset."""
        self._taken.setdefault(key, {})[queue_id] = None

    def take_offsets(self, offsets: Mapping[str, Mapping[int, int]]) -> OffsetsPut | None:
        """What waits, with the values that `offsets` has now; nothing waits any more."""
        if not self._offsets and not self._taken:
            return None
        found: dict[str, dict[int, int]] = {}
        for key, queues in self._offsets.items():
            table = offsets.get(key)
            if table is not None:
                found[key] = {queue: table[queue] for queue in queues if queue in table}
        taken = {key: tuple(queues) for key, queues in self._taken.items()}
        self._offsets, self._taken = {}, {}
        return OffsetsPut(found, taken) if found or taken else None

    def acks_changed(self, key: ClaimKey) -> None:
        """A Shared group has acknowledged messages above its position, or has closed gaps."""
        self._acks[key] = None

    def take_acks(self, acks: Mapping[ClaimKey, Ranges]) -> SharedAcksPut | None:
        """What waits, with the values that `acks` has now; nothing waits any more."""
        if not self._acks:
            return None
        found = {key: acks.get(key, ()) for key in self._acks}
        self._acks = {}
        return SharedAcksPut(found)

    def order_lock_changed(self, key: str, queue_id: int) -> None:
        """An ordered pop, an ack of one, or the end of its lock."""
        self._orders.setdefault(key, {})[queue_id] = None

    def take_order_locks(self, locks: Locks) -> OrderLocksPut | None:
        """What waits, with the values that `locks` has now; nothing waits any more."""
        if not self._orders:
            return None
        found = {
            key: {queue: locks.get(key, {}).get(queue) for queue in queues}
            for key, queues in self._orders.items()
        }
        self._orders = {}
        return OrderLocksPut(found)

    def clear(self) -> None:
        """Forget everything: this broker leads no more."""
        self._offsets, self._taken, self._acks, self._orders, self.delay = {}, {}, {}, {}, {}
