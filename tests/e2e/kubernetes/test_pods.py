"""Pods go and come back: new addresses, the same brokers, and nothing acknowledged is lost."""

from __future__ import annotations

from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster


def test_pods_deleted_one_by_one_and_all_at_once_come_back_as_the_same_brokers(
    cluster: Cluster, namespace: str
) -> None:
    """Each pod of a set is deleted, then all of them: ids stay, addresses change, nothing is lost."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    ids, ips = orders.ids(), orders.ips()
    assert sorted(ids) == ["orders-0-0", "orders-0-1", "orders-0-2"]

    with orders.load() as load:
        for pod, uid in orders.uids().items():
            orders.delete_pods(pod)
            orders.wait_replaced({pod: uid})
            orders.wait_settled()
        assert orders.ids() == ids
        one_by_one = orders.ips()
        assert all(one_by_one[pod] != ip for pod, ip in ips.items()), (ips, one_by_one)
        load.goes_on()

        before = orders.uids()
        orders.delete_pods(*before)
        orders.wait_replaced(before)
        orders.wait_settled()
        load.goes_on()
        at_once = orders.ips()
        assert all(at_once[pod] != ip for pod, ip in one_by_one.items()), (one_by_one, at_once)
        assert orders.ids() == ids
        load.finish()
