"""Reads queues through name servers, from one offset to another, and tells what is there; runs in a pod.

    python queue_reader.py '{"namesrv": …, "group": …, "queues": [[topic, number, from, to], …]}'

One line of JSON for each queue: name of its broker, what the group has committed, where the queue ends, and its
messages. Without `to` a queue is read to its end. Nothing is committed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any, Final

from brokerset_client import MessageView, PullConsumer
from brokerset_formats.records import SysFlag
from brokerset_runtime.logs import configure_logs

READ_SECONDS_MAX: Final = 60.0


def shown(message: MessageView) -> dict[str, Any]:
    """A message as Java's client sees it: the body is unpacked, and the flag of that is gone."""
    return {
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag & ~SysFlag.COMPRESSED,
        "bodySize": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "properties": dict(message.properties),
    }


async def read(
    consumer: PullConsumer, topic: str, number: int, first: int, end: int | None
) -> dict[str, Any]:
    """What is in a queue that the name servers know."""
    queue = next(each for each in await consumer.queues(topic) if each.queue_id == number)
    newest = await consumer.max_offset(queue)
    found: list[dict[str, Any]] = []
    offset, end = first, newest if end is None else end
    while offset < min(end, newest):
        result = await consumer.pull(queue, offset)
        found += [shown(message) for message in result.messages if message.queue_offset < end]
        if result.next_queue_offset <= offset:
            raise ValueError(f"{queue} gives nothing at {offset}, and ends at {newest}: {result.status}")
        offset = result.next_queue_offset
    return {
        "topic": topic,
        "queueId": number,
        "brokerName": queue.broker_name,
        "committed": await consumer.committed(queue),
        "end": newest,
        "messages": found,
    }


async def read_all(given: dict[str, Any]) -> None:
    """Tell one queue after another."""
    async with (
        asyncio.timeout(READ_SECONDS_MAX),
        PullConsumer(given["group"], namesrv=given["namesrv"], auto_commit=False) as consumer,
    ):
        for topic, number, first, end in given["queues"]:
            sys.stdout.write(json.dumps(await read(consumer, topic, number, first, end)) + "\n")


if __name__ == "__main__":
    configure_logs("error", json=False)
    asyncio.run(read_all(json.loads(sys.argv[1])))
