"""Addresses of peers as records, message ids and batches hold them: address bytes and a port."""

from __future__ import annotations

import ipaddress
import struct

from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass

_V4 = struct.Struct(">4si")
_V6 = struct.Struct(">16si")

HOST_SIZE_V4 = _V4.size
HOST_SIZE_V6 = _V6.size


@dataclass(frozen=True, slots=True)
class Host:
    """One end of a connection: 4 or 16 address bytes, and a port (an i32 on disk)."""

    address: bytes
    port: int

    @property
    def v6(self) -> bool:
        """Whether the address has 16 bytes; records say so in their sysFlag."""
        return len(self.address) == 16

    @classmethod
    def from_text(cls, address: str, port: int) -> Host:
        """Parse `127.0.0.1` or `fd00::1` (a `%zone` is dropped); FormatError if it is neither."""
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError as error:
            raise FormatError(f"{address!r} is no IP address") from error
        if not 0 <= port <= 0xFFFF:
            raise FormatError(f"{port} is no port")
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        return cls((mapped or parsed).packed, port)

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0, v6: bool = False) -> Host:
        """Read 8 or 20 bytes at `position`; FormatError if there are fewer."""
        layout = _V6 if v6 else _V4
        if position < 0 or position + layout.size > len(buffer):
            raise FormatError("the data ends inside a host", position)
        address, port = layout.unpack_from(buffer, position)
        return cls(address, port)

    def encode(self) -> bytes:
        """The 8 or 20 bytes of a record."""
        return _V6.pack(self.address, self.port) if self.v6 else _V4.pack(self.address, self.port)

    @property
    def text(self) -> str:
        """`127.0.0.1:10911` or `[fd00::1]:10911`."""
        address = ipaddress.ip_address(self.address)
        return f"[{address}]:{self.port}" if self.v6 else f"{address}:{self.port}"
