"""END_TRANSACTION, in the order of Java's checks, and where it is stricter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_broker.transactions import ending
from brokerset_broker.transactions.ending import (
    AlreadyDone,
    Commit,
    Decision,
    HalfFacts,
    Ignore,
    Refuse,
    Rollback,
    decide_ending,
    decide_type,
)
from brokerset_broker.transactions.resolved import Ending
from brokerset_formats.hosts import Host
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record, SysFlag
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.send import EndTransaction

HOST = Host(b"\x7f\x00\x00\x01", 10911)
PROPERTIES = {
    "TRAN_MSG": "true",
    "PGROUP": "pg",
    "UNIQ_KEY": "K1",
    "__transactionId__": "K1",
    "REAL_TOPIC": "orders",
    "REAL_QID": "5",
}
HALF = Record(
    queue_id=0,
    queue_offset=12,
    offset=4096,
    born_timestamp=1_000,
    born_host=HOST,
    store_timestamp=1_000,
    store_host=HOST,
    body=b"payload",
    topic=HALF_TOPIC,
    properties=encode_properties(PROPERTIES),
)
COMMIT = EndTransaction(
    producer_group="pg",
    tran_state_table_offset=12,
    commit_log_offset=4096,
    commit_or_rollback=SysFlag.TRANSACTION_COMMIT,
    msg_id="K1",
    transaction_id="K1",
)
ROLLBACK = replace(COMMIT, commit_or_rollback=SysFlag.TRANSACTION_ROLLBACK)
TIMEOUT_MS = 6_000


def decided(
    request: EndTransaction, half: Record | None = HALF, known: Ending | None = None, now_ms: int = 2_000
) -> Decision:
    facts = HalfFacts(half=half, ending=known, newest_copy=9_000)
    return decide_ending(request, facts, now_ms=now_ms, transaction_timeout_ms=TIMEOUT_MS)


def with_properties(**changes: str) -> Record:
    return replace(HALF, properties=encode_properties({**PROPERTIES, **changes}))


def test_a_commit_stores_the_message_in_its_topic() -> None:
    """It names the newest copy of the half, which is the one that every replica knows."""
    decision = decided(COMMIT)

    assert isinstance(decision, Commit)
    final = decision.final
    assert (final.topic, final.queue_id, final.body) == ("orders", 5, b"payload")
    assert (final.sys_flag, final.prepared_transaction_offset) == (SysFlag.TRANSACTION_COMMIT, 9_000)
    assert "REAL_TOPIC" not in decode_properties(final.properties)


def test_a_rollback_stores_nothing_but_an_op() -> None:
    assert decided(ROLLBACK) == Rollback()


def test_a_slave_answers_with_code_11_and_no_remark() -> None:
    assert decide_type(COMMIT, leads=False) == Refuse(ResponseCode.SLAVE_NOT_AVAILABLE)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (0, Ignore()),
        (8, None),
        (12, None),
        (4, Refuse(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")),
    ],
)
def test_an_unknown_state_is_not_answered(kind: int, expected: object) -> None:
    assert decide_type(replace(COMMIT, commit_or_rollback=kind), leads=True) == expected


@pytest.mark.parametrize(
    "half", [None, replace(HALF, topic="orders"), replace(HALF, topic=CHECK_MAX_TIME_TOPIC)]
)
def test_what_is_no_half_cannot_be_ended(half: Record | None) -> None:
    """Java commits any record of the group; a message could be made twice by its own offset."""
    assert decided(COMMIT, half) == Refuse(
        ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"
    )


@pytest.mark.parametrize(
    ("request_", "remark"),
    [
        (replace(COMMIT, producer_group="other"), "The producer group wrong"),
        (replace(COMMIT, tran_state_table_offset=11), "The transaction state table offset wrong"),
        (replace(COMMIT, commit_log_offset=4095), "The commit log offset wrong"),
        (replace(COMMIT, msg_id="K2", transaction_id=None), "The transaction id wrong"),
        (replace(ROLLBACK, msg_id="K2", transaction_id="K2"), "The transaction id wrong"),
    ],
)
def test_a_request_names_its_half_in_every_field(request_: EndTransaction, remark: str) -> None:
    """The id is not checked by Java: after a failover it would commit whatever has the place now."""
    assert decided(request_) == Refuse(ResponseCode.SYSTEM_ERROR, remark)


@pytest.mark.parametrize(
    ("msg_id", "transaction_id"),
    [("", None), ("K1", "x"), ("x", "K1"), ("7F00000100002A9F0000000000001000", None)],
)
def test_one_id_is_enough(msg_id: str, transaction_id: str | None) -> None:
    """The key of the producer, or the id of old clients, which is the half's offset."""
    assert isinstance(decided(replace(COMMIT, msg_id=msg_id, transaction_id=transaction_id)), Commit)


def test_a_half_without_a_group_is_refused() -> None:
    half = replace(HALF, properties=encode_properties({"UNIQ_KEY": "K1"}))

    assert decided(COMMIT, half) == Refuse(ResponseCode.SYSTEM_ERROR, "The producer group wrong")


def test_a_half_without_a_target_cannot_be_committed() -> None:
    """Only be rolled back."""
    half = with_properties(REAL_TOPIC="")

    decision = decided(COMMIT, half)

    assert isinstance(decision, Refuse)
    assert "REAL_TOPIC" in (decision.remark or "")
    assert decided(ROLLBACK, half) == Rollback()


@pytest.mark.parametrize(
    ("seconds", "age_ms", "from_check", "late"),
    [
        ("10", 10_000, False, False),
        ("10", 10_001, False, True),
        ("10", 10_001, True, False),
        ("1", 6_000, False, False),
        ("1", 6_001, False, True),
        ("x", 60_000, False, False),
        ("-1", 60_000, False, False),
    ],
)
def test_after_its_immunity_only_a_check_ends_a_half(
    seconds: str, age_ms: int, from_check: bool, late: bool
) -> None:
    """Code 604 without a remark; an immunity is at least the time-out, and none without a number."""
    half = with_properties(CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
    request = replace(COMMIT, from_transaction_check=from_check)

    decision = decided(request, half, now_ms=half.born_timestamp + age_ms)

    assert (decision == Refuse(ResponseCode.ILLEGAL_OPERATION)) is late
    assert isinstance(decision, Commit) is not late


@pytest.mark.parametrize(
    ("request_", "known", "done"),
    [
        (COMMIT, Ending.COMMITTED, True),
        (ROLLBACK, Ending.ROLLED_BACK, True),
        (COMMIT, Ending.ROLLED_BACK, False),
        (ROLLBACK, Ending.COMMITTED, False),
        (COMMIT, Ending.ENDED, False),
        (ROLLBACK, Ending.ENDED, False),
        (COMMIT, Ending.GIVEN_UP, False),
        (COMMIT, Ending.OVER, False),
        (ROLLBACK, Ending.OVER, False),
    ],
)
def test_a_transaction_ends_once(request_: EndTransaction, known: Ending, done: bool) -> None:
    """Java stores a second message. Only what surely ended the same way is answered as done."""
    decision = decided(request_, known=known)

    assert (decision == AlreadyDone()) is done
    assert isinstance(decision, Refuse) is not done


def test_every_ending_has_a_remark() -> None:
    assert set(ending._REMARKS) == set(Ending)
