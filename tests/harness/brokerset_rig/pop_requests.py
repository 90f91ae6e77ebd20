"""POP requests of group `g` to one broker over a raw connection, for topic `t`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from brokerset_broker.app import Broker
from brokerset_formats.pop.handles import Handle
from brokerset_formats.pop.offset_infos import parse_message_offsets, parse_start_offsets
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record, decode_record
from brokerset_protocol.bodies import BatchAck, BatchAckMessages
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Client, Setup

RETRY = "%RETRY%g_t"


def running(setup: Setup, **changes: Any) -> AbstractAsyncContextManager[Broker]:
    """A broker after whose restart invisible times go on without a margin."""
    return setup.broker(pop_clock_skew_ms=0, **changes)


def append(broker: Broker, *bodies: str, queue_id: int = 0, tags: str = "a") -> None:
    """Store messages of the topic."""
    for body in bodies:
        broker.store.append(
            "t", queue_id, body.encode(), encode_properties({"TAGS": tags}), flag=0, sys_flag=0,
            born_timestamp=5, born_host=bytes(8),
        )  # fmt: skip


async def pop(client: Client, **fields: object) -> Command:
    """A pop of any queue, which does not wait."""
    header: dict[str, object] = {
        "consumerGroup": "g", "topic": "t", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000,
        "pollTime": 0, "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    ext: dict[str, Any] = {name: str(value) for name, value in (header | fields).items()}
    return await client.call(RequestCode.POP_MESSAGE, **ext)


async def pop_in_order(client: Client, attempt: str, **fields: object) -> Command:
    """An ordered pop of queue 0."""
    return await pop(client, **{"queueId": 0, "order": "true", "attemptId": attempt} | fields)


async def ack(client: Client, handle: Handle, topic: str = "t", group: str = "g") -> int:
    """The code of the answer."""
    answer = await client.call(
        RequestCode.ACK_MESSAGE, consumerGroup=group, topic=topic, queueId=str(handle.queue_id),
        extraInfo=handle.encode(), offset=str(handle.queue_offset),
    )  # fmt: skip
    return answer.code


async def change(client: Client, handle: Handle, invisible_ms: int) -> int:
    """The code of the answer."""
    answer = await client.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, consumerGroup="g", topic="t", queueId=str(handle.queue_id),
        extraInfo=handle.encode(), offset=str(handle.queue_offset), invisibleTime=str(invisible_ms),
    )  # fmt: skip
    return answer.code


async def ack_batch(client: Client, *acks: tuple[Handle, tuple[int, ...]]) -> Command:
    """Ack messages, by queue offset, of the check points that handles name."""
    entries = [
        BatchAck(
            "g", "t", handle.start_offset, handle.queue_id, handle.revive_queue, handle.pop_time,
            handle.visible_time - handle.pop_time, BatchAck.bits_of(handle.start_offset, offsets),
        )
        for handle, offsets in acks
    ]  # fmt: skip
    body = BatchAckMessages("broker-a", tuple(entries)).to_json()
    return await client.call(RequestCode.BATCH_ACK_MESSAGE, body=body)


def records(answer: Command) -> list[Record]:
    """The messages of an answer."""
    body, found = answer.body, []
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(decode_record(body[:size]))
        body = body[size:]
    return found


def bodies(answer: Command) -> list[str]:
    """Their bodies."""
    return [record.body.decode() for record in records(answer)]


def handles(answer: Command) -> list[Handle]:
    """What acks them."""
    ext = answer.ext
    starts = parse_start_offsets(ext["startOffsetInfo"])
    return [
        Handle(
            starts[flag, queue_id], int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]),
            flag, "broker-a", queue_id, offset,
        )
        for (flag, queue_id), offsets in parse_message_offsets(ext["msgOffsetInfo"]).items()
        for offset in offsets
    ]  # fmt: skip
