"""Queues of ordered subjects by the rules of docs/ordered-protocol.md, for tests of producers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from brokerset_formats.batches import iterate_batch
from brokerset_formats.order_keys import partition_ranges
from brokerset_formats.order_stamps import OrderStamp, decode_stamp
from brokerset_formats.properties import Property, decode_properties
from brokerset_protocol.bodies.ordered import PartitionRoute, SubjectRoute
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.ordered import SendRefusedResponse
from brokerset_protocol.headers.send import SendKey, SendMessageResponse
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A record of a queue."""

    stamp: OrderStamp
    body: bytes
    message_id: str
    key: str | None
    properties: dict[str, str] = field(compare=False, default_factory=dict)


@dataclass(slots=True)
class ModelQueue:
    """One partition at its broker."""

    broker_group: str
    queue_id: int
    partition_id: int
    first: int
    end: int
    state: PartitionStatus = PartitionStatus.OPEN
    """As the controllers say; the broker's own view follows with `ModelSubject.inform_brokers`."""
    serves: PartitionStatus = PartitionStatus.OPEN
    """As the broker does."""
    log: list[LoggedMessage] = field(default_factory=list)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Epoch and next sequence of each."""

    def send(
        self, messages: list[LoggedMessage], illegal: Iterable[bytes] = (), keep: int | None = None
    ) -> Command:
        """What the broker does and answers. With `keep` its end of the log has only so many of the rest."""
        if any(message.body in illegal for message in messages) or not _belong_together(messages):
            return _answer(ResponseCode.MESSAGE_ILLEGAL)
        first = messages[0].stamp
        known = self.producers.get(first.producer_id)
        if known is not None and first.producer_epoch < known[0]:
            return _answer(ResponseCode.BROKERSET_PRODUCER_FENCED)
        expected = known[1] if known is not None and known[0] == first.producer_epoch else 0
        rest = [message for message in messages if message.stamp.sequence >= expected]
        if not rest:
            return self._stored(messages)
        if self.serves == PartitionStatus.SEALED:
            return _answer(ResponseCode.BROKERSET_QUEUE_SEALED, expected)
        if self.serves != PartitionStatus.OPEN or first.partition_id != self.partition_id:
            return _answer(ResponseCode.BROKERSET_QUEUE_NOT_OPEN)
        if rest[0].stamp.sequence != expected:
            if known is None:
                return _answer(ResponseCode.BROKERSET_PRODUCER_UNKNOWN, 0)
            return _answer(ResponseCode.BROKERSET_SEQUENCE_GAP, expected)
        for message in rest[:keep]:
            self.log.append(message)
            self.producers[first.producer_id] = (first.producer_epoch, message.stamp.sequence + 1)
        return self._stored(messages)

    def lose_end(self, count: int) -> None:
        """An unclean failover: the last messages are gone, though they were confirmed."""
        for message in reversed(self.log[len(self.log) - count :]):
            stamp = message.stamp
            self.producers[stamp.producer_id] = (stamp.producer_epoch, stamp.sequence)
        del self.log[len(self.log) - count :]

    def _stored(self, messages: list[LoggedMessage]) -> Command:
        places = [at for at, message in enumerate(self.log) if message.stamp == messages[0].stamp]
        whole = bool(places) and [each.stamp for each in self.log[places[0] : places[0] + len(messages)]] == [
            each.stamp for each in messages
        ]
        header = SendMessageResponse(
            msg_id=messages[0].message_id, queue_id=self.queue_id, queue_offset=places[0] if whole else -1
        )
        return Command(ResponseCode.SUCCESS, header.to_ext())


@dataclass(slots=True)
class ModelSubject:
    """A subject with its partitions on all broker groups, and its controllers."""

    name: str
    order_strategy: OrderStrategy
    groups: tuple[str, ...]
    queues: dict[int, ModelQueue] = field(default_factory=dict)
    version: int = 0
    generation: int = -1
    epoch: int = 0
    illegal: set[bytes] = field(default_factory=set)
    """Bodies that brokers refuse."""

    def scale(self, partitions: int) -> None:
        """A new generation: its partitions are open at once if there are none to be sealed."""
        older = [queue for queue in self.queues.values() if queue.state != PartitionStatus.SEALED]
        for queue in older:
            if queue.state != PartitionStatus.PREPARED:
                queue.state = PartitionStatus.SEALING
        self.generation += 1
        for at, (first, end) in enumerate(partition_ranges(partitions)):
            group = self.groups[at % len(self.groups)]
            number = len(self.queues)
            queue_id = sum(1 for queue in self.queues.values() if queue.broker_group == group)
            status = PartitionStatus.PREPARED if older else PartitionStatus.OPEN
            self.queues[number] = ModelQueue(group, queue_id, number, first, end, status, status)
        self.version += 1

    def seal(self, partition_id: int) -> None:
        """The broker closes a partition that is sealing, and the controllers hear of it."""
        queue = self.queues[partition_id]
        assert queue.state == PartitionStatus.SEALING
        queue.serves = PartitionStatus.SEALED

    def report(self) -> None:
        """The controllers hear what is sealed, and open what waited for it: in the route, not at brokers."""
        changed = False
        for queue in self.queues.values():
            if queue.state == PartitionStatus.SEALING and queue.serves == PartitionStatus.SEALED:
                queue.state = PartitionStatus.SEALED
                changed = True
        for queue in self.queues.values():
            older = [
                other
                for other in self.queues.values()
                if other.partition_id < queue.partition_id
                and other.first < queue.end
                and queue.first < other.end
            ]
            if queue.state == PartitionStatus.PREPARED and all(
                other.state == PartitionStatus.SEALED for other in older
            ):
                queue.state = PartitionStatus.OPEN
                changed = True
        self.version += changed

    def inform_brokers(self) -> None:
        """Brokers open what the controllers have opened."""
        for queue in self.queues.values():
            if queue.state == PartitionStatus.OPEN:
                queue.serves = PartitionStatus.OPEN

    def start_producer(self) -> int:
        """A new epoch."""
        self.epoch += 1
        return self.epoch

    def route(self) -> SubjectRoute:
        """As producers get it."""
        return SubjectRoute(
            self.name,
            self.order_strategy,
            self.version,
            self.generation,
            tuple(
                PartitionRoute(
                    queue.partition_id,
                    queue.first,
                    queue.end,
                    queue.broker_group,
                    queue.queue_id,
                    queue.state,
                )
                for queue in self.queues.values()
            ),
        )

    def send(self, broker_group: str, command: Command, keep: int | None = None) -> Command:
        """A send as its broker gets it."""
        queue_id = int(command.ext[SendKey.QUEUE_ID])
        for queue in self.queues.values():
            if (queue.broker_group, queue.queue_id) == (broker_group, queue_id):
                return queue.send(read_messages(command), self.illegal, keep)
        return _answer(ResponseCode.TOPIC_NOT_EXIST)

    def logged(self) -> list[LoggedMessage]:
        """All messages as consumers get them: an older partition before those that inherit from it."""
        return [message for number in sorted(self.queues) for message in self.queues[number].log]


def read_messages(command: Command) -> list[LoggedMessage]:
    """The messages of a send request, with their stamps."""
    if command.code == RequestCode.SEND_BATCH_MESSAGE:
        found = [(item.body, decode_properties(item.properties)) for item in iterate_batch(command.body)]
    else:
        found = [(command.body, decode_properties(command.ext[SendKey.PROPERTIES].encode()))]
    return [
        LoggedMessage(
            decode_stamp(properties[Property.ORDER_STAMP]),
            body,
            properties[Property.UNIQ_KEY],
            properties.get(Property.SHARDING_KEY),
            properties,
        )
        for body, properties in found
    ]


def _belong_together(messages: list[LoggedMessage]) -> bool:
    first = messages[0].stamp
    return [message.stamp._replace(logical_partition=first.logical_partition) for message in messages] == [
        first._replace(sequence=first.sequence + at) for at in range(len(messages))
    ]


def _answer(code: ResponseCode, next_sequence: int | None = None) -> Command:
    ext = {} if next_sequence is None else SendRefusedResponse(next_sequence=next_sequence).to_ext()
    return Command(code, ext, remark=code.name)
