"""Batches of acks of popped messages."""

from __future__ import annotations

from typing import Annotated

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.pop.bit_sets import decode_bits, encode_bits
from brokerset_formats.pop.names import NORMAL, RETRY_V1, RETRY_V2
from brokerset_protocol.bodies.codec import Absent, JsonBody, Most, OrZero, Wire, convert

ACKS_MAX = 4_096
"""Check points of which one batch may name messages."""

_FLAGS = {"1": RETRY_V1, "2": RETRY_V2}


@dataclass(frozen=True, slots=True)
class BatchAck(JsonBody):
    """Messages of one check point that are acked."""

    consumer_group: Annotated[str, Wire("c")]
    topic: Annotated[str, Wire("t")]
    """Without the name of the retry topic, whatever `retry` says."""
    start_offset: Annotated[OrZero, Wire("so")]
    queue_id: Annotated[OrZero, Wire("q")]
    revive_queue_id: Annotated[OrZero, Wire("rq")]
    pop_time: Annotated[OrZero, Wire("pt")]
    invisible_time: Annotated[OrZero, Wire("it")]
    bit_set: Annotated[str, Wire("b"), Absent("")]
    """Bit i: the message at `start_offset` + i; see `offsets`."""
    retry: Annotated[str, Wire("r"), Absent("0")] = "0"
    """Retry flag, as text."""

    @property
    def retry_flag(self) -> int:
        """`retry` as a number; what Java does not know is 0."""
        return _FLAGS.get(self.retry, NORMAL)

    def offsets(self) -> tuple[int, ...]:
        """The queue offsets of the messages. Raises `Rejected` if the bits cannot be read."""
        bits = convert(decode_bits, self.bit_set, "bit set of a batch of acks")
        return tuple([self.start_offset + bit for bit in bits])

    @staticmethod
    def bits_of(start_offset: int, offsets: tuple[int, ...]) -> str:
        """The `bit_set` that names these queue offsets, none of which is before `start_offset`."""
        return encode_bits(offset - start_offset for offset in offsets)


@dataclass(frozen=True, slots=True)
class BatchAckMessages(JsonBody):
    """Body of BATCH_ACK_MESSAGE (200151)."""

    broker_name: str | None
    acks: Annotated[tuple[BatchAck, ...], Most(ACKS_MAX)] = ()
