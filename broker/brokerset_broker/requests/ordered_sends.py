"""Sends to ordered subjects (10, 310, 320): each message is stored once, in its producer's order.

The rules and their order are those of docs/ordered-protocol.md; `tables.ordered.sequences` decides by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_parts import OrderedStore
from brokerset_broker.requests.replies import SendReplies
from brokerset_broker.requests.send_refusals import CODES, STORED, illegal_message, refusal
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.metadata.key_locks import KeyLocks
from brokerset_broker.tables.ordered.live_producers import RECORD_MESSAGES, LiveQueue, counted_from
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.ordered.sequences import Decision, Stamps, Verdict, decide_send, stamps_of
from brokerset_broker.tables.ordered.values import queue_key
from brokerset_formats.batches import BatchItem, iterate_batch
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.order_stamps import decode_stamp
from brokerset_formats.properties import Property, decode_properties, encode_properties, find_property
from brokerset_formats.records import SysFlag, decode_record
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import SendRefusedResponse
from brokerset_protocol.headers.send import SendMessageV2
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

READ_AT_ONCE: Final = 200
"""Messages that are read in one turn of the loop when the producers of a queue are counted."""

DUPLICATE_READS_MAX: Final = 1_000
"""Messages that are read to find where a message that comes again is stored; further back its place is not
told."""

GAPS_MAX: Final = 1_000
"""Epochs of producers whose gaps were logged, which are remembered; then one may be logged twice."""

UNKNOWN_PLACE: Final = -1
"""The queue offset in the answer to a message that is stored so far back."""

_STAMP: Final = Property.ORDER_STAMP.encode()
_PLAIN_BITS: Final = 0x0703
_HOST_BITS: Final = 0x0030
_INNER_BITS: Final = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH

_UNORDERED: Final = (
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.INNER_NUM,
    Property.INNER_MULTI_DISPATCH,
    Property.REPLY_TO_CLIENT,
    Property.LITE_TOPIC,
)
"""Properties of messages that would not be delivered in their order, or not at all."""

_REASONS: Final = {
    Verdict.FENCED: (
        ResponseCode.BROKERSET_PRODUCER_FENCED,
        "a newer epoch of producer {producer} has sent to {queue}: this one, {epoch}, must end",
    ),
    Verdict.SEALED: (
        ResponseCode.BROKERSET_QUEUE_SEALED,
        "{queue} is sealed permanently: ask the controllers for the route",
    ),
    Verdict.GAP: (
        ResponseCode.BROKERSET_SEQUENCE_GAP,
        "producer {producer} in epoch {epoch} sends sequence {first} to {queue}, which waits for {following}",
    ),
    Verdict.UNKNOWN: (
        ResponseCode.BROKERSET_PRODUCER_UNKNOWN,
        "{queue} does not know producer {producer}, so its first sequence must be 0, not {first}",
    ),
    Verdict.NOT_OPEN: (
        ResponseCode.BROKERSET_QUEUE_NOT_OPEN,
        "{queue} does not take messages of partition {partition} (yet); try again soon",
    ),
}
"""Code and remark of what is refused."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A send whose stamps are read."""

    connection: Connection
    command: Command
    header: SendMessageV2
    topic: str
    queue_id: int
    items: Sequence[BatchItem]
    is_batch: bool
    unique_id: str
    stamps: Stamps


