"""Probes to single brokers of either make, without a name server between."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientError,
    NameServerUnavailable,
    RequestRefused,
)
from brokerset_client.instance import readable
from brokerset_formats import fastjson
from brokerset_formats.errors import FormatError
from brokerset_protocol import headers
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.bodies.routes import ClusterInfo
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import SwitchOver, SwitchOverResponse
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RequestTimeout
from brokerset_runtime.tls import tls_of_environment

ASK_SECONDS: Final = 5.0
"""Time-out of one query."""

CONNECT_SECONDS: Final = 1.0
"""How long it is tried to reach an address that may be closed."""

NO_TOPIC: Final = "no topic has such a name!"
"""Not allowed as a name, so that a message to it is never stored, whatever a broker thinks of messages."""

NOT_YET: Final = "broker unable to service, until"
"""How Java's `SendMessageProcessor.preSend` says that `startAcceptSendRequestTimeStamp` lies ahead."""

_RUNTIME: Final = re.compile(r"(\d+) days?, *(\d+) hours?, *(\d+) minutes?, *(\d+) seconds?")


class BrokerQueries:
    """Connections to brokers; use it with `async with`. Everything raises `ClientError`s."""

    def __init__(self) -> None:
        self._pool = ConnectionPool(tls=tls_of_environment())

    async def __aenter__(self) -> BrokerQueries:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        timeout: float = ASK_SECONDS,
    ) -> Command:
        """The answer, whatever its code."""
        command = Command(code, header.to_ext() if header is not None else {}, body)
        try:
            connection = await self._pool.get(address, CONNECT_SECONDS)
            return await connection.call(command, timeout)
        except RequestTimeout as error:
            raise AnswerTimeout(str(error)) from error
        except (ConnectionClosed, ValueError) as error:
            raise BrokerUnreachable(address, str(error)) from error

    async def request(
        self,
        address: str,
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        timeout: float = ASK_SECONDS,
    ) -> Command:
        """The answer of code 0. Raises `RequestRefused`."""
        answer = await self.ask(address, code, header, body, timeout=timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(answer.code, answer.remark or "no reason given", address)
        return answer

    async def cluster_info(self, name_servers: Iterable[str]) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO (106), of the first name server that answers."""
        problem: ClientError | None = None
        for address in name_servers:
            try:
                answer = await self.request(address, RequestCode.GET_BROKER_CLUSTER_INFO)
                return readable(ClusterInfo.from_json, answer.body)
            except ClientError as error:
                problem = error
        raise problem or NameServerUnavailable(())

    async def answers(self, address: str) -> bool:
        """Whether something listens there."""
        try:
            await self._pool.get(address, CONNECT_SECONDS)
        except (ConnectionClosed, RequestTimeout, ValueError):
            return False
        return True

    async def settings(self, address: str) -> dict[str, str]:
        """GET_BROKER_CONFIG (26)."""
        answer = await self.request(address, RequestCode.GET_BROKER_CONFIG)
        return readable(properties_text.from_text, answer.body)

    async def change(self, address: str, changes: Mapping[str, str]) -> None:
        """UPDATE_BROKER_CONFIG (25)."""
        body = properties_text.to_text(dict(changes))
        await self.request(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def measurements(self, address: str) -> dict[str, str]:
        """GET_BROKER_RUNTIME_INFO (28)."""
        answer = await self.request(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(readable(KVTable.from_json, answer.body).table)

    async def epochs(self, address: str) -> EpochEntryCache:
        """GET_BROKER_EPOCH_CACHE (1007)."""
        answer = await self.request(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return readable(EpochEntryCache.from_json, answer.body)

    async def log_end(self, address: str) -> int:
        """End of the log, in bytes."""
        return int((await self.measurements(address))["commitLogMaxOffset"])

    async def table(self, address: str, code: RequestCode, key: str) -> dict[str, Any]:
        """One table of an answer in JSON, such as the topics of 21; empty when there is none."""
        value = readable(_loads, (await self.request(address, code)).body)
        found = value.get(key) if isinstance(value, dict) else None
        return found if isinstance(found, dict) else {}

    async def refuses_sends(self, address: str) -> bool:
        """Whether a Java broker turns every send away because of `startAcceptSendRequestTimeStamp`.

        It checks that before the topic, so a send to a topic that cannot be tells it.
        """
        header = headers.SendMessage(
            producer_group="brokerset-adopt",
            topic=NO_TOPIC,
            default_topic=NO_TOPIC,  # as old brokers make topics whatever their names are
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="",
        )
        answer = await self.ask(address, RequestCode.SEND_MESSAGE, header, b"-")
        return answer.code == ResponseCode.SYSTEM_ERROR and NOT_YET in (answer.remark or "")

    async def switch_over(self, address: str, group: str, to: int, seconds: float) -> SwitchOverResponse:
        """BROKERSET_SWITCH_OVER (21011), to a master of ours."""
        header = SwitchOver(broker_name=group, to_broker_id=to, timeout_ms=round(seconds * 1000))
        code = RequestCode.BROKERSET_SWITCH_OVER
        answer = await self.request(address, code, header, timeout=seconds + 2 * ASK_SECONDS)
        return SwitchOverResponse.from_ext(answer.ext)


def clock_ms(measurements: Mapping[str, str]) -> int | None:
    """What a broker's clock shows, to the second: its start and how long it runs; None if it does not say."""
    found = _RUNTIME.search(measurements.get("runtime", ""))
    try:
        boot = int(measurements["bootTimestamp"])
    except (KeyError, ValueError):
        return None
    if found is None:
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    return boot + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def _loads(body: bytes) -> object:
    try:
        return fastjson.loads(body)
    except FormatError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
