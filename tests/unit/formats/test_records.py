"""Message records: the verified bytes, both versions, both kinds of hosts, and all that can be wrong."""

from __future__ import annotations

import dataclasses

import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.records import (
    BLANK,
    FIXED,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Blank,
    Record,
    RecordError,
    RecordHead,
    RecordProblem,
    SysFlag,
    check_record,
    decode_record,
    encode_record,
    ends_with_property_crc,
    magic_for,
    properties_of,
    property_crc_of,
    record_size,
    store_timestamp_at,
    topic_field,
    without_property_crc,
)

VECTOR = bytes.fromhex(
    "0000009ddaa320a769c865ed000000030000000500000000000000090000000000001000000000000000018bcfe568000a000001"
    "0000d4310000018bcfe5687b7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f636b65744d510954"
    "6f70696354657374002b4b455953016b31206b3202554e49515f4b45590137463030303030313030303102544147530154616741"
    "02"
)
"""Written by the Java classes."""

RECORD = Record(
    queue_id=3,
    flag=5,
    queue_offset=9,
    offset=4096,
    born_timestamp=1_700_000_000_000,
    born_host=Host(bytes([10, 0, 0, 1]), 54321),
    store_timestamp=1_700_000_000_123,
    store_host=Host(bytes([127, 0, 0, 1]), 10911),
    body=b"Hello RocketMQ",
    topic="TopicTest",
    properties=b"KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010001\x02TAGS\x01TagA\x02",
)


def test_a_record_is_written_as_java_writes_it() -> None:
    """The verified vector comes out byte for byte."""
    assert encode_record(RECORD) == VECTOR
    assert RECORD.body_crc == 1_774_740_973
    assert RECORD.size == len(VECTOR) == 157


def test_a_record_of_java_is_read() -> None:
    """The verified vector gives back every field."""
    assert decode_record(VECTOR, verify_crc=True) == RECORD
    assert decode_record(b"before" + VECTOR, 6) == RECORD


def test_the_property_crc_is_written_as_java_writes_it() -> None:
    """177 bytes, properties of 63, and the digits of 1860259674 from the last to the first."""
    data = encode_record(RECORD, property_crc=True)

    assert len(data) == 0xB1 == int.from_bytes(data[:4], "big")
    assert data.endswith(bytes.fromhex("5f5f435243333223013437363935323036383102"))
    assert decode_record(data).properties.startswith(RECORD.properties)


JAVA_WITH_CRC = bytes.fromhex(
    "000000b1daa320a769c865ed000000030000000500000000000000090000000000001000000000000000018bcfe568000a000001"
    "0000d4310000018bcfe5687b7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f636b65744d510954"
    "6f70696354657374003f4b455953016b31206b3202554e49515f4b45590137463030303030313030303102544147530154616741"
    "025f5f435243333223013437363935323036383102"
)
"""`VECTOR` as it is written with `enabledAppendPropCRC`."""


def test_a_record_with_a_property_crc_is_read() -> None:
    """The verified bytes are whole; the property stays among the properties, as clients of Java see it."""
    record = decode_record(JAVA_WITH_CRC, verify_crc=True)

    assert encode_record(RECORD, property_crc=True) == JAVA_WITH_CRC
    assert record.properties == RECORD.properties + b"__CRC32#\x014769520681\x02"
    assert without_property_crc(record.properties) == RECORD.properties


@pytest.mark.parametrize("position", range(len(JAVA_WITH_CRC)))
def test_every_changed_byte_of_a_record_with_a_property_crc_is_found(position: int) -> None:
    """Header, body, topic, properties and the digits: all but the name of the property itself, without
    which the record is one of those that have no such CRC."""
    data = bytearray(JAVA_WITH_CRC)
    data[position] ^= 4

    found = check_record(data, 0, len(data), verify_crc=True)

    name = range(len(data) - 21, len(data) - 11)
    assert isinstance(found, RecordHead if position in name else RecordProblem)


