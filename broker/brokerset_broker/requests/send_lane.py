"""The way of plain sends through the native core: one call for each chunk of input (`native/DESIGN.md`).

Plain halves (`plain_halves`) and plain timers (`plain_timers`) go along, into the queues where they wait.

Whether the broker takes sends at all is decided here before each call, as the Python path decides it for each
request. What the core declines goes the Python way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from types import ModuleType
from typing import Any, Final

import orjson

from brokerset_acl.access_book import AccessBook
from brokerset_acl.users import User
from brokerset_broker.requests.admission import PERM_WRITE, Admission
from brokerset_broker.requests.core_decisions import CoreDecisions
from brokerset_broker.requests.replies import SendReplies
from brokerset_broker.requests.send_refusals import CODES, STORED
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.timer_puts import TimerPuts
from brokerset_broker.requests.topic_facts import TopicFacts
from brokerset_broker.requests.traffic import TopicTraffic, Traffic
from brokerset_broker.requests.transaction_log import TransactionLog
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.topics import TopicManager
from brokerset_broker.timers.messages import DELIVERY_PROPERTIES_SIZE
from brokerset_broker.timers.put_decision import TIMER_QUEUE_ID
from brokerset_formats.names import HALF_TOPIC, TIMER_TOPIC, TOPIC_SIZE_MAX
from brokerset_formats.transactions import HALF_QUEUE_ID
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_RESPONSE, FRAME_SIZE_MAX, Command
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection

TIMED_MASK: Final = 31
"""One call of 32 is timed, since asking the clock costs as much as a message."""

_NEVER: Final = 1 << 62

_NOTHING: Final[tuple[TopicFacts | None, dict[int, ConsumeQueue]]] = (None, {})

_FIELDS: Final = (
    "queueId", "msgId", "queueOffset", "TRACE_ON", "MSG_REGION", "transactionId", "recallHandle",
)  # fmt: skip
"""Of an answer about a stored message, in the order of `SendReplies.reply` and `waiting`."""


class AsideKind(IntEnum):
    """Messages that are put aside when they are sent; the native core knows them by these numbers."""

    HALF = 1
    TIMER = 2


_PLACES: Final = {AsideKind.HALF: (HALF_TOPIC, HALF_QUEUE_ID), AsideKind.TIMER: (TIMER_TOPIC, TIMER_QUEUE_ID)}
"""Topic and queue where they wait."""

_TRAFFIC_KINDS: Final = {AsideKind.HALF: "transaction", AsideKind.TIMER: "delay"}
"""What `Traffic` calls them."""


class SendLane:
    """Serves the plain sends at the beginning of a chunk; for `RemotingServer`."""

    def __init__(
        self,
        core: ModuleType,
        *,
        store: MessageStore,
        topics: TopicManager,
        admission: Admission,
        stats: BrokerStats,
        traffic: Traffic,
        clock: Clock,
        broker_name: str,
        transactions: TransactionLog | None = None,
        timers: TimerPuts | None = None,
        book: AccessBook | None = None,
    ) -> None:
        """`core` is the native module. `configure` comes before the first chunk.

        Without `transactions` no half message is taken here, without `timers` none with a time of delivery.
        With `book` only what is signed by somebody who may send it is taken, see `allow`.
        """
        self._core = core
        self._lane: Any = None
        self._store = store
        self._topics = topics
        self._admission = admission
        self._stats = stats
        self._traffic = traffic
        self._clock = clock
        self._broker_name = broker_name
        self._transactions = transactions
        self._timers = timers if broker_name and " " not in broker_name else None
        self._book = book
        self._takes_halves = False
        self._aside_queues: dict[AsideKind, ConsumeQueue] = {}
        self._known: dict[str, tuple[TopicFacts | None, dict[int, ConsumeQueue]]] = {}
        """What the native lane knows, so that it is told once."""
        self._calls = 0
        self._settles = False
        self.is_open: Callable[[], bool] = lambda: False
        """Whether sends are served now, as the broker's role has it; set when the role is known."""
        self.served = 0
        """Messages that were stored this way."""
        store.log.use_calls()

    def configure(
        self, replies: SendReplies, suffix: bytes, body_size_max: int, *, takes_halves: bool
    ) -> None:
        """Go by new settings: how answers look, what is added to properties, bytes of a body."""
        store = self._store
        self._takes_halves = takes_halves
        config = {
            "store_host": store.store_host.encode(),
            "suffix": suffix,
            "body_size_max": min(body_size_max, store.body_size_max),
            "batch_size_max": store.batch_size_max,
            "properties_size_max": store.properties_size_max,
            "frame_size_max": FRAME_SIZE_MAX,
            "appends_crc": store.appends_crc,
            "delivery_properties_size": DELIVERY_PROPERTIES_SIZE,
            "broker_name": self._broker_name.encode(),
            "waiting": replies.waiting_pieces(),
            "single": replies.pieces(with_id=True),
            "batch": replies.pieces(with_id=False),
        }
        if self._lane is None:
            self._lane = self._core.SendLane(store.log, config, self._book is not None)
            self._decisions = CoreDecisions(self._book, self._lane)
        else:
            self._lane.configure(config)

    def learn(self, facts: TopicFacts, queue_id: int) -> None:
        """Serve sends to this queue from now on: the Python path has just stored a plain one in it."""
        topic = facts.config.topic_name
        queue = self._store.queues_table.table.get((topic, queue_id))
        known, queues = self._known.get(topic, _NOTHING)
        if known is facts and queues.get(queue_id) is queue:
            return
        if isinstance(queue, ConsumeQueue) and self._learn_topic(facts):
            self._lane.learn_queue(topic, queue_id, queue, queue.topic_field, queue.magic)
            self._known[topic][1][queue_id] = queue

    def learn_aside(self, facts: TopicFacts, kind: AsideKind) -> None:
        """Serve such messages, and this topic, from now on: the Python path has just stored a plain one."""
        place = topic, queue_id = _PLACES[kind]
        queue = self._store.queues_table.table.get(place)
        if not isinstance(queue, ConsumeQueue) or not self._learn_topic(facts):
            return
        if self._aside_queues.get(kind) is not queue:
            self._lane.learn_aside(kind, topic, queue_id, queue, queue.topic_field, queue.magic)
            self._aside_queues[kind] = queue

    def _learn_topic(self, facts: TopicFacts) -> bool:
        """Whether the topic is served here."""
        topic = facts.config.topic_name
        if self._known.get(topic, _NOTHING)[0] is facts:
            return True
        if facts.name_size > TOPIC_SIZE_MAX:  # the Python path takes single sends to it and refuses batches
            return False
        self._lane.learn_topic(topic, facts.config, facts, facts.queues)
        self._known[topic] = facts, {}
        return True

    def forget(self, topic: str) -> None:
        """Serve no sends to a topic until it is learnt again."""
        self._known.pop(topic, None)
        self._lane.forget(topic)

    def forget_all(self) -> None:
        """Serve no sends to any topic until it is learnt again."""
        self._known.clear()
        self._aside_queues.clear()
        self._lane.forget_all()

    def allow(self, user: User, topic: str, source: str) -> None:
        """Serve what the user, who is enabled, sends to a topic from an address, as of now."""
        self._decisions.allow(user, topic, source)

    def serve(self, connection: Connection, data: bytes) -> int:
        """Serve the plain sends at the beginning of `data`; returns their bytes."""
        admission, store = self._admission, self._store
        born_host = connection.state.get("born_host")
        index, dispatcher = store.index, store.dispatcher
        if (
            born_host is None
            or admission.refuses_writes
            or not admission.permission & PERM_WRITE
            or store.refusal is not None
            or (index is not None and (index.table is None or dispatcher.index_missing_from is not None))
            or not self.is_open()
            or connection.in_flight_room <= 0
            or connection.answers_room <= 0
        ):
            return 0
        self._decisions.drop_old()
        halves_max = slot_ms = max_delay_ms = 0
        if self._aside_queues:  # few brokers have any
            halves_max, slot_ms, max_delay_ms = self._limits_of_asides()
        when_durable = admission.when_durable
        self._calls += 1
        began = 0.0 if self._calls & TIMED_MASK else self._clock.monotonic()
        try:
            served = self._lane.serve(
                data,
                store.now_ms(),
                born_host,
                connection.peer[0],
                index.table if index is not None else None,
                self._topics.items,
                store.queues_table.table,
                _NEVER if when_durable is None else connection.in_flight_room,
                connection.answers_room if when_durable is None else _NEVER,
                halves_max,
                slot_ms,
                max_delay_ms,
            )
        except OSError as error:  # of blocks that it has given: the map could end the process
            store.stop(f"the disk does not take the commit log: {error}")
            return 0
        if served is None:
            return 0
        size, messages, waiting, replies, end, arrived, halves = served
        if began:
            self._stats.put_took(int((self._clock.monotonic() - began) * 1000 / messages))
        if arrived is not None:
            store.arrivals.add(arrived)
        if halves is not None:
            assert self._transactions is not None, "there was room for halves"
            self._transactions.halves_begun(halves)
        store.turn_soon()
        self.served += messages
        if not self._settles:
            self._settles = True
            (store.loop or asyncio.get_running_loop()).call_soon(self.settle)  # asking is a system call
        if not waiting:
            return int(size)
        if when_durable is None:
            connection.send(replies)
        else:
            connection.in_flight += waiting
            when_durable(end, partial(self._finish, connection, replies, waiting))
        return int(size)

    def _limits_of_asides(self) -> tuple[int, int, int]:
        """How many halves may be stored, and of timers milliseconds of a slot and of the longest wait."""
        transactions, timers = self._transactions, self._timers
        return (
            transactions.halves_room if transactions is not None and self._takes_halves else 0,
            *(timers.plain_limits() if timers is not None else (0, 0)),
        )

    def settle(self) -> None:
        """Add what was stored since to the counters; once for each turn of the loop."""
        self._settles = False
        stats = self._stats
        for facts, kind, calls, messages, size, classes in self._lane.take():
            stats.put_messages += messages
            stats.put_bytes += size
            stats.put_calls += calls
            flow, traffic = facts.flow, self._traffic_of(facts, kind) if kind else facts.traffic
            flow.messages += messages
            flow.size += size
            flow.calls += calls
            traffic.bytes_in += size
            for size_class, count in classes:
                traffic.sizes[size_class] += count

    def _traffic_of(self, facts: TopicFacts, kind: int) -> TopicTraffic:
        """The counter of a topic's messages that are put aside."""
        found = facts.asides.get(kind)
        if found is None:
            topic, name = facts.config.topic_name, _TRAFFIC_KINDS[AsideKind(kind)]
            if self._topics.get(topic) is None:  # deleted in this turn, and its counters with it
                return TopicTraffic()
            found = facts.asides[kind] = self._traffic.of_topic(topic, name)
        return found

    def _finish(self, connection: Connection, replies: bytes, waiting: int, status: PutStatus) -> None:
        """Answer the requests of one call; `replies` are the frames that say that all is well."""
        if status is PutStatus.PUT_OK:
            connection.in_flight -= waiting
            connection.send(replies)
            return
        for reply in with_status(replies, status):
            connection.answer(reply)


def with_status(replies: bytes, status: PutStatus) -> Iterator[Command]:
    """The same answers for messages that are not as safe as was asked for, or may not be stored."""
    code = int(CODES.get(status, ResponseCode.SYSTEM_ERROR))
    position = 0
    while position < len(replies):
        end = position + 4 + int.from_bytes(replies[position : position + 4], "big")
        fields = orjson.loads(replies[position + 8 : end])
        ext = fields["extFields"]
        yield Command(
            code,
            {name: ext[name] for name in _FIELDS if ext.get(name)} if status in STORED else {},
            opaque=fields["opaque"],
            flag=FLAG_RESPONSE,
            remark=status.value,
        )
        position = end
