"""RocketMQ's binary layout of a command header, the alternative to JSON.

Source: RocketMQ's `RocketMQSerializable`. Big-endian:

    i16 code | u8 language | i16 version | i32 opaque | i32 flag
    i32 length + remark | i32 length + fields, each: i16 length + key, i32 length + value

An empty remark or value means "absent" to Java, and is dropped here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from brokerset_protocol.errors import LocalProtocolError, RemoteProtocolError

CODE_MAX = 0x7FFF
"""Largest code that fits; requests of the POP family do not, and only work with JSON headers."""

KEY_SIZE_MAX = 0x7FFF

_FIXED = struct.Struct(">hBhiii")
_FIXED_SIZE = _FIXED.size + 4
_pack_fixed = _FIXED.pack
_unpack_fixed = _FIXED.unpack_from
_pack_int = struct.Struct(">i").pack
_pack_short = struct.Struct(">H").pack


def encode(
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str]
) -> bytes:
    """Header bytes. Raises `LocalProtocolError` for a number that does not fit its field."""
    try:
        text = remark.encode() if remark else b""
        parts = [b"", b""]
        for key, value in ext.items():
            name = key.encode()
            data = value.encode()
            parts += (_pack_short(len(name)), name, _pack_int(len(data)), data)
            if not 0 < len(name) <= KEY_SIZE_MAX:
                raise LocalProtocolError(f"header field name of {len(name)} bytes, 1 to {KEY_SIZE_MAX} fit")
        parts[0] = _pack_fixed(code, language, version, opaque, flag, len(text)) + text
        parts[1] = _pack_int(sum(map(len, parts)) - len(parts[0]))
        return b"".join(parts)
    except (struct.error, UnicodeEncodeError, AttributeError) as error:
        raise LocalProtocolError(
            f"command {code} cannot have a binary header ({error}); codes above {CODE_MAX} need JSON"
        ) from None


def decode(data: bytes) -> tuple[int, int, int, int, int, str | None, dict[str, str]]:
    """Code, language, version, opaque, flag, remark and fields.

    Raises `RemoteProtocolError` when a length leaves the header or a text is not UTF-8.
    """
    size = len(data)
    if size < _FIXED_SIZE:
        raise RemoteProtocolError(f"binary header of {size} bytes, at least {_FIXED_SIZE} needed")
    code, language, version, opaque, flag, remark_size = _unpack_fixed(data)
    position = _FIXED.size + remark_size
    if remark_size < 0 or position + 4 > size:
        raise RemoteProtocolError(f"remark of {remark_size} bytes in a binary header of {size}")
    read = int.from_bytes
    ext: dict[str, str] = {}
    try:
        remark = data[_FIXED.size : position].decode() if remark_size else None
        ext_size = read(data[position : position + 4], "big")
        position += 4
        end = position + ext_size
        if end > size:
            raise RemoteProtocolError(f"fields of {ext_size} bytes in a binary header of {size}")
        while position < end:
            value_at = position + 2 + read(data[position : position + 2], "big")
            if value_at + 4 > end:
                raise RemoteProtocolError(f"field name at {position} leaves the binary header")
            key = data[position + 2 : value_at].decode()
            position = value_at + 4 + read(data[value_at : value_at + 4], "big")
            if position > end:
                raise RemoteProtocolError(f"value of field {key[:64]!r} leaves the binary header")
            if key and position > value_at + 4:
                ext[key] = data[value_at + 4 : position].decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"text in a binary header is not UTF-8: {error.reason}") from None
    return code, language, version, opaque, flag, remark, ext
