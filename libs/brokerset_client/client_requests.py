"""What brokers ask of a client: to rebalance, to move its offsets, to tell its state, to consume one
message, to take a reply, to say what became of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from brokerset_client.errors import MessageUnreadable
from brokerset_client.messages import MessageView
from brokerset_client.replies import ReplyTable
from brokerset_client.stack_dump import stack_dump
from brokerset_formats.properties import Property
from brokerset_protocol import headers
from brokerset_protocol.bodies.connections import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from brokerset_protocol.bodies.heartbeat import ConsumerData
from brokerset_protocol.bodies.queues import GetConsumerStatusBody, MessageQueue, reset_offsets_from
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import Connection, Handlers

log = structlog.get_logger(__name__)


class GroupMember(Protocol):
    """A consumer of this client, as its instance sees it."""

    @property
    def group(self) -> str:
        """Its consumer group."""
        ...

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say about it."""
        ...

    def route_changed(self, topic: str) -> None:
        """The queues of a topic may be others now."""
        ...

    def members_changed(self) -> None:
        """Someone joined or left the group."""
        ...

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moves the group: go on from these queue offsets."""
        ...

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """The queue offsets to which its own queues of `topic` are consumed."""
        ...

    def running_info(self) -> ConsumerRunningInfo:
        """Its state, for an administrator."""
        ...

    async def consume_directly(self, message: MessageView) -> ConsumeMessageDirectlyResult:
        """Hand one message to the listener, as an administrator wishes."""
        ...


class TransactionChecker(Protocol):
    """Answers checks of transactions for one producer group of this client."""

    @property
    def group(self) -> str:
        """Its producer group."""
        ...

    def check(
        self, connection: Connection, header: headers.CheckTransactionState, message: MessageView
    ) -> None:
        """A broker asks over `connection` what became of `message`; must not wait."""
        ...


class ClientRequests:
    """Handlers for the connections of one client instance."""

    def __init__(
        self,
        members: Mapping[str, GroupMember],
        checkers: Mapping[str, TransactionChecker],
        replies: ReplyTable,
        client_id: Callable[[], str],
    ) -> None:
        self._members = members
        self._checkers = checkers
        self._replies = replies
        self._client_id = client_id

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._replies.received,
            RequestCode.CHECK_TRANSACTION_STATE: self.check_transaction,
        }

    def members_changed(self, _: Connection, command: Command) -> Command:
        """NOTIFY_CONSUMER_IDS_CHANGED (40)."""
        member = self._members.get(headers.NotifyConsumerIdsChanged.from_ext(command.ext).consumer_group)
        if member is not None:
            member.members_changed()
        return command.reply()

    def reset_offsets(self, _: Connection, command: Command) -> Command:
        """RESET_CONSUMER_CLIENT_OFFSET (220)."""
        header = headers.ResetOffset.from_ext(command.ext)
        self._member(header.group).reset_offsets(header.topic, reset_offsets_from(command.body))
        return command.reply()

    def consumer_status(self, _: Connection, command: Command) -> Command:
        """GET_CONSUMER_STATUS_FROM_CLIENT (221)."""
        header = headers.GetConsumerStatus.from_ext(command.ext)
        positions = dict(self._member(header.group).positions(header.topic))
        return command.reply(body=GetConsumerStatusBody(positions).to_json())

    def running_info(self, _: Connection, command: Command) -> Command:
        """GET_CONSUMER_RUNNING_INFO (307); where Java's clients add a jstack, ours adds what its tasks do."""
        header = headers.GetConsumerRunningInfo.from_ext(command.ext)
        info = self._member(header.consumer_group).running_info()
        if header.jstack_enable:
            info = replace(info, jstack=stack_dump())
        return command.reply(body=info.to_json())

    async def consume_directly(self, _: Connection, command: Command) -> Command:
        """CONSUME_MESSAGE_DIRECTLY (309)."""
        header = headers.ConsumeMessageDirectlyResult.from_ext(command.ext)
        member = self._member(header.consumer_group)
        message = MessageView(command.body, 0, header.broker_name or "", member.group)
        try:
            message.stored_topic  # noqa: B018  # reads the whole frame of the record
        except MessageUnreadable as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return command.reply(body=(await member.consume_directly(message)).to_json())

    def check_transaction(self, connection: Connection, command: Command) -> None:
        """CHECK_TRANSACTION_STATE (39). A group that is not ours is ignored: the broker asks another."""
        header = headers.CheckTransactionState.from_ext(command.ext)
        message = MessageView(command.body, 0, header.broker_name or "")
        try:
            group = message.property_text(Property.PGROUP)
        except MessageUnreadable as error:
            log.warning("check of a transaction cannot be read", peer=connection.peer, reason=str(error))
            return
        checker = None if group is None else self._checkers.get(group)
        if checker is None:
            log.info("check of a transaction of another group", group=group, peer=connection.peer)
            return
        checker.check(connection, header, message)

    def _member(self, group: str) -> GroupMember:
        member = self._members.get(group)
        if member is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"the consumer group <{group}> not exist in this consumer client {self._client_id()}",
            )
        return member
