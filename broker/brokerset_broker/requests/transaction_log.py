"""Half messages, final records and op records on their way into the log; what is resolved goes along.

What `Resolved` knows is made from the store when a broker begins to lead (`services/transaction_loading`),
and from then on by what it appends here: nobody else writes these records. Sends are served meanwhile, and
their halves are kept until the rest is known; ends of transactions wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeAlias

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.stored_finals import ending_in_store
from brokerset_broker.requests.transaction_counts import TransactionCounts
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.releases import ServedEnds
from brokerset_broker.store.results import Appended
from brokerset_broker.transactions.resolved import Ending, PlainEnd, Resolved
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from brokerset_formats.records import Record, decode_record
from brokerset_formats.transactions import (
    HALF_QUEUE_ID,
    SUPERSEDING_END,
    Message,
    decode_op_offsets,
    op_bodies,
    op_message,
    target_of,
    to_half,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

KEPT_HALVES_MAX: Final = 100_000
"""Halves that are sent while the store is read; further ones are refused with SYSTEM_BUSY."""

WAITING_ENDS_MAX: Final = 10_000
"""Ends of transactions that wait meanwhile; further ones are refused with SYSTEM_BUSY."""

RETRY_SECONDS: Final = 1.0
"""Pause after the store refused op records."""

OPS_NOT_STORED: Final = (
    "the end of the transaction could not be stored; it is tried again, and a check asks for it"
)
"""The answer to ends whose op record the store did not take."""

OnOps = Callable[[int | None], None]
"""Gets the end of the log behind the op records of a turn; None if the store did not take them."""


StoredHalf: TypeAlias = tuple[int, int, bytes, int, str]
"""Number in the half topic, offset, UNIQ_KEY, bornTimestamp, topic that it is for."""


class _State(Enum):
    IDLE = "this broker does not lead"
    LOADING = "this broker reads which transactions are open"
    LEADING = "all is known"


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where what has to be read ends: everything behind goes by way of this log."""

    half: int
    """Queue offset of the next half message."""
    op: int
    """Queue offset of the next op record."""
    offset: int
    """Of the log."""


