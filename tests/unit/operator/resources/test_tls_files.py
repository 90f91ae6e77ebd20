"""Objects of sets whose clients may, or must, use TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.operator.resources.sets import KINDS, Objects, build, container_of, hash_of, template

from brokerset_runtime.tls.config import ClientCertificates, TlsMode, tls_config

TLS: dict[str, Any] = {"tls": {"secretName": "orders-tls"}}
TRUSTING: dict[str, Any] = {"tls": {"secretName": "orders-tls", "trustConfigMap": "orders-authorities"}}
ENFORCING: dict[str, Any] = {"tls": {**TRUSTING["tls"], "mode": "enforcing"}}
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


@pytest.mark.parametrize(
    ("mode", "name"),
    [({}, "orders-controller"), ({}, "orders-0"), (DLEDGER, "orders-0"), (DLEDGER, "orders-namesrv")],
)
def test_pods_that_enforce_tls_use_it_among_themselves_and_trust_the_config_map(
    mode: dict[str, Any], name: str
) -> None:
    """From the variable, which counts before the settings file, to files that the pod has."""
    objects = build({**ENFORCING, **mode})
    container = container_of(objects, name)
    variables = {each["name"]: each.get("value") for each in container["env"]}
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in template(objects, name)["spec"]["volumes"]}

    named = Path(str(variables["BROKERSET_SET_tlsConfigFile"]))

    text = objects["ConfigMap", name]["data"][named.name]
    config = tls_config(pairs(text), folder=named.parent, label=name)
    authorities = Path(mounts["tls-trust"]["mountPath"]) / "ca.crt"
    assert config.mode is TlsMode.ENFORCING
    assert config.enabled
    assert config.verify_server
    assert config.verify_name
    assert (config.server_authorities, config.member_authorities) == (authorities, authorities)
    assert config.server_name == "orders-namesrv.shop.svc", "which docs/kubernetes/tls.md wants in it"
    assert volumes["tls-trust"]["configMap"] == {
        "name": "orders-authorities",
        "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"


@pytest.mark.parametrize(
    ("mode", "name"),
    [({}, "orders-controller"), ({}, "orders-0"), (DLEDGER, "orders-0"), (DLEDGER, "orders-namesrv")],
)
def test_pods_that_require_certificates_have_the_authorities_of_clients(
    mode: dict[str, Any], name: str
) -> None:
    """Next to that of members, which is another one; they show their own certificate where they connect."""
    clients = {"mode": "require", "trustConfigMap": "shop-clients"}
    objects = build({"tls": {"authority": {}, "mode": "enforcing", "clients": clients}, **mode})
    container = container_of(objects, name)
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in template(objects, name)["spec"]["volumes"]}
    variables = {each["name"]: each.get("value") for each in container["env"]}
    named = Path(str(variables["BROKERSET_SET_tlsConfigFile"]))

    config = tls_config(
        pairs(objects["ConfigMap", name]["data"][named.name]), folder=named.parent, label=name
    )

    assert config.client_certificates is ClientCertificates.REQUIRE
    assert config.client_authorities == Path(mounts["tls-clients"]) / "ca.crt"
    assert config.member_authorities == Path(mounts["tls-trust"]) / "ca.crt"
    assert config.client == config.server
    assert volumes["tls-clients"]["configMap"]["name"] == "shop-clients"
    assert volumes["tls-trust"]["configMap"]["name"] == "orders-authority"


def test_clients_that_are_not_asked_yet_replace_no_pod() -> None:
    """`mode: none` is where a set comes from, and where it goes back to."""
    own: dict[str, Any] = {"authority": {}, "mode": "enforcing"}
    without, none = (
        build({"tls": own | more}) for more in ({}, {"clients": {"trustConfigMap": "shop-clients"}})
    )

    for name in ("orders-controller", "orders-0"):
        assert template(none, name) == template(without, name)


def test_prometheus_scrapes_by_tls_what_refuses_plain() -> None:
    """It trusts the same authorities, and expects the same name."""
    monitored = {"monitoring": {"podMonitor": True}}

    (enforcing,) = _endpoints(build({**ENFORCING, **monitored}, api_kinds=KINDS))
    (permissive,) = _endpoints(build({**TRUSTING, **monitored}, api_kinds=KINDS))

    assert enforcing == {
        "port": "http",
        "path": "/metrics",
        "scheme": "https",
        "tlsConfig": {
            "ca": {"configMap": {"name": "orders-authorities", "key": "ca.crt"}},
            "serverName": "orders-namesrv.shop.svc",
        },
    }
    assert permissive == {"port": "http", "path": "/metrics"}


def _endpoints(objects: Objects) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = objects["PodMonitor", "orders"]["spec"]["podMetricsEndpoints"]
    return found


def test_pods_of_all_stages_find_their_files_in_one_config_map() -> None:
    """Old pods read it, too, when a container of theirs is started again."""
    enforcing, trusting = build(ENFORCING), build(TRUSTING)

    for name in ("orders-controller", "orders-0"):
        assert enforcing["ConfigMap", name] == trusting["ConfigMap", name]
        assert hash_of(enforcing, name) != hash_of(trusting, name), "each stage replaces all pods"


def test_operators_of_before_and_now_make_the_same_pods_of_a_permissive_set() -> None:
    """Nothing about a pod says that stages exist, so an upgrade of the operator replaces none."""
    for name in ("orders-controller", "orders-0"):
        text = str(template(build(TLS), name))
        assert "brokerset.io/tls" not in text
        assert "BROKERSET_SET_tlsConfigFile" not in text
        assert "scheme" not in text
