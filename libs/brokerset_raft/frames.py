"""What raft nodes send each other over a stream: frames of `length, CRC-32, type, fields`, big-endian.

A connection begins with `Hello` from the side that opened it and `Welcome` or `Refusal` from the other. After
that both sides may send bodies; who speaks to whom is known from the greeting and not repeated.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from brokerset_raft.log_records import ENTRY_BYTES_MAX, decode_meta, encode_meta
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    Body,
    CampaignNow,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)

PROTOCOL_VERSION = 1
"""Nodes of different versions refuse each other."""

FRAME_BYTES_MAX = 16 << 20
"""Longest frame after the greeting: an append or a piece of a snapshot of about 1 MiB, or one large entry."""

GREETING_BYTES_MAX = 1024
"""Longest frame of a stranger."""

GROUP_BYTES_MAX = 255
"""Longest name of a group, in UTF-8."""

REASON_BYTES_MAX = 500
"""Longest reason in a refusal, in UTF-8; the rest is truncated."""

ENTRIES_MAX = 1 << 20
"""Most entries of one append."""

_MAGIC = b"BRKSRAFT"
_PREFIX = struct.Struct(">IIB")
_HELLO = struct.Struct(">HQQB")
_ENTRY = struct.Struct(">QBI")
_VOTE_REQUEST = struct.Struct(">QQQBB")
_VOTE_REPLY = struct.Struct(">QBB")
_APPEND = struct.Struct(">QQQQI")
_APPEND_REPLY = struct.Struct(">QBQQQ")
_HEARTBEAT = struct.Struct(">QQQ")
_HEARTBEAT_REPLY = struct.Struct(">QQ")
_CHUNK = struct.Struct(">QQ")
_SNAPSHOT_REPLY = struct.Struct(">QQQ")
_CAMPAIGN = struct.Struct(">Q")


class _Type(IntEnum):
    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    PING = 4
    PONG = 5
    VOTE_REQUEST = 16
    VOTE_REPLY = 17
    APPEND = 18
    APPEND_REPLY = 19
    HEARTBEAT = 20
    HEARTBEAT_REPLY = 21
    CHUNK = 22
    SNAPSHOT_REPLY = 23
    CAMPAIGN = 24


class RaftProtocolError(Exception):
    """The peer sent what no raft node of this version sends: close the connection."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of the side that opened the connection."""

    version: int
    group: str
    source: int
    """Id of the node that says it."""

    target: int
    """Id of the node that it wants to reach."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The greeting is accepted."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The greeting is not accepted; the connection is closed after it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the other side still lives."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a ping."""


Frame = Hello | Welcome | Refusal | Ping | Pong | Body


def encode(frame: Frame) -> bytes:
    """A frame as it goes over the wire."""
    kind, fields = _encode_fields(frame)
    rest = 1 + len(fields)
    assert rest <= FRAME_BYTES_MAX, f"a frame of {rest} bytes is larger than {FRAME_BYTES_MAX}"
    crc = zlib.crc32(fields, zlib.crc32(bytes((kind,))))
    return _PREFIX.pack(rest, crc, kind) + fields


class Decoder:
    """Cuts a stream into frames, in whatever pieces it comes."""

    __slots__ = ("_buffer", "_greeted")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeted = False

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes, return the frames that are complete. Raises `RaftProtocolError`, once."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position = 0
        while len(buffer) - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "big")
            limit = FRAME_BYTES_MAX if self._greeted else GREETING_BYTES_MAX
            if not 1 <= length <= limit:
                raise RaftProtocolError(f"a frame of {length} bytes; {limit} are allowed here")
            end = position + 8 + length
            if len(buffer) < end:
                break
            frames.append(self._decode(bytes(buffer[position:end])))
            position = end
        del buffer[:position]
        return frames

    def _decode(self, data: bytes) -> Frame:
        _, crc, kind = _PREFIX.unpack_from(data)
        if zlib.crc32(memoryview(data)[8:]) != crc:
            raise RaftProtocolError("the CRC of a frame is wrong")
        greeting = kind in (_Type.HELLO, _Type.WELCOME, _Type.REFUSAL)
        if greeting is self._greeted:
            problem = "a second greeting" if greeting else "no greeting before other frames"
            raise RaftProtocolError(problem)
        self._greeted = True
        reader = _Reader(data, _PREFIX.size)
        try:
            frame = _decode_fields(kind, reader)
        except ValueError as error:
            raise RaftProtocolError(f"a frame of type {kind} makes no sense: {error}") from error
        reader.finish()
        return frame


