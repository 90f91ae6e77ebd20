"""Which queues a client consumes, and whether by pulling or by popping: 400, 401, 402.

Source: `QueryAssignmentProcessor`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, check_changeable, group_key, topic_key
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata.records import Change, RequestModesPut
from brokerset_broker.tables.pop.request_modes import RequestModes
from brokerset_broker.tables.pop.values import RequestMode, mode_key
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.light_queues import QUEUE_ID, is_light
from brokerset_formats.names import is_retry_topic
from brokerset_protocol.bodies.heartbeat import MessageModel
from brokerset_protocol.bodies.metadata import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    SetMessageRequestMode,
)
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.queue_allocation import STRATEGIES, allocate, allocate_for_pop
from brokerset_runtime.remoting import Connection, Handler

log = structlog.get_logger(__name__)

Queues = Callable[[str], Awaitable[Sequence[MessageQueue] | None]]
"""Gives all readable queues of a topic, of all brokers; None if nobody knows it."""


class AssignmentProcessor:
    """Allocates queues for clients that leave it to the broker, and keeps how groups get messages."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        admission: Admission,
        topics: TopicManager,
        groups: GroupManager,
        consumers: ConsumerTable,
        modes: RequestModes,
        changes: ChangeLog,
        queues: Queues,
    ) -> None:
        """`queues` asks name servers; `changes` makes a mode safe before it is answered."""
        self._live = live
        self._admission = admission
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._modes = modes
        self._changes = changes
        self._queues = queues

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
        }

    # -- assignments --------------------------------------------------------------------------------------

    async def query(self, connection: Connection, command: Command) -> Command:
        """QUERY_ASSIGNMENT (400): what the client consumes of one topic."""
        asked = QueryAssignmentRequest.from_json(command.body)
        mode = self._mode(asked.topic, asked.consumer_group)
        queues = await self._allocate(asked, mode)
        if queues is None:
            return command.reply(body=QueryAssignmentResponse(None).to_json())
        assignments = tuple(MessageQueueAssignment(queue, mode.mode) for queue in queues)
        return command.reply(body=QueryAssignmentResponse(assignments).to_json())

    def _mode(self, topic: str, group: str) -> RequestMode:
        found = self._modes.get(topic, group)
        if found is not None:
            return found
        settings = self._live.current
        if is_retry_topic(topic) or settings.default_message_request_mode == "PULL":
            return RequestMode(MessageRequestMode.PULL, 0)
        return RequestMode(MessageRequestMode.POP, settings.default_pop_share_queue_num)

    async def _allocate(
        self, asked: QueryAssignmentRequest, mode: RequestMode
    ) -> Sequence[MessageQueue] | None:
        """The client's queues; None if that cannot be said now, and it keeps what it has."""
        topic, group = asked.topic, asked.consumer_group
        known: Sequence[MessageQueue] | None
        if is_light(topic) and asked.message_model is MessageModel.CLUSTERING:
            known = [MessageQueue(topic, self._live.current.broker_name, QUEUE_ID)]
        else:
            known = await self._queues(topic)
        if known is None:
            log.debug("no assignment: no name server has a route", group=group, topic=topic)
            return None
        if (
            asked.message_model is MessageModel.BROADCASTING
            or not self._live.current.server_load_balancer_enable
        ):
            return known
        entry = self._consumers.group(group)
        strategy = STRATEGIES.get(asked.strategy_name or "")
        if entry is None or strategy is None:
            log.debug(
                "no assignment: the group is not connected here, or its strategy is not known",
                group=group,
                topic=topic,
                strategy=asked.strategy_name,
            )
            return None
        members = entry.client_ids()
        if mode.mode is MessageRequestMode.POP:
            return allocate_for_pop(asked.client_id, known, members, strategy, mode.share_queues)
        return allocate(asked.client_id, known, members, strategy)

    # -- modes --------------------------------------------------------------------------------------------

    def set_mode(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """SET_MESSAGE_REQUEST_MODE (401): whether a group pulls or pops a topic."""
        check_changeable(self._admission)
        wanted = SetMessageRequestMode.from_json(command.body)
        if is_retry_topic(wanted.topic):
            raise Rejected(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        return self._set(command, wanted)

    async def _set(self, command: Command, wanted: SetMessageRequestMode) -> Command:
        keys = [topic_key(wanted.topic), group_key(wanted.consumer_group)]
        await self._changes.change(keys, partial(self._decide, wanted))
        return command.reply()

    def _decide(self, wanted: SetMessageRequestMode) -> Sequence[Change]:
        topic, group = wanted.topic, wanted.consumer_group
        if self._topics.get(topic) is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if self._groups.get_or_create(group) is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        key, mode = mode_key(topic, group), RequestMode(wanted.mode, wanted.pop_share_queue_num)
        if self._modes.get(topic, group) == mode:
            return []
        self._modes.check_room(key)
        return [RequestModesPut({key: mode})]

    def all_modes(self, connection: Connection, command: Command) -> Command:
        """GET_ALL_MESSAGE_REQUEST_MODE (402): messageRequestMode.json, for slaves."""
        return command.reply(ext=self._changes.answer_ext(), body=self._modes.table().to_json())
