"""StoreExports against an API server: what is read, made, written and told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.apply import Means
from brokerset_operator.events import Events
from brokerset_operator.exports import EXPORT, ExportReconciler
from brokerset_operator.model import names
from brokerset_operator.reconcile_queue import GONE, Key
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set, condition, operator, simple_plan, until
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.tls.authority import Authority

KEY = Key(EXPORT, NAMESPACE, "lake")
SUMMARY = (
    '{"clean":true,"findingsTotal":0,"findings":[],"bytesRead":10,'
    '"counters":{"export.rows":7,"export.lag":1}}'
)


def export(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreExport",
        "metadata": {"name": "lake", "namespace": NAMESPACE},
        "spec": {
            "brokerSetRef": {"name": "orders"},
            "topics": ["payments"],
            "target": {"url": "s3://lake/orders", "credentials": {"secretName": "lake-keys"}},
            **spec,
        },
    }


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


class Bench:
    """One StoreExport of the set `orders`, and its reconciles."""

    def __init__(self, kube: FakeKube, client: KubeClient) -> None:
        self.kube = kube
        clock = SystemClock()
        means = Means(client=client, events=Events(client, clock, "test"), clock=clock, leads=lambda: True)
        self.reconciler = ExportReconciler(means, 300.0, "brokerset-spark:1", "ClusterRole/driver")

    def ask(self, value: str) -> None:
        """Set the annotation."""

        def edit(live: dict[str, Any]) -> None:
            live["metadata"].setdefault("annotations", {})["brokerset.io/export-now"] = value

        self.kube.change("storeexports", "lake", NAMESPACE, edit)

    def named(self, plural: str) -> dict[str, dict[str, Any]]:
        """Objects of a kind, by name."""
        return {key[3]: item for key, item in self.kube.objects.items() if key[1] == plural}

    def finish(self, job: str, message: str, code: int = 0) -> None:
        """Let a Job's pod end."""
        ended = {"terminated": {"exitCode": code, "message": message}}
        self.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{job}-x",
                    "namespace": NAMESPACE,
                    "labels": self.named("jobs")[job]["metadata"]["labels"],
                    "ownerReferences": [{"kind": "Job", "name": job, "uid": "x"}],
                },
                "status": {"containerStatuses": [{"name": "job", "state": ended}]},
            }
        )

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = condition(self.kube.get("storeexports", "lake", NAMESPACE), kind)
        assert found is not None
        return found["status"], found["reason"]

    async def until_written(self) -> None:
        """Reconciles until one changes nothing."""
        for _ in range(10):
            before = self.kube.version
            await self.reconciler.reconcile(KEY)
            if self.kube.version == before:
                return
        raise AssertionError("reconciles do not come to rest")


@asynccontextmanager
async def bench(**spec: Any) -> AsyncIterator[Bench]:
    async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
        kube.put(broker_set(replicas=2))
        kube.put(export(**spec))
        yield Bench(kube, client)


def test_a_run_ends_in_the_status_and_what_executors_took_goes_with_it() -> None:
    """The Job is told where the set's name servers are; account, rights and template are its own."""

    async def work() -> None:
        async with bench(executors={"instances": 2}) as found:
            found.ask("1")
            await found.until_written()
            (job,) = found.named("jobs")
            assert list(found.named("rolebindings")) == [f"{job}-driver"]
            (container,) = found.named("jobs")[job]["spec"]["template"]["spec"]["containers"]
            command = container["command"]
            assert command[command.index("--name-servers") + 1] == f"orders-namesrv.{NAMESPACE}.svc:9876"
            assert found.condition("Exporting") == ("True", "Running")

            found.finish(job, SUMMARY)
            await found.until_written()

            live = found.kube.get("storeexports", "lake", NAMESPACE)
            assert live is not None
            assert (live["status"]["lastRun"]["rows"], live["status"]["lastRun"]["lag"]) == (7, 1)
            assert found.condition("Exported") == ("True", "UpToDate")
            assert list(found.named("jobs")) == [job]
            for plural in ("rolebindings", "serviceaccounts", "configmaps"):
                assert not found.named(plural), plural
            assert await found.reconciler.reconcile(KEY) is not None

    run(work())


