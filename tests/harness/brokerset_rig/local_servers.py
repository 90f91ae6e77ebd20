"""Servers of ours in this process, on free loopback ports and real files, and raw clients: parameters in, a running server out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from brokerset_broker.app import Broker
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record, decode_record
from brokerset_namesrv.app import NameServer
from brokerset_protocol.bodies.heartbeat import ConsumerData, HeartbeatData, MessageModel
from brokerset_protocol.commands import Command
from brokerset_protocol.subscriptions import parse
from brokerset_rig.waiting import until
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, Handlers, connect
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings

HOST = "127.0.0.1"


def broker_settings(folder: Path, **changes: Any) -> BrokerSettings:
    """Of a broker with small files on any port."""
    small: dict[str, Any] = {
        "store_path_root_dir": folder, "bind_address": HOST, "listen_port": 0, "http_port": 0,
        "mapped_file_size_commit_log": 64 * 1024 * 1024, "mapped_file_size_consume_queue": 20 * 10_000,
        "max_hash_slot_num": 1000, "max_index_num": 4000,
    }  # fmt: skip
    return BrokerSettings(**(small | changes))


@asynccontextmanager
async def running_broker(folder: Path, **changes: Any) -> AsyncIterator[Broker]:
    """A broker that serves as long as the block runs; `clock` among the changes is its clock."""
    clock: Clock | None = changes.pop("clock", None)
    broker = Broker(broker_settings(folder, **changes), clock=clock)
    await broker.start()
    running = asyncio.create_task(broker.run())
    try:
        yield broker
    finally:
        await broker.close()
        await running


@asynccontextmanager
async def running_name_server(folder: Path, *, port: int = 0, **changes: Any) -> AsyncIterator[NameServer]:
    """A name server with its files in `folder`."""
    server = NameServer(NamesrvSettings(**({"kv_config_path": folder / "kv.json"} | changes)))
    await server.start(HOST, port, -1)
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.close()


@asynccontextmanager
async def connected(port: int, handlers: Handlers | None = None) -> AsyncIterator[Connection]:
    """A connection to a server of this process."""
    connection = await connect(f"{HOST}:{port}", handlers)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


class Client:
    """One connection with the requests that producers and consumers make."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def call(self, code: int, body: bytes = b"", *, binary: bool = False, **ext: Any) -> Command:
        command = Command(code, {name: str(value) for name, value in ext.items()}, body, version=479)
        command.binary = binary
        return await self.connection.call(command, 20)

    async def create_topic(self, topic: str, queues: int = 4, perm: int = 6, *, attributes: str = "") -> None:
        reply = await self.call(
            17, topic=topic, defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues, perm=perm,
            topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false", attributes=attributes,
        )  # fmt: skip
        assert reply.code == 0, reply.remark

    async def send(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
        binary: bool = False,
        **ext: Any,
    ) -> Command:
        text = encode_properties(properties or {}).decode()
        fields: dict[str, Any] = {
            "a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000,
            "h": 0, "i": text, "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        return await self.call(310, body, binary=binary, **(fields | ext))

    async def send_batch(self, topic: str, bodies: list[bytes], queue_id: int = 0) -> Command:
        body = encode_batch([BatchItem(0, item, b"") for item in bodies])
        return await self.call(
            320,
            body,
            a="pg",
            b=topic,
            c="TBW102",
            d=4,
            e=queue_id,
            f=0,
            g=1,
            h=0,
            i="",
            j=0,
            k="false",
            m="true",
        )

    async def pull(
        self,
        topic: str,
        queue_offset: int,
        *,
        queue_id: int = 0,
        group: str = "cg",
        expression: str | None = "*",
        suspend_ms: int = 0,
        binary: bool = False,
        **ext: Any,
    ) -> Command:
        """`expression` None relies on the group's heartbeat; `suspend_ms` asks for long polling."""
        sys_flag = (4 if expression is not None else 0) | (2 if suspend_ms else 0)
        fields: dict[str, Any] = {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": queue_offset,
            "maxMsgNums": 32, "sysFlag": sys_flag, "commitOffset": 0, "suspendTimeoutMillis": suspend_ms,
            "subscription": expression or "", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        return await self.call(11, binary=binary, **(fields | ext))

    async def heartbeat(
        self,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        version: int = 1,
        model: str = "CLUSTERING",
        client_id: str = "client-1",
    ) -> Command:
        consumer = ConsumerData(
            group_name=group,
            message_model=MessageModel(model),
            subscription_data_set=(parse(topic, expression, version=version),),
        )
        data = HeartbeatData(client_id=client_id, consumer_data_set=(consumer,))
        return await self.call(34, data.to_json())

    async def wait_for(self, topic: str, queue_offset: int = 0, **pull: Any) -> list[Record]:
        """The next messages of a queue, by long polls, however long they take."""
        while True:
            reply = await self.pull(topic, queue_offset, suspend_ms=15_000, **pull)
            if reply.code == 0:
                return records(reply)


def records(reply: Command) -> list[Record]:
    """The messages of an answer to a pull."""
    found: list[Record] = []
    position = 0
    while position < len(reply.body):
        found.append(decode_record(reply.body, position, verify_crc=True))
        position += found[-1].size
    return found


def bodies(reply: Command) -> list[bytes]:
    """The bodies of an answer to a pull."""
    return [record.body for record in records(reply)]


def properties(record: Record) -> dict[str, str]:
    """The properties of a message."""
    return decode_properties(record.properties)


class Setup:
    """Starts brokers on one store folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = records
        self.bodies = bodies
        self.properties = properties
        self.until = until

    @asynccontextmanager
    async def broker(self, **changes: Any) -> AsyncIterator[Broker]:
        async with running_broker(self.folder, **changes) as broker:
            yield broker

    @asynccontextmanager
    async def client(self, broker: Broker) -> AsyncIterator[Client]:
        async with connected(broker.port) as connection:
            yield Client(connection)

    @asynccontextmanager
    async def pair(self, **changes: Any) -> AsyncIterator[tuple[Broker, Client]]:
        async with self.broker(**changes) as broker, self.client(broker) as client:
            yield broker, client
