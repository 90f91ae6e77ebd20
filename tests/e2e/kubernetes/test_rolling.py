"""Changes reach running brokers one by one, and no client notices."""

from __future__ import annotations

import time

import pytest
from tests.e2e.kubernetes.deployed import SETTLE_SECONDS, Deployed
from tests.e2e.kubernetes.rig import IMAGE, Cluster, say, until

NEXT_TAG = "e2e-next"


def replaced_in_order(orders: Deployed, before: dict[str, str], seconds: float = SETTLE_SECONDS) -> list[str]:
    """Wait until each of these pods is another one; returns their names in the order in which that happened."""
    order: list[str] = []

    def check() -> bool:
        now = orders.uids()
        order.extend(n for n in before if n not in order and now.get(n) not in (None, before[n]))
        if len(order) < len(before):
            raise ValueError(f"replaced are {order}")
        return True

    until("all pods are new", check, seconds)
    return order


@pytest.mark.slow
def test_a_changed_setting_is_rolled_out_without_a_failed_send(cluster: Cluster, namespace: str) -> None:
    """Slaves first, then a switchover, the old master last; and the setting is in force."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    ids, master, before = orders.ids(), orders.master(), orders.uids("broker")
    with orders.load() as load:
        load.goes_on()
        orders.change(config={"maxMessageSize": 2097152})

        order = replaced_in_order(orders, before)
        orders.wait_settled()

        seen = load.goes_on()
        say(f"roll of {order}, master was {master}: {seen}")
        verdict = load.finish()
    assert order[-1] == master
    assert orders.master() != master
    assert orders.ids() == ids
    assert verdict["failed"] == 0, verdict


def test_a_new_image_is_rolled_out_without_a_failed_send(cluster: Cluster, namespace: str) -> None:
    """Controllers one at a time, then brokers as for a setting; all pods run the new image."""
    image = f"{IMAGE}:{NEXT_TAG}"
    cluster.provider.build(image)
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    ids, master, before = orders.ids(), orders.master(), orders.uids()
    with orders.load() as load:
        load.goes_on()
        orders.change(image=image)

        order = replaced_in_order(orders, before)
        orders.wait_settled()

        say(f"roll of {order}, master was {master}: {load.goes_on()}")
        verdict = load.finish()
    brokers = [name for name in order if "controller" not in name]
    assert brokers[-1] == master
    assert order.index(brokers[0]) == len(order) - len(brokers), order
    assert orders.ids() == ids
    assert {pod["spec"]["containers"][0]["image"] for pod in orders.pods().values()} == {image}
    assert verdict["failed"] == 0, verdict


@pytest.mark.slow
def test_a_supervised_roll_waits_for_approval_before_the_master(cluster: Cluster, namespace: str) -> None:
    """All slaves are replaced; the master is only when the annotation names the group and its epoch."""
    orders = Deployed(cluster, namespace)
    orders.create(update={"strategy": "supervised"})
    orders.wait_settled()
    master, before = orders.master(), orders.uids("broker")
    orders.change(config={"maxMessageSize": 2097152})

    cluster.wait_condition(
        "brokerset",
        orders.name,
        namespace,
        "Progressing",
        reason="WaitingForApproval",
        seconds=SETTLE_SECONDS,
    )
    now = orders.uids("broker")
    assert [name for name in before if now[name] == before[name]] == [master]
    orders.annotate(approve_switchover=f"orders-0/{orders.epoch() + 1}")
    time.sleep(3)  # nothing may happen for an annotation about another epoch
    assert orders.master() == master
    assert orders.uids("broker") == now
    orders.annotate(approve_switchover=f"orders-0/{orders.epoch()}")

    orders.wait_replaced({master: before[master]})
    orders.wait_settled()
    assert orders.master() != master


def test_a_roll_that_crashes_is_degraded_and_stops_and_heals(cluster: Cluster, namespace: str) -> None:
    """Too little memory: the first new broker crashes, the set says so with its exit code, and no second one goes."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    before = orders.uids()
    asked = orders.pods("broker")["orders-0-0"]["spec"]["containers"][0]["resources"]

    little = {"memory": "16Mi"}
    orders.change(podTemplate={"resources": {"requests": little, "limits": little}})

    def told() -> str:
        found = orders.condition("Degraded")
        if found["status"] == "True" and "ended with exit code" in found["message"]:
            return str(found["message"])
        raise ValueError(f"{found}")

    message = until("the crash is told", told, 120)
    new = [name for name, uid in orders.uids().items() if before.get(name) != uid]
    say(f"{new}: {message}")
    assert len(new) == 1
    assert f"{new[0]}: " in message
    assert "container broker ended with exit code" in message
    assert "one loss more, and it refuses sends" in message
    assert orders.condition("Ready")["status"] == "False"
    problems = {b.get("pod"): b.get("problem") for b in orders.status["groups"][0]["brokers"]}
    assert "ended with exit code" in str(problems[new[0]])

    orders.change(podTemplate={"resources": {"limits": None, **asked}})
    orders.wait_settled()
    assert orders.condition("Degraded")["status"] == "False"
    now = orders.uids()
    assert [name for name in now if before[name] != now[name]] == new
