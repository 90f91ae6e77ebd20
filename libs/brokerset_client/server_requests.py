"""Requests of an administrator to single servers, which need no name server; with errors of the client."""

from __future__ import annotations

import asyncio
from typing import Self

from brokerset_acl.signatures import Sign
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, RequestRefused
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import SwitchOver, SwitchOverResponse
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RequestTimeout
from brokerset_runtime.tls import ClientTls, tls_of_environment

ASK_SECONDS = 5.0
"""Time-out of one request."""


class ServerRequests:
    """Requests over connections that are kept; use it with `async with`."""

    def __init__(
        self, *, timeout: float = ASK_SECONDS, tls: ClientTls | None = None, sign: Sign | None = None
    ) -> None:
        """`timeout` in seconds is that of a request for which no other is said.

        Without `tls` the file that `BROKERSET_TLS_CONFIG_FILE` names says whether connections use TLS, and
        without `sign` the environment whether requests are signed.
        """
        self._timeout = timeout
        self._pool = ConnectionPool(tls=tls if tls is not None else tls_of_environment(), sign=sign)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def request(
        self,
        address: str,
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        ext: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Command:
        """Send a request; raises `RequestRefused` unless its answer has code 0.

        Raises `AnswerTimeout` and `BrokerUnreachable`, too.
        """
        seconds = self._timeout if timeout is None else timeout
        command = Command(code, header.to_ext() if header is not None else dict(ext or {}), body)
        try:
            connection = await self._pool.get(address, seconds)
            answer = await connection.call(command, seconds)
        except RequestTimeout as error:
            raise AnswerTimeout(str(error)) from error
        except (ConnectionClosed, ValueError) as error:
            raise BrokerUnreachable(address, str(error)) from error
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(answer.code, answer.remark or "no reason given", address)
        return answer

    async def hand_over(
        self, master: str, group: str, broker_id: int | None, *, timeout: float
    ) -> SwitchOverResponse:
        """Have the master at an address hand over to another broker of its group (21011).

        None as `broker_id`: to whoever is the furthest. `timeout` in seconds is the master's, which holds
        sends meanwhile. Raises `RequestRefused`; `AnswerTimeout` when the outcome is unknown.
        """
        header = SwitchOver(broker_name=group, to_broker_id=broker_id, timeout_ms=round(timeout * 1000))
        answer = await self.request(
            master, RequestCode.BROKERSET_SWITCH_OVER, header, timeout=timeout + self._timeout
        )
        return SwitchOverResponse.from_ext(answer.ext)
