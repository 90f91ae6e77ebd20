"""The operator's process on a real cluster: it starts, leads, stands by, and reacts."""

from __future__ import annotations

from tests.e2e.kubernetes.rig import OPERATOR, SYSTEM, Cluster, broker_set, until


def test_one_of_two_operators_leads(cluster: Cluster) -> None:
    """Both pods are ready, and one of them has the Lease."""
    leader = until("an operator leads", cluster.leader, 30)

    assert len(cluster.operator_pods()) == 2
    assert leader in cluster.operator_pods()


def test_another_operator_takes_over_when_the_leader_is_killed(cluster: Cluster) -> None:
    """A leader that goes is followed, at the latest when its Lease has run out."""
    killed = cluster.kill_operator()

    until("another one leads", lambda: cluster.leader() not in (None, killed), 40)
    cluster.wait_rolled_out(f"deployment/{OPERATOR}", SYSTEM)


def test_the_smallest_set_serves_clients_within_a_minute(cluster: Cluster, namespace: str) -> None:
    """Applied with kubectl, a set is Ready in 60 s, has a topic, takes messages and gives them back."""
    cluster.apply(broker_set("orders", namespace))
    cluster.wait_condition("brokerset", "orders", namespace, "Ready", seconds=60)
    topic = {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": "payments", "namespace": namespace},
        "spec": {"brokerSetRef": {"name": "orders"}, "deletionPolicy": "Delete"},
    }
    cluster.apply(topic)
    cluster.wait_condition("topic", "payments", namespace, "Ready", seconds=30)
    client = cluster.client(namespace, "orders")
    sent = [f"message {number}" for number in range(100)]

    client.send("payments", sent)

    assert sorted(client.consume("payments", "readers", len(sent))) == sorted(sent)
    cluster.delete("topic", "payments", namespace=namespace, seconds=30)
    assert "payments" not in client.run("topic", "list", "--namesrv", client.namesrv)


def test_what_somebody_deletes_comes_back(cluster: Cluster, namespace: str) -> None:
    """A child that is gone is made again by its event, without waiting for a regular look."""
    cluster.apply(broker_set("orders", namespace, replicas=1, controllers={"replicas": 1}))
    cluster.wait_condition("brokerset", "orders", namespace, "Ready", seconds=60)

    cluster.delete("configmap", "orders-0", namespace=namespace)
    cluster.delete("service", "orders-namesrv", namespace=namespace)

    until("the settings are back", lambda: cluster.get("configmap", "orders-0", namespace), 10)
    until("the Service is back", lambda: cluster.get("service", "orders-namesrv", namespace), 10)
