"""Outgoing connections: one for each address, opened when first needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.remoting.connection import (
    DEFAULT_LIMITS,
    Connection,
    ConnectionClosed,
    ConnectionLimits,
    Handlers,
)
from brokerset_runtime.remoting.signing import sign_of_environment
from brokerset_runtime.tls.client_tls import ClientTls
from brokerset_runtime.tls.connecting import connect_member, connect_tls
from brokerset_runtime.tls.member_names import MemberPort
from brokerset_runtime.tls.session import TlsError

if TYPE_CHECKING:
    from brokerset_acl.signatures import Sign

log = structlog.get_logger(__name__)

CONNECT_SECONDS_MAX = 3.0


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises `ValueError` with what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


async def connect(
    address: str,
    handlers: Handlers | None = None,
    *,
    limits: ConnectionLimits = DEFAULT_LIMITS,
    on_close: Callable[[Connection], None] | None = None,
    timeout: float = CONNECT_SECONDS_MAX,
    tls: ClientTls | None = None,
    sign: Sign | None = None,
    to_member: bool = False,
) -> Connection:
    """Open a connection to `host:port`, encrypted if `tls` says that clients are.

    With `to_member` it is the port of a member of a DLedger, the only one that takes such requests: both ends
    show to be one, if they use TLS.

    `sign` signs its requests, else what the environment says.

    Raises `ConnectionClosed` if that fails or takes longer than `timeout` seconds, `ValueError` for a text
    that is no address.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    sign = sign or sign_of_environment()
    try:
        async with asyncio.timeout(timeout):
            connection = Connection(handlers or {}, limits=limits, on_close=on_close, sign=sign)
            context = None if tls is None else tls.client
            if tls is not None and to_member:
                await connect_member(tls, connection, host, port, MemberPort.DLEDGER)
            elif context is None:
                await loop.create_connection(lambda: connection, host, port)
            else:
                assert tls is not None, "it has the context"
                await connect_tls(tls, context, connection, host, port)
    except TlsError as error:
        raise ConnectionClosed(f"cannot connect to {address} by TLS: {error}") from None
    except TimeoutError:
        raise ConnectionClosed(f"cannot connect to {address}: no answer in {timeout} s") from None
    except OSError as error:
        raise ConnectionClosed(f"cannot connect to {address}: {_reason(error)}") from error
    return connection


def _reason(error: OSError) -> str:
    """What the system says, without what asyncio adds to it: the address, and its own function's name."""
    if error.errno is not None and error.errno > 0:  # those of name resolution are negative
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _seen(attempt: asyncio.Task[Connection]) -> None:
    """Whoever waited for an attempt may have gone: then nobody else asks how it ended."""
    if not attempt.cancelled():
        attempt.exception()


class ConnectionPool:
    """Keeps one connection for each address; concurrent callers share an attempt and its failure."""

    def __init__(
        self,
        handlers: Handlers | None = None,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        on_close: Callable[[str], None] | None = None,
        tls: ClientTls | None = None,
        sign: Sign | None = None,
        to_members: bool = False,
    ) -> None:
        """`sign` signs all requests; without it they are signed as the environment says, if it does.

        With `to_members` all addresses are ports of members.
        """
        self._to_members = to_members
        self._tls = tls
        self._sign = sign
        self._handlers = handlers or {}
        self._limits = limits
        self._on_close = on_close
        self._connections: dict[str, Connection] = {}
        self._attempts: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False
        self._unreadable_log = LogThrottle()

    async def get(self, address: str, timeout: float = CONNECT_SECONDS_MAX) -> Connection:
        """The open connection to `address`, made now if there is none. Raises what `connect` raises."""
        connection = self.peek(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectionClosed(f"no connection to {address}: this side is closed")
        attempt = self._attempts.get(address)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(address, timeout))
            attempt.add_done_callback(_seen)
            self._attempts[address] = attempt
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(attempt)
        except TimeoutError:
            raise ConnectionClosed(f"cannot connect to {address}: no answer in {timeout} s") from None
        except asyncio.CancelledError:
            if self._closed and attempt.cancelled():  # by `close`, not by whoever runs this caller
                raise ConnectionClosed(f"no connection to {address}: this side is closed") from None
            raise

    async def _connect(self, address: str, timeout: float) -> Connection:
        try:
            connection = await connect(
                address,
                self._handlers,
                limits=self._limits,
                on_close=lambda lost: self._lost(address, lost),
                timeout=timeout,
                tls=self._tls,
                sign=self._sign,
                to_member=self._to_members,
            )
            self._connections[address] = connection
            return connection
        finally:
            del self._attempts[address]

    def peek(self, address: str) -> Connection | None:
        """The open connection to `address`, if there is one."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.is_open else None

    def addresses(self) -> list[str]:
        return list(self._connections)

    def forget(self, address: str) -> None:
        """Close and drop the connection to an address that is not used any more."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close all connections, and wait until what is queued on them has been sent or is given up."""
        self._closed = True
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    def _lost(self, address: str, connection: Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
        if connection.protocol_error is not None:
            suppressed = self._unreadable_log.admit(asyncio.get_running_loop().time())
            if suppressed is not None:
                log.warning(
                    "closed connection with unreadable bytes",
                    peer=connection.peer,
                    reason=connection.protocol_error,
                    suppressed=suppressed,
                )
        if self._on_close is not None:
            self._on_close(address)
