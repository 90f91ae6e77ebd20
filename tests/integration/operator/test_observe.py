from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.member.membership import diagnosis
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_kube.errors import NotFound, Unavailable
from brokerset_operator.brokers_view import (
    REFUSED,
    TRIES_AGAIN,
    Trouble,
    master_address,
    observe_troubles,
    trouble_of,
)
from brokerset_operator.controllers_view import controller_addresses, pod_address, query_controllers
from brokerset_operator.model import names
from brokerset_operator.model.observed import Operator
from brokerset_operator.observe import ClusterFacts, Seen, observe
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_rig.controller_group import GROUP, brokers, controllers
from brokerset_rig.fake_kube import FakeKube, Fault
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import Connection, RemotingServer

PAST = "2023-01-01T00:00:00Z"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


class Observing:
    """Observes the set `orders` of a fake cluster."""

    def __init__(self, kube: FakeKube, client: KubeClient) -> None:
        self.kube = kube
        self._client = client
        self.clock = ManualClock()
        self._facts = ClusterFacts(client, self.clock)

    async def observe(self) -> Seen | None:
        return await observe(
            self._client,
            self._facts,
            self.clock,
            namespace=NAMESPACE,
            name="orders",
            installed=Operator(image="brokerset:1"),
        )

    async def seen(self) -> Seen:
        found = await self.observe()
        assert found is not None
        return found


@asynccontextmanager
async def observing(**cluster: Any) -> AsyncIterator[Observing]:
    async with FakeKube(**cluster) as kube, KubeClient(Access(kube.url), manager="tester") as client:
        yield Observing(kube, client)


