"""Passes requests on to the master: clients learn a new route only when they ask for it, up to 30 s later.

A forwarded request is marked and never passed on again. What is surely not carried out is tried again for
`FORWARD_RETRY_SECONDS`; a send without an answer is not, because it may be stored: its client decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from brokerset_broker.member.gateway.waiting_requests import request_bytes
from brokerset_broker.requests.request_classes import (
    BORN_HOST,
    CLASSES,
    DENIED,
    FORWARDED,
    NOT_HERE,
    REPEATABLE,
    peer_text,
)
from brokerset_protocol import replies
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, FLAG_RESPONSE, Command
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_protocol.replies import REJECTED
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import DEFERRED, Connection, ConnectionClosed, RequestTimeout
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

PASS_ON_SECONDS: Final = 2.0
"""How long a broker behind a `-master` Service of Kubernetes passes requests on when its mastership is over,
before it ends: kube-proxy leads clients elsewhere within `minSyncPeriod`, 1 s unless somebody has changed it,
and what the change itself takes."""

FORWARDS_IN_FLIGHT_MAX: Final = 10_000
"""Forwarded requests without an answer; the next is refused with SYSTEM_BUSY."""

FORWARD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of their bodies and header fields; a request beyond that is refused with SYSTEM_BUSY."""

FORWARD_SECONDS_MAX: Final = 5.0
"""Longest wait for the master's answer: longer than it waits for its replicas (`slaveTimeout`, 3 s)."""

FORWARD_RETRY_SECONDS: Final = 2.0
"""How long a request that nobody has carried out is tried again, from its arrival here."""

RETRY_PAUSE_SECONDS: Final = 0.02
"""Pause before the first repetition; it doubles each time, up to `RETRY_PAUSE_SECONDS_MAX`."""

RETRY_PAUSE_SECONDS_MAX: Final = 0.2


@dataclass(slots=True)
class ForwardCounters:
    """What happened since the start."""

    forwarded: int = 0
    """Requests that were passed on; one-way ones, too."""

    repeated: int = 0
    """Tries beyond the first ones."""

    failed: int = 0
    """Requests that no master carried out."""

    unclear: int = 0
    """Requests without an answer: whether they were carried out is not known."""

    turned_away: int = 0
    """Requests beyond `FORWARDS_IN_FLIGHT_MAX` or `FORWARD_BYTES_MAX`."""


class _MasterHere(Exception):
    """Nobody has carried the request out, and this broker does not follow a master any more."""


class _NotCarriedOut(Exception):
    """Nobody carried the request out. `reply` is what was answered, if there was an answer."""

    def __init__(self, reason: str, reply: Command | None = None) -> None:
        super().__init__(reason)
        self.reply = reply


