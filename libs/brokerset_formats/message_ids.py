"""Message ids: the broker's (host and offset) and the one that a producer makes up."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta

from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import HOST_SIZE_V4, HOST_SIZE_V6, Host

_OFFSET = struct.Struct(">q")
_ID_SIZE_V4 = 2 * (HOST_SIZE_V4 + _OFFSET.size)
_ID_SIZE_V6 = 2 * (HOST_SIZE_V6 + _OFFSET.size)


def encode_offset_id(host: Host, offset: int) -> str:
    """The offsetMsgId: upper-case hex of the storing broker's host and the record's offset in its log."""
    return (host.encode() + _OFFSET.pack(offset)).hex().upper()


def decode_offset_id(text: str) -> tuple[Host, int]:
    """Host and offset of an offsetMsgId (32 or 56 hex digits); FormatError for anything else."""
    if len(text) not in (_ID_SIZE_V4, _ID_SIZE_V6):
        raise FormatError(f"message id {text[:80]!r} has {len(text)} characters instead of 32 or 56")
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise FormatError(f"message id {text!r} is not hexadecimal") from error
    if 2 * len(raw) != len(text):  # fromhex skips white space
        raise FormatError(f"message id {text!r} is not hexadecimal")
    host = Host.decode(raw, 0, v6=len(text) == _ID_SIZE_V6)
    (offset,) = _OFFSET.unpack_from(raw, len(raw) - _OFFSET.size)
    return host, offset


class UniqueIds:
    """Makes ids in the layout of Java's `MessageClientIDSetter`, of which only equality matters to a broker.

    They hold the address, the process id, a number that tells apart several makers in one process, the
    milliseconds since the month began, and a counter. Months begin in the time zone `utc_offset_ms` east of
    Greenwich: Java uses local time, and its tools read the time of sending from ids.
    """

    __slots__ = ("_counter", "_month_end_ms", "_month_start_ms", "_prefix", "_utc_offset_ms")

    def __init__(self, address: bytes, process_id: int, maker: int, *, utc_offset_ms: int = 0) -> None:
        if len(address) not in (4, 16):
            raise FormatError(f"an address of {len(address)} bytes")
        fixed = address + struct.pack(">HI", process_id & 0xFFFF, maker & 0xFFFFFFFF)
        self._prefix = fixed.hex().upper()
        self._counter = 0
        self._utc_offset_ms = utc_offset_ms
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next_id(self, now_ms: int) -> str:
        """A new id: 32 hex digits, 56 with an IPv6 address. Unique for 65,536 ids a millisecond."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._turn_month(now_ms)
        self._counter = counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{now_ms - self._month_start_ms:08X}{counter:04X}"

    def _turn_month(self, now_ms: int) -> None:
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        local = epoch + timedelta(milliseconds=now_ms + self._utc_offset_ms)
        start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + timedelta(days=32)).replace(day=1)
        self._month_start_ms = (start - epoch) // timedelta(milliseconds=1) - self._utc_offset_ms
        self._month_end_ms = (end - epoch) // timedelta(milliseconds=1) - self._utc_offset_ms
