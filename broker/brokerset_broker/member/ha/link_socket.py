"""A connected socket without the loop's transports, so that `sendfile` and `recv_into` can be used on it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

from brokerset_broker.member.ha.links import LinkClosed

_ABORT: Final = struct.pack("ii", 1, 0)


class LinkSocket:
    """What both ends of a connection have in common: waiting, and ending once with a reason.

    At most one coroutine waits for each direction. `abortive`: what the kernel has not sent when we close is
    dropped. A master must do that: `sendfile` hands the log's pages to the kernel, and after a change of role
    they may be truncated and overwritten while they still wait there.
    """

    def __init__(self, connection: socket.socket, peer: str, *, abortive: bool) -> None:
        self.socket = connection
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self.reason: str | None = None
        """Why the connection has ended; None while it has not."""

        self._abortive = abortive
        self._ended: asyncio.Future[str] = self.loop.create_future()
        self._listeners: list[Callable[[str], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._reading = False
        self._writing = False

    # -- the end ------------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """End the connection; the first reason stays. Listeners are called in the loop's next turn."""
        if self.reason is not None:
            return
        self.reason = reason
        self.stop_reading()
        self._stop_writing()
        with contextlib.suppress(OSError):
            if self._abortive:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self.socket.close()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(LinkClosed(reason))
        self._ended.set_result(reason)
        for listener in self._listeners:
            self.loop.call_soon(listener, reason)
        self._listeners.clear()

    def lost(self, error: OSError) -> LinkClosed:
        """Close because of an error of the socket; returns what to raise."""
        self.close(f"connection lost: {error.strerror or error}")
        return self.closed_error()

    def ended_by_peer(self) -> LinkClosed:
        """Close because the peer did; returns what to raise."""
        self.close("closed by the peer")
        return self.closed_error()

    def closed_error(self) -> LinkClosed:
        """What to raise after the end."""
        assert self.reason is not None
        return LinkClosed(self.reason)

    def check(self) -> None:
        """Raise `LinkClosed` if the connection has ended."""
        if self.reason is not None:
            raise LinkClosed(self.reason)

    def on_close(self, listener: Callable[[str], None]) -> None:
        """Have `listener` called once with the reason, also when the end has come already."""
        if self.reason is None:
            self._listeners.append(listener)
        else:
            self.loop.call_soon(listener, self.reason)

    async def closed(self) -> str:
        """Wait for the end; returns the reason."""
        return await asyncio.shield(self._ended)

    # -- reading ------------------------------------------------------------------------------------------

    def start_reading(self, readable: Callable[[], None]) -> None:
        """Call `readable` in each turn of the loop in which there is something to read."""
        if self.reason is None:
            self.loop.add_reader(self.socket, readable)
            self._reading = True

    def stop_reading(self) -> None:
        """Call nobody any more."""
        if self._reading:
            self._reading = False
            self.loop.remove_reader(self.socket)

    def receive(self, room: memoryview) -> int | None:
        """Read what is there; None if nothing is. Raises `LinkClosed`, also for the peer's end."""
        try:
            size = self.socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self.lost(error) from None
        if size == 0:
            raise self.ended_by_peer()
        return size

    def receive_parts(self, first: memoryview, second: memoryview) -> int | None:
        """As `receive`; what does not fit into `first` goes to `second`."""
        try:
            size = self.socket.recvmsg_into((first, second))[0]
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self.lost(error) from None
        if size == 0:
            raise self.ended_by_peer()
        return size

    async def readable(self) -> None:
        """Wait until there is something to read. Raises `LinkClosed`."""
        waiter = self._new_waiter()
        self.start_reading(lambda: _wake(waiter))
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            self.stop_reading()

    # -- writing ------------------------------------------------------------------------------------------

    def call_when_writable(self, writable: Callable[[], None]) -> None:
        """Call `writable` once, as soon as the kernel takes more."""

        def once() -> None:
            self._stop_writing()
            writable()

        if self.reason is None:
            self.loop.add_writer(self.socket, once)
            self._writing = True

    async def writable(self) -> None:
        """Wait until the kernel takes more. Raises `LinkClosed`."""
        waiter = self._new_waiter()
        self.call_when_writable(lambda: _wake(waiter))
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self.loop.remove_writer(self.socket)

    async def write(self, data: bytes | memoryview, flags: int = 0) -> None:
        """Write all of `data`. Raises `LinkClosed`."""
        rest = memoryview(data)
        while rest:
            self.check()
            try:
                sent = self.socket.send(rest, flags)
            except (BlockingIOError, InterruptedError):
                await self.writable()
                continue
            except OSError as error:
                raise self.lost(error) from None
            rest = rest[sent:]

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the connection. Raises `LinkClosed`."""
        waiter = self._new_waiter()
        timer = self.loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            timer.cancel()

    def _new_waiter(self) -> asyncio.Future[None]:
        self.check()
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.append(waiter)
        return waiter


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
