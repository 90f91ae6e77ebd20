"""Packets of the HA port: Java's bytes, our extension, and what is no packet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_protocol.ha_packets import (
    BODY_SIZE_MAX,
    EPOCHS_MAX,
    EXTENSION_SIZE_MAX,
    MASTER_HANDSHAKE_SIZE_MAX,
    SLAVE_HANDSHAKE_SIZE_MAX,
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

SLAVE = PeerIdentity("cluster", "broker-a", 2, "n-1", 7, 4_096)
MASTER = replace(SLAVE, broker_id=1, log_end=-1)
HEADER = TransferHeader(offset=300, epoch=2, epoch_start=200, confirmed_offset=300, size=0)

SLAVE_BYTES = bytes.fromhex("00000001 0000 0000 0000000000000002")
MASTER_BYTES = bytes.fromhex(
    "00000001 00000018 000000000000012c 00000002 00000001 0000000000000000 00000002 00000000000000c8"
)
HEARTBEAT_BYTES = bytes.fromhex(
    "00000002 00000000 000000000000012c 00000002 00000000000000c8 000000000000012c"
)
ACK_BYTES = bytes.fromhex("00000002 000000000000012c")


def test_java_vectors_are_written_and_read() -> None:
    """The bytes of RocketMQ's own classes are what we write, and what we read."""
    slave, master = SlaveHandshake(2), MasterHandshake(300, 2, ((1, 0), (2, 200)))

    assert encode_slave_handshake(slave) == SLAVE_BYTES
    assert decode_slave_handshake(SLAVE_BYTES) == (slave, 16)
    assert encode_master_handshake(master) == MASTER_BYTES
    assert decode_master_handshake(MASTER_BYTES) == (master, 44)
    assert encode_transfer_header(HEADER) == HEARTBEAT_BYTES
    assert decode_transfer_header(HEARTBEAT_BYTES) == HEADER
    assert encode_ack(Ack(300)) == ACK_BYTES
    assert AckDecoder().feed(ACK_BYTES) == Ack(300)


def test_flags_are_javas() -> None:
    """The two shorts of a slave's handshake say from where and as what it follows."""
    data = bytes.fromhex("00000001 0001 0001 0000000000000003")

    assert encode_slave_handshake(SlaveHandshake(3, True, True)) == data
    assert decode_slave_handshake(data) == (SlaveHandshake(3, True, True), 16)


def test_extension_stands_behind_the_flag() -> None:
    """Our slave sets bit 15 of the learner's short, our master bit 30 of its state; JSON follows."""
    slave = encode_slave_handshake(SlaveHandshake(2, async_learner=True, identity=SLAVE))
    master = encode_master_handshake(MasterHandshake(0, -1, (), MASTER))

    json = b'{"cluster":"cluster","group":"broker-a","replicaId":%d,"nonce":"n-1","epoch":7%s}'
    of_slave, of_master = json % (2, b',"logEnd":4096'), json % (1, b"")
    assert slave == bytes.fromhex("00000001 0000 8001 0000000000000002 0000005c") + of_slave
    assert master == bytes.fromhex("40000001 00000000 0000000000000000 ffffffff 0000004e") + of_master


def test_several_acknowledgements_count_as_the_last() -> None:
    """Of acknowledgements that come together only the last is told, also when it comes in pieces."""
    decoder = AckDecoder()

    data = b"".join(encode_ack(Ack(offset)) for offset in (1, 2, 3))

    assert decoder.feed(data[:30]) == Ack(2)
    assert decoder.feed(data[30:35]) is None
    assert decoder.feed(data[35:]) == Ack(3)


def test_repeated_handshake_of_java_is_passed_over() -> None:
    """A Java slave repeats its handshake while it waits; another handshake, or one of ours, is an error."""
    decoder = AckDecoder(repeated=SlaveHandshake(2))

    assert decoder.feed(SLAVE_BYTES + ACK_BYTES + SLAVE_BYTES[:14]) == Ack(300)
    assert decoder.feed(SLAVE_BYTES[14:]) is None
    assert decoder.feed(ACK_BYTES) == Ack(300)
    with pytest.raises(HaProtocolError, match="followed by another one"):
        decoder.feed(SLAVE_BYTES[:15] + b"\x03")
    with pytest.raises(HaProtocolError, match="an acknowledgement was due"):
        AckDecoder(repeated=SlaveHandshake(2, identity=SLAVE)).feed(SLAVE_BYTES)


