"""Requests that were deferred and are handed to their handlers again, or ended without an answer."""

from __future__ import annotations

import asyncio

import uvloop

from brokerset_protocol.commands import FLAG_ONEWAY, Command, encode
from brokerset_runtime.remoting import DEFERRED, Connection, Handler, RemotingServer, connect
from brokerset_runtime.remoting.connection import Reply

CODE = 900


def test_deferred_requests_begin_anew_with_the_handlers_of_now() -> None:
    """In the given order, their answers in one piece; the count of requests in flight stays right."""

    async def main() -> None:
        held: list[tuple[Connection, Command]] = []

        def defer(connection: Connection, command: Command) -> Reply:
            held.append((connection, command))
            return DEFERRED

        handlers: dict[int, Handler] = {CODE: defer}
        server = RemotingServer(handlers)
        port = await server.listen("127.0.0.1", 0)
        connection = await connect(f"127.0.0.1:{port}")
        futures = [connection.start_call(Command(CODE, {"n": str(n)})) for n in range(4)]
        connection.send(encode(Command(CODE, {"n": "4"}, flag=FLAG_ONEWAY)))
        while len(held) < 5:  # noqa: ASYNC110  # the handler tells nobody
            await asyncio.sleep(0.001)
        peer = held[0][0]
        seen: list[str] = []

        def raw(_connection: Connection, command: Command) -> Reply:
            seen.append(command.ext["n"])
            return encode(command.reply(remark=command.ext["n"]))

        assert peer.in_flight == 5
        peer.finish(held[3][1], held[3][1].reply(remark="ended"))
        peer.finish(held[4][1], held[4][1].reply(remark="never sent"))
        handlers[CODE] = raw
        peer.serve_deferred([command for _, command in held[:3]])

        async with asyncio.timeout(5):
            replies = await asyncio.gather(*futures)
        assert [reply.remark for reply in replies] == ["0", "1", "2", "ended"]
        assert seen == ["0", "1", "2"]
        assert peer.in_flight == 0
        connection.close()
        await connection.wait_closed()
        await server.close(0.1)
        peer.in_flight = 1
        peer.serve_deferred([held[0][1]])
        assert (seen, peer.in_flight) == (["0", "1", "2"], 0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
