"""POP's texts and records: Java's bytes, what is refused, and both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats.errors import FormatError
from brokerset_formats.pop import names, offset_infos
from brokerset_formats.pop.bit_sets import decode_bits, encode_bits
from brokerset_formats.pop.handles import Handle, parse_handle
from brokerset_formats.pop.records import (
    Acks,
    CheckPoint,
    decode_revive_record,
    revive_properties,
)
from brokerset_formats.properties import decode_properties

I64 = st.integers(0, 2**63 - 1)
WORD = st.text(st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1)
OFFSETS = st.lists(st.integers(0, 5_000), min_size=0, max_size=32, unique=True).map(tuple)

GOLDEN_CHECK_POINT = (
    b'{"bm":0,"bn":"b","c":"g","d":[0,2],"it":60000,"n":2,"pt":1700000000000,"q":1,'
    b'"reviveTime":1700000060000,"ro":0,"so":7,"sp":false,"t":"T"}'
)
GOLDEN_ACK = b'{"ao":9,"bn":"b","c":"g","pt":1700000000000,"q":1,"so":7,"t":"T"}'
GOLDEN_BATCH = b'{"ao":-1,"aol":[7,9],"bn":"b","c":"g","pt":1700000000000,"q":1,"so":7,"t":"T"}'

CHECK_POINT = CheckPoint(
    topic="T", group="g", queue_id=1, start_offset=7, pop_time=1_700_000_000_000, invisible_time=60_000,
    broker="b", count=2, distances=(0, 2),
)  # fmt: skip


def acks_of(*offsets: int) -> Acks:
    return Acks(
        topic="T", group="g", queue_id=1, start_offset=7, pop_time=1_700_000_000_000, broker="b",
        offsets=offsets,
    )  # fmt: skip


# -- records ----------------------------------------------------------------------------------------------


def test_records_are_written_as_java_writes_them() -> None:
    """The bodies are those of the original classes."""
    assert CHECK_POINT.encode() == GOLDEN_CHECK_POINT
    assert acks_of(9).encode() == GOLDEN_ACK
    assert acks_of(7, 9).encode() == GOLDEN_BATCH


def test_records_of_java_are_read() -> None:
    """The bodies of the original classes say what they say."""
    assert decode_revive_record("ck", GOLDEN_CHECK_POINT) == CHECK_POINT
    assert decode_revive_record("ack", GOLDEN_ACK) == acks_of(9)
    assert decode_revive_record("bAck", GOLDEN_BATCH) == acks_of(7, 9)
    assert CHECK_POINT.offsets == (7, 9)


def test_the_names_of_old_releases_are_read() -> None:
    """Records of releases before 5.1 have long names, no distances and no broker."""
    body = b"""{"bitMap":-2147483648,"cid":"g","invisibleTime":60000,"num":3,"popTime":5,"queueId":1,
        "startOffset":7,"topic":"T","unknown":[1]}"""

    point = decode_revive_record("ck", body)

    assert isinstance(point, CheckPoint)
    assert (point.offsets, point.acked, point.broker) == ((7, 8, 9), 0x8000_0000, None)
    ack = decode_revive_record(
        "ack", b'{"ackOffset":8,"consumerGroup":"g","popTime":5,"queueId":1,"startOffset":7,"topic":"T"}'
    )
    assert isinstance(ack, Acks)
    assert ack.offsets == (8,)
    assert isinstance(point := decode_revive_record("ck", b'{"c":"g","t":"T","n":-1}'), CheckPoint)
    assert point.offsets == ()


def test_a_check_point_put_off_by_java_says_how_often() -> None:
    """`rp` is a text; what is no number counts as many."""
    for text, times in (("2", 2), ("x", 127)):
        point = decode_revive_record("ck", f'{{"c":"g","t":"T","rp":"{text}"}}'.encode())
        assert isinstance(point, CheckPoint)
        assert point.put_times == times
    assert b'"rp":"2"' in CheckPoint(
        topic="T", group="g", queue_id=0, start_offset=0, pop_time=0, invisible_time=0, broker=None, count=0,
        put_times=2,
    ).encode()  # fmt: skip


def test_a_record_has_the_time_of_delivery_and_the_tag_and_nothing_for_the_key_index() -> None:
    """What Java's reader needs; an entry in the index would be read by nobody."""
    assert decode_properties(revive_properties("ck", 17)) == {"TIMER_DELIVER_MS": "17", "TAGS": "ck"}
    assert decode_properties(revive_properties(acks_of(9).tag, 1))["TAGS"] == "ack"
    assert decode_properties(revive_properties(acks_of(7, 9).tag, 1))["TAGS"] == "bAck"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"c":"g"}',
        b'{"t":"T"}',
        b'{"c":"g","t":"T","so":"x"}',
        b'{"c":"g","t":"T","so":1.5}',
        b'{"c":"g","t":"T","so":true}',
        b'{"c":"g","t":"T","n":33}',
        b'{"c":"g","t":"T","d":[0,"x"]}',
        b'{"c":"g","t":"T","so":9223372036854775808}',
    ],
)
def test_an_unreadable_check_point_is_refused(body: bytes) -> None:
    """What names no check point, or has no numbers where they belong, is a FormatError."""
    with pytest.raises(FormatError):
        decode_revive_record("ck", body)