@pytest.mark.parametrize("begin", range(0, 28_672, 4096))
def test_a_lost_page_in_the_middle_of_properties_is_found(begin: int) -> None:
    """4 KiB of zeros anywhere in long properties; without the CRC nobody can tell them from what was sent."""
    record = dataclasses.replace(RECORD, properties=b"K\x01" + b"v" * 32_700 + b"\x02")
    for crc in (True, False):
        data = bytearray(encode_record(record, property_crc=crc))
        data[begin + 200 : begin + 200 + 4096] = bytes(4096)

        found = check_record(data, 0, len(data), verify_crc=True)

        assert isinstance(found, RecordProblem) is crc
        assert isinstance(check_record(data, 0, len(data), verify_crc=False), RecordHead)


@pytest.mark.parametrize(
    "properties",
    [
        b"__CRC32#\x010000000000\x02K\x01v\x02",
        b"K\x01v__CRC32#\x010000000000\x02",
        b"X__CRC32#\x010000000000\x02",
        b"__CRC32#\x011\x02",
    ],
)
def test_only_the_last_property_is_the_crc(properties: bytes) -> None:
    """The name elsewhere, at the end of a value or of another name, or with another length means nothing:
    brokers without the setting store what clients send."""
    data = encode_record(dataclasses.replace(RECORD, properties=properties))

    assert not ends_with_property_crc(properties)
    assert isinstance(check_record(data, 0, len(data), verify_crc=True), RecordHead)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", b""),
        (b"K\x01v\x02", b"K\x01v\x02"),
        (b"K\x01v\x02__CRC32#\x014769520681\x02", b"K\x01v\x02"),
        (b"__CRC32#\x01\x02K\x01v\x02__CRC32#\x01", b"K\x01v"),
        (b"__CRC32#\x014769520681", b""),
        (b"K\x01__CRC32#\x01v\x02", b"K\x01__CRC32#\x01v\x02"),
        (b"A__CRC32#\x01v\x02", b"A__CRC32#\x01v\x02"),
        (b"__CRC32#__CRC32#\x01v\x02", b"__CRC32#__CRC32#\x01v\x02"),
    ],
)
def test_a_property_crc_is_taken_out(raw: bytes, expected: bytes) -> None:
    """Every property of that name, and nothing else: `MessageUtils.deleteProperty` of Java."""
    assert without_property_crc(raw) == expected


def test_the_digits_are_padded() -> None:
    """A small CRC has zeros behind its digits."""
    assert property_crc_of(b"") == b"__CRC32#\x010000000000\x02"


def test_a_long_topic_takes_the_second_version() -> None:
    """From 128 bytes on the length of the topic has two bytes."""
    topic = "t" * 130
    record = dataclasses.replace(RECORD, magic=magic_for(topic.encode()), topic=topic)

    data = encode_record(record)

    assert record.magic == MAGIC_V2
    assert data[4:8].hex() == "daa320ab"
    assert data[FIXED.size + len(RECORD.body) :][:2].hex() == "0082"
    assert decode_record(data, verify_crc=True) == record
    assert len(data) == record_size(14, 130, 43, v2=True)
    assert magic_for(b"t" * 127) == MAGIC_V1
    assert topic_field(b"ab") == b"\x02ab"


@pytest.mark.parametrize("born_v6", [False, True])
@pytest.mark.parametrize("store_v6", [False, True])
def test_hosts_of_both_kinds_are_kept(born_v6: bool, store_v6: bool) -> None:
    """An IPv6 host takes 12 bytes more and sets its bit."""
    record = dataclasses.replace(
        RECORD,
        born_host=Host(bytes(range(16)) if born_v6 else b"abcd", 1),
        store_host=Host(bytes(range(16)) if store_v6 else b"efgh", 2),
    )

    data = encode_record(record)

    assert len(data) == 157 + 12 * born_v6 + 12 * store_v6
    assert bool(record.sys_flag & SysFlag.BORN_HOST_V6) is born_v6
    assert bool(record.sys_flag & SysFlag.STORE_HOST_V6) is store_v6
    assert decode_record(data, verify_crc=True) == record
    assert store_timestamp_at(data, 0) == RECORD.store_timestamp


