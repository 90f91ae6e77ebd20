"""The unmodified Java client of RocketMQ in a pod: an image with its jars, and a writer that keeps an account."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.kubernetes.pod_process import PodProcess
from tests.e2e.kubernetes.rig import HERE, ROOT, Client, Cluster, client_pod, run, until

IMAGE: Final = "brokerset-java-client:e2e"
POD: Final = "java"
FETCH: Final = ROOT / "tests" / "peers" / "bin" / "fetch"
FETCH_SECONDS: Final = 900.0
PROGRAM: Final = ROOT / "tests" / "java" / "Flow.java"
COMPILE_SECONDS: Final = 120.0

LEFT_OUT: Final = ("osx", "windows", "aarch", "riscv", "rocksdb")
"""Jars with one of these in their names are not needed by a client on Linux."""

PAUSE_MS: Final = 5
"""Between two messages; each waits for its acknowledgement."""

JAVA: Final = (
    "java",
    "-Xms64m",
    "-Xmx128m",
    "-Duser.home=/tmp",
    "-Drocketmq.client.logRoot=/tmp/logs",
    "-Drocketmq.client.logLevel=WARN",
    "-cp",
    "/opt/rocketmq/classes:/opt/rocketmq/lib/*",
)

READ_BACK: Final = """
import asyncio, sys
from brokerset_client import PullConsumer

async def main(namesrv, topic):
    async with PullConsumer("scanners", namesrv=namesrv, auto_commit=False) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    print(message.body.decode())
                offset = result.next_queue_offset

asyncio.run(main(*sys.argv[1:]))
"""


def has_java_client() -> bool:
    """Whether this machine can make the image: it has a JDK and Maven, or the jars are there already."""
    if os.environ.get("BROKERSET_E2E_INSTALLED"):
        return True
    return bool(shutil.which("javac") and shutil.which("mvn"))


def load_image(cluster: Cluster) -> None:
    """Build the image with the jars of the release that `tests/peers/pom.xml` names."""
    if os.environ.get("BROKERSET_E2E_INSTALLED"):
        return
    jars = Path(run([str(FETCH)], seconds=FETCH_SECONDS).strip().splitlines()[-1])
    folder = cluster.scratch / "java-client"
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lib", "classes"):
        (folder / part).mkdir(parents=True)
    shutil.copy(HERE / "java_image" / "Dockerfile", folder)
    for jar in sorted(jars.glob("*.jar")):
        if not any(word in jar.name for word in LEFT_OUT):
            shutil.copy(jar, folder / "lib")
    javac = ["javac", "-nowarn", "-d", str(folder / "classes"), "-cp", f"{jars}/*", str(PROGRAM)]
    run(javac, seconds=COMPILE_SECONDS)
    cluster.provider.build_other(folder, IMAGE)


@dataclass(slots=True)
class Silence:
    """The longest time without an acknowledgement, and when it ended (milliseconds since 1970)."""

    gap_ms: int = 0
    ended_at_ms: int = 0


@dataclass(slots=True)
class JavaWriter:
    """The standard producer with its default settings, one message after another; it sends no message again."""

    client: Client
    """The pod of ours that reads back what was acknowledged."""

    topic: str
    acked: set[str] = field(default_factory=set)
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _process: PodProcess | None = None
    _last_ack_ms: int = 0
    _prefix: str = ""

    def start(self) -> None:
        """Make the pod and the topic, and wait for the first acknowledgement."""
        cluster, namespace = self.client.cluster, self.client.namespace
        cluster.apply(client_pod(POD, IMAGE, cluster.provider.pull_policy), namespace=namespace)
        cluster.wait_pod(POD, namespace)
        self.client.create_topic(self.topic)
        self._prefix = f"java-{time.time_ns()}"
        options = [f"namesrv={self.client.namesrv}", "mode=produce", f"topic={self.topic}"]
        self._process = PodProcess(
            cluster,
            namespace,
            POD,
            *JAVA,
            "Flow",
            *options,
            f"pause={PAUSE_MS}",
            f"prefix={self._prefix}",
        )
        until("the Java client sends", lambda: self.look().ended_at_ms, 60)

    def look(self) -> Silence:
        """The longest silence since the last look; what still lasts is not in it."""
        assert self._process is not None, "it was started"
        found = Silence()
        for line in self._process.lines_now():
            kind, _, rest = line.partition(" ")
            if kind == "ack":
                at, body = rest.split(" ", 1)
                at_ms = int(at)
                gap_ms = at_ms - (self._last_ack_ms or at_ms)
                if gap_ms >= found.gap_ms:
                    found = Silence(gap_ms, at_ms)
                self._last_ack_ms = at_ms
                self.acked.add(body)
            elif kind == "fail":
                self.failed += 1
                reason = rest.split(" ", 3)[3]
                self.reasons[reason[:120]] += 1
        return found

    def goes_on(self, messages: int = 50, seconds: float = 60.0) -> Silence:
        """Wait until so many more are acknowledged; returns the longest silence since the look before."""
        found, wanted = Silence(), len(self.acked) + messages

        def check() -> bool:
            nonlocal found
            seen = self.look()
            if seen.gap_ms > found.gap_ms:
                found = seen
            return len(self.acked) >= wanted

        until("sends of the Java client are acknowledged", check, seconds, pause=0.1)
        return found

    def finish(self) -> None:
        """Stop, and read back every message that was acknowledged."""
        self.end()
        stored = set(self.client.python(READ_BACK, self.client.namesrv, self.topic, seconds=240).split())
        lost = sorted(self.acked - stored)
        assert self.acked, "nothing was acknowledged"
        assert not lost, f"{len(lost)} of {len(self.acked)} acknowledged messages are lost: {lost[:10]}"

    def end(self) -> None:
        """End the client."""
        if self._process is not None:
            self._process.end()
            self.look()
            self._process = None