def test_records_with_other_tags_say_nothing() -> None:
    """Java skips them, too."""
    assert decode_revive_record("x", b"anything") is None


@given(
    topic=WORD, group=WORD, broker=st.none() | WORD, start=I64, pop_time=I64, invisible=I64,
    distances=st.none() | OFFSETS, bits=st.integers(0, 2**32 - 1), suspend=st.booleans(),
)  # fmt: skip
def test_a_check_point_is_read_as_it_was_written(
    topic: str, group: str, broker: str | None, start: int, pop_time: int, invisible: int,
    distances: tuple[int, ...] | None, bits: int, suspend: bool,
) -> None:  # fmt: skip
    """Encoding and decoding are each other's inverse."""
    point = CheckPoint(
        topic=topic, group=group, queue_id=3, start_offset=start, pop_time=pop_time, invisible_time=invisible,
        broker=broker, count=len(distances) if distances else 5, distances=distances or None, acked=bits,
        suspend=suspend,
    )  # fmt: skip

    assert decode_revive_record("ck", point.encode()) == point


@given(WORD, WORD, st.none() | WORD, OFFSETS)
def test_acks_are_read_as_they_were_written(
    topic: str, group: str, broker: str | None, offsets: tuple[int, ...]
) -> None:
    """Encoding and decoding are each other's inverse, for one ack and for batches."""
    acks = Acks(
        topic=topic, group=group, queue_id=0, start_offset=1, pop_time=2, broker=broker, offsets=offsets
    )

    assert decode_revive_record(acks.tag, acks.encode()) == acks


# -- handles ----------------------------------------------------------------------------------------------


def test_a_handle_is_read() -> None:
    """Eight fields of a broker, or nine of a proxy."""
    handle = Handle(7, 1_700_000_000_000, 60_000, 3, 1, "broker-a", 2, 9)

    assert parse_handle("7 1700000000000 60000 3 1 broker-a 2 9") == handle
    assert parse_handle("7 1700000000000 60000 3 1 broker-a 2 9 4711").log_offset == 4711
    assert handle.visible_time == 1_700_000_060_000
    assert not handle.is_ordered
    assert parse_handle("7 1 2 999 0 b 0 9").is_ordered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "7 1 2 3 1 b 2",
        "7 1 2 3 1 b 2 9 1 1",
        "7 1 2 3 1  2 9",
        "7 1 2 3 5 b 2 9",
        "-7 1 2 3 1 b 2 9",
        "7 1 2 3 1 b 2 \u0669",
        "7 1 2 2147483648 1 b 2 9",
        "9223372036854775808 1 2 3 1 b 2 9",
        "7 1 2 3 1 b 2 " + "9" * 2000,
    ],
)
def test_a_text_that_is_no_handle_is_refused(text: str) -> None:
    """A FormatError says which field is wrong."""
    with pytest.raises(FormatError):
        parse_handle(text)


@given(I64, I64, I64, st.integers(0, 999), st.integers(0, 2), st.integers(0, 9), I64, st.none() | I64)
def test_a_handle_is_read_as_it_was_written(
    start: int, time: int, invisible: int, revive: int, flag: int, queue: int, offset: int, log: int | None
) -> None:
    """Encoding and parsing are each other's inverse."""
    handle = Handle(start, time, invisible, revive, flag, "b", queue, offset, log)

    assert parse_handle(handle.encode()) == handle


def test_a_handle_cannot_name_a_broker_with_a_space() -> None:
    """It would be read as another handle."""
    with pytest.raises(FormatError):
        Handle(1, 1, 1, 1, 0, "a b", 1, 1).encode()


# -- offset infos -----------------------------------------------------------------------------------------


