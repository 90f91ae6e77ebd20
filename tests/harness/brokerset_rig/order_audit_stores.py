"""Stores of ordered subjects, made record by record: correct histories, and what could be wrong in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from brokerset_formats.identity import BrokerIdentity
from brokerset_formats.order_keys import logical_partition
from brokerset_formats.order_stamps import OrderStamp
from brokerset_formats.properties import encode_properties
from brokerset_protocol.bodies.ordered import PartitionState, SubjectState
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_rig.made_stores import Place, message, write_log

SUBJECT = "orders"
TIME_MS = 1_795_000_000_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as a producer sends it, in the queue where it is stored."""

    stamp: str | None
    """The property's value; None for a message without one."""

    key: str | None = None
    queue_id: int = 0
    topic: str = SUBJECT
    time: int = TIME_MS
    body: bytes = b"order"

    @property
    def properties(self) -> bytes:
        """As producers encode them."""
        named = {"UNIQ_KEY": "0A000007", "ORDER_STAMP": self.stamp or "", "__SHARDINGKEY": self.key or ""}
        return encode_properties(named)


def sent(
    sequence: int,
    *,
    key: str | None = "order-1",
    partition: int = 0,
    producer: str = "p-1",
    epoch: int = 1,
    queue_id: int = 0,
    time: int = TIME_MS,
    logical: int | None = None,
) -> Sent:
    """A message with the stamp that it must have."""
    number = logical if logical is not None else logical_partition(key or "")
    stamp = OrderStamp(partition, number, producer, epoch, sequence).encode()
    return Sent(stamp, key, queue_id, time=time)


class Producer:
    """Counts the sequences of one epoch in each partition."""

    def __init__(self, name: str = "p-1", epoch: int = 1) -> None:
        self.name, self.epoch = name, epoch
        self._sent: Counter[int] = Counter()

    def send(self, partition: int, key: str | None, *, queue_id: int, time: int = TIME_MS) -> Sent:
        """The next message to a partition."""
        sequence = self._sent[partition]
        self._sent[partition] += 1
        return sent(
            sequence, key=key, partition=partition, producer=self.name, epoch=self.epoch,
            queue_id=queue_id, time=time,
        )  # fmt: skip


def write_order_store(
    root: Path,
    messages: Iterable[Sent],
    *,
    broker: str | None = "broker-a",
    expired: int = 0,
    file_size: int = 65_536,
    entries: bool = False,
) -> list[Place]:
    """A store with these messages; the first `expired` ones have their queue offsets, and are not there."""
    following: Counter[tuple[str, int]] = Counter()
    records = []
    for number, each in enumerate(messages):
        queue = each.topic, each.queue_id
        if number >= expired:
            records.append(
                message(
                    number, topic=each.topic, queue_id=each.queue_id, queue_offset=following[queue],
                    properties=each.properties, body=each.body, store_timestamp=each.time,
                )
            )  # fmt: skip
        following[queue] += 1
    if broker is not None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "brokerIdentity").write_bytes(BrokerIdentity("cluster", broker, 1).encode())
    return write_log(root, records, file_size=file_size, entries=entries)


def partition_state(
    number: int,
    keys: tuple[int, int],
    *,
    generation: int = 0,
    queue_id: int | None = None,
    broker: str = "broker-a",
    sealed_end: int | None = None,
    inherits: tuple[int, ...] = (),
) -> PartitionState:
    """A partition as agreed: sealed if it has an end, else open."""
    status = PartitionStatus.OPEN if sealed_end is None else PartitionStatus.SEALED
    queue = number if queue_id is None else queue_id
    return PartitionState(number, generation, *keys, broker, queue, status, inherits, sealed_end)


def subject_state(*partitions: PartitionState, order: OrderStrategy = OrderStrategy.STRICT) -> SubjectState:
    """A subject with these partitions."""
    route = tuple(dict.fromkeys(each.broker_group for each in partitions))
    return SubjectState(SUBJECT, order, route, 1, max(each.generation for each in partitions), partitions)


def changed(messages: list[Sent], number: int, **changes: object) -> list[Sent]:
    """The same, one of them changed."""
    return [*messages[:number], replace(messages[number], **changes), *messages[number + 1 :]]  # type: ignore[arg-type]  # names of fields
