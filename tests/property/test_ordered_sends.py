"""Producers of a subject's queue over random sends, repetitions, lost tails and failovers, against a model.

The model reads the whole log for every request; the broker has its tables, which it makes of the last record
of producers and the messages behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_sends import OrderedSends
from brokerset_broker.requests.replies import SendReplies
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.results import Appended, AppendedBatch
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.ordered.values import OrderedQueue, ProducersPut, Subject, SubjectsPut
from brokerset_formats.batches import BatchItem
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.order_stamps import decode_stamp
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import Record, decode_record, encode_record
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_rig.examples import examples
from brokerset_rig.ordered_broker import SUBJECT, Call, FakeConnection, batch, send_fields
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import DEFERRED

HOST = Host(bytes([127, 0, 0, 1]), 10911)
Sent = tuple[str, int, int]
"""Producer, epoch, sequence."""

WAITING = (ResponseCode.SUCCESS, ResponseCode.BROKERSET_SEQUENCE_GAP, ResponseCode.BROKERSET_QUEUE_SEALED)
"""Answers that say of the log what has to be confirmed first."""


@dataclass
class ModelLog:
    """Messages of one queue, and records of producers, in the order of the log."""

    entries: list[bytes | ProducersPut] = field(default_factory=list)
    confirmed: int = 0

    def messages(self) -> list[bytes]:
        return [entry for entry in self.entries if isinstance(entry, bytes)]

    def sent(self) -> list[Sent]:
        found = []
        for data in self.messages():
            stamp = decode_stamp(decode_properties(decode_record(data).properties)["ORDER_STAMP"])
            found.append((stamp.producer_id, stamp.producer_epoch, stamp.sequence))
        return found


class ModelStore:
    """Implements `OrderedStore`; an offset is a number of entries."""

    properties_size_max = 32_000

    def __init__(self, log: ModelLog) -> None:
        self._log = log

    def queue_min(self, topic: str, queue_id: int) -> int:
        return 0

    def queue_max(self, topic: str, queue_id: int) -> int:
        return len(self._log.messages())

    def tail(self, topic: str, queue_id: int) -> tuple[int, int]:
        return len(self._log.messages()), len(self._log.entries)

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        places = [place for place, entry in enumerate(self._log.entries) if isinstance(entry, bytes)]
        return (places[queue_offset], 1, 0) if 0 <= queue_offset < len(places) else None

    def read(self, offset: int, size: int | None = None) -> memoryview | None:
        entry = self._log.entries[offset]
        return memoryview(entry) if isinstance(entry, bytes) else None

    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes, **more: Any) -> Appended:
        made = self.append_batch(topic, queue_id, [BatchItem(0, body, properties)], **more)
        return Appended(made.offset, 1, made.queue_offset, made.store_timestamp)

    def append_batch(
        self, topic: str, queue_id: int, items: Sequence[BatchItem], **more: Any
    ) -> AppendedBatch:
        first, place = len(self._log.messages()), len(self._log.entries)
        for number, item in enumerate(items):
            self._log.entries.append(
                encode_record(
                    Record(
                        queue_id=queue_id, queue_offset=first + number, offset=0, born_timestamp=0,
                        born_host=HOST, store_timestamp=1, store_host=HOST, body=item.body, topic=topic,
                        properties=item.properties,
                    )
                )
            )  # fmt: skip
        end = len(self._log.entries)
        return AppendedBatch(list(range(place, end)), first, end, 1)


class Master:
    """A master on a log; `ChangeLog` as far as sends need it."""

    replicated = True
    taken_over_end = 0

    def __init__(self, log: ModelLog, state: PartitionStatus) -> None:
        self.log = log
        self.waiting: list[tuple[int, Callable[[PutStatus], None]]] = []
        self.ordered = OrderedTables()
        for entry in log.entries:
            if isinstance(entry, ProducersPut):
                self.ordered.apply(entry)
        self.set_state(state)
        admission, clock = Admission("b", 6), ManualClock()
        admission.when_durable = lambda end, callback: self.waiting.append((end, callback))
        self.sends = OrderedSends(
            ordered=self.ordered,
            store=ModelStore(log),
            admission=admission,
            changes=self,  # type: ignore[arg-type]  # the part that sends use
            stats=BrokerStats(clock),
            traffic=Traffic(),
            clock=clock,
            counters=OrderedCounters(),
            unique_ids=UniqueIds(HOST.address, 1, 1),
            born_host=lambda _connection, _ext: HOST.encode(),
            again=self.send_command,
        )
        self.sends.configure(SendReplies(HOST.encode(), "r", False), {}, 100_000)

    def set_state(self, state: PartitionStatus) -> None:
        queue = OrderedQueue(100, state, len(self.log.messages()))
        self.ordered.apply(SubjectsPut({SUBJECT: Subject(OrderStrategy.STRICT, 1, {0: queue})}))

    def flush_producers(self) -> None:
        part = self.ordered.live.take_changes()
        if part is not None:
            self.log.entries.append(part)
            self.ordered.apply(part)

    def send_command(self, connection: Any, command: Command) -> Any:
        return self.sends.send(connection, command, SUBJECT, 0)

    async def send(self, producer: str, epoch: int, first: int, count: int) -> Call:
        connection = FakeConnection()
        call = Call(connection)
        fields = {name: str(value) for name, value in send_fields(m="true").items()}
        body = batch(producer, epoch, range(first, first + count))
        reply = self.send_command(connection, Command(320, fields, body, version=479))
        if asyncio.iscoroutine(reply):
            reply = await reply
        if reply is not None and reply is not DEFERRED:
            call.answered(reply)
        return call

    def confirm(self) -> None:
        self.log.confirmed = len(self.log.entries)
        waiting, self.waiting = self.waiting, []
        for end, callback in waiting:
            assert end <= self.log.confirmed
            callback(PutStatus.PUT_OK)


def naive(
    sent: Sequence[Sent], state: PartitionStatus, producer: str, epoch: int, first: int, count: int
) -> tuple[int, list[Sent]]:
    """The answer's code and what is stored, from the whole log."""
    epochs = [each[1] for each in sent if each[0] == producer]
    if epochs and epoch < max(epochs):
        return ResponseCode.BROKERSET_PRODUCER_FENCED, []
    wanted = [(producer, epoch, number) for number in range(first, first + count)]
    missing = [each for each in wanted if each not in sent]
    if not missing:
        return ResponseCode.SUCCESS, []
    if state is PartitionStatus.SEALED:
        return ResponseCode.BROKERSET_QUEUE_SEALED, []
    if state is PartitionStatus.PREPARED:
        return ResponseCode.BROKERSET_QUEUE_NOT_OPEN, []
    following = sum(1 for each in sent if each[:2] == (producer, epoch))
    if missing[0][2] != following:
        unknown = ResponseCode.BROKERSET_PRODUCER_UNKNOWN
        return (ResponseCode.BROKERSET_SEQUENCE_GAP if epochs else unknown), []
    return ResponseCode.SUCCESS, missing


