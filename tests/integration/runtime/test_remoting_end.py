"""A server that ends leaves no connection behind, whenever its peer comes."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from brokerset_runtime.remoting import RemotingServer


@pytest.mark.parametrize("turns", range(6))
def test_who_comes_while_a_server_ends_is_not_left_open(turns: int) -> None:
    """The loop may have accepted a connection that the server hears of only after its end."""

    async def main() -> None:
        server = RemotingServer({})
        port = await server.listen("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port)) as peer:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close(0)
            peer.setblocking(False)
            try:
                end = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1), 5)
            except ConnectionResetError:
                end = b""
            assert end == b""
            assert server.connections == {}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as processes of ours do
        runner.run(main())
