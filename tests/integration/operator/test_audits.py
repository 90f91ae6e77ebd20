"""StoreAudits and StoreMigrations against an API server: what is read, made, written and told."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_acl.signatures import ACCESS_KEY
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.apply import Means
from brokerset_operator.audits import AUDIT, AuditIndex, AuditReconciler
from brokerset_operator.events import Events
from brokerset_operator.migrations import MIGRATION, MigrationReconciler
from brokerset_operator.model import names
from brokerset_operator.reconcile_queue import GONE, Key
from brokerset_operator.set_reconciler import SET
from brokerset_protocol.bodies.controllers import (
    ControllerMember,
    ControllerStatus,
    GroupState,
    GroupStates,
    ReplicaState,
)
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import GetMetaDataResponse
from brokerset_rig.certificates import Certificates
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set, condition
from brokerset_rig.process_loopback import PROCESS_LOOPBACK
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import Connection, RemotingServer
from brokerset_runtime.tls import Tls

CONTROLLER = PROCESS_LOOPBACK

KEY = Key(AUDIT, NAMESPACE, "nightly")


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


class Controller:
    """One that leads, and knows a group of two brokers."""

    def __init__(self, tls: Tls | None = None) -> None:
        self.signers: set[str | None] = set()
        self.server = RemotingServer(
            {
                RequestCode.BROKERSET_CONTROLLER_STATUS: self._status,
                RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
                RequestCode.BROKERSET_GROUP_STATES: self._groups,
            },
            tls=tls,
        )

    def _status(self, connection: Connection, command: Command) -> Command:
        self.signers.add(command.ext.get(ACCESS_KEY))
        member = ControllerMember(0, "x:1", f"{CONTROLLER}:9878", True, 5)
        status = ControllerStatus(0, "leader", 1, 0, True, 5, 5, 5, 0, (member,))
        return command.reply(body=status.to_json())

    def _metadata(self, connection: Connection, command: Command) -> Command:
        return command.reply(ext=GetMetaDataResponse(group="g", is_leader=True).to_ext())

    def _groups(self, connection: Connection, command: Command) -> Command:
        replicas = tuple(
            ReplicaState(number, f"10.0.0.{number}:10911", "", 1, None, "alive", confirm_offset=7000 + number)
            for number in (1, 2)
        )
        state = GroupState("DefaultCluster", "orders-0", None, 2, 3, 2, 4, (1, 2), 1, (), (), replicas)
        return command.reply(body=GroupStates((state,)).to_json())


class Bench:
    """The set `orders`, one StoreAudit of it, and its reconciles."""

    def __init__(self, kube: FakeKube, client: KubeClient) -> None:
        self.kube = kube
        self.marked: list[Key] = []
        clock = SystemClock()
        means = Means(client=client, events=Events(client, clock, "test"), clock=clock, leads=lambda: True)
        self.index = AuditIndex()
        self.reconciler = AuditReconciler(
            means, self.index, 300.0, "brokerset-spark:1", on_set=self.marked.append
        )
        self.migrations = MigrationReconciler(means, 300.0, "brokerset-spark:1")

    def ask(self, value: str = "1") -> None:
        """Set the annotation."""

        def edit(live: dict[str, Any]) -> None:
            live["metadata"].setdefault("annotations", {})["brokerset.io/audit-now"] = value

        self.kube.change("storeaudits", "nightly", NAMESPACE, edit)

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {key[3]: item for key, item in self.kube.objects.items() if key[1] == "jobs"}

    def finish(self, job: str, *, log: str = "", message: str = "", code: int = 0) -> None:
        """Let a Job's pod end."""
        labels = self.jobs()[job]["metadata"]["labels"]
        ended = {"terminated": {"exitCode": code, "message": message}}
        self.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{job}-x",
                    "namespace": NAMESPACE,
                    "labels": labels,
                    "ownerReferences": [{"kind": "Job", "name": job, "uid": "x"}],
                },
                "status": {"containerStatuses": [{"name": "job", "state": ended}]},
            }
        )
        self.kube.logs[f"{job}-x"] = log

    def status(self) -> dict[str, Any]:
        live = self.kube.get("storeaudits", "nightly", NAMESPACE)
        assert live is not None
        found: dict[str, Any] = live["status"]
        return found

    async def until_written(self) -> None:
        """Reconciles until one changes nothing."""
        for _ in range(10):
            before = self.kube.version
            await self.reconciler.reconcile(KEY)
            if self.kube.version == before:
                return
        raise AssertionError("rounds do not come to rest")


