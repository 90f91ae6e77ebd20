"""Local ports of `kubectl brokerset port-forward`: bytes to brokers, requests to name servers.

Clients on this machine need no TLS: the bytes are encrypted here for pods that take TLS alone. Who speaks TLS
itself gets through as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from brokerset_cli.kubernetes.forward_targets import LOOPBACK
from brokerset_cli.kubernetes.pod_streams import PodStream, Way, stream_of
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
from brokerset_runtime.tls import TlsError
from brokerset_runtime.tls.transport import HANDSHAKE_BYTE

CONNECTIONS_MAX: Final = 200
"""Connections at once on one local port; one more is closed. Each has a websocket to the API server."""

CHUNK_BYTES: Final = 64 * 1024
ASK_SECONDS: Final = 3.0
"""Longest time that a name server has to answer before another one is asked."""


class PortForwarder:
    """A local port whose connections lead to the pod that `way` names at that moment."""

    def __init__(self, way: Callable[[], Way | None], failed: Callable[[str], None]) -> None:
        """`failed` is told why a connection could not be forwarded."""
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
            if (way := self._way()) is None:
                return
            first = b""
            if way.trust is not None:
                # Clients of RocketMQ speak first; what they begin with says whether they speak TLS. Nobody
                # is connected to before: a pod gives up who does not begin a handshake soon.
                first = await reader.read(CHUNK_BYTES)
                if not first:
                    return
            async with way.tunnel as socket:
                pod = await stream_of(way, socket, plain=first[:1] == bytes([HANDSHAKE_BYTE]))
                if first:
                    await pod.send(first)
                await self._relay(reader, writer, pod)
        except CommandFailed as error:
            self._failed(str(error))
        except TlsError as error:
            self._failed(f"a connection by TLS ended: {error}")
        except (OSError, aiohttp.ClientError):
            pass  # one of the two ends has gone
        finally:
            writer.close()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pod: PodStream,
    ) -> None:
        """Copy both ways until one side ends."""
        ways = [asyncio.create_task(_to_pod(reader, pod)), asyncio.create_task(_to_client(pod, writer))]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        for way in done:
            way.result()


async def _to_client(pod: PodStream, writer: asyncio.StreamWriter) -> None:
    async for data in pod.received():
        writer.write(data)
        await writer.drain()


async def _to_pod(reader: asyncio.StreamReader, pod: PodStream) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await pod.send(data)


class NameServerForwarder:
    """A local name server: passes reads on to one of the cluster, and rewrites addresses in the answers."""

    def __init__(self, ports: Callable[[], list[int]], addresses: Callable[[], ExternalAddresses]) -> None:
        """`ports` of this machine lead to name servers, the best first."""
        self._ports = ports
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
        for port in self._ports():
            try:
                connection = await self._pool.get(f"{LOOPBACK}:{port}")
                return await connection.call(Command(command.code, command.ext, command.body), ASK_SECONDS)
            except (OSError, RequestTimeout, LocalProtocolError) as error:
                problem = str(error)
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"no name server of the cluster answers: {problem}")