@pytest.mark.parametrize("topic", ["t", "t" * 127, "t" * 130])
@pytest.mark.parametrize("v6", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("properties", [b"", RECORD.properties])
def test_properties_are_found_without_the_rest(topic: str, v6: tuple[bool, bool], properties: bytes) -> None:
    """In records of every shape; and a torn one is no record."""
    born, store = (Host(b"0123456789abcdef" if wide else b"abcd", 1) for wide in v6)
    record = dataclasses.replace(
        RECORD, magic=magic_for(topic.encode()), topic=topic, born_host=born, store_host=store,
        properties=properties,
    )  # fmt: skip

    data = encode_record(record)

    assert properties_of(memoryview(data)) == properties
    for size in range(len(data)):
        with pytest.raises(RecordError):
            properties_of(data[:size])


def test_recovery_reads_what_it_needs() -> None:
    """A checked record has size, topic, queue, offsets, time and raw properties."""
    assert check_record(VECTOR, 0, len(VECTOR), verify_crc=True) == RecordHead(
        157, b"TopicTest", 3, 9, 4096, 0, 1_700_000_000_123, RECORD.properties
    )


def test_a_blank_record_ends_a_file() -> None:
    """The blank record is told from messages and from the unused end of the log."""
    data = BLANK.pack(100, MAGIC_BLANK) + bytes(92)

    assert check_record(data, 0, 100, verify_crc=True) == Blank(100)
    assert check_record(bytes(8), 0, 8, verify_crc=True) == RecordProblem("no record", 0, True)
    with pytest.raises(RecordError, match="blank"):
        decode_record(data)


def damaged(position: int, value: bytes) -> bytes:
    return VECTOR[:position] + value + VECTOR[position + len(value) :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (VECTOR[:7], "too few bytes"),
        (VECTOR[:-1], "does not fit"),
        (damaged(0, b"\x00\x00\x00\x10"), "does not fit"),
        (damaged(0, b"\xff\xff\xff\xff"), "does not fit"),
        (damaged(0, b"\x00\x00\x00\x9c"), "add up"),
        (damaged(4, b"\xda\xa3\x20\xa8"), "unknown magic"),
        (damaged(84, b"\x7f\xff\xff\xff"), "body length"),
        (damaged(84, b"\xff\xff\xff\xff"), "body length"),
        (damaged(84, b"\x00\x00\x00\x0d"), "topic length|add up"),
        (damaged(102, b"\x80"), "topic length"),
        (damaged(112, b"\xff\xff"), "add up"),
        (damaged(90, b"X"), "CRC"),
        (damaged(150, bytes(7)), "zeros"),
    ],
)
def test_damage_is_found(data: bytes, reason: str) -> None:
    """A record that is cut, or whose lengths or body are wrong, is a problem with a reason."""
    problem = check_record(data, 0, len(data), verify_crc=True)

    assert isinstance(problem, RecordProblem)
    with pytest.raises(RecordError, match=reason):
        decode_record(data, verify_crc=True)


@pytest.mark.parametrize("length", range(157))
def test_every_torn_record_is_found(length: int) -> None:
    """A record of which only the beginning got to the disk is never taken for whole."""
    data = VECTOR[:length] + bytes(200 - length)

    assert isinstance(check_record(data, 0, len(data), verify_crc=True), RecordProblem)


def test_zeros_that_a_client_sent_are_no_damage() -> None:
    """A value may hold zeros, as many as fit: the messages behind must not be cut off for them."""
    record = dataclasses.replace(RECORD, properties=b"K\x01" + bytes(10_000) + b"\x02")
    data = encode_record(record)

    assert isinstance(check_record(data, 0, len(data), verify_crc=True), RecordHead)
    assert decode_record(data, verify_crc=True) == record


def test_properties_without_a_separator_at_their_end_are_read() -> None:
    """Old brokers wrote such; the rule that recovery has about zeros at the end is not for readers."""
    record = dataclasses.replace(RECORD, properties=b"K\x01value\x00")

    assert decode_record(encode_record(record)) == record


def test_what_does_not_fit_the_format_is_not_written() -> None:
    """Too long topics and properties are refused by name."""
    with pytest.raises(FormatError, match="topic of 128"):
        encode_record(dataclasses.replace(RECORD, topic="t" * 128))
    with pytest.raises(FormatError, match="32768 bytes of properties"):
        encode_record(dataclasses.replace(RECORD, properties=b"p" * 32768))
