"""Decoding what was encoded gives the same; decoding anything else gives FormatError and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats import dledger, epochs, fastjson, hashing
from brokerset_formats.batches import BatchItem, encode_batch, iterate_batch
from brokerset_formats.config import (
    ConsumerOffsets,
    DelayOffsets,
    GroupTable,
    KvConfig,
    TopicConfig,
    TopicTable,
)
from brokerset_formats.config.versions import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.identity import BrokerIdentity
from brokerset_formats.index_file import IndexHeader
from brokerset_formats.message_ids import decode_offset_id, encode_offset_id
from brokerset_formats.properties import decode_properties, encode_properties, find_property
from brokerset_formats.records import (
    MAGIC_V2,
    Record,
    RecordHead,
    check_record,
    decode_record,
    encode_record,
    ends_with_property_crc,
    without_property_crc,
)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
natural = st.integers(0, 2**63 - 1)
plain_text = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)
property_maps = st.dictionaries(plain_text, plain_text, max_size=8)
names = st.text("abcXYZ019_-%|", min_size=1, max_size=20)
versions = st.builds(DataVersion, natural, natural, natural)
queue_offsets = st.dictionaries(st.integers(0, 2**31 - 1), int64, max_size=5)
topics = st.builds(
    TopicConfig,
    topic_name=names,
    read_queue_nums=st.integers(0, 65535),
    write_queue_nums=st.integers(0, 65535),
    perm=st.integers(0, 15),
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    topic_sys_flag=st.integers(0, 3),
    order=st.booleans(),
    attributes=st.dictionaries(plain_text, plain_text, max_size=3),
)


@given(property_maps)
def test_properties(properties: dict[str, str]) -> None:
    """All properties come back, together and one by one."""
    raw = encode_properties(properties)

    assert decode_properties(raw) == properties
    for name, value in properties.items():
        assert find_property(raw, name.encode()) == value.encode()


@given(
    st.lists(st.sampled_from([b"A", b"B", b"AB", b"\x01", b"\x02", b"v"])).map(b"".join),
    st.sampled_from(["A", "B", "AB"]),
)
def test_finding_agrees_with_decoding(raw: bytes, name: str) -> None:
    """Whatever the bytes are, looking for one name gives what decoding all gives."""
    found = find_property(raw, name.encode())

    expected = decode_properties(raw).get(name)
    if expected is not None and "\x01" not in expected:
        assert found == expected.encode()
    elif expected is None:
        assert found is None


@given(st.text(), st.text())
def test_key_hasher(topic: str, key: str) -> None:
    """The fast hash is the plain one."""
    data = key.encode("utf-8", "replace")

    assert hashing.KeyHasher().hash(topic, data) == hashing.index_hash(f"{topic}#{data.decode()}")


@given(st.text())
def test_java_hash(text: str) -> None:
    """The hash is the polynomial over UTF-16 units, wrapped to 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for position in range(0, len(units), 2):
        total = total * 31 + int.from_bytes(units[position : position + 2], "big")

    assert (hashing.java_hash(text) - total) % 2**32 == 0
    assert -(2**31) <= hashing.java_hash(text) < 2**31


@given(st.lists(st.builds(BatchItem, int32, st.binary(max_size=30), st.binary(max_size=30))))
def test_batches(items: list[BatchItem]) -> None:
    """A batch comes back as it was."""
    assert iterate_batch(encode_batch(items)) == items


records = st.builds(
    Record,
    magic=st.just(MAGIC_V2),
    queue_id=st.integers(0, 7),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(0, 2**40),
    offset=st.integers(0, 2**40),
    born_timestamp=st.integers(0, 2**40),
    born_host=st.sampled_from([Host(bytes(4), 1), Host(bytes(16), 2)]),
    store_timestamp=st.integers(0, 2**40),
    store_host=st.sampled_from([Host(bytes(4), 1), Host(bytes(16), 2)]),
    body=st.binary(max_size=300),
    topic=st.text(max_size=40),
    properties=st.binary(max_size=300),
)


@given(records, st.booleans())
def test_records(record: Record, property_crc: bool) -> None:
    """What is written is read, with a CRC over all of it and without; the CRC changes no other property."""
    record = replace(record, properties=without_property_crc(record.properties))
    data = encode_record(record, property_crc=property_crc)

    found = decode_record(data, verify_crc=property_crc)

    assert ends_with_property_crc(found.properties) is property_crc
    left = without_property_crc(found.properties)
    assert replace(found, properties=record.properties) == record
    assert decode_properties(left) == decode_properties(record.properties)


@given(records, st.data())
def test_a_property_crc_finds_any_lost_or_changed_bytes(record: Record, data: st.DataObject) -> None:
    """Wherever bytes of a record are zeroed or changed, but in the name of the property itself."""
    whole = encode_record(record, property_crc=True)
    changed = bytearray(whole)
    begin = data.draw(st.integers(0, len(whole) - 22))
    end = data.draw(st.integers(begin + 1, len(whole) - 21))
    changed[begin:end] = data.draw(
        st.one_of(st.just(bytes(end - begin)), st.binary(min_size=end - begin, max_size=end - begin))
    )

    found = check_record(changed, 0, len(changed), verify_crc=True)

    assert isinstance(found, RecordHead) is (bytes(changed) == whole)


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), int32, int64)
def test_offset_ids(address: bytes, port: int, offset: int) -> None:
    """Hosts and offsets come back from ids."""
    host = Host(address, port)

    assert decode_offset_id(encode_offset_id(host, offset)) == (host, offset)
    assert Host.decode(host.encode(), 0, host.v6) == host


