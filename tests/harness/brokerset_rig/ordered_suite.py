"""Interop suite `ordered`: the standard Java client with an ordered subject of ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from brokerset_client import Message
from brokerset_client.errors import RequestRefused
from brokerset_client.ordered import HandlingContext, OrderedClient, OrderedMessage
from brokerset_client.subject_admin import SubjectAdmin
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig import stack, waiting

Add = Callable[[str, list[str], float], None]
PARTITIONS, KEYS, MESSAGES = 4, 20, 400
SECONDS_MAX = 60.0
SILENT_SECONDS = 8.0
"""How long a Java consumer is watched that must get nothing; it asks for locks and pulls several times in that."""


class JavaConsumer:
    """An orderly push consumer of a group. A context manager: killed at the end."""

    def __init__(self, namesrv: str, folder: Path, subject: str, group: str) -> None:
        self._out = folder / f"java-{group}.out"
        command = [str(stack.PEERS / "bin" / "orderly"), "mode=consume", f"topic={subject}", f"group={group}"]
        environment = {**os.environ, "NAMESRV_ADDR": namesrv, "PEERS_RUN": str(folder / "client")}
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
            )

    def handled(self) -> list[tuple[str, int]]:
        """Key and sequence of what was handled, in that order."""
        lines = self._out.read_text().splitlines()
        return [
            (key, int(number)) for key, number, *_ in (line.split()[1:] for line in lines if line[:2] == "H ")
        ]

    def started(self) -> bool:
        return "started" in self._out.read_text()

    def __enter__(self) -> JavaConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        await waiting.until(condition, SECONDS_MAX, pause=0.1)
    except TimeoutError:
        raise stack.StackError(f"not within {SECONDS_MAX:g} s: {what}") from None


async def create(controllers: str, subject: str) -> None:
    """Create it as soon as the broker is master."""
    async with SubjectAdmin(controllers) as admin, asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await admin.create_subject(subject, OrderStrategy.STRICT, partitions=PARTITIONS)
                return
            except RequestRefused:
                await asyncio.sleep(0.1)


async def send(client: OrderedClient, subject: str, first: int = 0) -> None:
    async with client.producer() as producer:
        for number in range(first, first + MESSAGES):
            key = str(number % KEYS)
            body = f"{key} {number // KEYS} 0 ".encode()
            await producer.send_async(Message(topic=subject, body=body), key=key)
        await producer.flush()


def disorder(handled: list[tuple[str, int]], expected: int) -> list[str]:
    """What is wrong with what one consumer handled."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in handled:
        by_key[key].append(number)
    problems = [f"key {key}: {numbers}" for key, numbers in by_key.items() if numbers != sorted(numbers)]
    if len(handled) != expected:
        problems.append(f"{len(handled)} messages instead of {expected}")
    return problems


async def run(add: Add, namesrv: str, controllers: str, folder: Path) -> None:
    """All checks, one after the other."""
    subject = "ordered-interop"
    await create(controllers, subject)
    async with OrderedClient(namesrv=namesrv, controllers=controllers) as client:
        await send(client, subject)

        began = time.monotonic()
        with JavaConsumer(namesrv, folder, subject, "java-group") as java:
            await until(lambda: len(java.handled()) >= MESSAGES, "the Java consumer handles all")
            problems = disorder(java.handled(), MESSAGES)
        add(
            "a Java orderly consumer reads a subject, each key in its order",
            problems,
            time.monotonic() - began,
        )

        began = time.monotonic()
        add(
            "a Java producer is refused, with the reason",
            produce(namesrv, folder, subject),
            time.monotonic() - began,
        )

        began = time.monotonic()
        handled: list[tuple[str, int]] = []

        async def handle(message: OrderedMessage, context: HandlingContext) -> None:
            key, number, *_ = message.body.decode().split(" ")
            handled.append((key, int(number)))

        consumer = client.consumer(group="shared-name")
        consumer.subscribe(subject, handle)
        async with consumer:
            await until(lambda: len(handled) >= MESSAGES, "our consumer handles all")
            with JavaConsumer(namesrv, folder, subject, "shared-name") as java:
                await until(java.started, "the Java consumer starts")
                await asyncio.sleep(SILENT_SECONDS)
                await send(client, subject, MESSAGES)
                await until(lambda: len(handled) >= 2 * MESSAGES, "our consumer handles the rest")
                problems = disorder(handled, 2 * MESSAGES)
                if java.handled():
                    problems.append(f"the Java consumer handled {len(java.handled())} messages, too")
        text = "a Java consumer of the same group gets nothing of what sessions own"
        add(text, problems, time.monotonic() - began)


def produce(namesrv: str, folder: Path, subject: str) -> list[str]:
    """Send by the standard producer; what is wrong with how that ended."""
    command = [
        str(stack.PEERS / "bin" / "orderly"),
        "mode=produce",
        f"topic={subject}",
        "keys=4",
        "seconds=1",
    ]
    environment = {**os.environ, "NAMESRV_ADDR": namesrv, "PEERS_RUN": str(folder / "client")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, env=environment, check=False
    )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    problems = []
    if answer["sent"] or not answer["failed"]:
        problems.append(f"it was not refused: {answer}")
    if "is an ordered subject" not in done.stderr:
        problems.append(f"the refusal does not say why: {done.stderr.strip()[-300:]}")
    return problems


def suite(add: Add) -> None:
    """One controller with the name server inside, and one broker."""
    with stack.Workspace("interop-ordered") as folder:
        ports = stack.free_ports(3, below=2)
        with stack.our_controllers(folder, [ports[0]], [ports[1]]) as controllers:
            settings = {
                "enableControllerMode": "true",
                "controllerAddr": controllers.addresses,
                "haListenPort": str(ports[2] + 1),
            }
            with stack.our_broker(folder, ports[2], controllers.name_servers, settings):
                asyncio.run(run(add, controllers.name_servers, controllers.addresses, folder))