def test_offset_infos_are_those_of_java() -> None:
    """Texts as brokers answer them."""
    assert offset_infos.encode_start_offsets([(0, 1, 7), (2, 0, 3)]) == "0 1 7;2 0 3"
    assert offset_infos.encode_message_offsets([(0, 1, [7, 9]), (1, 0, [3]), (1, 1, [])]) == "0 1 7,9;1 0 3"
    counts = offset_infos.encode_order_counts({(0, 1, 7): 1, (0, 1, 8): 1, (0, 1, 10): 1}, {(0, 1): 1})
    assert counts == "0 qo1%7 1;0 qo1%8 1;0 qo1%10 1;0 1 1"


@given(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 99)), st.lists(I64, min_size=1, max_size=5))
)
def test_offset_infos_are_read_as_they_were_written(found: dict[tuple[int, int], list[int]]) -> None:
    """Encoders and parsers are each other's inverse."""
    starts = {key: numbers[0] for key, numbers in found.items()}
    by_offset = {(flag, queue, numbers[0]): 2 for (flag, queue), numbers in found.items()}

    text = offset_infos.encode_start_offsets((*key, number) for key, number in starts.items())
    assert offset_infos.parse_start_offsets(text) == starts
    text = offset_infos.encode_message_offsets((*key, numbers) for key, numbers in found.items())
    assert offset_infos.parse_message_offsets(text) == {key: tuple(each) for key, each in found.items()}
    text = offset_infos.encode_order_counts(by_offset, starts)
    assert offset_infos.parse_order_counts(text) == (by_offset, starts)


@pytest.mark.parametrize("text", ["x", "0 1", "0 1 2 3", "3 1 2", "0 x 2", "0 1 x", "0 1 2;0 1 3", "0 1 2;"])
def test_texts_that_are_no_offset_infos_are_refused(text: str) -> None:
    """A FormatError names the item."""
    with pytest.raises(FormatError):
        offset_infos.parse_start_offsets(text)


def test_no_text_is_no_offsets() -> None:
    """A header without the field, or with an empty one."""
    assert offset_infos.parse_message_offsets(None) == {}
    assert offset_infos.parse_start_offsets("") == {}


# -- bit sets ---------------------------------------------------------------------------------------------


def test_a_bit_set_is_that_of_java() -> None:
    """Bits 0, 2 and 9 are `05 02`, the lowest bit first."""
    assert encode_bits([9, 0, 2]) == "BQI="
    assert decode_bits("BQI=") == (0, 2, 9)
    assert decode_bits("") == ()


@given(st.sets(st.integers(0, 65_535), max_size=40))
def test_a_bit_set_is_read_as_it_was_written(bits: set[int]) -> None:
    """Encoding and decoding are each other's inverse."""
    assert decode_bits(encode_bits(bits)) == tuple(sorted(bits))


def test_a_bit_set_that_names_far_too_much_is_refused() -> None:
    """As is text that is no base64."""
    for text in ("=", "a", "é", encode_bits([65_536])):
        with pytest.raises(FormatError):
            decode_bits(text)


# -- names ------------------------------------------------------------------------------------------------


def test_retry_topics_are_named_as_java_names_them() -> None:
    """V1 joins with `_`, V2 with `+`; the flag of a handle says which."""
    v1, v2 = (names.pop_retry_topic("a_g", "T_1", flag) for flag in (names.RETRY_V1, names.RETRY_V2))

    assert (v1, v2) == ("%RETRY%a_g_T_1", "%RETRY%a_g+T_1")
    assert [names.retry_flag_of(topic) for topic in ("T_1", v1, v2)] == [0, 1, 2]
    assert [names.normal_topic("a_g", topic) for topic in ("T_1", v1, v2)] == ["T_1"] * 3
    assert names.real_topic("a_g", "T_1", names.NORMAL) == "T_1"
    assert names.real_topic("a_g", "T_1", names.RETRY_V2) == v2
    assert names.split_retry_v2(v2) == ("a_g", "T_1")
    assert names.split_retry_v2(v1) is None
    assert names.revive_topic("C") == "rmq_sys_REVIVE_LOG_C"


def test_a_retry_topic_of_v1_has_several_readings() -> None:
    """Its name does not say where the group ends."""
    assert list(names.split_retry_v1("%RETRY%a_g_T_1")) == [("a", "g_T_1"), ("a_g", "T_1"), ("a_g_T", "1")]
    assert list(names.split_retry_v1("%RETRY%g")) == list(names.split_retry_v1("a_b")) == []


def test_the_retry_topic_of_a_group_is_no_pop_retry_topic() -> None:
    """`%RETRY%<group>` belongs to pulls; POP messages of it go back to it."""
    assert names.normal_topic("g", "%RETRY%g") == "%RETRY%g"
    assert names.normal_topic("g", "%RETRY%g_") == "%RETRY%g_"
