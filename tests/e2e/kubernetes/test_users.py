"""A set that runs gets to checked requests while a User's client sends, and nobody else is let in then."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Client, Cluster, CommandFailed, until
from tests.e2e.kubernetes.test_tls import answers

SECRET = "orders-access"
ACCESS = "brokerset.io/access"
ADMIN = {"username": "admin", "password": "admin-password"}
INNER = {"accessKey": "broker", "secretKey": "broker-password"}

CHANGE_SECONDS = 600.0
"""Longest time until all pods were replaced twice, one after the other."""


@pytest.fixture
def chart(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose operator may read and write Secrets; it is put back."""
    cluster.install(values={"secrets": {"access": True}})
    yield cluster
    cluster.install()


def make_secret(orders: Deployed) -> None:
    """The Secret of the set, as `docs/kubernetes/users.md` wants it."""
    entries = {
        "initAuthenticationUser": json.dumps(ADMIN),
        "innerClientAuthenticationCredentials": json.dumps(INNER),
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "immutable": True,
        "stringData": entries,
    }
    orders.cluster.apply(secret, namespace=orders.namespace)


def make_user(orders: Deployed, name: str, **spec: Any) -> dict[str, str]:
    """A User that is ready; returns the variables with which programs sign as it."""
    manifest = {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "User",
        "metadata": {"name": name},
        "spec": {"brokerSetRef": {"name": orders.name}, **spec},
    }
    orders.cluster.apply(manifest, namespace=orders.namespace)
    orders.cluster.wait_condition("user", name, orders.namespace, "Ready", seconds=60)
    data = orders.cluster.must_get("secret", f"{name}-credentials", orders.namespace)["data"]
    variables = {"accessKey": "BROKERSET_ACCESS_KEY", "secretKey": "BROKERSET_SECRET_KEY"}
    return {variable: base64.b64decode(data[key]).decode() for key, variable in variables.items()}


def does(orders: Deployed) -> set[Any]:
    """What pods of the set do about access."""
    return {pod["metadata"].get("annotations", {}).get(ACCESS) for pod in orders.pods().values()}


def send(client: Client, env: dict[str, str], topic: str) -> None:
    """One message, by the command."""
    variables = [f"{name}={value}" for name, value in env.items()]
    command = ("brokerset", "send", topic, "--body", "one", "--namesrv", client.namesrv)
    client.cluster.execute(client.pod, client.namespace, "env", *variables, *command)


@pytest.mark.slow
def test_a_users_client_sends_on_while_the_set_gets_to_check_and_nobody_else_is_let_in_then(
    chart: Cluster, namespace: str
) -> None:
    """No acknowledged message is lost on the way; then who does not sign, or may not, is refused, the operator
    still sees the set, and a User that is deleted is out."""
    orders = Deployed(chart, namespace)
    orders.create(replicas=2)
    orders.wait_settled(brokers=2)
    make_secret(orders)
    orders.change(acl={"secretName": SECRET, "mode": "permissive"})
    until("brokers sign", lambda: "signing" in does(orders), CHANGE_SECONDS, pause=1)
    orders.wait_settled(brokers=2)
    policies = [
        {"resources": ["Topic:events"], "actions": ["Pub", "Sub"]},
        {"resources": ["Group:*"], "actions": ["Sub"]},
    ]
    shop = make_user(orders, "shop", policies=policies)
    boss = make_user(orders, "boss", type="Super")

    with orders.load("events", env=shop) as load:
        load.goes_on()
        orders.change(acl={"mode": "enforcing"})
        until("all pods check", lambda: does(orders) == {"checking", "authorizing"}, CHANGE_SECONDS, pause=1)
        orders.wait_settled(brokers=2)
        load.goes_on()
        load.finish()
        client = load.client

    send(client, shop, "events")
    for env, topic in (({}, "events"), (shop, "invoices")):
        with pytest.raises(CommandFailed):
            send(client, env, topic)
    controllers = [f"orders-controller-{n}.orders-controller.{namespace}.svc:9878" for n in range(3)]
    broker = [(f"orders-0-0.orders-0.{namespace}.svc:10911", "broker")]
    asked = [*broker, *((each, "groups_at") for each in controllers)]
    assert all(text.startswith("refused") for text in answers(client, asked, {}))
    admin = {"BROKERSET_ACCESS_KEY": ADMIN["username"], "BROKERSET_SECRET_KEY": ADMIN["password"]}
    assert answers(client, broker, admin) == answers(client, broker, boss) == ["answered"]
    until("the controllers answer", lambda: "answered" in answers(client, asked[1:], admin), 60, pause=1)
    chart.delete("user", "shop", namespace=namespace)
    chart.wait_gone("user", "shop", namespace)
    with pytest.raises(CommandFailed):
        send(client, shop, "events")
    written = json.dumps([orders.status, orders.pods(), chart.items("configmaps", namespace)])
    assert not [
        each
        for each in (ADMIN["password"], INNER["secretKey"], shop["BROKERSET_SECRET_KEY"])
        if each in written
    ]