def labelled(api_version: str, kind: str, name: str, owner: str = "orders", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": names.labels(owner)}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def test_a_set_that_is_not_there_is_none() -> None:
    """The reconcile of a deleted set finds nothing, and asks for nothing else."""

    async def work() -> None:
        async with observing() as found:
            assert await found.observe() is None
            assert [call.plural for call in found.kube.calls] == ["brokersets"]

    run(work())


def test_everything_with_the_sets_label_is_seen_and_nothing_else() -> None:
    """Objects of other sets, and those without a label, are not part of it."""

    async def work() -> None:
        async with observing(absent=frozenset({"PodMonitor"})) as found:
            kube = found.kube
            kube.put(broker_set())
            kube.put(labelled("apps/v1", "StatefulSet", "orders-0"))
            kube.put(labelled("apps/v1", "StatefulSet", "bills-0", "bills"))
            kube.put(labelled("v1", "PersistentVolumeClaim", "data-orders-0-0"))
            kube.put(labelled("v1", "Service", "orders-namesrv"))
            kube.put(labelled("discovery.k8s.io/v1", "EndpointSlice", "orders-0-master"))
            kube.put(labelled("v1", "ConfigMap", "orders-0"))
            kube.put(labelled("policy/v1", "PodDisruptionBudget", "orders-0"))
            kube.put(labelled("monitoring.coreos.com/v1", "PrometheusRule", "orders"))
            kube.put(a_pod("orders-0-0", "broker"))

            seen = (await found.seen()).observed

            assert list(seen.stateful_sets) == ["orders-0"]
            assert list(seen.claims) == ["data-orders-0-0"]
            assert list(seen.services) == ["orders-namesrv"]
            assert list(seen.endpoint_slices) == ["orders-0-master"]
            assert list(seen.config_maps) == ["orders-0"]
            assert list(seen.pods) == ["orders-0-0"]
            assert sorted(seen.other) == ["PodDisruptionBudget/orders-0", "PrometheusRule/orders"]
            assert seen.operator.api_kinds == {"monitoring.coreos.com/PrometheusRule"}
            assert seen.operator.image == "brokerset:1"
            assert seen.stateful_sets["orders-0"]["kind"] == "StatefulSet"
            assert seen.manifest is not None
            assert seen.manifest.spec.replicas == 3

    run(work())


def test_a_kind_that_goes_costs_one_round() -> None:
    """Who removes Prometheus' operator does not stop ours: the next look knows the kinds that are left."""

    async def work() -> None:
        async with observing() as found:
            found.kube.put(broker_set())
            assert len((await found.seen()).observed.operator.api_kinds) == 2
            found.kube.absent = frozenset({"PodMonitor", "PrometheusRule"})

            with pytest.raises(NotFound):
                await found.observe()
            assert (await found.seen()).observed.operator.api_kinds == frozenset()

    run(work())


def test_all_problems_of_a_manifest_are_seen() -> None:
    """What the API server let through is checked again."""

    async def work() -> None:
        async with observing() as found:
            found.kube.put(broker_set(replicas=0, config={"noSuchSetting": 1}))

            seen = (await found.seen()).observed

            assert seen.manifest is None
            assert {problem.path for problem in seen.problems} == {
                "spec.replicas",
                "spec.config.noSuchSetting",
            }

    run(work())


def test_a_list_that_fails_fails_the_round() -> None:
    """Half of what is must not be taken for all of it."""

    async def work() -> None:
        async with observing() as found:
            found.kube.put(broker_set())
            found.kube.faults.append(Fault("list", "pods", code=503))

            with pytest.raises(Unavailable):
                await found.observe()

    run(work())


def test_nodes_of_stuck_pods_are_looked_at_and_no_others() -> None:
    """A pod that should have ended names a node that is asked for; a missing one is told."""

    async def work() -> None:
        async with observing() as found:
            kube = found.kube
            kube.put(broker_set())
            kube.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
            later = "2099-01-01T00:00:00Z"
            stuck: dict[str, Any] = {"deletionTimestamp": PAST, "finalizers": ["x"]}
            kube.put(a_pod("orders-0-0", "broker", **stuck))
            gone = a_pod("orders-0-1", "broker", **stuck)
            gone["spec"]["nodeName"] = "node-2"
            kube.put(gone)
            ending = a_pod("orders-0-2", "broker", deletionTimestamp=later, finalizers=["x"])
            ending["spec"]["nodeName"] = "node-3"
            kube.put(ending)

            seen = (await found.seen()).observed
            assert list(seen.nodes) == ["node-1"]
            assert seen.missing_nodes == {"node-2"}
            assert kube.count("get", "nodes") == 2

            kube.forbidden.add(("get", "nodes"))
            for _ in range(3):
                seen = (await found.seen()).observed
            assert seen.nodes == {}
            assert seen.missing_nodes == frozenset()
            assert kube.count("get", "nodes") == 3

    run(work())


def test_addresses_of_nodes_are_read_for_clients_outside_alone() -> None:
    """Only with `spec.external` at node ports, each once in a while; without the right, or the node, none."""

    async def work() -> None:
        async with observing() as found:
            kube = found.kube
            kube.put(broker_set())
            addresses = [
                {"type": "InternalIP", "address": "10.9.0.1"},
                {"type": "Hostname", "address": "node-1"},
            ]
            kube.put(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": "node-1"},
                    "status": {"addresses": addresses},
                }
            )
            kube.put(a_pod("orders-0-0", "broker"))
            elsewhere = a_pod("orders-0-1", "broker")
            elsewhere["spec"]["nodeName"] = "node-2"
            kube.put(elsewhere)
            closed = (await found.seen()).observed
            kube.put(broker_set(external={"type": "LoadBalancer"}))
            balanced = (await found.seen()).observed
            assert kube.count("get", "nodes") == 0

            kube.put(broker_set(external={"type": "NodePort"}))
            for _ in range(3):
                opened = (await found.seen()).observed

            known = (("InternalIP", "10.9.0.1"), ("Hostname", "node-1"))
            assert opened.node_addresses == {"node-1": known, "node-2": ()}
            assert closed.node_addresses == balanced.node_addresses == {}
            assert opened.nodes == {}
            assert kube.count("get", "nodes") == 2

            kube.forbidden.add(("get", "nodes"))
            found.clock.advance(301_000)
            opened = (await found.seen()).observed
            assert opened.node_addresses == {"node-1": (), "node-2": ()}

    run(work())


