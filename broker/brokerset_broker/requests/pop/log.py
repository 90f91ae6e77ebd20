"""Check points and acks on their way into the revive topic; which check points are open goes along.

What `CheckPoints` knows is made from the store when a broker begins to lead (`services/pop/loading`), and
from then on by what is appended here; only what timers bring into the topic is read. Pops and acks wait while
the store is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.check_points import CheckPoints, OpenPoint, Source
from brokerset_broker.pop.counts import ACK, CHECK_POINT, PopCounts
from brokerset_broker.pop.fates import Claim
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.pop.position_commits import PositionCommits
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore, PlainMessage
from brokerset_broker.store.results import Appended
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.hashing import java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.pop.names import normal_topic, revive_topic
from brokerset_formats.pop.records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    Acks,
    CheckPoint,
    revive_properties,
)
from brokerset_formats.properties import encode_properties
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 10_000
"""Pops and acks that wait while the store is read; further ones are refused with SYSTEM_BUSY."""

CHANGES_FACTOR: Final = 2
"""Times `popCheckPointsMax`: check points that may be open, with those of changed invisible times."""

TURN_SECONDS: Final = 0.001
"""How long those that have waited are served in one turn of the loop."""

EARLY_PROPERTY: Final = "POP_EARLY"
"""Property of the record of an early ack: when its messages become visible, milliseconds since 1970."""

LATER_PROPERTY: Final = "POP_LATER"
"""Property of the record of a check point that is no pop: a copy, or a change of an invisible time. It does
not say where the group goes on, as that may have gone back since it popped the messages."""

_DERIVED: Final = {tag: (java_hash(tag), None, None) for tag in (ACK_TAG, BATCH_ACK_TAG)}
"""What the store derives of records of acks, by their tags; they have no index entries."""

_LATER: Final = encode_properties({LATER_PROPERTY: "1"})

OnStored = Callable[[int | StoreRefused], None]
"""Gets the end of the log behind the record, or why the store did not take it."""


@dataclass(frozen=True, slots=True)
class Popped:
    """What a pop gives out of one queue."""

    topic: str
    """The topic, or the retry topic, that the messages lie in."""
    group: str
    queue_id: int
    start_offset: int
    """Where reading began."""
    queue_offsets: tuple[int, ...]
    """Of the messages, in order."""
    next_offset: int
    """Where the group's next pop of the queue begins."""
    pop_time: int
    """Milliseconds since 1970, by this broker's clock."""
    invisible_ms: int
    revive_queue: int
    broker: str
    """Name of the broker group."""


class _State(Enum):
    IDLE = "this broker does not lead"
    LOADING = "this broker reads which messages are out"
    LEADING = "all is known"


class _TurnAcks:
    """Acks of one check point that have come in this turn of the loop."""

    __slots__ = ("bits", "on_stored")

    def __init__(self) -> None:
        self.bits = 0
        self.on_stored: list[OnStored] = []


