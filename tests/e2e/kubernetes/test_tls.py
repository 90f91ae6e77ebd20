"""A set that runs, and gets from plain requests to TLS alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Client, Cluster, CommandFailed, Object, until

from brokerset_runtime.tls.authority import Authority

CERTIFICATES = "orders-tls"
AUTHORITIES = "orders-authorities"
STAGE = "brokerset.io/tls"
FOLDER = "/tmp/tls"
VARIABLE = "BROKERSET_TLS_CONFIG_FILE"

CHANGE_SECONDS = 600.0
"""Longest time until all pods were replaced twice, one after the other."""

SAVE = """
import pathlib, sys
file = pathlib.Path(sys.argv[1])
file.parent.mkdir(exist_ok=True)
file.write_text(sys.stdin.read())
"""

ASK = """
import asyncio, json, sys
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError

async def ask(address, request):
    async with ControllerAdmin(address, timeout=5) as admin:
        try:
            await getattr(admin, request)(address)
            return "answered"
        except ClientError as error:
            return f"refused: {error}"

async def ask_all():
    return [await ask(address, request) for address, request in json.loads(sys.argv[1])]

print(json.dumps(asyncio.run(ask_all())))
"""


def make_certificates(cluster: Cluster, namespace: str, trusted: str | None = None) -> str:
    """A Secret and a ConfigMap, as `docs/kubernetes/tls.md` wants them; returns what clients trust.

    `trusted` is what the ConfigMap has instead of the authority.
    """
    authority = Authority.make("tests")
    hosts = [
        f"orders-namesrv.{namespace}.svc",
        f"*.orders-controller.{namespace}.svc",
        f"orders-0-master.{namespace}.svc",
        f"*.orders-0.{namespace}.svc",
    ]
    issued = authority.issue("orders", hosts)
    trusted = trusted or authority.certificate.decode()
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": CERTIFICATES},
            "stringData": {"tls.crt": issued.certificate.decode(), "tls.key": issued.key.decode()},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": AUTHORITIES},
            "data": {"ca.crt": trusted},
        },
        namespace=namespace,
    )
    return trusted


def give_files(client: Client, trusted: str) -> dict[str, str]:
    """Files of a TLS client in its pod; returns the variable that names them."""
    keys = f"tls.enable=true\ntls.client.trustCertPath={FOLDER}/ca.crt\n"
    for file, text in (("ca.crt", trusted), ("clients.properties", keys)):
        client.cluster.execute(
            client.pod, client.namespace, "python", "-c", SAVE, f"{FOLDER}/{file}", given=text
        )
    return {VARIABLE: f"{FOLDER}/clients.properties"}


def answers(client: Client, asked: list[tuple[str, str]], env: dict[str, str]) -> list[str]:
    """What each address says to a request, asked from the client's pod."""
    variables = [f"{name}={value}" for name, value in env.items()]
    text = client.cluster.execute(
        client.pod, client.namespace, "env", *variables, "python", "-", json.dumps(asked), given=ASK
    )
    found: list[str] = json.loads(text)
    return found


def stages(orders: Deployed) -> set[Any]:
    """The stages of TLS that pods of the set are in."""
    return {stage_of(pod) for pod in orders.pods().values()}


def stage_of(pod: Object) -> Any:
    """The stage of TLS that a pod is in."""
    return pod["metadata"].get("annotations", {}).get(STAGE)


def test_a_running_set_gets_to_tls_alone_while_clients_send_and_outsiders_are_refused_then(
    cluster: Cluster, namespace: str
) -> None:
    """From `permissive` to `enforcing` nothing acknowledged is lost; then broker and controller refuse plain
    requests, answer TLS, and the operator still sees the set."""
    orders = Deployed(cluster, namespace)
    trusted = make_certificates(cluster, namespace)
    orders.create(replicas=2, tls={"secretName": CERTIFICATES, "trustConfigMap": AUTHORITIES})
    orders.wait_settled(brokers=2)
    client = orders.client()
    by_tls = give_files(client, trusted)
    asked = [
        (f"orders-0-0.orders-0.{namespace}.svc:10911", "broker"),
        (f"orders-controller-0.orders-controller.{namespace}.svc:9878", "status"),
    ]
    assert answers(client, asked, {}) == ["answered"] * 2
    assert answers(client, asked, by_tls) == ["answered"] * 2
    assert stages(orders) == {"accepting"}

    with orders.load("events", env=by_tls) as load:
        load.goes_on()
        orders.change(tls={"mode": "enforcing"})
        until("all pods refuse plain", lambda: stages(orders) == {"enforcing"}, CHANGE_SECONDS, pause=1)
        orders.wait_settled(brokers=2)
        load.goes_on()
        load.finish()

    plain = answers(client, asked, {})
    assert all(text.startswith("refused") for text in plain), plain
    assert answers(client, asked, by_tls) == ["answered"] * 2
    with pytest.raises(CommandFailed):
        client.send("events", ["from outside"])


@pytest.mark.slow
def test_authorities_that_are_wrong_stop_at_the_first_pod_and_the_way_back_is_open(
    cluster: Cluster, namespace: str
) -> None:
    """One controller connects by TLS and trusts nobody; the others serve, and `permissive` mends the set."""
    orders = Deployed(cluster, namespace)
    make_certificates(cluster, namespace, Authority.make("another").certificate.decode())
    orders.create(replicas=1, tls={"secretName": CERTIFICATES, "trustConfigMap": AUTHORITIES})
    orders.wait_settled(brokers=1)
    client = orders.client("events")

    def stopped() -> str | None:
        for name, pod in orders.pods("controller").items():
            running = any("running" in one["state"] for one in pod["status"].get("containerStatuses") or ())
            if stage_of(pod) == "connecting" and running:
                return name
        return None

    orders.change(tls={"mode": "enforcing"})
    first = until("the first pod connects by TLS", stopped, 120)
    client.send("events", ["while it stops"])
    asked = [(f"orders-controller-{n}.orders-controller.{namespace}.svc:9878", "status") for n in range(3)]
    until("all controllers answer", lambda: answers(client, asked, {}) == ["answered"] * 3, 60)
    assert [name for name, pod in orders.pods().items() if stage_of(pod) != "accepting"] == [first]

    orders.change(tls={"mode": "permissive"})
    until("all pods are back", lambda: stages(orders) == {"accepting"}, 180, pause=1)
    orders.wait_settled(brokers=1)
    assert client.consume("events", "readers", 1) == ["while it stops"]
