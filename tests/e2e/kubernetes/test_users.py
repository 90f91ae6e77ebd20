"""A set that runs gets to checked requests while a User's client sends, and nobody else is let in then."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.kubernetes.deployed import RATE, Deployed, Load
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


def make_secret(orders: Deployed, name: str = SECRET, suffix: str = "") -> None:
    """A Secret of the set, as `docs/kubernetes/users.md` wants it; `suffix` is of its passwords."""
    entries = {
        "initAuthenticationUser": json.dumps(ADMIN | {"password": ADMIN["password"] + suffix}),
        "innerClientAuthenticationCredentials": json.dumps(
            INNER | {"secretKey": INNER["secretKey"] + suffix}
        ),
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
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


def named_by(orders: Deployed) -> set[Any]:
    """The Secrets whose users pods of the set have."""
    return {pod["metadata"].get("annotations", {}).get(f"{ACCESS}-secret") for pod in orders.pods().values()}


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


@pytest.mark.slow
def test_a_sets_own_users_get_other_passwords_while_requests_are_checked_and_no_send_fails(
    chart: Cluster, namespace: str
) -> None:
    """Pods are replaced one at a time, the operator makes users meanwhile, and the former passwords end."""
    orders = Deployed(chart, namespace)
    make_secret(orders)
    orders.create(replicas=2, acl={"secretName": SECRET})
    orders.wait_settled(brokers=2)
    policies = [
        {"resources": ["Topic:events"], "actions": ["Pub", "Sub"]},
        {"resources": ["Group:*"], "actions": ["Sub"]},
    ]
    shop = make_user(orders, "shop", policies=policies)
    before = {name: pod["metadata"]["uid"] for name, pod in orders.pods().items()}
    make_secret(orders, "orders-access-2", "-2")
    client = orders.client()
    name, password = ADMIN["username"], ADMIN["password"]
    former = {"BROKERSET_ACCESS_KEY": name, "BROKERSET_SECRET_KEY": password}
    new = {**former, "BROKERSET_SECRET_KEY": password + "-2"}
    create = ("brokerset", "topic", "create", "events", "--queues", "8", "--namesrv", client.namesrv)
    chart.execute(client.pod, namespace, "env", *(f"{k}={v}" for k, v in former.items()), *create)

    load = Load(client, "events", rate=RATE, scan=True, env=shop)
    with contextlib.ExitStack() as ending:
        ending.callback(load.end)
        load.goes_on()
        orders.change(acl={"secretName": "orders-access-2"})
        secrets = {"orders-access-2"}
        until("pods have the other Secret", lambda: named_by(orders) == secrets, CHANGE_SECONDS, pause=1)
        orders.wait_settled(brokers=2)
        load.goes_on()
        verdict = load.finish()

    assert verdict["failed"] == 0, verdict
    assert not set(before.values()) & {pod["metadata"]["uid"] for pod in orders.pods().values()}
    broker = [(f"orders-0-0.orders-0.{namespace}.svc:10911", "broker")]
    assert answers(client, broker, new) == ["answered"]
    until(
        "the former password has ended", lambda: answers(client, broker, former) != ["answered"], 60, pause=1
    )
    make_user(orders, "boss", type="Super")