def test_storage_classes_are_read_once_in_a_while() -> None:
    """Those that claims and manifest name are known, and asked for again after some minutes."""

    async def work() -> None:
        async with observing() as found:
            kube = found.kube
            kube.put(broker_set(storage={"className": "fast"}))
            kube.put(
                labelled("v1", "PersistentVolumeClaim", "data-orders-0-0", spec={"storageClassName": "slow"})
            )
            kube.put(
                {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "slow"}}
            )

            for _ in range(3):
                seen = (await found.seen()).observed
            assert list(seen.storage_classes) == ["slow"]
            assert kube.count("get", "storageclasses") == 2

            found.clock.advance(301_000)
            await found.seen()
            assert kube.count("get", "storageclasses") == 4

    run(work())


def test_only_pods_that_run_have_an_address() -> None:
    """A pod without IP or without a running container is not asked; IPv6 addresses get brackets."""
    assert pod_address(a_pod("a", "controller")) is None
    assert pod_address(a_pod("a", "controller", ip="10.0.0.1")) == "10.0.0.1"
    assert pod_address(a_pod("a", "controller", ip="fd00::1")) == "[fd00::1]"
    starting = a_pod("a", "controller", ip="10.0.0.1")
    starting["status"]["containerStatuses"] = [{"state": {"waiting": {}}}]
    assert pod_address(starting) is None


def test_controllers_are_told_from_brokers() -> None:
    """Only pods of the component controller are asked as such, by their number."""
    pods = {
        name: a_pod(name, component, ip=ip)
        for name, component, ip in (
            ("orders-controller-1", "controller", "10.0.0.2"),
            ("orders-controller-0", "controller", "10.0.0.1"),
            ("orders-0-0", "broker", "10.0.0.3"),
        )
    }

    assert controller_addresses(pods) == {0: "10.0.0.1:9878", 1: "10.0.0.2:9878"}


def test_controllers_tell_members_leader_and_groups(tmp_path: Path) -> None:
    """Real controllers: who leads, who votes, who has caught up, and the broker groups."""

    async def work() -> None:
        async with controllers(tmp_path, 3) as group, brokers(group, 3, ours=True) as several:
            addresses = {number: group.address(number) for number in range(3)}
            view = await query_controllers(addresses)

            assert view.controllers.leader == await group.leader()
            assert view.controllers.members == {0: True, 1: True, 2: True}
            assert view.controllers.caught_up == {0, 1, 2}
            assert sorted(view.controllers.answers) == [0, 1, 2]
            assert view.controllers.waiting_to_join == frozenset()
            assert view.groups[GROUP].master_id == 1
            assert master_address(view.groups[GROUP]) == several[0].address
            assert view.addresses[0] == group.address(await group.leader())

            extra = group.add_node()
            await group.start(extra, raft_join=True)
            view = await query_controllers({**addresses, extra: group.address(extra)})
            assert view.controllers.waiting_to_join == {extra}

            await group.stop(await group.leader())
            view = await query_controllers(addresses)
            assert len(view.controllers.answers) == 2

    run(work())


def test_without_a_majority_there_is_no_leader(tmp_path: Path) -> None:
    """One controller of three answers for itself, and nobody is taken for the leader."""

    async def work() -> None:
        async with controllers(tmp_path, 3) as group:
            leader = await group.leader()
            for number in range(3):
                if number != leader:
                    await group.stop(number)
            addresses = {number: group.address(number) for number in range(3)}
            view = await query_controllers(addresses)
            while view.controllers.leader is not None:  # its last answers from a majority are still fresh
                view = await query_controllers(addresses)

            assert view.groups == {}
            assert list(view.controllers.answers) == [leader]

    run(work())


