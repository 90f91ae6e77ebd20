"""What a session asks the broker of a queue, by the epoch of its partition; all raise `ClientError`s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from brokerset_client.calls import PULL_STATUS, PullStatus
from brokerset_client.errors import MessageUnreadable, RequestRefused
from brokerset_client.messages import MessageView, split_records
from brokerset_client.ordered.consuming.consume_rules import ConsumeRules
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_formats import names
from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import (
    PULL_EPOCH,
    PULL_SESSION,
    Acknowledge,
    AcknowledgeResponse,
    ClaimQueue,
    ClaimQueueResponse,
    ReleaseQueue,
    ReleaseQueueResponse,
    SendBack,
)
from brokerset_protocol.headers.pull import PullKey, PullMessageResponse, PullSysFlag

_H = TypeVar("_H", bound=headers.Header)


@dataclass(frozen=True, slots=True)
class PulledMessages:
    """What a pull found, and where to go on."""

    status: PullStatus
    messages: list[tuple[int, MessageView]]
    """Each with its pull sequence."""

    next_sequence: int
    max_queue_offset: int
    """What the next message of the queue will get."""

    group_position: int
    """Below it the members of a Shared group have acknowledged everything; else -1."""


class AckRefused(RequestRefused):
    """The acknowledgement does not continue at the session's position, or goes too far."""

    def __init__(self, position: int, remark: str, where: str) -> None:
        super().__init__(ResponseCode.BROKERSET_ACK_REFUSED, remark, where)
        self.position = position
        """Where the broker says that it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedQueue:
    """One queue that a session consumes by an epoch, as its broker knows it."""

    transport: OrderedTransport
    subject: str
    """Topic whose route says which broker is master; a retry topic is where its subject is."""

    topic: str
    broker_group: str
    queue_id: int
    group: str
    session: str
    epoch: int
    rules: ConsumeRules
    request_seconds: float

    async def claim(self, pulled_to: int) -> ClaimQueueResponse:
        """CLAIM_QUEUE (21032); `pulled_to` is a pull sequence, -1: nothing of this session's counts."""
        header = ClaimQueue(
            topic=self.topic,
            consumer_group=self.group,
            queue_id=self.queue_id,
            epoch=self.epoch,
            session=self.session,
            pulled_to=pulled_to,
            shared=self.rules.shared,
        )
        answer = await self._request(RequestCode.BROKERSET_CLAIM_QUEUE, header)
        return self._read(ClaimQueueResponse, answer)

    async def pull(
        self, pull_sequence: int, messages_max: int, subscription: SubscriptionData, suspend_ms: int
    ) -> PulledMessages:
        """PULL_MESSAGE (11) with the epoch; the broker may keep it for `suspend_ms` milliseconds."""
        flag = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if suspend_ms > 0 else 0)
        ext = {
            PullKey.CONSUMER_GROUP: self.group,
            PullKey.TOPIC: self.topic,
            PullKey.QUEUE_ID: str(self.queue_id),
            PullKey.QUEUE_OFFSET: str(pull_sequence),
            PullKey.MAX_MSG_NUMS: str(messages_max),
            PullKey.SYS_FLAG: str(flag),
            PullKey.COMMIT_OFFSET: "0",
            PullKey.SUSPEND_TIMEOUT_MILLIS: str(suspend_ms),
            PullKey.SUBSCRIPTION: subscription.sub_string,
            PullKey.SUB_VERSION: str(subscription.sub_version),
            PullKey.EXPRESSION_TYPE: subscription.expression_type,
            PULL_EPOCH: str(self.epoch),
            PULL_SESSION: self.session,
        }
        command = Command(RequestCode.PULL_MESSAGE, ext)
        timeout = self.request_seconds + suspend_ms / 1000
        answer = await self.transport.ask_master(self.subject, self.broker_group, command, timeout)
        status = PULL_STATUS.get(answer.code)
        if status is None:
            raise RequestRefused(answer.code, answer.remark or "no reason given", self._where)
        header = self._read(PullMessageResponse, answer)
        messages: list[tuple[int, MessageView]] = []
        if status is PullStatus.FOUND:
            try:
                retried = self.topic.removeprefix(names.RETRY_PREFIX)
                views = split_records(answer.body, self.broker_group, retried)
            except MessageUnreadable as error:
                raise self._unreadable(str(error)) from error
            messages = self.rules.numbered(pull_sequence, views)
            if subscription.tags_set:
                messages = [each for each in messages if each[1].tags in subscription.tags_set]
        said = -1 if header.group_position is None else header.group_position
        return PulledMessages(status, messages, header.next_begin_offset, header.max_offset, said)

    async def acknowledge(self, first: int, last: int) -> AcknowledgeResponse:
        """ACKNOWLEDGE (21033) of pull sequences. Raises `AckRefused`."""
        header = Acknowledge(
            topic=self.topic,
            consumer_group=self.group,
            queue_id=self.queue_id,
            epoch=self.epoch,
            session=self.session,
            first=first,
            last=last,
        )
        refused = ResponseCode.BROKERSET_ACK_REFUSED
        answer = await self._request(RequestCode.BROKERSET_ACKNOWLEDGE, header, accept=refused)
        found = self._read(AcknowledgeResponse, answer)
        if answer.code == refused:
            raise AckRefused(found.position, answer.remark or "no reason given", self._where)
        return found

    async def release(self) -> ReleaseQueueResponse:
        """RELEASE_QUEUE (21034)."""
        header = ReleaseQueue(
            topic=self.topic,
            consumer_group=self.group,
            queue_id=self.queue_id,
            epoch=self.epoch,
            session=self.session,
        )
        answer = await self._request(RequestCode.BROKERSET_RELEASE_QUEUE, header)
        return self._read(ReleaseQueueResponse, answer)

    async def send_back(self, queue_offset: int, *, dead: bool, reconsume_max: int) -> None:
        """SEND_BACK (21035): a copy for the retry topic, or for the dead letters."""
        header = SendBack(
            topic=self.topic,
            consumer_group=self.group,
            queue_id=self.queue_id,
            epoch=self.epoch,
            session=self.session,
            queue_offset=queue_offset,
            dead=dead,
            max_reconsume_times=reconsume_max,
        )
        await self._request(RequestCode.BROKERSET_SEND_BACK, header)

    @property
    def _where(self) -> str:
        return f"the master of {self.broker_group} (queue {self.queue_id} of {self.topic})"

    async def _request(self, code: int, header: headers.Header, accept: int = 0) -> Command:
        command = Command(code, header.to_ext())
        answer = await self.transport.ask_master(
            self.subject, self.broker_group, command, self.request_seconds
        )
        if answer.code not in (ResponseCode.SUCCESS, accept):
            raise RequestRefused(answer.code, answer.remark or "no reason given", self._where)
        return answer

    def _read(self, kind: type[_H], answer: Command) -> _H:
        try:
            return kind.from_ext(answer.ext)
        except Rejected as error:
            raise self._unreadable(error.remark) from error

    def _unreadable(self, problem: str) -> RequestRefused:
        return RequestRefused(ResponseCode.SYSTEM_ERROR, f"unreadable answer: {problem}", self._where)
