"""What the answer to a send says about its messages."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_client.retry import STALE_ROUTE_CODES
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import SendRefusedResponse
from brokerset_protocol.headers.send import SendResponseKey


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Every message is stored, by this attempt or an earlier one."""

    queue_offset: int | None
    """Of the first one; None if the answer does not say where they are."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """Whether it is stored is unknown: no answer, or one that promises nothing."""

    reason: str
    stale_route: bool = True
    """Another broker may be the master now."""

    gone: bool = False
    """The broker knows no such topic."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The partition takes nothing any more; messages from `next_sequence` on are not stored in it."""

    next_sequence: int | None


@dataclass(frozen=True, slots=True)
class NotOpen:
    """The partition takes nothing yet: this attempt stored nothing."""


@dataclass(frozen=True, slots=True)
class Illegal:
    """The request is wrong in itself: no attempt with this content stores anything."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another process runs with the same producer id."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """The broker expects a lower sequence (`next_sequence`): it has lost what it had confirmed."""

    next_sequence: int | None


@dataclass(frozen=True, slots=True)
class UnknownProducer:
    """The queue has no record of the producer, but the request does not begin with sequence 0."""


Outcome = Confirmed | Unclear | Sealed | NotOpen | Illegal | Fenced | Gap | UnknownProducer


def classify(answer: Command) -> Outcome:
    """What an answer to a send means.

    Codes that say that something was stored, but not safely (10, 11, 12), promise nothing: the master may be
    replaced by one that has it not. So they are repeated like every code that this protocol does not name.
    """
    remark = (answer.remark or "").strip()
    match answer.code:
        case ResponseCode.SUCCESS:
            return Confirmed(_offset(answer))
        case ResponseCode.BROKERSET_QUEUE_SEALED:
            return Sealed(_next_sequence(answer))
        case ResponseCode.BROKERSET_QUEUE_NOT_OPEN:
            return NotOpen()
        case ResponseCode.MESSAGE_ILLEGAL:
            return Illegal(remark)
        case ResponseCode.BROKERSET_PRODUCER_FENCED:
            return Fenced(remark)
        case ResponseCode.BROKERSET_SEQUENCE_GAP:
            return Gap(_next_sequence(answer))
        case ResponseCode.BROKERSET_PRODUCER_UNKNOWN:
            return UnknownProducer()
    return Unclear(
        f"answer {answer.code}: {remark}",
        stale_route=answer.code in STALE_ROUTE_CODES,
        gone=answer.code == ResponseCode.TOPIC_NOT_EXIST,
    )


def _offset(answer: Command) -> int | None:
    text = answer.ext.get(SendResponseKey.QUEUE_OFFSET, "")
    return int(text) if text.isdecimal() else None


def _next_sequence(answer: Command) -> int | None:
    try:
        return SendRefusedResponse.from_ext(answer.ext).next_sequence
    except Rejected:
        return None