class _Reader:
    """Takes fields from a frame, never beyond its end."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        if len(self.data) - self.position < layout.size:
            raise RaftProtocolError("a frame is shorter than its fields")
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def take(self, size: int) -> bytes:
        if len(self.data) - self.position < size:
            raise RaftProtocolError("a frame is shorter than its data")
        self.position += size
        return self.data[self.position - size : self.position]

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.position)

    def finish(self) -> None:
        if self.position != len(self.data):
            raise RaftProtocolError(f"{len(self.data) - self.position} bytes too many in a frame")


def _encode_fields(frame: Frame) -> tuple[int, bytes]:
    match frame:
        case Heartbeat():
            return _Type.HEARTBEAT, _HEARTBEAT.pack(frame.term, frame.commit, frame.round)
        case HeartbeatReply():
            return _Type.HEARTBEAT_REPLY, _HEARTBEAT_REPLY.pack(frame.term, frame.round)
        case AppendRequest():
            return _Type.APPEND, _encode_append(frame)
        case AppendReply():
            return _Type.APPEND_REPLY, _APPEND_REPLY.pack(
                frame.term, frame.success, frame.match_index, frame.hint_index, frame.hint_term
            )
        case VoteRequest():
            return _Type.VOTE_REQUEST, _VOTE_REQUEST.pack(
                frame.term, frame.last_index, frame.last_term, frame.pre, frame.transfer
            )
        case VoteReply():
            return _Type.VOTE_REPLY, _VOTE_REPLY.pack(frame.term, frame.granted, frame.pre)
        case SnapshotChunk():
            return _Type.CHUNK, _CHUNK.pack(frame.term, frame.offset) + encode_meta(frame.meta) + frame.data
        case SnapshotReply():
            return _Type.SNAPSHOT_REPLY, _SNAPSHOT_REPLY.pack(frame.term, frame.index, frame.next_offset)
        case CampaignNow():
            return _Type.CAMPAIGN, _CAMPAIGN.pack(frame.term)
        case Hello():
            group = frame.group.encode()
            assert 0 < len(group) <= GROUP_BYTES_MAX, f"the group's name has {len(group)} bytes"
            return _Type.HELLO, (
                _MAGIC + _HELLO.pack(frame.version, frame.source, frame.target, len(group)) + group
            )
        case Refusal():
            return _Type.REFUSAL, frame.reason.encode()[:REASON_BYTES_MAX]
        case Welcome():
            return _Type.WELCOME, b""
        case Ping():
            return _Type.PING, b""
        case Pong():
            return _Type.PONG, b""


def _encode_append(request: AppendRequest) -> bytes:
    assert len(request.entries) <= ENTRIES_MAX, f"{len(request.entries)} entries in one append"
    parts = [
        _APPEND.pack(
            request.term,
            request.previous_index,
            request.previous_term,
            request.commit,
            len(request.entries),
        )
    ]
    for number, entry in enumerate(request.entries, request.previous_index + 1):
        assert entry.index == number, f"entry {entry.index} where {number} must follow"
        parts.append(_ENTRY.pack(entry.term, entry.kind, len(entry.data)))
        parts.append(entry.data)
    return b"".join(parts)


def _decode_fields(kind: int, reader: _Reader) -> Frame:
    match kind:
        case _Type.HEARTBEAT:
            return Heartbeat(*reader.fields(_HEARTBEAT))
        case _Type.HEARTBEAT_REPLY:
            return HeartbeatReply(*reader.fields(_HEARTBEAT_REPLY))
        case _Type.APPEND:
            return _decode_append(reader)
        case _Type.APPEND_REPLY:
            term, success, match_index, hint_index, hint_term = reader.fields(_APPEND_REPLY)
            return AppendReply(term, _flag(success), match_index, hint_index, hint_term)
        case _Type.VOTE_REQUEST:
            term, last_index, last_term, pre, transfer = reader.fields(_VOTE_REQUEST)
            return VoteRequest(term, last_index, last_term, _flag(pre), _flag(transfer))
        case _Type.VOTE_REPLY:
            term, granted, pre = reader.fields(_VOTE_REPLY)
            return VoteReply(term, _flag(granted), _flag(pre))
        case _Type.CHUNK:
            term, offset = reader.fields(_CHUNK)
            meta, reader.position = decode_meta(reader.data, reader.position)
            data = reader.rest()
            if offset + len(data) > meta.size:
                raise RaftProtocolError("a piece of a snapshot lies beyond its end")
            return SnapshotChunk(term, meta, offset, data)
        case _Type.SNAPSHOT_REPLY:
            return SnapshotReply(*reader.fields(_SNAPSHOT_REPLY))
        case _Type.CAMPAIGN:
            return CampaignNow(*reader.fields(_CAMPAIGN))
        case _Type.HELLO:
            return _decode_hello(reader)
        case _Type.WELCOME:
            return Welcome()
        case _Type.REFUSAL:
            return Refusal(reader.rest().decode(errors="replace"))
        case _Type.PING:
            return Ping()
        case _Type.PONG:
            return Pong()
        case _:
            raise RaftProtocolError(f"{kind} is no type of a frame")


def _decode_append(reader: _Reader) -> AppendRequest:
    term, previous_index, previous_term, commit, count = reader.fields(_APPEND)
    if count > ENTRIES_MAX:
        raise RaftProtocolError(f"{count} entries in one append; {ENTRIES_MAX} are allowed")
    entries: list[Entry] = []
    for index in range(previous_index + 1, previous_index + 1 + count):
        entry_term, kind, size = reader.fields(_ENTRY)
        if size > ENTRY_BYTES_MAX:
            raise RaftProtocolError(f"an entry of {size} bytes; {ENTRY_BYTES_MAX} are allowed")
        entries.append(Entry(index, entry_term, EntryKind(kind), reader.take(size)))
    return AppendRequest(term, previous_index, previous_term, tuple(entries), commit)


def _decode_hello(reader: _Reader) -> Hello:
    if reader.take(len(_MAGIC)) != _MAGIC:
        raise RaftProtocolError("the greeting is not that of a raft node")
    version, source, target, length = reader.fields(_HELLO)
    return Hello(version, reader.take(length).decode(), source, target)


def _flag(value: int) -> bool:
    if value not in (0, 1):
        raise RaftProtocolError(f"{value} is neither true nor false")
    return value == 1