@given(
    st.builds(dledger.LedgerEntry, natural, natural, natural, st.binary(max_size=50)), st.binary(max_size=9)
)
def test_ledger_entries(entry: dledger.LedgerEntry, before: bytes) -> None:
    """Entries and units come back from any place in a buffer."""
    assert dledger.decode_entry(before + entry.encode(), len(before)) == entry
    unit = dledger.LedgerUnit.of(entry)
    assert dledger.LedgerUnit.decode(before + unit.encode(), len(before)) == unit


@given(names, names, st.integers(0, 2**31), names)
def test_identities(cluster: str, broker: str, broker_id: int, code: str) -> None:
    """Both kinds of identity files come back."""
    for identity in (
        BrokerIdentity(cluster, broker, broker_id),
        BrokerIdentity(cluster, broker, broker_id, code),
    ):
        assert BrokerIdentity.decode(identity.encode()) == identity


@given(versions, st.lists(topics, max_size=4))
def test_topic_tables(version: DataVersion, found: list[TopicConfig]) -> None:
    """Topic tables come back from files, topics from their text form."""
    table = TopicTable(version, {topic.topic_name: topic for topic in found})

    assert TopicTable.decode(table.encode()) == table
    for topic in found:
        text_form = TopicConfig.decode(topic.encode())
        assert text_form.encode() == topic.encode()


@given(versions, st.dictionaries(plain_text, queue_offsets, max_size=4), queue_offsets)
def test_offset_tables(
    version: DataVersion, table: dict[str, dict[int, int]], levels: dict[int, int]
) -> None:
    """Progress comes back from files."""
    offsets = ConsumerOffsets(version, table, table)

    assert ConsumerOffsets.decode(offsets.encode()) == offsets
    assert DelayOffsets.decode(DelayOffsets(version, levels).encode()) == DelayOffsets(version, levels)


json_values = st.recursive(
    st.none() | st.booleans() | int64 | st.floats(allow_nan=False, allow_infinity=False) | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_json(value: object) -> None:
    """Both layouts come back, also through the parser for objects as keys."""
    assert fastjson.loads(fastjson.dumps(value)) == value
    assert fastjson.loads(fastjson.dumps_pretty(value)) == value
    assert fastjson.loads(b"{{}:" + fastjson.dumps_pretty(value) + b"}") == {"{}": value}


DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "batch": (iterate_batch, encode_batch([BatchItem(1, b"body", b"A\x01b\x02"), BatchItem(2, b"", b"")])),
    "properties": (decode_properties, b"A\x01b\x02"),
    "host": (Host.decode, Host(b"\x7f\0\0\1", 1).encode()),
    "id": (lambda data: decode_offset_id(data.decode("latin-1")), b"7F00000100002A9F0000000000001000"),
    "entry": (dledger.decode_entry, dledger.LedgerEntry(1, 2, 3, b"body").encode()),
    "unit": (dledger.LedgerUnit.decode, dledger.LedgerUnit(1, 50, 3, 4).encode()),
    "term": (dledger.CurrentTerm.decode, dledger.CurrentTerm(3, "n0").encode()),
    "ledger checkpoint": (dledger.LedgerCheckpoint.decode, dledger.LedgerCheckpoint(3, 4).encode()),
    "epochs": (epochs.decode_epoch_file, b"2\n0\n1-0\n2-4096\n"),
    "identity": (BrokerIdentity.decode, b"c#b#1#code"),
    "index header": (
        lambda data: IndexHeader.decode(bytearray(data)),
        IndexHeader(1, 2, 3, 4, 1, 2).encode(),
    ),
    "json": (fastjson.loads, b'{{"a":1}:{2:[1.5,true,"x\\n"]}}'),
    "topics": (TopicTable.decode, TopicTable(DataVersion(), {"t": TopicConfig("t")}).encode()),
    "groups": (
        GroupTable.decode,
        b'{"subscriptionGroupTable":{"g":{"retryMaxTimes":3,"attributes":{}}},"forbiddenTable":{}}',
    ),
    "consumer offsets": (ConsumerOffsets.decode, b'{"offsetTable":{"t@g":{0:1,"1":2}}}'),
    "delay offsets": (DelayOffsets.decode, b'{"offsetTable":{1:2}}'),
    "kv": (KvConfig.decode, b'{"configTable":{"n":{"k":"v"}}}'),
    "topic text": (lambda data: TopicConfig.decode(data.decode("latin-1")), b'T 4 4 6 SINGLE_TAG {"a":"b"}'),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_damage_gives_format_errors_only(name: str, data: st.DataObject) -> None:
    """Random bytes, and good bytes with a few changed, decode or raise FormatError."""
    decode, good = DECODERS[name]
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(damaged)))
        length = data.draw(st.integers(0, 4))
        damaged[position : position + length] = data.draw(st.binary(max_size=4))

    for candidate in (bytes(damaged), data.draw(st.binary(max_size=80))):
        with suppress(FormatError):
            decode(candidate)
