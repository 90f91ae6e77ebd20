"""Frames: RocketMQ's own vectors, replies, limits."""

from __future__ import annotations

import pytest

from brokerset_protocol import binary_header, replies
from brokerset_protocol.codes import LANGUAGE_BY_NAME, LANGUAGE_NAMES, Language, RequestCode, ResponseCode
from brokerset_protocol.commands import (
    FLAG_RESPONSE,
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    Command,
    CommandReader,
    decode,
    encode,
)
from brokerset_protocol.errors import LocalProtocolError, RemoteProtocolError

JSON_HEADER = (
    b'{"code":30,"extFields":{"queueId":"1","committed":"true","topic":"TopicTest"},"flag":0,'
    b'"language":"JAVA","opaque":5,"serializeTypeCurrentRPC":"JSON","version":479}'
)
JSON_FRAME = bytes.fromhex("000000a7 000000a3") + JSON_HEADER
BINARY_FRAME = bytes.fromhex(
    "0000004e 0100004a 001e 00 01df 00000005 00000000 00000000 00000035"
    "0007 71756575654964 00000001 31 0009 636f6d6d6974746564 00000004 74727565"
    "0005 746f706963 00000009 546f70696354657374"
)
METADATA_FRAME = (
    bytes.fromhex("00000066 00000062")
    + b'{"code":1005,"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
)
REPLICA_INFO_FRAME = bytes.fromhex(
    "00000031 0100002d 03ec 00 01df 00000007 00000000 00000000 00000018"
    "000a 62726f6b65724e616d65 00000008 62726f6b65722d61"
)


def get_max_offset(*, binary: bool) -> Command:
    return Command(
        30,
        {"queueId": "1", "committed": "true", "topic": "TopicTest"},
        opaque=5,
        language=Language.JAVA,
        version=479,
        binary=binary,
    )


def read(frame: bytes) -> Command:
    return decode(frame, 4, len(frame))


def frame(header: bytes, kind: int = 0) -> bytes:
    return (4 + len(header)).to_bytes(4, "big") + (kind << 24 | len(header)).to_bytes(4, "big") + header


@pytest.mark.parametrize(
    ("data", "command"),
    [
        pytest.param(JSON_FRAME, get_max_offset(binary=False), id="json"),
        pytest.param(BINARY_FRAME, get_max_offset(binary=True), id="binary"),
    ],
)
def test_java_vectors_are_read_and_written(data: bytes, command: Command) -> None:
    """The vectors of RocketMQ's own classes decode to the command that encodes to them."""
    assert read(data) == command
    assert encode(command) == data


@pytest.mark.parametrize(
    ("data", "code", "ext"),
    [(METADATA_FRAME, 1005, {}), (REPLICA_INFO_FRAME, 1004, {"brokerName": "broker-a"})],
)
def test_controller_vectors_are_read(data: bytes, code: int, ext: dict[str, str]) -> None:
    """The examples of requests to controllers decode."""
    (command,) = CommandReader().feed(data)

    assert (command.code, command.opaque, command.version, command.ext) == (code, 7, 479, ext)


def test_binary_controller_vector_is_written() -> None:
    """The binary example of a request to a controller is what we would send."""
    command = Command(1004, {"brokerName": "broker-a"}, opaque=7, language=0, version=479, binary=True)

    assert encode(command) == REPLICA_INFO_FRAME


@pytest.mark.parametrize("binary", [False, True])
def test_reply_keeps_opaque_and_serialization(binary: bool) -> None:
    """A reply has the request's opaque and serialization and the response bit."""
    request = Command(34, opaque=-7, binary=binary)

    reply = read(encode(request.reply(ResponseCode.SYSTEM_BUSY, "später", ext={"a": "1"}, body=b"x")))

    assert (reply.code, reply.opaque, reply.flag, reply.binary) == (2, -7, FLAG_RESPONSE, binary)
    assert (reply.remark, reply.ext, reply.body) == ("später", {"a": "1"}, b"x")
    assert reply.is_response
    assert not reply.is_oneway


def test_lax_header_fields_become_texts() -> None:
    """Numbers, flags, nulls and a line feed after the header, as the C++ client sends them, are read."""
    header = b'{"code":10,"extFields":{"queueId":0,"batch":true,"x":null,"y":[1]},"flag":0,"opaque":1}\n'

    command = read(frame(header))

    assert command.ext == {"queueId": "0", "batch": "true", "y": "[1]"}
    assert command.language == Language.OTHER


def test_pop_codes_do_not_fit_a_binary_header() -> None:
    """A request code above 32767 is refused by us instead of being cut as Java does."""
    assert 200050 & 0xFFFF == 3442
    with pytest.raises(LocalProtocolError, match="need JSON"):
        encode(Command(RequestCode.POP_MESSAGE, binary=True))