def test_an_address_that_belongs_to_another_controller_is_not_believed(tmp_path: Path) -> None:
    """An answer with another number than the pod's is left out."""

    async def work() -> None:
        async with controllers(tmp_path, 1) as group:
            view = await query_controllers({5: group.address(0)})

            assert view.controllers.answers == {}
            assert view.addresses == ()

    run(work())


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.BROKERSET_IDENTITY_CONFLICT,
        ResponseCode.BROKERSET_GROUP_OWNED,
        ResponseCode.BROKERSET_ID_RETIRED,
    ],
)
def test_refusals_are_called_as_brokers_call_them(code: int) -> None:
    """The words by which a conflict is recognized are those of the broker's own diagnosis."""
    who = diagnosis.Names("DefaultCluster", "orders-0", "/data/identity")

    assert diagnosis.refused(code, "said so", who, 2).kind.value in REFUSED


def test_other_problems_are_no_conflict() -> None:
    """Silent controllers and a volume of another broker are told apart."""
    who = diagnosis.Names("DefaultCluster", "orders-0", "/data/identity")

    assert diagnosis.silent(("a:1",), "gone").kind.value not in REFUSED
    assert diagnosis.names_differ(who, "C", "B").kind.value in REFUSED


def test_a_broker_that_may_not_register_is_seen() -> None:
    """Only brokers that run and are not ready are asked; what they say, and what to do, is told."""
    text = "the controllers have retired the id of broker 2 of group orders-0: said so"
    advice = "make it a new, empty replica"
    problems = {"127.77.0.1": "id_retired", "127.77.0.3": "controllers_silent"}

    def answer(connection: Connection, command: Command) -> Command:
        host = connection.local[0]
        return command.reply(
            ext=BrokerIdentityAnswer(registration=text, problem=problems[host]).to_ext(),
            body=b'{"clusterName":"c","brokerName":"orders-0","brokerId":0,"epochList":[],"maxOffset":0}',
        )

    def measurements(connection: Connection, command: Command) -> Command:
        table = KVTable({"brokersetProblem": text, "brokersetAdvice": advice})
        return command.reply(body=table.to_json())

    async def work() -> None:
        server = RemotingServer(
            {
                RequestCode.GET_BROKER_EPOCH_CACHE: answer,
                RequestCode.GET_BROKER_RUNTIME_INFO: measurements,
            }
        )
        await server.listen("127.77.0.1", names.REMOTING_PORT)
        try:
            pods = {
                "orders-0-0": a_pod("orders-0-0", "broker", ip="127.77.0.1", ready=False),
                "orders-0-1": a_pod("orders-0-1", "broker", ip="127.77.0.1", ready=True),
                "orders-0-2": a_pod("orders-0-2", "broker", ip="127.77.0.2", ready=False),
            }

            assert await observe_troubles(pods) == {"orders-0-0": Trouble(text, advice, refused=True)}
        finally:
            await server.close(0.1)

    run(work())


def test_a_slave_that_cannot_follow_says_why() -> None:
    """In service or not, the worst goes first; who only starts, or only catches up, has no trouble."""
    follows = {"brokersetFollowProblem": "the master did not answer in time", "brokersetFollowAdvice": ""}
    starts = {"brokersetProblem": "registers with the controllers", "brokersetAdvice": "wait a moment"}
    refuses = {"brokersetProblem": "the log has no epoch in common", "brokersetAdvice": "replace it"}
    fine = BrokerIdentityAnswer(registration="registered, slave")
    bad = BrokerIdentityAnswer(registration="the log has no epoch in common", problem="replication_refused")

    assert trouble_of(fine, {}) is None
    assert trouble_of(fine, starts) is None
    assert trouble_of(None, {}) is None
    assert trouble_of(fine, follows) == Trouble("the master did not answer in time", TRIES_AGAIN)
    assert str(trouble_of(bad, refuses | follows)) == "the log has no epoch in common; replace it"
    assert trouble_of(bad, {}) == Trouble("the log has no epoch in common")