steps = st.one_of(
    st.tuples(
        st.just("send"), st.sampled_from("pq"), st.integers(1, 3), st.integers(0, 6), st.integers(1, 4)
    ),
    st.tuples(
        st.just("next"), st.sampled_from("pq"), st.integers(0, 1), st.integers(0, 2), st.integers(1, 4)
    ),
    st.tuples(
        st.just("next"), st.sampled_from("pq"), st.integers(0, 1), st.integers(0, 2), st.integers(1, 4)
    ),
    st.tuples(st.just("record")),
    st.tuples(st.just("confirm")),
    st.tuples(st.just("fail over"), st.integers(0, 8)),
    st.tuples(st.just("state"), st.sampled_from([PartitionStatus.OPEN, PartitionStatus.PREPARED])),
    st.tuples(st.just("state"), st.just(PartitionStatus.OPEN)),
    st.tuples(st.just("state"), st.just(PartitionStatus.SEALED)),
)


async def check(plan: list[tuple[Any, ...]]) -> None:
    log, state = ModelLog(), PartitionStatus.OPEN
    master = Master(log, state)
    pending: list[Call] = []
    acknowledged: list[Sent] = []
    told: list[tuple[Call, list[Sent]]] = []
    for step in plan:
        match step:
            case ("send" | "next" as kind, producer, epoch, first, count):
                sent = log.sent()
                if kind == "next":  # near what is expected: the present epoch or the next, some repeated
                    present = max((each[1] for each in sent if each[0] == producer), default=1)
                    epoch = present + (epoch if sent else 0)
                    stored = sum(1 for each in sent if each[:2] == (producer, epoch))
                    first = max(0, stored - first)
                code, stored_now = naive(sent, state, producer, epoch, first, count)
                call = await master.send(producer, epoch, first, count)
                assert log.sent() == [*sent, *stored_now]
                if call.answer is None:
                    assert code in WAITING
                    pending.append(call)
                    if code == ResponseCode.SUCCESS:
                        told.append((call, [(producer, epoch, first + at) for at in range(count)]))
                else:
                    assert call.code == code
            case ("record",):
                master.flush_producers()
            case ("confirm",):
                master.confirm()
                assert all(call.answer is not None for call in pending)
                acknowledged += [each for call, these in told if call.code == 0 for each in these]
                pending, told = [], []
            case ("fail over", lost):
                keep = max(log.confirmed, len(log.entries) - lost)
                log.entries = log.entries[:keep]
                pending, told = [], []
                state = PartitionStatus.OPEN if state is PartitionStatus.PREPARED else state
                master = Master(log, state)
            case ("state", wanted):
                state = state if state is PartitionStatus.SEALED else wanted
                master.set_state(state)
        present_now = log.sent()
        assert len(set(present_now)) == len(present_now), "a message is stored twice"
        assert set(acknowledged) <= set(present_now), "an acknowledged message is gone"
        for name in "pq":
            mine = [each[1:] for each in present_now if each[0] == name]
            assert mine == sorted(mine), "a producer's messages are out of order"


@given(st.lists(steps, min_size=5, max_size=40))
@examples(400)
def test_every_send_gets_what_the_whole_log_says(plan: list[tuple[Any, ...]]) -> None:
    """Whatever is sent, repeated and lost, the queue has each acknowledged message once, in its producer's
    order, and refuses what a reader of the whole log would refuse (statements 24, 25, 26)."""
    asyncio.run(check(plan))
