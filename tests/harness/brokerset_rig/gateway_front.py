"""A server behind a gateway, over real sockets, and requests that are told apart by a number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from brokerset_broker.member.gateway.forwarding import Forwarder
from brokerset_broker.member.gateway.gateway import Gateway
from brokerset_broker.member.role import Role
from brokerset_broker.member.service_mode import Modes, ServiceFacts, decide_mode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_runtime.peer_requests import PoolRequester
from brokerset_runtime.remoting import Connection, ConnectionPool, Handler, RemotingServer, connect
from brokerset_runtime.remoting.connection import Reply

SEND, COMMIT, LOCK, QUERY, PULL, INFO, UNREGISTER = 310, 15, 41, 14, 11, 28, 35
SERVING = Modes()
SWITCHING = decide_mode(ServiceFacts(role=Role.MASTER, switching=True))


def following(port: int) -> Modes:
    return decide_mode(ServiceFacts(role=Role.SLAVE, master_address=f"127.0.0.1:{port}"))


class Front:
    """A server behind a gateway; without handlers of its own it notes what it serves."""

    def __init__(self, handlers: Mapping[int, Handler] | None = None, **gateway: Any) -> None:
        self.served: list[Command] = []
        self.pool = ConnectionPool()
        self.forwarder = Forwarder(PoolRequester(self.pool), **gateway.pop("forwarder", {}))
        noting: dict[int, Handler] = dict.fromkeys(
            (SEND, COMMIT, LOCK, QUERY, PULL, INFO, UNREGISTER), self.note
        )
        self.gateway = Gateway(handlers or noting, forwarder=self.forwarder, **gateway)
        self.server = RemotingServer(self.gateway.handlers, on_close=self.gateway.closed)
        self.port = 0

    def note(self, connection: Connection, command: Command) -> Reply:
        self.served.append(command)
        return command.reply(ext={"n": command.ext.get("n", "")})

    def numbers(self) -> list[str]:
        return [command.ext["n"] for command in self.served]


@asynccontextmanager
async def fronting(
    handlers: Mapping[int, Handler] | None = None, *, port: int = 0, **gateway: Any
) -> AsyncIterator[Front]:
    front = Front(handlers, **gateway)
    front.port = await front.server.listen("127.0.0.1", port)
    try:
        yield front
    finally:
        front.gateway.close()
        await front.forwarder.close()
        await front.server.close(0.5)
        await front.pool.close()


@asynccontextmanager
async def connected(front: Front) -> AsyncIterator[Connection]:
    connection = await connect(f"127.0.0.1:{front.port}")
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


def request(number: int, code: int = SEND, *, oneway: bool = False, binary: bool = False) -> Command:
    return Command(code, {"n": str(number)}, flag=FLAG_ONEWAY if oneway else 0, binary=binary)
