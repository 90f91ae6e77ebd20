"""The operator is killed in the middle of its work, and the work is finished."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, until

LIGHT = 20.0
BEGIN_SECONDS = 60.0
DRAIN_SECONDS = 300.0
"""A group that goes must be empty for 60 s, and three operators look after it."""

TOPIC = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "Topic",
    "metadata": {"name": "payments"},
    "spec": {"brokerSetRef": {"name": "orders"}, "deletionPolicy": "Delete"},
}


def is_followed(cluster: Cluster, killed: str) -> bool:
    """Whether another operator leads than the one that was killed."""
    return cluster.leader() not in (None, killed)


def kill_and_follow(cluster: Cluster) -> None:
    """Kill the operator that leads, and wait for the next one."""
    killed = cluster.kill_operator()
    until("another operator leads", partial(is_followed, cluster, killed), 60)


def kill_in_the_middle(cluster: Cluster, orders: Deployed, reason: str) -> None:
    """Kill the operator once it has begun, and again when the next one goes on."""
    for _ in range(2):
        until(reason, lambda: orders.condition("Progressing")["reason"] == reason, BEGIN_SECONDS, pause=0.1)
        kill_and_follow(cluster)


def sizes(cluster: Cluster, namespace: str) -> dict[str, str]:
    """What brokers' claims ask for."""
    claims = [c for c in cluster.items("pvc", namespace) if "controller" not in c["metadata"]["name"]]
    return {c["metadata"]["name"]: c["spec"]["resources"]["requests"]["storage"] for c in claims}


