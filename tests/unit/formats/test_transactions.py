"""Records of transactions, compared with those that a Java 5.5 broker stored, and by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats import transactions
from brokerset_formats.config.transaction_metrics import TopicTransactions, TransactionMetrics
from brokerset_formats.config.versions import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record, RecordHead, SysFlag, check_record, decode_record
from brokerset_formats.transactions import Message

HOST = Host(b"\x7f\x00\x00\x01", 10911)

HALF = Record(
    queue_id=0,
    flag=7,
    queue_offset=12,
    offset=4096,
    sys_flag=SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4,
    born_timestamp=1_000,
    born_host=Host(b"\x7f\x00\x00\x01", 50_000),
    store_timestamp=2_000,
    store_host=HOST,
    reconsume_times=3,
    body=b"payload",
    topic=HALF_TOPIC,
    properties=encode_properties(
        {
            "TRAN_MSG": "true",
            "PGROUP": "pg",
            "UNIQ_KEY": "K1",
            "__transactionId__": "K1",
            "user": "ü",
            "REAL_TOPIC": "orders",
            "REAL_QID": "5",
        }
    ),
)


def records_in(folder: Path) -> Iterator[Record]:
    for file in sorted(folder.iterdir()):
        data, position = file.read_bytes(), 0
        while isinstance(head := check_record(data, position, len(data), verify_crc=True), RecordHead):
            yield decode_record(data, position)
            position += head.size


@pytest.fixture
def java_records(unpack: Callable[[str, str], Path]) -> list[Record]:
    """A commit, a rollback, and one that was left open and checked once: records of topic `fx-tx`."""
    return list(records_in(unpack("classic", "broker-0/store/commitlog")))


def test_a_commit_makes_the_record_that_java_made(java_records: list[Record]) -> None:
    """Byte for byte, but for place and time, which are the store's."""
    half = next(record for record in java_records if record.topic == HALF_TOPIC)
    [final] = [record for record in java_records if record.topic == "fx-tx"]

    made = transactions.final_of(half, half.offset)

    assert (
        replace(
            final,
            topic=made.topic,
            queue_id=made.queue_id,
            body=made.body,
            properties=made.properties,
            flag=made.flag,
            sys_flag=made.sys_flag,
            born_timestamp=made.born_timestamp,
            born_host=made.born_host,
            store_host=made.store_host or HOST,
            reconsume_times=made.reconsume_times,
            prepared_transaction_offset=made.prepared_transaction_offset,
        )
        == final
    )
    assert transactions.is_final(final.sys_flag)
    assert not transactions.is_final(half.sys_flag)


def test_a_send_makes_the_half_record_that_java_made(java_records: list[Record]) -> None:
    """Undoing what makes a half, and making it again, gives the same properties and no transaction bits."""
    half = next(record for record in java_records if record.topic == HALF_TOPIC)
    sent = decode_properties(half.properties)
    topic, queue_id = sent.pop("REAL_TOPIC"), int(sent.pop("REAL_QID"))
    del sent["__transactionId__"]

    made = transactions.to_half(
        Message(
            topic=topic,
            queue_id=queue_id,
            body=half.body,
            properties=encode_properties(sent),
            sys_flag=SysFlag.TRANSACTION_PREPARED,
            born_timestamp=half.born_timestamp,
            born_host=half.born_host,
        )
    )

    assert (made.topic, made.queue_id, made.sys_flag) == (HALF_TOPIC, 0, half.sys_flag)
    assert decode_properties(made.properties) == decode_properties(half.properties)
    assert transactions.target_of(half) == ("fx-tx", 2)


def test_a_new_half_is_no_copy() -> None:
    """Properties that were passed on from a committed message do not tie it to another transaction."""
    passed_on = {"UNIQ_KEY": "K2", "TRAN_PREPARED_QUEUE_OFFSET": "3", "TRANSACTION_CHECK_TIMES": "14"}

    made = transactions.to_half(
        Message(
            topic="t",
            queue_id=1,
            body=b"",
            properties=encode_properties(passed_on),
            born_timestamp=0,
            born_host=HOST,
        )
    )

    assert set(decode_properties(made.properties)) == {
        "UNIQ_KEY",
        "__transactionId__",
        "REAL_TOPIC",
        "REAL_QID",
    }


