"""Brokers of one group with ordered subjects: real stores, tables and request handlers; replication by hand.

Nothing is confirmed before a test says so, so that a master can end between an append and its confirmation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.locks import LockProcessor
from brokerset_broker.requests.offsets import OffsetProcessor
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.ordered_claims import ClaimProcessor
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_send_back import OrderedSendBackProcessor
from brokerset_broker.requests.ordered_shared import SharedGroups
from brokerset_broker.requests.ordered_subjects import SubjectQueuesProcessor
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.requests.pull import PullProcessor
from brokerset_broker.requests.send import SendProcessor
from brokerset_broker.requests.send_back import SendBackProcessor
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.topics import TopicProcessor
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.services.delay import DelayService
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_broker.tables.consumer_filters import ConsumerFilters
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_broker.tables.metadata.store_source import StoreSource
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.ordered_tables import FILE_NAME, OrderedTables
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.order_stamps import OrderStamp
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import decode_record
from brokerset_protocol.bodies.ordered import SubjectQueue, SubjectQueues
from brokerset_protocol.commands import Command, CommandReader
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.remoting import DEFERRED
from brokerset_spec.broker_settings import BrokerSettings

SUBJECT = "orders"
GROUP = "billing"
RETRY = f"%RETRY%{GROUP}%{SUBJECT}"
TURNS = 40
"""Turns of the loop in which everything that is ready has run."""


class FakeConnection:
    """The part of a connection that the processors use."""

    def __init__(self) -> None:
        self.peer = ("10.0.0.1", 54321)
        self.state: dict[str, Any] = {}
        self.in_flight = 0
        self.answers: list[Command] = []

    def answer(self, data: Command | bytes) -> None:
        self.answers.append(_command(data))

    answer_at_once = answer


class Call:
    """A request and what became of it."""

    def __init__(self, connection: FakeConnection) -> None:
        self._connection = connection
        self._answer: Command | None = None
        self.task: asyncio.Task[None] | None = None

    def answered(self, reply: Command | bytes | None) -> None:
        self._answer = None if reply is None else _command(reply)

    @property
    def answer(self) -> Command | None:
        """None until there is one."""
        if self._answer is None and self._connection.answers:
            self._answer = self._connection.answers[0]
        return self._answer

    @property
    def code(self) -> int | None:
        return None if self.answer is None else int(self.answer.code)

    @property
    def remark(self) -> str:
        assert self.answer is not None, "the request is not answered yet"
        return self.answer.remark or ""

    @property
    def ext(self) -> dict[str, str]:
        assert self.answer is not None, "the request is not answered yet"
        return {name: str(value) for name, value in self.answer.ext.items()}


class OrderedBroker:
    """One replica; `lead` makes it the master."""

    def __init__(self, folder: Path, clock: ManualClock | None = None, **settings: Any) -> None:
        self.folder = folder
        self.clock = clock or ManualClock()
        self.settings = BrokerSettings(
            store_path_root_dir=folder, enable_controller_mode=True, controller_addr="127.0.0.1:9878",
            mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 1_000,
            max_hash_slot_num=100, max_index_num=400, max_message_size=100_000, **settings,
        )  # fmt: skip
        live, clock_ = LiveSettings(self.settings), self.clock
        self.store = MessageStore(self.settings, clock_)
        self.log = StoreReplicaLog(self.store)
        self.topics = TopicManager(live, clock_)
        self.groups = GroupManager(live, clock_)
        self.offsets = OffsetManager(live, clock_)
        self.ordered = OrderedTables(folder / "config" / FILE_NAME)
        self.admission, self.locks = Admission("b", 6), QueueLocks(clock_)
        levels = DelayLevels.parse(self.settings.message_delay_level)
        delay = DelayService(
            store=self.store, clock=clock_, levels=levels, config_folder=folder / "config",
            admission=self.admission, is_subject=self.ordered.is_subject,
        )  # fmt: skip
        for manager in (self.topics, self.groups, self.offsets, delay, self.ordered):
            manager.load()
        self.store.load()
        self.store.start()
        source = StoreSource(self.store, clock_)
        self.tables = Tables(
            topics=self.topics, groups=self.groups, offsets=self.offsets, delay=delay, queues=source,
            ordered=self.ordered,
        )  # fmt: skip
        self._waiting: list[tuple[int, Any]] = []
        self.metadata = MetadataLog(
            settings=lambda: self.settings, store=source, tables=self.tables,
            stamp=StampFile(RealDisk(folder / "config")), run_blocking=_run_now,
            when_confirmed=self._when_confirmed,
        )  # fmt: skip
        self.metadata.load()
        self.parked = ParkedPulls(clock_, self.store.queue_max)
        self.store.on_arrival = self.parked.arrived
        self.tables.on_reset = self.parked.wake_queue
        self.admission.when_durable = self._when_confirmed
        self.counters = OrderedCounters()
        self._serve(live, levels, delay)
        self.log.on_confirmed(self._confirmed)
        self.log.follow()

    def _serve(self, live: LiveSettings, levels: DelayLevels, delay: DelayService) -> None:
        store, topics, groups, offsets = self.store, self.topics, self.groups, self.offsets
        admission, changes, clock = self.admission, self.metadata, self.clock
        stats, traffic, consumers = BrokerStats(clock), Traffic(), ConsumerTable(clock)
        self.delay = delay
        self.access = OrderedAccess(
            ordered=self.ordered, locks=self.locks, offsets=offsets, store=store, admission=admission,
            clock=clock, counters=self.counters, broker_name=lambda: "b",
        )  # fmt: skip
        self.sends = SendProcessor(
            live=live, store=store, topics=topics, groups=groups, locks=self.locks, admission=admission,
            levels=levels, stats=stats, traffic=traffic, clock=clock, changes=changes, ordered=self.ordered,
            ordered_counters=self.counters,
        )  # fmt: skip
        back = SendBackProcessor(
            live=live, store=store, topics=topics, groups=groups, admission=admission, levels=levels,
            stats=stats, traffic=traffic,
        )  # fmt: skip
        send_back = OrderedSendBackProcessor(
            access=self.access, copies=back.copies, store=store, topics=topics, groups=groups,
            admission=admission, changes=changes, stats=stats,
        )  # fmt: skip
        starts = itertools.count(1 << 20, 1 << 20)
        self.shared = SharedGroups(
            access=self.access, store=store, offsets=offsets, parked_pulls=self.parked, changes=changes,
            counters=self.counters, send_back=send_back, clock=clock, draw_start=lambda: next(starts),
        )  # fmt: skip
        self.handlers: dict[int, Any] = {}
        for processor in (
            self.sends,
            SubjectQueuesProcessor(
                ordered=self.ordered, store=store, topics=topics, admission=admission, changes=changes
            ),
            ClaimProcessor(
                access=self.access, store=store, topics=topics, groups=groups, offsets=offsets,
                parked_pulls=self.parked, admission=admission, changes=changes, counters=self.counters,
                shared=self.shared,
            ),
            PullProcessor(
                live=live, store=store, topics=topics, groups=groups, consumers=consumers, offsets=offsets,
                parked_pulls=self.parked, admission=admission, stats=stats, access=self.access,
                shared=self.shared,
                filters=ConsumerFilters(self.settings, clock) if self.settings.enable_property_filter else None,
            ),
            send_back,
            OffsetProcessor(
                live=live, admission=admission, store=StoreQueries(store), topics=topics, groups=groups,
                offsets=offsets, consumers=consumers, changes=changes, access=self.access,
            ),
            TopicProcessor(
                live=live, admission=admission, store=StoreQueries(store), topics=topics, offsets=offsets,
                consumers=consumers, stats=stats, changes=changes, ordered=self.ordered,
            ),
            LockProcessor(self.locks, topics, self.access),
        ):  # fmt: skip
            self.handlers.update(processor.handlers())

    # -- replication --------------------------------------------------------------------------------------

    def _when_confirmed(self, end: int, callback: Any) -> None:
        if self.log.confirmed_offset >= end:
            asyncio.get_running_loop().call_soon(callback, PutStatus.PUT_OK)
        else:
            self._waiting.append((end, callback))

    def _confirmed(self, offset: int) -> None:
        self.metadata.confirmed(offset)
        done = [each for each in self._waiting if each[0] <= offset]
        self._waiting = [each for each in self._waiting if each[0] > offset]
        for _, callback in done:
            callback(PutStatus.PUT_OK)

    async def lead(self, epoch: int = 1) -> None:
        """Become master; nothing of the epoch is confirmed."""
        await self.log.finish_received()
        self.log.lead()
        await self.metadata.lead(epoch)
        self.admission.accept_writes()

    async def follow(self) -> None:
        """Become a slave: everybody who waits is told so."""
        self.admission.refuse_writes()
        self.metadata.stop_leading()
        self.log.follow()
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
        await self.metadata.start_following()
        await turns()

    async def confirm(self, offset: int | None = None) -> None:
        """All in-sync replicas have the log, up to `offset` or its end; with what answers write meanwhile, which
        for an ack with a gap is a topic, copies and offsets, one after the other."""
        for _ in range(3):
            self.log.confirm(self.log.max_offset if offset is None else offset)
            await turns()

    async def copy_to(self, slave: OrderedBroker, until: int | None = None) -> None:
        """Let a slave have the log, up to a place between two records."""
        end = self.log.max_offset if until is None else until
        while slave.log.received_end < end:
            begin = slave.log.received_end
            size = min(end - begin, self.settings.mapped_file_size_commit_log - begin % (1 << 20))
            data = bytes(self.log.view(begin, size))
            slave.log.room(len(data))[: len(data)] = data
            slave.log.received(len(data))
        await slave.log.finish_received()

    def crash(self) -> None:
        """Let go of the folder; nothing is written any more."""
        self.store.abandon()

    async def close(self) -> None:
        """Close the store in order, with all files of config/."""
        await self.tables.saved()
        await self.metadata.close()
        await self.store.close()

    # -- requests -----------------------------------------------------------------------------------------

    async def start(self, code: int, body: bytes = b"", **ext: Any) -> Call:
        """Give a request to its handler, and let everything run that is ready."""
        connection = FakeConnection()
        call = Call(connection)
        fields = {name: str(value) for name, value in ext.items()}
        command = Command(code, fields, body, version=479)
        try:
            reply = self.handlers[code](connection, command)
        except Rejected as rejected:
            call.answered(command.reply(rejected.code, rejected.remark))
            return call
        if isinstance(reply, Coroutine):
            call.task = asyncio.get_running_loop().create_task(_await(reply, command, call))
        elif reply is not DEFERRED:
            call.answered(reply)
        await turns()
        return call

    async def call(self, code: int, body: bytes = b"", **ext: Any) -> Call:
        """The same, and confirm everything."""
        call = await self.start(code, body, **ext)
        await self.confirm()
        return call

    def queues_body(
        self, *queues: tuple[int, int, str], version: int = 1, deleted: bool = False, subject: str = SUBJECT
    ) -> bytes:
        """The body of 21031: queue, partition, state."""
        listed = tuple(
            SubjectQueue(queue, partition, PartitionStatus(state)) for queue, partition, state in queues
        )
        body: bytes = SubjectQueues(subject, OrderStrategy.STRICT, version, deleted, listed).to_json()
        return body

    async def put_queues(self, *queues: tuple[int, int, str], **more: Any) -> Call:
        return await self.call(21_031, self.queues_body(*queues, **more))

    async def send(self, count: int, *, queue_id: int = 0, producer: str = "p") -> None:
        """Store messages of a producer that has stored nothing; their bodies are their sequences."""
        for sequence in range(count):
            fields = send_one(producer, 1, sequence, queue_id=queue_id)
            assert (await self.call(310, b"%d" % sequence, **fields)).code == 0

    async def pull(self, queue_offset: int, epoch: int | None = 1, session: str = "s1", **more: Any) -> Call:
        return await self.call(11, **pull_fields(queue_offset, epoch, session, **more))

    async def ack(self, first: int, last: int, epoch: int = 1, session: str = "s1", **more: Any) -> Call:
        return await self.call(21_033, **owner(epoch, session, **more), first=first, last=last)

    async def claim(self, epoch: int = 1, session: str = "s1", *, pulled_to: int = -1, **more: Any) -> Call:
        return await self.call(21_032, **owner(epoch, session, **more), pulledTo=pulled_to)

    async def release(self, epoch: int = 1, session: str = "s1", **more: Any) -> Call:
        return await self.call(21_034, **owner(epoch, session, **more))

    def position(self, queue_id: int = 0, topic: str = SUBJECT) -> int | None:
        """What the group has acknowledged."""
        return self.offsets.query(GROUP, topic, queue_id)

    async def open(self, queues: int = 1) -> None:
        """Make the subject, with partitions that are numbered like their queues plus 100."""
        made = await self.put_queues(*((queue, 100 + queue, "Open") for queue in range(queues)))
        assert made.code == 0, made.answer


class Brokers:
    """Makes brokers in folders of their own, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self._made: list[OrderedBroker] = []

    def make(self, name: str = "b", **settings: Any) -> OrderedBroker:
        """A broker without a role; a name that was used before means its folder."""
        broker = OrderedBroker(self.folder / name, self.clock, **settings)
        self._made.append(broker)
        return broker

    async def master(self, queues: int = 1, **settings: Any) -> OrderedBroker:
        """A master with open queues of the subject: queue n is partition 100 + n."""
        broker = self.make(**settings)
        await broker.lead()
        await broker.open(queues)
        return broker

    def crash(self) -> None:
        """Let go of all stores."""
        for broker in self._made:
            broker.crash()


