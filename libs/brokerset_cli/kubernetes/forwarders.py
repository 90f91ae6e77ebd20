"""Local ports of `kubectl brokerset port-forward`: bytes to brokers as they are, requests to name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from brokerset_cli.kubernetes.forward_targets import LOOPBACK
from brokerset_cli.kubernetes.tunnels import Tunnel
from brokerset_cli.output import CommandFailed
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_protocol.external_routes import SERVED, ExternalAddresses, external_body
from brokerset_runtime.remoting import (
    Connection,
    ConnectionPool,
    RemotingServer,
    RequestTimeout,
    ServerLimits,
)

CONNECTIONS_MAX: Final = 200
"""Connections at once on one local port; one more is closed. kubectl has a stream for each."""

CHUNK_BYTES: Final = 64 * 1024
ASK_SECONDS: Final = 3.0
"""Longest time that a name server has to answer before another one is asked."""

PATHS_FAIL: Final = (OSError, CommandFailed)
"""What a use of a way to a pod ends with when there is none."""


class PortForwarder:
    """A local port whose connections lead to the pod that `way` names at that moment."""

    def __init__(self, way: Callable[[], Tunnel | None], failed: Callable[[str], None]) -> None:
        """`failed` hears why a connection could not be forwarded."""
        self._way = way
        self._failed = failed
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, port: int) -> int:
        """Listen; 0 takes a free port. Raises `OSError` when it is taken."""
        self._server = await asyncio.start_server(self._accepted, LOOPBACK, port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    def disconnect(self) -> None:
        """Close all connections: what they lead to is not what new ones lead to."""
        for task in list(self._running):
            task.cancel()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        self.disconnect()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._running) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.create_task(self._forward(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            way = self._way()
            if way is None:
                return
            try:
                port = await way.port()
                pod_reader, pod_writer = await asyncio.open_connection(LOOPBACK, port)
            except PATHS_FAIL as error:
                self._failed(str(error))
                return
            try:
                await _relay((reader, writer), (pod_reader, pod_writer))
            finally:
                pod_writer.close()
        finally:
            writer.close()


async def _relay(
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    pod: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy both ways until one side ends."""
    ways = {asyncio.create_task(_copy(client[0], pod[1])), asyncio.create_task(_copy(pod[0], client[1]))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


class NameServerForwarder:
    """A local name server: passes reads on to one of the cluster, and rewrites addresses in the answers."""

    def __init__(self, ways: Callable[[], list[Tunnel]], addresses: Callable[[], ExternalAddresses]) -> None:
        """`ways` lead to name servers, the best first."""
        self._ways = ways
        self._addresses = addresses
        self._pool = ConnectionPool()
        self._server = RemotingServer(
            dict.fromkeys(SERVED, self._serve), limits=ServerLimits(connections_max=CONNECTIONS_MAX)
        )

    async def start(self, port: int) -> int:
        """Listen; 0 takes a free port. Raises `OSError` when it is taken."""
        return await self._server.listen(LOOPBACK, port)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        await self._server.close(0)
        await self._pool.close()

    async def _serve(self, connection: Connection, command: Command) -> Command:
        answer = await self._ask(command)
        if answer.code != ResponseCode.SUCCESS:
            return command.reply(answer.code, answer.remark, ext=answer.ext, body=answer.body)
        body = external_body(command.code, answer.body, self._addresses())
        if body is None:
            remark = f"no broker of topic {command.ext.get('topic')} is forwarded to"
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        return command.reply(remark=answer.remark, ext=answer.ext, body=body)

    async def _ask(self, command: Command) -> Command:
        problem = "there is no name server"
        for way in self._ways():
            port = None
            try:
                port = await way.port()
                connection = await self._pool.get(f"{LOOPBACK}:{port}")
                return await connection.call(Command(command.code, command.ext, command.body), ASK_SECONDS)
            except (*PATHS_FAIL, RequestTimeout, LocalProtocolError) as error:
                problem = str(error)
                if port is not None:
                    await way.renew(port)
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"no name server of the cluster answers: {problem}")
