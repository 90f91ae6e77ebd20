"""Requests of POP consumers that take nothing: NOTIFICATION, PEEK_MESSAGE, POLLING_INFO.

Source: `NotificationProcessor`, `PeekMessageProcessor`, `PollingInfoProcessor` of 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from random import randrange
from typing import Final

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.choice import ANY_QUEUE, Chances, choose
from brokerset_broker.pop.waiting import Waiter, wait_ms
from brokerset_broker.requests.pop.answers import notification_answer, pop_answer
from brokerset_broker.requests.pop.checks import PopChecks
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.ordered_pops import OrderedPops
from brokerset_broker.requests.pop.polls import Parked, Polls, retry_topics
from brokerset_broker.requests.pop.pops import FORWARDED_WAIT_MS_MAX, MESSAGES_MAX, NOTHING
from brokerset_broker.requests.pop.positions import PopPositions
from brokerset_broker.requests.pull import pull_bytes_max
from brokerset_broker.requests.request_classes import is_forwarded
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.results import GetStatus
from brokerset_broker.tables.consumer_filters import CompiledFilter
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.pop import Notification, PeekMessage, PollingInfo, PollingInfoResponse
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply

_CHANCES: Final = Chances(0, 0, highest_first=False)
_CORRECTED: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)


class _Asked(Waiter):
    """A notification that waits."""

    __slots__ = ("attempt_id", "connection", "opaque", "wanted_only")

    attempt_id: str | None
    connection: Connection
    opaque: int
    wanted_only: CompiledFilter | None


class NotificationProcessor:
    """Says whether a pop would find something, and what; and how many wait."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        store: MessageStore,
        checks: PopChecks,
        positions: PopPositions,
        log: PopLog,
        pops: Polls,
        ordered_pops: OrderedPops,
        polls: Callable[[Callable[[Waiter], None], Callable[[Waiter], None]], Polls],
    ) -> None:
        """`pops`: what pops wait in. `polls` makes what notifications wait in, of how they go on and end."""
        self._live = live
        self._clock = clock
        self._store = store
        self._checks = checks
        self._positions = positions
        self._log = log
        self._pops = pops
        self._ordered_pops = ordered_pops
        self.polls = polls(self._resume, self._expire)

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    # -- notifications ------------------------------------------------------------------------------------

    def notify(self, connection: Connection, command: Command) -> Reply:
        """Whether a pop would find a message; without one the request waits."""
        ext = command.ext
        header = Notification.from_ext({"bornTime": "0"} | ext)
        self._checks.check_broker("peeking")
        config, group_config = self._checks.check(
            connection, header.consumer_group, header.topic, header.queue_id
        )
        subscribed = self._checks.subscription(header.topic, ext)
        filtered = self._live.current.use_message_filter_for_notification
        asked = _Asked()
        asked.owner = asked.connection = connection
        asked.opaque = command.opaque
        asked.topic, asked.group = config.topic_name, group_config.group_name
        asked.queue_id = header.queue_id if header.queue_id >= 0 else ANY_QUEUE
        asked.ordered, asked.attempt_id = header.order, header.attempt_id
        asked.codes = subscribed.codes if filtered else None
        asked.wanted_only = subscribed.wanted_only if filtered else None
        asked.line = None
        if self._has_messages(asked):
            return notification_answer(asked.opaque, has_messages=True)
        forwarded = is_forwarded(ext)
        wait = wait_ms(header.poll_time, 0 if forwarded else header.born_time, self._clock.now_ms()) or 0
        asked.deadline_ms = self.polls.deadline_ms(min(wait, FORWARDED_WAIT_MS_MAX) if forwarded else wait)
        if command.is_oneway:
            return None
        parked = self.polls.park(asked)
        if parked is Parked.WAITS:
            return DEFERRED
        return notification_answer(asked.opaque, has_messages=False, full=parked is Parked.FULL)

    def _has_messages(self, asked: _Asked) -> bool:
        for source in choose(
            asked.topic,
            asked.queue_id,
            self._checks.read_queues(asked.topic),
            self._retries(asked.topic, asked.group),
            _CHANCES,
            drawn=0,
            ordered=asked.ordered,
        ):
            for queue_id in source.queue_ids:
                if self._has_message(asked, source.topic, queue_id):
                    return True
        return False

    def _has_message(self, asked: _Asked, topic: str, queue_id: int) -> bool:
        """Whether a queue has a wanted message; of many that are not wanted only the first are examined."""
        position = self._positions.present(topic, asked.group, queue_id)
        if asked.ordered:
            if not self._ordered_pops.admit(topic, asked.group, queue_id, asked.attempt_id):
                return False
            done = self._ordered_pops.passed_by(topic, asked.group, queue_id, position)
            while position in done:
                position += 1
        elif self._log.is_crowded(topic, asked.group, queue_id):
            return False  # a pop would get nothing; acks wake who waits
        if position >= self._store.queue_max(topic, queue_id):
            return False
        if asked.codes is None and asked.wanted_only is None:
            return True
        result = self._store.get(topic, queue_id, position, 1, 1, asked.codes, asked.wanted_only)
        # Behind those that were examined there may be one: a pop finds out, and moves on.
        return result.status is GetStatus.FOUND or result.next_queue_offset < result.max_queue_offset

    def _retries(self, topic: str, group: str) -> list[tuple[str, int]]:
        read_queues = self._checks.read_queues
        return [(name, queues) for name in retry_topics(topic, group) if (queues := read_queues(name))]

    def _resume(self, waiter: Waiter) -> None:
        assert isinstance(waiter, _Asked), "only notifications wait here"
        connection = waiter.connection
        if not connection.is_open:
            self.polls.wake_next(waiter.topic, waiter.group, waiter.queue_id)
            return
        try:
            found = self._has_messages(waiter)
        except Rejected as rejected:
            request = Command(RequestCode.NOTIFICATION, opaque=waiter.opaque)
            connection.answer_at_once(request.reply(rejected.code, rejected.remark))
            return
        if found:
            connection.answer_at_once(notification_answer(waiter.opaque, has_messages=True))
        elif self.polls.park(waiter) is not Parked.WAITS:
            self._expire(waiter)

    @staticmethod
    def _expire(waiter: Waiter) -> None:
        assert isinstance(waiter, _Asked), "only notifications wait here"
        waiter.connection.answer(notification_answer(waiter.opaque, has_messages=False))

    # -- peeking ------------------------------------------------------------------------------------------

    def peek(self, connection: Connection, command: Command) -> Reply:
        """The next messages, and nothing changes. Retried ones are as they are stored."""
        header = PeekMessage.from_ext(command.ext)
        topic, group = header.topic, header.consumer_group
        self._checks.check_broker("peeking")
        self._checks.check(connection, group, topic, header.queue_id)
        if header.max_msg_nums <= 0:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums[{header.max_msg_nums}] is illegal: it is not positive",
            )
        left = min(header.max_msg_nums, MESSAGES_MAX)
        bytes_max = pull_bytes_max(self._live.current)
        parts: list[bytes | memoryview] = []
        size = rest = 0
        for source in choose(
            topic,
            header.queue_id,
            self._checks.read_queues(topic),
            self._retries(topic, group),
            Chances(20, 20, highest_first=False),
            drawn=randrange(1 << 30),
        ):
            for queue_id in source.queue_ids:
                position = self._positions.present(source.topic, group, queue_id)
                rest += max(0, self._store.queue_max(source.topic, queue_id) - position)
                if left <= 0 or size >= bytes_max:
                    continue
                result = self._store.get(source.topic, queue_id, position, left, bytes_max - size)
                if result.status in _CORRECTED:
                    result = self._store.get(
                        source.topic, queue_id, result.next_queue_offset, left, bytes_max - size
                    )
                parts += result.parts
                size += result.size
                left -= result.message_count
        found = size > 0
        return pop_answer(
            command.opaque,
            code=ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND,
            remark="FOUND" if found else NOTHING,
            pop_time=0,
            invisible_ms=0,
            revive_queue=0,
            rest=rest,
            parts=parts,
            size=size,
        )

    # -- who waits ----------------------------------------------------------------------------------------

    def polling_info(self, connection: Connection, command: Command) -> Command:
        """How many pops wait for a queue of a group, or for any."""
        header = PollingInfo.from_ext(command.ext)
        self._checks.check_broker("peeking")
        self._checks.check(connection, header.consumer_group, header.topic, header.queue_id)
        queue_id = header.queue_id if header.queue_id >= 0 else ANY_QUEUE
        waiting = self._pops.table.count(header.topic, header.consumer_group, queue_id)
        return command.reply(ext=PollingInfoResponse(polling_num=waiting).to_ext())
