"""The requests that consumers send to brokers, one function for each; all raise `ClientError`s."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from brokerset_client.errors import RequestRefused
from brokerset_client.instance import CALL_SECONDS, ClientInstance, readable
from brokerset_client.messages import MessageView, split_records
from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import CheckClientRequest, SubscriptionData
from brokerset_protocol.bodies.queues import ConsumerIdList, LockBatchRequest, LockBatchResponse, MessageQueue
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.pull import PullKey, PullResponseKey, PullSysFlag

_H = TypeVar("_H", bound=headers.Header)

SUSPEND_MS = 15_000
"""How long a broker may hold a pull until there is something (Java's `brokerSuspendMaxTimeMillis`)."""

PULL_SECONDS = 30.0
"""Time-out of a pull that the broker may hold."""


class PullStatus(Enum):
    """What a pull found, under Java's names."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


PULL_STATUS: Final = {int(status.value): status for status in PullStatus}
"""By the code of the answer."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull found, and where to go on."""

    status: PullStatus
    messages: list[MessageView]
    next_queue_offset: int
    """Where the next pull begins."""
    min_queue_offset: int
    max_queue_offset: int
    """What the next message of the queue will get."""
    suggested_broker_id: int
    """Which replica to pull from next; 0 is the master."""


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """What a pull found as the broker has stored it: records one behind the other in `body`."""

    status: PullStatus
    body: bytes
    next_queue_offset: int
    min_queue_offset: int
    max_queue_offset: int
    suggested_broker_id: int


async def pull(
    instance: ClientInstance,
    address: str,
    *,
    group: str,
    queue: MessageQueue,
    queue_offset: int,
    subscription: SubscriptionData,
    messages_max: int = 32,
    commit_offset: int | None = None,
    suspend_ms: int = SUSPEND_MS,
    with_subscription: bool = False,
    timeout: float = PULL_SECONDS,
) -> PullResult:
    """PULL_MESSAGE (11). `commit_offset` also stores the group's position.

    `with_subscription` sends the expression along; else the broker uses the one of the heartbeat. A broker
    that filters by tag compares hashes, so messages of other tags with the same hash are dropped here.
    """
    found = await pull_records(
        instance,
        address,
        group=group,
        queue=queue,
        queue_offset=queue_offset,
        subscription=subscription,
        messages_max=messages_max,
        commit_offset=commit_offset,
        suspend_ms=suspend_ms,
        with_subscription=with_subscription,
        timeout=timeout,
    )
    messages: list[MessageView] = []
    if found.status is PullStatus.FOUND:
        messages = split_records(found.body, queue.broker_name, group)
        if subscription.tags_set:
            messages = [message for message in messages if message.tags in subscription.tags_set]
    return PullResult(
        found.status,
        messages,
        found.next_queue_offset,
        found.min_queue_offset,
        found.max_queue_offset,
        found.suggested_broker_id,
    )


async def pull_records(
    instance: ClientInstance,
    address: str,
    *,
    group: str,
    queue: MessageQueue,
    queue_offset: int,
    subscription: SubscriptionData,
    messages_max: int,
    commit_offset: int | None = None,
    suspend_ms: int = SUSPEND_MS,
    with_subscription: bool = False,
    timeout: float = PULL_SECONDS,
) -> PulledRecords:
    """`pull` for who takes the records apart itself; nothing is looked at or dropped here."""
    flag = 0
    if commit_offset is not None:
        flag |= PullSysFlag.COMMIT_OFFSET
    if suspend_ms > 0:
        flag |= PullSysFlag.SUSPEND
    ext = {
        PullKey.CONSUMER_GROUP: group,
        PullKey.TOPIC: queue.topic,
        PullKey.QUEUE_ID: str(queue.queue_id),
        PullKey.QUEUE_OFFSET: str(queue_offset),
        PullKey.MAX_MSG_NUMS: str(messages_max),
        PullKey.COMMIT_OFFSET: str(commit_offset or 0),
        PullKey.SUSPEND_TIMEOUT_MILLIS: str(suspend_ms),
        PullKey.SUB_VERSION: str(subscription.sub_version),
        PullKey.EXPRESSION_TYPE: subscription.expression_type,
    }
    if with_subscription:
        flag |= PullSysFlag.SUBSCRIPTION
        ext[PullKey.SUBSCRIPTION] = subscription.sub_string
    ext[PullKey.SYS_FLAG] = str(flag)
    answer = await instance.call(address, Command(RequestCode.PULL_MESSAGE, ext), timeout)
    status = PULL_STATUS.get(answer.code)
    if status is None:
        raise RequestRefused(answer.code, answer.remark or "no reason given", address)
    try:
        next_queue_offset = int(answer.ext[PullResponseKey.NEXT_BEGIN_OFFSET])
        min_queue_offset = int(answer.ext[PullResponseKey.MIN_OFFSET])
        max_queue_offset = int(answer.ext[PullResponseKey.MAX_OFFSET])
        suggested = int(answer.ext[PullResponseKey.SUGGEST_WHICH_BROKER_ID])
    except (KeyError, ValueError) as error:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"unreadable answer to a pull: {error!r}", address
        ) from error
    return PulledRecords(
        status, answer.body, next_queue_offset, min_queue_offset, max_queue_offset, suggested
    )


