"""Opens and shuts the service as a whole: without a role only requests about the broker are answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import Connection, Handler

ALWAYS_OPEN: Collection[int] = (
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
)
"""Requests that change and show nothing of the messages."""


class ServiceDoor:
    """The table of handlers that a server uses. Shutting swaps its entries, so an open door costs nothing."""

    def __init__(self, handlers: Mapping[int, Handler], why: Callable[[], str]) -> None:
        """Open at first; `why` tells clients the reason while it is shut."""
        self.handlers: dict[int, Handler] = dict(handlers)
        self._behind = dict(handlers)
        self._why = why

    def open(self) -> None:
        """Serve everything."""
        self.handlers.update(self._behind)

    def shut(self) -> None:
        """Answer everything but `ALWAYS_OPEN` with SERVICE_NOT_AVAILABLE."""
        refuse = partial(_refuse, self._why)
        for code in self._behind:
            if code not in ALWAYS_OPEN:
                self.handlers[code] = refuse


def _refuse(why: Callable[[], str], connection: Connection, command: Command) -> Command:
    raise Rejected(ResponseCode.SERVICE_NOT_AVAILABLE, why())
