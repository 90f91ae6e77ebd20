"""A connection whose requests are refused again and again is closed, and no other one is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import Connection, RemotingServer, connect, refusals
from brokerset_runtime.remoting.refusals import RefusalBound

HOST = "127.0.0.1"
SECONDS_MAX = 60.0


@asynccontextmanager
async def refusing_server(bound: RefusalBound) -> AsyncIterator[str]:
    """A server that refuses everything; its address."""

    def refuse(connection: Connection, _command: Command) -> None:
        bound.count(connection)
        raise Rejected(ResponseCode.NO_PERMISSION, "no")

    server = RemotingServer({int(RequestCode.GET_BROKER_CONFIG): refuse})
    port = await server.listen(HOST, 0)
    try:
        yield f"{HOST}:{port}"
    finally:
        await server.close()


async def ask(connection: Connection) -> int:
    """The code of an answer."""
    return (await connection.call(Command(code=int(RequestCode.GET_BROKER_CONFIG)), SECONDS_MAX)).code


async def test_the_last_refusal_is_answered_and_then_the_connection_ends() -> None:
    """Another connection goes on, and whoever was closed may connect again."""
    async with refusing_server(RefusalBound(3)) as address:
        bad, other = await connect(address), await connect(address)
        assert [await ask(bad) for _ in range(3)] == [ResponseCode.NO_PERMISSION] * 3
        async with asyncio.timeout(SECONDS_MAX):
            await bad.wait_closed()

        assert await ask(other) == ResponseCode.NO_PERMISSION
        again = await connect(address)
        assert await ask(again) == ResponseCode.NO_PERMISSION
        for each in (other, again):
            each.close()
            await each.wait_closed()


@pytest.mark.parametrize(
    ("most", "window"), [(0, refusals.WINDOW_SECONDS), (3, 0.0)], ids=["no bound", "long ago"]
)
async def test_refusals_that_are_not_too_many_end_nothing(
    monkeypatch: pytest.MonkeyPatch, most: int, window: float
) -> None:
    """Where there is no bound, and where those before are out of the window."""
    monkeypatch.setattr(refusals, "WINDOW_SECONDS", window)
    async with refusing_server(RefusalBound(most)) as address:
        connection = await connect(address)

        assert [await ask(connection) for _ in range(10)] == [ResponseCode.NO_PERMISSION] * 10
        assert connection.is_open

        connection.close()
        await connection.wait_closed()
