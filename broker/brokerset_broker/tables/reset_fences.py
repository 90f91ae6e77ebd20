"""Queues whose consumer was sent a reset, and may still commit an offset from before it.

A client commits one-way and on a timer, so an old offset may be on its way while the broker answers its
pull with the reset; clients of RocketMQ 4 go on to commit the old one for ten seconds, until they move. In
Java such a commit takes the group back to where it was. Here it is ignored until the client has shown that
it moved.
"""

from __future__ import annotations

from brokerset_runtime.clock import Clock

FENCE_SECONDS = 30.0
"""How long a client may need to move: three times the pause of RocketMQ 4. After it every commit counts
again."""

FENCES_MAX = 100_000
"""Queues that can be fenced at once; a further one is not."""


class ResetFences:
    """By `topic@group` and queue id: where the consumer has to go on, and until when that counts."""

    __slots__ = ("_clock", "_count", "by_key")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_key: dict[str, dict[int, tuple[int, float]]] = {}
        """Empty most of the time: look at it before anything else is called."""
        self._count = 0

    def put(self, key: str, queue_id: int, offset: int) -> None:
        """The consumer of the queue was sent `offset` just now."""
        queues = self.by_key.get(key)
        if queues is None or queue_id not in queues:
            if self._count >= FENCES_MAX:
                self._drop_old()
            if self._count >= FENCES_MAX:
                return
            self._count += 1
        self.by_key.setdefault(key, {})[queue_id] = (offset, self._clock.monotonic() + FENCE_SECONDS)

    def has(self, key: str, queue_id: int) -> bool:
        """Whether the queue is fenced."""
        return queue_id in self.by_key.get(key, ())

    def ignores(self, key: str, queue_id: int, offset: int) -> bool:
        """Whether a commit of `offset` comes from before the reset. The offset of the reset itself ends the
        fence."""
        fence = self.by_key.get(key, {}).get(queue_id)
        if fence is None:
            return False
        if offset != fence[0] and self._clock.monotonic() < fence[1]:
            return True
        self.drop(key, queue_id)
        return False

    def pulled(self, key: str, queue_id: int, queue_offset: int) -> None:
        """A consumer pulls from `queue_offset`: where the reset is, it has moved."""
        fence = self.by_key.get(key, {}).get(queue_id)
        if fence is not None and (queue_offset == fence[0] or self._clock.monotonic() >= fence[1]):
            self.drop(key, queue_id)

    def was_set(self, key: str, queue_id: int, offset: int) -> None:
        """An administrator set the offset: to another one than the reset, and the fence protects nothing
        more."""
        fence = self.by_key.get(key, {}).get(queue_id)
        if fence is not None and offset != fence[0]:
            self.drop(key, queue_id)

    def drop(self, key: str, queue_id: int) -> None:
        """Let commits of the queue count again; without a fence nothing happens."""
        queues = self.by_key.get(key)
        if queues is None or queues.pop(queue_id, None) is None:
            return
        self._count -= 1
        if not queues:
            del self.by_key[key]

    def drop_key(self, key: str) -> None:
        """Drop all fences of a topic and group."""
        self._count -= len(self.by_key.pop(key, ()))

    def clear(self) -> None:
        """Drop all fences."""
        self.by_key.clear()
        self._count = 0

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        old = [
            (key, queue_id)
            for key, queues in self.by_key.items()
            for queue_id, (_, until) in queues.items()
            if now >= until
        ]
        for key, queue_id in old:
            self.drop(key, queue_id)
