"""The master's end of a connection: the log goes out by `sendfile`, acknowledgements come in."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from brokerset_broker.member.ha.flow_control import TokenBucket
from brokerset_broker.member.ha.link_socket import LinkSocket
from brokerset_broker.member.ha.links import LinkClosed, PeerRefused, no_handshake
from brokerset_broker.store.replica_log import LogSource, ReplicaLog
from brokerset_protocol.ha_packets import (
    SLAVE_HANDSHAKE_SIZE_MAX,
    TRANSFER_HEADER_SIZE,
    Ack,
    AckDecoder,
    HaProtocolError,
    MasterHandshake,
    SlaveHandshake,
    TransferHeader,
    decode_slave_handshake,
    encode_master_handshake,
    encode_transfer_header,
)

SENDFILE_BYTES_MIN: Final = 64 * 1024
"""From this size on a body goes by `sendfile`; below, one call with header and body is cheaper."""

TURN_BYTES_MAX: Final = 1024 * 1024
"""What one link sends before others get their turn, if the kernel takes it all at once."""

READ_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""What is read from the disk behind a chunk that was not in memory."""

COPY_BYTES: Final = 256 * 1024
"""What is read at a time where `sendfile` is not used."""

ACK_BUFFER_BYTES: Final = 4_096
"""Acknowledgements that one turn of the loop reads."""

RunInThread = Callable[[Callable[[], None]], Awaitable[None]]