@asynccontextmanager
async def bench(controller: Controller | None = None) -> AsyncIterator[Bench]:
    controller = controller or Controller()
    await controller.server.listen(CONTROLLER, names.CONTROLLER_PORT)
    try:
        async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
            kube.put(broker_set(replicas=2))
            kube.put(a_pod("orders-controller-0", "controller", ip=CONTROLLER))
            for number in (1, 2):
                kube.put(a_pod(f"orders-0-{number - 1}", "broker", ip=f"10.0.0.{number}"))
            kube.put(
                {
                    "apiVersion": "brokerset.io/v1alpha1",
                    "kind": "StoreAudit",
                    "metadata": {"name": "nightly", "namespace": NAMESPACE},
                    "spec": {"brokerSetRef": {"name": "orders"}},
                }
            )
            yield Bench(kube, client)
    finally:
        await controller.server.close()


def test_a_set_that_takes_tls_alone_and_checks_users_is_audited(tmp_path: Path) -> None:
    """Controllers are asked by TLS, as the administrator of the set; jobs connect to nobody."""
    certificates = Certificates(tmp_path)
    certificates.issue("pods", [f"orders-namesrv.{NAMESPACE}.svc"])
    controller = Controller(Tls(certificates.config("pods")))
    users = {
        "initAuthenticationUser": json.dumps({"username": "admin", "password": "admin-password"}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "b", "secretKey": "b-password"}),
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "orders-access", "namespace": NAMESPACE},
        "immutable": True,
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in users.items()},
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "orders-authorities", "namespace": NAMESPACE},
        "data": {"ca.crt": certificates.authority.certificate.decode()},
    }
    tls = {"secretName": "orders-tls", "trustConfigMap": "orders-authorities", "mode": "enforcing"}

    async def work() -> None:
        async with bench(controller) as found:
            found.kube.put(secret)
            found.kube.put(config_map)
            found.kube.put(broker_set(replicas=2, tls=tls, acl={"secretName": "orders-access"}))

            def enforce(live: dict[str, Any]) -> None:
                live["metadata"]["annotations"] = {"brokerset.io/tls": "enforcing"}

            found.kube.change("pods", "orders-controller-0", NAMESPACE, enforce)
            found.ask()
            await found.until_written()

            assert len(found.jobs()) == 2, found.status()
            assert controller.signers == {"admin"}
            for job in found.jobs().values():
                assert "orders-access" not in json.dumps(job)

    run(work())


def test_a_run_ends_in_the_status_the_sets_condition_and_events() -> None:
    """The confirmed offset is that of the master, and the map is the last line of a log."""

    async def work() -> None:
        async with bench() as found:
            found.ask()
            await found.until_written()
            maps = [name for name in found.jobs() if not name.endswith("reduce")]
            assert [name.rpartition("-")[2] for name in maps] == ["0", "1"]
            for name in maps:
                (container,) = found.jobs()[name]["spec"]["template"]["spec"]["containers"]
                command = container["command"]
                assert command[command.index("--confirm-offset") + 1] == "7002"
                found.finish(name, log='a line\n{"mapVersion":1,"name":"x"}\n')
            await found.until_written()
            kept = found.kube.get("configmaps", "nightly-map-0-1", NAMESPACE)
            assert kept is not None
            assert kept["data"]["map.json"] == '{"mapVersion":1,"name":"x"}'
            assert '"masterEpoch": 4' in kept["data"]["controllers.json"]
            (reduce,) = [name for name in found.jobs() if name.endswith("reduce")]
            (container,) = found.jobs()[reduce]["spec"]["template"]["spec"]["containers"]
            assert "--controller" in container["command"]

            error = '{"code":"damage","level":"error","text":"bad","store":"orders-0-1","offset":5}'
            found.finish(reduce, message=f'{{"clean":false,"findingsTotal":1,"findings":[{error}]}}', code=1)
            await found.until_written()

            assert found.status()["lastRun"]["result"] == "FindingsFound"
            owner = found.kube.get("brokersets", "orders", NAMESPACE)
            told = condition(owner, "AuditPassed")
            assert told is not None
            assert (told["status"], told["reason"]) == ("False", "ErrorsFound")
            assert Key(SET, NAMESPACE, "orders") in found.marked
            events = [item for key, item in found.kube.objects.items() if key[1] == "events"]
            assert {(item["reason"], item["regarding"]["kind"]) for item in events} == {
                ("AuditError", "StoreAudit"),
                ("AuditError", "BrokerSet"),
            }
            assert found.kube.get("configmaps", "nightly-map-0-1", NAMESPACE) is None
            assert list(found.jobs()) == [reduce]

            found.kube.remove("storeaudits", "nightly", NAMESPACE)
            assert await found.reconciler.reconcile(KEY) == GONE
            assert condition(found.kube.get("brokersets", "orders", NAMESPACE), "AuditPassed") is None

    run(work())