def test_heartbeat_of_an_empty_java_log_is_read() -> None:
    """A Java master without a log sends -1 for its offsets; with bytes behind the header -1 is nonsense."""
    empty = replace(HEADER, offset=-1, confirmed_offset=-1)

    assert decode_transfer_header(encode_transfer_header(empty)) == empty
    with pytest.raises(HaProtocolError, match="offset is -1"):
        encode_transfer_header(replace(empty, size=1))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("00000002", "begins with state 1, but 00000002 came"),
        ("00000001 0002 0000 0000000000000002", "flags 0x2 and 0x0"),
        ("00000001 0000 0002 0000000000000002", "flags 0x0 and 0x2"),
        ("00000001 0000 0000 ffffffffffffffff", "id is -1"),
        ("00000001 0000 8000 0000000000000002 00000000", "an extension has 0 bytes"),
        ("00000001 0000 8000 0000000000000002 ffffffff", "an extension has -1 bytes"),
        ("00000001 0000 8000 0000000000000002 00001001", "an extension has 4097 bytes"),
        ("00000001 0000 8000 0000000000000002 00000001 ff", "no JSON"),
        ("00000001 0000 8000 0000000000000002 00000002 5b5d", "no JSON object"),
        ("00000001 0000 8000 0000000000000002 00000002 7b7d", "no text 'cluster'"),
    ],
)
def test_bad_slave_handshakes_are_named(data: str, complaint: str) -> None:
    """Bytes that are no handshake of a slave are refused with what is wrong."""
    with pytest.raises(HaProtocolError, match=complaint):
        decode_slave_handshake(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("00000003", "begins with state 1, but 00000003 came"),
        ("80000001", "begins with state 1, but 80000001 came"),
        ("00000001 0000000d 0000000000000000 00000000", "has 13 bytes of epochs"),
        ("00000001 fffffff4 0000000000000000 00000000", "has -12 bytes of epochs"),
        ("00000001 00002eec 0000000000000000 00000000", "has 12012 bytes of epochs"),
        ("00000001 00000000 ffffffffffffffff 00000000", "end of a master's log is -1"),
        ("00000001 00000000 0000000000000000 fffffffe", "last epoch is -2"),
        ("00000001 0000000c 0000000000000000 00000000 ffffffff 0000000000000000", "an epoch is -1"),
        ("00000001 0000000c 0000000000000000 00000000 00000001 ffffffffffffffff", "epoch's start is -1"),
        (
            "00000001 00000018 0000000000000000 0000000000000002 0000000000000000 00000002 0000000000000001",
            "epoch 2 from 1 does not follow epoch 2 from 0",
        ),
        (
            "00000001 00000018 0000000000000000 0000000000000002 0000000000000005 00000003 0000000000000005",
            "epoch 3 from 5 does not follow epoch 2 from 5",
        ),
    ],
)
def test_bad_master_handshakes_are_named(data: str, complaint: str) -> None:
    """Bytes that are no answer of a master are refused with what is wrong."""
    with pytest.raises(HaProtocolError, match=complaint):
        decode_master_handshake(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"size": BODY_SIZE_MAX + 1}, "transfer of 4194269 bytes"),
        ({"size": -1}, "transfer of -1 bytes"),
        ({"offset": -2}, "offset is -2"),
        ({"offset": 2**63 - 1, "size": 1}, "offset is 9223372036854775807"),
        ({"epoch": -2}, "epoch is -2"),
        ({"epoch_start": -2}, "start of a transfer's epoch is -2"),
        ({"confirmed_offset": -2}, "confirmed offset is -2"),
    ],
)
def test_bad_transfers_are_neither_written_nor_read(change: dict[str, int], complaint: str) -> None:
    """Both directions keep the limits of a transfer."""
    header = replace(HEADER, **change)
    data = bytearray(HEARTBEAT_BYTES)
    for begin, size, value in (
        (4, 4, header.size),
        (8, 8, header.offset),
        (16, 4, header.epoch),
        (20, 8, header.epoch_start),
        (28, 8, header.confirmed_offset),
    ):
        data[begin : begin + size] = value.to_bytes(size, "big", signed=True)

    with pytest.raises(HaProtocolError, match=complaint):
        encode_transfer_header(header)
    with pytest.raises(HaProtocolError, match=complaint):
        decode_transfer_header(data)


def test_wrong_state_of_a_transfer_is_seen_in_its_first_bytes() -> None:
    """Four bytes are enough to know that no transfer comes."""
    with pytest.raises(HaProtocolError, match="a transfer was due"):
        decode_transfer_header(b"xx\0\0\0\1", 2)
    with pytest.raises(HaProtocolError, match="a transfer was due"):
        decode_transfer_header(b"HTTP/1.1 400 Bad Request\r\n\r\n0123456789")


def test_limits_are_kept_when_writing() -> None:
    """Nothing leaves that the other end would refuse."""
    many = tuple((number, number) for number in range(EPOCHS_MAX + 1))

    assert len(encode_master_handshake(MasterHandshake(0, 0, many[:-1]))) == 20 + 12 * EPOCHS_MAX
    with pytest.raises(HaProtocolError, match="1001 epochs are more than 1000"):
        encode_master_handshake(MasterHandshake(0, 0, many))
    with pytest.raises(HaProtocolError, match="is longer than 4096"):
        encode_slave_handshake(SlaveHandshake(2, identity=replace(SLAVE, nonce="n" * EXTENSION_SIZE_MAX)))
    with pytest.raises(HaProtocolError, match="cannot be written as JSON"):
        encode_slave_handshake(SlaveHandshake(2, identity=replace(SLAVE, nonce="\ud800")))
    with pytest.raises(HaProtocolError, match="names two ids: 3 and 2"):
        encode_slave_handshake(SlaveHandshake(3, identity=SLAVE))
    with pytest.raises(HaProtocolError, match="logEnd is 5"):
        encode_master_handshake(MasterHandshake(0, 0, (), replace(MASTER, log_end=5)))
    with pytest.raises(HaProtocolError, match="acknowledged offset is -1"):
        encode_ack(Ack(-1))


def test_longest_handshakes_have_their_named_sizes() -> None:
    """The longest handshakes that are allowed are as long as the limits say."""
    spare = EXTENSION_SIZE_MAX - len(encode_slave_handshake(SlaveHandshake(2, identity=SLAVE))) + 20
    slave = replace(SLAVE, nonce=SLAVE.nonce + "n" * spare)
    spare = EXTENSION_SIZE_MAX - len(encode_master_handshake(MasterHandshake(0, 0, (), MASTER))) + 24
    master = replace(MASTER, nonce=MASTER.nonce + "n" * spare)
    many = tuple((number, number) for number in range(EPOCHS_MAX))

    assert len(encode_slave_handshake(SlaveHandshake(2, identity=slave))) == SLAVE_HANDSHAKE_SIZE_MAX
    assert len(encode_master_handshake(MasterHandshake(0, 0, many, master))) == MASTER_HANDSHAKE_SIZE_MAX
