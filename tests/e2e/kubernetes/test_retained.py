"""A set that was deleted comes back from the volumes that it left."""

from __future__ import annotations

from functools import partial

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, broker_set, until

RETAIN = {"size": "1Gi", "whenDeleted": "Retain"}
MESSAGES = 500


def no_pods(orders: Deployed) -> bool:
    """Whether all pods of the set are gone."""
    left = sorted(orders.pods())
    if left:
        raise ValueError(f"left are {left}")
    return True


@pytest.mark.slow
def test_a_deleted_set_comes_back_with_the_same_manifest(cluster: Cluster, namespace: str) -> None:
    """Same ids, same topics, every message; the epoch goes on, and so do sends."""
    orders = Deployed(cluster, namespace)
    orders.create(storage=RETAIN)
    orders.wait_settled()
    ids, epoch = orders.ids(), orders.epoch()
    client = orders.client("events")
    sent = [f"message {number}" for number in range(MESSAGES)]
    client.send("events", sent)
    claims = {
        claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in cluster.items("pvc", namespace)
    }
    uid = cluster.must_get("brokerset", orders.name, namespace)["metadata"]["uid"]

    cluster.delete("brokerset", orders.name, namespace=namespace, seconds=60)
    until("the pods are gone", partial(no_pods, orders), 90)
    orders.create(storage=RETAIN)
    orders.wait_settled()

    assert cluster.must_get("brokerset", orders.name, namespace)["metadata"]["uid"] != uid
    kept = {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in cluster.items("pvc", namespace)}
    assert kept == claims
    assert orders.ids() == ids
    assert orders.epoch() > epoch
    more = [f"later {number}" for number in range(10)]
    client.send("events", more)
    assert sorted(client.consume("events", "readers", MESSAGES + 10)) == sorted(sent + more)


def test_a_deleted_set_comes_back_with_fewer_controllers(cluster: Cluster, namespace: str) -> None:
    """Three volumes and a manifest with one controller: first all three agree, then two of them leave."""
    orders = Deployed(cluster, namespace)
    orders.create(storage=RETAIN, replicas=1)
    orders.wait_settled(1, 3)
    client = orders.client("events")
    client.send("events", ["kept"])

    cluster.delete("brokerset", orders.name, namespace=namespace, seconds=60)
    until("the pods are gone", partial(no_pods, orders), 90)
    orders.create(storage=RETAIN, replicas=1, controllers={"replicas": 1})
    orders.wait_settled(1, 1)

    assert orders.status["controllers"]["voters"] == [0]
    assert client.consume("events", "readers", 1) == ["kept"]
    orders.change(controllers={"replicas": 3})
    orders.wait_settled(1, 3)


@pytest.mark.slow
def test_another_name_gets_nothing_of_what_was_retained(cluster: Cluster, namespace: str) -> None:
    """A set with another name begins with new volumes, and leaves those of the deleted one alone."""
    orders = Deployed(cluster, namespace)
    orders.create(storage=RETAIN, replicas=1, controllers={"replicas": 1})
    orders.wait_settled(1, 1)
    claims = {
        claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in cluster.items("pvc", namespace)
    }
    cluster.delete("brokerset", orders.name, namespace=namespace, seconds=60)

    cluster.apply(broker_set("others", namespace, replicas=1, controllers={"replicas": 1}))
    cluster.wait_condition("brokerset", "others", namespace, "Ready", seconds=60)

    kept = {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in cluster.items("pvc", namespace)}
    assert {name: kept.get(name) for name in claims} == claims
    assert len(kept) == 2 * len(claims)
