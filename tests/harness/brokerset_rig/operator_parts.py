"""An operator's process against `FakeKube`, with plans and watches that a test can see through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_kube.kinds import Kind
from brokerset_kube.watching import Watch
from brokerset_operator.app import OnEvent, OperatorProcess
from brokerset_operator.model import names
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan.static import to_send
from brokerset_operator.settings import OperatorSettings
from brokerset_rig.fake_kube import FakeKube

SECONDS_MAX = 60.0  # of what comes at once: only what hangs is ended by it
LEASE_SECONDS = 15  # the default: a busy machine that stops a test for seconds takes nobody's lease
NAMESPACE = "shop"


def broker_set(name: str = "orders", namespace: str = NAMESPACE, **spec: Any) -> dict[str, Any]:
    """A BrokerSet as somebody applies it."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "BrokerSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def a_pod(
    name: str, component: str, *, ip: str | None = None, ready: bool = True, **metadata: Any
) -> dict[str, Any]:
    """A pod of the set `orders`."""
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    if ip is not None:
        status |= {"podIP": ip, "containerStatuses": [{"name": "x", "state": {"running": {}}}]}
    labels = names.labels("orders", component)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, **metadata},
        "spec": {"nodeName": "node-1"},
        "status": status,
    }


def simple_plan(observed: Observed) -> Plan:
    """One ConfigMap that has the size of the manifest's volumes, and a status that says so."""
    meta = observed.meta
    if observed.manifest is None:
        text = "; ".join(map(str, observed.problems))
        return Plan((), status_of(observed, "False", "InvalidSpec", text), 300.0)
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.controller_set(meta.name),
            "namespace": meta.namespace,
            "labels": names.labels(meta.name, "controller"),
            "ownerReferences": [
                {
                    "apiVersion": "brokerset.io/v1alpha1",
                    "kind": "BrokerSet",
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                }
            ],
        },
        "data": {"size": observed.manifest.spec.storage.size},
    }
    send = to_send(manifest, observed.config_maps.get(names.controller_set(meta.name)))
    return Plan(() if send is None else (send,), status_of(observed, "True", "AsWanted", "fine"), 300.0)


def status_of(observed: Observed, ready: str, reason: str, message: str) -> dict[str, Any]:
    """A status with the condition Ready, and what another operator has said."""
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": message}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    told = [one for one in observed.status.get("conditions") or () if one["type"] == "OperatorConflict"]
    return {
        "observedGeneration": observed.meta.generation,
        "conditions": [condition, *told],
        "operator": observed.operator.installation,
        **{key: value for key, value in observed.status.items() if key == "refused"},
    }


def condition(live: Mapping[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """A condition of an object; None if it has none of that type."""
    conditions = ((live or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), None)


async def watch_plainly(
    client: KubeClient, namespaces: Sequence[str], served: Sequence[Kind], told: OnEvent
) -> None:
    """Watch what people write with our own watches, in the place of kopf."""

    def passed_on(kind: str) -> Callable[[str, Mapping[str, Any]], None]:
        return lambda event, live: told(kind, event, live)

    async with asyncio.TaskGroup() as group:
        for kind in served:
            for namespace in namespaces or (None,):
                watch = Watch(client, kind, passed_on(kind.kind), namespace=namespace, metadata_only=False)
                group.create_task(watch.run())


class RunningOperator:
    """One process of it."""

    def __init__(self, process: OperatorProcess) -> None:
        self.process = process
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(process.run(self.stop))

    async def end(self) -> None:
        """SIGTERM."""
        self.stop.set()
        await self.task

    async def kill(self) -> None:
        """What the death of the process looks like to others, but for the Lease, which is given back."""
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def operator(
    kube: FakeKube, plan: Callable[[Observed], Plan] = simple_plan, **settings: Any
) -> AsyncIterator[RunningOperator]:
    """An operator that ends with the block, however it fared."""
    values: dict[str, Any] = {"image": "brokerset:test", "http_port": 0, "lease_seconds": LEASE_SECONDS}
    process = OperatorProcess(
        OperatorSettings(**(values | settings)),
        access=Access(kube.url, namespace="system"),
        plan=plan,
        watch_sets=watch_plainly,
    )
    found = RunningOperator(process)
    try:
        yield found
    finally:
        if not found.task.done():
            await found.kill()


async def until(condition: Callable[[], object], seconds: float = SECONDS_MAX) -> None:
    """Return when the condition holds; fails with `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # states change in many ways, none tells
            await asyncio.sleep(0.01)
