"""A broker that gives its store out over `/store/…`, and ways to ask it: for tests of both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, Final

import aiohttp
import yarl

from brokerset_broker.app import Broker
from brokerset_rig.local_servers import Setup
from brokerset_rig.stack import free_port
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.http_folder import HttpFolder

SEGMENT: Final = 256 * 1024
TOPIC: Final = "tøpic with a blank"


@asynccontextmanager
async def streaming(setup: Setup, messages: int = 200, **changes: Any) -> AsyncIterator[tuple[Broker, str]]:
    """A broker with messages in several files of its log, and the address of its stream."""
    small: dict[str, Any] = {
        "http_port": free_port(), "store_stream_enable": True, "mapped_file_size_commit_log": SEGMENT,
        "max_message_size": 65_536, "mapped_file_size_consume_queue": 20 * 100, "max_index_num": 150,
        "max_store_stream_byte_in_second": 2**30,
    }  # fmt: skip
    async with setup.broker(**(small | changes)) as broker:
        await setup.until(lambda: broker.http_port != 0)
        for number in range(messages):
            append(broker, number)
        yield broker, f"http://127.0.0.1:{broker.http_port}/store"


def append(broker: Broker, number: int) -> int:
    """One more message; the offset of its record."""
    appended = broker.store.append(
        TOPIC,
        number % 2,
        bytes([number % 256]) * 5_000,
        b"KEYS\x01key-%d\x02" % number,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=bytes(8),
    )
    return appended.offset


def confirm_only(broker: Broker, end: int) -> None:
    """Let the store be one whose replicas have nothing at or behind `end`."""
    broker.store.confirmation.replicated = True
    broker.store.confirmation.appends = False
    broker.store.confirmation.load(end)


def read_file(folder: StoreFolder, path: str, size: int) -> bytes:
    """Up to `size` bytes of a file, in odd pieces."""
    parts = []
    position = 0
    while position < size:
        piece = bytearray(min(30_011, size - position))
        count = folder.read_into(path, position, memoryview(piece))
        parts.append(bytes(piece[:count]))
        position += count
        if count < len(piece):
            break
    return b"".join(parts)


async def ask(url: str, call: Callable[[HttpFolder], Any], token: str | None = None) -> Any:
    """What a call on the stream's folder gives."""

    def in_thread() -> Any:
        with closing(HttpFolder(url, token=token)) as folder:
            return call(folder)

    return await asyncio.to_thread(in_thread)


async def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body; `url` goes out as it is, without being made tidy."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(yarl.URL(url, encoded=True), headers=headers) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.read()


async def raw(port: int, target: str) -> tuple[int, bytes]:
    """Status and whole answer, for paths that a client library would never send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer
