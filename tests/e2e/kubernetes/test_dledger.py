"""A set whose groups elect their leaders by a DLedger, without controllers: it comes up, rolls, fails over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes.client import ApiException
from tests.e2e.kubernetes.deployed import RATE, Deployed
from tests.e2e.kubernetes.rig import Cluster, say, until
from tests.e2e.kubernetes.test_rolling import replaced_in_order

NAMESPACE = "dledger"

GAP_MS_MAX = 5000
"""On a machine that does other things as well; the figure is printed."""


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> Iterator[Deployed]:
    """One DLedger group of three, in a namespace of its own; every test leaves it whole."""
    found = Deployed(cluster, cluster.namespace(NAMESPACE))
    found.create(replication={"mode": "dledger"})
    found.wait_settled(controllers=0)
    yield found
    cluster.delete_namespace(NAMESPACE)


def term(orders: Deployed) -> int:
    """Term of the group, as the status says."""
    number: int = orders.status["groups"][0]["term"]
    return number


def test_it_runs_with_name_servers_alone_and_says_who_leads(orders: Deployed) -> None:
    """Ids are those of the ordinals; a message goes in and out."""
    client = orders.client("first")
    client.send("first", ["a", "b", "c"])

    assert sorted(client.consume("first", "readers", 3)) == ["a", "b", "c"]
    assert sorted(orders.pods("namesrv")) == ["orders-namesrv-0", "orders-namesrv-1"]
    assert orders.pods("controller") == {}
    assert orders.ids() == {"orders-0-0": 1, "orders-0-1": 2, "orders-0-2": 3}
    assert sorted(orders.roles().values()) == ["master", "slave", "slave"]
    assert orders.epoch() == term(orders) + 1
    assert orders.condition("ControllersReady")["status"] == "True"


def test_a_changed_setting_is_rolled_out_to_the_leader_last_and_no_send_fails(orders: Deployed) -> None:
    """Followers first; the leader hands over before it goes."""
    leader, before, first = orders.master(), orders.uids("broker"), term(orders)
    with orders.load("rolled") as load:
        load.goes_on()
        orders.change(config={"maxMessageSize": 2097152})

        order = replaced_in_order(orders, before)
        orders.wait_settled(controllers=0)

        seen = load.goes_on()
        say(f"roll of {order}, leader was {leader}, term {first} to {term(orders)}: {seen}")
        verdict = load.finish()
    assert order[-1] == leader
    assert orders.master() != leader
    assert term(orders) > first
    assert verdict["failed"] == 0, verdict


@pytest.mark.slow
def test_name_servers_and_brokers_are_replaced_at_the_same_time_and_no_send_fails(orders: Deployed) -> None:
    """Kubernetes replaces the name servers one at a time; each waits for brokers before clients are led to it."""
    before = orders.uids()
    with orders.load("replaced") as load:
        load.goes_on()
        orders.change(podTemplate={"metadata": {"annotations": {"example.com/round": "2"}}})

        order = replaced_in_order(orders, before)
        orders.wait_settled(controllers=0)

        say(f"roll of {order}: {load.goes_on()}")
        verdict = load.finish()
    assert len(order) == 5
    assert verdict["failed"] == 0, verdict


def test_a_switchover_that_is_asked_for_fails_no_send(orders: Deployed) -> None:
    """The annotation is answered when the member that it names leads."""
    leader = orders.master()
    target = next(number for pod, number in orders.ids().items() if pod != leader)
    with orders.load("switched") as load:
        load.goes_on()
        orders.annotate(switchover=f"orders-0/{target}")

        def done() -> bool:
            found = orders.status["requests"]["switchover"]
            if found["value"] != f"orders-0/{target}" or found["state"] != "Done":
                raise ValueError(f"{found}")
            return True

        until("the switchover is answered", done, 60)
        say(f"switchover to {target}: {load.goes_on()}")
        verdict = load.finish()
    assert orders.ids()[orders.master()] == target
    assert verdict["failed"] == 0, verdict
    orders.annotate(switchover=None)


def test_a_deleted_leader_is_followed_by_another_one_and_nothing_is_lost(orders: Deployed) -> None:
    """Its pod gets no time to end; it comes back with its volume."""
    leader, first = orders.master(), term(orders)
    before = {leader: orders.uids("broker")[leader]}
    with orders.load("failed") as load:
        load.goes_on()
        orders.delete_pods(leader, force=True)

        seen = load.goes_on(int(RATE))
        orders.wait_replaced(before)
        orders.wait_settled(controllers=0)
        verdict = load.finish()
    say(f"leader {leader} deleted, term {first} to {term(orders)}: {seen}, {verdict['failed']} sends failed")
    assert term(orders) > first
    assert orders.ids() == {"orders-0-0": 1, "orders-0-1": 2, "orders-0-2": 3}
    assert seen["gapMs"] <= GAP_MS_MAX


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"replicas": 5}, "members of a DLedger group cannot be added or taken away"),
        ({"replication": {"mode": "controller"}}, "cannot be changed: the logs differ"),
    ],
    ids=["members", "mode"],
)
def test_what_a_dledger_cannot_change_is_refused_with_the_reason(
    orders: Deployed, spec: dict[str, object], reason: str
) -> None:
    """By the API server, before anybody acts."""
    with pytest.raises(ApiException) as caught:
        orders.change(**spec)

    assert reason in str(caught.value.body)


def test_fences_are_refused_with_the_reason(orders: Deployed) -> None:
    """A DLedger cannot do without a member."""
    orders.annotate(fence="orders-0/1")

    def refused() -> str:
        found = orders.status["requests"]["fence"]
        if found["state"] != "Refused":
            raise ValueError(f"{found}")
        return str(found["message"])

    assert "a DLedger cannot do without a member" in until("the fence is answered", refused, 30)
    orders.annotate(fence=None)


@pytest.mark.slow
def test_with_controllers_that_serve_names_alone_a_lost_volume_is_filled_again(
    cluster: Cluster, namespace: str
) -> None:
    """The emptied member keeps its id, as that is the number of its pod, and has every message again."""
    orders = Deployed(cluster, namespace)
    orders.create(replication={"mode": "dledger"}, controllers={"replicas": 1})
    orders.wait_settled(controllers=1)
    client = orders.client("kept")
    client.send("kept", [str(number) for number in range(100)])
    leader, ids = orders.master(), orders.ids()
    follower = next(pod for pod in sorted(ids) if pod != leader)
    before = {follower: orders.uids("broker")[follower]}

    cluster.delete("pvc", f"data-{follower}", namespace=namespace)
    orders.delete_pods(follower, force=True)
    orders.wait_replaced(before)
    orders.wait_settled(controllers=1)

    assert orders.pods("namesrv") == {}
    assert orders.ids() == ids
    orders.annotate(switchover=f"orders-0/{ids[follower]}")
    until("the emptied member leads", lambda: orders.master() == follower, 60)
    assert sorted(client.consume("kept", "readers", 100), key=int) == [str(number) for number in range(100)]
