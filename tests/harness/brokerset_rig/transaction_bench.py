"""A real store with what serves transactions on it, without sockets; time stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.end_transactions import TransactionProcessor
from brokerset_broker.requests.transaction_counts import TransactionCounts
from brokerset_broker.requests.transaction_log import TransactionLog
from brokerset_broker.services.transaction_checks import TransactionChecks
from brokerset_broker.services.transaction_loading import TransactionLoading
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.results import Appended
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.producers import ProducerTable
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_formats.hosts import Host
from brokerset_formats.properties import encode_properties
from brokerset_formats.transactions import Message
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_rig.local_servers import broker_settings
from brokerset_runtime.clock import ManualClock

HOST = Host(b"\x7f\x00\x00\x01", 5)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@dataclass
class FakePeer:
    """The part of a connection that ends and checks use."""

    peer: tuple[str, int] = ("10.0.0.1", 54321)
    unsent_bytes: int = 0
    answers: list[Command] = field(default_factory=list)
    asked: list[Command] = field(default_factory=list)
    deferred: list[Command] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def answer(self, command: Command) -> None:
        self.answers.append(command)

    def notify(self, command: Command) -> None:
        self.asked.append(command)

    async def call(self, command: Command, timeout: float) -> Command:
        raise NotImplementedError

    def serve_deferred(self, commands: list[Command]) -> None:
        self.deferred += commands


class TransactionBench:
    """The parts of one broker; `reopened` is the next process on the same store."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.live = LiveSettings(broker_settings(folder, listen_port=10911, **settings))
        self.store = MessageStore(self.live.current, self.clock)
        self.store.load()
        self.topics = TopicManager(self.live, self.clock)
        self.topics.load()
        self.topics.update(TopicConfig("t", 1, 1))
        self.offsets = OffsetManager(self.live, self.clock)
        self.producers = ProducerTable(self.clock)
        self.ordered = OrderedTables()
        self.admission = Admission("127.0.0.1", 6)
        self.log = TransactionLog(
            live=self.live,
            store=self.store,
            clock=self.clock,
            counts=TransactionCounts(self.clock.now_ms),
        )
        self.processor = TransactionProcessor(
            live=self.live,
            log_of_transactions=self.log,
            topics=self.topics,
            ordered=self.ordered,
            admission=self.admission,
            clock=self.clock,
        )
        self.checks = TransactionChecks(
            live=self.live,
            store=self.store,
            clock=self.clock,
            log_of_transactions=self.log,
            topics=self.topics,
            offsets=self.offsets,
            producers=self.producers,
            admission=self.admission,
        )
        self.peer = FakePeer()

    def lead(self) -> TransactionLoading:
        """Read the store, and lead; on the loop."""
        self.store.start()
        loading = TransactionLoading(self.store, self.offsets, self.log.begin_loading())
        for _ in loading.steps():
            pass
        self.log.loaded(loading.resolved, loading.topics)
        return loading

    def reopened(self) -> TransactionBench:
        """Crash, and open the store again."""
        self.log.stop()
        self.store.abandon()
        return TransactionBench(self.folder)

    def half(self, key: str, *, group: str = "pg", **properties: str) -> Appended:
        """Store a half message for queue 0 of `t`."""
        every = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key, **properties}
        return self.log.send_half(self.message("t", key.encode(), every))

    def message(self, topic: str, body: bytes, properties: dict[str, str], **more: Any) -> Message:
        """What is to be appended."""
        return Message(
            topic=topic,
            queue_id=0,
            body=body,
            properties=encode_properties(properties),
            born_timestamp=self.clock.now_ms(),
            born_host=HOST,
            **more,
        )

    def end(self, half: Appended, key: str, kind: int, *, one_way: bool = False, **changes: str) -> Any:
        """Ask for the end of a transaction; what the handler returns."""
        fields = {
            "producerGroup": "pg", "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.offset), "commitOrRollback": str(kind), "msgId": key, **changes,
        }  # fmt: skip
        command = Command(37, fields)
        command.flag |= FLAG_ONEWAY if one_way else 0
        return self.processor.end(self.peer, command)  # type: ignore[arg-type]  # the part of it that ends use

    def bodies(self, topic: str = "t") -> list[bytes]:
        """What a queue has."""
        found = []
        for number in range(self.store.queue_end(topic, 0)):
            unit = self.store.unit(topic, 0, number)
            assert unit is not None, "it was appended"
            record = self.log.read(unit[0])
            assert record is not None, "it was appended"
            found.append(record.body)
        return found

    def close(self) -> None:
        """Let go of the store."""
        self.log.stop()
        self.store.abandon()
