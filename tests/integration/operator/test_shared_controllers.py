"""Sets that use the controllers of another set, against a fake API server and a real controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from brokerset_client.controller_admin import ControllerAdmin
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.model import names
from brokerset_operator.model.actions import (
    AddController,
    ApplyObject,
    DeletePod,
    MoveLeadership,
    Plan,
    PromoteController,
    RemoveController,
)
from brokerset_operator.model.observed import Operator
from brokerset_operator.observe import ClusterFacts, Seen, observe
from brokerset_operator.plan.deciding import plan
from brokerset_operator.plan.facts import gather
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.set_reconciler import SET, SharedControllers
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_rig.controller_group import ControllerGroup
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set, condition, operator, status_of, until
from brokerset_rig.process_loopback import PROCESS_LOOPBACK
from brokerset_rig.stack import free_port
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.tls.authority import Authority

CONTROLLER = PROCESS_LOOPBACK

OF_MEMBERS = AddController | PromoteController | RemoveController | MoveLeadership | DeletePod


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


class FixedPort(ControllerGroup):
    """One controller at the address where the operator asks."""

    def __init__(self, folder: Path, **changes: object) -> None:
        raft_port = free_port()
        super().__init__(
            folder,
            1,
            controller_peers=f"n0-{CONTROLLER}:{names.CONTROLLER_PORT}",
            raft_peers=f"n0-{CONTROLLER}:{raft_port}",
            bind_address=CONTROLLER,
            **changes,
        )
        self.ports, self.raft_ports = [names.CONTROLLER_PORT], [raft_port]

    def address(self, node_id: int) -> str:
        return f"{CONTROLLER}:{self.ports[node_id]}"


class Bench:
    """`orders` has the controllers, `bills` uses them."""

    def __init__(self, kube: FakeKube, client: KubeClient) -> None:
        self.kube = kube
        self._client = client
        self._facts = ClusterFacts(client, SystemClock())

    def uid(self, name: str) -> str:
        live = self.kube.get("brokersets", name, NAMESPACE)
        assert live is not None
        return str(live["metadata"]["uid"])

    async def seen(self, name: str) -> Seen:
        found = await observe(
            self._client,
            self._facts,
            SystemClock(),
            namespace=NAMESPACE,
            name=name,
            installed=Operator(image="brokerset:1"),
        )
        assert found is not None
        return found

    async def know(self, *groups: tuple[str, str | None]) -> None:
        """Let the controller know groups by name and owner."""
        async with ControllerAdmin([f"{CONTROLLER}:{names.CONTROLLER_PORT}"]) as admin:
            for number, (name, owner) in enumerate(groups):
                address = f"10.0.0.{number + 1}:10911"
                replica = ReplicaState(1, address, f"{address};1", 1, None, "unknown")
                await admin.rebuild(
                    GroupState("DefaultCluster", name, owner, 1, 2, None, 1, (), 1, (), (), (replica,))
                )


@asynccontextmanager
async def bench(folder: Path, **changes: object) -> AsyncIterator[Bench]:
    group = FixedPort(folder, **changes)
    try:
        await group.start(0)
        await group.leader()
        async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
            kube.put(broker_set("orders", controllers={"replicas": 1}))
            kube.put(broker_set("bills", replicas=1, controllers={"ref": {"name": "orders"}}))
            kube.put(a_pod("orders-controller-0", "controller", ip=CONTROLLER))
            yield Bench(kube, client)
    finally:
        await group.stop(0)


def test_a_set_asks_the_controllers_that_it_refers_to(tmp_path: Path) -> None:
    """Leader and members are those of the other set, whose pods are none of this one's."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            seen = await found.seen("bills")

            assert seen.observed.controllers.leader == 0
            assert seen.controllers == (f"{CONTROLLER}:{names.CONTROLLER_PORT}",)
            assert seen.observed.pods == {}

            found.kube.remove("pods", "orders-controller-0", NAMESPACE)
            seen = await found.seen("bills")
            assert seen.observed.controllers.leader is None
            assert seen.controllers == ()
            told = condition({"status": plan(seen.observed).status}, "ControllersReady")
            assert told is not None
            assert told["status"] == "False"
            assert "BrokerSet orders" in told["message"]

    run(work())


def test_each_set_sees_its_own_groups_only(tmp_path: Path) -> None:
    """Groups are told apart by their owner; one with a wanted name and another owner is seen as foreign."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            orders, bills = found.uid("orders"), found.uid("bills")
            await found.know(("orders-0", orders), ("bills-0", bills), ("bills-7", bills), ("other", "x"))

            assert sorted((await found.seen("orders")).observed.groups) == ["orders-0"]
            assert sorted((await found.seen("bills")).observed.groups) == ["bills-0", "bills-7"]

            found.kube.put(
                broker_set("thief", brokerNames=["other"], controllers={"ref": {"name": "orders"}})
            )
            seen = (await found.seen("thief")).observed
            assert list(seen.groups) == ["other"]
            assert gather(seen).groups[0].contested is not None

    run(work())


def test_nothing_is_done_to_controllers_of_another_set(tmp_path: Path) -> None:
    """No member is added or removed, no pod deleted, and no controllers are made for the set itself."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            decided = plan((await found.seen("bills")).observed)

            made = [a.manifest["metadata"]["name"] for a in decided.actions if isinstance(a, ApplyObject)]
            assert "bills-0" in made
            assert not [name for name in made if "controller" in name or name.startswith("orders")]
            assert not [action for action in decided.actions if isinstance(action, OF_MEMBERS)]

    run(work())


