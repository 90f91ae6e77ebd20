"""Settings, failures and batches of acks of a POP consumer, as numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_client import Later, PopConsumer, PoppedMessage, PopSettings
from brokerset_client.pop.batch_acks import DISTANCE_MAX, batch_acks, fits_batch
from brokerset_client.pop.popped import popped_messages
from brokerset_client.pop.settings import decide_wait
from brokerset_formats.hosts import Host
from brokerset_formats.pop.handles import Handle
from brokerset_formats.records import Record, encode_record
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere
from brokerset_protocol.headers.pop import PopMessageResponse


def message(queue_offset: int, *, start: int = 100, queue_id: int = 0, retry: int = 0) -> PoppedMessage:
    record = Record(
        queue_id=queue_id, queue_offset=queue_offset, offset=0, born_timestamp=4, born_host=Host(bytes(4), 5),
        store_timestamp=6, store_host=Host(bytes(4), 5), body=b"b", topic="t",
    )  # fmt: skip
    handle = Handle(
        start_offset=start, pop_time=7, invisible_time=60_000, revive_queue=2, retry_flag=retry,
        broker="broker-a", queue_id=queue_id, queue_offset=queue_offset,
    )  # fmt: skip
    return PoppedMessage(encode_record(record), 0, "broker-a", "g", topic="t", handle=handle, expires_at=1.0)


def popped(properties: bytes, queue_offset: int = 5) -> PoppedMessage:
    """A message as it comes out of an answer."""
    record = Record(
        queue_id=1, queue_offset=queue_offset, offset=0, born_timestamp=4, born_host=Host(bytes(4), 5),
        store_timestamp=6, store_host=Host(bytes(4), 5), body=b"b", topic="t", properties=properties,
    )  # fmt: skip
    header = PopMessageResponse(
        pop_time=7, invisible_time=60_000, revive_qid=2, rest_num=0, start_offset_info="0 1 3"
    )
    (found,) = popped_messages(
        encode_record(record), header, topic="t", group="g", broker="broker-a", ordered=False, now=0.0
    )
    return found


@pytest.mark.parametrize(
    "forged",
    [b"x", b"9 7 60000 2 0 broker-a 1 9", b"3 7 60000 2 0 broker-a 0 5", b"3 8 60000 2 0 broker-a 1 5"],
    ids=["no-handle", "other-offset", "other-queue", "other-pop"],
)
def test_a_handle_that_a_producer_made_up_is_none(forged: bytes) -> None:
    """It would make the answer unreadable, each time, or name another message in the ack."""
    handle = popped(b"POP_CK\x01" + forged + b"\x02").handle

    assert handle == popped(b"").handle
    assert handle.encode() == "3 7 60000 2 0 broker-a 1 5"


@pytest.mark.parametrize("text", [b"9" * 5000, b"x", b"-1"])
def test_a_first_pop_time_that_a_producer_made_up_is_none(text: bytes) -> None:
    """The listener must not fail by it: the message would never be done."""
    assert popped(b"1ST_POP_TIME\x01" + text + b"\x02").first_popped_ms == 7


def test_the_handle_that_a_record_of_a_retry_topic_carries_is_taken() -> None:
    """It names the retry topic, where the record names the topic of the message."""
    assert popped(b"POP_CK\x014 7 60000 2 2 broker-a 1 5\x02").handle.retry_flag == 2


def test_what_one_pop_gave_of_one_queue_is_one_entry() -> None:
    entries = batch_acks([message(100), message(103), message(100, queue_id=1), message(101, retry=1)])

    assert [(entry.queue_id, entry.retry, entry.bit_set) for entry in entries] == [
        (0, "0", replace(entries[0]).bits_of(100, (100, 103))),
        (1, "0", replace(entries[0]).bits_of(100, (100,))),
        (0, "1", replace(entries[0]).bits_of(100, (101,))),
    ]


def test_what_lies_too_far_behind_the_begin_of_its_pop_goes_alone() -> None:
    """Else one message behind a million filtered ones would make a request of a megabyte."""
    assert fits_batch(message(100 + DISTANCE_MAX - 1))
    assert not fits_batch(message(100 + DISTANCE_MAX))
    assert not fits_batch(message(99))


@pytest.mark.parametrize(
    ("later", "times", "ordered", "wait"),
    [
        (Later(), 0, False, 10),
        (Later(), 15, False, 7200),
        (Later(), 16, False, None),
        (Later(), 0, True, 1),
        (Later(), 1000, True, 30),
        (Later(delay_level=3), 0, False, 10),
        (Later(delay_level=99), 0, False, 7200),
        (Later(delay_level=-1), 0, False, None),
        (Later(after_seconds=5.5), 3, False, 5.5),
        (Later(after_seconds=-5.0), 3, False, 0),
        (Later(after_seconds=1e9), 3, False, 12 * 3600),
    ],
)
def test_how_long_a_failed_message_waits(later: Later, times: int, ordered: bool, wait: float | None) -> None:
    """None: it is a dead letter. An ordered group has none by itself: a queue keeps its order."""
    assert decide_wait(PopSettings(), later, times, ordered=ordered) == wait


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (PopSettings(invisible_seconds=0.1), "invisible_seconds must be between"),
        (PopSettings(pop_batch=33), "pop_batch must be between 1 and 32"),
        (PopSettings(workers=0), "workers, batch_max and in_hand_max"),
        (PopSettings(wait_seconds=-1), "wait_seconds must not be negative"),
        (PopSettings(backoff_seconds=(-1.0,)), "backoff_seconds must not be negative"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: PopSettings, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PopConsumer("g", namesrv="127.0.0.1:1", settings=settings)


def test_a_group_cannot_begin_at_a_time() -> None:
    with pytest.raises(ValueError, match="not for POP"):
        PopConsumer("g", namesrv="127.0.0.1:1", consume_from=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)
