"""END_TRANSACTION: what becomes of a commit or rollback that a producer asks for. Pure.

Source: `EndTransactionProcessor` of Java 5.5, in its order. Other than Java:

* A transaction ends once. The same end again is answered as done, and stores nothing; the other is refused
  (issue 2694: Java delivers what a check has rolled back).
* A late end of a half that was given up is refused: what was given up is an administrator's to resume.
* The ids in the request have to be the half's: after a failover another may have the place of a lost one.
"""

from __future__ import annotations

from typing import Final

from brokerset_broker.transactions.resolved import Ending
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.names import HALF_TOPIC
from brokerset_formats.properties import Property, find_property
from brokerset_formats.records import Record, SysFlag
from brokerset_formats.transactions import Message, final_of, immunity_ms_of
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.send import EndTransaction


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with `code`; nothing changes."""

    code: ResponseCode
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Ignore:
    """The producer does not know the state: no answer, a check asks again."""


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The transaction has ended like this before: answer 0, store nothing.

    The first end may be of the same turn: answer when the ops of the turn are written and confirmed.
    """


@dataclass(frozen=True, slots=True)
class Commit:
    """Append `final`, feed it to `Resolved`, write the ops of the turn; answer when `final` is confirmed."""

    final: Message


@dataclass(frozen=True, slots=True)
class Rollback:
    """Tell `Resolved`, write the ops of the turn; answer when the op record is confirmed."""


Decision = Refuse | Ignore | AlreadyDone | Commit | Rollback

SLAVE: Final = Refuse(ResponseCode.SLAVE_NOT_AVAILABLE)
NOT_FOUND: Final = Refuse(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
TOO_LATE: Final = Refuse(ResponseCode.ILLEGAL_OPERATION)
WRONG_TYPE: Final = Refuse(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfFacts:
    """What the broker knows of the half that a request names."""

    half: Record | None
    """The record at the request's commit log offset; None if there is none that can be read."""
    ending: Ending | None
    """`Resolved.ending_of` the half."""
    newest_copy: int
    """`Resolved.newest_copy` of an open half: commit log offset; else it is not used."""


def decide_type(request: EndTransaction, *, leads: bool) -> Refuse | Ignore | None:
    """What can be said before the half is read; None: read it, and `decide_ending`."""
    if not leads:
        return SLAVE
    match request.commit_or_rollback:
        case SysFlag.TRANSACTION_NONE:
            return Ignore()
        case SysFlag.TRANSACTION_COMMIT | SysFlag.TRANSACTION_ROLLBACK:
            return None
        case _:
            return WRONG_TYPE


def decide_ending(
    request: EndTransaction, facts: HalfFacts, *, now_ms: int, transaction_timeout_ms: int
) -> Decision:
    """What becomes of a commit or rollback (`decide_type` has said None)."""
    half = facts.half
    if half is None or half.topic != HALF_TOPIC:
        return NOT_FOUND
    if not request.from_transaction_check and _is_too_late(half, now_ms, transaction_timeout_ms):
        return TOO_LATE
    problem = _mismatch(request, half)
    if problem is not None:
        return Refuse(ResponseCode.SYSTEM_ERROR, problem)
    commit = request.commit_or_rollback == SysFlag.TRANSACTION_COMMIT
    if facts.ending is not None:
        return _again(facts.ending, commit=commit)
    if not commit:
        return Rollback()
    try:
        return Commit(final_of(half, facts.newest_copy))
    except FormatError as error:
        return Refuse(ResponseCode.SYSTEM_ERROR, error.reason)


def _again(ending: Ending, *, commit: bool) -> Decision:
    """An end of a transaction that has ended. What is not known for certain is not answered as done."""
    if ending is (Ending.COMMITTED if commit else Ending.ROLLED_BACK):
        return AlreadyDone()
    return Refuse(ResponseCode.SYSTEM_ERROR, _REMARKS[ending])


_REMARKS: Final = {
    Ending.COMMITTED: "the transaction was committed before",
    Ending.ROLLED_BACK: "the transaction was rolled back before",
    Ending.ENDED: "the transaction has ended before, by a commit or a rollback",
    Ending.GIVEN_UP: "the transaction was given up after too many checks",
    Ending.OVER: "the transaction is over: it has ended before, or was given up",
}


def _is_too_late(half: Record, now_ms: int, transaction_timeout_ms: int) -> bool:
    """A check may be under way when the immunity is over: then only its answer counts."""
    immunity_ms = immunity_ms_of(half)
    if immunity_ms is None:
        return False
    return now_ms - half.born_timestamp > max(immunity_ms, transaction_timeout_ms)


def _mismatch(request: EndTransaction, half: Record) -> str | None:
    group = find_property(half.properties, Property.PGROUP.encode())
    if group is None or group.decode("utf-8", "replace") != request.producer_group:
        return "The producer group wrong"
    if half.queue_offset != request.tran_state_table_offset:
        return "The transaction state table offset wrong"
    if half.offset != request.commit_log_offset:
        return "The commit log offset wrong"
    if not _names(request, half):
        return "The transaction id wrong"
    return None


def _names(request: EndTransaction, half: Record) -> bool:
    """Whether one of the request's ids is the half's; old clients send the id that ends in its offset.

    An application that sends one `Message` object again uses its key again. Then an answer for a lost half
    may meet the second one at the same place, as with Java.
    """
    given = [text for text in (request.msg_id, request.transaction_id) if text]
    if not given or f"{half.offset:016X}" in (text[-16:] for text in given):
        return True
    known = [find_property(half.properties, name) for name in (b"UNIQ_KEY", b"__transactionId__")]
    return any(text.encode() in known for text in given)
