"""A store with light queues under brokers of both makes, in turns: each goes on where the other stopped."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from brokerset_formats.light_queues import dispatched_queues
from brokerset_protocol.codes import RequestCode
from brokerset_rig import stack
from brokerset_rig.local_servers import Client, connected, records
from brokerset_rig.stores import Add

OFFSETS_MS: Final = 500
JAVA_OFFSETS_SECONDS: Final = 12.0
"""Java writes offsets for the first time 10 s after its start, whatever is set."""

DISPATCH_SECONDS_MAX: Final = 10.0
SETTINGS: Final = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "flushConsumerOffsetInterval": str(OFFSETS_MS),
}
QUEUES: Final = ("%LMQ%a", "%LMQ%b", "%LMQ%$parent$child")
GROUP: Final = "%LMQ%g"
MESSAGES: Final = 12

Expected = dict[str, list[bytes]]
"""Bodies of each light queue, in order."""


def run(add: Add) -> None:
    """Java writes, ours reads all and goes on, Java reads all and goes on, twice; one of each is killed."""
    expected: Expected = {queue: [] for queue in QUEUES}
    with stack.Workspace("light-queues") as folder:
        ports = stack.free_ports(2, below=2)
        with stack.our_namesrv(folder, ports[0]) as namesrv:
            for number, (who, broker, killed) in enumerate(
                [
                    ("Java", stack.java_broker, False),
                    ("ours", stack.our_broker, True),
                    ("Java", stack.java_broker, True),
                    ("ours", stack.our_broker, False),
                    ("Java", stack.java_broker, False),
                ]
            ):
                before = time.monotonic()
                with broker(folder, ports[1], namesrv.address, SETTINGS) as server:
                    seconds = JAVA_OFFSETS_SECONDS if who == "Java" and killed else 3 * OFFSETS_MS / 1000
                    problems = asyncio.run(_turn(ports[1], number, expected, seconds))
                    if killed:
                        server.kill()
                count = sum(map(len, expected.values()))
                add(
                    f"turn {number}: {who} reads all light queues, {count} messages after it",
                    problems,
                    time.monotonic() - before,
                )


async def _turn(port: int, number: int, expected: Expected, offsets_seconds: float) -> list[str]:
    """Check what is there, then send messages and commit an offset; returns what is wrong.

    It lasts until the offset is written, as a broker that is killed has only such.
    """
    async with connected(port) as connection:
        client = Client(connection)
        await client.create_topic("parent", attributes="+message.type=LITE")
        problems = await _differences(client, expected)
        where: dict[str, Any] = {"consumerGroup": GROUP, "topic": QUEUES[0], "queueId": 0}
        if number:
            answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, **where)
            if answer.ext.get("offset") != str(number):
                problems.append(f"the offset of {GROUP} is {answer.ext.get('offset')}, not {number}")
        for message in range(MESSAGES):
            chosen = [queue for bit, queue in enumerate(QUEUES[:2]) if message & (1 << bit)]
            properties = {"INNER_MULTI_DISPATCH": ",".join(chosen)} if chosen else {}
            if message % 4 == 0:
                chosen, properties = [QUEUES[2]], {"__LITE_TOPIC": "child"}
            body = b"%d-%d" % (number, message)
            sent = await client.send("parent", body, properties=properties)
            if sent.code:
                problems.append(f"a send was refused: {sent.code} {sent.remark}")
            for queue in chosen:
                expected[queue].append(body)
        await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, **where, commitOffset=number + 1)

        found = await _differences(client, expected)
        deadline = time.monotonic() + DISPATCH_SECONDS_MAX  # Java dispatches a moment after its answer
        while found and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            found = await _differences(client, expected)
        await asyncio.sleep(offsets_seconds)
        problems += found
    return problems


async def _differences(client: Client, expected: Expected) -> list[str]:
    """Where light queues, or what their records say about them, differ from what was sent."""
    problems = []
    for queue, bodies in expected.items():
        found: list[bytes] = []
        while len(found) < len(bodies):
            batch = records(await client.pull(queue, len(found), group=GROUP))
            if not batch:
                break
            for record in batch:
                places = dict(dispatched_queues(record.topic.encode(), record.properties))
                if places.get(queue) != len(found):
                    problems.append(f"{queue}: number {len(found)} says {places}")
                found.append(record.body)
        if found != bodies:
            problems.append(f"{queue}: {len(found)} of {len(bodies)} messages, or others: {found[-3:]}")
        for code, wanted in ((RequestCode.GET_MAX_OFFSET, len(bodies)), (RequestCode.GET_MIN_OFFSET, 0)):
            answer = await client.call(code, topic=queue, queueId=0)
            if answer.ext.get("offset") != str(wanted):
                problems.append(f"{queue}: {code.name} says {answer.ext.get('offset')}, not {wanted}")
    return problems