class TcpSlaveLink:
    """A `SlaveLink`. It is read all the time, so that its end is seen at once; without a handshake in
    `handshake_seconds_max` it is closed."""

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        *,
        handshake_seconds_max: float,
        rate: Callable[[], int],
        in_thread: RunInThread,
        by_copy: bool = False,
    ) -> None:
        """`rate` gives the bytes a second that may be sent, 0 for no limit, and is asked for each packet.

        `by_copy`: not by `sendfile`, because somebody else in this process reads what is sent.
        """
        self._link = LinkSocket(connection, peer, abortive=True)
        self._rate = rate
        self._in_thread = in_thread
        self._by_copy = by_copy
        self._bucket: TokenBucket | None = None
        self._buffer = memoryview(bytearray(max(ACK_BUFFER_BYTES, SLAVE_HANDSHAKE_SIZE_MAX)))
        self._acks = AckDecoder()
        self._listener: Callable[[Ack], None] | None = None
        self._unheard: Ack | None = None
        self._sending = False
        self._unyielded = 0
        self._silence = no_handshake(handshake_seconds_max)
        self._patience = self._link.loop.call_later(handshake_seconds_max, self._link.close, self._silence)
        self._link.on_close(lambda _: self._patience.cancel())

    @property
    def peer(self) -> str:
        return self._link.peer

    def on_close(self, listener: Callable[[str], None]) -> None:
        self._link.on_close(listener)

    def close(self, reason: str) -> None:
        self._link.close(reason)

    # -- hands --------------------------------------------------------------------------------------------

    async def handshake(self) -> SlaveHandshake:
        try:
            return await self._handshake()
        except LinkClosed as closed:
            if str(closed) == self._silence:
                raise PeerRefused(self._silence) from None
            raise

    async def _handshake(self) -> SlaveHandshake:
        link, end = self._link, 0
        while True:
            link.check()
            size = link.receive(self._buffer[end:])
            if size is None:
                await link.readable()
                continue
            end += size
            try:
                found = decode_slave_handshake(self._buffer[:end])
                if found is None:
                    continue
                packet, used = found
                self._acks = AckDecoder(repeated=packet)
                self._unheard = self._acks.feed(self._buffer[used:end])
            except HaProtocolError as error:
                link.close(str(error))
                raise PeerRefused(str(error)) from None
            self._patience.cancel()
            link.start_reading(self._read_acks)
            return packet

    async def send_handshake(self, packet: MasterHandshake) -> None:
        await self._link.write(encode_master_handshake(packet))

    # -- acknowledgements ---------------------------------------------------------------------------------

    def on_ack(self, listener: Callable[[Ack], None]) -> None:
        self._listener = listener
        if self._unheard is not None:
            self._link.loop.call_soon(self._tell_unheard)

    def _tell_unheard(self) -> None:
        packet, self._unheard = self._unheard, None
        if packet is not None and self._listener is not None and self._link.reason is None:
            self._listener(packet)

    def _read_acks(self) -> None:
        try:
            size = self._link.receive(self._buffer)
            packet = self._acks.feed(self._buffer[:size]) if size else None
        except LinkClosed:
            return
        except HaProtocolError as error:
            self._link.close(str(error))
            return
        if packet is not None:
            self._unheard = packet
            if self._listener is not None:
                self._tell_unheard()

    # -- transfers ----------------------------------------------------------------------------------------

    async def send(self, header: TransferHeader, log: ReplicaLog) -> None:
        link = self._link
        link.check()
        assert not self._sending, "one task sends on a link"
        packet = encode_transfer_header(header)
        self._sending, whole = True, False
        try:
            rate = self._rate()
            if header.size == 0:
                await link.write(packet)
            elif rate:
                await self._send_slowly(packet, header, log, rate)
            elif header.size < SENDFILE_BYTES_MIN:
                await self._send_view(packet, header, log)
            else:
                await self._send_file(packet, header, log)
            whole = True
        finally:
            self._sending = False
            if not whole:  # what a slave has of it, nobody can complete
                link.close("sending was given up in the middle of a packet")
        self._unyielded += TRANSFER_HEADER_SIZE + header.size
        if self._unyielded >= TURN_BYTES_MAX:
            self._unyielded = 0
            await asyncio.sleep(0)

    async def _send_view(self, packet: bytes, header: TransferHeader, log: ReplicaLog) -> None:
        link = self._link
        body = log.view(header.offset, header.size)
        self._check_size(len(body), header)
        try:
            sent = link.socket.sendmsg((packet, body))
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            raise link.lost(error) from None
        if sent < TRANSFER_HEADER_SIZE:
            await link.write(packet[sent:], socket.MSG_MORE)
            sent = TRANSFER_HEADER_SIZE
        if sent < TRANSFER_HEADER_SIZE + header.size:
            await self._waited()
            await link.write(body[sent - TRANSFER_HEADER_SIZE :])

    async def _send_file(self, packet: bytes, header: TransferHeader, log: ReplicaLog) -> None:
        source = log.source(header.offset, header.size)
        self._check_size(source.size, header)
        await self._bring_to_memory(source)
        await self._link.write(packet, socket.MSG_MORE)
        await self._send_part(source, 0, source.size)

    async def _send_slowly(self, packet: bytes, header: TransferHeader, log: ReplicaLog, rate: int) -> None:
        """In pieces, spread over the time that they take, so that the slave hears from us all the while."""
        link = self._link
        if self._bucket is None:
            self._bucket = TokenBucket(rate, link.loop.time())
        bucket = self._bucket
        bucket.change_rate(rate, link.loop.time())
        source = log.source(header.offset, header.size)
        self._check_size(source.size, header)
        await self._bring_to_memory(source)
        begin = 0
        while begin < source.size:
            while wait := bucket.wait_seconds(link.loop.time()):
                await link.pause(wait)
            if begin == 0:
                await link.write(packet, socket.MSG_MORE)
            end = min(source.size, begin + bucket.piece_bytes)
            bucket.take(end - begin)
            await self._send_part(source, begin, end)
            begin = end

    async def _send_part(self, source: LogSource, begin: int, end: int) -> None:
        link = self._link
        if self._by_copy:
            await self._copy_part(source, begin, end)
            return
        descriptor = link.socket.fileno()
        while begin < end:
            link.check()  # a closed socket's number may be another file's by now
            try:
                sent = os.sendfile(descriptor, source.descriptor, source.position + begin, end - begin)
            except (BlockingIOError, InterruptedError):
                await self._waited()
                continue
            except OSError as error:
                raise link.lost(error) from None
            if sent == 0:
                link.close(f"the log's file ends {end - begin} bytes too early")
                raise link.closed_error()
            begin += sent
            if begin < end:
                await self._waited()

    async def _copy_part(self, source: LogSource, begin: int, end: int) -> None:
        link = self._link
        while begin < end:
            size = min(COPY_BYTES, end - begin)
            try:
                data = os.pread(source.descriptor, size, source.position + begin)
            except OSError as error:
                raise link.lost(error) from None
            if len(data) < size:
                link.close(f"the log's file ends {size - len(data)} bytes too early")
                raise link.closed_error()
            await link.write(data)
            begin += size

    async def _waited(self) -> None:
        await self._link.writable()
        self._unyielded = 0

    async def _bring_to_memory(self, source: LogSource) -> None:
        """Read a chunk from the disk in a thread if it is not in memory: `sendfile` would hold up everybody.

        One byte is asked for without waiting; the last one, because reading ahead brings the first ones.
        """
        try:
            os.preadv(source.descriptor, (bytearray(1),), source.position + source.size - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            await self._in_thread(lambda: _read_through(source))
            self._link.check()
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise self._link.lost(error) from None

    def _check_size(self, size: int, header: TransferHeader) -> None:
        if size != header.size:
            self._link.close(f"the log gave {size} of {header.size} bytes at {header.offset}")
            raise self._link.closed_error()


def _read_through(source: LogSource) -> None:
    """Blocks until the chunk is in memory; begins to read what follows it. An error shows when it is sent."""
    end = source.position + source.size
    try:
        os.posix_fadvise(source.descriptor, end, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        scratch = (bytearray(SENDFILE_BYTES_MIN),)
        for position in range(source.position, end, SENDFILE_BYTES_MIN):
            os.preadv(source.descriptor, scratch, position)
    except OSError:
        return
