"""TLS of the operator's own connections to brokers and controllers."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_rig.certificates import Certificates
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import operator, until
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
