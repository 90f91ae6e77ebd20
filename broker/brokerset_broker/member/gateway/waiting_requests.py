"""Requests that wait for a moment: until this broker serves them, passes them on, or refuses them.

Requests wait in lanes, one for each class. Within a lane those of one connection leave in their order.
A connection is released as a whole, so that a stream of new requests cannot keep a lane from ending: they
wait behind the held ones of their own connection only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.replies import REJECTED
from brokerset_runtime.remoting import DEFERRED
from brokerset_runtime.remoting.connection import Reply

HELD_MAX: Final = 20_000
"""Requests that are held at the same time; the next is refused with SYSTEM_BUSY."""

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of their bodies and header fields; a request beyond that is refused with SYSTEM_BUSY."""

HELD_SECONDS_MAX: Final = 2.5
"""Longest time that one request is held, whatever the reason: Java's clients wait 3 s for a send."""

REQUEST_OVERHEAD_BYTES: Final = 512
"""What a request takes in addition to its texts and its body."""

RELEASE_SLICE: Final = 500
"""Requests that are released in one turn of the loop, in which nobody else is served: some milliseconds."""

EXPIRY_SECONDS: Final = 0.02
"""Shortest time between two searches for requests that have waited for too long."""


class Peer(Protocol):
    """The part of a remoting connection that holding uses."""

    @property
    def is_open(self) -> bool:
        """Whether an answer can still arrive."""
        ...

    def serve_deferred(self, commands: Sequence[Command]) -> None:
        """Give requests that were deferred to the handlers that their codes have now."""
        ...

    def finish(self, command: Command, reply: Command) -> None:
        """Answer a request that was deferred, unless it is one-way."""
        ...


