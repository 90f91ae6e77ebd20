"""Replies that the transport gives itself, before or instead of a handler.

Source: `NettyRemotingAbstract`, `NettyRemotingServer`. Clients look at the beginning of
the remarks of SYSTEM_BUSY.
"""

from __future__ import annotations

from typing import Final

from brokerset_protocol.codes import VERSION_5_3_1, ResponseCode
from brokerset_protocol.commands import Command

REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while"
"""Remark when a handler takes no requests now (slave, page cache busy)."""

OVERLOADED: Final = "[OVERLOAD]system busy, start flow control for a while"
"""Remark when too many requests wait."""

TIMED_OUT: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
"""Beginning of the remark when a request has waited too long to be worth serving."""

CACHE_BUSY: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
"""Remark when the page cache is too slow for a send."""

NO_RESPONSE_CODE: Final = "not set any response code"
"""Remark of a reply whose handler said nothing."""

REMARK_SIZE_MAX: Final = 4096
"""Characters of an error's text that a remark carries."""


def unsupported(request: Command) -> Command:
    """Nobody serves this code."""
    return request.reply(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
    )


def rejected(request: Command) -> Command:
    """The handler takes no requests now; clients go to another broker."""
    return request.reply(ResponseCode.SYSTEM_BUSY, REJECTED)


def overloaded(request: Command) -> Command:
    """Too many requests wait; clients go to another broker."""
    return request.reply(ResponseCode.SYSTEM_BUSY, OVERLOADED)


def failed(request: Command, error: BaseException) -> Command:
    """A handler failed unexpectedly."""
    return request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:REMARK_SIZE_MAX])


def unset(request: Command) -> Command:
    """A handler returned without an answer to a request that needs one."""
    return request.reply(ResponseCode.SYSTEM_ERROR, NO_RESPONSE_CODE)


def go_away(request: Command) -> Command | None:
    """We are shutting down: the client reconnects and tries again once. `None` for clients too old for it."""
    if request.version <= VERSION_5_3_1:
        return None
    return request.reply(ResponseCode.GO_AWAY, "please go away")
