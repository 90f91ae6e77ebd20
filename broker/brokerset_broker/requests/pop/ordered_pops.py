"""Ordered pops: locks are given with messages, acks open them, and who waits is woken when a queue is free.

What is decided is in `pop.order_locks`; a lock counts in memory at once, and is answered when it is safe
(`when_stored`). Invisible times run on the monotonic clock from the pop on. Of locks that another master has
given only wall clock times are known: they last `popClockSkewMs` longer, but never longer than a whole
invisible time after this broker began to lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.order_locks import (
    Fate,
    acked,
    find,
    free_at,
    given_before,
    is_expired,
    is_locked,
    made_visible,
    order_counts,
    popped,
)
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.send_refusals import CODES
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import BROKER, OffsetManager
from brokerset_broker.tables.pop.order_lock import OrderLock
from brokerset_broker.tables.pop.order_table import OrderTable
from brokerset_broker.tables.pop.values import parts_of
from brokerset_formats.pop.handles import Handle
from brokerset_protocol.bodies.pop import BatchAck
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.pop import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeResponse
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

LOCKS_MAX: Final = 100_000
"""Queues and groups with a lock; an ordered pop of one more is refused with SYSTEM_BUSY."""

SEARCH_SECONDS: Final = 3600.0
"""Time between two searches for locks that nobody has used for a day."""

TURN_SECONDS: Final = 0.001
"""How long locks are taken over, or searched, in one turn of the loop."""

_Place = tuple[str, str, int]
"""Topic, group, queue id."""


class _Clocked(NamedTuple):
    """By which clock the times of a lock count."""

    pop_time: int
    ahead_ms: int
    """What is added to the monotonic clock."""


class OrderedPops:
    """Locks queues for ordered pops, and serves their acks; a `RoleService`."""

    name = "ordered pops"

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        table: OrderTable,
        log_of_pops: PopLog,
        offsets: OffsetManager,
        groups: GroupManager,
        changes: Callable[[], ChangeLog],
    ) -> None:
        self._live = live
        self._clock = clock
        self._table = table
        self._log = log_of_pops
        self._offsets = offsets
        self._groups = groups
        self._changes = changes
        self._clocked: dict[_Place, _Clocked] = {}
        self._timers: dict[_Place, asyncio.TimerHandle] = {}
        self._searching: asyncio.Handle | None = None
        self._searched: Iterator[None] = iter(())
        self._leads = False
        offsets.on_back = self._went_back
        self.on_free: Callable[[str, str], object] = lambda _topic, _group: None
        """Called with topic and group when a queue is free: pops that wait can go on."""

    # -- the role -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take over the locks that there are: each one when it is wanted, and all in short turns."""
        self._leads = True
        self._begin_search()

    async def drain(self) -> None:
        """Nothing is half done between two turns of the loop."""

    def stop(self) -> None:
        """Wake nobody any more."""
        self._leads = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._clocked.clear()
        if self._searching is not None:
            self._searching.cancel()
            self._searching = None

    def _begin_search(self) -> None:
        self._searched = self._search()
        self._search_on()

    def _search_on(self) -> None:
        until = self._clock.monotonic() + TURN_SECONDS
        for _ in self._searched:
            if self._clock.monotonic() >= until:
                self._searching = asyncio.get_running_loop().call_soon(self._search_on)
                return
        self._searching = asyncio.get_running_loop().call_later(SEARCH_SECONDS, self._begin_search)

    def _search(self) -> Iterator[None]:
        """Take over locks that are not known yet, and forget those that nobody has used for a day."""
        forgotten = 0
        for key in list(self._table.locks):
            topic, group = parts_of(key)
            for queue_id in list(self._table.locks.get(key, ())):
                place = topic, group, queue_id
                lock = self._lock(place)
                if lock is not None and is_expired(lock, self._clock.now_ms()):
                    self._table.put(*place, None)
                    self._forget(place)
                    forgotten += 1
                yield
        if forgotten:
            log.info("forgot locks of ordered pops that nobody has used for a day", locks=forgotten)
        for place in list(self._clocked):
            if self._table.get(*place) is None:
                self._forget(place)  # deleted with its topic or group, or reset
            yield

    def _lock(self, place: _Place) -> OrderLock | None:
        """The lock of a queue. One that another master has given is taken over; locks of a broker alone may
        be ahead of its offsets, which are written later: acks of the last pop, and where it began."""
        lock = self._table.get(*place)
        if lock is not None and self._leads and place not in self._clocked:
            topic, group, queue_id = place
            self._take_over(place, lock)
            self._watch(place, lock, self._now_ms(place, lock))
            position = self._offsets.query(group, topic, queue_id) or 0
            if lock.next_offset > position and (lock.acked or self._table.journal is None):
                self._offsets.commit(group, topic, queue_id, lock.next_offset, BROKER)
        return lock

    def _went_back(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Somebody has set the group's offset back: as a reset that ends the lock. It would move the group
        forward again when a new master, or this broker after a restart, takes it over."""
        lock = self._table.get(topic, group, queue_id)
        if lock is not None and self._leads and offset < lock.next_offset:
            place = topic, group, queue_id
            self._table.put(*place, None)
            self._forget(place)
            asyncio.get_running_loop().call_soon(self.on_free, topic, group)  # when the offset is there

    def _forget(self, place: _Place) -> None:
        self._clocked.pop(place, None)
        timer = self._timers.pop(place, None)
        if timer is not None:
            timer.cancel()

    # -- pops ---------------------------------------------------------------------------------------------

    def admit(self, topic: str, group: str, queue_id: int, attempt_id: str | None) -> bool:
        """Whether a pop may take messages of the queue now: nobody has it, or the same attempt asks again.

        Raises `Rejected` when there are too many locks.
        """
        if not self._leads or self._is_held(topic, group):
            return False
        place = topic, group, queue_id
        lock = self._lock(place)
        if lock is not None:
            return not is_locked(lock, attempt_id, self._now_ms(place, lock))
        if len(self._clocked) >= LOCKS_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{LOCKS_MAX} queues have locks of ordered pops; delete groups that are not used",
            )
        return True

    def is_locked(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether somebody has messages of the queue: `on_free` is called when that is over."""
        place = topic, group, queue_id
        lock = self._lock(place)
        return lock is not None and is_locked(lock, None, self._now_ms(place, lock))

    def passed_by(self, topic: str, group: str, queue_id: int, position: int) -> frozenset[int]:
        """Messages behind the first open one that the group has acknowledged: it gets them no more."""
        lock = self._table.get(topic, group, queue_id)
        return frozenset() if lock is None else given_before(lock, position)

    def give(
        self,
        topic: str,
        group: str,
        queue_id: int,
        *,
        attempt_id: str | None,
        pop_time: int,
        invisible_ms: int,
        start: int,
        queue_offsets: Sequence[int],
    ) -> str:
        """Lock the queue for messages that are handed out; the items of `orderCountInfo` for them."""
        before = self._table.get(topic, group, queue_id)
        passed_by: frozenset[int] = frozenset()
        if before is not None:
            passed_by = given_before(before, start) - frozenset(queue_offsets)
        lock = popped(
            before,
            attempt_id=attempt_id,
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            queue_offsets=queue_offsets,
            passed_by=passed_by,
        )
        place = topic, group, queue_id
        self._table.put(*place, lock)
        self._clocked[place] = _Clocked(pop_time, pop_time - self._monotonic_ms())
        self._watch(place, lock, pop_time)
        return order_counts(queue_id, lock)

    def when_stored(self, callback: Callable[[PutStatus], None]) -> None:
        """Call back when the locks that were given so far are as safe as a message, or why they are not."""
        self._changes().when_order_stored(callback)

    # -- acks ---------------------------------------------------------------------------------------------

    def ack(self, connection: Connection, command: Command, header: AckMessage, handle: Handle) -> Reply:
        """Answer ACK_MESSAGE."""
        place = header.topic, header.consumer_group, header.queue_id
        problem = self._ack_one(place, header.offset, handle.pop_time)
        if problem is not None:
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, problem)
        return self._answer(connection, command, command.reply())

    def ack_batch(
        self,
        ack: BatchAck,
        topic: str,
        offsets: Sequence[int],
        on_stored: Callable[[int | StoreRefused], None],
    ) -> Sequence[Rejected]:
        """Ack messages of a batch; why some are not the caller's. `on_stored` is called in a later turn."""
        place = topic, ack.consumer_group, ack.queue_id
        self._check_held(topic, ack.consumer_group)
        problems = [self._ack_one(place, offset, ack.pop_time) for offset in offsets]

        def stored(status: PutStatus) -> None:
            refused = StoreRefused(status, f"{status.value}: the acks are not safe yet")
            self._log.answer_soon(partial(on_stored, 0 if status is PutStatus.PUT_OK else refused))

        self.when_stored(stored)
        return [Rejected(ResponseCode.MESSAGE_ILLEGAL, text) for text in problems if text is not None]

    def _ack_one(self, place: _Place, offset: int, pop_time: int) -> str | None:
        """Ack a message; why it is not the caller's, or None. Raises `Rejected`."""
        topic, group, queue_id = place
        self._check_held(topic, group)
        lock = self._lock(place)
        position = self._log.position(topic, group, queue_id) or 0
        if offset < position:
            return None  # acknowledged before
        fate = find(lock, offset, pop_time)
        if fate is Fate.DONE_BEFORE:
            return None
        if lock is None or fate is not Fate.DONE:
            return self._problem(place, offset, fate)
        self._log.counts.acked += 1
        lock = acked(lock, offset)
        self._table.put(topic, group, queue_id, lock)
        if lock.next_offset > position:
            self._log.move(topic, group, queue_id, lock.next_offset)
        self._changed(place, lock)
        return None

    def change(
        self, connection: Connection, command: Command, header: ChangeInvisibleTime, handle: Handle
    ) -> Reply:
        """Answer CHANGE_MESSAGE_INVISIBLETIME: the handle's pop time stays."""
        place = topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        self._check_held(topic, group)
        lock = self._lock(place)
        if header.offset < (self._log.position(topic, group, queue_id) or 0):
            return command.reply()
        fate = find(lock, header.offset, handle.pop_time)
        if lock is None or fate is not Fate.DONE:
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, self._problem(place, header.offset, fate))
        visible = self._now_ms(place, lock) + header.invisible_time
        lock = made_visible(lock, header.offset, visible)
        self._table.put(*place, lock)
        self._changed(place, lock)
        response = ChangeInvisibleTimeResponse(
            pop_time=handle.pop_time,
            invisible_time=visible - handle.pop_time,
            revive_qid=handle.revive_queue,
        )
        return self._answer(connection, command, command.reply(ext=response.to_ext()))

    def _answer(self, connection: Connection, command: Command, answer: Command) -> Reply:
        if command.flag & FLAG_ONEWAY:
            return None
        self.when_stored(partial(_finish, connection, command, answer))
        return DEFERRED

    def _problem(self, place: _Place, offset: int, fate: Fate) -> str:
        self._log.counts.refused_acks[f"ordered_{fate.name.lower()}"] += 1
        topic, group, queue_id = place
        return f"offset is illegal, key:{topic}@{group}@{queue_id}, commit:{offset}: {fate.value}"

    def _is_held(self, topic: str, group: str) -> bool:
        """Whether a record is on its way that ends locks of the group."""
        return self._offsets.is_held(group, topic) or group in self._groups.going

    def _check_held(self, topic: str, group: str) -> None:
        if not self._leads or self._is_held(topic, group):
            raise Rejected(
                ResponseCode.SYSTEM_BUSY, f"offsets of {group} in {topic} are being changed; try again"
            )

    # -- times --------------------------------------------------------------------------------------------

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _take_over(self, place: _Place, lock: OrderLock) -> _Clocked:
        """The times of a lock that another master gave, or this broker before it was restarted."""
        now = max(self._clock.now_ms() - self._live.current.pop_clock_skew_ms, lock.pop_time)
        clocked = self._clocked[place] = _Clocked(lock.pop_time, now - self._monotonic_ms())
        return clocked

    def _now_ms(self, place: _Place, lock: OrderLock) -> int:
        """The time on the clock of the lock."""
        clocked = self._clocked.get(place)
        if clocked is None or clocked.pop_time != lock.pop_time:
            clocked = self._take_over(place, lock)
        return self._monotonic_ms() + clocked.ahead_ms

    def _changed(self, place: _Place, lock: OrderLock) -> None:
        """An ack or a change may have made the queue free."""
        now_ms = self._now_ms(place, lock)
        if is_locked(lock, None, now_ms):
            self._watch(place, lock, now_ms)
        else:
            self._free(place)

    def _watch(self, place: _Place, lock: OrderLock, now_ms: int) -> None:
        """Wake who waits when the queue will be free, if it is not at `now_ms`.

        Who calls has judged by the same time: a later one could already be the end, which wakes nobody.
        """
        timer = self._timers.pop(place, None)
        if timer is not None:
            timer.cancel()
        left_ms = free_at(lock) - now_ms
        if left_ms > 0 and self._leads and self._live.current.enable_notify_after_pop_order_lock_release:
            loop = asyncio.get_running_loop()
            self._timers[place] = loop.call_later(left_ms / 1000, self._time_is_over, place)

    def _time_is_over(self, place: _Place) -> None:
        del self._timers[place]
        lock = self._table.get(*place)
        if lock is None:  # its offsets were removed
            self._clocked.pop(place, None)
            self._free(place)
        else:
            self._changed(place, lock)

    def _free(self, place: _Place) -> None:
        timer = self._timers.pop(place, None)
        if timer is not None:
            timer.cancel()
        self.on_free(place[0], place[1])


def _finish(connection: Connection, command: Command, answer: Command, status: PutStatus) -> None:
    if status is PutStatus.PUT_OK:
        connection.answer(answer)
    else:
        code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
        connection.answer(command.reply(code, status.value))