def request_bytes(command: Command) -> int:
    """About the memory that a request takes while it waits."""
    return REQUEST_OVERHEAD_BYTES + len(command.body) + sum(map(len, command.ext.values()))


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a request that waited in vain is refused."""

    code: int
    remark: str
    ext: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Held:
    command: Command
    arrived: float
    deadline: float
    size: int
    refusal: Refusal


@dataclass(slots=True)
class HoldingCounters:
    """What happened since the start."""

    held: int = 0
    """Requests that were held."""

    expired: int = 0
    """Held ones that were refused because they waited for too long."""

    turned_away: int = 0
    """Requests beyond `HELD_MAX` or `HELD_BYTES_MAX`."""

    dropped: int = 0
    """Held ones whose client has closed its connection."""

    held_ms_max: int = 0
    """The longest time that a request was held."""


class Holding:
    """Bounded lanes of held requests. Runs on the current loop; `close` stops its timers."""

    def __init__(self, *, held_max: int = HELD_MAX, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_max = held_max
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, dict[Peer, list[_Held]]] = {}
        self._releasing: dict[str, Callable[[], None]] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._arrived: dict[int, float] = {}
        self.count = 0
        """Requests that are held now."""
        self.size = 0
        """Bytes that they take."""
        self.counters = HoldingCounters()

    def __len__(self) -> int:
        return self.count

    # -- in -----------------------------------------------------------------------------------------------

    def hold(
        self,
        lane: str,
        connection: Peer,
        command: Command,
        refusal: Refusal,
        seconds: float = HELD_SECONDS_MAX,
    ) -> Reply:
        """Keep a request; what a handler returns. Raises `Rejected` when there is no room."""
        size = request_bytes(command)
        if self.count >= self._held_max or self.size + size > self._bytes_max:
            self.counters.turned_away += 1
            raise Rejected(ResponseCode.SYSTEM_BUSY, REJECTED)
        now = self._loop.time()
        arrived = self._arrived.get(id(command), now)
        held = _Held(command, arrived, min(arrived + HELD_SECONDS_MAX, now + seconds), size, refusal)
        self._lanes.setdefault(lane, {}).setdefault(connection, []).append(held)
        self.count += 1
        self.size += size
        self.counters.held += 1
        if self._timer is None:
            self._timer = self._loop.call_at(held.deadline, self._expire)
        elif held.deadline < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(held.deadline, self._expire)
        return DEFERRED

    def has(self, lane: str, connection: Peer) -> bool:
        """Whether requests of this connection wait in the lane."""
        queue = self._lanes.get(lane)
        return queue is not None and connection in queue

    def is_empty(self, lane: str) -> bool:
        """Whether nothing waits in the lane."""
        return not self._lanes.get(lane)

    def arrived(self, command: Command) -> float:
        """When a request that is being served came: now, or earlier if it was held (time of the loop)."""
        return self._arrived.get(id(command), 0.0) or self._loop.time()

    def was_held(self, command: Command) -> bool:
        """Whether a request that is being served was held before."""
        return id(command) in self._arrived

    # -- out ----------------------------------------------------------------------------------------------

    def release(self, lane: str, done: Callable[[], None]) -> None:
        """Hand the lane's requests to the handlers of now, soon and in slices; then call `done`.

        The handlers must send requests of connections that `has` knows behind the held ones meanwhile.
        """
        self._releasing[lane] = done
        if self._turn is None:
            self._turn = self._loop.call_soon(self._release_some)

    def keep(self, lane: str) -> None:
        """End a release that is going on: what has not left stays."""
        self._releasing.pop(lane, None)

    def release_all(self) -> None:
        """Hand everything to the handlers of now, at once."""
        for lane in list(self._lanes):
            queue = self._lanes[lane]
            while queue:
                self._let_go(queue, next(iter(queue)))
        for lane in list(self._releasing):
            self._releasing.pop(lane)()

    def drop(self, connection: Peer) -> None:
        """Forget the requests of a closed connection."""
        for queue in self._lanes.values():
            held = queue.pop(connection, None)
            if held is not None:
                self.counters.dropped += len(held)
                self._account(held)

    def close(self) -> None:
        """Stop the timers; what is held stays unanswered."""
        self._releasing.clear()
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._turn = self._timer = None

    def _release_some(self) -> None:
        self._turn = None
        left = RELEASE_SLICE
        for lane in list(self._releasing):
            queue = self._lanes.get(lane, {})
            while queue and left > 0 and lane in self._releasing:
                left -= self._let_go(queue, next(iter(queue)))
            if not queue and lane in self._releasing:
                self._releasing.pop(lane)()
        if self._releasing and self._turn is None:
            self._turn = self._loop.call_soon(self._release_some)

    def _let_go(self, queue: dict[Peer, list[_Held]], connection: Peer) -> int:
        held = queue.pop(connection)
        self._account(held)
        if connection.is_open:
            self._arrived = {id(each.command): each.arrived for each in held}
            try:
                connection.serve_deferred([each.command for each in held])
            finally:
                self._arrived = {}
        return len(held)

    def _account(self, held: list[_Held]) -> None:
        self.count -= len(held)
        self.size -= sum(each.size for each in held)
        waited_ms = int((self._loop.time() - held[0].arrived) * 1000)
        self.counters.held_ms_max = max(self.counters.held_ms_max, waited_ms)

    def _expire(self) -> None:
        """Refuse what has waited for too long."""
        self._timer = None
        now = self._loop.time()
        next_deadline: float | None = None
        for queue in self._lanes.values():
            for connection in list(queue):
                held = queue[connection]
                late = [each for each in held if each.deadline <= now]
                if late:
                    rest = [each for each in held if each.deadline > now]
                    if rest:
                        queue[connection] = held = rest
                    else:
                        del queue[connection]
                        held = []
                    self._account(late)
                    for each in late:
                        self._refuse(connection, each)
                if held:
                    first = min(each.deadline for each in held)
                    next_deadline = first if next_deadline is None else min(first, next_deadline)
        if next_deadline is not None and self._timer is None:
            self._timer = self._loop.call_at(max(next_deadline, now + EXPIRY_SECONDS), self._expire)

    def _refuse(self, connection: Peer, held: _Held) -> None:
        self.counters.expired += 1
        if connection.is_open:
            refusal = held.refusal
            reply = held.command.reply(refusal.code, refusal.remark, ext=dict(refusal.ext))
            connection.finish(held.command, reply)
