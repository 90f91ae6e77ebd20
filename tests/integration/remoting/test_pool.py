"""One connection for each address, however many want it, and none after the pool is closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from brokerset_protocol.commands import Command
from brokerset_rig.steady_time import SteadyLoop, SteadyUvloop
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RemotingServer, connect
from brokerset_runtime.remoting.pool import split_address

ECHO = 900


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer({ECHO: lambda _connection, command: command.reply(body=command.body)})
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.close(0.2)


@asynccontextmanager
async def silent_address() -> AsyncIterator[str]:
    """An address that neither accepts nor refuses: its queue of connections is full."""
    with socket.socket() as listener, socket.socket() as filler, socket.socket() as another:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in (filler, another):
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_callers_share_one_connection() -> None:
    """Also those that come while it is being made."""

    pool = ConnectionPool()
    async with serving() as (server, address):
        first, *others = await asyncio.gather(*(pool.get(address) for _ in range(5)))

        assert all(other is first for other in others)
        assert await pool.get(address) is first is pool.peek(address)
        assert (await first.call(Command(ECHO, body=b"x"), 5)).body == b"x"
        assert len(server.connections) == 1
        await pool.close()


async def test_callers_share_one_failure() -> None:
    """A dead address costs everybody one time-out, not one after the other."""

    pool = ConnectionPool()
    loop = asyncio.get_running_loop()
    async with silent_address() as address:
        began = loop.time()
        outcomes = await asyncio.gather(*(pool.get(address, 0.3) for _ in range(10)), return_exceptions=True)

        assert all(isinstance(outcome, ConnectionClosed) for outcome in outcomes)
        assert loop.time() - began < 1.5
        await pool.close()


async def test_a_caller_that_gives_up_does_not_disturb_the_others() -> None:
    pool = ConnectionPool()
    async with serving() as (_, address):
        quitter = asyncio.create_task(pool.get(address))
        stayer = asyncio.create_task(pool.get(address))
        await asyncio.sleep(0)
        quitter.cancel()

        assert (await stayer).is_open
        assert quitter.cancelled()
        await pool.close()


async def test_a_lost_connection_is_told_and_made_anew() -> None:
    lost: list[str] = []
    ended = asyncio.Event()

    def on_close(address: str) -> None:
        lost.append(address)
        ended.set()

    pool = ConnectionPool(on_close=on_close)
    async with serving() as (server, address):
        first = await pool.get(address)
        await until(lambda: len(server.connections) == 1)
        next(iter(server.connections.values())).abort()
        await ended.wait()

        assert lost == [address]
        assert pool.peek(address) is None
        second = await pool.get(address)
        assert second is not first
        assert second.is_open
        await pool.close()


async def test_a_closed_pool_leaves_nothing_open() -> None:
    """Neither what is connected, nor what is being connected; who asks later is refused."""

    pool = ConnectionPool()
    async with serving() as (server, address), silent_address() as silent:
        connection = await pool.get(address)
        waiting = asyncio.create_task(pool.get(silent))
        await asyncio.sleep(0)

        await pool.close()

        assert not connection.is_open
        with pytest.raises(ConnectionClosed, match="closed"):
            await waiting
        with pytest.raises(ConnectionClosed, match="closed"):
            await pool.get(address)
        await until(lambda: not server.connections)


async def test_what_is_queued_is_sent_before_the_pool_is_closed() -> None:
    """A goodbye is the last thing that a client sends."""

    arrived: list[bytes] = []
    server = RemotingServer({ECHO: lambda _connection, command: arrived.append(command.body)})
    port = await server.listen("127.0.0.1", 0)
    pool = ConnectionPool()
    connection = await pool.get(f"127.0.0.1:{port}")
    connection.notify(Command(ECHO, body=b"goodbye"))

    await pool.close()

    await until(lambda: bool(arrived))
    await server.close(0.2)
    assert arrived == [b"goodbye"]


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_what_is_no_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(address)


@pytest.mark.parametrize("loop_factory", [SteadyLoop, SteadyUvloop])
async def test_a_refused_connection_is_told_in_words() -> None:
    """Without what asyncio and its loops add, each in its own way."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionClosed) as caught:
            await connect(address)
    assert str(caught.value) == f"cannot connect to {address}: Connection refused"


def test_addresses_of_both_families_are_read() -> None:
    assert split_address("127.0.0.1:9876") == ("127.0.0.1", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)
