"""Which half messages take the short way."""

from __future__ import annotations

import pytest

from brokerset_broker.requests.plain_halves import half_properties, is_plain_half
from brokerset_broker.transactions.resolved import Resolved
from brokerset_formats.hosts import Host
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record
from brokerset_formats.transactions import Message, to_half

USUAL = {"KEYS": "a", "UNIQ_KEY": "K", "TRAN_MSG": "true", "PGROUP": "pg", "WAIT": "true", "TAGS": "A"}
HOST = Host(b"\x7f\x00\x00\x01", 1)


def text(**changes: str) -> str:
    return encode_properties({**USUAL, **changes}).decode()


def test_what_the_standard_client_sends_takes_it() -> None:
    """With sysFlag as it sends it, and compressed."""
    assert is_plain_half(text(), 4)
    assert is_plain_half(text(), 5)
    assert is_plain_half(text(anything="else", CHECK_IMMUNITY_TIME_IN_SECONDS="9"), 0x305)


@pytest.mark.parametrize(
    ("properties", "sys_flag"),
    [
        (text(TRAN_MSG="TRUE"), 4),
        (text(TRAN_MSG="false"), 4),
        (text(PGROUP=""), 4),
        (text(UNIQ_KEY=""), 4),
        (text() + "UNIQ_KEY\x01other\x02", 4),
        (text() + "PGROUP\x01other\x02", 4),
        (text() + "TRAN_MSG\x01false\x02TRAN_MSG\x01true\x02", 4),
        (text(TRAN_MSG="", XTRAN_MSG="true"), 4),
        (text(PGROUP="", XPGROUP="pg"), 4),
        (text(DELAY="3"), 4),
        (text(TIMER_DELAY_SEC="3"), 4),
        (text(TRAN_PREPARED_QUEUE_OFFSET="3"), 4),
        (text(TRANSACTION_CHECK_TIMES="3"), 4),
        (text(REAL_TOPIC="t"), 4),
        (text(__transactionId__="x"), 4),
        (text(CLUSTER="c"), 4),
        (text(), 8),
        (text(), 0x40),
    ],
)
def test_everything_else_takes_the_long_way(properties: str, sys_flag: int) -> None:
    assert not is_plain_half(properties, sys_flag)


def test_the_half_has_the_properties_of_the_long_way() -> None:
    message = Message(
        topic="t", queue_id=3, body=b"", properties=text().encode(), born_timestamp=0, born_host=HOST
    )

    short = text() + half_properties("K", "t", 3)

    assert short.encode() == to_half(message).properties
    assert decode_properties(short.encode())["REAL_QID"] == "3"


def test_what_is_resolved_is_the_same_by_both_ways() -> None:
    """Also how it ends."""
    record = Record(
        queue_id=0, queue_offset=0, offset=100, born_timestamp=5, born_host=HOST, store_timestamp=0,
        store_host=HOST, body=b"", topic="RMQ_SYS_TRANS_HALF_TOPIC", properties=text().encode(),
    )  # fmt: skip
    known = [Resolved(), Resolved()]
    known[0].half_stored(record)
    known[1].half_begun(0, 100, b"K", 5)
    for each in known:
        each.loaded()
        each.final_stored(100, b"K")

    assert known[0].facts_of(record) == known[1].facts_of(record)
    assert [each.ops_to_write() for each in known] == [(0,), (0,)]
    assert [each.half_end for each in known] == [1, 1]