def have_grown(cluster: Cluster, namespace: str, size: str) -> bool:
    """Whether claims, and the template for further ones, have this size."""
    keeper = cluster.must_get("statefulset", "orders-0", namespace)
    template = keeper["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    found = sizes(cluster, namespace)
    if set(found.values()) == {size} and template == size:
        return True
    raise ValueError(f"{found}, template {template}")


@pytest.mark.slow
def test_a_roll_is_finished_by_the_next_operator(cluster: Cluster, namespace: str) -> None:
    """Killed twice while pods are replaced; slaves still go first, and nothing acknowledged is lost."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    ids, before = orders.ids(), orders.uids("broker")
    with orders.load(rate=LIGHT) as load:
        orders.change(config={"maxMessageSize": 2097152})

        kill_in_the_middle(cluster, orders, "Rolling")

        orders.wait_replaced(before)
        orders.wait_settled()
        assert orders.ids() == ids
        verdict = load.finish()
        assert verdict["failed"] == 0, verdict


@pytest.mark.slow
def test_scaling_is_finished_by_the_next_operator(cluster: Cluster, namespace: str) -> None:
    """Killed while brokers come, and while they go."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    ids = orders.ids()
    with orders.load(rate=LIGHT) as load:
        orders.change(replicas=5)
        cluster.kill_operator()
        orders.wait_settled(5)

        orders.change(replicas=3)
        kill_in_the_middle(cluster, orders, "Scaling")
        orders.wait_settled(3)

        assert orders.ids() == ids
        load.finish()


@pytest.mark.slow
def test_volumes_are_expanded_by_the_next_operator(cluster: Cluster, namespace: str) -> None:
    """Killed when the first claim has been changed, and again; and killed when the StatefulSet was away for its new template."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    uids = orders.uids()
    with orders.load(rate=LIGHT) as load:
        orders.change(storage={"size": "2Gi"})
        until("it has begun", lambda: "2Gi" in sizes(cluster, namespace).values(), BEGIN_SECONDS, pause=0.05)
        for _ in range(2):
            kill_and_follow(cluster)
        until("volumes have grown", partial(have_grown, cluster, namespace, "2Gi"), 120)
        orders.wait_settled()

        with cluster.without_operator():
            cluster.delete("statefulset", "orders-0", namespace=namespace, propagationPolicy="Orphan")
            orders.change(storage={"size": "3Gi"})
            load.goes_on()
        until("volumes have grown", partial(have_grown, cluster, namespace, "3Gi"), 120)
        orders.wait_settled()

        assert orders.uids() == uids
        verdict = load.finish()
        assert verdict["failed"] == 0, verdict


@pytest.mark.slow
def test_controllers_are_scaled_by_the_next_operator(cluster: Cluster, namespace: str) -> None:
    """Killed while members are added, and while they are removed; they vote one by one, and brokers go on."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1)
    orders.wait_settled(1)
    with orders.load(rate=LIGHT) as load:
        for wanted in (5, 3):
            orders.change(controllers={"replicas": wanted})
            until(
                "it has begun",
                lambda: orders.condition("Progressing")["reason"] == "ChangingControllers",
                BEGIN_SECONDS,
                pause=0.05,
            )
            for _ in range(2):
                kill_and_follow(cluster)
            orders.wait_settled(1, wanted)
            assert sorted(orders.status["controllers"]["voters"]) == list(range(wanted))
        load.goes_on()
        load.finish()


@pytest.mark.slow
def test_a_controller_without_its_volume_is_replaced_by_the_next_operator(
    cluster: Cluster, namespace: str
) -> None:
    """Killed before the new volume's member is out and in again, twice."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1)
    orders.wait_settled(1)
    pod = "orders-controller-1"
    uids = orders.uids()
    with orders.load(rate=LIGHT) as load:
        cluster.delete("pvc", f"data-{pod}", namespace=namespace)
        orders.delete_pods(pod)
        orders.wait_replaced({pod: uids[pod]})
        for _ in range(2):
            kill_and_follow(cluster)

        orders.wait_settled(1)

        assert orders.status["controllers"]["voters"] == [0, 1, 2]
        assert {name: uid for name, uid in orders.uids().items() if name != pod} == {
            name: uid for name, uid in uids.items() if name != pod
        }
        load.goes_on()
        load.finish()


@pytest.mark.slow
def test_a_group_is_added_and_drained_by_the_next_operator(cluster: Cluster, namespace: str) -> None:
    """Killed while the second group comes; killed twice while it waits for its readers, who miss nothing."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    orders.wait_settled(1, 1)
    with orders.load(rate=LIGHT, scan=False) as load:
        orders.change(groups=2)
        kill_and_follow(cluster)
        orders.wait_settled(1, 1, groups=2)
        update = ["topic", "create", load.topic, "--queues", "8", "--update"]
        load.client.run(*update, "--namesrv", load.client.namesrv)
        until("the second group takes messages", partial(takes_messages, load.client.run, load.topic), 30)
        load.goes_on(100)

        orders.change(groups=1)
        kill_in_the_middle(cluster, orders, "DrainingGroup")
        orders.wait_settled(1, 1, seconds=DRAIN_SECONDS)

        assert cluster.get("statefulset", "orders-1", namespace) is None
        assert cluster.get("pvc", "data-orders-1-0", namespace) is not None
        load.goes_on()
        load.finish()


def takes_messages(run: Callable[..., str], topic: str) -> bool:
    """Whether the second group has a topic."""
    return "orders-1" in run("topic", "describe", topic, "--namesrv", "orders-namesrv:9876")


@pytest.mark.slow
def test_deleting_is_finished_without_an_operator_and_with_the_next_one(
    cluster: Cluster, namespace: str
) -> None:
    """A Topic with policy Delete goes though the operator is killed; a set and its volumes go without any operator."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    orders.wait_settled(1, 1)
    cluster.apply(TOPIC, namespace=namespace)
    cluster.wait_condition("topic", "payments", namespace, "Ready", seconds=30)
    client = orders.client()

    cluster.delete("topic", "payments", namespace=namespace)
    kill_and_follow(cluster)
    cluster.wait_gone("topic", "payments", namespace)
    assert "payments" not in client.run("topic", "list", "--namesrv", client.namesrv)

    cluster.delete("brokerset", "orders", namespace=namespace)
    with cluster.without_operator():
        of_the_set = "brokerset.io/set=orders"
        for kind in ("statefulset", "service", "configmap", "pod", "pvc"):
            gone = partial(none_left, cluster, namespace, kind, of_the_set)
            until(f"every {kind} is gone", gone, 120)
    assert cluster.get("brokerset", "orders", namespace) is None


def none_left(cluster: Cluster, namespace: str, kind: str, selector: str) -> bool:
    """Whether no object of a kind is left."""
    left = [one["metadata"]["name"] for one in cluster.items(kind, namespace, selector)]
    if left:
        raise ValueError(f"left are {left}")
    return True