class OrderedSends:
    """Stores what producers of ordered subjects send. `configure` comes before the first send."""

    def __init__(
        self,
        *,
        ordered: OrderedTables,
        store: OrderedStore,
        admission: Admission,
        changes: ChangeLog,
        stats: BrokerStats,
        traffic: Traffic,
        clock: Clock,
        counters: OrderedCounters,
        unique_ids: UniqueIds,
        born_host: Callable[[Connection, Mapping[str, str]], bytes],
        again: Callable[[Connection, Command], Reply],
    ) -> None:
        """`again` serves a request from its beginning, once the producers of its queue are known."""
        self._ordered = ordered
        self._store = store
        self._admission = admission
        self._changes = changes
        self._stats = stats
        self._traffic = traffic
        self._clock = clock
        self._counters = counters
        self._unique_ids = unique_ids
        self._born_host = born_host
        self._again = again
        self._reading = KeyLocks()
        self._gaps: dict[tuple[str, int, str, int], None] = {}
        self._body_max = 0
        self._replies = SendReplies(bytes(8), "", False)
        self._injected: Mapping[str, str] = {}

    def configure(self, replies: SendReplies, injected: Mapping[str, str], body_max: int) -> None:
        """Use these: how answers look, the broker's own properties, bytes of a body."""
        self._replies, self._injected, self._body_max = replies, injected, body_max

    def send(self, connection: Connection, command: Command, topic: str, queue_id: int) -> Reply:
        """A send to a subject that is not deleted, on a broker that takes writes."""
        if not self._changes.replicated:
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{topic} is an ordered subject, and broker {self._admission.name} is in no group any more: "
                "nothing that it stores would be confirmed",
            )
        try:
            request = self._read(connection, command, topic, queue_id)
        except FormatError as error:
            self._counters.refused_send("illegal")
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{topic} is an ordered subject: its messages are sent by a brokerset OrderedProducer, which "
                f"stamps them, or go to a topic of another name. Here {error}; nothing was stored",
            ) from None
        live = self._ordered.live.get(topic, queue_id)
        if live is None:
            queue = self._ordered.queue(topic, queue_id)
            if queue is not None and queue.partition_id == request.stamps.partition_id:
                return self._send_when_read(connection, command, topic, queue_id)
            return self._refuse(request, Decision(Verdict.NOT_OPEN))
        decision = decide_send(
            self._ordered.queue(topic, queue_id),
            live.producers.get(request.stamps.producer_id),
            request.stamps,
        )
        if decision.verdict is Verdict.STORE:
            return self._store_rest(request, live, decision.skip)
        return self._refuse(request, decision)

    # -- reading ------------------------------------------------------------------------------------------

    def _read(self, connection: Connection, command: Command, topic: str, queue_id: int) -> _Request:
        """The request with its messages as they are to be stored. Raises FormatError, and `Rejected`."""
        header = SendMessageV2.from_ext(command.ext)
        if header.sys_flag & ~(_PLAIN_BITS | _HOST_BITS):
            raise FormatError("the message is one of a transaction, or an inner batch, which have no order")
        is_batch = command.ext.get("m") == "true"
        text = (header.properties or "").encode()
        if is_batch:
            if not 0 < len(command.body) <= self._body_max:
                raise illegal_message(self._body_max)
            items: list[BatchItem] = iterate_batch(command.body)
            for item in items:
                _check_properties(decode_properties(item.properties))
            unique_id = decode_properties(text).get(Property.UNIQ_KEY, "") if text else ""
        else:
            properties = decode_properties(text)
            _check_properties(properties)
            properties.pop(Property.POP_CK, None)
            properties.pop(Property.CRC32, None)
            properties.update(self._injected)
            unique_id = properties.setdefault(
                Property.UNIQ_KEY, self._unique_ids.next_id(self._clock.now_ms())
            )
            raw = encode_properties(properties)
            if not 0 < len(command.body) <= self._body_max or len(raw) > self._store.properties_size_max:
                raise illegal_message(self._body_max)
            items = [BatchItem(header.flag, command.body, raw)]
        stamps = stamps_of(
            None
            if (found := find_property(item.properties, _STAMP)) is None
            else found.decode("ascii", "replace")
            for item in items
        )
        return _Request(connection, command, header, topic, queue_id, items, is_batch, unique_id, stamps)

    async def _send_when_read(
        self, connection: Connection, command: Command, topic: str, queue_id: int
    ) -> Command | bytes | None:
        await self.count_producers(topic, queue_id)
        reply = self._again(connection, command)
        if reply is DEFERRED:
            connection.in_flight += 1  # in addition to the one of this coroutine, which ends here
            return None
        return await reply if asyncio.iscoroutine(reply) else reply

    async def count_producers(self, topic: str, queue_id: int) -> None:
        """Find out what the queue has of its producers: by the last record, and the messages behind it.

        The log is read up to its end, confirmed or not: this master stores behind all of that. Nothing is
        appended to the queue meanwhile. Raises `Rejected` when the broker leads no more.
        """
        ordered, store, live = self._ordered, self._store, self._ordered.live
        async with self._reading.hold([queue_key(topic, queue_id)]):
            if live.get(topic, queue_id) is not None:
                return
            generation = live.generation
            known = ordered.state.producers.get(topic, {}).get(queue_id)
            begin, end = store.queue_min(topic, queue_id), store.tail(topic, queue_id)[0]
            queue = counted_from(known, begin, end)
            if known is not None and known.complete_to > end:
                log.error(
                    "the log has lost messages of a subject that were counted: all of the queue is read",
                    topic=topic, queue_id=queue_id, counted_to=known.complete_to, begin=begin, end=end,
                )  # fmt: skip
                self._counters.loss("producers")
            begin = queue.complete_to
            for first in range(begin, end, READ_AT_ONCE):
                for queue_offset in range(first, min(end, first + READ_AT_ONCE)):
                    self._count(queue, topic, queue_id, queue_offset)
                await asyncio.sleep(0)
                if live.generation != generation:
                    raise Rejected(
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        f"the role of broker {self._admission.name}, or a subject, has changed; try again",
                    )
            if ordered.is_subject(topic):
                live.put(topic, queue_id, queue)
            if end > begin:
                log.info(
                    "producers of a queue counted", topic=topic, queue_id=queue_id, begin=begin, end=end,
                    producers=len(queue.producers),
                )  # fmt: skip

    def _count(self, queue: LiveQueue, topic: str, queue_id: int, queue_offset: int) -> None:
        unit = self._store.unit(topic, queue_id, queue_offset)
        data = None if unit is None else self._store.read(unit[0])
        if data is None:
            return  # retention was quicker
        try:
            record = decode_record(data)
            stamp = find_property(record.properties, _STAMP)
            if stamp is not None:
                queue.count(decode_stamp(stamp.decode()), queue_offset, record.store_timestamp)
        except (FormatError, UnicodeDecodeError) as error:
            log.error("a message of a subject has no stamp that can be read", topic=topic, queue_id=queue_id,
                      queue_offset=queue_offset, reason=str(error))  # fmt: skip

    # -- storing ------------------------------------------------------------------------------------------

    def _store_rest(self, request: _Request, live: LiveQueue, skip: int) -> Reply:
        producer, count = request.stamps.producer_id, request.stamps.messages - skip
        now_ms = self._clock.now_ms()
        if producer not in live.producers and not (
            live.make_room(now_ms) and self._ordered.live.has_room(now_ms)
        ):
            self._counters.refused_send("full")
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"queue {request.queue_id} of {request.topic} has as many producers as it can remember: use "
                "fewer producer ids, or wait until some have been idle for hours; nothing was stored",
            )
        header, items = request.header, request.items[skip:]
        born_host = self._born_host(request.connection, request.command.ext)
        sys_flag = header.sys_flag & _PLAIN_BITS
        try:
            if request.is_batch:
                batch = self._store.append_batch(
                    request.topic, request.queue_id, items, sys_flag=sys_flag,
                    born_timestamp=header.born_timestamp, born_host=born_host,
                )  # fmt: skip
                queue_offset, end, stored_ms = batch.queue_offset, batch.end, batch.store_timestamp
                ids, size = self._replies.message_ids(batch.offsets), batch.size
            else:
                one = self._store.append(
                    request.topic, request.queue_id, items[0].body, items[0].properties, flag=header.flag,
                    sys_flag=sys_flag, born_timestamp=header.born_timestamp, born_host=born_host,
                    reconsume_times=header.reconsume_times or 0,
                )  # fmt: skip
                queue_offset, end, stored_ms = one.queue_offset, one.end, one.store_timestamp
                ids, size = self._replies.message_id(one.offset), one.size
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise refusal(refused, self._body_max) from None
        live.stored(request.stamps, queue_offset + count - 1, stored_ms, count)
        self._ordered.live.note(request.topic, request.queue_id)
        if live.unwritten >= RECORD_MESSAGES:
            self._changes.flush_producers()
        self._stats.put(request.topic, count, size)
        self._traffic.of_topic(request.topic, "fifo").add(count, size)
        self._counters.duplicates += skip
        return self._when_confirmed(request, end, partial(self._success, request, queue_offset, ids))

    # -- answers ------------------------------------------------------------------------------------------

    def _refuse(self, request: _Request, decision: Decision) -> Reply:
        """The answer to what is not stored now; what it says of sequences is confirmed first."""
        verdict = decision.verdict
        _, end = self._store.tail(request.topic, request.queue_id)
        if verdict is Verdict.STORED:
            self._counters.duplicates += request.stamps.messages
            return self._when_confirmed(request, end, partial(self._success, request, *self._place(request)))
        self._counters.refused_send(verdict.value)
        if verdict is Verdict.GAP:
            self._note_gap(request, decision.next_sequence)
        code, reason = _REASONS[verdict]
        stamps = request.stamps
        text = reason.format(
            queue=f"queue {request.queue_id} of {request.topic}",
            partition=stamps.partition_id,
            producer=stamps.producer_id,
            epoch=stamps.epoch,
            first=stamps.first,
            following=decision.next_sequence,
        )
        ext: dict[str, str] = {}
        if verdict in (Verdict.GAP, Verdict.UNKNOWN, Verdict.SEALED):
            ext = SendRefusedResponse(next_sequence=decision.next_sequence).to_ext()
        answer = request.command.reply(code, f"{text}; nothing was stored", ext=ext)
        if verdict in (Verdict.GAP, Verdict.SEALED):
            # A seal of this mastership is confirmed when it is seen; one of before may not be yet.
            return self._when_confirmed(request, max(end, self._changes.taken_over_end), lambda: answer)
        return answer

    def _note_gap(self, request: _Request, following: int) -> None:
        """A producer has one request in flight, and goes on when it is confirmed: what lies between is lost.

        It is logged once for a producer's epoch in a queue, however often the request is repeated.
        """
        stamps = request.stamps
        gap = (request.topic, request.queue_id, stamps.producer_id, stamps.epoch)
        if gap in self._gaps:
            return
        if len(self._gaps) >= GAPS_MAX:
            del self._gaps[next(iter(self._gaps))]
        self._gaps[gap] = None
        self._counters.loss("producer")
        log.warning(
            "confirmed messages of a subject are lost: their producer goes on behind them",
            topic=request.topic, queue_id=request.queue_id, producer=stamps.producer_id, epoch=stamps.epoch,
            missing_from=following, missing_to=stamps.first - 1,
        )  # fmt: skip

    def _place(self, request: _Request) -> tuple[int, str]:
        """Queue offset of the first message and ids of all, of a request that is stored already."""
        stamps = request.stamps
        live = self._ordered.live.get(request.topic, request.queue_id)
        known = None if live is None else live.producers.get(stamps.producer_id)
        if known is None:
            return UNKNOWN_PLACE, ""
        ids: list[int] = []
        first = UNKNOWN_PLACE
        low = max(
            self._store.queue_min(request.topic, request.queue_id),
            known.queue_offset + 1 - DUPLICATE_READS_MAX,
        )
        for queue_offset in range(known.queue_offset, low - 1, -1):
            unit = self._store.unit(request.topic, request.queue_id, queue_offset)
            data = None if unit is None else self._store.read(unit[0])
            if unit is None or data is None:
                continue
            sequence = _sequence_of(bytes(data), stamps)
            if sequence is None or sequence >= stamps.first + stamps.messages:
                continue
            ids.append(unit[0])
            first = queue_offset
            if sequence <= stamps.first:
                return first, self._replies.message_ids(ids[::-1])
        return UNKNOWN_PLACE, ""

    def _success(self, request: _Request, queue_offset: int, ids: str) -> bytes | Command:
        return self._replies.success(request.command, request.queue_id, queue_offset, ids, request.unique_id)

    def _when_confirmed(self, request: _Request, end: int, answer: Callable[[], Command | bytes]) -> Reply:
        """Answer once the log is confirmed up to `end`, whatever WAIT says; or say that it is not."""
        when_durable = self._admission.when_durable
        if when_durable is None or request.command.flag & FLAG_ONEWAY:
            return answer()
        when_durable(end, partial(self._finish, request, answer))
        return DEFERRED

    @staticmethod
    def _finish(request: _Request, answer: Callable[[], Command | bytes], status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            request.connection.answer(answer())
            return
        code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
        stored = "; it may be stored, and can be sent again unchanged" if status in STORED else ""
        request.connection.answer(request.command.reply(code, f"{status.value}{stored}"))


def _check_properties(properties: Mapping[str, str]) -> None:
    """Raise FormatError for a message that would not be delivered in its order."""
    found = [name for name in _UNORDERED if name in properties]
    level = properties.get(Property.DELAY)
    if level is not None and level.lstrip("-") and level != "0" and not level.startswith("-"):
        found.append(Property.DELAY)
    if properties.get(Property.TRAN_MSG, "").lower() == "true":
        found.append(Property.TRAN_MSG)
    if found:
        raise FormatError(f"a message has the property {found[0]}, which ordered subjects do not serve")


def _sequence_of(data: bytes, stamps: Stamps) -> int | None:
    """The sequence of a record of the same producer and epoch; None for others."""
    try:
        text = find_property(decode_record(data).properties, _STAMP)
        stamp = None if text is None else decode_stamp(text.decode())
    except (FormatError, UnicodeDecodeError):
        return None
    if stamp is None or (stamp.producer_id, stamp.producer_epoch) != (stamps.producer_id, stamps.epoch):
        return None
    return stamp.sequence
