"""Header classes: spellings, defaults, tolerance, refusals."""

from __future__ import annotations

import pytest

from brokerset_protocol import headers
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import Header


def header_classes() -> list[type[Header]]:
    found = [getattr(headers, name) for name in headers.__all__]
    return [cls for cls in found if isinstance(cls, type) and issubclass(cls, Header) and cls is not Header]


SEND = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1700000000000,
    "flag": 0,
    "unitMode": "0",
    "batch": "1",
    "AccessKey": "",
    "Signature": "",
}


def test_send_v2_letters_are_the_fields_of_the_long_names() -> None:
    """Each letter of a V2 send means what Java's long name means."""
    letters = dict(zip("abcdefghijklmn", "PTD4567890", strict=False)) | {"k": "true", "l": "16", "m": "false"}

    header = headers.SendMessageV2.from_ext(letters)

    assert header == headers.SendMessageV2(
        producer_group="P",
        topic="T",
        default_topic="D",
        default_topic_queue_nums=4,
        queue_id=5,
        sys_flag=6,
        born_timestamp=7,
        flag=8,
        properties="9",
        reconsume_times=0,
        unit_mode=True,
        max_reconsume_times=16,
        batch=False,
    )
    assert header.to_ext() == letters


def test_cpp_send_is_understood() -> None:
    """JSON numbers, 0 and 1 as flags, and unknown fields of the C++ client are read."""
    header = headers.SendMessage.from_ext(SEND)

    assert (header.queue_id, header.born_timestamp, header.unit_mode, header.batch) == (
        0,
        1700000000000,
        False,
        True,
    )


def test_long_names_translate_to_letters() -> None:
    """One handler can serve 10 and 310: the long names come out as letters, 1 as true."""
    letters = headers.to_letters({name: str(value) for name, value in SEND.items()})

    header = headers.SendMessageV2.from_ext(letters)
    assert (header.topic, header.batch, header.unit_mode) == ("T", True, False)
    assert letters["m"] == "true"
    assert set(letters) <= set("abcdefghijklmn")


@pytest.mark.parametrize(
    ("cls", "spelling"),
    [
        (headers.UnregisterClient, "clientID"),
        (headers.PullMessage, "proxyFrowardClientId"),
        (headers.PullMessage, "suspendTimeoutMillis"),
        (headers.BrokerHeartbeat, "heartbeatTimeoutMills"),
        (headers.RegisterBroker, "heartbeatTimeoutMillis"),
        (headers.RegisterBroker, "bodyCrc32"),
        (headers.QueryMessage, "_UNIQUE_KEY_QUERY"),
        (headers.QueryMessageResponse, "indexLastUpdatePhyoffset"),
        (headers.GetMetaDataResponse, "isLeader"),
        (headers.CleanControllerBrokerData, "isCleanLivingBroker"),
        (headers.HeartbeatResponse, "IS_SUPPORT_HEART_BEAT_V2"),
        (headers.SendMessageResponse, "MSG_REGION"),
        (headers.CheckTransactionState, "bname"),
        (headers.ResetOffset, "isForce"),
        (headers.GetConsumerRunningInfo, "jstackEnable"),
    ],
)
def test_odd_spellings_are_kept(cls: type[Header], spelling: str) -> None:
    """Java's field names are on the wire, its slips included."""
    assert spelling in cls.wire_names()


def test_missing_field_is_named() -> None:
    """A mandatory field that is missing is refused with its wire name."""
    with pytest.raises(Rejected, match="queueOffset of PullMessage is missing") as caught:
        headers.PullMessage.from_ext({"consumerGroup": "g", "topic": "T", "queueId": "0"})

    assert caught.value.code == 1


@pytest.mark.parametrize(
    "value", ["x", "1.5", "1_0", "2147483648", "-2147483649", "9" * 5000, 1.5, True, [1], {"a": 1}]
)
def test_unreadable_number_is_named(value: object) -> None:
    """What is no 32-bit number is refused with the field's wire name, in a remark of bounded size."""
    with pytest.raises(Rejected, match="queueId of GetMinOffset is") as caught:
        headers.GetMinOffset.from_ext({"topic": "T", "queueId": value})

    assert len(caught.value.remark) < 200


def test_unreadable_optional_field_is_refused_too() -> None:
    """A queue id that cannot be read never turns into its default, "all queues"."""
    with pytest.raises(Rejected, match="queueId"):
        headers.ResetOffset.from_ext({"group": "g", "topic": "T", "timestamp": "-1", "queueId": "one"})


def test_empty_text_is_no_number() -> None:
    """An empty optional number is absent; an empty mandatory one is missing; an empty text is a text."""
    ext = {"group": "g", "topic": "", "timestamp": "-1", "queueId": "", "offset": ""}

    header = headers.ResetOffset.from_ext(ext)

    assert (header.topic, header.queue_id, header.offset) == ("", -1, None)
    with pytest.raises(Rejected, match="timestamp"):
        headers.ResetOffset.from_ext(ext | {"timestamp": ""})


@pytest.mark.parametrize(
    ("text", "flag"), [("TRUE", True), ("1", True), (1, True), ("0", False), ("yes", False), (False, False)]
)
def test_flags_are_read_as_java_reads_them(text: object, flag: bool) -> None:
    """True is `true` in any case or 1; everything else is false."""
    assert headers.GetMaxOffset.from_ext({"topic": "T", "queueId": "0", "committed": text}).committed is flag


def test_classes_have_distinct_wire_names() -> None:
    """No class maps two fields to one wire name, and every class is there for someone."""
    classes = header_classes()

    assert len(classes) > 100
    for cls in classes:
        assert len(set(cls.wire_names())) == len(cls.wire_names()), cls


def test_empty_header_has_no_fields() -> None:
    """A header class without fields reads anything and writes nothing."""
    assert headers.Heartbeat.from_ext({"x": "1"}).to_ext() == {}
