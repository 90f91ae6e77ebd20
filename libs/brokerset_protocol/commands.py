"""Remoting commands: requests and responses, as frames of one TCP stream in both directions.

Source: RocketMQ's `RemotingCommand`, `NettyEncoder`, `NettyDecoder`. A frame is

    i32 length (of all that follows) | u8 serialization, u24 header length | header | body

The header is JSON or RocketMQ's binary layout (`binary_header`); a peer may use either on any frame, and is
answered in the one that it used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from brokerset_protocol import binary_header
from brokerset_protocol.codes import LANGUAGE_BY_NAME, LANGUAGE_NAMES, Language
from brokerset_protocol.errors import LocalProtocolError, RemoteProtocolError
from brokerset_protocol.foreign_bytes import name_foreign

FRAME_SIZE_MAX = 16 * 1024 * 1024
"""Whole frame with its four length bytes; Java's decoder closes the connection above it."""

HEADER_SIZE_MAX = 512 * 1024
"""Properties may have 32,767 bytes, which JSON can blow up sixfold; the rest is for the other fields."""

PROTOCOL_VERSION = 513
"""The MQVersion ordinal that we announce: V5_5_0."""

SMALL_PART_SIZE = 1024
"""Parts of a frame with fewer bytes are kept in one piece with those before them: objects cost memory."""

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

_PREFIX = struct.Struct(">II")
_read_prefix = _PREFIX.unpack_from
_INT32_MAX = 0x7FFFFFFF
_INT32_MIN = -0x80000000


@dataclass(slots=True)
class Command:
    """One request or response.

    `ext` holds the fields of the request's own header class, always texts: read it through a class of
    `brokerset_protocol.headers`, or convert what you take. Numbers that lax clients (C++) put there have been
    turned into texts.
    """

    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = Language.PYTHON
    version: int = PROTOCOL_VERSION
    binary: bool = False
    """Whether the header is (or shall be) in RocketMQ's binary layout instead of JSON."""

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer, not even a refusal."""
        return self.flag & FLAG_ONEWAY != 0

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        *,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        """The response to this request: same opaque, same serialization."""
        return Command(
            code,
            ext if ext is not None else {},
            body,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            binary=self.binary,
        )


def encode(command: Command) -> bytes:
    """One whole frame. Raises `LocalProtocolError` if the command does not fit a frame."""
    if command.binary:
        header = binary_header.encode(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            command.remark,
            command.ext,
        )
        kind = 1 << 24
    else:
        fields: dict[str, object] = {
            "code": command.code,
            "extFields": command.ext,
            "flag": command.flag,
            "language": LANGUAGE_NAMES.get(command.language, "OTHER"),
            "opaque": command.opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": command.version,
        }
        if command.remark is not None:
            fields["remark"] = command.remark
        try:
            header = orjson.dumps(fields)
        except TypeError as error:
            raise LocalProtocolError(f"command {command.code} cannot have a JSON header: {error}") from None
        kind = 0
    length = 4 + len(header) + len(command.body)
    if length + 4 > FRAME_SIZE_MAX or len(header) > HEADER_SIZE_MAX:
        raise LocalProtocolError(
            f"command {command.code} has {length + 4} bytes (at most {FRAME_SIZE_MAX}), "
            f"{len(header)} of them header (at most {HEADER_SIZE_MAX})"
        )
    return b"".join((_PREFIX.pack(length, kind | len(header)), header, command.body))


def decode(data: bytes, position: int, end: int) -> Command:
    """The command whose frame, without its length field, is `data[position:end]`.

    Raises `RemoteProtocolError` for a header that cannot be read.
    """
    if end - position < 4:
        raise RemoteProtocolError(f"frame of {end - position} bytes has no room for a header length")
    return _decode(data, int.from_bytes(data[position : position + 4], "big"), position + 4, end)


def _decode(data: bytes, word: int, start: int, end: int) -> Command:
    """The command whose header begins at `start`; `word` is the serialization and the header's length."""
    header_end = start + (word & 0xFFFFFF)
    if header_end > end:
        raise RemoteProtocolError(f"header of {word & 0xFFFFFF} bytes in a frame of {end - start + 4}")
    if header_end - start > HEADER_SIZE_MAX:
        raise RemoteProtocolError(f"header of {header_end - start} bytes, at most {HEADER_SIZE_MAX}")
    serialization = word >> 24
    if serialization == 0:
        try:
            fields = orjson.loads(data[start:header_end])
        except orjson.JSONDecodeError as error:
            raise RemoteProtocolError(f"header is not JSON: {error}") from None
        if type(fields) is not dict:
            raise RemoteProtocolError("header is not a JSON object")
        get = fields.get
        try:
            code = fields["code"]
            opaque = fields["opaque"]
            flag = fields["flag"]
            version = fields["version"]
        except KeyError:
            code, opaque, flag, version = (get(name, 0) for name in ("code", "opaque", "flag", "version"))
        ext = get("extFields")
        remark = get("remark")
        if ext is None:
            ext = {}
        if not (type(code) is type(opaque) is type(flag) is type(version) is int and type(ext) is dict):
            raise RemoteProtocolError("header fields have the wrong types")
        try:
            "".join(ext.values())  # the cheapest check that all are texts
        except TypeError:
            ext = _texts(ext)
        if not _INT32_MIN <= opaque <= _INT32_MAX:
            raise RemoteProtocolError(f"opaque {opaque} is no 32-bit number")
        if remark is not None and type(remark) is not str:
            raise RemoteProtocolError("remark is not text")
        language = get("language")
        return Command(
            code,
            ext,
            data[header_end:end],
            opaque,
            flag,
            remark,
            LANGUAGE_BY_NAME.get(language, Language.OTHER) if type(language) is str else Language.OTHER,
            version,
        )
    if serialization == 1:
        code, language_byte, version, opaque, flag, remark, ext = binary_header.decode(data[start:header_end])
        return Command(code, ext, data[header_end:end], opaque, flag, remark, language_byte, version, True)
    raise RemoteProtocolError(f"unknown header serialization {serialization}")