def stamped(producer: str, epoch: int, sequence: int, partition: int = 100) -> str:
    """The properties of a message."""
    stamp = OrderStamp(partition, 7, producer, epoch, sequence).encode()
    return encode_properties({"__SHARDINGKEY": "k", "ORDER_STAMP": stamp}).decode()


def send_fields(properties: str = "", queue_id: int = 0, **more: Any) -> dict[str, Any]:
    """Header fields of 310 and 320."""
    return {
        "a": "pg", "b": SUBJECT, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000,
        "h": 0, "i": properties, "j": 0, "k": "false", "m": "false", **more,
    }  # fmt: skip


def send_one(
    producer: str = "p", epoch: int = 1, sequence: int = 0, *, queue_id: int = 0, partition: int | None = None
) -> dict[str, Any]:
    """Header fields of a stamped message."""
    place = 100 + queue_id if partition is None else partition
    return send_fields(stamped(producer, epoch, sequence, place), queue_id)


def batch(producer: str, epoch: int, sequences: Sequence[int], *, partition: int = 100) -> bytes:
    """The body of 320: each message's body is its sequence."""
    return encode_batch(
        [
            BatchItem(0, b"%d" % sequence, stamped(producer, epoch, sequence, partition).encode())
            for sequence in sequences
        ]
    )


