"""The slave's end of a connection: what a master sends goes into memory that the log gives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from brokerset_broker.member.ha.link_socket import LinkSocket
from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.store.replica_log import ReplicaLog, ReplicaLogFailed
from brokerset_protocol.ha_packets import (
    MASTER_HANDSHAKE_SIZE_MAX,
    TRANSFER_HEADER_SIZE,
    Ack,
    HaProtocolError,
    MasterHandshake,
    SlaveHandshake,
    TransferHeader,
    decode_master_handshake,
    decode_transfer_header,
    encode_ack,
    encode_slave_handshake,
)

log = structlog.get_logger(__name__)

AHEAD_BYTES: Final = 64 * 1024
"""Read at once where a header is due: many small packets, or the beginning of a big one, which is copied.

Behind a packet of this size the header alone is read: then the next one, likely to be big, too, is not
copied, and goes into the file by one call.
"""

TURN_BYTES_MAX: Final = 1024 * 1024
"""What one turn of the loop receives, so that everything else goes on next to a slave that catches up."""

assert AHEAD_BYTES >= MASTER_HANDSHAKE_SIZE_MAX

OnHeader = Callable[[TransferHeader], Awaitable[None] | None]


class TcpMasterLink:
    """A `MasterLink`. Between the handshake and `receive_into` nothing is read."""

    def __init__(self, connection: socket.socket, peer: str, *, handshake_seconds_max: float) -> None:
        self._link = LinkSocket(connection, peer, abortive=False)
        self._handshake_seconds_max = handshake_seconds_max
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._begin = 0
        self._end = 0
        self._left = 0
        """Bytes of the body that is being received."""
        self._window = self._ahead
        """The part of `_ahead` that is read into where a header is due."""
        self._log: ReplicaLog | None = None
        self._on_header: OnHeader | None = None
        self._waiting: asyncio.Task[None] | None = None
        """What `on_header` returned; nothing is received before it is done."""
        self._in_turn = False
        self._ack: bytes | None = None
        """The newest acknowledgement, not yet begun to be written."""
        self._ack_rest = b""
        """Of one that was written in part."""
        self._ack_waits = False

    @property
    def peer(self) -> str:
        return self._link.peer

    def close(self, reason: str) -> None:
        self._link.close(reason)

    async def closed(self) -> str:
        """Wait for the end of the connection, and for what `on_header` began; returns the reason."""
        reason = await self._link.closed()
        if self._waiting is not None:
            await asyncio.wait([self._waiting])
        return reason

    def on_close(self, listener: Callable[[str], None]) -> None:
        """Have `listener` called once, with the reason, when the connection has ended."""
        self._link.on_close(listener)

    # -- hands --------------------------------------------------------------------------------------------

    async def shake_hands(self, packet: SlaveHandshake) -> MasterHandshake:
        link = self._link
        try:
            async with asyncio.timeout(self._handshake_seconds_max):
                await link.write(encode_slave_handshake(packet))
                answer = await self._read_answer()
            if answer.identity is not None and packet.identity is None:
                raise HaProtocolError("the master sent an extension that nobody asked for")
        except TimeoutError:
            link.close(f"no answer to the handshake in {self._handshake_seconds_max:g} s")
            raise link.closed_error() from None
        except HaProtocolError as error:
            link.close(str(error))
            raise link.closed_error() from None
        return answer

    async def _read_answer(self) -> MasterHandshake:
        link = self._link
        while True:
            link.check()
            size = link.receive(self._ahead[self._end :])
            if size is None:
                await link.readable()
                continue
            self._end += size
            found = decode_master_handshake(self._ahead[: self._end])
            if found is not None:
                answer, self._begin = found
                return answer

    # -- receiving ----------------------------------------------------------------------------------------

    def receive_into(self, log: ReplicaLog, on_header: OnHeader) -> None:
        assert self._log is None, "a link receives into one log"
        self._log, self._on_header = log, on_header
        self._link.start_reading(self._turn)
        self._link.loop.call_soon(self._turn)  # packets may have come with the handshake

    def _turn(self) -> None:
        if self._link.reason is not None or self._waiting is not None:
            return
        self._in_turn = True
        try:
            if self._begin < self._end:
                self._take_ahead()
            taken = 0
            while self._link.reason is None and self._waiting is None and taken < TURN_BYTES_MAX:
                size, drained = self._receive()
                taken += size
                self._take_ahead()
                if drained:
                    break
        except Exception as error:
            self._refuse(error)
        finally:
            self._in_turn = False
        if self._ack is not None:
            self._write_ack()

    def _receive(self) -> tuple[int, bool]:
        """Read once: into the log where a body is due. Returns the bytes, and whether no more are there."""
        link = self._link
        if not self._left:
            rest = self._end - self._begin
            if self._begin:  # less than a header
                self._ahead[:rest] = bytes(self._ahead[self._begin : self._end])
                self._begin, self._end = 0, rest
            asked = len(self._window) - rest
            size = link.receive(self._window[rest:])
            if size is None:
                return 0, True
            self._end += size
            return size, size < asked
        assert self._log is not None
        room = self._log.room(self._left)
        in_log = len(room)
        behind = self._window if in_log == self._left else self._ahead[:0]
        asked = in_log + len(behind)
        size = link.receive_parts(room, behind)
        del room
        if size is None:
            return 0, True
        taken = min(size, in_log)
        self._begin, self._end = 0, size - taken
        self._left -= taken
        self._log.received(taken)
        return size, size < asked

    def _take_ahead(self) -> None:
        """Headers, and bodies as far as they were read with them."""
        log, on_header = self._log, self._on_header
        assert log is not None
        assert on_header is not None
        while self._link.reason is None and self._waiting is None:
            if self._left:
                size = min(self._left, self._end - self._begin)
                if not size:
                    return
                room = log.room(size)
                size = len(room)
                room[:] = self._ahead[self._begin : self._begin + size]
                del room
                self._begin += size
                self._left -= size
                log.received(size)
                continue
            if self._begin == self._end:
                return
            header = decode_transfer_header(self._ahead[: self._end], self._begin)
            if header is None:
                return
            self._begin += TRANSFER_HEADER_SIZE
            self._left = header.size
            self._window = self._ahead if header.size < AHEAD_BYTES else self._ahead[:TRANSFER_HEADER_SIZE]
            self._pass_on(header, on_header)

    def _pass_on(self, header: TransferHeader, on_header: OnHeader) -> None:
        try:
            awaited = on_header(header)
        except Exception as error:
            self._refuse(error)
            return
        if awaited is not None:
            self._link.stop_reading()
            self._waiting = self._link.loop.create_task(self._wait_for(awaited))

    async def _wait_for(self, awaited: Awaitable[None]) -> None:
        try:
            await awaited
        except Exception as error:
            self._refuse(error)
        self._waiting = None
        self._link.start_reading(self._turn)
        self._turn()

    def _refuse(self, error: Exception) -> None:
        """End the connection because of what the owner of the link raised."""
        if isinstance(error, LinkClosed | HaProtocolError | ReplicaLogFailed):
            self._link.close(str(error))
        else:
            log.error("a packet from the master cannot be taken", peer=self.peer, exc_info=error)
            self._link.close(f"{type(error).__name__}: {error}")

    # -- acknowledging ------------------------------------------------------------------------------------

    def send_ack(self, packet: Ack) -> None:
        """Acknowledge, at the end of a turn of reading; what has to wait, a newer one replaces."""
        if self._link.reason is not None:
            return
        self._ack = encode_ack(packet)
        if not self._in_turn and not self._ack_waits:
            self._write_ack()

    def _write_ack(self) -> None:
        link = self._link
        while link.reason is None and not self._ack_waits:
            data = self._ack_rest or self._ack
            if not data:
                return
            try:
                sent = link.socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                link.lost(error)
                return
            if self._ack_rest or sent:  # begun, so it is finished; until then a newer one takes its place
                self._ack = None if data is self._ack else self._ack
                self._ack_rest = data[sent:]
            if sent < len(data):
                self._ack_waits = True
                link.call_when_writable(self._ack_writable)

    def _ack_writable(self) -> None:
        self._ack_waits = False
        self._write_ack()
