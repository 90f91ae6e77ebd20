"""What becomes of a send to a queue of a subject, by the rules of docs/ordered-protocol.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from brokerset_broker.tables.ordered.values import OrderedQueue, ProducerState
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.order_stamps import decode_stamp
from brokerset_protocol.subject_words import PartitionStatus


class Stamps(NamedTuple):
    """The stamps of all messages of one request."""

    partition_id: int
    producer_id: str
    epoch: int
    first: int
    messages: int


class Verdict(Enum):
    """What becomes of a request."""

    STORE = "store"
    STORED = "stored"
    """All of it is in the log already."""
    FENCED = "fenced"
    SEALED = "sealed"
    NOT_OPEN = "not open"
    GAP = "gap"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a request, and why."""

    verdict: Verdict
    next_sequence: int = 0
    """Of the producer's epoch: what lies below is in the log."""

    skip: int = 0
    """With `STORE`: so many messages at the beginning are in the log already."""


def stamps_of(texts: Iterable[str | None]) -> Stamps:
    """The stamps of a request's messages, in their order. Raises FormatError, also if one has none."""
    partition, producer, epoch, first, count = 0, "", 0, 0, 0
    for text in texts:
        if text is None:
            raise FormatError("a message has no order stamp (property ORDER_STAMP)")
        stamp = decode_stamp(text)
        if not count:
            partition, _, producer, epoch, first = stamp
        elif (stamp.partition_id, stamp.producer_id, stamp.producer_epoch) != (partition, producer, epoch):
            raise FormatError("the messages of a request have one partition, producer and producer epoch")
        elif stamp.sequence != first + count:
            raise FormatError(f"sequence {stamp.sequence} follows on {first + count - 1}")
        count += 1
    if not count:
        raise FormatError("the request has no messages")
    return Stamps(partition, producer, epoch, first, count)


def decide_send(queue: OrderedQueue | None, known: ProducerState | None, stamps: Stamps) -> Decision:
    """Rules 1 to 6, in that order; sequences of another partition are none of this queue."""
    if queue is None or queue.partition_id != stamps.partition_id:
        return Decision(Verdict.NOT_OPEN)
    if known is not None and stamps.epoch < known.epoch:
        return Decision(Verdict.FENCED)
    following = known.next_sequence if known is not None and known.epoch == stamps.epoch else 0
    if stamps.first + stamps.messages <= following:
        return Decision(Verdict.STORED, following)
    if queue.state is PartitionStatus.SEALED:
        return Decision(Verdict.SEALED, following)
    if queue.state is not PartitionStatus.OPEN:
        return Decision(Verdict.NOT_OPEN, following)
    if stamps.first > following:
        return Decision(Verdict.UNKNOWN if known is None else Verdict.GAP, following)
    return Decision(Verdict.STORE, following, following - stamps.first)
