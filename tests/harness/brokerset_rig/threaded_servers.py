"""A name server and a broker on a loop in a thread, and all messages of a topic: for tests without a loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from brokerset_broker.app import Broker
from brokerset_client.messages import MessageView
from brokerset_client.pull_consumer import PullConsumer
from brokerset_rig.local_servers import HOST, Client, connected, running_broker, running_name_server

T = TypeVar("T")
SECONDS = 60.0


class ThreadedServers:
    """Servers that run until the block around them ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker, name_servers: str) -> None:
        self._loop = loop
        self.broker = broker
        self.name_servers = name_servers

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does `work` on the servers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Make a topic."""

        async def create() -> None:
            async with connected(self.broker.port) as connection:
                await Client(connection).create_topic(topic, queues)

        self.run(create())

    def messages(self, topic: str) -> list[MessageView]:
        """All messages of a topic, each queue in its order."""
        return self.run(read_all(self.name_servers, topic))


async def read_all(name_servers: str, topic: str) -> list[MessageView]:
    """All messages of a topic that can be read now, each queue in its order."""
    async with PullConsumer("reader", namesrv=name_servers) as consumer:
        found: list[MessageView] = []
        for queue in await consumer.queues(topic):
            position, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while position < end:
                result = await consumer.pull(queue, position)
                found.extend(result.messages)
                position = result.next_queue_offset
        return found


@contextlib.contextmanager
def threaded_servers(
    folder: Path, name_server: Mapping[str, Any] | None = None, **changes: Any
) -> Iterator[ThreadedServers]:
    """A name server with the settings `name_server`, and one broker with the settings `changes`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="servers of a test", daemon=True)
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def start() -> ThreadedServers:
        server = await stack.enter_async_context(running_name_server(folder, **(name_server or {})))
        address = f"{HOST}:{server.port}"
        broker = await stack.enter_async_context(
            running_broker(folder / "store", namesrv_addr=address, **changes)
        )
        return ThreadedServers(loop, broker, address)

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(SECONDS)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()
