"""Records of the wheel's topic, and the properties of what is made of them."""

from __future__ import annotations

import pytest

from brokerset_broker.timers.messages import (
    NEVER_ENQUEUED_MS,
    TimedMessage,
    delete_key,
    delivered_properties,
    rolled_properties,
    timed_message,
)
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record

PROPERTIES = {
    "TIMER_DELAY_SEC": "86400",
    "UNIQ_KEY": "U",
    "TIMER_OUT_MS": "1795338246000",
    "REAL_TOPIC": "fx-delay",
    "REAL_QID": "3",
}


def record(properties: dict[str, str]) -> Record:
    host = Host(b"\x7f\x00\x00\x01", 10911)
    return Record(
        queue_id=0,
        queue_offset=4,
        offset=2_677_798,
        born_timestamp=1,
        born_host=host,
        store_timestamp=1795251846970,
        store_host=host,
        topic="rmq_sys_wheel_timer",
        body=b"x",
        properties=encode_properties(properties),
    )


def test_a_record_tells_what_decisions_need() -> None:
    expected = TimedMessage(4, 1795338246000, 1795251846970, "fx-delay", 3, "U")

    assert timed_message(record(PROPERTIES)) == expected
    rolled = timed_message(record({**PROPERTIES, "TIMER_ROLL_TIMES": "2", "TIMER_DEL_UNIQKEY": "V"}))
    assert (rolled.roll_times, rolled.delete_key) == (2, "V")


@pytest.mark.parametrize("times", ["", "often", "9999999999", "9" * 18])
def test_rolls_that_cannot_be_counted_count_as_none(times: str) -> None:
    """A client may have sent the property; its message is not dropped for that."""
    assert timed_message(record({**PROPERTIES, "TIMER_ROLL_TIMES": times})).roll_times == 0


@pytest.mark.parametrize(
    ("name", "value"), [("TIMER_OUT_MS", ""), ("TIMER_OUT_MS", "soon"), ("REAL_TOPIC", ""), ("REAL_QID", "x")]
)
def test_a_record_without_time_or_destination_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(FormatError, match=name) as caught:
        timed_message(record({**PROPERTIES, name: value}))
    assert caught.value.position == 2_677_798


def test_a_delivered_message_keeps_all_properties_and_gets_two_times() -> None:
    """Golden: the names that a Java broker's delivered message has."""
    raw = encode_properties(PROPERTIES)

    delivered = decode_properties(delivered_properties(raw, enqueued_ms=1795251847000, now_ms=1795338247012))

    assert delivered == {
        **PROPERTIES,
        "TIMER_ENQUEUE_MS": "1795251847000",
        "TIMER_DEQUEUE_MS": "1795338247012",
    }
    late = decode_properties(delivered_properties(raw, enqueued_ms=NEVER_ENQUEUED_MS, now_ms=5))
    assert late["TIMER_ENQUEUE_MS"] == "9223372036854775807"


def test_a_copy_that_rolls_counts_and_keeps_its_time() -> None:
    message = timed_message(record(PROPERTIES))
    raw = rolled_properties(encode_properties(PROPERTIES), message, enqueued_ms=1, now_ms=2)

    again = timed_message(record(decode_properties(raw)))

    assert (again.roll_times, again.out_ms) == (1, message.out_ms)


def test_a_message_is_recalled_with_its_topic_or_without() -> None:
    """`appendTopicForTimerDeleteKey` may have been changed in between."""
    message = timed_message(record(PROPERTIES))

    assert message.delete_keys == ("U", "fx-delay+U")
    assert delete_key("fx-delay", "U", with_topic=True) == "fx-delay+U"
    assert delete_key("fx-delay", "U", with_topic=False) == "U"
