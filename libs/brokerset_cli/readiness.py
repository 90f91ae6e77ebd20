"""How one sees that a process of a local set serves; also what a broker says is missing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from brokerset_acl.signatures import Credentials, Sign
from brokerset_client.errors import ClientError
from brokerset_client.instance import readable
from brokerset_protocol.bodies.routes import ClusterInfo
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import GetMetaDataResponse
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout, connect
from brokerset_runtime.remoting.signing import sign_of_environment
from brokerset_runtime.settings import ENVIRONMENT_PREFIX
from brokerset_runtime.tls import tls_of_environment
from brokerset_spec.access_settings import inner_credentials_of
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.plan import ProcessPlan

INNER_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}innerClientAuthenticationCredentials"
"""Environment variable: what brokers of the set sign with."""

PROBE_SECONDS_MAX: Final = 1.0
"""Longest time that one probe may take."""

HTTP_BYTES_MAX: Final = 64 * 1024
"""Most bytes of an answer that are read."""


def readiness(process: ProcessPlan, joins: bool) -> Callable[[], Awaitable[bool]]:
    """Return the probe whether a process serves; a controller that joins others need not know a leader."""
    if isinstance(process.settings, NamesrvSettings):
        return partial(name_server_answers, process.address)
    if isinstance(process.settings, BrokerSettings):
        return partial(
            broker_is_found, process.address, process.http_port, process.settings.namesrv_addr.split(";")
        )
    return partial(controller_answers if joins else controller_knows_leader, process.address)


async def broker_is_found(address: str, http_port: int, name_servers: Sequence[str]) -> bool:
    """Whether a broker serves, and clients find it: every name server that answers knows its address."""
    if not await broker_is_ready(address.rpartition(":")[0], http_port):
        return False
    answers = await asyncio.gather(
        *(ask(one, RequestCode.GET_BROKER_CLUSTER_INFO) for one in name_servers if one)
    )
    try:
        tables = [readable(ClusterInfo.from_json, answer.body) for answer in answers if answer is not None]
    except ClientError:
        return False
    return all(
        any(address in data.broker_addrs.values() for data in table.broker_addr_table.values())
        for table in tables
    )


async def broker_is_ready(host: str, http_port: int) -> bool:
    """Whether a broker has its identity and its role, and serves."""
    return await broker_problems(host, http_port) == []


async def broker_problems(host: str, http_port: int) -> list[str] | None:
    """What a broker says about why it does not serve; empty when it does, None when it says nothing."""
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            tls = tls_of_environment()
            context = None if tls is None else tls.http_client
            reader, writer = await asyncio.open_connection(host, http_port, ssl=context)
            try:
                writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
                head, _, body = (await _read_all(reader)).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    status = head.split(b" ", 2)[1:2]
    if status == [b"200"]:
        return []
    return body.decode("utf-8", "replace").splitlines() if status == [b"503"] else None


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while len(found) < HTTP_BYTES_MAX:
        part = await reader.read(HTTP_BYTES_MAX)
        if not part:
            break
        found += part
    return found


async def name_server_answers(address: str) -> bool:
    """Whether a name server answers at all."""
    answer = await ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
    return answer is not None and answer.code == ResponseCode.SUCCESS


async def controller_knows_leader(address: str) -> bool:
    """Whether the controllers, as this one sees them, have a leader."""
    answer = await ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return False
    found = GetMetaDataResponse.from_ext(answer.ext)
    return found.is_leader or bool(found.controller_leader_address)


async def controller_answers(address: str) -> bool:
    """Whether a controller answers at all, as one that waits to be added does."""
    answer = await ask(address, RequestCode.BROKERSET_CONTROLLER_STATUS)
    return answer is not None and answer.code == ResponseCode.SUCCESS


def _own_sign() -> Sign | None:
    """Signs as brokers of the set do, if nobody else is in the environment that its processes get."""
    if sign_of_environment() is not None:
        return None
    inner = inner_credentials_of(os.environ.get(INNER_VARIABLE, ""))
    return None if inner is None else Credentials(*inner).sign


async def ask(address: str, code: RequestCode) -> Command | None:
    """Send a process a request that needs no header; None when it gives no answer."""
    try:
        connection = await connect(
            address, timeout=PROBE_SECONDS_MAX, tls=tls_of_environment(), sign=_own_sign()
        )
    except ConnectionClosed:
        return None
    try:
        return await connection.call(Command(code), PROBE_SECONDS_MAX)
    except (ConnectionClosed, RequestTimeout):
        return None
    finally:
        connection.close()
