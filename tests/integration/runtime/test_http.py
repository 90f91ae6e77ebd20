"""The HTTP endpoint of a process."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

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


async def test_metrics_tell_who_fails_to_come_in_and_until_when_certificates_are_good(
    certificates: Certificates,
) -> None:
    """One connection without TLS and one with half a handshake are counted; a new certificate ends later."""
    certificates.issue("both", lifetime=timedelta(days=1))
    tls = Tls(certificates.config())

    async def samples(address: str) -> dict[tuple[str, str], float]:
        _, body = await get(f"https://{address}/metrics", certificates)
        return {
            (sample.name, next(iter(sample.labels.values()), "")): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
            if sample.name.startswith("brokerset_tls")
        }

    async with serving(tls) as address:
        host, _, port = address.rpartition(":")
        for begin in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\x04abcd"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(begin)
            await asyncio.wait_for(reader.read(), 20)
            writer.close()
            await writer.wait_closed()
        found = await samples(address)
        assert found["brokerset_tls_plain_refused_total", "http"] == 1
        assert found["brokerset_tls_handshakes_failed_total", "http"] == 1
        assert found["brokerset_tls_handshakes_failed_total", "clients"] == 0
        end = found["brokerset_tls_certificate_end_seconds", "clients"]
        assert 23 * 3600 < end - time.time() <= 24 * 3600

        certificates.issue("both", lifetime=timedelta(days=30))
        assert await asyncio.to_thread(tls.refresh)
        found = await samples(address)
        assert found["brokerset_tls_certificate_end_seconds", "clients"] > end + 86_400
        assert found["brokerset_tls_reloads_total", ""] == 1
