"""Two installations of the operator with different images, which see the same sets."""

from __future__ import annotations

import time

from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import OPERATOR, SYSTEM, Cluster, until

FIRST = f"{SYSTEM}/{OPERATOR}"
WATCHED_SECONDS = 5.0
"""Before, they made ten generations of a StatefulSet in this time."""


def test_the_second_operator_leaves_a_set_alone_until_it_is_handed_over(
    cluster: Cluster, namespace: str
) -> None:
    """It says so in a condition; an annotation hands the set over, and a Lease that is gone hands it back."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    orders.wait_settled(1, 1)
    before = generations(orders)
    assert orders.status["operator"] == FIRST

    with cluster.another_operator("second-system", {"brokerImage": "brokerset:other"}) as second:
        until("it refuses", lambda: orders.condition("OperatorConflict")["status"] == "True", 60)
        message = orders.condition("OperatorConflict")["message"]
        assert f"the operator {FIRST} looks after this set" in message
        assert f"the operator {second} leaves it alone" in message
        cluster.delete("configmap", "orders-0", namespace=namespace)
        time.sleep(WATCHED_SECONDS)
        assert generations(orders) == before

        orders.change(image=cluster.image)
        orders.annotate(operator=second)
        until("it takes the set", lambda: orders.status["operator"] == second, 60)
        until("nobody refuses", lambda: orders.condition("OperatorConflict")["reason"] == "Absent", 30)
        orders.annotate(operator=None)
        until("the first one refuses", lambda: FIRST in orders.condition("OperatorConflict")["message"], 60)

    orders.annotate(paused="false")  # what is changed is looked at soon
    until("the first one takes it again", lambda: orders.status["operator"] == FIRST, 60)
    orders.wait_settled(1, 1)


def generations(orders: Deployed) -> dict[str, int]:
    """How often the manifest of each StatefulSet was changed."""
    selector = f"brokerset.io/set={orders.name}"
    found = orders.cluster.items("statefulset", orders.namespace, selector)
    return {one["metadata"]["name"]: one["metadata"]["generation"] for one in found}
