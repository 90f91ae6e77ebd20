"""What transactional messages are to a producer: half messages, decisions, and what became of an end.

A transactional message is sent twice over: first as a half message that no consumer sees, then as an end that
commits it or takes it back (`DefaultMQProducerImpl.sendMessageInTransaction`). A half message without an end
is asked for by the broker (CHECK_TRANSACTION_STATE); whoever produces for the same group answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from brokerset_client.errors import MessageInvalid, RequestRefused
from brokerset_client.messages import Message, MessageView, SendResult
from brokerset_formats.errors import FormatError
from brokerset_formats.message_ids import decode_offset_id
from brokerset_formats.properties import Property
from brokerset_formats.records import SysFlag
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.send import CheckTransactionState, EndTransaction
from brokerset_runtime.remoting import Connection

REMARK_CHARACTERS_MAX = 1024
"""Characters of an application's failure that travel to the broker's log."""


class TransactionState(Enum):
    """What a producer decides about a half message (`LocalTransactionState`)."""

    COMMIT = SysFlag.TRANSACTION_COMMIT
    """Consumers shall get it."""

    ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
    """Nobody shall get it."""

    UNKNOWN = SysFlag.TRANSACTION_NONE
    """Not known (yet): the broker asks again later, `transactionCheckMax` times at most."""


class EndStatus(Enum):
    """What is known of an end that was sent."""

    CONFIRMED = "confirmed"
    """The broker has carried it out."""

    SENT = "sent"
    """It left without waiting for an answer, as Java does it."""

    LEFT_TO_CHECK = "left to check"
    """Undecided, or no answer came: the broker asks the check handler, if it does not have the end."""

    REFUSED = "refused"
    """The broker refused it and changed nothing."""


TRACE_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
"""Java's names of the states, as traces have them."""


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message that the broker has stored, as the local work of its transaction sees it."""

    message: Message
    sent: SendResult

    @property
    def transaction_id(self) -> str:
        """The same in every check of this half message: keep it with what the local work stores."""
        return self.sent.message_id


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What became of one transactional message."""

    sent: SendResult
    state: TransactionState
    """What was decided here; `ROLLBACK` also if the half message was stored less safely than asked for."""

    end: EndStatus
    problem: str | None = None
    """Why the end is not confirmed."""

    @property
    def transaction_id(self) -> str:
        """The id of the message, which checks name too."""
        return self.sent.message_id


CheckHandler = Callable[[MessageView], Awaitable[TransactionState]]
"""Says from what the local work has stored what became of a transaction; `message_id` is its id."""

LocalWork = Callable[[HalfMessage], Awaitable[TransactionState]]
"""The local work of a transaction; it returns what shall become of the message."""


@dataclass(frozen=True, slots=True)
class HalfPosition:
    """Where the newest copy of a half message is; a broker that asks writes it once more, further on."""

    queue_offset: int
    """Number in the queue of half messages (`tranStateTableOffset`)."""

    offset: int
    """Byte address in the commit log."""

    connection: Connection | None = None
    """The one over which the broker asked last; None before the first check."""

    broker_name: str | None = None
    """None: the broker does not say who it is, as old ones do not."""

    def is_elsewhere(self, broker_name: str | None) -> bool:
        """Whether it is certainly at another broker than this one: a send that was tried again may have
        left a half message at each."""
        return None not in (self.broker_name, broker_name) and self.broker_name != broker_name


def half_message(message: Message, group: str, check_after_seconds: int | None) -> Message:
    """`message` with what makes it a half message. Raises `MessageInvalid` where a delay is asked for.

    Java drops a delay level without a word, and leaves timers in; both would never reach their topic.
    """
    if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
        raise MessageInvalid("a transactional message cannot be delayed: take the delay or the transaction")
    system = {**message.system_properties, Property.TRAN_MSG: "true", Property.PGROUP: group}
    if check_after_seconds is not None:
        system[Property.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(check_after_seconds)
    return replace(message, system_properties=system)


def position_of(sent: SendResult) -> HalfPosition:
    """Where the broker has stored a half message. Raises `RequestRefused` if its answer does not say."""
    try:
        _, offset = decode_offset_id(sent.offset_message_id)
    except FormatError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"unreadable answer: {error}") from error
    return HalfPosition(sent.queue_offset, offset, broker_name=sent.queue.broker_name)


def end_command(
    *,
    group: str,
    topic: str,
    broker_name: str | None,
    transaction_id: str,
    position: HalfPosition,
    state: TransactionState,
    from_check: bool,
    remark: str | None = None,
) -> Command:
    """END_TRANSACTION (37). `remark` says why the state is unknown; the broker logs it."""
    header = EndTransaction(
        topic=topic,
        producer_group=group,
        tran_state_table_offset=position.queue_offset,
        commit_log_offset=position.offset,
        commit_or_rollback=int(state.value),
        from_transaction_check=from_check,
        msg_id=transaction_id,
        transaction_id=transaction_id,
        broker_name=broker_name,
    )
    text = None if remark is None else remark[:REMARK_CHARACTERS_MAX]
    return Command(RequestCode.END_TRANSACTION, header.to_ext(), remark=text)


def check_position(header: CheckTransactionState, connection: Connection) -> HalfPosition:
    """The half message that a check is about."""
    return HalfPosition(
        header.tran_state_table_offset, header.commit_log_offset, connection, header.broker_name
    )
