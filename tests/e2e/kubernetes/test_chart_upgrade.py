"""The chart is upgraded while sets serve clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import IMAGE, OPERATOR, SYSTEM, Cluster, say, until
from tests.e2e.kubernetes.test_rolling import NEXT_TAG, replaced_in_order


@pytest.fixture
def chart(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose chart may be changed; it is put back, with what runs by it."""
    before = cluster.operator_pods()
    yield cluster
    cluster.install()
    assert set(cluster.operator_pods()) != set(before), "the chart was not changed"


@pytest.mark.slow
def test_an_upgraded_chart_leaves_unchanged_sets_alone(chart: Cluster, namespace: str) -> None:
    """Both operators are replaced; no pod of the set is, no send fails, and the new operator does its work."""
    orders = Deployed(chart, namespace)
    orders.create()
    orders.wait_settled()
    uids, operators = orders.uids(), chart.operator_pods()
    with orders.load() as load:
        chart.install(values={"logLevel": "debug", "podAnnotations": {"example.com/upgraded": "yes"}})
        assert not set(chart.operator_pods()) & set(operators)

        orders.wait_settled()
        chart.delete("configmap", "orders-0", namespace=namespace)
        until("the settings are back", lambda: chart.get("configmap", "orders-0", namespace), 30)

        seen = load.goes_on()
        verdict = load.finish()
    say(f"chart upgraded: {seen}")
    assert orders.uids() == uids
    assert all(
        status.get("restartCount") == 0
        for pod in orders.pods().values()
        for status in pod["status"]["containerStatuses"]
    )
    assert verdict["failed"] == 0, verdict


@pytest.mark.slow
def test_an_upgraded_chart_rolls_sets_that_name_no_image(chart: Cluster, namespace: str) -> None:
    """A new tag reaches operator, controllers and brokers, slaves first, and no send fails."""
    image = f"{IMAGE}:{NEXT_TAG}"
    chart.provider.build(image)
    orders = Deployed(chart, namespace)
    orders.create()
    orders.wait_settled()
    ids, master, before = orders.ids(), orders.master(), orders.uids()
    with orders.load() as load:
        chart.install(
            values={"image": {"repository": IMAGE, "tag": NEXT_TAG, "pullPolicy": chart.provider.pull_policy}}
        )

        order = replaced_in_order(orders, before)
        orders.wait_settled()

        say(f"roll of {order}, master was {master}: {load.goes_on()}")
        verdict = load.finish()
    assert order[-1] == master
    assert orders.ids() == ids
    assert {pod["spec"]["containers"][0]["image"] for pod in orders.pods().values()} == {image}
    operator = chart.must_get("deployment", OPERATOR, SYSTEM)
    assert operator["spec"]["template"]["spec"]["containers"][0]["image"] == image
    assert verdict["failed"] == 0, verdict
