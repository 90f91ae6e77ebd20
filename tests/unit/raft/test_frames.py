"""The transport's frames."""

from __future__ import annotations

import struct
import zlib

import pytest

from brokerset_raft import frames
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.frames import (
    Decoder,
    Frame,
    Hello,
    Ping,
    Pong,
    RaftProtocolError,
    Refusal,
    Welcome,
    encode,
)
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    CampaignNow,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)

META = SnapshotMeta(90, 4, Configuration((Member(1, "a:1", "b:1"), Member(2, "a:2", "b:2", False))), 10, 77)
BODIES: list[Frame] = [
    VoteRequest(5, 9, 4, pre=True),
    VoteRequest(5, 9, 4, transfer=True),
    VoteReply(5, True),
    VoteReply(5, False, pre=True),
    AppendRequest(5, 9, 4, (), 8),
    AppendRequest(
        5, 9, 4, (Entry(10, 4, EntryKind.NOOP, b""), Entry(11, 5, EntryKind.DATA, b"x" * 300)), 2**63
    ),
    AppendReply(5, True, 11),
    AppendReply(5, False, 9, 7, 3),
    Heartbeat(5, 8, 3),
    HeartbeatReply(5, 3),
    SnapshotChunk(5, META, 4, b"state!"),
    SnapshotChunk(5, META, 10, b""),
    SnapshotReply(5, 90, 4),
    CampaignNow(5),
    Ping(),
    Pong(),
]
HELLO = Hello(frames.PROTOCOL_VERSION, "gruppe-ä", 1, 2)


def raw(kind: int, fields: bytes) -> bytes:
    data = bytes((kind,)) + fields
    return struct.pack(">II", len(data), zlib.crc32(data)) + data


def greeted() -> Decoder:
    decoder = Decoder()
    decoder.feed(encode(Welcome()))
    return decoder


def test_every_frame_survives_any_chunking() -> None:
    """All bodies come out as they went in, whole, and one byte at a time."""
    sent = [HELLO, *BODIES]
    stream = b"".join(map(encode, sent))

    at_once = Decoder().feed(stream)
    decoder = Decoder()
    by_byte = [frame for n in range(len(stream)) for frame in decoder.feed(stream[n : n + 1])]

    assert at_once == sent
    assert by_byte == sent
    assert decoder.waiting == 0


@pytest.mark.parametrize("frame", [HELLO, Welcome(), Refusal("no")])
def test_a_greeting_comes_once_and_first(frame: Frame) -> None:
    """A second greeting, or another frame before it, is an error."""
    assert Decoder().feed(encode(frame)) == [frame]
    with pytest.raises(RaftProtocolError, match="second greeting"):
        greeted().feed(encode(frame))
    with pytest.raises(RaftProtocolError, match="no greeting"):
        Decoder().feed(encode(Ping()))


@pytest.mark.parametrize("frame", [each for each in BODIES if not isinstance(each, Ping | Pong)])
def test_cut_and_stretched_fields_are_refused(frame: Frame) -> None:
    """Whatever the length says, fields that are missing or left over are an error and never a crash."""
    data = encode(frame)
    kind, fields = data[8], data[9:]

    for size in range(len(fields)):
        if isinstance(frame, SnapshotChunk) and size >= len(fields) - len(frame.data):
            continue  # a shorter piece is a piece
        with pytest.raises(RaftProtocolError):
            greeted().feed(raw(kind, fields[:size]))
    with pytest.raises(RaftProtocolError):
        greeted().feed(raw(kind, fields + b"\0"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bytes"),
        (b"\0\0\0\0\0\0\0\0", "0 bytes"),
        (struct.pack(">I", frames.GREETING_BYTES_MAX + 1), "allowed here"),
        (encode(HELLO)[:-1] + b"!", "CRC"),
        (raw(1, b"WRONGMAG" + bytes(20)), "not that of a raft node"),
    ],
)
def test_strangers_are_recognised(data: bytes, reason: str) -> None:
    """Other protocols, too long frames and wrong checksums end a connection before anything is kept."""
    with pytest.raises(RaftProtocolError, match=reason):
        Decoder().feed(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">I", frames.FRAME_BYTES_MAX + 1), "allowed here"),
        (raw(99, b""), "type"),
        (raw(17, struct.pack(">QBB", 1, 2, 0)), "neither true nor false"),
        (raw(18, struct.pack(">QQQQI", 1, 1, 1, 1, frames.ENTRIES_MAX + 1)), "entries"),
        (raw(18, struct.pack(">QQQQIQBI", 1, 1, 1, 1, 1, 1, 7, 0)), "makes no sense"),
        (raw(18, struct.pack(">QQQQIQBI", 1, 1, 1, 1, 1, 1, 1, 1 << 30)), "an entry of"),
        (raw(22, struct.pack(">QQ", 1, 5) + encode(BODIES[10])[25:]), "beyond its end"),
    ],
)
def test_nonsense_of_a_peer_is_refused(data: bytes, reason: str) -> None:
    """Each limit, flag and kind is checked, and the error says what was wrong."""
    with pytest.raises(RaftProtocolError, match=reason):
        greeted().feed(data)


def test_a_refusal_is_cut_to_its_limit() -> None:
    """A long reason still makes a frame that the other side reads."""
    (frame,) = Decoder().feed(encode(Refusal("ä" * 5000)))

    assert isinstance(frame, Refusal)
    assert frame.reason.startswith("ääää")
