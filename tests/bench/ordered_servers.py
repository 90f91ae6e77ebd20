"""What `ordered` measures: servers of one make, and how its producers and consumers are started."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brokerset_client.admin import Admin
from brokerset_client.errors import RequestRefused
from brokerset_client.subject_admin import SubjectAdmin
from brokerset_formats.config import TopicConfig
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig import stack

PERMISSION_SECONDS = 30
MASTER_SECONDS_MAX = 30.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Servers:
    """Running servers."""

    command: list[str]
    """Of producers and consumers, before KEY=VALUE."""

    environment: dict[str, str]
    create: Callable[[str, int], None]
    takeover_seconds: int
    """How long a run has to be to see a takeover."""

    def topic(self, queues: int) -> str:
        """A new topic or subject."""
        name = f"ordered-{next(_numbers)}"
        self.create(name, queues)
        return name

    def spawn(self, mode: str, **options: object) -> subprocess.Popen[str]:
        """Start a producer or a consumer."""
        given = [f"{name}={value}" for name, value in options.items()]
        return subprocess.Popen(
            [*self.command, f"mode={mode}", *given],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )


@contextmanager
def java_servers(folder: Path) -> Iterator[Servers]:
    """A Java name server and a Java broker."""
    ports = stack.free_ports(2, below=2)
    with (
        stack.java_namesrv(folder, ports[0]) as namesrv,
        stack.java_broker(folder, ports[1], namesrv.address) as broker,
    ):

        def create(topic: str, queues: int) -> None:
            asyncio.run(_create_topic(namesrv.address, broker.address, topic, queues))

        environment = {"NAMESRV_ADDR": namesrv.address, "PEERS_RUN": str(folder)}
        yield Servers([str(stack.PEERS / "bin" / "orderly")], environment, create, 40)


async def _create_topic(namesrv: str, broker: str, topic: str, queues: int) -> None:
    async with Admin(namesrv=namesrv) as admin:
        config = TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
        await admin.create_topic(config, address=broker)
        await admin.wait_for_route(topic, queues)


@contextmanager
def our_servers(folder: Path) -> Iterator[Servers]:
    """One controller with the name server inside, and one broker."""
    ports = stack.free_ports(3, below=2)
    with stack.our_controllers(folder, [ports[0]], [ports[1]]) as controllers:
        settings = {
            "enableControllerMode": "true",
            "controllerAddr": controllers.addresses,
            "haListenPort": str(ports[2] + 1),
        }
        with stack.our_broker(folder, ports[2], controllers.name_servers, settings):

            def create(topic: str, queues: int) -> None:
                asyncio.run(_create_subject(controllers.addresses, topic, queues))

            worker = [sys.executable, str(Path(__file__).with_name("ordered_worker.py"))]
            options = [f"namesrv={controllers.name_servers}", f"controllers={controllers.addresses}"]
            yield Servers([*worker, *options], {}, create, PERMISSION_SECONDS + 15)


async def _create_subject(controllers: str, subject: str, partitions: int) -> None:
    """Create it as soon as the broker has become master."""
    async with SubjectAdmin(controllers) as admin, asyncio.timeout(MASTER_SECONDS_MAX):
        while True:
            try:
                await admin.create_subject(subject, OrderStrategy.STRICT, partitions=partitions)
                return
            except RequestRefused:
                await asyncio.sleep(0.1)
