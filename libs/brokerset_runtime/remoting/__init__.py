"""Remoting over TCP: one connection class for both ends, a server, and a client pool."""

from brokerset_runtime.remoting.connection import (
    DEFERRED,
    Connection,
    ConnectionClosed,
    ConnectionLimits,
    Handler,
    Handlers,
    RequestTimeout,
)
from brokerset_runtime.remoting.pool import ConnectionPool, connect
from brokerset_runtime.remoting.server import RemotingServer, ServerLimits

__all__ = [
    "DEFERRED",
    "Connection",
    "ConnectionClosed",
    "ConnectionLimits",
    "ConnectionPool",
    "Handler",
    "Handlers",
    "RemotingServer",
    "RequestTimeout",
    "ServerLimits",
    "connect",
]