def test_who_shares_controllers_is_known_from_the_sets() -> None:
    """A set that gets a reference, another one or none, is found under what it refers to now."""
    shared = SharedControllers()
    orders, bills = Key(SET, NAMESPACE, "orders"), Key(SET, NAMESPACE, "bills")
    shared.saw(broker_set("orders"))
    shared.saw(broker_set("bills", controllers={"ref": {"name": "orders"}}))
    assert shared.served_by(orders) == (bills,)
    assert shared.served_by(bills) == ()

    shared.saw(broker_set("bills"))
    assert shared.served_by(orders) == ()

    shared.saw(broker_set("bills", controllers={"ref": {"name": "orders"}}))
    shared.forget(bills)
    assert shared.served_by(orders) == ()


def test_a_change_of_controllers_marks_the_sets_that_use_them() -> None:
    """A controller's pod that comes, changes or goes is seen by every set that asks it."""
    rounds: list[str] = []

    def counting(observed: Any) -> Any:
        rounds.append(observed.meta.name)
        return Plan((), status_of(observed, "True", "AsWanted", "fine"), 300.0)

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, counting):

            def ready(name: str) -> object:
                return condition(kube.get("brokersets", name, NAMESPACE), "Ready")

            kube.put(broker_set("orders"))
            kube.put(broker_set("bills", controllers={"ref": {"name": "orders"}}))
            await until(lambda: all(map(ready, ("orders", "bills"))))
            rounds.clear()

            kube.put(a_pod("orders-controller-0", "controller"))

            await until(lambda: {"orders", "bills"} <= set(rounds))

    run(work())


def authorities(name: str, text: str) -> dict[str, Any]:
    """A ConfigMap with whom to trust."""
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": text}}


def enforcing(name: str, **spec: Any) -> dict[str, Any]:
    """A set with certificates that somebody else keeps."""
    tls = {"secretName": f"{name}-tls", "trustConfigMap": f"{name}-authorities", "mode": "enforcing"}
    return broker_set(name, tls=tls, **spec)


def test_a_set_reaches_controllers_of_another_authority_and_each_knows_how_far_the_other_is(
    tmp_path: Path,
) -> None:
    """By what both ConfigMaps have; without the other set's there is no way to its controllers."""
    own, others = Authority.make("of orders"), Authority.make("of bills")
    issued = own.issue("orders", [f"orders-namesrv.{NAMESPACE}.svc"])
    (tmp_path / "tls.crt").write_bytes(issued.certificate)
    (tmp_path / "tls.key").write_bytes(issued.key)
    keys = "tls.server.mode=enforcing\ntls.server.certPath=tls.crt\ntls.server.keyPath=tls.key\n"
    (tmp_path / "tls.properties").write_text(keys, encoding="utf-8")
    stage = {"brokerset.io/tls": "enforcing"}

    async def work() -> None:
        async with bench(tmp_path / "raft", tls_config_file=tmp_path / "tls.properties") as found:
            kube = found.kube
            kube.put(enforcing("orders", controllers={"replicas": 1}))
            kube.put(enforcing("bills", replicas=1, controllers={"ref": {"name": "orders"}}))
            kube.put(a_pod("orders-controller-0", "controller", ip=CONTROLLER, annotations=stage))
            kube.put(authorities("bills-authorities", others.certificate.decode()))
            assert (await found.seen("bills")).observed.controllers.leader is None

            kube.put(authorities("orders-authorities", own.certificate.decode()))
            seen = (await found.seen("bills")).observed

            assert seen.controllers.leader == 0
            assert seen.authorities == others.certificate.decode()
            (orders,) = seen.peers
            assert (orders.name, orders.authorities) == ("orders", own.certificate.decode())
            assert [each["annotations"] for each in orders.pods] == [stage]

            pod = a_pod("bills-0-0", "broker")
            pod["metadata"]["labels"] = names.labels("bills", "broker", "bills-0")
            kube.put(pod)
            kube.remove("configmaps", "bills-authorities", NAMESPACE)
            (bills,) = (await found.seen("orders")).observed.peers
            assert [each["name"] for each in bills.pods] == ["bills-0-0"]
            assert "bills-authorities (spec.tls.trustConfigMap) is not there" in str(bills.trust_problem)

            kube.put(broker_set("orders"))
            kube.remove("pods", "orders-controller-0", NAMESPACE)
            assert (await found.seen("orders")).observed.peers == (), "it never had to do with either"

    run(work())


def test_a_set_that_comes_changes_or_goes_is_seen_by_those_with_which_it_shares_controllers() -> None:
    """And a change of its own authority, which their pods trust."""
    reconciled: list[str] = []

    def counting(observed: Any) -> Any:
        reconciled.append(observed.meta.name)
        return Plan((), status_of(observed, "True", "AsWanted", "fine"), 300.0)

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, counting):

            async def seen(*expected: str) -> None:
                await until(lambda: set(expected) <= set(reconciled))
                reconciled.clear()

            kube.put(broker_set("orders"))
            await seen("orders")
            kube.put(broker_set("bills", controllers={"ref": {"name": "orders"}}))
            await seen("orders", "bills")
            changed = authorities("bills-authority", "x")
            changed["metadata"]["labels"] = names.labels("bills")
            kube.put(changed)
            await seen("orders", "bills")
            kube.remove("brokersets", "bills", NAMESPACE)
            await seen("orders")

    run(work())
