"""The listener for clients outside the cluster: reads alone, with the addresses that brokers have there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.external_routes import SERVED, ExternalAddresses, external_body
from brokerset_runtime.remoting import Connection, Handler, RemotingServer, ServerLimits
from brokerset_runtime.remoting.connection import Handlers
from brokerset_runtime.tls import Tls

log = structlog.get_logger(__name__)

RELOAD_SECONDS: Final = 1.0
"""How often the file of addresses is read again; it has a line for each broker and is on a local disk."""

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A ConfigMap has at most 1 MiB; a larger file counts as unreadable."""


class ExternalListener:
    """A second port of a name server: `start`, `run` until cancelled, `close`."""

    def __init__(
        self,
        handlers: Handlers,
        path: Path,
        ha_addresses: Callable[[], Mapping[str, str]],
        *,
        connections_max: int,
        tls: Tls | None = None,
    ) -> None:
        """`handlers` are those for clients inside; `path` is a JSON file, see `ExternalAddresses`.

        `ha_addresses` tells that of each group's master.
        """
        self._ha_addresses = ha_addresses
        self._path = path
        self._content: bytes | None = None
        self._unread: str | None = None
        self.addresses = ExternalAddresses()
        """As last read; a file that cannot be read changes nothing."""

        served: dict[int, Handler] = {code: self._rewriting(handlers[code]) for code in SERVED}
        self.server = RemotingServer(served, limits=ServerLimits(connections_max=connections_max), tls=tls)

    async def start(self, host: str, port: int) -> int:
        """Read the addresses and listen; returns the port. Raises `OSError` when the port is taken."""
        await self._reload()
        return await self.server.listen(host, port)

    async def run(self) -> None:
        """Follow the file of addresses and close idle connections, for as long as this task runs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.server.sweep_idle())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await self._reload()

    async def _reload(self) -> None:
        try:
            content = await asyncio.to_thread(_read, self._path)
            if content == self._content:
                return
            self.addresses = ExternalAddresses.from_json(content)
        except (OSError, Rejected) as error:
            if self._unread != str(error):
                self._unread = str(error)
                log.warning(
                    "addresses for outside clients cannot be read; those known stay", reason=str(error)
                )
            return
        self._content, self._unread = content, None
        log.info(
            "addresses for outside clients",
            masters=len(self.addresses.masters),
            brokers=len(self.addresses.brokers),
        )

    def _rewriting(self, inner: Handler) -> Handler:
        def serve(connection: Connection, command: Command) -> Command:
            reply = inner(connection, command)
            assert isinstance(reply, Command), "name servers answer reads at once"
            if reply.code != ResponseCode.SUCCESS:
                return reply
            body = external_body(command.code, reply.body, self.addresses.following(self._ha_addresses()))
            if body is None:
                return command.reply(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"no broker of topic {command.ext.get('topic')} has an address outside the cluster (yet)",
                )
            reply.body = body
            return reply

        return serve


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise OSError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return content
