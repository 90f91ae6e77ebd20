"""What slaves of other ages send where the handshake of a slave with an id is due."""

from __future__ import annotations

import struct

import pytest

from brokerset_protocol.ha_packets import (
    SLAVE_ID_MAX,
    HaProtocolError,
    SlaveHandshake,
    decode_slave_handshake,
    encode_slave_handshake,
)

ADDRESS = b"10.0.0.12:10911"


def address_handshake(address: bytes, *, last_file: int = 0, learner: int = 0) -> bytes:
    """As `AutoSwitchHAClient.sendHandshakeHeader` of 5.0.0 and 5.1.0 writes it."""
    return struct.pack(">ihhi", 1, last_file, learner, len(address)) + address


@pytest.mark.parametrize(
    "data",
    [
        address_handshake(ADDRESS),
        address_handshake(ADDRESS, last_file=1, learner=1),
        address_handshake(ADDRESS).ljust(62, b"\0"),
        address_handshake(ADDRESS)[:16],
        address_handshake(b"a.example.org:10911"),
    ],
)
def test_an_address_instead_of_an_id_is_refused_with_the_way_out(data: bytes) -> None:
    """Never read as an id, whatever is with it; as much of the address is named as is there."""
    with pytest.raises(HaProtocolError, match=r"names its address \('.{4}.*5\.0 and 5\.1\.0.*upgrade it"):
        decode_slave_handshake(data)


def test_less_than_a_handshake_is_waited_for() -> None:
    """So that a slow slave is told the whole truth."""
    assert decode_slave_handshake(address_handshake(ADDRESS)[:15]) is None


def test_bytes_that_are_no_text_are_shown_as_numbers() -> None:
    """The complaint goes to a log."""
    with pytest.raises(HaProtocolError) as raised:
        decode_slave_handshake(address_handshake(b"\xff\x1b[2J" * 3))

    assert str(raised.value).isprintable()


@pytest.mark.parametrize("offset", [0, 1, 2**32 - 1])
def test_an_offset_instead_of_a_handshake_is_refused_with_the_way_out(offset: int) -> None:
    """What a slave without controllers reports first: where its log ends."""
    with pytest.raises(HaProtocolError, match=r"follow without controllers.*enableControllerMode"):
        decode_slave_handshake(struct.pack(">q", offset))


def test_the_highest_id_is_read() -> None:
    """Ids are counted from 1, so no group comes near it."""
    packet = SlaveHandshake(SLAVE_ID_MAX)

    assert decode_slave_handshake(encode_slave_handshake(packet)) == (packet, 16)
    with pytest.raises(HaProtocolError):
        encode_slave_handshake(SlaveHandshake(SLAVE_ID_MAX + 1))
