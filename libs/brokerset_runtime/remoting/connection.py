"""One remoting connection: requests and responses in both directions, many in flight.

Replies that are made while one chunk of input is served leave in one system call. A handler answers at once
(a `Command`, or an encoded frame as `bytes`), not at all (`None`: one-way), later through `answer`
(`DEFERRED`), or as a coroutine, which then runs as a task of this connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import structlog

from brokerset_protocol import replies
from brokerset_protocol.commands import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FRAME_SIZE_MAX,
    Command,
    CommandReader,
    encode,
)
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_runtime.tls.session import TlsError

if TYPE_CHECKING:
    from brokerset_acl.signatures import Sign

log = structlog.get_logger(__name__)


class ConnectionClosed(ConnectionError):
    """The connection ended before the answer came: whether the request was carried out is unknown."""


class RequestTimeout(TimeoutError):
    """No answer in time: whether the request was carried out is unknown."""


class _Deferred(Enum):
    DEFERRED = "deferred"


DEFERRED: Final = _Deferred.DEFERRED
"""What a handler returns if it will call `Connection.answer` itself, exactly once."""

Reply = Command | bytes | None | _Deferred | Coroutine[Any, Any, Command | bytes | None]
Handler = Callable[["Connection", Command], Reply]
Handlers = Mapping[int, Handler]
Lane = Callable[["Connection", bytes], int]
"""Serves requests at the beginning of a chunk of input that begins with a frame, and returns their bytes;
the request that it leaves goes to the handlers. It answers with `Connection.send`, now or later."""

LANE_MISSES_MAX: Final = 4
"""Requests in a row that the lane declines; then it is asked once for each chunk, until it serves one."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection, each with what happens at it."""

    frame_size_max: int = FRAME_SIZE_MAX
    """Larger frame: the connection is closed."""

    in_flight_max: int = 8192
    """Requests being served, parked pulls among them; the next is answered `SYSTEM_BUSY [OVERLOAD]`."""

    waiting_max: int = 65_536
    """Own requests that wait for an answer; the next `call` raises `LocalProtocolError`."""

    write_buffer_high: int = 1024 * 1024
    """Bytes that the peer has not taken yet; above it no request of this peer is answered, and from the first
    one that waits on nothing is read. Answers to our own requests are read until then: two peers that
    both waited for the other one to read would wait permanently."""

    outgoing_max: int = 64 * 1024 * 1024
    """Bytes unread by the peer at which it is taken for dead and the connection is aborted."""

    close_seconds_max: float = 5.0
    """Time that a closed connection has to send what is queued; then it is aborted, and the rest is lost."""


DEFAULT_LIMITS = ConnectionLimits()


