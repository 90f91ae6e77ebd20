"""Two sets with one group of controllers, as in `examples/shared-controllers.yaml`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.kubernetes.deployed import RATE, Deployed
from tests.e2e.kubernetes.rig import Cluster, Object, broker_set, say, until
from tests.e2e.kubernetes.test_tls import answers, give_files, stages
from tests.e2e.kubernetes.test_users import ADMIN, SECRET, does, make_secret, make_user

GAP_MS_MAX = 1000
"""What happens to another set's group is no reason for a pause in this one."""

CHANGE_SECONDS = 900.0
"""Longest time until all pods of two sets were replaced several times, one after the other."""

RETAIN = {"size": "1Gi", "whenDeleted": "Retain"}


def reports_manifest(namespace: str) -> Object:
    """The set that uses the other one's controllers; its volumes go with it."""
    storage = {"size": "1Gi", "whenDeleted": "Delete"}
    controllers = {"ref": {"name": "core"}}
    return broker_set(
        "reports", namespace, clusterName="Reports", replicas=2, storage=storage, controllers=controllers
    )


def two_sets(cluster: Cluster, namespace: str) -> tuple[Deployed, Deployed]:
    """One that has controllers, and one that uses them, both with two brokers."""
    core, reports = Deployed(cluster, namespace, "core"), Deployed(cluster, namespace, "reports")
    core.create(clusterName="Core", replicas=2, storage=RETAIN)
    cluster.apply(reports_manifest(namespace))
    core.wait_settled(2)
    reports.wait_settled(2, 0)
    return core, reports


@pytest.mark.slow
def test_a_switch_over_in_one_of_two_sets_does_not_disturb_the_other(
    cluster: Cluster, namespace: str
) -> None:
    """Both are Ready with three controllers; the masters of one change, the other has no failed send and keeps its epoch."""
    core, reports = two_sets(cluster, namespace)
    assert not reports.pods("controller")
    epoch, master = core.epoch(), reports.master()
    with core.load(only="Core") as load:
        reports.annotate(switchover="reports-0")
        until("reports has another master", lambda: reports.master() != master, 60)
        reports.delete_pods(reports.master(), force=True)
        until("reports has a master again", lambda: reports.condition("Ready")["status"] == "True", 60)
        reports.wait_settled(2, 0)

        seen = load.goes_on(int(RATE))
        say(f"core while reports switched over: {seen}")
        verdict = load.finish()

    assert verdict["failed"] == 0, verdict
    assert seen["gapMs"] < GAP_MS_MAX, seen
    assert core.epoch() == epoch


@pytest.mark.slow
def test_a_set_that_uses_controllers_goes_without_a_trace_in_the_other(
    cluster: Cluster, namespace: str
) -> None:
    """The one that uses them is deleted under load on the other; its masters, pods and epochs stay."""
    core, reports = two_sets(cluster, namespace)
    uids, epoch = core.uids(), core.epoch()
    with core.load(only="Core") as load:
        cluster.delete("brokerset", "reports", namespace=namespace, seconds=60)
        until("its pods are gone", lambda: not reports.pods(), 90)
        core.wait_settled(2)
        load.goes_on(int(RATE))
        verdict = load.finish()

    assert verdict["failed"] == 0, verdict
    assert core.uids() == uids
    assert core.epoch() == epoch


@pytest.mark.slow
def test_without_the_set_that_has_the_controllers_the_other_says_so_and_comes_back_with_it(
    cluster: Cluster, namespace: str
) -> None:
    """Its brokers stay, but serve nobody without controllers; the condition names the set. Applied again, all goes on."""
    core, reports = two_sets(cluster, namespace)
    client = cluster.client(namespace, "core")
    client.create_topic("events", only="Core")
    sent = [f"message {number}" for number in range(100)]
    client.send("events", sent)
    uids, ids = reports.uids(), reports.ids()

    cluster.delete("brokerset", "core", namespace=namespace, seconds=60)
    until("core's pods are gone", lambda: not core.pods(), 90)
    found = cluster.wait_condition("brokerset", "reports", namespace, "ControllersReady", "False", seconds=60)
    conditions = {one["type"]: one for one in found["status"]["conditions"]}
    assert "core" in conditions["ControllersReady"]["message"], conditions
    assert reports.uids() == uids

    core.create(clusterName="Core", replicas=2, storage=RETAIN)
    core.wait_settled(2)
    reports.wait_settled(2, 0)
    assert reports.uids() == uids
    assert reports.ids() == ids
    assert sorted(client.consume("events", "readers", len(sent))) == sorted(sent)


