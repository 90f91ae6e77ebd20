"""Single pulls, as a reader without a consumer group of its own makes them."""

from __future__ import annotations

from typing import Final

from brokerset_client import calls
from brokerset_client.calls import PulledRecords, PullStatus
from brokerset_client.errors import BrokerUnreachable, RequestRefused
from brokerset_client.instance import ClientInstance
from brokerset_formats.errors import FormatError
from brokerset_formats.records import decode_record
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.bodies.routes import MASTER_ID
from brokerset_protocol.codes import ResponseCode
from brokerset_spark.topics.offsets import Mark, QueueKey
from brokerset_spark.topics.options import ReadFrom

GROUP: Final = "TOOLS_CONSUMER"
"""Every broker has this group from its start, so nothing is created for a query, and it consumes nothing."""

ANSWER_SECONDS: Final = 10.0
"""Longest wait for an answer that is not held."""

MESSAGES_MAX: Final = 4096
"""Brokers give less: what they have set, by number and bytes."""


def queue_of(key: QueueKey) -> MessageQueue:
    """The queue under the name that the client knows."""
    return MessageQueue(key.topic, key.broker, key.queue)


async def master_of(instance: ClientInstance, key: QueueKey) -> str:
    """The master of a queue's broker, or who is there in its place. Raises `ClientError`."""
    return _known((await instance.route(key.topic)).reader(key.broker), key)


async def reader(
    instance: ClientInstance, key: QueueKey, read_from: ReadFrom, *, suggested: int = MASTER_ID, turn: int = 0
) -> tuple[str, bool]:
    """Whom to pull from, and whether that is the master. Raises `ClientError`.

    `auto`: whom the broker has suggested, then the master, then slaves; `replica`: slaves first, different
    ones for different queues. `turn`: how many of them have failed.
    """
    replicas = (await instance.route(key.topic)).addresses.get(key.broker, {})
    slaves = sorted(number for number in replicas if number != MASTER_ID)
    first = key.queue % len(slaves) if slaves else 0
    wished = {
        "master": [MASTER_ID],
        "auto": [suggested, MASTER_ID, *slaves],
        "replica": [*slaves[first:], *slaves[:first], MASTER_ID],
    }[read_from]
    there = [number for number in dict.fromkeys(wished) if number in replicas]
    number = there[turn % len(there)] if there else MASTER_ID
    return _known(replicas.get(number), key), number == MASTER_ID


def _known(address: str | None, key: QueueKey) -> str:
    if address is None:
        raise BrokerUnreachable(key.broker, "the name servers know no address of it now")
    return address


async def pull_at(
    instance: ClientInstance,
    address: str,
    key: QueueKey,
    offset: int,
    *,
    most: int = MESSAGES_MAX,
    suspend_ms: int = 0,
) -> PulledRecords:
    """Records from `offset` on. `suspend_ms`: how long the broker may wait for the first. Raises
    `ClientError`, also for an answer that leads nowhere: to go on with it would never end."""
    found = await calls.pull_records(
        instance,
        address,
        group=GROUP,
        queue=queue_of(key),
        queue_offset=offset,
        subscription=SubscriptionData(key.topic),
        messages_max=most,
        suspend_ms=suspend_ms,
        with_subscription=True,
        timeout=suspend_ms / 1000 + ANSWER_SECONDS,
    )
    if found.status is PullStatus.FOUND and found.next_queue_offset <= offset:
        said = f"a pull at {offset} gave records, and {found.next_queue_offset} as the next offset"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, said, address)
    return found


async def mark_at(
    instance: ClientInstance, address: str, key: QueueKey, offset: int, *, suspend_ms: int = 0
) -> tuple[Mark | None, PulledRecords]:
    """The mark of the record at `offset`, None if the broker does not give one, and the answer."""
    found = await pull_at(instance, address, key, offset, most=1, suspend_ms=suspend_ms)
    if found.status is not PullStatus.FOUND:
        return None, found
    try:
        record = decode_record(found.body[: int.from_bytes(found.body[:4], "big")])
    except FormatError:
        return None, found
    if record.queue_offset != offset:
        return None, found
    return Mark(record.store_timestamp, record.body_crc), found
