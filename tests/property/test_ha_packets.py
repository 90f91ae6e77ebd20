"""Packets of the HA port under any bytes, in any pieces."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_protocol.ha_packets import (
    BODY_SIZE_MAX,
    SLAVE_ID_MAX,
    Ack,
    AckDecoder,
    HaProtocolError,
    MasterHandshake,
    PeerIdentity,
    SlaveHandshake,
    TransferHeader,
    decode_master_handshake,
    decode_slave_handshake,
    decode_transfer_header,
    encode_ack,
    encode_master_handshake,
    encode_slave_handshake,
    encode_transfer_header,
)

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
SLAVE_IDS = st.integers(0, SLAVE_ID_MAX)
NAMES = st.text(st.characters(codec="utf-8"), max_size=40)

DECODERS: list[Callable[[bytes], object]] = [
    decode_slave_handshake, decode_master_handshake, decode_transfer_header, AckDecoder().feed,
]  # fmt: skip


def identities(broker_id: int, log_end: st.SearchStrategy[int]) -> st.SearchStrategy[PeerIdentity | None]:
    found = st.builds(
        PeerIdentity, NAMES, NAMES, st.just(broker_id), NAMES, st.integers(-1, 2**31 - 1), log_end
    )
    return st.none() | found


@st.composite
def slave_handshakes(draw: st.DrawFn) -> SlaveHandshake:
    broker_id = draw(SLAVE_IDS)
    return SlaveHandshake(
        broker_id, draw(st.booleans()), draw(st.booleans()), draw(identities(broker_id, INT64))
    )


@st.composite
def master_handshakes(draw: st.DrawFn) -> MasterHandshake:
    count = draw(st.integers(0, 20))
    epochs = sorted(draw(st.sets(INT32, min_size=count, max_size=count)))
    starts = sorted(draw(st.sets(INT64, min_size=count, max_size=count)))
    return MasterHandshake(
        draw(INT64),
        draw(st.integers(-1, 2**31 - 1)),
        tuple(zip(epochs, starts, strict=True)),
        draw(identities(draw(INT64), st.just(-1))),
    )


@st.composite
def headers(draw: st.DrawFn) -> TransferHeader:
    size = draw(st.integers(0, BODY_SIZE_MAX))
    low = 0 if size else -1
    return TransferHeader(
        draw(st.integers(low, 2**63 - 1 - size)),
        draw(st.integers(low, 2**31 - 1)),
        draw(st.integers(low, 2**63 - 1)),
        draw(st.integers(-1, 2**63 - 1)),
        size,
    )


@given(slave_handshakes(), st.binary(max_size=20))
def test_slave_handshakes_survive(packet: SlaveHandshake, behind: bytes) -> None:
    """A slave's handshake is read as it was written, whatever follows; every part of it is incomplete."""
    data = encode_slave_handshake(packet)

    assert decode_slave_handshake(data + behind) == (packet, len(data))
    assert decode_slave_handshake(memoryview(data)) == (packet, len(data))
    assert all(decode_slave_handshake(data[:end]) is None for end in range(len(data)))


@given(master_handshakes(), st.binary(max_size=20))
def test_master_handshakes_survive(packet: MasterHandshake, behind: bytes) -> None:
    """A master's handshake is read as it was written, whatever follows; every part of it is incomplete."""
    data = encode_master_handshake(packet)

    assert decode_master_handshake(data + behind) == (packet, len(data))
    assert decode_master_handshake(memoryview(data)) == (packet, len(data))
    assert all(decode_master_handshake(data[:end]) is None for end in range(len(data)))


@given(headers(), st.binary(max_size=20), st.binary(max_size=20))
def test_transfer_headers_survive(header: TransferHeader, before: bytes, behind: bytes) -> None:
    """A transfer's header is read as it was written, wherever it stands."""
    data = before + encode_transfer_header(header)

    assert decode_transfer_header(data + behind, len(before)) == header
    assert all(
        decode_transfer_header(data[:end], len(before)) is None for end in range(len(before), len(data))
    )


@given(st.lists(INT64, max_size=20), st.lists(st.integers(0, 240), max_size=10), st.booleans(), SLAVE_IDS)
def test_acknowledgements_survive_any_pieces(
    offsets: list[int], cuts: list[int], repeats: bool, broker_id: int
) -> None:
    """However a slave's bytes are cut, each piece gives the last acknowledgement that it completes."""
    hello = SlaveHandshake(broker_id)
    hello_bytes = encode_slave_handshake(hello) if repeats else b""
    data, ends = b"", []
    for offset in offsets:
        data += hello_bytes + encode_ack(Ack(offset))
        ends.append((len(data), offset))
    data += hello_bytes
    decoder = AckDecoder(repeated=hello)

    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        completed = [offset for at, offset in ends if begin < at <= end]
        assert decoder.feed(data[begin:end]) == (Ack(completed[-1]) if completed else None)


@pytest.mark.parametrize("number", range(len(DECODERS)))
@given(data=st.binary(max_size=200), state=st.sampled_from([b"", b"\0\0\0\1", b"\0\0\0\2", b"\x40\0\0\1"]))
def test_any_bytes_are_a_packet_or_refused(number: int, data: bytes, state: bytes) -> None:
    """No bytes make a decoder fail in another way than by `HaProtocolError`."""
    decode = DECODERS[number] if number < 3 else AckDecoder(repeated=SlaveHandshake(1)).feed

    with contextlib.suppress(HaProtocolError):
        decode(state + data)


def handshakes() -> st.SearchStrategy[bytes]:
    slaves = slave_handshakes().map(encode_slave_handshake)
    return slaves | master_handshakes().map(encode_master_handshake)


@given(handshakes(), st.data())
def test_changed_bytes_are_read_as_what_is_written(data: bytes, source: st.DataObject) -> None:
    """What is still read after a change is written as the same packet again."""
    changed = bytearray(data)
    position = source.draw(st.integers(0, len(data) - 1))
    changed[position] = source.draw(st.integers(0, 255))

    with contextlib.suppress(HaProtocolError):
        if slave := decode_slave_handshake(changed):
            assert decode_slave_handshake(encode_slave_handshake(slave[0])) is not None
    with contextlib.suppress(HaProtocolError):
        if master := decode_master_handshake(changed):
            assert decode_master_handshake(encode_master_handshake(master[0])) is not None
