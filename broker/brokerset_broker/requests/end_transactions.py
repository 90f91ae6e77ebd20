"""Ends of transactions (37), and half messages that an administrator has checked again (323)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.access_control import CheckTopic
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.end_lane import EndLane
from brokerset_broker.requests.send_refusals import CODES, refusal
from brokerset_broker.requests.transaction_log import OPS_NOT_STORED, TransactionLog
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.topics import TopicManager
from brokerset_broker.transactions.ending import (
    AlreadyDone,
    Commit,
    HalfFacts,
    Ignore,
    Refuse,
    Rollback,
    decide_ending,
    decide_type,
)
from brokerset_broker.transactions.resolved import Ending, Resolved
from brokerset_formats.errors import FormatError
from brokerset_formats.message_ids import decode_offset_id
from brokerset_formats.names import HALF_TOPIC
from brokerset_formats.properties import Property, decode_properties
from brokerset_formats.records import Record
from brokerset_formats.transactions import Message, target_of, to_resumed
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.send import EndTransaction, ResumeCheckHalfMessage
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

NOT_PUT_BACK = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
"""Java's words for a half message that could not be resumed."""


class TransactionProcessor:
    """Ends each transaction once, and answers when its end is as safe as a message."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        log_of_transactions: TransactionLog,
        topics: TopicManager,
        ordered: OrderedTables,
        admission: Admission,
        clock: Clock,
        lane: EndLane | None = None,
        check_topic: CheckTopic | None = None,
        check_resumed: CheckTopic | None = None,
    ) -> None:
        """`lane` takes plain ends; it is told for which topics there are some. `check_topic` says whether the
        message's topic may be sent to, `check_resumed` whether a message may be checked again: what requests
        say of the topic need not be so."""
        self._check_topic = check_topic
        self._check_resumed = check_resumed
        self._live = live
        self._lane = lane
        self._log = log_of_transactions
        self._topics = topics
        self._ordered = ordered
        self._admission = admission
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    # -- ends ---------------------------------------------------------------------------------------------

    def end(self, connection: Connection, command: Command) -> Reply:
        """A producer commits a transaction, rolls it back, or does not know; mostly one-way."""
        header = EndTransaction.from_ext(command.ext)
        match decide_type(header, leads=not self._admission.refuses_writes):
            case Refuse() as refuse:
                return command.reply(refuse.code, refuse.remark)
            case Ignore():
                log.debug("the state of a transaction is not known yet", group=header.producer_group)
                return None
        resolved = self._log.resolved
        if resolved is None:
            self._log.wait_for_resolved(partial(connection.serve_deferred, [command]))
            return DEFERRED
        half = self._log.read_half(header.commit_log_offset)
        if half is not None and self._check_topic is not None:
            self._check_topic(
                connection, command, decode_properties(half.properties).get(Property.REAL_TOPIC, "")
            )
        ending, newest = (None, 0) if half is None else resolved.facts_of(half)
        if half is not None and ending is not None:
            ending = self._log.ending_in_store(half, ending)
        decision = decide_ending(
            header,
            HalfFacts(half=half, ending=ending, newest_copy=newest),
            now_ms=self._clock.now_ms(),
            transaction_timeout_ms=self._live.current.transaction_time_out,
        )
        match decision:
            case Refuse():
                log.debug(
                    "the end of a transaction is refused",
                    group=header.producer_group,
                    transaction=header.msg_id,
                    reason=decision.remark,
                )
                return command.reply(decision.code, decision.remark)
            case Ignore():
                return None
            case Commit():
                assert half is not None, "a commit has a half"
                final = self._deliverable(decision.final)
                try:
                    end = self._log.commit(half, final)
                except StoreRefused as refused:
                    raise refusal(refused, self._live.current.max_message_size) from None
                if self._lane is not None:
                    self._lane.learn(final.topic)
                return self._answer_at(connection, command, end)
            case Rollback():
                assert half is not None, "a rollback has a half"
                return self._answer_with_ops(connection, command, partial(self._log.roll_back, half))
            case AlreadyDone():
                return self._answer_with_ops(connection, command, self._log.when_ops_stored)

    def _deliverable(self, final: Message) -> Message:
        """The message of a commit, in a queue that its topic has now: it may have become smaller.

        Raises `Rejected` if it could not be consumed: the checks go on, and then it is given up.
        """
        topic = final.topic
        config = self._topics.get(topic)
        if config is None or topic in self._topics.going:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] was deleted after the transaction began: make it again, and commit again",
            )
        if self._ordered.is_subject(topic):
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{topic} is an ordered subject now, which has no transactions: roll back, and send the"
                " message as an ordered one",
            )
        if final.queue_id < config.read_queue_nums or not config.read_queue_nums:
            return final
        return replace(final, queue_id=final.queue_id % config.read_queue_nums)

    # -- resuming -----------------------------------------------------------------------------------------

    def resume(self, connection: Connection, command: Command) -> Reply:
        """Check a half message again that was given up, from the first time on."""
        header = ResumeCheckHalfMessage.from_ext(command.ext)
        self._admission.check_writes()
        resolved = self._log.resolved
        if resolved is None:
            self._log.wait_for_resolved(partial(connection.serve_deferred, [command]))
            return DEFERRED
        try:
            _, offset = decode_offset_id(header.msg_id)
            record = self._log.read_resumable(offset)
            if record is None:
                raise _not_put_back(f"there is no record of a half message at offset {offset} of the log")
            message = to_resumed(record)
            target, _ = target_of(record)
            if self._check_resumed is not None:
                self._check_resumed(connection, command, target)
            was_open = self._is_open(record, resolved)
        except FormatError as error:
            raise _not_put_back(str(error)) from None
        try:
            appended = self._log.append_half(message)
        except StoreRefused as refused:
            raise _not_put_back(refused.reason) from None
        if not was_open:
            self._log.counts.begun(target)
        log.info("a half message is checked again", topic=target, offset=offset)
        return self._answer_at(connection, command, appended.end)

    def _is_open(self, record: Record, resolved: Resolved) -> bool:
        """Whether the transaction of what is to be resumed is open. Raises `Rejected` if it has ended, or
        nobody knows that it has not: a second message must not come of it."""
        resumable = {None, Ending.GIVEN_UP}
        if record.topic == HALF_TOPIC:
            ending = resolved.ending_of(record)
        else:
            resumable.add(Ending.OVER)
            # The copy will name its origin as the record does.
            ending = resolved.ending_of(replace(record, queue_offset=resolved.half_end))
            if ending is Ending.OVER:
                ending = self._log.ending_in_store(record, ending)
        if ending not in resumable:
            raise _not_put_back(
                "its transaction has ended, or was given up long ago: then resume its record in"
                " TRANS_CHECK_MAX_TIME_TOPIC"
            )
        return ending is None

    # -- answers ------------------------------------------------------------------------------------------

    def _answer_at(self, connection: Connection, command: Command, end: int) -> Reply:
        """The answer to a request whose record ends there; none to a one-way request."""
        when_durable = self._admission.when_durable
        if command.flag & FLAG_ONEWAY:
            return None
        if when_durable is None:
            return command.reply()
        when_durable(end, partial(self._finish, connection, command))
        return DEFERRED

    def _answer_with_ops(
        self, connection: Connection, command: Command, ask: Callable[[Callable[[int | None], None]], None]
    ) -> Reply:
        """`ask` is given what answers, when the op records of the turn are stored."""

        def stored(end: int | None) -> None:
            if command.flag & FLAG_ONEWAY:
                return
            when_durable = self._admission.when_durable
            if end is None:
                connection.answer(command.reply(ResponseCode.SYSTEM_ERROR, OPS_NOT_STORED))
            elif when_durable is None:
                connection.answer(command.reply())
            else:
                when_durable(end, partial(self._finish, connection, command))

        if command.flag & FLAG_ONEWAY:
            ask(stored)
            return None
        ask(stored)
        return DEFERRED

    @staticmethod
    def _finish(connection: Connection, command: Command, status: PutStatus) -> None:
        """Other than Java, 0 says that the end is as safe as was asked for, as with sends."""
        code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
        connection.answer(command.reply(code, None if code == ResponseCode.SUCCESS else status.value))


def _not_put_back(reason: str) -> Rejected:
    return Rejected(ResponseCode.SYSTEM_ERROR, f"{NOT_PUT_BACK} {reason}")