def test_a_copy_has_what_java_gave_its_copy_and_its_origin(java_records: list[Record]) -> None:
    """The third half was checked once; Java's copy knows no origin."""
    *_, half, copy = [record for record in java_records if record.topic == HALF_TOPIC]

    made = transactions.copy_of_half(half, transactions.check_times_of(half) + 1)

    assert (made.body, made.sys_flag, made.born_timestamp, made.born_host, made.store_host) == (
        copy.body,
        copy.sys_flag,
        copy.born_timestamp,
        copy.born_host,
        copy.store_host,
    )
    assert decode_properties(made.properties) == {
        **decode_properties(copy.properties),
        "TRAN_PREPARED_QUEUE_OFFSET": str(half.queue_offset),
    }
    assert transactions.check_times_of(copy) == 1
    assert transactions.origin_of(copy) == copy.queue_offset


def test_an_op_record_is_the_one_that_java_made(java_records: list[Record]) -> None:
    [op] = [record for record in java_records if record.topic == OP_HALF_TOPIC]

    made = transactions.op_message(transactions.encode_op_offsets([0, 1]), op.born_host, op.born_timestamp)

    assert (made.body, made.properties, made.sys_flag, made.flag, made.queue_id) == (
        op.body,
        op.properties,
        op.sys_flag,
        op.flag,
        op.queue_id,
    )
    assert transactions.is_op(op.properties)
    assert transactions.decode_op_offsets(op.body) == (0, 1)


def test_an_op_record_of_older_copies_is_one_for_java_alone() -> None:
    """Brokers of ours that do not know its property would forget the transactions: they cannot read it."""
    made = transactions.op_message(b"3,17,", HALF.born_host, 0, superseded=True)

    assert transactions.is_op(made.properties)
    assert transactions.is_superseding(made.properties)
    assert _as_java_reads(made.body) == [3, 17]
    assert transactions.superseded_offsets(made.body) == (3, 17)
    with pytest.raises(FormatError):
        transactions.decode_op_offsets(made.body)


def _as_java_reads(body: bytes) -> list[int]:
    """As `String.split` has it, which leaves out what is empty at the end."""
    parts = body.decode().split(",")
    while parts and not parts[-1]:
        parts.pop()
    return [int(part) for part in parts]


def test_the_metrics_are_the_file_that_java_wrote(unpack: Callable[[str, str], Path]) -> None:
    data = (unpack("classic", "broker-0/store/config") / "transactionMetrics").read_bytes()

    metrics = TransactionMetrics.decode(data)

    assert metrics == TransactionMetrics(
        DataVersion(5, 0, 1795251847121), {"fx-tx": TopicTransactions(1, 1795251847121)}
    )
    assert metrics.encode() == data


def test_metrics_that_are_none_are_refused() -> None:
    with pytest.raises(FormatError):
        TransactionMetrics.decode(b'{"transactionCount":{"t":{"count":"many"}}}')


def test_a_final_record_keeps_all_but_the_target() -> None:
    """Also flag and reconsumeTimes, and compression bits; a CRC over the old record goes."""
    half = replace(HALF, properties=HALF.properties + b"__CRC32#\x010123456789\x02")

    final = transactions.final_of(half, 77)

    assert (final.topic, final.queue_id, final.prepared_transaction_offset) == ("orders", 5, 77)
    assert (final.flag, final.reconsume_times) == (7, 3)
    assert final.sys_flag == HALF.sys_flag | SysFlag.TRANSACTION_COMMIT
    assert decode_properties(final.properties) == {
        "TRAN_MSG": "true",
        "PGROUP": "pg",
        "UNIQ_KEY": "K1",
        "__transactionId__": "K1",
        "user": "ü",
    }


@pytest.mark.parametrize(
    ("missing", "value"), [("REAL_TOPIC", ""), ("REAL_QID", ""), ("REAL_QID", "x"), ("REAL_QID", "-1")]
)
def test_a_half_without_a_target_is_refused(missing: str, value: str) -> None:
    properties = {**decode_properties(HALF.properties), missing: value}
    half = replace(HALF, properties=encode_properties(properties))

    with pytest.raises(FormatError, match=missing):
        transactions.final_of(half, 0)
    with pytest.raises(FormatError, match=missing):
        transactions.check_body(half)


def test_copies_of_copies_have_one_origin_and_keep_flag_and_retries() -> None:
    """Java's copies lose both fields."""
    first = transactions.copy_of_half(HALF, 1)
    stored = replace(HALF, queue_offset=20, offset=9000, properties=first.properties)
    second = transactions.copy_of_half(stored, 0)

    assert (first.flag, first.reconsume_times, first.topic) == (7, 3, HALF_TOPIC)
    assert transactions.origin_of(HALF) == transactions.origin_of(stored) == 12
    assert decode_properties(second.properties)["TRANSACTION_CHECK_TIMES"] == "1"


