"""Records of retry topics as a pop gives them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.pop.retry_records import as_original, queue_offsets, split_records
from brokerset_formats.hosts import Host
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import MAGIC_V2, Record, decode_record, encode_record, magic_for


def made(
    topic: str, body: bytes, properties: dict[str, str], queue_offset: int = 7, *, v6: bool = False
) -> Record:
    host = Host.from_text("::1" if v6 else "127.0.0.1", 1)
    return Record(
        magic=magic_for(topic.encode()), queue_id=0, queue_offset=queue_offset, offset=9, born_timestamp=1,
        born_host=host, store_timestamp=2, store_host=host, reconsume_times=3, body=body, topic=topic,
        properties=encode_properties(properties),
    )  # fmt: skip


@given(
    st.binary(max_size=50),
    st.sampled_from(["t", "x" * 130]),
    st.sampled_from(["%RETRY%g_t", "%RETRY%" + "g" * 130]),
    st.dictionaries(st.sampled_from(["a", "POP_CK", "XPOP_CK", "KEYS"]), st.text("abc", min_size=1)),
    st.booleans(),
    st.booleans(),
)
def test_only_topic_and_handle_change(
    body: bytes, topic: str, retry: str, properties: dict[str, str], v6: bool, crc: bool
) -> None:
    """Whatever the record has; an older handle is replaced, a CRC over the old record goes."""
    record = made(retry, body, properties, v6=v6)

    changed = as_original(encode_record(record, property_crc=crc), topic.encode(), b"1 2 3")
    assert changed is not None
    found = decode_record(changed)

    assert (found.topic, found.body, found.queue_offset, found.reconsume_times) == (topic, body, 7, 3)
    assert decode_properties(found.properties) == properties | {"POP_CK": "1 2 3"}
    assert (found.magic == MAGIC_V2) == (len(topic) > 127)


def test_a_handle_that_does_not_fit_is_left_out() -> None:
    """Then the record stays what it is."""
    assert as_original(encode_record(made("r", b"", {"a": "x" * 32_700})), b"t", b"9" * 100) is None


def test_parts_hold_whole_records() -> None:
    """One after the other, with their queue offsets."""
    first, second = (encode_record(made("r", b"b", {}, number)) for number in (4, 6))
    parts = [memoryview(first + second), memoryview(first)]

    assert [bytes(record) for record in split_records(parts)] == [first, second, first]
    assert queue_offsets(parts) == [4, 6, 4]
