"""TLS of the operator's own connections to brokers and controllers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokerset_rig.certificates import Certificates
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import SECONDS_MAX, operator, until
from brokerset_rig.stack import free_port
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE, contexts, tls_of_environment


async def test_a_leading_operator_follows_its_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs for months: certificates that are replaced are used without a restart."""
    monkeypatch.setattr(contexts, "WATCH_SECONDS", 0.05)
    certificates = Certificates(tmp_path)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(certificates.config()))
    tls = tls_of_environment()
    assert tls is not None

    async with FakeKube() as kube, operator(kube) as running:
        await until(lambda: running.process.health.watches)
        certificates.issue("both")
        await until(lambda: tls.reloads == 1)
        await running.end()


async def test_an_operator_that_stands_by_serves_the_certificate_that_is_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the port of probes and metrics; one that is wrong leaves the one before in force."""
    monkeypatch.setattr(contexts, "WATCH_SECONDS", 0.05)
    certificates = Certificates(tmp_path)
    file = certificates.config("operator")
    async with FakeKube() as kube, operator(kube) as leader:
        await until(lambda: leader.process.elector.leads)
        settings: dict[str, Any] = {"http_port": free_port(), "bind_address": "127.0.0.1"}
        async with operator(kube, tls_config_file=file, **settings) as running:
            await until(lambda: running.process.http_port)
            address = ("127.0.0.1", running.process.http_port)
            first = await asyncio.to_thread(certificate_at, address)

            with capture_logs() as lines:
                (tmp_path / "operator.pem").write_text("nonsense")
                await until(lambda: any("changed TLS files are not used" in line["event"] for line in lines))
            assert await asyncio.to_thread(certificate_at, address) == first

            certificates.issue("operator")
            issued = ssl.PEM_cert_to_DER_cert((tmp_path / "operator.pem").read_text())
            async with asyncio.timeout(SECONDS_MAX):
                while await asyncio.to_thread(certificate_at, address) != issued:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.01)
            assert not running.process.elector.leads


def certificate_at(address: tuple[str, int]) -> bytes:
    """What is shown to who connects."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(address, timeout=20))
