"""Interop suite `pop-consumer`: our `PopConsumer` with a Java broker, and the same with ours."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokerset_client import (
    Admin,
    ConsumeFromWhere,
    ConsumeStatus,
    HandleRefused,
    Later,
    Message,
    PopConsumer,
    PoppedMessage,
    PopSettings,
    Producer,
)
from brokerset_protocol.bodies.metadata import MessageRequestMode, SetMessageRequestMode
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig import stack
from brokerset_rig.request_reply_suite import create
from brokerset_rig.waiting import until

Add = Callable[[str, list[str], float], None]
COUNT = 100
SECONDS_MAX = 90.0


def consumer(namesrv: str, topic: str, group: str, **options: Any) -> PopConsumer:
    """A member of a group that begins at the first message."""
    made = PopConsumer(
        group, namesrv=namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **options
    )
    made.subscribe(topic)
    return made


async def send(namesrv: str, topic: str, keys: int = 1) -> None:
    """`COUNT` messages of each key, in order."""
    await create(namesrv, topic)
    async with Producer("pop-suite", namesrv=namesrv) as producer:
        for key in range(keys):
            for number in range(COUNT):
                body = b"%d" % number
                await producer.send(Message(topic=topic, body=body, sharding_key=f"k{key}"))


async def left(namesrv: str, topic: str, group: str) -> list[str]:
    """What the group still gets; nothing if all is acknowledged."""
    async with consumer(namesrv, topic, group) as member:
        rest = await member.receive(wait=3.0)
    return [f"{len(rest)} messages come again: {rest[0].body!r}"] if rest else []


async def listens(namesrv: str) -> list[str]:
    """Two members with listeners; each tenth message fails once, and comes again after a second."""
    topic, group = "pop-listens", "pop-listens"
    await send(namesrv, topic)
    calls: Counter[bytes] = Counter()

    async def listener(message: PoppedMessage) -> Later | None:
        calls[message.body] += 1
        return Later(after_seconds=1.0) if message.body.endswith(b"0") and calls[message.body] == 1 else None

    async with (
        consumer(namesrv, topic, group, listener=listener) as first,
        consumer(namesrv, topic, group, listener=listener) as second,
    ):
        await until(lambda: first.counts.acked + second.counts.acked >= COUNT, SECONDS_MAX, pause=0.05)
        lost = first.counts.lost + second.counts.lost
    expected = Counter({b"%d" % number: 1 + (not number % 10) for number in range(COUNT)})
    problems = (
        [] if calls == expected else [f"calls differ: {calls - expected} more, {expected - calls} less"]
    )
    return problems + ([f"{lost} are lost"] if lost else []) + await left(namesrv, topic, group)


async def asks(namesrv: str) -> list[str]:
    """`receive`, an invisible time that ends, one that is renewed, and acks of a batch."""
    topic, group = "pop-asks", "pop-asks"
    await send(namesrv, topic)
    settings = PopSettings(invisible_seconds=10.0)
    got: dict[bytes, PoppedMessage] = {}
    async with asyncio.timeout(SECONDS_MAX), consumer(namesrv, topic, group, settings=settings) as member:
        while len(got) < COUNT:
            got |= {message.body: message for message in await member.receive(wait=5.0)}
        given_back, kept = got.pop(b"0"), got.pop(b"1")
        async with member.renewing(kept):
            await asyncio.gather(*(member.ack(message) for message in got.values()))
            await member.change_invisible(given_back, 2.0)
            again: list[PoppedMessage] = []
            while not again:
                again = await member.receive(wait=5.0)
            await asyncio.sleep(max(0.0, 12.0 - 2.0))  # longer than the time of what is renewed
            await member.ack(kept)
        problems = [] if [m.body for m in again] == [b"0"] else [f"{[m.body for m in again]} came again"]
        if again[0].reconsume_times != 1:
            problems.append(f"it came again with {again[0].reconsume_times} failures")
        try:
            await member.ack(again[0])
        except HandleRefused as error:
            problems.append(f"its ack is refused: {error}")
    return problems + await left(namesrv, topic, group)


async def in_order(namesrv: str) -> list[str]:
    """Two ordered members; one message of each key fails once."""
    topic, group = "pop-ordered", "pop-ordered"
    await send(namesrv, topic, keys=4)
    seen: dict[str, list[int]] = {}
    failed: set[str] = set()

    async def listener(message: PoppedMessage) -> ConsumeStatus | Later:
        key = message.properties["__SHARDINGKEY"]
        if message.body == b"50" and key not in failed:
            failed.add(key)
            return Later(after_seconds=1.0)
        seen.setdefault(key, []).append(int(message.body))
        return ConsumeStatus.SUCCESS

    options: dict[str, Any] = {"listener": listener, "ordered": True}
    async with (
        consumer(namesrv, topic, group, **options) as first,
        consumer(namesrv, topic, group, **options) as second,
    ):
        await until(lambda: sum(map(len, seen.values())) >= 4 * COUNT, SECONDS_MAX, pause=0.05)
    return [
        f"{key} is not in order: {numbers}"
        for key, numbers in seen.items()
        if list(dict.fromkeys(numbers)) != list(range(COUNT))
    ] + ([] if first.counts.lost + second.counts.lost == 0 else ["some are lost"])


async def buries(namesrv: str) -> list[str]:
    """What fails too often is in the dead-letter topic, and does not come again."""
    topic, group = "pop-buries", "pop-buries"
    await create(namesrv, topic)
    async with Producer("pop-suite", namesrv=namesrv) as producer:
        await producer.send(Message(topic=topic, body=b"bad"))

    async def listener(_: PoppedMessage) -> Later:
        return Later(after_seconds=1.0)

    settings = PopSettings(max_reconsume_times=1)
    async with consumer(namesrv, topic, group, listener=listener, settings=settings) as member:
        await until(lambda: member.counts.dead == 1, SECONDS_MAX, pause=0.05)
    return await left(namesrv, topic, group)


async def shares(namesrv: str, folder: Path) -> list[str]:
    """A push consumer of Java's that pops, and ours, in one group: each message goes to one of them."""
    topic, group = "pop-shares", "pop-shares"
    await create(namesrv, topic)
    mode = SetMessageRequestMode(topic, group, MessageRequestMode.POP)
    async with Admin(namesrv=namesrv) as admin:
        for broker in (await admin.topic_route(topic)).broker_datas:
            address = broker.broker_addrs[0]
            command = Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode.to_json())
            answer = await admin.instance.call(address, command, 10.0)
            if answer.code != ResponseCode.SUCCESS:
                return [f"the mode of the group is not set: {answer.code} {answer.remark}"]
    out = folder / "java-in-one-group.out"
    environment = {**os.environ, "NAMESRV_ADDR": namesrv, "PEERS_RUN": str(folder), "CLIENT_HEAP": "256m"}
    with out.open("wb") as written:
        java = await asyncio.create_subprocess_exec(
            str(stack.PEERS / "bin" / "pop-push"), f"topic={topic}", f"group={group}",
            stdout=written, stderr=asyncio.subprocess.DEVNULL, stdin=asyncio.subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip
    seen: Counter[str] = Counter()

    def of_java() -> Counter[str]:
        lines = (line.split() for line in out.read_text().splitlines())
        return Counter(words[1] for words in lines if words[0] == "H")

    async def listener(message: PoppedMessage) -> None:
        seen[message.body.decode()] += 1

    sent = 0
    try:
        await until(lambda: "started" in out.read_text(), SECONDS_MAX, pause=0.1)
        # Few in hand, so that there is something left for the other one.
        settings = PopSettings(pop_batch=2, in_hand_max=2)
        async with consumer(namesrv, topic, group, listener=listener, settings=settings):
            async with Producer("pop-suite", namesrv=namesrv) as producer, asyncio.timeout(SECONDS_MAX):
                while sent < COUNT or not (of_java() and seen):
                    await producer.send(Message(topic=topic, body=f"m{sent}".encode()))
                    sent += 1
                    await asyncio.sleep(0.01)
            await until(lambda: len(seen + of_java()) == sent, SECONDS_MAX, pause=0.1)
            await asyncio.sleep(2.0)  # Java's client acks behind the back of its listener
    finally:
        java.kill()
        await java.wait()
    often = {body: count for body, count in (seen + of_java()).items() if count > 1}
    return ([f"handled more than once: {often}"] if often else []) + await left(namesrv, topic, group)


CHECKS = {
    "listeners, and failures that come again": listens,
    "receive, renewals and acks": asks,
    "ordered members": in_order,
    "dead letters": buries,
}


async def check_all(namesrv: str, make: str, folder: Path, add: Add) -> None:
    """All checks side by side."""

    async def one(check: Callable[[str], Any]) -> tuple[list[str], float]:
        began = time.monotonic()
        try:
            return await check(namesrv), time.monotonic() - began
        except Exception as error:  # a check that fails is an outcome of the suite
            return [repr(error)], time.monotonic() - began

    async def shared(namesrv: str) -> list[str]:
        return await shares(namesrv, folder)

    checks = {**CHECKS, "in one group with Java's consumer": shared}
    results = await asyncio.gather(*(one(check) for check in checks.values()))
    for name, (problems, seconds) in zip(checks, results, strict=True):
        add(f"PopConsumer at {'our' if make == 'ours' else 'a Java'} broker: {name}", problems, seconds)


def suite(add: Add) -> None:
    """The same checks on our broker, and on Java's."""
    for make in ("ours", "java"):
        with stack.Workspace(f"pop-consumer-{make}") as folder:
            run(folder, make, add)


def run(folder: Path, make: str, add: Add) -> None:
    """On a broker of one make."""
    ports = stack.free_ports(2, below=2)
    namesrv_of = stack.our_namesrv if make == "ours" else stack.java_namesrv
    broker_of = stack.our_broker if make == "ours" else stack.java_broker
    with namesrv_of(folder, ports[0]) as namesrv, broker_of(folder, ports[1], namesrv.address):
        asyncio.run(check_all(namesrv.address, make, folder, add))
