"""Timer messages that wait in a store while it goes from a broker of one make to one of the other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from brokerset_formats.properties import decode_properties
from brokerset_protocol.codes import ResponseCode
from brokerset_rig import replicated_group, stack
from brokerset_rig.local_servers import Client
from brokerset_rig.store_reading import read_commit_log
from brokerset_runtime.remoting import connect

Add = Callable[[str, list[str], float], None]

TOPIC: Final = "it-timer-store"
SETTINGS: Final = {"recallMessageEnable": "true", "mappedFileSizeTimerLog": "10485760"}
COUNT: Final = 40
RECALLED: Final = 4
DELAY_S: Final = 20
"""Longer than it takes to stop one broker and start the other."""

SPREAD_S: Final = 8
POLL_S: Final = 12
"""Slaves of either make have asked how far the timers are by then."""

WAIT_S: Final = 60
LATE_MS_MAX: Final = 15_000


@dataclass
class Sent:
    """What was put into the store, by its body."""

    due_ms: dict[str, int] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)

    @property
    def expected(self) -> set[str]:
        return set(self.due_ms) - self.recalled


async def _put(address: str, prefix: str, sent: Sent) -> list[str]:
    """Send messages with delays, and recall some; what was not answered as it should be."""
    problems = []
    connection = await connect(address)
    try:
        client = Client(connection)
        await client.create_topic(TOPIC, queues=2)
        for number in range(COUNT):
            body, seconds = f"{prefix}-{number}", DELAY_S + number % SPREAD_S
            now_ms = time.time_ns() // 1_000_000
            key = f"{prefix}{number:028d}"
            reply = await client.send(
                TOPIC, body.encode(), properties={"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": key}
            )
            if reply.code != ResponseCode.SUCCESS:
                problems.append(f"send: {reply.code} {reply.remark}")
                continue
            sent.due_ms[body] = now_ms + seconds * 1000
            if number < RECALLED:
                handle = reply.ext.get("recallHandle", "")
                answer = await client.call(370, producerGroup="pg", topic=TOPIC, recallHandle=handle)
                if answer.code != ResponseCode.SUCCESS or answer.ext.get("msgId") != key:
                    problems.append(f"recall: {answer.code} {answer.remark} {answer.ext}")
                sent.recalled.add(body)
    finally:
        connection.close()
        await connection.wait_closed()
    return problems


async def _until_delivered(address: str, count: int) -> int:
    """Wait until the topic has so many messages, and its last time is over; how many it has then."""
    connection = await connect(address)
    try:
        client = Client(connection)
        deadline = time.monotonic() + WAIT_S
        while True:
            replies = [await client.call(30, topic=TOPIC, queueId=queue) for queue in range(2)]
            found = sum(int(reply.ext.get("offset", 0)) for reply in replies)
            if found >= count or time.monotonic() > deadline:
                await asyncio.sleep(1.5)  # what comes twice comes soon
                return found
            await asyncio.sleep(0.2)
    finally:
        connection.close()
        await connection.wait_closed()


def _problems(store: Path, sent: Sent, twice_max: int) -> list[str]:
    """What the store says of messages that were lost, early, late, recalled, or came too often."""
    counts: Counter[str] = Counter()
    problems = []
    for each in read_commit_log(store):
        record = each.record
        if record.topic != TOPIC:
            continue
        body = record.body.decode()
        if body not in sent.due_ms:
            continue
        counts[body] += 1
        late_ms = record.store_timestamp - sent.due_ms[body]
        if late_ms < 0:
            problems.append(f"{body} is early by {-late_ms} ms")
        elif late_ms > LATE_MS_MAX:
            problems.append(f"{body} is late by {late_ms} ms")
        missing = {"TIMER_OUT_MS", "REAL_TOPIC", "TIMER_DEQUEUE_MS"} - set(
            decode_properties(record.properties)
        )
        if missing:
            problems.append(f"{body} lacks {missing}")
    problems += [f"{body} was lost" for body in sorted(sent.expected) if not counts[body]]
    problems += [f"{body} was recalled, and came" for body in sorted(sent.recalled) if counts[body]]
    often = [body for body, count in counts.items() if count > 1]
    if len(often) > twice_max:
        problems.append(f"{len(often)} came more than once, first {often[0]}")
    return problems[:10]


def run(add: Add) -> None:
    """Each make puts messages, the other goes on with them, in one store and in a group of both."""
    _stores(add)
    _group(add)


def _group(add: Add) -> None:
    """The master goes from Java's broker to ours and back while messages wait."""
    with replicated_group.group("timer-groups", 2) as found:
        java = found.add("Java", SETTINGS)
        ours = found.add("ours", SETTINGS)
        for first, second in ((java, ours), (ours, java)):
            began, sent = time.monotonic(), Sent()
            found.wait_in_sync()
            prefix = f"{first.make}-"
            problems = asyncio.run(_put(f"127.0.0.1:{first.port}", prefix, sent))
            time.sleep(POLL_S)
            found.elect(second)
            master, _ = found.master()
            if master is not second:
                problems.append(f"{master} leads")
            before = _messages(second.server.folder)
            asyncio.run(_until_delivered(f"127.0.0.1:{second.port}", before + len(sent.expected)))
            problems += _problems(second.server.folder / "broker-0" / "store", sent, 0)
            what = f"{COUNT} timer messages wait at {first.make}'s master, and {second.make}'s delivers them"
            add(what, problems, time.monotonic() - began)


def _messages(folder: Path) -> int:
    return sum(each.record.topic == TOPIC for each in read_commit_log(folder / "broker-0" / "store"))


def _stores(add: Add) -> None:
    makes = {"ours": stack.our_broker, "Java": stack.java_broker}
    for first, second, kills in (("Java", "ours", False), ("ours", "Java", False), ("Java", "ours", True)):
        began = time.monotonic()
        sent = Sent()
        with stack.Workspace("timer-stores") as folder:
            ports = stack.free_ports(2, below=2)
            with stack.our_namesrv(folder, ports[0]) as namesrv:
                with makes[first](folder, ports[1], namesrv.address, SETTINGS) as broker:
                    problems = asyncio.run(_put(broker.address, "a", sent))
                    time.sleep(2.5)  # both makes write wheel and check point each second
                    if kills:
                        broker.kill()
                with makes[second](folder, ports[1], namesrv.address, SETTINGS) as broker:
                    problems += asyncio.run(_put(broker.address, "b", sent))
                    asyncio.run(_until_delivered(broker.address, len(sent.expected)))
            problems += _problems(folder / "broker-0" / "store", sent, COUNT if kills else 0)
        how = "is killed" if kills else "is stopped"
        add(
            f"{first} {how} with {COUNT} timer messages, {second} delivers them",
            problems,
            time.monotonic() - began,
        )