class Forwarder:
    """Asks the master in the name of clients. `asker` needs connections that carry no sends of its own."""

    def __init__(
        self,
        asker: Asker,
        *,
        in_flight_max: int = FORWARDS_IN_FLIGHT_MAX,
        bytes_max: int = FORWARD_BYTES_MAX,
        seconds_max: float = FORWARD_SECONDS_MAX,
        retry_seconds: float = FORWARD_RETRY_SECONDS,
    ) -> None:
        self._asker = asker
        self._in_flight_max = in_flight_max
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._retry_seconds = retry_seconds
        self.target: str | None = None
        """Address of the master; None while nobody is known, or this broker is it."""
        self.on_denied: Callable[[Connection], None] = lambda connection: None
        """Called with the connection of a client whose request the master's access control has refused."""
        self.in_flight = 0
        self.bytes = 0
        self.counters = ForwardCounters()
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their begin

    def forward(self, connection: Connection, command: Command, arrived: float) -> Reply:
        """Pass on what came at `arrived` (time of the loop); what a handler returns.

        It is carried out even if the client leaves meanwhile, as if the client had sent it to the master.
        Raises `Rejected` when too much is on its way already.
        """
        size = request_bytes(command)
        if self.in_flight >= self._in_flight_max or self.bytes + size > self._bytes_max:
            self.counters.turned_away += 1
            raise Rejected(ResponseCode.SYSTEM_BUSY, REJECTED)
        self.in_flight += 1
        self.bytes += size
        self.counters.forwarded += 1
        known = self.target is not None
        task = asyncio.get_running_loop().create_task(self._forward(connection, command, arrived, known))
        self._tasks[task] = None
        task.add_done_callback(partial(self._done, size))
        return DEFERRED

    async def close(self) -> None:
        """Give up what is on its way; to be called when clients have been answered."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self.in_flight -= 1
        self.bytes -= size

    async def _forward(self, connection: Connection, command: Command, arrived: float, known: bool) -> None:
        reply: Command | None = command.reply(
            ResponseCode.SERVICE_NOT_AVAILABLE, "given up: the broker shuts down"
        )
        try:
            reply = await self._reply_to(connection.peer, command, arrived, known)
            if reply.ext.pop(DENIED, None) is not None:
                self.on_denied(connection)
        except _MasterHere:
            reply = None
            connection.serve_deferred([command])
        except Exception as error:  # the edge of a session: one bad request harms nobody else
            log.error("forward failed", code=command.code, peer=connection.peer, exc_info=error)
            reply = replies.failed(command, error)
        finally:
            if reply is not None:
                connection.finish(command, reply)

    async def _reply_to(
        self, peer: tuple[str, int], command: Command, arrived: float, known: bool
    ) -> Command:
        """What the client is told. `known`: there was a master to pass it on to when the request came."""
        try:
            if command.is_oneway:
                await self._tell(peer, command, known)
                return command.reply()
            return _for_client(await self._ask(peer, command, arrived, known), command)
        except _NotCarriedOut as error:
            self.counters.failed += 1
            if error.reply is not None:
                return _for_client(error.reply, command)
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, f"not carried out: {error}")
        except Rejected as rejected:
            return command.reply(rejected.code, rejected.remark)

    async def _tell(self, peer: tuple[str, int], command: Command, known: bool) -> None:
        target = self.target
        if target is None:
            if known:
                raise _MasterHere
            raise _NotCarriedOut("no master is known")
        try:
            await self._asker.tell(target, _with_origin(peer, command), self._seconds_max)
        except ConnectionClosed as error:
            raise _NotCarriedOut(str(error)) from error

    async def _ask(self, peer: tuple[str, int], command: Command, arrived: float, known: bool) -> Command:
        loop = asyncio.get_running_loop()
        deadline = arrived + self._retry_seconds
        pause = RETRY_PAUSE_SECONDS
        while True:
            known = known or self.target is not None
            try:
                return await self._ask_once(peer, command)
            except _NotCarriedOut:
                if known and self.target is None:
                    # It may be this broker, by now or soon. If not, its handlers know what to answer.
                    raise _MasterHere from None
                if loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_PAUSE_SECONDS_MAX)
            self.counters.repeated += 1

    async def _ask_once(self, peer: tuple[str, int], command: Command) -> Command:
        """The master's answer. Raises `_NotCarriedOut`, or `Rejected` if nobody knows."""
        target = self.target
        if target is None:
            raise _NotCarriedOut("no master is known")
        try:
            reply = await self._asker.ask(target, _with_origin(peer, command), self._seconds_max)
        except (ConnectionClosed, RequestTimeout) as error:
            if isinstance(error.__cause__, ConnectionRefusedError) or CLASSES[command.code] in REPEATABLE:
                raise _NotCarriedOut(f"master {target}: {error}") from error
            self.counters.unclear += 1
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"master {target} did not answer, whether the request was carried out is not known: {error}",
            ) from error
        except LocalProtocolError as error:  # too large with the marks, or too many wait
            raise Rejected(ResponseCode.SYSTEM_BUSY, f"{REJECTED}: {error}") from error
        if NOT_HERE in reply.ext:
            raise _NotCarriedOut(f"{target} is not master", reply)
        return reply


def _with_origin(peer: tuple[str, int], command: Command) -> Command:
    """A copy that the asker may number again, with the marks."""
    return Command(
        command.code,
        {**command.ext, FORWARDED: "1", BORN_HOST: peer_text(peer)},
        command.body,
        flag=command.flag & FLAG_ONEWAY,
        remark=command.remark,
        language=command.language,
        version=command.version,
        binary=command.binary,
    )


def _for_client(reply: Command, command: Command) -> Command:
    """The master's answer under the number, and in the encoding, of the client's request."""
    reply.opaque = command.opaque
    reply.binary = command.binary
    reply.flag = FLAG_RESPONSE
    reply.ext.pop(NOT_HERE, None)
    return reply
