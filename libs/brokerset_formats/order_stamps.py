"""The property `ORDER_STAMP` of a message of an ordered subject: where it belongs, and who sent it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from brokerset_formats.errors import FormatError
from brokerset_formats.order_keys import LOGICAL_PARTITIONS

PRODUCER_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What can be the id of a producer."""

NUMBER_MAX: Final = 2**63 - 1
"""Of partitions, epochs and sequences."""

_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_STAMP: Final = re.compile(rf"{_NUMBER}:{_NUMBER}:({PRODUCER_ID.pattern}):{_NUMBER}:{_NUMBER}", re.ASCII)


class OrderStamp(NamedTuple):
    """One message among those of its subject."""

    partition_id: int
    logical_partition: int
    producer_id: str
    producer_epoch: int
    sequence: int
    """Number of the message among those of the producer's epoch in the partition, from 0."""

    def encode(self) -> str:
        """The property's value: `partition:logical:producer:epoch:sequence`."""
        partition, logical, producer, epoch, sequence = self
        return f"{partition}:{logical}:{producer}:{epoch}:{sequence}"


def decode_stamp(text: str) -> OrderStamp:
    """The stamp in a property's value. Raises FormatError."""
    found = _STAMP.fullmatch(text)
    if found is None:
        raise FormatError(f"{text[:80]!r} is no order stamp: partition:logical:producer:epoch:sequence is")
    partition, logical, producer, epoch, sequence = found.groups()
    stamp = OrderStamp(int(partition), int(logical), producer, int(epoch), int(sequence))
    if stamp.logical_partition >= LOGICAL_PARTITIONS or max(stamp[0], stamp[3], stamp[4]) > NUMBER_MAX:
        raise FormatError(f"a number of the order stamp {text[:80]!r} is too large")
    return stamp
