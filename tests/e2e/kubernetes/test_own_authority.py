"""A set with an authority of its own: what is renewed, or asked of clients, while these send."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import ssl
from collections.abc import Iterator

import pytest
from tests.e2e.kubernetes.deployed import RATE, Deployed, Load
from tests.e2e.kubernetes.rig import Cluster, say, until
from tests.e2e.kubernetes.test_tls import (
    CHANGE_SECONDS,
    FOLDER,
    SAVE,
    VARIABLE,
    answers,
    give_files,
    stages,
)

from brokerset_runtime.tls.authority import Authority

SECRET = "orders-certificate"
CONFIG_MAP = "orders-authority"

SPREAD_SECONDS = 120
"""As short as a kubelet allows, which brings what has changed within a minute and a half."""

READ_SECONDS = 300.0
"""Longest time until every pod shows another certificate."""

SHOWN = """
import hashlib, json, ssl, sys

def shown(host, port):
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, port)))).hexdigest()

print(json.dumps([shown(*each) for each in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def chart(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose operator may keep Secrets; it is put back."""
    values = {"tls": {"authority": {"enabled": True}}, "settings": {"trustSpreadSeconds": SPREAD_SECONDS}}
    cluster.install(values=values)
    yield cluster
    cluster.install()


def bundle(orders: Deployed) -> str:
    """Whom to trust, as the operator says it."""
    found: str = orders.cluster.must_get("configmap", CONFIG_MAP, namespace=orders.namespace)["data"][
        "ca.crt"
    ]
    return found


def fingerprint(orders: Deployed) -> str:
    """Of the certificate in the Secret that pods mount."""
    data = orders.cluster.must_get("secret", SECRET, namespace=orders.namespace)["data"]["tls.crt"]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(base64.b64decode(data).decode())).hexdigest()


@pytest.mark.slow
def test_certificate_and_authority_are_renewed_under_load_and_no_send_fails(
    chart: Cluster, namespace: str
) -> None:
    """No pod is replaced or started again: all show the new certificate, then one of the new authority."""
    orders = Deployed(chart, namespace)
    orders.create(replicas=2, tls={"authority": {}, "mode": "enforcing"})
    orders.wait_settled(brokers=2)
    assert stages(orders) == {"enforcing"}
    client = orders.client()
    by_tls = give_files(client, bundle(orders))
    asked = [
        (f"orders-0-0.orders-0.{namespace}.svc:10911", "broker"),
        (f"orders-controller-0.orders-controller.{namespace}.svc:9878", "status"),
    ]
    assert answers(client, asked, by_tls) == ["answered"] * 2
    assert all(text.startswith("refused") for text in answers(client, asked, {}))
    ports = [
        *((f"orders-0-{n}.orders-0.{namespace}.svc", 10911) for n in range(2)),
        *((f"orders-controller-{n}.orders-controller.{namespace}.svc", 9878) for n in range(3)),
    ]
    uids, first = orders.uids(), fingerprint(orders)

    def shown() -> set[str]:
        text = chart.execute(client.pod, namespace, "python", "-", json.dumps(ports), given=SHOWN)
        return set(json.loads(text))

    def give_bundle() -> None:
        chart.execute(client.pod, namespace, "python", "-c", SAVE, f"{FOLDER}/ca.crt", given=bundle(orders))

    variables = [f"{name}={value}" for name, value in by_tls.items()]
    create = ("brokerset", "topic", "create", "events", "--queues", "8", "--namesrv", client.namesrv)
    chart.execute(client.pod, namespace, "env", *variables, *create)
    load = Load(client, "events", rate=RATE, scan=True, env=by_tls)
    with contextlib.ExitStack() as ending:
        ending.callback(load.end)
        load.goes_on()
        orders.annotate(renew_certificates="once")
        until("there is another certificate", lambda: fingerprint(orders) != first, 60, pause=1)
        second = fingerprint(orders)
        until("all pods show it", lambda: shown() == {second}, READ_SECONDS, pause=2)
        load.goes_on()

        orders.annotate(renew_authority="once")
        until("two are trusted", lambda: bundle(orders).count("BEGIN CERT") == 2, 60, pause=1)
        give_bundle()
        assert fingerprint(orders) == second, "the new authority signs before everybody trusts it"
        until("the new one signs", lambda: fingerprint(orders) != second, SPREAD_SECONDS + 120, pause=1)
        third = fingerprint(orders)
        until("all pods show it", lambda: shown() == {third}, READ_SECONDS, pause=2)
        until("one is trusted", lambda: bundle(orders).count("BEGIN CERT") == 1, 2 * SPREAD_SECONDS, pause=1)
        give_bundle()
        orders.wait_settled(brokers=2)
        load.goes_on()
        verdict = load.finish()

    say(f"certificate and authority renewed: {verdict}")
    assert verdict["failed"] == 0, verdict
    assert orders.uids() == uids
    assert all(
        one.get("restartCount") == 0
        for pod in orders.pods().values()
        for one in pod["status"]["containerStatuses"]
    )
    assert answers(client, asked, by_tls) == ["answered"] * 2
    status = orders.status["tls"]
    assert status["authority"]["trusted"] == 1
    assert "PRIVATE" not in json.dumps(orders.status)


@pytest.mark.slow
def test_a_running_set_comes_to_require_certificates_of_clients_while_these_send(
    chart: Cluster, namespace: str
) -> None:
    """Step by step nobody is kept out who shows one: pods, probes, operator and clients; then all others are."""
    orders = Deployed(chart, namespace)
    orders.create(replicas=2, tls={"authority": {}, "mode": "enforcing"})
    orders.wait_settled(brokers=2)
    client = orders.client()
    unsigned = give_files(client, bundle(orders))
    clients = Authority.make("clients of the shop")
    issued = clients.issue("shop")
    keys = {
        "shop.pem": issued.certificate.decode(),
        "shop.key": issued.key.decode(),
        "shop.properties": f"tls.enable=true\ntls.client.trustCertPath={FOLDER}/ca.crt\n"
        "tls.client.certPath=shop.pem\ntls.client.keyPath=shop.key\n",
    }
    for file, text in keys.items():
        chart.execute(client.pod, namespace, "python", "-c", SAVE, f"{FOLDER}/{file}", given=text)
    signed = {VARIABLE: f"{FOLDER}/shop.properties"}
    asked = [
        (f"orders-0-0.orders-0.{namespace}.svc:10911", "broker"),
        (f"orders-controller-0.orders-controller.{namespace}.svc:9878", "status"),
    ]
    data = {"ca.crt": clients.certificate.decode()}
    chart.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shop-clients"}, "data": data},
        namespace=namespace,
    )
    variables = [f"{name}={value}" for name, value in signed.items()]
    create = ("brokerset", "topic", "create", "events", "--queues", "8", "--namesrv", client.namesrv)
    chart.execute(client.pod, namespace, "env", *variables, *create)
    load = Load(client, "events", rate=RATE, scan=True, env=signed)
    with contextlib.ExitStack() as ending:
        ending.callback(load.end)
        load.goes_on()
        orders.change(tls={"clients": {"mode": "require", "trustConfigMap": "shop-clients"}})
        until("all pods require them", lambda: stages(orders) == {"requiring"}, CHANGE_SECONDS, pause=1)
        orders.wait_settled(brokers=2)
        load.goes_on()
        verdict = load.finish()

    say(f"certificates of clients required: {verdict}")
    assert answers(client, asked, signed) == ["answered"] * 2
    assert all(text.startswith("refused") for text in answers(client, asked, unsigned))
    assert orders.status["tls"]["clients"] == "require"