def test_pop_codes_work_with_json() -> None:
    """A request code above 32767 survives a JSON header."""
    assert read(encode(Command(RequestCode.POP_MESSAGE))).code == 200050


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(Command(1, {"a": "\ud800"}), id="half a surrogate pair"),
        pytest.param(Command(1, {"a": "x" * HEADER_SIZE_MAX}), id="header too large"),
        pytest.param(Command(1, body=bytes(FRAME_SIZE_MAX)), id="frame too large"),
        pytest.param(Command(1, opaque=1 << 70), id="opaque too large"),
    ],
)
def test_what_does_not_fit_is_our_bug(command: Command, binary: bool) -> None:
    """A command that no peer could read is refused when it is encoded."""
    command.binary = binary

    with pytest.raises(LocalProtocolError):
        encode(command)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\x00\x00\x03abc", id="shorter than a header length"),
        pytest.param(b"\xff\xff\xff\xffabcd", id="negative length"),
        pytest.param(FRAME_SIZE_MAX.to_bytes(4, "big"), id="one above the limit"),
        pytest.param(b"\x00\x00\x00\x04\x00\x00\x00\x01", id="header leaves the frame"),
        pytest.param(frame(b"{}", kind=2), id="unknown serialization"),
        pytest.param(frame(b"[]"), id="no object"),
        pytest.param(frame(b"{"), id="no JSON"),
        pytest.param(frame(b'{"code":"1"}'), id="code is text"),
        pytest.param(frame(b'{"code":true}'), id="code is a flag"),
        pytest.param(frame(b'{"opaque":2147483648}'), id="opaque too large"),
        pytest.param(frame(b'{"extFields":[]}'), id="fields are a list"),
        pytest.param(frame(b'{"remark":1}'), id="remark is a number"),
        pytest.param(frame(b'{"extFields":{"a":' + b"[" * 500 + b"]" * 500 + b"}}"), id="deep field"),
        pytest.param(frame(b'{"remark":"\xff"}'), id="not UTF-8"),
        pytest.param(frame(b" " * (HEADER_SIZE_MAX + 1)), id="header too large"),
        pytest.param(frame(bytes(20), kind=1), id="binary header too short"),
        pytest.param(frame(BINARY_FRAME[8:-1], kind=1), id="binary fields cut off"),
        pytest.param(frame(bytes(13) + b"\x7f\xff\xff\xff" + bytes(8), kind=1), id="remark leaves header"),
        pytest.param(frame(bytes(13) + b"\xff\xff\xff\xff" + bytes(8), kind=1), id="negative remark"),
        pytest.param(frame(bytes(17) + b"\x7f\xff\xff\xff" + bytes(8), kind=1), id="fields leave header"),
    ],
)
def test_nonsense_stops_the_reader(data: bytes) -> None:
    """After a broken frame the commands before it are there, the error is set, nothing more is read."""
    reader = CommandReader()

    commands = reader.feed(JSON_FRAME + data)

    assert [command.code for command in commands] == [30]
    assert isinstance(reader.error, RemoteProtocolError)
    assert reader.feed(JSON_FRAME) == []


def test_largest_frame_is_read() -> None:
    """A frame of exactly the limit passes."""
    overhead = len(encode(Command(1)))
    command = Command(1, body=bytes(FRAME_SIZE_MAX - overhead))
    data = encode(command)
    reader = CommandReader()

    commands = reader.feed(data[:1000]) + reader.feed(data[1000:])

    assert len(data) == FRAME_SIZE_MAX
    assert commands == [command]
    assert reader.buffered == 0


def test_binary_header_drops_empty_fields() -> None:
    """An empty value or key in a binary header is absent, as in Java."""
    data = binary_header.encode(1, 0, 0, 0, 0, "", {"a": "", "b": "1"})
    nameless = data[:17] + (7).to_bytes(4, "big") + b"\x00\x00" + b"\x00\x00\x00\x01x"

    assert binary_header.decode(data)[5:] == (None, {"b": "1"})
    assert binary_header.decode(nameless)[6] == {}


def test_languages_have_java_numbers() -> None:
    """Names and bytes of languages belong together."""
    assert LANGUAGE_NAMES[13] == "NODE_JS"
    assert {LANGUAGE_BY_NAME[name] for name in LANGUAGE_NAMES.values()} == set(range(14))


def test_transport_replies_say_what_java_says() -> None:
    """Refusals of the transport have the codes and remarks that clients look for."""
    request = Command(9999, opaque=3, version=477)

    refusals = [
        replies.unsupported(request),
        replies.rejected(request),
        replies.overloaded(request),
        replies.failed(request, ValueError("x")),
        replies.unset(request),
        replies.go_away(request),
    ]

    assert [(reply.code, reply.remark) for reply in refusals if reply] == [
        (3, " request type 9999 not supported"),
        (2, "[REJECTREQUEST]system busy, start flow control for a while"),
        (2, "[OVERLOAD]system busy, start flow control for a while"),
        (1, "ValueError: x"),
        (1, "not set any response code"),
        (1500, "please go away"),
    ]
    assert all(reply and reply.opaque == 3 for reply in refusals)


def test_old_clients_are_not_sent_away() -> None:
    """GO_AWAY goes to clients after 5.3.1 only."""
    assert replies.go_away(Command(1, version=475)) is None
