"""One remoting connection: requests and responses in both directions, many in flight.

Replies that are made while one chunk of input is served leave in one system call. A handler answers at once
(a `Command`, or an encoded frame as `bytes`), not at all (`None`: one-way), later through `answer`
(`DEFERRED`), or as a coroutine, which then runs as a task of this connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import structlog

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, FRAME_SIZE_MAX, Command, CommandReader, encode
from brokerset_protocol.errors import LocalProtocolError, Rejected

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


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection, each with what happens at it."""

    frame_size_max: int = FRAME_SIZE_MAX
    """Larger frame: the connection is closed."""

    in_flight_max: int = 8192
    """Requests being served, held pulls among them; the next is answered `SYSTEM_BUSY [OVERLOAD]`."""

    waiting_max: int = 65_536
    """Own requests that wait for an answer; the next `call` raises `LocalProtocolError`."""

    write_buffer_high: int = 1024 * 1024
    """Bytes that the peer has not taken yet; above it no further request of this peer is read or served."""

    outgoing_max: int = 64 * 1024 * 1024
    """Bytes unread by the peer at which it is taken for dead and the connection is aborted."""


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
        on_open: Callable[[Connection], bool] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self._handlers = handlers
        self._limits = limits
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
        self.in_flight = 0
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

    async def call(self, command: Command, timeout: float) -> Command:
        """Send a request and wait for its answer.

        Raises `ConnectionClosed` or `RequestTimeout` (seconds); an answer with an error code is returned.
        """
        future = self.start_call(command)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise RequestTimeout(
                f"{self.peer[0]}:{self.peer[1]} did not answer request {command.code} in {timeout} s"
            ) from None
        finally:
            self._waiting.pop(command.opaque, None)

    def start_call(self, command: Command) -> asyncio.Future[Command]:
        """Send a request; the future gets the answer or `ConnectionClosed`. The caller bounds the wait."""
        if not self.is_open:
            raise ConnectionClosed(f"no connection to {self.peer[0]}:{self.peer[1]}")
        if len(self._waiting) >= self._limits.waiting_max:
            raise LocalProtocolError(f"{len(self._waiting)} requests already wait for answers")
        command.opaque = self._take_opaque()
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
        self.send(encode(command))

    def answer(self, data: bytes | Command) -> None:
        """The reply that a handler promised with `DEFERRED`."""
        self.in_flight -= 1
        self.send(data if type(data) is bytes else encode(data))  # type: ignore[arg-type]  # narrowed by `is bytes`

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
        """Send what is queued, then close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

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
        commands = self._reader.feed(data)
        if self._backlog:
            self._backlog.extend(commands)
        else:
            self._serve_all(commands)
        error = self._reader.error
        if error is not None and self.protocol_error is None:
            self.protocol_error = str(error)
            log.warning("closed connection with unreadable bytes", peer=self.peer, reason=str(error))
            self.close()

    def pause_writing(self) -> None:
        self._paused = True
        if self.is_open:
            assert self._transport is not None
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._backlog:
            commands = list(self._backlog)
            self._backlog.clear()
            self._serve_all(commands)
        if not self._paused and self.is_open:
            assert self._transport is not None
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self._transport is not None
        self._transport = None
        self._out.clear()
        self._backlog.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionClosed(f"{self.peer[0]}:{self.peer[1]} closed the connection"))
                future.exception()  # nobody may be waiting any more; that is no error
        self._waiting.clear()
        for task in list(self._tasks):
            task.cancel()
        if was_open and self._on_close is not None:
            self._on_close(self)
        if not self._closed.done():
            self._closed.set_result(None)

    # -- serving ------------------------------------------------------------------------------------------

    def _serve_all(self, commands: list[Command]) -> None:
        self._corked = True
        try:
            for index, command in enumerate(commands):
                if self._out_bytes >= self._limits.write_buffer_high:
                    self._flush()
                if self._paused:
                    self._backlog.extend(commands[index:])
                    break
                if command.flag & 1:
                    future = self._waiting.pop(command.opaque, None)
                    if future is not None and not future.done():
                        future.set_result(command)
                else:
                    self._serve(command)
        finally:
            self._corked = False
            self._flush()

    def _serve(self, command: Command) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            self._refuse(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
            return
        if self.in_flight >= self._limits.in_flight_max:
            self._refuse(
                command,
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{self.in_flight} requests of this connection are in flight, try again later",
            )
            return
        try:
            reply = handler(self, command)
        except Rejected as rejected:
            self._refuse(command, rejected.code, rejected.remark)
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
            self._refuse(command, rejected.code, rejected.remark)
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
        self._refuse(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _refuse(self, command: Command, code: int, remark: str) -> None:
        self._reply(command, command.reply(code, remark))

    def _reply(self, command: Command, reply: Command) -> None:
        if command.is_oneway:
            return
        try:
            data = encode(reply)
        except LocalProtocolError as error:
            log.error("reply does not fit a frame", code=command.code, peer=self.peer, exc_info=error)
            data = encode(command.reply(ResponseCode.SYSTEM_ERROR, f"reply does not fit a frame: {error}"))
        self.send(data)

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
