"""Interop suite `request-reply`: the standard Java client and ours ask each other, on brokers of both makes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from brokerset_client import Admin, ConsumeFromWhere, Message, MessageView, Producer, Replier, TopicConfig
from brokerset_client.errors import ClientError
from brokerset_rig import stack, waiting

Add = Callable[[str, list[str], float], None]
COUNT = 40
LARGE_BYTES = 20_000
SECONDS_MAX = 90.0


class JavaSide:
    """`tests/java/rpc`: a context manager, killed at the end."""

    def __init__(self, namesrv: str, folder: Path, name: str, *arguments: str) -> None:
        self._out = folder / f"rpc-{name}.out"
        environment = {
            **os.environ,
            "NAMESRV_ADDR": namesrv,
            "PEERS_RUN": str(folder / "client"),
            "CLIENT_HEAP": "256m",
        }
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [str(stack.PEERS.parent / "java" / "rpc"), *arguments],
                stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, env=environment,
            )  # fmt: skip

    def lines(self, word: str) -> list[str]:
        """What it said behind this word, in the order of lines."""
        lines = self._out.read_text(errors="replace").splitlines()
        return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]

    def __enter__(self) -> JavaSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


async def create(namesrv: str, topic: str) -> None:
    """Create a topic as soon as the broker is registered."""
    async with asyncio.timeout(SECONDS_MAX), Admin(namesrv=namesrv) as admin:
        while True:
            try:
                await admin.create_topic(TopicConfig(topic, 4, 4))
                await admin.topic_route(topic)
                return
            except ClientError:
                await asyncio.sleep(0.1)


async def ours_asks_java(namesrv: str, folder: Path, make: str) -> list[str]:
    """Many requests at once, one with a large reply, to a Java consumer."""
    topic = "rpc-to-java"
    await create(namesrv, topic)
    bodies = [b"ask-%d" % number for number in range(COUNT)] + [b"x" * LARGE_BYTES]
    with JavaSide(namesrv, folder, f"reply-{make}", "mode=reply", f"topic={topic}", "group=rpc-java") as java:
        await waiting.until(lambda: java.lines("started"), SECONDS_MAX, pause=0.1)
        async with Producer("rpc-ours", namesrv=namesrv) as producer:
            answers = await asyncio.gather(
                *(producer.request(Message(topic=topic, body=body), SECONDS_MAX) for body in bodies),
                return_exceptions=True,
            )
        problems = [f"Java's replier: {line}" for line in java.lines("failed")]
    for body, answer in zip(bodies, answers, strict=True):
        if isinstance(answer, BaseException):
            problems.append(f"{body[:20]!r}: {answer!r}")
        elif answer.body != b"java:" + body:
            problems.append(f"{body[:20]!r} got {answer.body[:40]!r}")
    return problems


async def java_asks_ours(namesrv: str, folder: Path, make: str) -> list[str]:
    """Requests of a Java producer, four at once, to a replier of ours."""
    topic = "rpc-to-ours"
    await create(namesrv, topic)

    async def answer(request: MessageView) -> bytes:
        return b"ours:" + request.body

    replier = Replier(
        "rpc-ours", answer, namesrv=namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    replier.subscribe(topic)
    async with replier:
        with JavaSide(
            namesrv, folder, f"request-{make}", "mode=request", f"topic={topic}", f"count={COUNT}"
        ) as java:
            await waiting.until(lambda: java.process.poll() is not None, SECONDS_MAX, pause=0.1)
            problems = [f"Java's requester: {line}" for line in java.lines("failed")]
            got = sorted(java.lines("reply"))
    if got != sorted(f"ours:ask-{number}" for number in range(COUNT)):
        problems.append(f"{len(got)} of {COUNT} replies: {got[:5]}")
    if replier.replied != COUNT or replier.undelivered:
        problems.append(f"{replier.replied} replies taken, {replier.undelivered} not")
    return problems


def suite(add: Add) -> None:
    """Both directions on our broker, and on Java's."""
    for make in ("ours", "java"):
        with stack.Workspace(f"request-reply-{make}") as folder:
            ports = stack.free_ports(2, below=2)
            namesrv_of = stack.our_namesrv if make == "ours" else stack.java_namesrv
            broker_of = stack.our_broker if make == "ours" else stack.java_broker
            with namesrv_of(folder, ports[0]) as namesrv, broker_of(folder, ports[1], namesrv.address):
                for what, check in (
                    ("our client asks Java's", ours_asks_java),
                    ("Java's client asks ours", java_asks_ours),
                ):
                    began = time.monotonic()
                    problems = asyncio.run(check(namesrv.address, folder, make))
                    add(
                        f"{what}, on {'our' if make == 'ours' else 'a Java'} broker",
                        problems,
                        time.monotonic() - began,
                    )
