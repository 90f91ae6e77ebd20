"""A lane beside the handlers of a connection: who serves which request of a chunk, and in which order."""

from __future__ import annotations

import asyncio

from brokerset_protocol.commands import Command, CommandReader, encode
from brokerset_runtime.remoting import Connection, ConnectionLimits
from brokerset_runtime.remoting.connection import LANE_MISSES_MAX

PLAIN, OTHER = 1, 2
BROKEN = b"\x00\x00\x00\x04\x02\x00\x00\x00"


class Transport(asyncio.Transport):
    """Keeps what is written, each write by itself; tells the connection to pause from `high` bytes on."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._high = 1 << 30
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        if len(data) >= self._high:
            self._connection.pause_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Served:
    """A connection whose lane serves the requests with the code `PLAIN`, and what was done to it."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.by: list[tuple[str, int]] = []
        self.asked = 0
        handlers = {PLAIN: self._handle, OTHER: self._handle}
        self.connection = Connection(handlers, limits=limits or ConnectionLimits(), lane=self._lane)
        self.transport = Transport(self.connection)
        self.connection.connection_made(self.transport)

    def _handle(self, _connection: Connection, command: Command) -> Command:
        self.by.append(("handler", command.opaque))
        return command.reply()

    def _lane(self, connection: Connection, data: bytes) -> int:
        self.asked += 1
        done = 0
        while done < len(data):
            size = 4 + int.from_bytes(data[done : done + 4], "big")
            command = CommandReader().feed(data[done : done + size])
            if not command or command[0].code != PLAIN:
                break
            self.by.append(("lane", command[0].opaque))
            connection.send(encode(command[0].reply()))
            done += size
        return done

    @property
    def answered(self) -> list[int]:
        """The requests that were answered, in this order."""
        return [answer.opaque for answer in CommandReader().feed(b"".join(self.transport.written))]


def chunk(*codes: int) -> bytes:
    """Requests with these codes, numbered from 0."""
    return b"".join(encode(Command(code, opaque=number)) for number, code in enumerate(codes))


async def test_the_lane_goes_on_behind_a_request_that_it_declined() -> None:
    """The handlers serve that request alone; all answers leave in order, with one write."""
    served = Served()

    served.connection.data_received(chunk(PLAIN, OTHER, PLAIN, PLAIN, OTHER))

    assert served.by == [("lane", 0), ("handler", 1), ("lane", 2), ("lane", 3), ("handler", 4)]
    assert served.answered == [0, 1, 2, 3, 4]
    assert len(served.transport.written) == 1


async def test_a_request_that_is_declined_alone_costs_one_question() -> None:
    """Nothing stands behind it that the lane could serve."""
    served = Served()

    served.connection.data_received(chunk(OTHER))

    assert (served.by, served.asked) == ([("handler", 0)], 1)


async def test_a_client_that_sends_nothing_plain_pays_for_one_question_in_a_chunk() -> None:
    """After some requests in a row the handlers get all of a chunk whose first request is declined."""
    served = Served()

    served.connection.data_received(chunk(*[OTHER] * (LANE_MISSES_MAX + 2), PLAIN))
    assert served.asked == LANE_MISSES_MAX
    served.connection.data_received(chunk(OTHER, PLAIN))
    assert served.asked == LANE_MISSES_MAX + 1
    assert {server for server, _ in served.by} == {"handler"}

    served.connection.data_received(chunk(PLAIN, OTHER, PLAIN))
    assert served.by[-3:] == [("lane", 0), ("handler", 1), ("lane", 2)]


async def test_declined_requests_between_plain_ones_do_not_end_the_lane() -> None:
    """Only requests in a row count."""
    served = Served()

    served.connection.data_received(chunk(*[OTHER, PLAIN] * 10))

    assert served.by == [(("handler", "lane")[number % 2], number) for number in range(20)]


async def test_a_frame_that_is_not_complete_waits_for_its_rest() -> None:
    """Then the lane serves it."""
    served = Served()
    data = chunk(OTHER, PLAIN, PLAIN)

    served.connection.data_received(data[:-3])
    assert served.by == [("handler", 0), ("lane", 1)]
    assert served.connection.unfinished_since is not None

    served.connection.data_received(data[-3:])
    assert served.by[2:] == [("lane", 2)]
    assert served.connection.unfinished_since is None


async def test_nothing_behind_a_broken_frame_is_served() -> None:
    """What came before it is answered, and the connection ends."""
    served = Served()

    served.connection.data_received(chunk(PLAIN, OTHER) + BROKEN + chunk(PLAIN))

    assert served.by == [("lane", 0), ("handler", 1)]
    assert served.answered == [0, 1]
    assert served.transport.closed
    assert served.connection.protocol_error is not None


async def test_the_lane_serves_nobody_who_does_not_read_answers() -> None:
    """As soon as the peer takes no more answers its requests are held back, plain or not."""
    served = Served(ConnectionLimits(write_buffer_high=1))

    served.connection.data_received(chunk(OTHER, OTHER, PLAIN))

    assert served.by == [("handler", 0)]
    assert not served.transport.reading

    served.connection.resume_writing()

    assert served.by == [("handler", 0), ("handler", 1)]
