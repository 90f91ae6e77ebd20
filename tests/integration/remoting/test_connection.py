"""Sessions over real sockets: framing, replies in all their kinds, and every limit."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, FRAME_SIZE_MAX, Command, CommandReader, encode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.replies import OVERLOADED, REMARK_SIZE_MAX
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import (
    DEFERRED,
    Connection,
    ConnectionClosed,
    ConnectionLimits,
    Handler,
    RemotingServer,
    RequestTimeout,
    ServerLimits,
    connect,
)
from brokerset_runtime.remoting.connection import Reply

ECHO, LATER, SLOW, FAIL, REJECT, BIG, RAW, SILENT, LENGTHY = range(900, 909)
BIG_BYTES = 256 * 1024


class Endpoint:
    """A server with a handler of every kind."""

    def __init__(self, limits: ServerLimits) -> None:
        self.held: list[tuple[Connection, Command]] = []
        self.served = 0
        self.gate = asyncio.Event()
        handlers: dict[int, Handler] = {
            ECHO: self._echo,
            LATER: self._later,
            SLOW: self._slow,
            FAIL: self._fail,
            REJECT: self._reject,
            BIG: lambda _connection, command: command.reply(body=bytes(BIG_BYTES)),
            RAW: lambda _connection, command: encode(command.reply(remark="raw")),
            SILENT: lambda _connection, _command: None,
            LENGTHY: self._lengthy,
        }
        self.server = RemotingServer(handlers, limits=limits)

    def _echo(self, _connection: Connection, command: Command) -> Reply:
        self.served += 1
        return command.reply(ext=dict(command.ext), body=command.body)

    def _later(self, connection: Connection, command: Command) -> Reply:
        self.held.append((connection, command))
        return DEFERRED

    async def _slow(self, _connection: Connection, command: Command) -> Command:
        await self.gate.wait()
        return command.reply(remark="slow")

    def _fail(self, _connection: Connection, _command: Command) -> Reply:
        raise ZeroDivisionError("nobody expected this")

    def _lengthy(self, _connection: Connection, _command: Command) -> Reply:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "r" * 1_000_000)

    def _reject(self, _connection: Connection, _command: Command) -> Reply:
        raise Rejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")


@asynccontextmanager
async def serving(limits: ServerLimits | None = None) -> AsyncIterator[tuple[Endpoint, str]]:
    endpoint = Endpoint(limits or ServerLimits())
    port = await endpoint.server.listen("127.0.0.1", 0)
    try:
        yield endpoint, f"127.0.0.1:{port}"
    finally:
        await endpoint.server.close(0.2)


async def test_requests_arrive_whole_however_the_stream_is_cut() -> None:
    """One byte at a time, and everything in one piece."""

    async with serving() as (_, address):
        host, _, port = address.partition(":")
        requests = b"".join(encode(Command(ECHO, {"n": str(n)}, b"b" * n, opaque=n)) for n in range(5))
        for step in (1, 7, len(requests)):
            reader, writer = await asyncio.open_connection(host, int(port))
            for start in range(0, len(requests), step):
                writer.write(requests[start : start + step])
                await writer.drain()
                if step < 100:
                    await asyncio.sleep(0)
            parser = CommandReader()
            replies: list[Command] = []
            while len(replies) < 5:
                replies += parser.feed(await reader.read(4096))
            assert [(r.opaque, r.ext["n"], r.body) for r in replies] == [
                (n, str(n), b"b" * n) for n in range(5)
            ]
            writer.close()
            await writer.wait_closed()


async def test_every_kind_of_handler_answers() -> None:
    async with serving() as (endpoint, address):
        connection = await connect(address)
        endpoint.gate.set()

        assert (await connection.call(Command(ECHO, body=b"x"), 5)).body == b"x"
        assert (await connection.call(Command(RAW), 5)).remark == "raw"
        assert (await connection.call(Command(SLOW), 5)).remark == "slow"
        rejected = await connection.call(Command(REJECT), 5)
        assert (rejected.code, rejected.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        failed = await connection.call(Command(FAIL), 5)
        assert failed.code == ResponseCode.SYSTEM_ERROR
        assert failed.remark == "ZeroDivisionError: nobody expected this"
        lengthy = await connection.call(Command(LENGTHY), 5)
        assert lengthy.remark == "r" * REMARK_SIZE_MAX
        unknown = await connection.call(Command(9999), 5)
        assert (unknown.code, unknown.remark) == (3, " request type 9999 not supported")
        connection.close()


async def test_a_deferred_answer_comes_when_the_handler_is_ready() -> None:
    """Other requests of the same connection are served meanwhile."""

    async with serving() as (endpoint, address):
        connection = await connect(address)
        held = connection.start_call(Command(LATER))
        await connection.call(Command(ECHO), 5)
        assert not held.done()

        peer, command = endpoint.held[0]
        assert peer.in_flight == 1
        peer.answer(command.reply(remark="now"))

        assert (await held).remark == "now"
        assert peer.in_flight == 0
        connection.close()


async def test_an_answer_for_a_closed_connection_is_dropped() -> None:
    async with serving() as (endpoint, address):
        connection = await connect(address)
        future = connection.start_call(Command(LATER))
        await until(lambda: bool(endpoint.held))
        connection.abort()
        await until(lambda: not endpoint.server.connections)

        peer, command = endpoint.held[0]
        peer.answer(command.reply())

        with pytest.raises(ConnectionClosed):
            await future


async def test_a_oneway_request_gets_no_answer_of_any_kind() -> None:
    async with serving() as (endpoint, address):
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for code in (ECHO, RAW, FAIL, REJECT, SILENT, 9999):
            writer.write(encode(Command(code, opaque=7, flag=FLAG_ONEWAY)))
        writer.write(encode(Command(ECHO, opaque=8)))
        replies: list[Command] = []
        parser = CommandReader()
        while not replies:
            replies += parser.feed(await reader.read(4096))

        assert [reply.opaque for reply in replies] == [8]
        assert endpoint.served == 2
        writer.close()
        await writer.wait_closed()


async def test_too_many_requests_in_flight_are_refused_and_the_others_stay() -> None:
    limits = ServerLimits(connection=ConnectionLimits(in_flight_max=3))
    async with serving(limits) as (endpoint, address):
        connection = await connect(address)
        held = [connection.start_call(Command(LATER)) for _ in range(3)]
        refused = await connection.call(Command(LATER), 5)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == OVERLOADED

        for peer, command in endpoint.held:
            peer.answer(command.reply())
        await asyncio.gather(*held)

        assert (await connection.call(Command(ECHO), 5)).code == 0
        connection.close()


async def test_a_peer_that_does_not_read_stops_being_served_until_it_reads() -> None:
    """Its answers wait in bounded memory; when it reads, all of them come."""

    async with serving() as (endpoint, address):
        host, _, port = address.partition(":")
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, (host, int(port)))
        count = 200
        requests = b"".join(encode(Command(BIG, opaque=n)) for n in range(count))
        await loop.sock_sendall(raw, requests)
        await until(lambda: len(endpoint.server.connections) == 1)
        peer = next(iter(endpoint.server.connections.values()))
        await until(lambda: peer.unsent_bytes > 0)
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert peer.unsent_bytes < 4 * 1024 * 1024

        parser = CommandReader()
        opaques: list[int] = []
        while len(opaques) < count:
            opaques += [reply.opaque for reply in parser.feed(await loop.sock_recv(raw, 1 << 20))]
        assert opaques == list(range(count))
        raw.close()


async def test_a_peer_that_never_reads_pushed_data_is_aborted() -> None:
    """Notifications are not asked for, so only the limit on unread bytes stops them."""

    limits = ServerLimits(connection=ConnectionLimits(outgoing_max=2 * 1024 * 1024))
    async with serving(limits) as (endpoint, address):
        host, _, port = address.partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: len(endpoint.server.connections) == 1)
        peer = next(iter(endpoint.server.connections.values()))
        while endpoint.server.connections:
            peer.notify(Command(40, body=bytes(BIG_BYTES)))
            await asyncio.sleep(0)
        writer.close()


async def test_one_connection_too_many_is_closed_and_counted() -> None:
    async with serving(ServerLimits(connections_max=2)) as (endpoint, address):
        first, second = await connect(address), await connect(address)
        third = await connect(address)
        await third.wait_closed()

        assert endpoint.server.refused == 1
        assert (await first.call(Command(ECHO), 5)).code == 0
        second.close()
        await until(lambda: len(endpoint.server.connections) == 1)
        fourth = await connect(address)
        assert (await fourth.call(Command(ECHO), 5)).code == 0
        first.close()
        fourth.close()


async def test_idle_connections_are_closed_but_not_those_with_a_request_in_flight() -> None:
    async with serving(ServerLimits(idle_seconds_max=0.3)) as (endpoint, address):
        sweeper = asyncio.create_task(endpoint.server.sweep_idle())
        idle, waiting = await connect(address), await connect(address)
        held = waiting.start_call(Command(LATER))
        await until(lambda: bool(endpoint.held))

        await idle.wait_closed()

        assert waiting.is_open
        peer, command = endpoint.held[0]
        peer.answer(command.reply())
        assert (await held).code == 0
        sweeper.cancel()
        waiting.close()


async def test_a_frame_that_does_not_end_is_given_up_though_bytes_trickle_in() -> None:
    """Whole frames that come slowly keep their connection, however long it lives."""

    async with serving(ServerLimits(frame_seconds_max=0.4)) as (endpoint, address):
        sweeper = asyncio.create_task(endpoint.server.sweep_idle())
        host, _, port = address.partition(":")
        slow_reader, slow = await asyncio.open_connection(host, int(port))
        _, steady = await asyncio.open_connection(host, int(port))
        frame = encode(Command(ECHO, body=bytes(1000)))
        steady.write(frame[:10])
        ended = asyncio.create_task(slow_reader.read())

        while not ended.done():
            slow.write(b"\x00")
            steady.write(frame[10:] + frame[:10])
            await asyncio.wait([ended], timeout=0.02)

        assert await ended == b""
        assert endpoint.server.protocol_errors == 1
        assert endpoint.served > 0
        assert len(endpoint.server.connections) == 1
        sweeper.cancel()
        slow.transport.abort()
        steady.transport.abort()


async def test_a_frame_that_waits_for_its_peer_to_read_is_not_given_up() -> None:
    """While nothing is read, it is not the peer who lets the frame wait."""

    async with serving() as (endpoint, address):
        host, _, port = address.partition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        await until(lambda: len(endpoint.server.connections) == 1)
        peer = next(iter(endpoint.server.connections.values()))
        writer.write(encode(Command(ECHO))[:10])
        await until(lambda: peer.unfinished_since is not None)
        begun = peer.unfinished_since
        while peer.unsent_bytes < 2 * 1024 * 1024:
            peer.notify(Command(40, body=bytes(BIG_BYTES)))
            await asyncio.sleep(0)

        assert peer.unfinished_since == begun
        writer.write(encode(Command(ECHO))[10:] + encode(Command(ECHO))[:10])
        await until(lambda: peer.unfinished_since is None)
        writer.transport.abort()


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x02\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x04null",
        b"\xff" * 64,
    ],
)
async def test_unreadable_bytes_close_the_connection_and_harm_nobody_else(junk: bytes) -> None:
    async with serving() as (endpoint, address):
        good = await connect(address)
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(junk)

        assert await reader.read() == b""
        writer.close()
        await until(lambda: endpoint.server.protocol_errors == 1)
        assert (await good.call(Command(ECHO), 5)).code == 0
        good.close()


async def test_half_a_frame_is_waited_for_and_a_lost_connection_forgets_it() -> None:
    async with serving() as (endpoint, address):
        host, _, port = address.partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        frame = encode(Command(ECHO, body=bytes(1000)))
        writer.write(frame[:500])
        await writer.drain()
        await until(lambda: len(endpoint.server.connections) == 1)
        writer.close()
        await until(lambda: not endpoint.server.connections)

        assert endpoint.served == 0
        assert endpoint.server.protocol_errors == 0


async def test_a_call_without_an_answer_times_out_and_the_connection_lives() -> None:
    async with serving() as (_, address):
        connection = await connect(address)
        with pytest.raises(RequestTimeout):
            await connection.call(Command(LATER), 0.05)
        assert (await connection.call(Command(ECHO), 5)).code == 0
        connection.close()


async def test_a_closing_server_lets_requests_in_flight_finish() -> None:
    async with serving() as (endpoint, address):
        connection = await connect(address)
        held = connection.start_call(Command(LATER))
        await until(lambda: bool(endpoint.held))
        closing = asyncio.create_task(endpoint.server.close(5))
        await asyncio.sleep(0.05)
        peer, command = endpoint.held[0]
        peer.answer(command.reply(remark="in time"))

        assert (await held).remark == "in time"
        await closing
        await connection.wait_closed()
        with pytest.raises(ConnectionClosed):
            await connect(address)


async def test_a_listening_socket_can_be_handed_over() -> None:
    async with serving() as (endpoint, _):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        port = await endpoint.server.listen_on(listener)
        connection = await connect(f"127.0.0.1:{port}")
        assert (await connection.call(Command(ECHO), 5)).code == 0
        connection.close()


async def test_two_peers_that_both_send_more_than_fits_do_not_wait_for_each_other() -> None:
    """The answers are read although the requests cannot be written yet."""

    async with serving() as (_, address):
        connection = await connect(address)
        bodies = 48
        answers = [connection.start_call(Command(ECHO, body=bytes(1024 * 1024))) for _ in range(bodies)]

        sizes = [len((await answer).body) for answer in answers]

        assert sizes == [1024 * 1024] * bodies
        connection.close()


async def test_oneway_requests_are_served_while_the_peer_does_not_read() -> None:
    """They make no output; those behind a request that waits keep their place."""

    async with serving() as (endpoint, address):
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        await until(lambda: len(endpoint.server.connections) == 1)
        peer = next(iter(endpoint.server.connections.values()))
        while peer.unsent_bytes < 2 * 1024 * 1024:
            peer.notify(Command(40, body=bytes(BIG_BYTES)))
            await asyncio.sleep(0)

        writer.write(encode(Command(ECHO, flag=FLAG_ONEWAY)))
        await until(lambda: endpoint.served == 1)
        writer.write(encode(Command(ECHO)) + encode(Command(ECHO, flag=FLAG_ONEWAY)))
        await asyncio.sleep(0.05)

        assert endpoint.served == 1
        while endpoint.served < 3:
            await reader.read(1 << 20)
        writer.transport.abort()


async def test_a_closed_connection_whose_peer_does_not_read_ends_nevertheless() -> None:
    """Closing waits for the peer for a limited time, or descriptors and memory would stay permanently."""

    limits = ServerLimits(connection=ConnectionLimits(close_seconds_max=0.1))
    async with serving(limits) as (endpoint, address):
        host, _, port = address.partition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        await until(lambda: len(endpoint.server.connections) == 1)
        peer = next(iter(endpoint.server.connections.values()))
        while peer.unsent_bytes < 8 * 1024 * 1024:
            peer.notify(Command(40, body=bytes(BIG_BYTES)))
            await asyncio.sleep(0)

        peer.close()
        assert endpoint.server.connections
        await peer.wait_closed()

        assert not endpoint.server.connections
        writer.transport.abort()


async def test_an_answer_that_fits_no_frame_is_replaced_by_the_reason() -> None:
    """At once and deferred: the one who asked does not wait in vain."""

    async with serving() as (endpoint, address):
        connection = await connect(address)
        held = connection.start_call(Command(LATER))
        await until(lambda: bool(endpoint.held))
        peer, command = endpoint.held[0]

        peer.answer(command.reply(body=bytes(FRAME_SIZE_MAX)))

        answer = await held
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(FRAME_SIZE_MAX) in (answer.remark or "")
        assert peer.in_flight == 0
        connection.close()


async def test_a_failing_listener_of_the_end_does_not_leave_waiters_behind() -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))

    def on_close(_connection: Connection) -> None:
        raise ZeroDivisionError("a bug of the owner")

    async with serving() as (_, address):
        connection = await connect(address, on_close=on_close)
        connection.abort()
        await connection.wait_closed()
    assert [type(failure["exception"]) for failure in failures] == [ZeroDivisionError]


async def test_a_server_that_ends_lets_idle_connections_go_while_others_are_served() -> None:
    """Who has nothing in flight need not wait for the others before it looks for another server."""

    async with serving() as (endpoint, address):
        busy, idle = await connect(address), await connect(address)
        waiting = asyncio.create_task(busy.call(Command(SLOW), 10))
        await idle.call(Command(ECHO), 5)
        await until(lambda: any(each.in_flight for each in endpoint.server.connections.values()))

        ending = asyncio.create_task(endpoint.server.close(10))
        await until(lambda: not idle.is_open)
        assert not ending.done()
        assert busy.is_open
        endpoint.gate.set()
        assert (await waiting).remark == "slow"
        await ending
