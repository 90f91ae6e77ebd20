"""Objects of sets whose clients may use TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.operator.resources.sets import build, container_of, hash_of, template

from brokerset_runtime.tls.config import TlsMode, tls_config

TLS: dict[str, Any] = {"tls": {"secretName": "orders-tls"}}
DLEDGER: dict[str, Any] = {"replication": {"mode": "dledger"}}


def pairs(text: str) -> dict[str, str]:
    """What a settings file says."""
    lines = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    return {name: value for name, _, value in lines}


@pytest.mark.parametrize(
    ("mode", "name", "file"),
    [
        ({}, "orders-controller", "controller.properties"),
        ({}, "orders-0", "broker.properties"),
        (DLEDGER, "orders-0", "broker.properties"),
        (DLEDGER, "orders-namesrv", "namesrv.properties"),
    ],
)
def test_each_process_is_led_to_files_that_its_pod_has(mode: dict[str, Any], name: str, file: str) -> None:
    """From the setting to the mounted file of keys, and from there to the entries of the Secret."""
    objects = build({**TLS, **mode})
    files = objects["ConfigMap", name]["data"]
    mounts = {each["name"]: each for each in container_of(objects, name)["volumeMounts"]}
    volumes = {each["name"]: each for each in template(objects, name)["spec"]["volumes"]}

    named = Path(pairs(files[file])["tlsConfigFile"])

    assert str(named.parent) == mounts["settings"]["mountPath"]
    config = tls_config(pairs(files[named.name]), folder=named.parent, label=name)
    assert config.mode is TlsMode.PERMISSIVE, "the operator and the pods connect without TLS"
    assert not config.enabled
    folder, secret = mounts["tls"]["mountPath"], volumes["tls"]["secret"]
    assert secret["secretName"] == "orders-tls"
    assert {f"{folder}/{each['path']}": each["key"] for each in secret["items"]} == {
        str(config.server and config.server.certificate): "tls.crt",
        str(config.server and config.server.key): "tls.key",
    }
    assert "subPath" not in mounts["tls"], "a file alone would never be renewed"
    assert mounts["tls"]["readOnly"]


def test_turning_it_on_replaces_all_pods_and_leaving_it_out_changes_nothing() -> None:
    """Sets that were there before the field did anything keep their pods."""
    plain, nothing, secured = build(), build({"tls": {"secretName": None}}), build(TLS)

    assert nothing == plain
    assert "tls" not in str(plain)
    for name in ("orders-controller", "orders-0"):
        assert hash_of(secured, name) != hash_of(plain, name)


def test_the_operator_makes_no_secret_and_takes_no_right_on_one() -> None:
    """It is the kubelet that mounts the Secret."""
    secured = build(TLS)

    assert secured.keys() == build().keys()
    assert all(
        "secrets" not in rule["resources"]
        for (kind, _), each in secured.items()
        if kind == "Role"
        for rule in each["rules"]
    )
    assert "secret" not in str([each for (kind, _), each in secured.items() if kind == "ConfigMap"]).lower()