class PopLog:
    """Appends check points and acks, in the order that `pop.check_points` demands."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        clock: Clock,
        topics: TopicManager,
        offsets: OffsetManager,
        admission: Admission,
    ) -> None:
        settings = live.current
        self._live = live
        self._store = store
        self._clock = clock
        self._topics = topics
        self._offsets = offsets
        self._admission = admission
        self.topic = revive_topic(settings.broker_cluster_name)
        """The revive topic."""
        self._host = Host.from_text(settings.broker_ip1, settings.listen_port).encode()
        self._use(settings)
        live.on_change(lambda changed, _names: self._use(changed))
        self._state = _State.IDLE
        self.counts = PopCounts()
        self.points = CheckPoints()
        """What is out; of use while `is_known`."""
        self.java_popped = False
        """Whether the last master before this one may have been Java's."""
        self.leads_since_ms = 0
        """Wall clock time before which another master may have popped."""
        self._counter = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._serves_waiting = False
        self._turn_acks: dict[OpenPoint, _TurnAcks] = {}
        self._owed: list[tuple[OpenPoint, int]] = []
        self._turn: asyncio.Handle | None = None
        self.end = 0
        """Offset behind the last record of POP."""
        self.commits: Final = PositionCommits(
            store=store, offsets=offsets, admission=admission, end=lambda: self.end
        )
        self.on_free: Callable[[str, str], object] = lambda _topic, _group: None
        """Called with topic and group when acks or revival have brought the messages of a queue that a group
        has down to `popInflightMessageThreshold`."""
        self.read_to: dict[int, int] = {}
        """Records of each revive queue below are known."""
        self._own_places: dict[int, set[int]] = {}

    # -- leading ------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether pops and acks can be served; not before those that have waited."""
        return self._state is _State.LEADING and (self._serves_waiting or not self._waiting)

    @property
    def leads(self) -> bool:
        """Whether this broker serves pops, or reads what it needs for that."""
        return self._state is not _State.IDLE

    def wait_for_known(self, serve: Callable[[], None]) -> None:
        """Call `serve` when all is known, or this broker leads no more. Raises `Rejected`."""
        if self._state is _State.IDLE:
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker does not serve pops (yet): it does not lead"
            )
        if len(self._waiting) >= WAITING_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{WAITING_MAX} pops and acks wait until all messages in flight are known; try again",
            )
        self._waiting.append(serve)

    def begin_loading(self) -> CheckPoints:
        """This broker leads: the store is to be read into what this returns, then `loaded` is called."""
        assert self._state is _State.IDLE, "an earlier mastership has ended"
        self._state = _State.LOADING
        self.points = CheckPoints()
        self.read_to, self._own_places = {}, {}
        self.end = self._store.max_offset
        return self.points

    def loaded(self) -> None:
        """All of the store was read."""
        assert self._state is _State.LOADING, "somebody reads the store"
        self._state = _State.LEADING
        self.commits.lead()
        self.leads_since_ms = self._clock.now_ms() + self._live.current.pop_clock_skew_ms
        self._serve_waiting()

    def stop(self) -> None:
        """Append nothing any more; who waits is served by whoever serves such requests now."""
        self._state = _State.IDLE
        self.commits.stop()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        refused = StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "this broker does not lead any more")
        turn, self._turn_acks = self._turn_acks, {}
        for acks in turn.values():
            for on_stored in acks.on_stored:
                on_stored(refused)
        self.points = CheckPoints()
        self._owed = []
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Serve who has waited, a millisecond's worth in one turn of the loop."""
        if self._state is _State.LOADING:
            return  # another mastership has begun meanwhile: they wait for it
        until = self._clock.monotonic() + TURN_SECONDS
        self._serves_waiting = True
        try:
            while self._waiting:
                self._waiting.popleft()()
                if self._waiting and self._clock.monotonic() >= until:
                    asyncio.get_running_loop().call_soon(self._serve_waiting)
                    return
        finally:
            self._serves_waiting = False

    # -- positions ----------------------------------------------------------------------------------------

    def position(self, topic: str, group: str, queue_id: int) -> int | None:
        """Where the group's next pop of the queue begins; None if it has popped nothing of it yet.

        An offset that somebody else committed since then, or a reset, wins.
        """
        source = self.points.sources.get((topic, group, queue_id))
        committed = self._offsets.query(group, topic, queue_id)
        if source is None:
            if committed is None:
                return None
            source = self.points.source(topic, group, queue_id)
            source.position = source.committed = committed
        elif committed != source.committed:
            if source.position is not None and (committed or 0) < source.position:
                self._say_position(source, committed or 0)  # or somebody has removed it
            source.position = source.committed = committed
            self.commits.forget(source)
        return source.position

    def learn_position(self, topic: str, group: str, queue_id: int) -> bool:
        """Take the group's offset where no check point says that it has come so far; whether there was one.

        What a Java master has popped is in its timer wheel: only the offset says that it was popped.
        """
        source = self.points.sources.get((topic, group, queue_id))
        committed = self._offsets.query(group, topic, queue_id)
        known = source.position if source is not None else None
        if not self.java_popped or committed is None or (known is not None and committed <= known):
            return False
        self.position(topic, group, queue_id)
        return True

    def move(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Pops go on there: what lies between was filtered, or is not there, or the group was reset."""
        source = self.points.source(topic, group, queue_id)
        before = source.position
        if before is not None and next_offset < before:
            self._say_position(source, next_offset)
            self.commits.went_back(source)
        source.position = next_offset
        self.commits.moved(source)
        self.commit_positions()

    def forget_deleted(self, is_deleted: Callable[[str], bool]) -> None:
        """Topics were deleted: in one of the same name all groups begin from the start."""
        if self._state is not _State.LEADING:
            return
        for source in self.points.sources_of(is_deleted):
            self.forget(source)

    def forget(self, source: Source) -> None:
        """Its topic or its group is gone. What is out of it stays until it is acked, or its time is over."""
        if source.position is not None:
            self._say_position(source, 0)
            source.position = source.committed = None
            self.commits.forget(source)
        if not source.starts:
            self.points.remove(source)

    def _say_position(self, source: Source, position: int) -> None:
        """A group goes back: without a record a new master would go by the check points before."""
        record = CheckPoint(
            topic=source.topic, group=source.group, queue_id=source.queue_id, start_offset=position,
            pop_time=self._clock.now_ms(), invisible_time=0, broker=self._live.current.broker_name, count=0,
            distances=(),
        )  # fmt: skip
        revive_queue = self.next_revive_queue()
        try:
            appended = self._append_point(record, revive_queue)
        except StoreRefused as refused:
            log.warning(
                "that a group goes back is not in the log: a failover now may undo it",
                group=source.group,
                topic=source.topic,
                reason=refused.reason,
            )
            return
        self.points.note_record(revive_queue, appended.queue_offset)
        source.position_end = appended.end

    def commit_positions(self) -> None:
        """Commit positions as consumer offsets whose records are safe."""
        self.commits.go_on()

    # -- pops ---------------------------------------------------------------------------------------------

    def next_revive_queue(self) -> int:
        """The queue of the revive topic for the next check point."""
        config = self._topics.items.get(self.topic)
        self._counter += 1
        return self._counter % max(1, config.write_queue_nums if config is not None else 1)

    def pop(self, popped: Sequence[Popped]) -> int:
        """Store check points of what one answer gives out; the end of the log behind them.

        Raises `StoreRefused`, then nobody may get the messages, and the positions of what was not stored have
        not moved; `Rejected` if too many check points are open.
        """
        points, limit = self.points, self._live.current.pop_check_points_max
        assert self._state is _State.LEADING, "pops wait until all is known"
        if points.count + len(popped) > limit:
            raise Rejected(
                ResponseCode.POLLING_FULL,
                f"{limit} check points are open (popCheckPointsMax): ack messages, or wait until they expire",
            )
        now = self._clock.monotonic()
        added: list[OpenPoint] = []
        for each in popped:
            source = points.source(each.topic, each.group, each.queue_id)
            if points.find(source, each.start_offset, each.pop_time) is not None:
                self._take_back(added)
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY, "the queue was popped at the same place this millisecond; again"
                )
            record = CheckPoint(
                topic=each.topic,
                group=each.group,
                queue_id=each.queue_id,
                start_offset=each.start_offset,
                pop_time=each.pop_time,
                invisible_time=each.invisible_ms,
                broker=each.broker,
                count=len(each.queue_offsets),
                distances=tuple([offset - each.start_offset for offset in each.queue_offsets]),
            )
            try:
                appended = self._append_point(record, each.revive_queue)
            except StoreRefused:
                self._take_back(added)
                raise
            due = now + each.invisible_ms / 1000
            added_point = points.add(record, each.revive_queue, appended.queue_offset, due)
            if added_point is not None:
                added.append(added_point)
            source.position = each.next_offset
            source.position_end = appended.end
            self.commits.moved(source)
        self.commit_positions()
        return self.end

    def _take_back(self, added: Sequence[OpenPoint]) -> None:
        """Nobody gets the messages: they come back as soon as they can."""
        for point in added:
            self.points.put_off(point, self._clock.monotonic())

    # -- acks ---------------------------------------------------------------------------------------------

    def ack(self, point: OpenPoint, bits: int, on_stored: OnStored) -> None:
        """Record that messages of an open check point are acked; `on_stored` is called in this turn's end."""
        acks = self._turn_acks.get(point)
        if acks is None:
            acks = self._turn_acks[point] = _TurnAcks()
        acks.bits |= bits
        acks.on_stored.append(on_stored)
        self._write_soon()

    def ack_early(self, claim: Claim, offsets: tuple[int, ...], revive_queue: int, broker: str) -> int:
        """Record acks whose check point is not there yet; the end of the log. Raises `StoreRefused`."""
        acks = Acks(
            topic=claim.topic, group=claim.group, queue_id=claim.queue_id, start_offset=claim.start,
            pop_time=claim.pop_time, broker=broker, offsets=offsets,
        )  # fmt: skip
        more = encode_properties({EARLY_PROPERTY: str(claim.visible_time)})
        appended = self._append_acks(acks, revive_queue, more)
        self.points.note_record(revive_queue, appended.queue_offset)
        self.points.ack_early(claim.key, offsets, claim.visible_time)
        return appended.end

    @staticmethod
    def answer_soon(answer: Callable[[], None]) -> None:
        """Call `answer` at the end of this turn."""
        asyncio.get_running_loop().call_soon(answer)

    def change(self, record: CheckPoint, revive_queue: int, old: tuple[OpenPoint, int] | None) -> int:
        """Store a check point for one message, and that it is acked in the one that it was in: one run.

        The end of the log. Raises `StoreRefused`, and `Rejected` when twice as many check points are open as
        pops may open: who has messages keeps them as long as possible. Then all is as before.
        """
        self.write_acks()
        limit = CHANGES_FACTOR * self._live.current.pop_check_points_max
        if self.points.count >= limit and (old is None or old[0].left & ~old[1]):
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{limit} check points are open (popCheckPointsMax and as many of changed invisible times): "
                "ack messages, or try again",
            )
        appended = self._append_point(record, revive_queue, _LATER)
        due = self._clock.monotonic() + record.invisible_time / 1000
        self.points.add(record, revive_queue, appended.queue_offset, due)
        if old is not None:
            self.points.replace(old[0], record.start_offset)
            self.settle(*old)
        return self.end

    def settle(self, point: OpenPoint, bits: int) -> None:
        """Messages are out no more in a check point: record it as an ack, now or when the store takes it."""
        bits &= point.left
        if not bits:
            return
        record, queue = self._acks_of(point, bits), point.revive_queue
        self.acked(point, bits)
        try:
            appended = self._append_acks(record, queue)
        except StoreRefused:
            self._owed.append((point, bits))
            return
        self.points.note_record(queue, appended.queue_offset)

    def pay_owed(self) -> bool:
        """Write what `settle` could not; whether nothing is owed any more."""
        while self._owed:
            point, bits = self._owed[-1]
            try:
                appended = self._append_acks(self._acks_of(point, bits), point.revive_queue)
            except StoreRefused:
                return False
            self.points.note_record(point.revive_queue, appended.queue_offset)
            self._owed.pop()
        return True

    def copy(self, point: OpenPoint) -> None:
        """Append an open check point again, which then stands for it. Raises `StoreRefused`."""
        appended = self._append_point(point.record(), point.revive_queue, _LATER)
        self.points.move(point, appended.queue_offset)

    def write_acks(self) -> None:
        """Store the acks of this turn: one record for each check point."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        turn, self._turn_acks = self._turn_acks, {}
        if len(turn) > 1:
            turn = self._write_run(turn)
        for point, acks in turn.items():
            bits = acks.bits & point.left
            result: int | StoreRefused = self.end
            if bits:
                try:
                    appended = self._append_acks(self._acks_of(point, bits), point.revive_queue)
                except StoreRefused as refused:
                    result = refused
                else:
                    self.points.note_record(point.revive_queue, appended.queue_offset)
                    self.acked(point, bits)
                    result = appended.end
            for on_stored in acks.on_stored:
                on_stored(result)

    def _write_run(self, turn: dict[OpenPoint, _TurnAcks]) -> dict[OpenPoint, _TurnAcks]:
        """Store the acks of several check points by one call; returns those that are left, maybe all."""
        now = self._clock.now_ms()
        left: dict[OpenPoint, _TurnAcks] = {}
        messages: list[PlainMessage] = []
        written: list[tuple[OpenPoint, _TurnAcks, int]] = []
        for point, acks in turn.items():
            bits = acks.bits & point.left
            if not bits:
                left[point] = acks
                continue
            record, queue = self._acks_of(point, bits), point.revive_queue
            properties, derived = revive_properties(record.tag, now), _DERIVED[record.tag]
            messages.append((self.topic, queue, record.encode(), properties, derived, 0, 0, now, 0))
            written.append((point, acks, bits))
        try:
            placed = self._store.append_run(messages, self._host)
        except StoreRefused:
            return turn  # each hears it by itself
        if placed is None:
            return turn
        for (point, acks, bits), (offset, size, place) in zip(written, placed, strict=True):
            source, queue, end = point.source, point.revive_queue, offset + size
            self._stored((source.group, source.topic, ACK), queue, place, end)
            self.points.note_record(queue, place)
            self.acked(point, bits)
            for on_stored in acks.on_stored:
                on_stored(end)
        return left

    def acked(self, point: OpenPoint, bits: int) -> None:
        """Messages are out no more in a check point, and a record says so."""
        source = point.source
        before = source.in_flight
        self.points.ack(point, bits)
        limit = self.in_flight_max
        if limit is not None and before > limit >= source.in_flight:
            self.on_free(normal_topic(source.group, source.topic), source.group)

    def _write_soon(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self.write_acks)

    @staticmethod
    def _acks_of(point: OpenPoint, bits: int) -> Acks:
        source = point.source
        return Acks(
            topic=source.topic, group=source.group, queue_id=source.queue_id, start_offset=point.start,
            pop_time=point.pop_time, broker=point.broker, offsets=point.offsets(bits),
        )  # fmt: skip

    # -- in flight ----------------------------------------------------------------------------------------

    def _use(self, settings: BrokerSettings) -> None:
        self.in_flight_max = (
            settings.pop_inflight_message_threshold if settings.enable_pop_message_threshold else None
        )
        """Messages of a queue that a group may have, so that a pop gives it more; None: any number."""

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Messages of the queue that the group has and has not acked."""
        source = self.points.sources.get((topic, group, queue_id))
        return source.in_flight if source is not None else 0

    def is_crowded(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether the group has so many messages of the queue that it gets no more."""
        limit = self.in_flight_max
        return limit is not None and self.in_flight(topic, group, queue_id) > limit

    # -- the topic ----------------------------------------------------------------------------------------

    def is_own_place(self, revive_queue: int, place: int) -> bool:
        """Whether this mastership has appended the record there: it is known without being read."""
        return place in self._own_places.get(revive_queue, ())

    def was_read(self, revive_queue: int, place: int) -> None:
        """The record there is known."""
        self.read_to[revive_queue] = place + 1
        own = self._own_places.get(revive_queue)
        if own is not None:
            own.discard(place)

    def _append_point(self, record: CheckPoint, revive_queue: int, more: bytes = b"") -> Appended:
        now = self._clock.now_ms()
        of = record.group, record.topic, CHECK_POINT
        properties = revive_properties(CHECK_POINT_TAG, now) + more
        return self._append(revive_queue, record.encode(), properties, now, of)

    def _append_acks(self, acks: Acks, revive_queue: int, more: bytes = b"") -> Appended:
        now = self._clock.now_ms()
        of = acks.group, acks.topic, ACK
        return self._append(revive_queue, acks.encode(), revive_properties(acks.tag, now) + more, now, of)

    def _append(
        self, revive_queue: int, body: bytes, properties: bytes, now: int, of: tuple[str, str, str]
    ) -> Appended:
        """The time of delivery is now, as of what Java's timers have delivered: the newest one in a queue is
        by what a Java master sees which check points are due."""
        try:
            appended = self._store.append(
                self.topic, revive_queue, body, properties,
                flag=0, sys_flag=0, born_timestamp=now, born_host=self._host,
            )  # fmt: skip
        except StoreRefused as refused:
            self.counts.not_stored.add((*of, refused.status.value))
            raise
        self._stored(of, revive_queue, appended.queue_offset, appended.end)
        return appended

    def _stored(self, of: tuple[str, str, str], revive_queue: int, place: int, end: int) -> None:
        """A record of ours is at this place: it is known without being read."""
        self.counts.stored.add(of)
        self.end = end
        if self.read_to.get(revive_queue, 0) == place:
            self.read_to[revive_queue] = place + 1
        else:
            self._own_places.setdefault(revive_queue, set()).add(place)