def owner(epoch: int = 1, session: str = "s1", *, topic: str = SUBJECT, queue_id: int = 0) -> dict[str, Any]:
    """Header fields of a session's requests."""
    return {
        "topic": topic, "consumerGroup": GROUP, "queueId": queue_id, "epoch": epoch, "session": session,
    }  # fmt: skip


def pull_fields(
    queue_offset: int, epoch: int | None = 1, session: str = "s1", *, group: str = GROUP, **more: Any
) -> dict[str, Any]:
    """Header fields of a pull; without an epoch it is a plain one."""
    fields = {
        "consumerGroup": group, "topic": SUBJECT, "queueId": 0, "queueOffset": queue_offset, "maxMsgNums": 32,
        "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG", **more,
    }  # fmt: skip
    if epoch is not None:
        fields |= {"brokersetEpoch": epoch, "brokersetSession": session}
    return fields


def bodies(broker: OrderedBroker, topic: str = SUBJECT, queue_id: int = 0) -> list[bytes]:
    """What a queue has, readable or not."""
    found = []
    for number in range(broker.store.queue_min(topic, queue_id), broker.store.tail(topic, queue_id)[0]):
        unit = broker.store.unit(topic, queue_id, number)
        assert unit is not None
        data = broker.store.read(unit[0])
        assert data is not None
        found.append(decode_record(data).body)
    return found


async def turns(count: int = TURNS) -> None:
    """Let everything run that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


async def _await(reply: Coroutine[Any, Any, Command | bytes | None], command: Command, call: Call) -> None:
    try:
        found = await reply
    except Rejected as rejected:
        found = command.reply(rejected.code, rejected.remark)
    if found is not None:
        call.answered(found)


async def _run_now(work: Any) -> Any:
    return work()


def _command(data: Command | bytes) -> Command:
    if isinstance(data, Command):
        return data
    reader = CommandReader()
    (found,) = reader.feed(data)
    return found
