"""`kubectl brokerset status`: the tree, the table, JSON, and the exit code."""

from __future__ import annotations

import json

import click
import pytest
from tests.unit.cli.kubernetes.conftest import FakeCluster, broker_set, condition, pod

from brokerset_cli.kubernetes import status, tree
from brokerset_cli.kubernetes.kube_api import KubeApi, refusal
from brokerset_cli.kubernetes.sets import SetView, read_set


def test_the_tree_shows_who_is_what_and_where(cluster: FakeCluster) -> None:
    """Pods, ids, roles, epochs, in-sync, lag, controllers and conditions on one screen."""
    result = cluster.run("status", "orders")

    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "orders  Ready  3/3 in sync  namespace shop",
        "├─ conditions",
        "│  ├─ Ready        yes  AsWanted  every group has a master",
        "│  ├─ Progressing  no   Done",
        "│  └─ Degraded     no   None",
        "├─ controllers  3/3 answer",
        "│  ├─ orders-controller-0  leader  Running  node-0",
        "│  ├─ orders-controller-1  votes   Running  node-1",
        "│  └─ orders-controller-2  votes   Running  node-2",
        "└─ orders-0  epoch 3  master 1  3 in sync",
        "   ├─ orders-0-0  id 1  master  in sync  end 999           Running  node-0",
        "   ├─ orders-0-1  id 2  slave   in sync  end 998  lag 2 B  Running  node-1",
        "   └─ orders-0-2  id 3  slave   in sync  end 997  lag 3 B  Running  node-2",
    ]


def test_a_set_without_controllers_shows_its_name_servers_and_terms(cluster: FakeCluster) -> None:
    """Groups elect their leaders themselves, by a DLedger."""
    item = broker_set(controllers={"formed": False, "replicas": 0, "ready": 0})
    item["status"]["groups"][0]["term"] = 2
    pods = [pod(f"orders-namesrv-{number}") for number in (0, 1)]
    for each in pods:
        each["metadata"]["labels"]["app.kubernetes.io/component"] = "namesrv"

    shown = [click.unstyle(line) for line in tree.lines(read_set(item, pods))]

    assert "├─ name servers  2/2 ready" in shown
    assert any("orders-0  epoch 3  term 2  master 1" in line for line in shown)
    assert [each["name"] for each in tree.as_json(read_set(item, pods))["nameServers"]] == [
        "orders-namesrv-0",
        "orders-namesrv-1",
    ]


def test_addresses_outside_are_shown(cluster: FakeCluster) -> None:
    """What clients outside set as their name servers, where masters and brokers are, and what is missing."""
    item = broker_set(
        external={
            "nameServers": "192.0.2.1:30876;192.0.2.2:30876",
            "masters": [{"group": "orders-0", "address": "192.0.2.1:30911"}],
            "brokers": [{"pod": "orders-0-1", "address": "192.0.2.2:30921"}],
            "waiting": "Service orders-0-0-external has no node port yet",
        }
    )
    cluster.set(item)

    result = cluster.run("status", "orders")
    found = json.loads(cluster.run("status", "orders", "--json").output)

    assert result.output.splitlines()[-4:] == [
        "└─ outside  name servers 192.0.2.1:30876;192.0.2.2:30876",
        "   ├─ orders-0    192.0.2.1:30911",
        "   ├─ orders-0-1  192.0.2.2:30921",
        "   └─ Service orders-0-0-external has no node port yet",
    ]
    assert found["external"]["nameServers"] == "192.0.2.1:30876;192.0.2.2:30876"
    assert found["external"]["masters"] == {"orders-0": "192.0.2.1:30911"}


def test_an_end_that_nobody_has_told_is_not_shown(cluster: FakeCluster) -> None:
    """Controllers write -1 until a broker says where its log ends."""
    item = broker_set()
    item["status"]["groups"][0]["brokers"][2]["maxOffset"] = -1
    cluster.set(item)

    result = cluster.run("status", "orders")

    assert "end -1" not in result.output
    assert "end 998" in result.output


