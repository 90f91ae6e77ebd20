"""BROKERSET_SEND_BACK (21035): an owner that could not handle a message has a copy of it made for later.

The copy goes to the queue of the same number of the group's retry topic for the subject, or to its dead
letters. Nothing is acknowledged by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, topic_key
from brokerset_broker.requests.copies import MessageCopies
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.ordered_parts import OrderedStore
from brokerset_broker.requests.send_refusals import CODES
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata.records import Change, TopicsPut
from brokerset_broker.tables.ordered.claims import PullSession
from brokerset_broker.tables.ordered.shared_pulls import PullLog
from brokerset_broker.tables.ordered.values import ClaimKey
from brokerset_broker.tables.topics import READ_WRITE, TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import check_group, check_topic, is_retry_topic, ordered_retry_topic
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import SendBack
from brokerset_runtime.remoting import Connection, Handler

RECONSUME_TIMES_MAX: Final = 1_000
"""Most tries that a session can ask for."""

RECONSUME_TIMES: Final = 16
"""Tries of a message that a session has passed over, as RocketMQ's default."""


class OrderedSendBackProcessor:
    """Serves the owners of queues."""

    def __init__(
        self,
        *,
        access: OrderedAccess,
        copies: MessageCopies,
        store: OrderedStore,
        topics: TopicManager,
        groups: GroupManager,
        admission: Admission,
        changes: ChangeLog,
        stats: BrokerStats,
    ) -> None:
        self._access = access
        self._copies = copies
        self._store = store
        self._topics = topics
        self._groups = groups
        self._admission = admission
        self._changes = changes
        self._stats = stats

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {RequestCode.BROKERSET_SEND_BACK: self.send_back}

    def send_back(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """Store a copy of a message that the session was given. Repeated, it stores no second one."""
        header = SendBack.from_ext(command.ext)
        self._admission.check_writes()
        problem = check_group(header.consumer_group)
        if problem is None and not 0 <= header.max_reconsume_times <= RECONSUME_TIMES_MAX:
            problem = (
                f"maxReconsumeTimes={header.max_reconsume_times}: must be from 0 to {RECONSUME_TIMES_MAX}"
            )
        if problem is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, problem)
        key = ClaimKey(header.topic, header.consumer_group, header.queue_id)
        self._owner(key, header)
        return self._send_back(command, key, header)

    def _owner(self, key: ClaimKey, header: SendBack) -> PullSession | PullLog:
        pulls = self._access.owner(key, header.epoch, header.session, "send back")
        is_there = self._store.queue_min(key.topic, key.queue_id) <= header.queue_offset
        if not is_there or not pulls.has(header.queue_offset):
            raise Rejected(
                ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE,
                f"the session does not have message {header.queue_offset} of {key}, or it is gone",
            )
        return pulls

    async def _send_back(self, command: Command, key: ClaimKey, header: SendBack) -> Command:
        await self.make_retry_topic(key)
        pulls = self._owner(key, header)  # it may have changed meanwhile
        end = self._copy_once(
            key, pulls, header.queue_offset, dead=header.dead, times_max=header.max_reconsume_times
        )
        await self.confirmed(end)
        return command.reply()

    async def make_retry_topic(self, key: ClaimKey) -> None:
        """Return when the retry topic has a queue for copies of the group's messages of this queue."""
        topic = _retry_topic(key)
        await self._changes.change([topic_key(topic)], lambda: self._decide_topic(key, topic))

    def copy_missing(self, key: ClaimKey, pulls: PullLog, queue_offset: int) -> int:
        """Store a copy of a message that the session has passed over; none of one that is gone.

        The retry topic is made. Returns the end of the copy in the log, for `confirmed`.
        """
        if self._store.unit(key.topic, key.queue_id, queue_offset) is None:
            return 0
        return self._copy_once(key, pulls, queue_offset, dead=False, times_max=RECONSUME_TIMES)

    async def confirmed(self, end: int) -> None:
        """Return when copies up to an offset of the log are confirmed. Raises `Rejected`."""
        status = await self._durable(end)
        if status is not PutStatus.PUT_OK:
            code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
            raise Rejected(code, f"{status.value}: the copy is not confirmed; repeat the request")

    def _copy_once(
        self, key: ClaimKey, pulls: PullSession | PullLog, queue_offset: int, *, dead: bool, times_max: int
    ) -> int:
        """The end of the copy in the log, which may be there already. Raises `Rejected`."""
        end = pulls.sent_back.get(queue_offset)
        if end is None:
            end = self._copy(key, queue_offset, dead=dead, times_max=times_max)
            pulls.note_copy(queue_offset, end)
            self._stats.group_back(key.group, key.topic).messages += 1
        return end

    def _decide_topic(self, key: ClaimKey, topic: str) -> Sequence[Change]:
        """The retry topic has a queue of this number, before a copy goes there."""
        problem = check_topic(topic)
        if problem is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, problem)
        config = self._topics.get(topic)
        queues = key.queue_id + 1
        if config is not None:
            queues = max(queues, config.read_queue_nums, config.write_queue_nums)
            if queues == config.read_queue_nums == config.write_queue_nums:
                return ()
        planned = self._topics.plan_update(TopicConfig(topic, queues, queues, READ_WRITE))
        return () if planned is None else (TopicsPut((planned,)),)

    def _copy(self, key: ClaimKey, queue_offset: int, *, dead: bool, times_max: int) -> int:
        unit = self._store.unit(key.topic, key.queue_id, queue_offset)
        if unit is None:
            raise Rejected(
                ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE,
                f"message {queue_offset} of {key} is not there any more",
            )
        record = self._copies.read(unit[0])
        if dead or record.reconsume_times >= times_max:
            return self._copies.dead_letter(record, key.group)
        return self._copies.retry(record, 0, lambda: (_retry_topic(key), key.queue_id))

    async def _durable(self, end: int) -> PutStatus:
        when_durable = self._admission.when_durable
        if when_durable is None:
            return PutStatus.PUT_OK
        done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        when_durable(end, lambda status: None if done.done() else done.set_result(status))
        return await done


def _retry_topic(key: ClaimKey) -> str:
    """Where copies of the group go: those of a copy go to the same topic again."""
    return key.topic if is_retry_topic(key.topic) else ordered_retry_topic(key.group, key.topic)
