"""The HTTP endpoint of a process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from brokerset_rig.certificates import Certificates
from brokerset_runtime.http import HttpEndpoint
from brokerset_runtime.tls import Tls


async def _get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def _serve() -> None:
    registry = CollectorRegistry()
    Counter("rocketmq_messages_in", "Messages taken", registry=registry).inc(3)
    reasons = ["the store is being recovered"]
    endpoint = HttpEndpoint(ready=lambda: reasons, metrics=lambda: registry)
    port = await endpoint.start("127.0.0.1", 0)

    assert await _get(port, "/healthz") == (200, "ok\n")
    assert await _get(port, "/readyz") == (503, "the store is being recovered\n")
    reasons.clear()
    assert await _get(port, "/readyz") == (200, "ok\n")
    status, text = await _get(port, "/metrics")
    assert status == 200
    assert "rocketmq_messages_in_total 3.0" in text
    assert (await _get(port, "/nothing"))[0] == 404

    second = HttpEndpoint()
    with pytest.raises(OSError, match="in use"):
        await second.start("127.0.0.1", port)
    await second.close()
    await endpoint.close()
    await endpoint.close()


def test_health_readiness_and_metrics_are_served_until_closed() -> None:
    asyncio.run(_serve())


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@asynccontextmanager
async def serving(tls: Tls) -> AsyncIterator[str]:
    """The address of an endpoint."""
    endpoint = HttpEndpoint()
    port = await endpoint.start("127.0.0.1", 0, tls)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await endpoint.close()


async def get(url: str, certificates: Certificates) -> tuple[int, bytes]:
    """Status and body of one request; by `https` whoever answers must have a certificate of the authority."""
    context = ssl.create_default_context(cafile=certificates.folder / "authority.pem")
    timeout = aiohttp.ClientTimeout(20)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=context) as answer:
        return answer.status, await answer.read()


async def test_where_tls_is_enforced_only_https_is_answered(certificates: Certificates) -> None:
    """Without a certificate of the client's, even where remoting demands one: probes have none."""
    file = certificates.config(
        tls_server_need_client_auth="require", tls_server_trustCertPath="authority.pem"
    )

    async with serving(Tls(file)) as address:
        status, body = await get(f"https://{address}/metrics", certificates)
        assert status == 200
        assert b"python_info" in body
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await get(f"http://{address}/healthz", certificates)


@pytest.mark.parametrize(
    ("keys", "by_tls"), [({"tls_server_mode": "permissive"}, True), ({"tls_http_enable": "false"}, False)]
)
async def test_plain_requests_are_answered_where_they_are_let_in(
    certificates: Certificates, keys: dict[str, str], by_tls: bool
) -> None:
    """In mode `permissive` both come to one port; `tls.http.enable=false` leaves the port as it was."""
    async with serving(Tls(certificates.config(**keys))) as address:
        assert await get(f"http://{address}/healthz", certificates) == (200, b"ok\n")
        if by_tls:
            assert await get(f"https://{address}/healthz", certificates) == (200, b"ok\n")
        else:
            with pytest.raises(aiohttp.ClientConnectionError):
                await get(f"https://{address}/healthz", certificates)


async def test_a_rotated_certificate_is_shown_to_new_connections(certificates: Certificates) -> None:
    """Without a restart, and the connection that is open goes on."""
    tls = Tls(certificates.config())
    async with serving(tls) as address, aiohttp.ClientSession() as session:
        context = ssl.create_default_context(cafile=certificates.folder / "authority.pem")

        async def shown() -> int:
            host, _, port = address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            certificate = writer.get_extra_info("peercert")
            writer.close()
            return int(certificate["serialNumber"], 16)

        async with session.get(f"https://{address}/healthz", ssl=context) as answer:
            assert answer.status == 200
        before = await shown()
        certificates.issue("both")
        assert await asyncio.to_thread(tls.refresh)
        assert await shown() != before
        async with session.get(f"https://{address}/healthz", ssl=context) as answer:
            assert answer.status == 200