class TransactionLog:
    """Appends records of transactions, in the order that `transactions.resolved` demands."""

    def __init__(
        self, *, live: LiveSettings, store: MessageStore, clock: Clock, counts: TransactionCounts
    ) -> None:
        settings = live.current
        self._live = live
        self._store = store
        self._clock = clock
        self.counts = counts
        self._host = Host.from_text(settings.broker_ip1, settings.listen_port)
        self._state = _State.IDLE
        self._resolved: Resolved | None = None
        self._kept: list[Record] = []
        self._kept_topics: dict[int, str] = {}
        self._waiting: list[Callable[[], None]] = []
        self._on_ops: list[OnOps] = []
        self._turn: asyncio.Handle | None = None
        self._superseded: list[int] = []
        self.end = 0
        """Offset behind the last record that ends a transaction."""

    # -- leading ------------------------------------------------------------------------------------------

    def begin_loading(self) -> LogEnds:
        """This broker leads: what the store has below these ends is to be read, and given to `loaded`."""
        assert self._state is _State.IDLE, "an earlier mastership has ended"
        self._state = _State.LOADING
        store = self._store
        half_end, _ = store.tail(HALF_TOPIC, HALF_QUEUE_ID)
        op_end, _ = store.tail(OP_HALF_TOPIC, HALF_QUEUE_ID)
        self.end = store.max_offset
        return LogEnds(half_end, op_end, store.max_offset)

    def loaded(self, resolved: Resolved, topics: dict[int, str]) -> None:
        """All of the store was fed to `resolved`; `topics`: what each half there is for, by queue offset."""
        assert self._state is _State.LOADING, "somebody reads the store"
        for half in self._kept:
            resolved.half_stored(half)
        resolved.loaded()
        topics |= self._kept_topics
        self.counts.set_open(topics.get(number, "") for number in resolved.open_halves())
        self._kept, self._kept_topics = [], {}
        self._resolved, self._state = resolved, _State.LEADING
        self.write_ops_soon()  # those that an earlier master did not get to write
        waiting, self._waiting = self._waiting, []
        for serve in waiting:
            serve()

    def stop(self) -> None:
        """Append nothing any more; who waits is served by whoever serves such requests now."""
        self._state, self._resolved = _State.IDLE, None
        self._kept, self._kept_topics, self._superseded = [], {}, []
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._tell_of_ops(None)
        waiting, self._waiting = self._waiting, []
        for serve in waiting:
            serve()

    @property
    def resolved(self) -> Resolved | None:
        """What is resolved; None while that is not known."""
        return self._resolved

    def wait_for_resolved(self, serve: Callable[[], None]) -> None:
        """Call `serve` when `resolved` is known, or this broker leads no more. Raises `Rejected`."""
        if self._state is _State.IDLE:
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker does not end transactions (yet); it asks about them later, if it leads",
            )
        if len(self._waiting) >= WAITING_ENDS_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{WAITING_ENDS_MAX} ends of transactions wait until all open ones are known; try again",
            )
        self._waiting.append(serve)

    # -- halves -------------------------------------------------------------------------------------------

    def send_half(self, message: Message) -> Appended:
        """Store a message that a producer has sent as a half message. Raises `Rejected` if too many are open,
        `StoreRefused`."""
        resolved = self._resolved
        if (resolved is not None and resolved.is_full) or len(self._kept) >= KEPT_HALVES_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                "too many transactions are open: end some, and see that producers answer checks; try again",
            )
        appended = self.append_half(to_half(message))
        self.counts.begun(message.topic)
        if self._state is _State.LOADING:
            self._kept_topics[appended.queue_offset] = message.topic
        return appended

    def send_plain_half(
        self,
        topic: str,
        unique_key: bytes,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> Appended | None:
        """`send_half` of a message that has the half's properties already; None: take that way."""
        resolved = self._resolved
        if resolved is None or resolved.is_full:
            return None
        appended = self._store.append(
            HALF_TOPIC,
            HALF_QUEUE_ID,
            body,
            properties,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=born_timestamp,
            born_host=born_host,
            reconsume_times=reconsume_times,
        )
        resolved.half_begun(appended.queue_offset, appended.offset, unique_key, born_timestamp)
        self.counts.begun(topic)
        return appended

    @property
    def halves_room(self) -> int:
        """How many halves `halves_begun` may be given now; 0 while it is not known which are open."""
        resolved = self._resolved
        return 0 if resolved is None else resolved.room

    def halves_begun(self, halves: Sequence[StoredHalf]) -> None:
        """These were stored as `send_plain_half` stores them, in this order."""
        resolved = self._resolved
        assert resolved is not None, "there was room for them"
        begun = self.counts.begun
        for queue_offset, offset, unique_key, born_timestamp, topic in halves:
            resolved.half_begun(queue_offset, offset, unique_key, born_timestamp)
            begun(topic)

    def append_half(self, half: Message, supersedes: int | None = None) -> Appended:
        """Store a half message, or a copy of one: then `write_superseded` names the half at `supersedes`.
        Raises `StoreRefused`."""
        appended = self.append(half)
        if supersedes is not None:
            self._superseded.append(supersedes)
        record = self._record_of(half, appended)
        if self._resolved is not None:
            self._resolved.half_stored(record)
            if self._resolved.ops_to_write():
                self.write_ops_soon()  # a copy of a transaction that has ended
        elif self._state is _State.LOADING:
            self._kept.append(record)
        return appended

    def append(self, message: Message) -> Appended:
        """Store a message as it is, and nothing else. Raises `StoreRefused`."""
        return self._store.append(
            message.topic,
            message.queue_id,
            message.body,
            message.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host.encode(),
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )

    def _record_of(self, half: Message, appended: Appended) -> Record:
        """What `Resolved` needs of a half; without its body, whose CRC nobody needs either."""
        return Record(
            queue_id=half.queue_id,
            queue_offset=appended.queue_offset,
            offset=appended.offset,
            born_timestamp=half.born_timestamp,
            born_host=half.born_host,
            store_timestamp=appended.store_timestamp,
            store_host=self._host,
            body=b"",
            body_crc=0,
            topic=half.topic,
            properties=half.properties,
        )

    def read_half(self, offset: int) -> Record | None:
        """The record of the half topic at an offset of the log; None if there is none.

        Whoever names an offset inside of a message that looks like a half finds nothing: the queue, or what
        was appended, has to have the half at that place.
        """
        half = self.read(offset)
        if half is None or half.topic != HALF_TOPIC or half.queue_id != HALF_QUEUE_ID:
            return None
        if self._resolved is not None and self._resolved.place_of(half.queue_offset) == offset:
            return half
        return half if self._is_in_queue(half) else None

    def read_resumable(self, offset: int) -> Record | None:
        """`read_half` of a half, or of one that was given up."""
        record = self.read(offset)
        if record is None or record.topic != CHECK_MAX_TIME_TOPIC:
            return self.read_half(offset)
        return record if self._is_in_queue(record) else None

    def _is_in_queue(self, record: Record) -> bool:
        unit = self._store.unit(record.topic, record.queue_id, record.queue_offset)
        return unit is not None and unit[0] == record.offset

    def read(self, offset: int) -> Record | None:
        """The record at an offset of the log; None if there is none that can be read."""
        data = self._store.read(offset) if offset >= 0 else None
        if data is None:
            return None
        try:
            record = decode_record(data)
        except FormatError:
            return None
        return record if record.offset == offset else None

    def ending_in_store(self, half: Record, ending: Ending) -> Ending:
        """More exactly how the transaction of a half ended, if the store has more to say."""
        return ending_in_store(self._store, half, ending)

    # -- ends ---------------------------------------------------------------------------------------------

    def commit(self, half: Record, final: Message) -> int:
        """Store the final record of a commit; the end of the log behind it. Raises `StoreRefused`."""
        resolved = self._resolved
        assert resolved is not None, "the end was decided by what is resolved"
        self.write_ops_soon()
        appended = self.append(final)
        resolved.final_stored(final.prepared_transaction_offset)
        self.end = appended.end
        self.counts.committed(final.topic, half.born_timestamp)
        return appended.end

    def roll_back(self, half: Record, on_ops: OnOps) -> None:
        """Roll a transaction back; `on_ops` is called when the op record that says so is stored."""
        resolved = self._resolved
        assert resolved is not None, "the end was decided by what is resolved"
        resolved.rolled_back(half)
        self.write_ops_soon()
        self._on_ops.append(on_ops)
        try:
            topic, _ = target_of(half)
        except FormatError:
            return  # it may be rolled back all the same
        self.counts.rolled_back(topic)

    def ended(self, ends: Sequence[PlainEnd], found: ServedEnds) -> None:
        """These transactions, all plainly open, were ended by one call of `Releases`."""
        resolved = self._resolved
        assert resolved is not None, "the ends were decided by what is resolved"
        resolved.ended(ends)
        counts = self.counts
        committed: dict[str, list[int]] = {}
        for (_, _, commits), (topic, born_timestamp) in zip(ends, found.halves, strict=True):
            if commits:
                committed.setdefault(topic, []).append(born_timestamp)
            else:
                counts.rolled_back(topic)
        for topic, born_timestamps in committed.items():
            self.end = found.log_end
            counts.committed(topic, *born_timestamps)

    def when_ops_stored(self, on_ops: OnOps) -> None:
        """Call `on_ops` when the op records of all ends so far are stored."""
        if self._turn is None:
            on_ops(self.end)
        else:
            self._on_ops.append(on_ops)

    def write_ops_soon(self) -> None:
        """Store op records when this turn ends. Call it before the store's own end of the turn is set,
        so that slaves get final records and op records at once."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self.write_ops)

    def write_ops(self) -> None:
        """Store op records for all ends that have none; at the end of a turn, and before a progress moves."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        resolved = self._resolved
        if resolved is None:
            return
        try:
            offsets = resolved.ops_to_write()
            for body in op_bodies(offsets, self._live.current.transaction_op_msg_max_size):
                appended = self.append(op_message(body, self._host, self._clock.now_ms()))
                resolved.op_stored(appended.queue_offset, decode_op_offsets(body))
                self.end = appended.end
        except StoreRefused as refused:
            log.warning("op records of transactions wait for the store", reason=refused.reason)
            self._turn = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.write_ops)
            self._tell_of_ops(None)
        else:
            self._tell_of_ops(self.end)

    def write_superseded(self) -> None:
        """Store op records that keep a Java broker from checking halves that have newer copies."""
        resolved, offsets = self._resolved, self._superseded
        if resolved is None or not offsets:
            return
        self._superseded = []
        size_max = self._live.current.transaction_op_msg_max_size - len(SUPERSEDING_END)
        try:
            for body in op_bodies(tuple(offsets), size_max):
                appended = self.append(op_message(body, self._host, self._clock.now_ms(), superseded=True))
                resolved.op_stored(appended.queue_offset, decode_op_offsets(body), superseded=True)
                self.end = appended.end
        except StoreRefused as refused:
            log.warning("a Java broker would check older copies, too", reason=refused.reason)

    def _tell_of_ops(self, end: int | None) -> None:
        waiting, self._on_ops = self._on_ops, []
        for on_ops in waiting:
            on_ops(end)