async def committed_offset(
    instance: ClientInstance, address: str, group: str, queue: MessageQueue, *, strict: bool
) -> int | None:
    """QUERY_CONSUMER_OFFSET (14): where the group goes on, None if nothing is stored.

    Unless `strict` a broker answers 0 if nothing is stored, but it has all messages of the queue in memory.
    """
    header = headers.QueryConsumerOffset(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=False if strict else None,
    )
    answer = await instance.request(
        address, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=(ResponseCode.QUERY_NOT_FOUND,)
    )
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return _read(headers.QueryConsumerOffsetResponse, answer, address).offset


async def commit_offset(
    instance: ClientInstance,
    address: str,
    group: str,
    queue: MessageQueue,
    queue_offset: int,
    *,
    oneway: bool = False,
) -> None:
    """UPDATE_CONSUMER_OFFSET (15): store where the group goes on."""
    header = headers.UpdateConsumerOffset(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=queue_offset
    )
    if oneway:
        await instance.notify(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    else:
        await instance.request(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def max_offset(instance: ClientInstance, address: str, queue: MessageQueue) -> int:
    """GET_MAX_OFFSET (30): the queue offset that the next message gets."""
    header = headers.GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
    answer = await instance.request(address, RequestCode.GET_MAX_OFFSET, header)
    return _read(headers.GetMaxOffsetResponse, answer, address).offset


async def min_offset(instance: ClientInstance, address: str, queue: MessageQueue) -> int:
    """GET_MIN_OFFSET (31): the oldest queue offset that is still there."""
    header = headers.GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
    answer = await instance.request(address, RequestCode.GET_MIN_OFFSET, header)
    return _read(headers.GetMinOffsetResponse, answer, address).offset


async def offset_at(instance: ClientInstance, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """SEARCH_OFFSET_BY_TIMESTAMP (29): the first message that was stored at that time or later."""
    header = headers.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
    answer = await instance.request(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return _read(headers.SearchOffsetResponse, answer, address).offset


async def earliest_store_time(instance: ClientInstance, address: str, queue: MessageQueue) -> int:
    """GET_EARLIEST_MSG_STORETIME (32): milliseconds since 1970, -1 for an empty queue."""
    header = headers.GetEarliestMsgStoretime(topic=queue.topic, queue_id=queue.queue_id)
    answer = await instance.request(address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
    return _read(headers.GetEarliestMsgStoretimeResponse, answer, address).timestamp


async def member_ids(instance: ClientInstance, address: str, group: str) -> tuple[str, ...]:
    """GET_CONSUMER_LIST_BY_GROUP (38): the client ids of the group, none if the broker knows nobody."""
    header = headers.GetConsumerListByGroup(consumer_group=group)
    answer = await instance.request(
        address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, accept=(ResponseCode.SYSTEM_ERROR,)
    )
    if answer.code != ResponseCode.SUCCESS:
        return ()
    return readable(ConsumerIdList.from_json, answer.body).consumer_id_list


async def lock_queues(
    instance: ClientInstance, address: str, group: str, queues: Collection[MessageQueue]
) -> frozenset[MessageQueue]:
    """LOCK_BATCH_MQ (41): those of `queues` that this client holds now."""
    body = LockBatchRequest(group, instance.client_id, frozenset(queues)).to_json()
    answer = await instance.request(address, RequestCode.LOCK_BATCH_MQ, headers.LockBatchMq(), body)
    return readable(LockBatchResponse.from_json, answer.body).lock_ok_mq_set


async def unlock_queues(
    instance: ClientInstance, address: str, group: str, queues: Collection[MessageQueue]
) -> None:
    """UNLOCK_BATCH_MQ (42)."""
    body = LockBatchRequest(group, instance.client_id, frozenset(queues)).to_json()
    await instance.request(address, RequestCode.UNLOCK_BATCH_MQ, headers.UnlockBatchMq(), body)


async def send_back(
    instance: ClientInstance,
    address: str,
    group: str,
    message: MessageView,
    *,
    delay_level: int,
    max_reconsume_times: int,
) -> None:
    """CONSUMER_SEND_MSG_BACK (36): the broker delivers the message to the group again, later.

    `delay_level` 0 lets the broker choose by the number of failures, below 0 means the dead-letter topic.
    """
    header = headers.ConsumerSendMsgBack(
        offset=message.offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.origin_message_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
    )
    await instance.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout=CALL_SECONDS)


async def check_subscription(
    instance: ClientInstance, address: str, group: str, subscription: SubscriptionData
) -> None:
    """CHECK_CLIENT_CONFIG (46): raises `RequestRefused` if the broker cannot filter by the expression."""
    body = CheckClientRequest(instance.client_id, group, subscription).to_json()
    command = Command(RequestCode.CHECK_CLIENT_CONFIG, {}, body)
    answer = await instance.call(address, command)
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefused(answer.code, answer.remark or "no reason given", address)


def _read(kind: type[_H], answer: Command, address: str) -> _H:
    try:
        return kind.from_ext(answer.ext)
    except Rejected as error:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"unreadable answer: {error.remark}", address
        ) from error
