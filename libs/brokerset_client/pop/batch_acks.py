"""How several acks become the entries of one BATCH_ACK_MESSAGE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from brokerset_client.pop.popped import PoppedMessage
from brokerset_protocol.bodies.pop import BatchAck

DISTANCE_MAX: Final = 8 * 4096
"""Queue offsets between the begin of a pop and a message of it that an entry can name: 4 KiB of bits. What
lies further away, because a filter skipped so much, is acknowledged alone."""


def batch_acks(messages: Iterable[PoppedMessage]) -> list[BatchAck]:
    """Entries for messages that `fits_batch`, one for what one pop gave out of one queue."""
    offsets: dict[tuple[str, str, int, int, int, int, int, int], list[int]] = {}
    for message in messages:
        handle = message.handle
        key = (
            message.group,
            message.topic,
            handle.start_offset,
            handle.queue_id,
            handle.revive_queue,
            handle.pop_time,
            handle.invisible_time,
            handle.retry_flag,
        )
        offsets.setdefault(key, []).append(handle.queue_offset)
    return [
        BatchAck(
            consumer_group=group,
            topic=topic,
            start_offset=start,
            queue_id=queue_id,
            revive_queue_id=revive_queue,
            pop_time=pop_time,
            invisible_time=invisible_time,
            bit_set=BatchAck.bits_of(start, tuple(some)),
            retry=str(retry_flag),
        )
        for (
            group,
            topic,
            start,
            queue_id,
            revive_queue,
            pop_time,
            invisible_time,
            retry_flag,
        ), some in offsets.items()
    ]


def fits_batch(message: PoppedMessage) -> bool:
    """Whether an entry of a batch can name the message."""
    return 0 <= message.handle.queue_offset - message.handle.start_offset < DISTANCE_MAX