def test_what_is_wrong_is_seen(cluster: FakeCluster) -> None:
    """A pod that crashes, a broker without a pod, a pod without a broker, no master, no leader, old news."""
    item = broker_set(
        observedGeneration=1,
        phase="Degraded",
        conditions=[condition("Ready", "False", "NoMaster", "orders-0 has no living master")],
        controllers={"ready": 1, "replicas": 3, "voters": [0, 1]},
        groups=[
            {
                "name": "orders-0",
                "epoch": 3,
                "inSync": [1],
                "brokers": [{"id": 1, "role": "dead"}, {"id": 2, "pod": "orders-0-1", "role": "slave"}],
            }
        ],
        requests={"switchover": {"value": "orders-0", "state": "Waiting", "message": "no living master"}},
    )
    cluster.set(item)
    crashing = [{"restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    ending = pod("orders-0-1")
    ending["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["test/keep"]}
    cluster.pods(
        [
            pod("orders-0-0", containerStatuses=crashing, conditions=[]),
            ending,
            pod("orders-controller-2", conditions=[]),
        ],
    )

    result = cluster.run("status", "orders")

    assert result.exit_code == 1
    shown = "\n".join(" ".join(line.split()) for line in result.output.splitlines())
    assert "generation 2, seen 1" in shown
    assert "controllers 1/3 answer, none leads" in shown
    assert "orders-controller-2 does not vote not ready node-2" in shown
    assert "no master 1 in sync" in shown
    assert "orders-0-0 id - not registered CrashLoopBackOff node-0 4 restarts" in shown
    assert "orders-0-1 id 2 slave not in sync Terminating node-1" in shown
    assert "- id 1 dead in sync no pod" in shown
    assert "switchover orders-0: Waiting: no living master" in shown


def test_json_has_everything_with_camel_case_names(cluster: FakeCluster) -> None:
    """Scripts get the same as people."""
    found = json.loads(cluster.run("status", "orders", "--json").output)

    assert found["ready"] is True
    assert found["problems"] == []
    assert found["controllers"]["leader"] == 0
    assert found["controllers"]["pods"][0]["name"] == "orders-controller-0"
    group = found["groups"][0]
    assert (group["epoch"], group["masterId"], group["inSync"]) == (3, 1, [1, 2, 3])
    assert group["brokers"][1]["lagBytes"] == 2
    assert group["brokers"][1]["podState"]["node"] == "node-1"


def test_several_sets_are_a_table(cluster: FakeCluster) -> None:
    """One look over all of a namespace; a tree for each would be too long."""
    one = read_set(broker_set())
    _columns, rows = tree.summary([one, one])

    assert rows[0] == ("shop", "orders", "yes", "Ready", 1, "3/3", "orders-0-0", 3)


def test_without_a_name_the_only_set_is_shown(cluster: FakeCluster) -> None:
    """Most namespaces have one."""
    result = cluster.run("status", "-A")

    assert result.exit_code == 0, result.output
    assert result.output.startswith("orders  Ready")
    assert [call.namespace for call in cluster.kube.calls] == ["", ""]


def test_no_sets_at_all_is_no_error(cluster: FakeCluster) -> None:
    """An empty namespace is nothing bad; where to look else is said."""
    cluster.remove("brokersets")

    result = cluster.run("status")

    assert result.exit_code == 0
    assert "look at all with -A" in result.output


def test_a_set_that_nobody_has_looked_at_is_not_ready() -> None:
    """A manifest without a status, with nothing but what people wrote."""
    seen = read_set({"metadata": {"name": "new", "namespace": "shop", "generation": 1}, "spec": {}})

    assert not seen.ready
    assert tree.problems(seen) == ["no operator has looked at this set yet"]
    assert any("none yet" in line for line in tree.lines(seen))


def test_groups_that_the_manifest_names_have_their_statefulsets() -> None:
    """Group n is `<set>-<n>`, whatever it is called; one that is to go is found by its pods."""
    item = broker_set(groups=[{"name": "old", "brokers": [{"id": 1, "pod": "orders-2-0"}]}])
    item["spec"]["brokerNames"] = ["payments", "refunds"]

    seen = read_set(item, [pod("orders-1-10"), pod("orders-1-9")])

    assert [(each.name, each.resource) for each in seen.groups] == [
        ("payments", "orders-0"),
        ("refunds", "orders-1"),
        ("old", "orders-2"),
    ]
    assert seen.group("orders-1") == seen.group("refunds")
    refunds = seen.group("refunds")
    assert refunds is not None
    assert [each.pod for each in refunds.brokers] == ["orders-1-9", "orders-1-10"]


def test_controllers_of_another_set_are_named() -> None:
    """A set with shared controllers has none of its own."""
    item = broker_set()
    item["spec"]["controllers"] = {"ref": {"name": "shared"}}

    assert any("those of BrokerSet shared" in line for line in tree.lines(read_set(item)))


def test_watching_goes_on_while_the_api_server_is_away(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is written again, an outage is a remark, and Ctrl-C is no error."""
    looks = 0

    def fetch_set(api: KubeApi, name: str) -> SetView:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise refusal(503, b"the server is away")
        if looks == 4:
            raise KeyboardInterrupt
        return real(api, name)

    real = status.observe_set
    monkeypatch.setattr(status, "observe_set", fetch_set)
    monkeypatch.setattr(status, "WATCH_SECONDS", 0.0)

    result = cluster.run("status", "orders", "--watch")

    assert result.exit_code == 0, result.output
    assert result.output.count("orders  Ready") == 2
    assert "the server is away" in result.output


def test_watching_ends_when_waiting_does_not_help(cluster: FakeCluster) -> None:
    """A missing right does not come back by itself."""
    cluster.kube.forbidden.add(("get", "brokersets"))

    assert cluster.run("status", "orders", "--watch").exit_code == 1
