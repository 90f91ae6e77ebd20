"""Messages to send, and records that were received."""

from __future__ import annotations

import zlib

import pytest

from brokerset_client import Message, MessageQueue, MessageUnreadable, MessageView
from brokerset_client.compression import BODY_SIZE_MAX, compress, decompress
from brokerset_client.messages import split_records
from brokerset_formats.hosts import Host
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record, SysFlag, encode_record

VECTOR = bytes.fromhex(
    "0000009ddaa320a769c865ed000000030000000500000000000000090000000000001000000000000000018bcfe568000a0000010000d431"
    "0000018bcfe5687b7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f636b65744d5109546f70696354657374"
    "002b4b455953016b31206b3202554e49515f4b4559013746303030303031303030310254414753015461674102"
)
"""A record made by the original classes."""


def record(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "queue_id": 1,
        "queue_offset": 2,
        "offset": 300,
        "born_timestamp": 4,
        "born_host": Host(bytes(4), 5),
        "store_timestamp": 6,
        "store_host": Host(bytes((127, 0, 0, 1)), 10911),
        "body": b"body",
        "topic": "t",
        **changes,
    }
    return encode_record(Record(**fields))  # type: ignore[arg-type]  # test fields


def test_a_record_of_java_is_read_field_by_field() -> None:
    view = MessageView(VECTOR, 0, "broker-a")

    assert (view.topic, view.body, view.flag, view.queue_id) == ("TopicTest", b"Hello RocketMQ", 5, 3)
    assert (view.queue_offset, view.offset, view.size) == (9, 4096, 157)
    assert (view.tags, view.keys, view.message_id) == ("TagA", ("k1", "k2"), "7F0000010001")
    assert (view.born_timestamp, view.store_timestamp) == (1700000000000, 1700000000123)
    assert (view.born_host.text, view.store_host.text) == ("10.0.0.1:54321", "127.0.0.1:10911")
    assert view.offset_message_id == "7F00000100002A9F0000000000001000"
    assert view.properties == {"KEYS": "k1 k2", "UNIQ_KEY": "7F0000010001", "TAGS": "TagA"}
    assert view.queue == MessageQueue("TopicTest", "broker-a", 3)
    assert view.record.body == view.body
    assert view.stored_bytes == VECTOR


@pytest.mark.parametrize("born", [Host(bytes(4), 1), Host(bytes(range(16)), 2)])
@pytest.mark.parametrize("store", [Host(bytes(4), 3), Host(bytes(range(16)), 4)])
@pytest.mark.parametrize("topic", ["t", "x" * 130])
def test_all_layouts_of_records_are_read(born: Host, store: Host, topic: str) -> None:
    """IPv6 hosts and long topics move the fields behind them."""
    magic = {} if len(topic) < 128 else {"magic": 0xDAA320AB}
    raw = record(born_host=born, store_host=store, topic=topic, properties=b"TAGS\x01A\x02", **magic)

    view = MessageView(b"before" + raw + b"after", 6)

    assert (view.born_host, view.store_host, view.topic, view.tags) == (born, store, topic, "A")
    assert (view.body, view.queue_offset) == (b"body", 2)


def test_every_cut_or_wrong_length_is_reported() -> None:
    raw = record(properties=b"TAGS\x01A\x02")
    for end in range(len(raw)):
        with pytest.raises(MessageUnreadable):
            split_records(raw[:end] if end else b"\0")[0].topic  # noqa: B018  # reading is the test
    for position in (0, 4, 84, 92):
        broken = bytearray(raw)
        broken[position + 3] ^= 0xFF
        with pytest.raises(MessageUnreadable):
            MessageView(bytes(broken)).topic  # noqa: B018  # reading is the test


def test_an_answer_is_split_into_its_records() -> None:
    views = split_records(record(body=b"1") + record(body=b"22"), "a", "g")

    assert [view.body for view in views] == [b"1", b"22"]


def test_only_the_own_groups_retry_topic_is_hidden() -> None:
    raw = record(topic="%RETRY%g", properties=encode_properties({"RETRY_TOPIC": "orders"}))

    assert MessageView(raw, 0, "a", "g").topic == "orders"
    assert MessageView(raw, 0, "a", "other").topic == "%RETRY%g"
    assert MessageView(raw, 0, "a", "g").stored_topic == "%RETRY%g"


def test_a_message_without_an_id_has_the_brokers() -> None:
    view = MessageView(record())

    assert view.message_id == view.offset_message_id == view.origin_message_id
    assert view.tags is None
    assert view.keys == ()


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000])
def test_bodies_come_back_as_they_were(size: int) -> None:
    body = b"ab" * (size // 2)

    packed, flag = compress(body)

    assert (flag == 0) is (len(body) < 4096)
    assert decompress(packed, flag) == body


def test_bodies_of_old_clients_have_no_type() -> None:
    assert decompress(zlib.compress(b"x" * 10), SysFlag.COMPRESSED) == b"x" * 10


@pytest.mark.parametrize(
    ("body", "flag", "problem"),
    [
        (b"x", SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4, "LZ4"),
        (b"x", SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD, "Zstandard"),
        (b"x", SysFlag.COMPRESSED | 0x700, "0x700"),
        (b"no zlib", SysFlag.COMPRESSED, "damaged"),
        (zlib.compress(bytes(1000))[:-6], SysFlag.COMPRESSED, "too early"),
        (zlib.compress(bytes(BODY_SIZE_MAX + 1)), SysFlag.COMPRESSED, "more than"),
    ],
)
def test_bodies_that_cannot_be_opened_say_why(body: bytes, flag: int, problem: str) -> None:
    with pytest.raises(MessageUnreadable, match=problem):
        decompress(body, flag)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message(topic=""), "blank"),
        (Message(topic="a b"), "illegal characters"),
        (Message(topic="x" * 128), "longer than"),
        (Message(topic="SCHEDULE_TOPIC_XXXX"), "forbidden"),
        (Message(topic="t", body=bytes(4 * 1024 * 1024 + 1)), "split it"),
        (Message(topic="t", keys=("two words",)), "white space"),
        (Message(topic="t", keys=("",)), "empty"),
        (Message(topic="t", delay_level=1, delay_ms=5), "exclude"),
        (Message(topic="t", properties={"TAGS": "x"}), "reserved"),
    ],
)
def test_a_message_that_cannot_be_sent_says_why(message: Message, problem: str) -> None:
    assert problem in str(message.problem())


def test_everything_about_a_message_becomes_properties() -> None:
    message = Message(
        topic="t",
        tags="A",
        keys="one",
        delay_ms=5,
        sharding_key="s",
        properties={"p": "1"},
        system_properties={"UNIQ_KEY": "KEPT", "RETRY_TOPIC": "o"},
    )

    assert message.problem() is None
    assert message.to_properties("NEW") == {
        "p": "1",
        "UNIQ_KEY": "KEPT",
        "RETRY_TOPIC": "o",
        "TAGS": "A",
        "KEYS": "one",
        "TIMER_DELAY_MS": "5",
        "__SHARDINGKEY": "s",
        "WAIT": "true",
    }
