"""Brokers, groups and controllers come and go under a writer, and nothing acknowledged is lost."""

from __future__ import annotations

import json

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, CommandFailed, until

LIGHT = 20.0
"""Messages in a second."""

DRAIN_SECONDS = 240.0
"""A group that goes must be empty for 60 s."""


@pytest.mark.slow
def test_a_group_grows_and_shrinks_again(cluster: Cluster, namespace: str) -> None:
    """Three brokers, five, and three: the first ones keep their ids; those that went are fenced while their volumes stay."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    ids = orders.ids()
    with orders.load(rate=LIGHT) as load:
        orders.change(replicas=5)
        orders.wait_settled(5)
        grown = orders.ids()
        assert {pod: grown[pod] for pod in ids} == ids
        assert len(set(grown.values())) == 5
        load.goes_on()

        orders.change(replicas=3)
        orders.wait_settled(3)

        assert orders.ids() == ids
        gone = set(grown.values()) - set(ids.values())
        assert {number: orders.roles()[number] for number in gone} == dict.fromkeys(gone, "fenced")
        load.goes_on()
        load.finish()


@pytest.mark.slow
def test_a_group_is_added_and_drained_again(cluster: Cluster, namespace: str) -> None:
    """Topics reach the new group; it goes only when its messages were read, and its volumes stay."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    orders.wait_settled(1, 1)
    with orders.load(rate=LIGHT, scan=False) as load:
        orders.change(groups=2)
        orders.wait_settled(1, 1, groups=2)
        load.client.run(
            "topic", "create", load.topic, "--queues", "8", "--update", "--namesrv", load.client.namesrv
        )
        until(
            "the second group takes messages",
            lambda: (
                "orders-1"
                in load.client.run("topic", "describe", load.topic, "--namesrv", load.client.namesrv)
            ),
            30,
        )
        load.goes_on(100)

        orders.change(groups=1)
        orders.wait_settled(1, 1, seconds=DRAIN_SECONDS)

        assert cluster.get("statefulset", "orders-1", namespace) is None
        assert cluster.get("pvc", "data-orders-1-0", namespace) is not None
        load.goes_on()
        load.finish()


@pytest.mark.slow
def test_a_set_grows_to_five_controllers_and_shrinks_again(cluster: Cluster, namespace: str) -> None:
    """Members follow pods one at a time, while brokers go on."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1)
    orders.wait_settled(1, 3)
    with orders.load(rate=LIGHT) as load:
        orders.change(controllers={"replicas": 5})
        orders.wait_settled(1, 5)
        assert sorted(orders.status["controllers"]["voters"]) == [0, 1, 2, 3, 4]

        orders.change(controllers={"replicas": 3})
        orders.wait_settled(1, 3)

        assert sorted(orders.status["controllers"]["voters"]) == [0, 1, 2]
        load.goes_on()
        load.finish()


def test_kubectl_scale_changes_the_number_of_groups(cluster: Cluster, namespace: str) -> None:
    """Out as an edit does it; in by draining first: the group that is to go stays, and is read-only."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    path = f"/apis/brokerset.io/v1alpha1/namespaces/{namespace}/brokersets/orders/scale"

    cluster.kubectl("scale", "bset", "orders", "--replicas=2", namespace=namespace)
    orders.wait_settled(1, 1, groups=2)

    scale = json.loads(cluster.kubectl("get", "--raw", path))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    selected = cluster.items("pods", namespace, scale["status"]["selector"])
    assert [pod["metadata"]["name"] for pod in selected] == ["orders-0-0", "orders-1-0"]
    with pytest.raises(CommandFailed, match="greater than or equal to 1"):
        cluster.kubectl("scale", "bset", "orders", "--replicas=0", namespace=namespace)

    cluster.kubectl("scale", "bset", "orders", "--replicas=1", namespace=namespace)
    cluster.wait_condition("brokerset", "orders", namespace, "Progressing", reason="DrainingGroup")
    assert cluster.must_get("statefulset", "orders-1", namespace)["spec"]["replicas"] == 1
    settings = cluster.must_get("configmap", "orders-1", namespace)["data"]["broker.properties"]
    assert "brokerPermission=4" in settings.splitlines()
