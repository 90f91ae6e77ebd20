"""The HA port: real sockets between master and slaves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.member.ha.tcp_master_link import TcpMasterLink
from brokerset_broker.member.ha.tcp_slave_link import RunInThread, TcpSlaveLink
from brokerset_broker.member.ha.tls_pipes import TlsPort, connect_by_tls
from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.tls import Tls, TlsError

log = structlog.get_logger(__name__)

SLAVES_MAX: Final = 64
"""Connections of slaves at a time; more are closed at once."""

HANDSHAKE_SECONDS_MAX: Final = 5.0
"""Time for a handshake, on both sides; as in Java."""

ACCEPT_PAUSE_SECONDS: Final = 1.0
"""How long nobody is accepted when the process has no more descriptors."""

BACKLOG: Final = 128
"""Connections that wait to be accepted."""

PORT_MAX: Final = 65_535


class HaPortTaken(OSError):
    """The port for slaves is in use, or may not be used."""


@dataclass(frozen=True, slots=True)
class HaLimits:
    """Bounds of the HA port."""

    slaves_max: int = SLAVES_MAX
    handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX


@dataclass(slots=True)
class HaCounters:
    """What happened at the HA port since the start."""

    accepted: int = 0
    refused: int = 0
    """Connections closed at once: too many, or nobody takes them."""

    connects: int = 0
    """Connections to masters."""


@dataclass(slots=True)
class _Open:
    slaves: dict[TcpSlaveLink, None] = field(default_factory=dict)
    masters: dict[TcpMasterLink, None] = field(default_factory=dict)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has the port; 0 takes a free one. Raises `HaPortTaken`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise HaPortTaken(
            f"cannot listen for slaves on {host}:{port}: {reason}; choose another port with haListenPort"
        ) from error
    listener.setblocking(False)
    return listener


class TcpHaNetwork:
    """A `HaNetwork` of TCP connections. Used on one loop; `close` ends every link."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        limits: HaLimits | None = None,
        rate: Callable[[], int] = lambda: 0,
        in_thread: RunInThread = asyncio.to_thread,
        tls: Tls | None = None,
    ) -> None:
        """Touches nothing before `listen` or `connect`.

        `rate` gives the bytes a second that may go to one slave, 0 for no limit; it is asked for each packet.
        `in_thread` runs what waits for the disk, when a slave wants bytes that are not in memory.
        With `tls` both ends show certificates; Java has nothing like it at this port (`tls.ha.enable=false`).
        """
        self._host = host
        self._port = port
        self._limits = limits or HaLimits()
        self._rate = rate
        self._in_thread = in_thread
        self._tls = tls
        self._tls_port: TlsPort | None = None
        self._listener: socket.socket | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._take: Callable[[TcpSlaveLink], None] | None = None
        self._open = _Open()
        self._closed = False
        self._throttle = LogThrottle()
        self.counters = HaCounters()
        """For metrics."""
        self.port = 0
        """The port for slaves, once it is listened on."""

    # -- slaves -------------------------------------------------------------------------------------------

    def on_slave(self, listener: Callable[[TcpSlaveLink], None]) -> None:
        """Have `listener` called for each connection of a slave; without one, connections are closed."""
        self._take = listener

    async def listen(self) -> int:
        """Listen for slaves; returns the port. Raises `HaPortTaken`."""
        self.listen_on(bound_socket(self._host, self._port))
        return self.port

    def listen_on(self, listener: socket.socket) -> None:
        """Listen on a socket that has its port already, and is ours from now on."""
        assert self._listener is None, "a network listens once"
        listener.setblocking(False)
        self._listener = listener
        self.port = listener.getsockname()[1]
        if self._tls is not None:
            self._tls_port = TlsPort(
                listener, self._tls, lambda plain, address: self._welcome(plain, _shown(address))
            )
        else:
            asyncio.get_running_loop().add_reader(listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(BACKLOG):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.error("no connection of a slave can be accepted", reason=error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                self._pause = loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
                return
            self._welcome(connection, _shown(address))

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _welcome(self, connection: socket.socket, peer: str) -> None:
        full = len(self._open.slaves) >= self._limits.slaves_max
        if full or self._take is None:
            self.counters.refused += 1
            connection.close()
            left_out = self._throttle.admit(asyncio.get_running_loop().time())
            if left_out is not None:
                reason = f"there are {len(self._open.slaves)} already" if full else "nobody takes it"
                log.warning("connection of a slave refused", peer=peer, reason=reason, left_out=left_out)
            return
        self.counters.accepted += 1
        _prepare(connection)
        link = TcpSlaveLink(
            connection,
            peer,
            handshake_seconds_max=self._limits.handshake_seconds_max,
            rate=self._rate,
            in_thread=self._in_thread,
            by_copy=self._tls is not None,
        )
        self._open.slaves[link] = None
        link.on_close(lambda _: self._open.slaves.pop(link, None))
        self._take(link)

    # -- a master -----------------------------------------------------------------------------------------

    async def connect(self, address: str, timeout: float) -> TcpMasterLink:
        """Connect to `host:port`. Raises `LinkClosed`, also when `timeout` seconds are over."""
        if self._closed:
            raise LinkClosed("the network is closed")
        host, port = _parsed(address)
        try:
            async with asyncio.timeout(timeout):
                if self._tls is not None and self._tls.client_of_members is not None:
                    connection = await connect_by_tls(self._tls, host, port)
                else:
                    connection = await _connected(host, port)
        except TlsError as error:
            raise LinkClosed(f"cannot connect to {address} by TLS: {error}") from None
        except TimeoutError:
            raise LinkClosed(f"cannot connect to {address}: no answer in {timeout:g} s") from None
        except OSError as error:
            raise LinkClosed(f"cannot connect to {address}: {error.strerror or error}") from error
        except ValueError as error:
            raise LinkClosed(f"{address!r} has no name of a host: {error}") from error
        if self._closed:
            connection.close()
            raise LinkClosed("the network is closed")
        self.counters.connects += 1
        link = TcpMasterLink(connection, address, handshake_seconds_max=self._limits.handshake_seconds_max)
        self._open.masters[link] = None
        link.on_close(lambda _: self._open.masters.pop(link, None))
        return link

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening and end every link; may be called again."""
        self._closed = True
        if self._tls_port is not None:
            self._tls_port.close()
            self._tls_port = self._listener = None
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if self._pause is not None:
            self._pause.cancel()
        reason = "this broker closes its HA port"
        for slave in tuple(self._open.slaves):
            slave.close(reason)
        for master in tuple(self._open.masters):
            master.close(reason)


async def _connected(host: str, port: int) -> socket.socket:
    """A connection to the first address of `host` that takes one. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem = OSError(errno.EADDRNOTAVAIL, "the name has no address")
    for family, kind, protocol, _, target in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, target)
            if connection.getsockname() == connection.getpeername():
                # A free local port can be given to the very connection that asks for it.
                raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
            _prepare(connection)
        except OSError as error:
            connection.close()
            problem = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise problem


def _prepare(connection: socket.socket) -> None:
    """The size of the buffers is left to the kernel, which lets them grow further than we may set them."""
    connection.setblocking(False)
    with contextlib.suppress(OSError):  # the peer may be gone already
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if (
        not host
        or not (port.isascii() and port.isdigit() and len(port) <= 5)
        or not 0 < int(port) <= PORT_MAX
    ):
        raise LinkClosed(f"{address!r} is no host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _shown(address: tuple[str, int]) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"
