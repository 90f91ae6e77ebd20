"""Requests about timer messages: RECALL_MESSAGE (370), and what slaves of Java ask (60, 61)."""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.requests.send_refusals import STORED
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.timer_puts import TimerPuts
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.metadata.polling import TIMER_PROGRESS_FIELD
from brokerset_broker.tables.topics import TopicManager
from brokerset_broker.timers.progress import Progress
from brokerset_broker.timers.put_decision import PutAside
from brokerset_broker.timers.recall_decision import (
    RECALL_QUEUE_ID,
    RecallRefused,
    decide_recall,
    recall_properties,
)
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.properties import Property, encode_properties
from brokerset_formats.recall_handles import INVALID, RECALL_BODY, RecallHandle
from brokerset_formats.timer_files import TimerCheckpoint, TimerMetrics
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.send import RecallMessage
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply

_FAILED: Final = "recall failed, execute error"


class Timers(Protocol):
    """What is asked about: `TimerService`."""

    settings: TimerSettings

    def checkpoint(self) -> TimerCheckpoint:
        """What a Java slave is to know."""

    def settled(self) -> Progress | None:
        """Where the group is, as far as it is confirmed."""

    def metrics(self) -> TimerMetrics:
        """How many messages wait for which topic."""


class TimerProcessor:
    """Answers about timers, and takes recalls."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        store: MessageStore,
        topics: TopicManager,
        admission: Admission,
        stats: BrokerStats,
        timers: Timers,
        puts: TimerPuts,
        changes: ChangeLog,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._topics = topics
        self._admission = admission
        self._stats = stats
        self._timers = timers
        self._puts = puts
        self._changes = changes

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self.checkpoint,
            RequestCode.GET_TIMER_METRICS: self.metrics,
            RequestCode.RECALL_MESSAGE: self.recall,
        }

    def checkpoint(self, connection: Connection, command: Command) -> Command:
        """GET_TIMER_CHECK_POINT (60): seven numbers, as Java's slaves read them."""
        ext = dict(self._changes.answer_ext())
        progress = self._timers.settled()
        if progress is not None:
            ext[TIMER_PROGRESS_FIELD] = progress.encode().hex()
        return command.reply(ext=ext, body=self._timers.checkpoint().encode_body())

    def metrics(self, connection: Connection, command: Command) -> Command:
        """GET_TIMER_METRICS (61): the content of timermetrics."""
        return command.reply(body=self._timers.metrics().encode())

    def recall(self, connection: Connection, command: Command) -> Reply:
        """RECALL_MESSAGE (370): store a message that deletes another one that waits."""
        header = RecallMessage.from_ext(command.ext)
        self._admission.check_writes()
        settings = self._live.current
        decision = decide_recall(
            header.topic,
            header.recall_handle,
            enabled=settings.recall_message_enable,
            writable=self._admission.writable,
            topic_exists=self._topics.get(header.topic) is not None,
            broker_name=settings.broker_name,
            settings=self._timers.settings,
            now_ms=self._clock.now_ms(),
        )
        if isinstance(decision, RecallRefused):
            raise Rejected(decision.code, decision.remark)
        handle = decision.handle
        end = self._put(connection, handle, header.producer_group)
        answer = partial(self._finish, connection, command, handle.message_id)
        when_durable = self._admission.when_durable
        if when_durable is None or command.flag & FLAG_ONEWAY:
            return self._success(command, handle.message_id)
        when_durable(end, answer)
        return DEFERRED

    def _put(self, connection: Connection, handle: RecallHandle, group: str | None) -> int:
        """The end of the message that recalls, in the log. Raises `Rejected`."""
        now_ms = self._clock.now_ms()
        try:
            properties = recall_properties(handle, group, settings=self._timers.settings, now_ms=now_ms)
            place = self._puts.put_aside(handle.topic, RECALL_QUEUE_ID, properties)
        except FormatError:
            raise Rejected(ResponseCode.ILLEGAL_OPERATION, INVALID) from None
        except Rejected as rejected:  # no timers, or too many
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"{_FAILED}: {rejected.remark}") from rejected
        if not isinstance(place, PutAside):
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"{_FAILED}: its time has come")
        try:
            appended = self._store.append(
                place.topic,
                place.queue_id,
                RECALL_BODY,
                encode_properties(properties),
                flag=0,
                sys_flag=0,
                born_timestamp=now_ms,
                born_host=Host.from_text(*connection.peer).encode(),
            )
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"{_FAILED}: {refused.reason}") from None
        self._stats.put(handle.topic, 1, appended.size)
        return appended.offset + appended.size

    def _finish(self, connection: Connection, command: Command, message_id: str, status: PutStatus) -> None:
        if status in STORED:
            connection.answer(self._success(command, message_id))
        else:
            connection.answer(command.reply(ResponseCode.SYSTEM_ERROR, f"{_FAILED}: {status.value}"))

    def _success(self, command: Command, message_id: str) -> Command:
        ext = {"msgId": message_id, str(Property.MSG_REGION): self._live.current.region_id}
        return command.reply(ext=ext)