def _texts(ext: dict[str, object]) -> dict[str, str]:
    """Header fields as Java's map of texts reads them: `null` is absent, anything else is its JSON."""
    try:
        return {
            name: value if type(value) is str else orjson.dumps(value).decode()
            for name, value in ext.items()
            if value is not None
        }
    except TypeError as error:
        raise RemoteProtocolError(f"header field is neither text nor number: {error}") from None


def _bad_length(start: bytes, length: int, length_max: int) -> RemoteProtocolError:
    if (found := name_foreign(start)) is not None:
        return RemoteProtocolError(f"the peer speaks {found}")
    return RemoteProtocolError(f"frame of {length} bytes, 4 to {length_max} allowed")


def whole_commands(data: bytes, size_max: int = FRAME_SIZE_MAX) -> Iterator[tuple[Command, int]]:
    """The commands at the beginning of `data`, which begins with a frame, and where each ends.

    Ends before the first that is not complete, or cannot be read; a `CommandReader` says why.
    """
    position, size, length_max = 0, len(data), size_max - 4
    while size - position >= 8:
        length, word = _read_prefix(data, position)
        end = position + 4 + length
        if not 4 <= length <= length_max or end > size:
            return
        try:
            command = _decode(data, word, position + 8, end)
        except RemoteProtocolError:
            return
        yield command, end
        position = end


class CommandReader:
    """Feed it chunks of any size; take whole commands out.

    After a broken frame `error` is set, the commands before it have been handed out, nothing more is read.
    """

    __slots__ = ("_needed", "_parts", "buffered", "error", "frame_size_max")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.frame_size_max = frame_size_max
        self.error: RemoteProtocolError | None = None
        self.buffered = 0
        """Bytes of an unfinished frame that are kept."""
        self._parts: list[bytes | bytearray] = []
        self._needed = 0

    def join(self, data: bytes) -> bytes:
        """`data` with what is kept before it, which then is not kept any more; nothing while the frame that
        has begun is not complete, or after an error. What the caller leaves of it goes to `feed`."""
        if self.error is not None:
            return b""
        if self.buffered:
            last = self._parts[-1]
            if len(data) < SMALL_PART_SIZE and type(last) is bytearray:
                last += data
            else:
                self._parts.append(data if len(data) >= SMALL_PART_SIZE else bytearray(data))
            self.buffered += len(data)
            if self.buffered < self._needed:
                return b""
            data = b"".join(self._parts)
            self._parts.clear()
            self.buffered = 0
        return data

    def first_size(self, data: bytes) -> int:
        """Bytes of the frame that `data` begins with; 0 if it is not complete, or its length not allowed."""
        size = 4 + int.from_bytes(data[:4], "big")
        return size if 8 <= size <= min(len(data), self.frame_size_max) else 0

    def feed(self, data: bytes) -> list[Command]:
        """The commands that are complete now."""
        commands: list[Command] = []
        data = self.join(data)
        position = 0
        size = len(data)
        needed = 4
        length_max = self.frame_size_max - 4
        try:
            while size - position >= 8:
                length, word = _read_prefix(data, position)
                if not 4 <= length <= length_max:
                    raise _bad_length(data[position : position + 8], length, length_max)
                end = position + 4 + length
                if end > size:
                    needed = 4 + length
                    break
                commands.append(_decode(data, word, position + 8, end))
                position = end
            else:
                if size - position >= 4:  # too short for any frame, but a bad length need not wait
                    length = int.from_bytes(data[position : position + 4], "big")
                    if not 4 <= length <= length_max:
                        raise _bad_length(data[position : position + 8], length, length_max)
                    needed = 4 + length
        except RemoteProtocolError as error:
            self.error = error
            return commands
        if position < size:
            self._parts.append(data[position:] if position else data)
            self.buffered = size - position
            self._needed = needed
        return commands