class Connection(asyncio.Protocol):
    """A live remoting connection, accepted or made.

    `state` belongs to the handlers: it is where a server keeps what it knows about this peer.
    """

    def __init__(
        self,
        handlers: Handlers,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        lane: Lane | None = None,
        on_open: Callable[[Connection], bool] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        sign: Sign | None = None,
    ) -> None:
        """`sign` is called with each request that is sent, before it is encoded."""
        self._handlers = handlers
        self._sign = sign
        self._limits = limits
        self._lane = lane
        self._misses = 0
        self._in_flight_max = limits.in_flight_max
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._reader = CommandReader(limits.frame_size_max)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._corked = False
        self._flush_scheduled = False
        self._paused = False
        self._backlog: deque[Command] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._next_opaque = 0
        self._closed = self._loop.create_future()
        self._abort_timer: asyncio.TimerHandle | None = None
        self.in_flight = 0
        self._unfinished_since: float | None = None
        self.last_activity = self._loop.time()
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.protocol_error: str | None = None
        self.state: dict[str, Any] = {}

    # -- what both ends use -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the peer to read, here and in the transport."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._out_bytes + waiting

    @property
    def unfinished_since(self) -> float | None:
        """When the frame began that is not complete yet, on the loop's clock; None while it is our turn:
        nothing is unfinished, or nothing is read until the peer takes its answers."""
        return None if self._backlog else self._unfinished_since

    async def call(self, command: Command, timeout: float) -> Command:
        """Send a request and wait for its answer.

        Raises `ConnectionClosed` or `RequestTimeout` (seconds); an answer with an error code is returned.
        """
        future = self.start_call(command)
        opaque = command.opaque
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise RequestTimeout(
                f"{self.peer[0]}:{self.peer[1]} did not answer request {command.code} in {timeout} s"
            ) from None
        finally:
            self._waiting.pop(opaque, None)

    def start_call(self, command: Command) -> asyncio.Future[Command]:
        """Send a request; the future gets the answer or `ConnectionClosed`. The caller bounds the wait.

        Sets the command's opaque: one that waits for its answer must not be sent again.
        """
        if not self.is_open:
            raise ConnectionClosed(f"no connection to {self.peer[0]}:{self.peer[1]}")
        if len(self._waiting) >= self._limits.waiting_max:
            raise LocalProtocolError(f"{len(self._waiting)} requests already wait for answers")
        command.opaque = self._take_opaque()
        if self._sign is not None:
            self._sign(command)
        future: asyncio.Future[Command] = self._loop.create_future()
        data = encode(command)
        self._waiting[command.opaque] = future
        self.send(data)
        return future

    def forget_call(self, command: Command) -> None:
        """Stop waiting for the answer to `command`; a late one is dropped."""
        self._waiting.pop(command.opaque, None)

    def notify(self, command: Command) -> None:
        """Send a one-way request; nothing tells whether it arrived. A closed connection is ignored."""
        command.opaque = self._take_opaque()
        command.flag |= FLAG_ONEWAY
        if self._sign is not None:
            self._sign(command)
        self.send(encode(command))

    def answer(self, data: bytes | Command) -> None:
        """The reply that a handler promised with `DEFERRED`."""
        self.in_flight -= 1
        self.send(data if type(data) is bytes else _encode_reply(data))  # type: ignore[arg-type]  # narrowed by `is bytes`

    def answer_at_once(self, data: bytes | Command) -> None:
        """`answer`, for a callback of the loop: what `send` queues there leaves one turn later."""
        if self._corked or self._transport is None:
            self.answer(data)
            return
        self.in_flight -= 1
        frame = data if type(data) is bytes else _encode_reply(data)  # type: ignore[arg-type]  # narrowed by `is bytes`
        self._out.append(frame)
        self._out_bytes += len(frame)
        self._flush()

    def finish(self, command: Command, reply: Command) -> None:
        """End a request that a handler answered with `DEFERRED`: as `answer`, but nothing goes out for a
        one-way request."""
        self.in_flight -= 1
        self._reply(command, reply)

    def serve_deferred(self, commands: Sequence[Command]) -> None:
        """Give requests that were answered with `DEFERRED` to the handlers that their codes have now.

        Instead of an answer to each of them: they start from scratch, as if they had come now, in this order.
        """
        self.in_flight -= len(commands)
        if self.is_open:
            self._serve_all(commands)

    def send(self, data: bytes) -> None:
        """Queue one whole frame; frames of one turn of the loop leave together."""
        if self._transport is None:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._corked and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is queued, then close; requests that wait to be served are dropped.

        A peer that reads nothing would keep the connection open, so it is aborted after `close_seconds_max`.
        """
        if self._transport is None or self._abort_timer is not None:
            return
        self._flush()
        self._backlog.clear()
        self._transport.close()
        self._abort_timer = self._loop.call_later(self._limits.close_seconds_max, self.abort)

    def give_up(self, reason: str) -> None:
        """Close because of what the peer sent. Whoever hears of the end finds why in `protocol_error`."""
        if self.protocol_error is None:
            self.protocol_error = reason
            self.close()

    def abort(self) -> None:
        """Close at once; what is queued is lost."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    # -- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's transport is no subclass
        peer = transport.get_extra_info("peername") or ("", 0)
        local = transport.get_extra_info("sockname") or ("", 0)
        self.peer = (peer[0], peer[1])
        self.local = (local[0], local[1])
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_high)  # type: ignore[union-attr]
        if self._on_open is not None and not self._on_open(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.last_activity = self._loop.time()
        reader = self._reader
        served = False
        if self._lane is not None and not self._paused and (data := reader.join(data)):
            size = len(data)
            data = self._serve_lane(self._lane, data)
            served = len(data) < size
        commands = reader.feed(data) if data else ()
        if not reader.buffered:
            self._unfinished_since = None
        elif served or commands or self._unfinished_since is None:
            self._unfinished_since = self.last_activity
        if commands:
            self._serve_all(commands)
        elif served:
            self._flush()
        if reader.error is not None:
            self.give_up(str(reader.error))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if not self._backlog:
            return
        commands = list(self._backlog)
        self._backlog.clear()
        self._serve_all(commands)
        if not self._backlog and self._transport is not None and not self._transport.is_closing():
            if self._unfinished_since is not None:
                self._unfinished_since = self._loop.time()
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self._transport is not None
        self._transport = None
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._out.clear()
        self._out_bytes = 0
        self._backlog.clear()
        reason = f": {exc}" if isinstance(exc, TlsError) else ""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(
                    ConnectionClosed(f"{self.peer[0]}:{self.peer[1]} closed the connection{reason}")
                )
                future.exception()  # nobody may be waiting any more; that is no error
        self._waiting.clear()
        for task in list(self._tasks):
            task.cancel()
        if not self._closed.done():
            self._closed.set_result(None)
        if was_open and self._on_close is not None:
            self._on_close(self)

    # -- serving ------------------------------------------------------------------------------------------

    def _serve_lane(self, lane: Lane, data: bytes) -> bytes:
        """Give a chunk to the lane, and to the handlers each request that it declines before others.
        Returns what is left: the beginning of a frame, or what the handlers have to serve."""
        reader = self._reader
        self._corked = True
        try:
            while data and not self._paused:
                size = lane(self, data)
                self._misses = 0 if size else self._misses + 1
                data = data[size:]
                end = reader.first_size(data)
                if not 0 < end < len(data) or self._misses >= LANE_MISSES_MAX:
                    break
                self._serve_each(reader.feed(data[:end]))
                data = data[end:] if reader.error is None else b""
            return data
        finally:
            self._corked = False

    @property
    def in_flight_room(self) -> int:
        """Requests that may be served besides those in flight."""
        return self._in_flight_max - self.in_flight

    @property
    def answers_room(self) -> int:
        """Bytes of answers that may be queued before they have to leave."""
        return self._limits.write_buffer_high - self._out_bytes

    def _serve_all(self, commands: Sequence[Command]) -> None:
        self._corked = True
        try:
            self._serve_each(commands)
        finally:
            self._corked = False
            self._flush()

    def _serve_each(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                future = self._waiting.pop(command.opaque, None)
                if future is not None and not future.done():
                    future.set_result(command)
                continue
            if self._out_bytes >= self._limits.write_buffer_high:
                self._flush()
            if self._paused and (self._backlog or not command.flag & FLAG_ONEWAY):
                self._hold_back(command)
            else:
                self._serve(command)

    def _hold_back(self, command: Command) -> None:
        """Keep a request, and all behind it, until the peer has read its answers; read nothing meanwhile."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._backlog:
            self._transport.pause_reading()
        self._backlog.append(command)

    def _serve(self, command: Command) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            self._reply(command, replies.unsupported(command))
            return
        if self.in_flight >= self._limits.in_flight_max:
            self._reply(command, replies.overloaded(command))
            return
        try:
            reply = handler(self, command)
        except Rejected as rejected:
            self._refuse(command, rejected)
            return
        except Exception as error:  # the edge of a session: one bad request harms nobody else
            self._failed(command, error)
            return
        if type(reply) is bytes:
            if not command.flag & FLAG_ONEWAY:
                self._out.append(reply)
                self._out_bytes += len(reply)
        elif type(reply) is Command:
            self._reply(command, reply)
        elif reply is DEFERRED:
            self.in_flight += 1
        elif reply is not None:
            self.in_flight += 1
            task = self._loop.create_task(self._finish(command, reply))  # type: ignore[arg-type]  # only coroutines are left
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish(self, command: Command, work: Coroutine[Any, Any, Command | bytes | None]) -> None:
        try:
            reply = await work
        except Rejected as rejected:
            self._refuse(command, rejected)
        except Exception as error:  # the edge of a session: one bad request harms nobody else
            self._failed(command, error)
        else:
            if isinstance(reply, Command):
                self._reply(command, reply)
            elif reply is not None and not command.is_oneway:
                self.send(reply)
        finally:
            self.in_flight -= 1

    def _failed(self, command: Command, error: Exception) -> None:
        log.error("request failed", code=command.code, peer=self.peer, exc_info=error)
        self._reply(command, replies.failed(command, error))

    def _refuse(self, command: Command, rejected: Rejected) -> None:
        self._reply(command, command.reply(rejected.code, rejected.remark[: replies.REMARK_SIZE_MAX]))

    def _reply(self, command: Command, reply: Command) -> None:
        if not command.flag & FLAG_ONEWAY:
            self.send(_encode_reply(reply))

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._out or self._transport is None:
            self._out.clear()
            self._out_bytes = 0
            return
        out = self._out
        self._out = []
        self._out_bytes = 0
        if self._transport.is_closing():
            return
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._paused and self._transport.get_write_buffer_size() > self._limits.outgoing_max:
            log.warning("aborted connection that does not read its answers", peer=self.peer)
            self._transport.abort()

    def _take_opaque(self) -> int:
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return self._next_opaque


def _encode_reply(reply: Command) -> bytes:
    """The frame of a reply, or of one that says why it cannot be sent: its sender must not wait in vain."""
    try:
        return encode(reply)
    except LocalProtocolError as error:
        log.error("reply does not fit a frame", reply_code=reply.code, exc_info=error)
        return encode(replies.failed(reply, error))