@pytest.mark.parametrize("value", ["13", "12", "x", "-1"])
def test_an_origin_lies_before_its_copy(value: str) -> None:
    """What a client may have written there is no origin."""
    half = replace(
        HALF, properties=HALF.properties + encode_properties({"TRAN_PREPARED_QUEUE_OFFSET": value})
    )

    assert transactions.origin_of(half) == 12


def test_a_half_that_is_given_up_can_be_resumed() -> None:
    given_up = transactions.to_given_up(HALF)
    record = replace(HALF, topic=given_up.topic, queue_offset=0, properties=given_up.properties)

    resumed = transactions.to_resumed(record)

    assert (given_up.topic, given_up.queue_id) == (CHECK_MAX_TIME_TOPIC, 0)
    assert given_up.properties == HALF.properties
    assert (given_up.flag, given_up.sys_flag, given_up.reconsume_times) == (7, HALF.sys_flag, 3)
    assert resumed.topic == HALF_TOPIC
    assert decode_properties(resumed.properties)["TRANSACTION_CHECK_TIMES"] == "0"
    assert decode_properties(transactions.to_resumed(HALF).properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "12"
    with pytest.raises(FormatError):
        transactions.to_resumed(replace(HALF, topic="orders"))


def test_a_check_shows_the_half_as_its_real_topic_has_it() -> None:
    """With the properties that name the target, which Java's clients get, too."""
    shown = decode_record(transactions.check_body(HALF), verify_crc=True)

    assert shown == replace(HALF, topic="orders", queue_id=5)


@pytest.mark.parametrize(
    ("properties", "reconsume_times", "half"),
    [
        ({"TRAN_MSG": "true"}, 0, True),
        ({"TRAN_MSG": "TRUE"}, 2, True),
        ({"TRAN_MSG": "true", "DELAY": "3"}, 2, False),
        ({"TRAN_MSG": "true", "DELAY": "3"}, 0, True),
        ({"TRAN_MSG": "false"}, 0, False),
        ({}, 0, False),
    ],
)
def test_which_sends_are_halves(properties: dict[str, str], reconsume_times: int, half: bool) -> None:
    """A committed message that a consumer sends back for a retry is none."""
    assert transactions.is_half_send(properties, reconsume_times) is half


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_half_cannot_be_delayed(name: str) -> None:
    assert name in (transactions.half_problem({"TRAN_MSG": "true", name: "1"}) or "")
    assert transactions.half_problem({"TRAN_MSG": "true"}) is None


def test_a_half_needs_the_key_of_its_producer() -> None:
    message = Message(topic="t", queue_id=0, body=b"", properties=b"", born_timestamp=0, born_host=HOST)

    with pytest.raises(FormatError, match="UNIQ_KEY"):
        transactions.to_half(message)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), ("10", 10_000), ("-1", None), ("x", None), ("0", 0)]
)
def test_immunity(text: str | None, expected: int | None) -> None:
    added = encode_properties({"CHECK_IMMUNITY_TIME_IN_SECONDS": text} if text else {})

    assert transactions.immunity_ms_of(replace(HALF, properties=HALF.properties + added)) == expected


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_op_bodies_come_back_in_pieces_that_are_small_enough(offsets: list[int]) -> None:
    bodies = list(transactions.op_bodies(offsets, 64))

    assert [each for body in bodies for each in transactions.decode_op_offsets(body)] == offsets
    assert all(0 < len(body) <= 64 for body in bodies)
    assert transactions.decode_op_offsets(transactions.encode_op_offsets(offsets)) == tuple(offsets)


def test_op_records_of_old_releases_name_one_half_without_a_comma() -> None:
    assert transactions.decode_op_offsets(b"17") == (17,)


@pytest.mark.parametrize(
    ("body", "position"), [(b"1,x,", 2), (b"1,,2,", 2), (b"-1,", 0), (b" 1", 0), (b"9" * 19, 0), (b",", 0)]
)
def test_other_op_bodies_are_refused_with_their_position(body: bytes, position: int) -> None:
    with pytest.raises(FormatError) as caught:
        transactions.decode_op_offsets(body)

    assert caught.value.position == position
