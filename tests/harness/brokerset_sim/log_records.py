"""Records of a commit log as checkers read them: decoded without the product's code, so that it is judged."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"

TRANSACTION_BITS: Final = 0xC
COMMIT: Final = 8
ROLLBACK: Final = 12

_HEAD: Final = struct.Struct(">IIIiiqqiqQqQiq")
_MAGIC_V1: Final = 0xDAA320A7
_HOST_V6_BITS: Final = 0x30


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One message as it lies in the log of a group."""

    topic: str
    queue_id: int
    queue_offset: int
    offset: int
    """In the commit log."""

    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    sys_flag: int = 0
    store_ms: int = 0
    """By the clock of the broker that has appended it."""

    prepared_offset: int = 0
    """`preparedTransactionOffset`: of the final record of a commit the offset of its half."""

    reconsume_times: int = 0
    """How often a group got it before, as its retry topic says."""

    epoch: int = 1
    """In which it was appended: a term of a DLedger, or one life of a broker that is alone."""

    @property
    def key(self) -> str:
        """What the producer has named the message by; empty if it has not."""
        return self.properties.get("UNIQ_KEY", "")


def log_record(data: bytes, epoch: int) -> LogRecord | None:
    """The record in these bytes; None for what is no message of an ordinary topic name (Java's v1)."""
    if len(data) < _HEAD.size:
        return None
    found = _HEAD.unpack_from(data)
    _, magic, _, queue_id, _, queue_offset, offset, sys_flag, _, _, store_ms, _, times, prepared = found
    if magic != _MAGIC_V1 or sys_flag & _HOST_V6_BITS:
        return None
    at = _HEAD.size
    (size,) = struct.unpack_from(">i", data, at)
    body = data[at + 4 : at + 4 + size]
    at += 4 + size
    topic = data[at + 1 : at + 1 + data[at]].decode()
    at += 1 + data[at]
    (size,) = struct.unpack_from(">h", data, at)
    pairs = data[at + 2 : at + 2 + size].decode().split("\x02")
    properties = dict(pair.split("\x01", 1) for pair in pairs if "\x01" in pair)
    return LogRecord(
        topic, queue_id, queue_offset, offset, body, properties, sys_flag, store_ms, prepared, times, epoch
    )