def test_answers_of_replicas_are_kept_beside_their_maps_and_given_to_the_next_comparison() -> None:
    """A replica has a map and an answer in one run; neither is taken for the other."""

    async def work() -> None:
        async with bench() as found:
            found.ask()
            await found.until_written()
            for name in list(found.jobs()):
                found.finish(name, log='{"mapVersion":1}\n')
            await found.until_written()
            (reduce,) = [name for name in found.jobs() if name.endswith("reduce")]
            wanted = ",".join(
                f'{{"url":"/stores/orders-0-{number}/store","bound":9,"lists":[[0,9]],"shows":[]}}'
                for number in (0, 1)
            )
            found.finish(reduce, message=f'{{"clean":false,"findings":[],"further":[{wanted}]}}', code=1)
            await found.until_written()
            queries = [name for name in found.jobs() if name.endswith("look-1")]
            assert len(queries) == 2

            for name in queries:
                found.finish(name, log='{"lookVersion":1}\n')
            await found.until_written()

            kept = found.kube.get("configmaps", "nightly-look-1-0-1", NAMESPACE)
            assert kept is not None
            assert kept["data"] == {"look.json": '{"lookVersion":1}'}
            (again,) = [name for name in found.jobs() if name.endswith("reduce-1")]
            found.finish(again, message='{"clean":false,"findings":[]}', code=1)
            await found.until_written()
            assert found.status()["lastRun"]["result"] == "FindingsFound"
            assert found.kube.get("configmaps", "nightly-look-1-0-1", NAMESPACE) is None
            assert sorted(found.jobs()) == sorted([reduce, again])

    run(work())


def _disown(live: dict[str, Any]) -> None:
    live["metadata"]["ownerReferences"] = []


def test_a_second_operator_makes_no_second_job() -> None:
    """A Job that is there by the time it is made is taken for one's own."""

    async def work() -> None:
        async with bench() as found:
            found.ask()
            await found.reconciler.reconcile(KEY)
            await found.reconciler.reconcile(KEY)
            before = dict(found.jobs())
            for name in before:  # as if the list were older than the Jobs
                found.kube.change("jobs", name, NAMESPACE, _disown)

            await found.reconciler.reconcile(KEY)

            assert found.jobs().keys() == before.keys()

    run(work())


def test_a_resting_audit_writes_nothing() -> None:
    """However often it is looked at."""

    async def work() -> None:
        async with bench() as found:
            await found.until_written()
            before = found.kube.version
            again = await found.reconciler.reconcile(KEY)
            assert found.kube.version == before
            assert again is not None
            assert again > 200

    run(work())


@pytest.mark.parametrize("used", [True, False], ids=["in use", "free"])
def test_a_migration_waits_for_its_volumes(used: bool) -> None:
    """A pod of whatever kind that has the source keeps it from beginning."""

    async def work() -> None:
        async with bench() as found:
            found.kube.put(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": "old-broker", "namespace": NAMESPACE},
                    "spec": {"resources": {"requests": {"storage": "3Gi"}}},
                }
            )
            found.kube.put(
                {
                    "apiVersion": "brokerset.io/v1alpha1",
                    "kind": "StoreMigration",
                    "metadata": {"name": "take-over", "namespace": NAMESPACE},
                    "spec": {
                        "source": {"claimName": "old-broker"},
                        "target": {"broker": {"set": {"name": "bills"}}},
                    },
                }
            )
            if used:
                volume = {"name": "d", "persistentVolumeClaim": {"claimName": "old-broker"}}
                found.kube.put(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {"name": "old-0", "namespace": NAMESPACE},
                        "spec": {"volumes": [volume]},
                        "status": {"phase": "Running"},
                    }
                )
            for _ in range(3):
                await found.migrations.reconcile(Key(MIGRATION, NAMESPACE, "take-over"))

            live = found.kube.get("storemigrations", "take-over", NAMESPACE)
            made = found.kube.get("persistentvolumeclaims", "data-bills-0-0", NAMESPACE)
            told = condition(live, "Ready")
            assert told is not None
            if used:
                assert told["reason"] == "VolumeInUse"
                assert "old-0" in told["message"]
                assert (made, found.jobs()) == (None, {})
            else:
                assert told["reason"] == "Migrating"
                assert made is not None
                assert made["spec"]["resources"]["requests"]["storage"] == "3Gi"
                assert list(found.jobs()) == ["take-over-migrate"]

    run(work())