@pytest.mark.slow
def test_a_set_that_was_deleted_with_its_volumes_is_made_again_when_its_replicas_are_forgotten(
    cluster: Cluster, namespace: str
) -> None:
    """The other set's controllers remember its group and refuse a new set of that name, until they are told to forget."""
    core, reports = two_sets(cluster, namespace)
    cluster.delete("brokerset", "reports", namespace=namespace, seconds=60)
    until("its pods are gone", lambda: not reports.pods(), 90)
    until("its volumes are gone", lambda: not cluster.get("pvc", "data-reports-0-0", namespace), 90)
    cluster.apply(reports_manifest(namespace))
    cluster.wait_condition("brokerset", "reports", namespace, "IdentityConflict", reason="OtherOwner")

    client = cluster.client(namespace, "core")
    controllers = ";".join(f"core-controller-{number}.core-controller:9878" for number in range(3))
    client.run("clean", "reports-0", "--all", "--yes", "--controller", controllers)
    reports.wait_settled(2, 0)

    assert core.condition("Ready")["status"] == "True"
    client.create_topic("fresh", only="Reports")
    client.send("fresh", ["a message"])


@pytest.fixture
def chart(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose operator may read and write Secrets, and keep authorities; it is put back."""
    cluster.install(values={"secrets": {"access": True}, "tls": {"authority": {"enabled": True}}})
    yield cluster
    cluster.install()


@pytest.mark.slow
def test_two_sets_get_to_tls_alone_and_to_checked_requests_together(chart: Cluster, namespace: str) -> None:
    """Each has an authority of its own. The joined one, which is changed first, waits for the controllers; then
    its masters are switched over by them, its User is let in, and nobody is without TLS and a signature."""
    core, reports = two_sets(chart, namespace)
    make_secret(core)
    wanted = {"tls": {"authority": {}, "mode": "enforcing"}, "acl": {"secretName": SECRET}}
    reports.change(**wanted)
    until("reports waits", lambda: "core" in reports.condition("TlsRefused").get("message", ""), 300, pause=1)
    core.change(**wanted)
    both = (core, reports)
    until("TLS alone", lambda: [stages(one) for one in both] == [{"enforcing"}] * 2, CHANGE_SECONDS, pause=1)
    checking = [{"checking", "authorizing"}, {"checking"}]
    until("both check", lambda: [does(one) for one in both] == checking, CHANGE_SECONDS, pause=1)
    core.wait_settled(2)
    reports.wait_settled(2, 0)

    master = reports.master()
    reports.annotate(switchover="reports-0")
    until("reports has another master", lambda: reports.master() != master, 60)
    reports.wait_settled(2, 0)

    shop = make_user(reports, "shop", policies=[{"resources": ["Topic:events"], "actions": ["Pub"]}])
    client = core.client()
    trusted = [
        chart.must_get("configmap", f"{name}-authority", namespace)["data"]["ca.crt"]
        for name in ("core", "reports")
    ]
    by_tls = give_files(client, "".join(trusted))
    admin = {"BROKERSET_ACCESS_KEY": ADMIN["username"], "BROKERSET_SECRET_KEY": ADMIN["password"]}
    brokers = [(f"{name}-0-0.{name}-0.{namespace}.svc:10911", "broker") for name in ("core", "reports")]
    assert answers(client, brokers, by_tls | admin) == ["answered"] * 2
    for env in ({}, admin, by_tls, by_tls | shop):
        assert all(text.startswith("refused") for text in answers(client, brokers, env)), env
