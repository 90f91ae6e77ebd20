"""Authorities in memory, and names that certificates must have."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from brokerset_runtime.settings import SettingsError
from brokerset_runtime.tls import trust_of
from brokerset_runtime.tls.authority import Authority
from brokerset_runtime.tls.config import tls_config


def test_authorities_in_memory_are_trusted_and_names_are_checked() -> None:
    """Several of them, as while one takes the place of another."""
    both = b"".join(Authority.make(name).certificate for name in ("old", "new")).decode()

    trust = trust_of(both, "orders-namesrv.shop.svc")

    assert trust.client.cert_store_stats()["x509_ca"] == 2
    assert trust.client.verify_mode is ssl.CERT_REQUIRED
    assert trust.client.check_hostname
    assert trust.client_of_members is None, "who only trusts is no member"


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nQUJD\n", "é"])
def test_a_text_without_a_certificate_is_refused(text: str) -> None:
    """Nobody would be trusted, and no error would say why."""
    with pytest.raises(ValueError, match="no certificate in PEM"):
        trust_of(text, "orders-namesrv.shop.svc")


@pytest.mark.parametrize("key", ["tls.client.authServer", "tls.client.verifyName"])
def test_a_name_that_nobody_checks_is_refused(key: str) -> None:
    """It would promise more than it does."""
    values = {"tls.enable": "true", "tls.client.serverName": "orders", key: "false"}

    with pytest.raises(SettingsError, match=r"tls\.client\.serverName would not be checked"):
        tls_config(values, folder=Path(), label="both")
