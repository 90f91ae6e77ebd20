"""When answers leave that are made while no chunk of input is served."""

from __future__ import annotations

import asyncio
from typing import Any

from brokerset_protocol.commands import Command, encode
from brokerset_runtime.remoting import Connection


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", len(name)

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)


def opened(in_flight: int) -> tuple[Connection, Transport]:
    connection, transport = Connection({}), Transport()
    made: Any = transport
    connection.connection_made(made)
    connection.in_flight = in_flight
    return connection, transport


def test_an_answer_of_a_callback_leaves_in_the_same_turn_of_the_loop() -> None:
    """It is written behind what was queued before, and later nothing is left to write."""

    async def main() -> None:
        connection, transport = opened(3)
        reply = Command(0, opaque=4)

        connection.answer(b"one")
        assert transport.written == []
        connection.answer_at_once(b"two")
        connection.answer_at_once(reply)

        assert transport.written == [b"onetwo", encode(reply)]
        assert connection.in_flight == 0
        await asyncio.sleep(0)
        assert len(transport.written) == 2

    asyncio.run(main())


def test_an_answer_to_a_closed_connection_is_dropped_and_counted() -> None:
    """Whoever waited is gone, and nothing is in flight any more."""

    async def main() -> None:
        connection, transport = opened(1)
        connection.connection_lost(None)

        connection.answer_at_once(b"late")

        assert (transport.written, connection.in_flight) == ([], 0)

    asyncio.run(main())
