"""Frames survive any chunking; broken ones raise nothing but what they should."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import orjson
from hypothesis import given
from hypothesis import strategies as st

from brokerset_protocol.codes import LANGUAGE_NAMES
from brokerset_protocol.commands import Command, CommandReader, decode, encode
from brokerset_protocol.errors import RemoteProtocolError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
NUMBERS = st.integers(-(2**31), 2**31 - 1)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    binary = draw(st.booleans())
    short = st.integers(-(2**15), 2**15 - 1)
    words = TEXTS.filter(bool) if binary else TEXTS
    return Command(
        draw(short if binary else NUMBERS),
        draw(st.dictionaries(words, words, max_size=6)),
        draw(st.binary(max_size=100)),
        draw(NUMBERS),
        draw(NUMBERS),
        draw(st.none() | words),
        draw(st.sampled_from(sorted(LANGUAGE_NAMES))),
        draw(short if binary else NUMBERS),
        binary,
    )


COMMANDS = st.lists(commands(), min_size=1, max_size=5)


@given(COMMANDS, st.lists(st.integers(0, 3000), max_size=10))
def test_any_chunking_gives_the_same_commands(sent: list[Command], cuts: list[int]) -> None:
    """Wherever the stream is cut, the commands that were sent come out in order."""
    data = b"".join(map(encode, sent))
    reader = CommandReader()
    got: list[Command] = []

    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in pairwise(places):
        got += reader.feed(data[start:end])

    assert got == sent
    assert reader.error is None
    assert reader.buffered == 0


@given(COMMANDS)
def test_one_byte_at_a_time_gives_the_same_commands(sent: list[Command]) -> None:
    """A stream that comes in single bytes is read as well."""
    data = b"".join(map(encode, sent))
    reader = CommandReader()

    got = [command for byte in data for command in reader.feed(bytes([byte]))]

    assert got == sent


@given(commands(), st.data())
def test_mutated_frames_raise_remote_protocol_errors_only(command: Command, data: st.DataObject) -> None:
    """A frame with changed bytes is a command, or the peer's error; never anything else."""
    frame = bytearray(encode(command))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] = data.draw(st.integers(0, 255))
    reader = CommandReader()

    reader.feed(bytes(frame))

    assert reader.error is None or isinstance(reader.error, RemoteProtocolError)
    with suppress(RemoteProtocolError):
        decode(bytes(frame), 4, len(frame))


@given(st.binary(max_size=200), st.sampled_from([0, 1]))
def test_random_headers_raise_remote_protocol_errors_only(header: bytes, kind: int) -> None:
    """Random bytes as header are a command, or the peer's error; what decodes has texts as fields."""
    frame = (kind << 24 | len(header)).to_bytes(4, "big") + header

    try:
        command = decode(frame, 0, len(frame))
    except RemoteProtocolError:
        return

    assert all(type(value) is str for value in command.ext.values())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: JSON_VALUES
            for name in ("code", "extFields", "flag", "language", "opaque", "remark", "version")
        },
    ),
    st.dictionaries(TEXTS, JSON_VALUES, max_size=4),
)
def test_any_json_header_is_read_or_refused(fields: dict[str, object], ext: dict[str, object]) -> None:
    """A JSON header with any values is a command with texts as fields, or the peer's error."""
    header = orjson.dumps({"extFields": ext} | fields)
    frame = len(header).to_bytes(4, "big") + header

    try:
        command = decode(frame, 0, len(frame))
    except RemoteProtocolError:
        return

    assert all(type(value) is str for value in command.ext.values())
