"""The audit log: one line for each administrative act that access control let through, with how it ended.

It stands between access control and the handlers, and around those of acts alone: others pay nothing for it.
What is refused before has the line `request denied` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, TypeAlias

import structlog

from brokerset_acl.administrative_acts import (
    OBJECTS_MAX,
    TEXT_MAX,
    act_codes,
    details_of,
    is_act,
    objects_of,
)
from brokerset_acl.needs import Rule
from brokerset_acl.signatures import ACCESS_KEY
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting.connection import DEFERRED, Connection, Handler, Reply

log = structlog.get_logger(__name__)

EVENT: Final = "administrative act"

OriginOf = Callable[[Mapping[str, str]], tuple[str, int] | None]
"""The client's address and port, by the header fields of a request that another server passed on."""

_Line: TypeAlias = dict[str, object]
_Answer: TypeAlias = Command | bytes | None


class AuditLog:
    """Logs the acts of one server."""

    def __init__(
        self,
        rules: Mapping[int, Rule],
        *,
        authenticates: bool,
        settings: Collection[str],
        broker_group: str | None = None,
        origin_of: OriginOf = lambda ext: None,
    ) -> None:
        """`authenticates`: whether who is named in a request has been checked. `settings`: names of the
        server's own. `broker_group`: the server's own; without one, requests say which group they mean."""
        self._rules = rules
        self._codes = act_codes(rules)
        self._authenticates = authenticates
        self._settings = settings
        self._broker_group = broker_group
        self._origin_of = origin_of

    def around(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers, with those of acts logging."""
        return {
            code: self._logging(handler) if code in self._codes else handler
            for code, handler in handlers.items()
        }

    def _logging(self, handler: Handler) -> Handler:
        def handle(connection: Connection, command: Command) -> Reply:
            if not is_act(command):
                return handler(connection, command)
            line = self._line(connection, command)
            try:
                reply = handler(connection, command)
            except Exception as error:
                _write(line, _code_of(error))
                raise
            if isinstance(reply, Command):
                _write(line, reply.code)
            elif reply is None or reply is DEFERRED or isinstance(reply, bytes):
                _write(line, None)
            else:
                return _finish(line, reply)
            return reply

        return handle

    def _line(self, connection: Connection, command: Command) -> _Line:
        """Everything but the end, which a handler may change."""
        ext, code = command.ext, command.code
        origin = self._origin_of(ext)
        objects = objects_of(command, self._rules, self._settings)
        group = self._broker_group or ext.get("brokerName")
        return {
            "user": ext.get(ACCESS_KEY, "")[:TEXT_MAX] or None if self._authenticates else None,
            "peer": origin or connection.peer,
            "passed_on_by": None if origin is None else connection.peer,
            "request": RequestCode(code).name,
            "code": int(code),
            "objects": objects[:OBJECTS_MAX],
            "left_out": max(0, len(objects) - OBJECTS_MAX),
            "details": details_of(command),
            "broker_group": None if group is None else group[:TEXT_MAX],
        }


async def _finish(line: _Line, work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """A connection that ends meanwhile cancels this: whether the act was carried out is unknown then."""
    result: int | None = None
    try:
        reply = await work
        result = reply.code if isinstance(reply, Command) else None
        return reply
    except Exception as error:
        result = _code_of(error)
        raise
    finally:
        _write(line, result)


def _code_of(error: Exception) -> int:
    """The code that the sender is answered."""
    return int(error.code) if isinstance(error, Rejected) else ResponseCode.SYSTEM_ERROR


def _write(line: _Line, result: int | None) -> None:
    log.info(EVENT, **line, result=_name(result), result_code=None if result is None else int(result))


def _name(result: int | None) -> str | None:
    try:
        return None if result is None else ResponseCode(result).name
    except ValueError:
        return None