def test_a_second_operator_makes_no_second_job() -> None:
    """One that starts again goes on with the run that is written down."""

    async def work() -> None:
        async with bench() as found:
            found.ask("1")
            await found.reconciler.reconcile(KEY)
            other = Bench(found.kube, found.reconciler.means.client)
            await other.until_written()
            await found.until_written()
            assert len(found.named("jobs")) == 1

    run(work())


def test_a_second_export_of_a_target_says_who_has_it() -> None:
    """It makes no Job until the first one is gone."""

    async def work() -> None:
        async with bench() as found:
            first = export()
            first["metadata"] |= {"name": "first", "creationTimestamp": "2020-01-01T00:00:00Z"}
            found.kube.put(first)
            found.ask("1")
            await found.until_written()
            assert found.condition("Ready") == ("False", "TargetTaken")
            assert not found.named("jobs")

            found.kube.remove("storeexports", "first", NAMESPACE)
            await found.until_written()
            assert len(found.named("jobs")) == 1

    run(work())


def test_a_failed_run_is_an_event_and_no_secret_was_read() -> None:
    """What the pod said is told; credentials are a name and nothing else."""

    async def work() -> None:
        async with bench() as found:
            found.ask("1")
            await found.until_written()
            (job,) = found.named("jobs")

            def fail(live: dict[str, Any]) -> None:
                live["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "x"}]}

            found.finish(job, "Error: the bucket lake refuses us", 2)
            found.kube.change("jobs", job, NAMESPACE, fail)
            await found.until_written()
            events = [item for key, item in found.kube.objects.items() if key[1] == "events"]
            (told,) = [item for item in events if item["reason"] == "ExportRunFailed"]
            assert "the bucket lake refuses us" in told["note"]

    run(work())


def test_an_export_that_is_gone_is_forgotten() -> None:
    async def work() -> None:
        async with bench() as found:
            del found.kube.objects["brokerset.io", "storeexports", NAMESPACE, "lake"]
            assert await found.reconciler.reconcile(KEY) is GONE

    run(work())


def test_the_operator_hears_of_exports_and_of_their_jobs() -> None:
    """From an object that somebody creates to its Job, by watches alone."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, simple_plan) as running:
            kube.put(broker_set())
            kube.put(export(image="brokerset-spark:1", schedule="* * * * *", suspend=True))

            def ready() -> bool:
                found = condition(kube.get("storeexports", "lake", NAMESPACE), "Ready")
                return found is not None and found["reason"] == "Suspended"

            await until(ready)
            await until(lambda: running.process.measurements.exports)

            def ask(live: dict[str, Any]) -> None:
                live["metadata"].setdefault("annotations", {})["brokerset.io/export-now"] = "1"

            kube.change("storeexports", "lake", NAMESPACE, ask)
            await until(lambda: any(key[1] == "jobs" for key in kube.objects))

    run(work())


TLS = {"secretName": "orders-tls", "trustConfigMap": "orders-authorities", "mode": "enforcing"}


def authorities(text: str) -> dict[str, Any]:
    """The ConfigMap that `TLS` names."""
    metadata = {"name": "orders-authorities", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": text}}


def test_an_export_from_a_set_that_takes_tls_alone_and_checks_users() -> None:
    """Its Job names ConfigMap and Secret, which is never read here; what is missing a condition says."""

    async def work() -> None:
        async with bench() as found:
            found.kube.put(broker_set(tls=TLS, acl={"secretName": "orders-access"}))
            found.ask("1")
            await found.until_written()
            assert found.condition("Ready") == ("False", "NoTrust")

            found.kube.put(authorities("no certificate"))
            await found.until_written()
            assert found.condition("Ready") == ("False", "NoTrust")

            found.kube.put(authorities(Authority.make("orders").certificate.decode()))
            await found.until_written()
            assert found.condition("Ready") == ("False", "NoCredentials")
            assert not found.named("jobs")

            def sign(live: dict[str, Any]) -> None:
                live["spec"]["credentials"] = {"secretName": "lake-credentials"}

            found.kube.change("storeexports", "lake", NAMESPACE, sign)
            await found.until_written()
            ((job, made),) = found.named("jobs").items()
            pod = made["spec"]["template"]["spec"]
            files = found.named("configmaps")[f"{job}-trust"]["data"]["clients.properties"]
            assert f"tls.client.serverName=orders-namesrv.{NAMESPACE}.svc" in files
            assert "lake-credentials" in str(pod["containers"][0]["env"])
            assert "orders-authorities" in str(pod["volumes"])
            assert not [call for call in found.kube.calls if call.plural == "secrets"]

            found.finish(job, SUMMARY)
            await found.until_written()
            assert list(found.named("configmaps")) == ["orders-authorities"]
            assert found.condition("Exported") == ("True", "UpToDate")

    run(work())


def test_a_job_connects_by_tls_when_all_pods_take_it() -> None:
    """A set on its way is read plain as long as a pod may have no TLS, and by TLS afterwards."""

    async def work() -> None:
        async with bench() as found:
            found.kube.put(broker_set(tls=TLS))
            found.kube.put(authorities(Authority.make("orders").certificate.decode()))
            annotated: dict[str, Any] = {"annotations": {"brokerset.io/tls": "accepting"}}
            found.kube.put(a_pod("orders-0-0", "broker", **annotated))
            found.kube.put(a_pod("orders-0-1", "broker"))
            found.ask("1")
            await found.until_written()
            (plain,) = found.named("jobs")
            assert f"{plain}-trust" not in found.named("configmaps")

            found.finish(plain, SUMMARY)
            found.kube.put(a_pod("orders-0-1", "broker", **annotated))
            await found.until_written()
            found.ask("2")
            await found.until_written()
            (job,) = found.named("jobs").keys() - {plain}
            assert f"{job}-trust" in found.named("configmaps")

    run(work())


def test_a_job_of_a_set_with_shared_controllers_connects_by_tls_when_these_take_it() -> None:
    """It asks the other set's name servers first; that set's authority, and its name, are for it as well."""

    async def work() -> None:
        async with bench() as found:
            core = broker_set(tls={**TLS, "trustConfigMap": "core-authorities"})
            core["metadata"] = {**core["metadata"], "name": "core", "uid": "core-uid"}
            found.kube.put(core)
            found.kube.put(broker_set(tls=TLS, controllers={"ref": {"name": "core"}}))
            both = [Authority.make(name).certificate.decode() for name in ("core", "orders")]
            of_core = authorities(both[0])
            of_core["metadata"] = {**of_core["metadata"], "name": "core-authorities"}
            found.kube.put(of_core)
            found.kube.put(authorities(both[1]))
            annotated: dict[str, Any] = {"annotations": {"brokerset.io/tls": "accepting"}}
            found.kube.put(a_pod("orders-0-0", "broker", **annotated))
            controller = a_pod("core-controller-0", "controller")
            controller["metadata"]["labels"] = names.labels("core", "controller")
            found.kube.put(controller)
            found.ask("1")
            await found.until_written()
            (plain,) = found.named("jobs")
            assert f"{plain}-trust" not in found.named("configmaps")

            found.finish(plain, SUMMARY)
            found.kube.put({**controller, "metadata": {**controller["metadata"], **annotated}})
            await found.until_written()
            found.ask("2")
            await found.until_written()
            (job,) = found.named("jobs").keys() - {plain}
            data = found.named("configmaps")[f"{job}-trust"]["data"]
            assert f"tls.client.serverName=core-namesrv.{NAMESPACE}.svc" in data["clients.properties"]
            assert all(text in data["authorities.crt"] for text in both)

    run(work())
