"""Volumes grow, get lost, and are copied."""

from __future__ import annotations

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, Object, client_pod, until

LIGHT = 20.0
FORGET_SECONDS = 180.0
"""An id must look lost for 60 s before it is forgotten."""


@pytest.mark.slow
def test_volumes_grow_while_brokers_run(cluster: Cluster, namespace: str) -> None:
    """A larger size reaches claims and template, of controllers their own; no pod is replaced for it."""
    orders = Deployed(cluster, namespace)
    asked = {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "1Gi"}}
    orders.create(controllers={"resources": asked})
    orders.wait_settled()
    uids = orders.uids()
    of_controllers = orders.pods("controller").values()
    assert [pod["spec"]["containers"][0]["resources"] for pod in of_controllers] == [asked] * 3

    orders.change(storage={"size": "2Gi"}, controllers={"storage": {"size": "3Gi"}})

    def grown() -> bool:
        capacities = {
            claim["metadata"]["name"]: claim["status"]["capacity"]["storage"]
            for claim in cluster.items("pvc", namespace)
        }
        own = {size for name, size in capacities.items() if "controller" in name}
        sizes = {name: size for name, size in capacities.items() if "controller" not in name}
        keeper = cluster.get("statefulset", "orders-0", namespace)
        if keeper is None:
            raise ValueError("the StatefulSet is being made again with its new template")
        template = keeper["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
        if set(sizes.values()) == {"2Gi"} and template == "2Gi" and own == {"3Gi"}:
            return True
        raise ValueError(f"{capacities}, template {template}")

    until("claims have grown", grown, 120)
    orders.wait_settled()
    assert orders.uids() == uids


@pytest.mark.slow
def test_a_lost_volume_comes_back_as_a_new_broker(cluster: Cluster, namespace: str) -> None:
    """Claim and pod of a slave are deleted: it is rebuilt from the master under a new id, the old one is forgotten."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    ids, uids = orders.ids(), orders.uids()
    slave = next(pod for pod in sorted(ids) if pod != orders.master())
    with orders.load(rate=LIGHT) as load:
        load.goes_on()
        cluster.delete("pvc", f"data-{slave}", namespace=namespace)
        orders.delete_pods(slave)

        orders.wait_replaced({slave: uids[slave]})
        orders.wait_settled()

        now = orders.ids()
        assert now[slave] not in ids.values()
        assert {pod: now[pod] for pod in ids if pod != slave} == {p: ids[p] for p in ids if p != slave}
        until(
            "the lost id is forgotten",
            lambda: orders.all_ids() == sorted(now.values()),
            FORGET_SECONDS,
            pause=1,
        )
        load.finish()


COPY = "rm -rf /to/* /to/.[!.]* && cp -r --sparse=always /from/. /to/"
"""Commit logs are large files that are mostly empty."""


def copier(cluster: Cluster, source: str, target: str) -> Object:
    """A pod that makes one claim's content that of another one."""
    pod = client_pod("copier", cluster.image, cluster.provider.pull_policy)
    spec = pod["spec"]
    spec["securityContext"]["fsGroup"] = 10001
    spec["restartPolicy"] = "Never"
    spec["containers"][0]["command"] = ["sh", "-c", COPY]
    for name, claim in (("from", source), ("to", target)):
        spec["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
        spec["containers"][0]["volumeMounts"].append({"name": name, "mountPath": f"/{name}"})
    return pod


@pytest.mark.slow
def test_a_copied_volume_is_refused(cluster: Cluster, namespace: str) -> None:
    """Two brokers with one identity: the copy does not serve, the condition says which; a new volume mends it."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    orders.change(replicas=2)
    orders.wait_settled(2)
    ids = orders.ids()
    cluster.apply(copier(cluster, "data-orders-0-1", "data-orders-0-2"), namespace=namespace)
    until(
        "the volume is copied",
        lambda: cluster.must_get("pod", "copier", namespace)["status"]["phase"] == "Succeeded",
        60,
    )
    cluster.delete("pod", "copier", namespace=namespace, seconds=60)

    with orders.load(rate=LIGHT) as load:
        orders.change(replicas=3)

        cluster.wait_condition("brokerset", orders.name, namespace, "IdentityConflict", seconds=90)
        message = orders.condition("IdentityConflict")["message"]
        assert "orders-0-2" in message
        now = orders.ids()
        assert {pod: now.get(pod) for pod in ids} == ids
        load.goes_on()

        cluster.delete("pvc", "data-orders-0-2", namespace=namespace)
        orders.delete_pods("orders-0-2")
        orders.wait_settled(3)
        assert orders.condition("IdentityConflict")["status"] == "False"
        assert orders.ids()["orders-0-2"] not in ids.values()
        load.finish()


@pytest.mark.slow
def test_controllers_that_lost_their_volumes_are_replaced_one_at_a_time(
    cluster: Cluster, namespace: str
) -> None:
    """Each comes back without votes, is taken out and in again, and votes; brokers go on meanwhile."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1)
    orders.wait_settled(1)
    with orders.load(rate=LIGHT) as load:
        for number in range(3):
            pod = f"orders-controller-{number}"
            uid, claim = orders.uids()[pod], cluster.must_get("pvc", f"data-{pod}", namespace)
            cluster.delete("pvc", f"data-{pod}", namespace=namespace)
            orders.delete_pods(pod)
            orders.wait_replaced({pod: uid})
            orders.wait_settled(1)
            assert orders.status["controllers"]["voters"] == [0, 1, 2]
            new = cluster.must_get("pvc", f"data-{pod}", namespace)
            assert new["metadata"]["uid"] != claim["metadata"]["uid"]
        load.goes_on()
        load.finish()
