"""Requests that clients sign with an access key: no signature is checked, so it warns or refuses.

Source: `AclClientRPCHook`, which adds the fields to every request of a client, heartbeats included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

ACCESS_KEY: Final = "AccessKey"

CLIENTS_MAX: Final = 1_000
"""Clients that were warned of and are remembered; a further one takes the place of the first."""

KEY_TEXT_MAX: Final = 64

REFUSAL: Final = (
    "signed requests are refused by this broker (refuseSignedRequests), since it does not check signatures: "
    "take the access key out of the client's configuration"
)


class SignedRequests:
    """Warns once of each client (address and access key), or refuses everything that is signed."""

    def __init__(self, *, refuse: bool) -> None:
        self._refuse = refuse
        self._warned: dict[tuple[str, str], None] = {}
        self._throttle = LogThrottle()

    def around(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers with the check before them: all when they refuse, else only that of heartbeats.

        A client that signs also signs its heartbeats, so other requests need not pay for a warning.
        """
        if self._refuse:
            return {code: self._checked(handler) for code, handler in handlers.items()}
        beat = int(RequestCode.HEART_BEAT)
        return {
            code: self._checked(handler) if code == beat else handler for code, handler in handlers.items()
        }

    def _checked(self, handler: Handler) -> Handler:
        def check(connection: Connection, command: Command) -> Reply:
            if ACCESS_KEY in command.ext:
                if self._refuse:
                    raise Rejected(ResponseCode.NO_PERMISSION, REFUSAL)
                self._warn(connection, command.ext[ACCESS_KEY][:KEY_TEXT_MAX])
            return handler(connection, command)

        return check

    def _warn(self, connection: Connection, access_key: str) -> None:
        client = (connection.peer[0], access_key)
        if client in self._warned:
            return
        suppressed = self._throttle.admit(asyncio.get_running_loop().time())
        if suppressed is None:
            return  # its next heartbeat warns
        if len(self._warned) >= CLIENTS_MAX:
            del self._warned[next(iter(self._warned))]
        self._warned[client] = None
        log.warning(
            "signatures of a client are not checked",
            peer=connection.peer,
            access_key=access_key,
            advice="anybody who reaches this port is served; refuseSignedRequests refuses such clients",
            suppressed=suppressed,
        )
